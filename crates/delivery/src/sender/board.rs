//! What the sender keeps in memory: recipients that are due, by domain, and the workers of each domain. All of it is bounded;
//! anything that is left out is found again in the queue. A *slot* is a worker's share of `connections_max`, or of the connections
//! for slow domains.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use restante_mail::queue::{DueItem, QueueAccount, QueuedId, Reply};
use restante_queue::Ticket;
use tokio::time::Instant;

use crate::DeliveryConfig;

/// The most domains.
const DOMAINS_MAX: usize = 20_000;
/// The most recipients that wait for one domain; the others stay in the queue until there is space.
const WAITING_PER_DOMAIN_MAX: usize = 1_000;
/// From so many waiting recipients on, each domain gets only [`WAITING_PER_DOMAIN_LOW`].
const WAITING_MAX: usize = 50_000;
/// The most recipients that wait for one domain then.
const WAITING_PER_DOMAIN_LOW: usize = 10;
/// The most domains that are remembered as good.
const GOOD_MAX: usize = 20_000;
/// The most domains that are remembered as those of this server.
const LOCAL_MAX: usize = 20_000;
/// How long a domain that was slow is expected to be slow again.
const SLOW_MEMORY: Duration = Duration::from_secs(600);

/// How long a hint is held while its recipient waits or is tried. After that it is acknowledged: a recipient that is claimed has a
/// lease, and one that waits is found when it is overdue. So slow domains do not use up all the hints that a server may hold.
const TICKET_HELD: Duration = Duration::from_secs(30);

/// The number of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkerId(u64);

/// A worker to be started.
#[derive(Clone, Debug)]
pub(super) struct Start {
    pub(super) worker: WorkerId,
    pub(super) domain: Arc<str>,
}

#[derive(Default)]
struct Domain {
    /// Recipients that are due and have not been given to a worker.
    waiting: VecDeque<QueuedId>,
    /// The accounts of the queue that have more for it.
    more: BTreeSet<QueueAccount>,
    workers: usize,
    /// Whether it is in a list of domains that wait for a worker.
    is_listed: bool,
    slow_until: Option<Instant>,
    /// The reply for all its recipients, and until when no connection is tried.
    down: Option<(Reply, Instant)>,
}

impl Domain {
    fn is_slow(&self, now: Instant) -> bool {
        self.slow_until.is_some_and(|until| now < until)
    }

    /// Whether nothing about it needs to be kept.
    fn is_idle(&self, now: Instant) -> bool {
        let is_down = self.down.as_ref().is_some_and(|(_, until)| now < *until);
        self.waiting.is_empty() && self.more.is_empty() && self.workers == 0 && !self.is_slow(now) && !is_down
    }
}

/// What is expected of a domain. This determines which slots its workers may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// It answered, and is not known to be slow: its workers may use all slots except those for slow domains.
    Good,
    /// Nothing is known of it. Such domains leave a quarter of the slots to those that answer.
    New,
    /// It is or was slow: its workers have slots of their own.
    Slow,
    /// It is of this server: its workers open no connection, and have slots of their own.
    Local,
    /// Its worker has no connection any more and only records outcomes: it uses no slot.
    Noting,
}

struct Worker {
    domain: Arc<str>,
    class: Class,
    progress: Instant,
}

/// The state of the sender in memory, see the module.
pub(super) struct Board {
    /// One server takes the mail of all domains: they share its connections, and none of them counts as new or slow.
    has_smarthost: bool,
    /// Workers for other servers, beside slow ones.
    connections_max: usize,
    local_workers_max: usize,
    slow_max: usize,
    per_domain_max: usize,
    local_max: usize,
    slow_after: Duration,
    domains: BTreeMap<Arc<str>, Domain>,
    /// Domains that wait for a worker, each once, in one of three lists by what is expected of them.
    ready: VecDeque<Arc<str>>,
    ready_new: VecDeque<Arc<str>>,
    ready_slow: VecDeque<Arc<str>>,
    ready_local: VecDeque<Arc<str>>,
    /// Domains that answered.
    good: HashSet<Arc<str>>,
    /// Domains of this server, also while they have no mail: otherwise their next mail would wait for a connection.
    local: HashSet<Arc<str>>,
    /// Recipients that wait or are being tried.
    in_hand: HashSet<QueuedId>,
    waiting: usize,
    workers: BTreeMap<WorkerId, Worker>,
    last_worker: u64,
    new: usize,
    slow: usize,
    local_workers: usize,
    noting: usize,
    /// The domains that have more recipients in the queue.
    with_more: BTreeSet<Arc<str>>,
    /// Accounts with recipients that were released without an outcome: they are read again.
    again: BTreeSet<QueueAccount>,
    /// Hints of other servers about recipients that wait or are being tried, with the times of their arrival.
    tickets: HashMap<QueuedId, (Ticket, Instant)>,
}

/// The size of the board, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) domains: usize,
    pub(super) workers: usize,
    pub(super) slow_workers: usize,
}

impl Board {
    pub(super) fn new(config: &DeliveryConfig) -> Self {
        let has_smarthost = !config.remote.smarthost.is_empty();
        let mut connections_max = config.connections_max.get();
        let mut slow_after = Duration::from_secs(config.slow_after_seconds.get());
        if has_smarthost {
            connections_max = connections_max.min(config.remote.smarthost_connections_max.get());
            slow_after = Duration::MAX;
        }
        Self {
            has_smarthost,
            connections_max,
            local_workers_max: config.connections_max.get(),
            slow_max: config.slow_connections_max.get(),
            per_domain_max: config.connections_per_domain_max.get(),
            local_max: config.local_at_once_max.get(),
            slow_after,
            domains: BTreeMap::new(),
            ready: VecDeque::new(),
            ready_new: VecDeque::new(),
            ready_slow: VecDeque::new(),
            ready_local: VecDeque::new(),
            good: HashSet::new(),
            local: HashSet::new(),
            in_hand: HashSet::new(),
            waiting: 0,
            workers: BTreeMap::new(),
            last_worker: 0,
            new: 0,
            slow: 0,
            local_workers: 0,
            noting: 0,
            with_more: BTreeSet::new(),
            again: BTreeSet::new(),
            tickets: HashMap::new(),
        }
    }

    /// Adds a recipient that another server's hint announces as due. The hint is held while its recipient waits or is tried. If
    /// there is no space for the recipient, the hint is acknowledged at once: the recipient is read from the queue when its domain
    /// has space, or when it is overdue.
    pub(super) fn hint(&mut self, item: DueItem, ticket: Ticket, now: Instant) {
        let id = item.id;
        let is_new = !self.in_hand.contains(&id);
        let _ = self.offer(item, now);
        if is_new && self.in_hand.contains(&id) {
            self.tickets.insert(id, (ticket, now));
        } else {
            ticket.done();
        }
    }

    /// Returns all hints.
    pub(super) fn return_hints(&mut self) {
        self.tickets.clear();
    }

    /// Adds a recipient that is due. `false` when there is not even space to note that its domain has one.
    pub(super) fn offer(&mut self, item: DueItem, now: Instant) -> bool {
        if self.in_hand.contains(&item.id) {
            return true;
        }
        if self.domains.len() >= DOMAINS_MAX && !self.domains.contains_key(item.domain.as_str()) {
            return false;
        }
        let Some(account) = QueueAccount::of_account(item.id.account) else { return true };
        let max = if self.waiting < WAITING_MAX { WAITING_PER_DOMAIN_MAX } else { WAITING_PER_DOMAIN_LOW };
        let name: Arc<str> = item.domain.into();
        let domain = self.domains.entry(name.clone()).or_default();
        if domain.waiting.len() >= max {
            domain.more.insert(account);
            self.with_more.insert(name);
            return true;
        }
        domain.waiting.push_back(item.id);
        self.in_hand.insert(item.id);
        self.waiting += 1;
        self.list(&name, now);
        true
    }

    /// Lists a domain that has something to do and may have one more worker.
    fn list(&mut self, name: &Arc<str>, now: Instant) {
        let Some(domain) = self.domains.get_mut(name) else { return };
        // One worker is enough to find out about a domain, and to record outcomes while it is down.
        let is_down = domain.down.as_ref().is_some_and(|(_, until)| now < *until);
        let is_good = self.has_smarthost || self.good.contains(name);
        let is_local = self.local.contains(name);
        let max = match is_local {
            _ if is_down || !is_good => 1,
            true => self.local_max,
            false => self.per_domain_max,
        };
        if domain.is_listed || domain.waiting.is_empty() || domain.workers >= max {
            return;
        }
        domain.is_listed = true;
        let is_slow = domain.is_slow(now);
        let list = match (is_slow, is_good) {
            _ if is_local => &mut self.ready_local,
            (true, _) => &mut self.ready_slow,
            (false, true) => &mut self.ready,
            (false, false) => &mut self.ready_new,
        };
        list.push_back(name.clone());
    }

    /// The next worker to start; `None` when no domain waits for one, or all slots are in use.
    pub(super) fn start(&mut self, now: Instant) -> Option<Start> {
        loop {
            let (name, class) = self.pop()?;
            let Some(domain) = self.domains.get_mut(&name) else { continue };
            domain.is_listed = false;
            if domain.waiting.is_empty() {
                continue; // its other workers took all
            }
            domain.workers += 1;
            self.last_worker += 1;
            let worker = WorkerId(self.last_worker);
            self.count(class, 1);
            self.workers.insert(worker, Worker { domain: name.clone(), class, progress: now });
            self.list(&name, now);
            return Some(Start { worker, domain: name });
        }
    }

    /// The next waiting domain for which there is a slot.
    fn pop(&mut self) -> Option<(Arc<str>, Class)> {
        if self.local_workers < self.local_workers_max && !self.ready_local.is_empty() {
            return Some((self.ready_local.pop_front()?, Class::Local));
        }
        let has_place = self.connected() < self.connections_max;
        // Domains that answer and new ones each have a quarter of the slots reserved.
        let quarter = self.connections_max.div_ceil(4);
        if has_place && self.new < quarter && !self.ready_new.is_empty() {
            return Some((self.ready_new.pop_front()?, Class::New));
        }
        if has_place && !self.ready.is_empty() {
            return Some((self.ready.pop_front()?, Class::Good));
        }
        if has_place && self.new < self.connections_max - quarter && !self.ready_new.is_empty() {
            return Some((self.ready_new.pop_front()?, Class::New));
        }
        if self.slow < self.slow_max {
            return Some((self.ready_slow.pop_front()?, Class::Slow));
        }
        None
    }

    /// Workers that use the slots of domains of other servers that are not slow.
    fn connected(&self) -> usize {
        self.workers.len() - self.slow - self.local_workers - self.noting
    }

    fn count(&mut self, class: Class, change: isize) {
        match class {
            Class::Good => {}
            Class::New => self.new = self.new.saturating_add_signed(change),
            Class::Slow => self.slow = self.slow.saturating_add_signed(change),
            Class::Local => self.local_workers = self.local_workers.saturating_add_signed(change),
            Class::Noting => self.noting = self.noting.saturating_add_signed(change),
        }
    }

    /// Changes the class of a worker, and so the slots that it is counted for. Returns the class before; `None` when it has ended.
    fn reclassify(&mut self, id: WorkerId, class: Class) -> Option<Class> {
        let worker = self.workers.get_mut(&id)?;
        let before = std::mem::replace(&mut worker.class, class);
        self.count(before, -1);
        self.count(class, 1);
        Some(before)
    }

    /// Recipients of a domain for one of its workers: all of one account of the queue.
    pub(super) fn take(&mut self, name: &str, max: usize) -> Vec<QueuedId> {
        let Some(domain) = self.domains.get_mut(name) else { return Vec::new() };
        let Some(first) = domain.waiting.front().copied() else { return Vec::new() };
        let mut taken = Vec::new();
        domain.waiting.retain(|id| {
            let is_taken = id.account == first.account && taken.len() < max;
            if is_taken {
                taken.push(*id);
            }
            !is_taken
        });
        self.waiting -= taken.len();
        taken
    }

    /// Releases recipients that a worker took. `is_noted` if their outcomes were recorded; otherwise they are read again.
    pub(super) fn done(&mut self, ids: &[QueuedId], is_noted: bool) {
        for id in ids {
            self.in_hand.remove(id);
            match self.tickets.remove(id) {
                Some((ticket, _)) if is_noted => ticket.done(),
                returned => drop(returned),
            }
            if !is_noted {
                self.again.extend(QueueAccount::of_account(id.account));
            }
        }
    }

    /// Whether a worker may give up its slot before the last outcomes are recorded: its domain has nothing more, other domains
    /// lack a slot, and not too many workers are recording outcomes already.
    pub(super) fn may_leave(&self, id: WorkerId) -> bool {
        let Some(worker) = self.workers.get(&id) else { return false };
        let has_more = self.domains.get(&worker.domain).is_some_and(|domain| !domain.waiting.is_empty());
        let is_short = if worker.class == Class::Local {
            self.local_workers >= self.local_workers_max && !self.ready_local.is_empty()
        } else {
            let is_full = self.connected() >= self.connections_max;
            let new_max = self.connections_max - self.connections_max.div_ceil(4);
            (is_full && !self.ready.is_empty())
                || ((is_full || self.new >= new_max) && !self.ready_new.is_empty())
        };
        !has_more && is_short && self.noting < self.connections_max
    }

    /// A worker has closed its connection and only records outcomes: another domain may use its slot. It still counts for its own domain.
    pub(super) fn left(&mut self, id: WorkerId) {
        let _ = self.reclassify(id, Class::Noting);
    }

    /// A worker has ended.
    pub(super) fn finished(&mut self, id: WorkerId, now: Instant) {
        let Some(worker) = self.workers.remove(&id) else { return };
        self.count(worker.class, -1);
        if let Some(domain) = self.domains.get_mut(&worker.domain) {
            domain.workers -= 1;
        }
        self.list(&worker.domain, now);
        self.forget_idle(&worker.domain, now);
    }

    fn forget_idle(&mut self, name: &str, now: Instant) {
        let is_idle = self.domains.get(name).is_some_and(|domain| domain.is_idle(now));
        if is_idle {
            self.domains.remove(name);
        }
    }

    /// A worker has made progress.
    pub(super) fn progressed(&mut self, id: WorkerId, now: Instant) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.progress = now;
        }
    }

    /// Whether a domain waits that could be served if this worker ended.
    pub(super) fn is_waited_for(&self, id: WorkerId) -> bool {
        match self.workers.get(&id).map(|worker| worker.class) {
            Some(Class::Local) => !self.ready_local.is_empty(),
            _ => !self.ready.is_empty() || !self.ready_new.is_empty(),
        }
    }

    /// A domain answered. Returns whether it may have more workers now.
    pub(super) fn set_good(&mut self, name: &Arc<str>, now: Instant) -> bool {
        if self.good.len() >= GOOD_MAX {
            self.good.clear(); // those that answer are found again
        }
        let is_new = self.good.insert(name.clone());
        self.list(name, now);
        is_new
    }

    /// The domain of a worker is of this server, so the worker gives up its slot among connections. Returns whether another worker may
    /// start now.
    pub(super) fn set_local(&mut self, id: WorkerId, now: Instant) -> bool {
        let Some(name) = self.workers.get(&id).map(|worker| worker.domain.clone()) else { return false };
        let before = self.reclassify(id, Class::Local);
        if self.local.len() >= LOCAL_MAX {
            self.local.clear(); // those of this server are found again
        }
        self.local.insert(name.clone());
        self.set_good(&name, now) || before != Some(Class::Local)
    }

    /// Whether a worker may connect to another server. One that was started for a domain of this server may not: the domain has left
    /// since, and its next worker has a place among connections.
    pub(super) fn may_connect(&mut self, id: WorkerId) -> bool {
        let Some(worker) = self.workers.get(&id) else { return false };
        let is_local = worker.class == Class::Local;
        if is_local {
            self.local.remove(&worker.domain);
        }
        !is_local
    }

    /// A domain could not be reached: for some time, this is the reply for all its recipients.
    pub(super) fn set_down(&mut self, name: &str, reply: Reply, until: Instant) {
        if let Some(domain) = self.domains.get_mut(name) {
            domain.down = Some((reply, until));
        }
    }

    /// The reply for all recipients of a domain that is down now.
    pub(super) fn down(&self, name: &str, now: Instant) -> Option<Reply> {
        let (reply, until) = self.domains.get(name)?.down.as_ref()?;
        (now < *until).then(|| reply.clone())
    }

    /// Moves workers without progress to the slots for slow domains, as far as there are any, and drops what is outdated.
    pub(super) fn review(&mut self, now: Instant) {
        let is_old =
            |_: &QueuedId, held: &mut (Ticket, Instant)| now.saturating_duration_since(held.1) >= TICKET_HELD;
        self.tickets.extract_if(is_old).for_each(|(_, (ticket, _))| ticket.done());
        let mut moved = Vec::new();
        for (id, worker) in &self.workers {
            let is_stuck = now.saturating_duration_since(worker.progress) >= self.slow_after;
            if !is_stuck || matches!(worker.class, Class::Local | Class::Noting) {
                continue;
            }
            if let Some(domain) = self.domains.get_mut(&worker.domain) {
                domain.slow_until = Some(now + SLOW_MEMORY);
            }
            if worker.class != Class::Slow && self.slow + moved.len() < self.slow_max {
                moved.push(*id);
            }
        }
        for id in moved {
            let _ = self.reclassify(id, Class::Slow);
        }
        // A domain that was listed before it was slow must not take a slot from the others.
        for list in [&mut self.ready, &mut self.ready_new] {
            let is_slow = |name: &Arc<str>| self.domains.get(name).is_some_and(|domain| domain.is_slow(now));
            let (slow, others): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(list).into_iter().partition(is_slow);
            *list = others;
            self.ready_slow.extend(slow);
        }
        self.domains.retain(|_, domain| !domain.is_idle(now) || domain.is_listed);
    }

    /// At most `max` domains that have space for more recipients from the queue, each with an account to read.
    pub(super) fn refills(&mut self, max: usize) -> Vec<(Arc<str>, QueueAccount)> {
        if self.waiting >= WAITING_MAX {
            return Vec::new();
        }
        let mut refills = Vec::new();
        let (domains, with_more) = (&mut self.domains, &mut self.with_more);
        with_more.retain(|name| {
            let Some(domain) = domains.get_mut(name) else { return false };
            if refills.len() < max
                && domain.waiting.len() < WAITING_PER_DOMAIN_MAX / 4
                && let Some(account) = domain.more.pop_first()
            {
                refills.push((name.clone(), account));
            }
            !domain.more.is_empty()
        });
        refills
    }

    /// Accounts that are to be read again.
    pub(super) fn take_again(&mut self) -> BTreeSet<QueueAccount> {
        std::mem::take(&mut self.again)
    }

    pub(super) fn size(&self) -> Size {
        Size { domains: self.domains.len(), workers: self.connected(), slow_workers: self.slow }
    }
}
