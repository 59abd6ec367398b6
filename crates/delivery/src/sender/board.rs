//! What the sender has in memory: recipients that are due, by domain, and who works for which domain. All of it is bounded, and
//! whatever is not in it is found again in the queue.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use restante_mail::queue::{DueItem, QueueAccount, QueuedId, Reply};
use tokio::time::Instant;

use crate::DeliveryConfig;

/// The most domains.
const DOMAINS_MAX: usize = 20_000;
/// The most recipients that wait for one domain; the others stay in the queue until there is room.
const WAITING_PER_DOMAIN_MAX: usize = 1_000;
/// From how many recipients on each domain gets only a few.
const WAITING_MAX: usize = 50_000;
/// Those few.
const WAITING_PER_DOMAIN_LOW: usize = 10;
/// How long a domain that was slow is expected to be slow again.
const SLOW_MEMORY: Duration = Duration::from_secs(600);

/// The number of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WorkerId(u64);

/// A worker to be started.
#[derive(Clone, Debug)]
pub(super) struct Start {
    pub(super) worker: WorkerId,
    pub(super) domain: Arc<str>,
}

#[derive(Default)]
struct Domain {
    /// Due, and not given to a worker yet.
    waiting: VecDeque<QueuedId>,
    /// The accounts of the queue that have more for it.
    more: BTreeSet<QueueAccount>,
    workers: usize,
    /// Whether it is in a list of domains that wait for a worker.
    is_listed: bool,
    is_local: bool,
    slow_until: Option<Instant>,
    /// What stands for all its recipients, and until when no connection is tried.
    down: Option<(Reply, Instant)>,
}

impl Domain {
    fn is_slow(&self, now: Instant) -> bool {
        self.slow_until.is_some_and(|until| now < until)
    }

    /// Whether nothing is known of it that must be kept.
    fn is_idle(&self, now: Instant) -> bool {
        let is_down = self.down.as_ref().is_some_and(|(_, until)| now < *until);
        self.waiting.is_empty() && self.more.is_empty() && self.workers == 0 && !self.is_slow(now) && !is_down
    }
}

struct Worker {
    domain: Arc<str>,
    is_slow: bool,
    progress: Instant,
}

/// See the module.
pub(super) struct Board {
    connections_max: usize,
    slow_max: usize,
    per_domain_max: usize,
    local_max: usize,
    slow_after: Duration,
    domains: HashMap<Arc<str>, Domain>,
    /// Domains that wait for a worker, each once: those that are not slow, and those that are.
    ready: VecDeque<Arc<str>>,
    ready_slow: VecDeque<Arc<str>>,
    /// Recipients that wait or are being tried.
    in_hand: HashSet<QueuedId>,
    waiting: usize,
    workers: HashMap<WorkerId, Worker>,
    last_worker: u64,
    slow: usize,
    /// Accounts with recipients that were let go without an outcome: they are read again.
    again: BTreeSet<QueueAccount>,
}

/// What the board has, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) domains: usize,
    pub(super) workers: usize,
    pub(super) slow_workers: usize,
}

impl Board {
    pub(super) fn new(config: &DeliveryConfig) -> Self {
        Self {
            connections_max: config.connections_max.get(),
            slow_max: config.slow_connections_max.get(),
            per_domain_max: config.connections_per_domain_max.get(),
            local_max: config.local_at_once_max.get(),
            slow_after: Duration::from_secs(config.slow_after_seconds.get()),
            domains: HashMap::new(),
            ready: VecDeque::new(),
            ready_slow: VecDeque::new(),
            in_hand: HashSet::new(),
            waiting: 0,
            workers: HashMap::new(),
            last_worker: 0,
            slow: 0,
            again: BTreeSet::new(),
        }
    }

    /// Takes note of a recipient that is due. `false` when there is no room even to note that its domain has one.
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
        // One worker is enough to note that a domain is down.
        let is_down = domain.down.as_ref().is_some_and(|(_, until)| now < *until);
        let max = match (domain.is_local, is_down) {
            (_, true) => 1,
            (true, _) => self.local_max,
            (false, _) => self.per_domain_max,
        };
        if domain.is_listed || domain.waiting.is_empty() || domain.workers >= max {
            return;
        }
        domain.is_listed = true;
        let is_slow = domain.is_slow(now);
        let list = if is_slow { &mut self.ready_slow } else { &mut self.ready };
        list.push_back(name.clone());
    }

    /// The next worker to start; `None` when no domain waits for one, or all places are taken.
    pub(super) fn start(&mut self, now: Instant) -> Option<Start> {
        loop {
            let (name, is_slow) = if self.workers.len() - self.slow < self.connections_max && !self.ready.is_empty() {
                (self.ready.pop_front()?, false)
            } else if self.slow < self.slow_max {
                (self.ready_slow.pop_front()?, true)
            } else {
                return None;
            };
            let Some(domain) = self.domains.get_mut(&name) else { continue };
            domain.is_listed = false;
            if domain.waiting.is_empty() {
                continue; // the workers that it has took all
            }
            domain.workers += 1;
            self.last_worker += 1;
            let worker = WorkerId(self.last_worker);
            self.slow += usize::from(is_slow);
            self.workers.insert(worker, Worker { domain: name.clone(), is_slow, progress: now });
            self.list(&name, now);
            return Some(Start { worker, domain: name });
        }
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

    /// Lets recipients go that a worker took. `is_noted` when their outcomes are noted; else they are read again.
    pub(super) fn done(&mut self, ids: &[QueuedId], is_noted: bool) {
        for id in ids {
            self.in_hand.remove(id);
            if !is_noted {
                self.again.extend(QueueAccount::of_account(id.account));
            }
        }
    }

    /// A worker has ended.
    pub(super) fn finished(&mut self, id: WorkerId, now: Instant) {
        let Some(worker) = self.workers.remove(&id) else { return };
        self.slow -= usize::from(worker.is_slow);
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

    /// A worker has got on.
    pub(super) fn progressed(&mut self, id: WorkerId, now: Instant) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.progress = now;
        }
    }

    /// Whether a domain waits that could be served if a worker ended.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn set_local(&mut self, name: &Arc<str>, now: Instant) {
        if let Some(domain) = self.domains.get_mut(name) {
            domain.is_local = true;
        }
        self.list(name, now);
    }

    /// A domain could not be reached: this reply stands for all its recipients for some time.
    pub(super) fn set_down(&mut self, name: &str, reply: Reply, until: Instant) {
        if let Some(domain) = self.domains.get_mut(name) {
            domain.down = Some((reply, until));
        }
    }

    /// What stands for all recipients of a domain now.
    pub(super) fn down(&self, name: &str, now: Instant) -> Option<Reply> {
        let (reply, until) = self.domains.get(name)?.down.as_ref()?;
        (now < *until).then(|| reply.clone())
    }

    /// Moves workers without progress to the places for slow ones, as far as there are any, and forgets what is no longer true.
    pub(super) fn review(&mut self, now: Instant) {
        for worker in self.workers.values_mut() {
            let is_stuck = now.saturating_duration_since(worker.progress) >= self.slow_after;
            if !is_stuck {
                continue;
            }
            if let Some(domain) = self.domains.get_mut(&worker.domain) {
                domain.slow_until = Some(now + SLOW_MEMORY);
            }
            if !worker.is_slow && self.slow < self.slow_max {
                worker.is_slow = true;
                self.slow += 1;
            }
        }
        // A domain that was listed before it was slow must not take a place of the others.
        let (slow, ready): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.ready)
            .into_iter()
            .partition(|name| self.domains.get(name).is_some_and(|domain| domain.is_slow(now)));
        self.ready = ready;
        self.ready_slow.extend(slow);
        self.domains.retain(|_, domain| !domain.is_idle(now) || domain.is_listed);
    }

    /// Domains that have room for what the queue has for them, with an account to read, at most so many.
    pub(super) fn refills(&mut self, max: usize) -> Vec<(Arc<str>, QueueAccount)> {
        if self.waiting >= WAITING_MAX {
            return Vec::new();
        }
        let mut refills = Vec::new();
        for (name, domain) in &mut self.domains {
            if refills.len() >= max {
                break;
            }
            if domain.waiting.len() < WAITING_PER_DOMAIN_MAX / 4
                && let Some(account) = domain.more.pop_first()
            {
                refills.push((name.clone(), account));
            }
        }
        refills
    }

    /// Accounts that are to be read again.
    pub(super) fn take_again(&mut self) -> BTreeSet<QueueAccount> {
        std::mem::take(&mut self.again)
    }

    pub(super) fn size(&self) -> Size {
        Size {
            domains: self.domains.len(),
            workers: self.workers.len() - self.slow,
            slow_workers: self.slow,
        }
    }
}
