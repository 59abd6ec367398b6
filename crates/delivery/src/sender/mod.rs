//! The sender of the queue: reads which recipients are due, and has workers try them, domain by domain.

mod attempt;
mod board;
mod dealing;
mod health;
mod hints;
mod memory;
mod notes;
mod reports;
mod worker;

use std::{collections::BTreeSet, future::Future, sync::Arc, time::Duration};

use futures_util::FutureExt;
use parking_lot::Mutex;
use restante_blobs::Blobs;
use restante_core::Error;
use restante_mail::queue::{DueItem, QUEUE_ACCOUNTS, Queue, QueueAccount};
use restante_queue::{Received, Work};
use restante_records::{Cursor, Watch};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use crate::{DeliveryConfig, Local, Notices, OutcomeLog, Preparing, Remote, SenderMetrics, Submissions};
use board::Board;
use dealing::{Dealing, Mode};
pub use health::SenderHealth;
pub use hints::decode as decode_hint;
use memory::MessageMemory;
use worker::Worker;

/// How often the sender checks whether something has become due, in addition to announcements.
const TICK: Duration = Duration::from_secs(1);
/// Entries of the index of what is due that are read at once.
const PAGE: usize = 1_024;
/// Pages of one account that are read in one round; then the other accounts are read.
const PAGES_MAX: usize = 4;
/// Hints of other servers that are read before workers are started for them.
const HINTS_MAX: usize = 256;
/// How long before the end of the last walk the next one begins: commits take some time, and clocks of servers differ.
const SLACK_SECONDS: u64 = 10;
/// How often the sender checks whether the queue is held.
const GATE_EVERY: Duration = Duration::from_secs(5);
/// The most domains that are refilled in one round.
const REFILLS_MAX: usize = 64;
/// A step of a round ends after this time if an account could not be read. Later rounds begin with other accounts.
const FAILING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long attempts that are under way may take to end when the sender is stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// What a sender works with.
#[derive(Clone)]
pub struct SenderParts {
    /// The queue.
    pub queue: Queue,
    /// Where reports are stored.
    pub blobs: Arc<dyn Blobs>,
    /// Other servers.
    pub remote: Arc<dyn Remote>,
    /// The accounts of this server.
    pub local: Arc<dyn Local>,
    /// Submissions of JMAP.
    pub submissions: Arc<dyn Submissions>,
    /// Prepares stored messages for transmission.
    pub preparing: Arc<dyn Preparing>,
    /// Writes reports.
    pub notices: Arc<dyn Notices>,
    /// The queue that distributes work between servers; `None` when each server reads what is due for itself.
    pub work: Option<Arc<dyn Work>>,
    /// Records outcomes for operators.
    pub outcomes: Option<Arc<dyn OutcomeLog>>,
    /// Metrics.
    pub metrics: SenderMetrics,
}

/// Sends what is in the queue. Several may run on one store, in one process or in several.
pub struct Sender {
    shared: Arc<Shared>,
}

/// What the loop and its workers share.
struct Shared {
    parts: SenderParts,
    config: DeliveryConfig,
    board: Mutex<Board>,
    health: SenderHealth,
    memory: MessageMemory,
    /// Notified when a worker has ended or its domain may have more of them, so that another may start.
    freed: Notify,
    stopping: watch::Sender<bool>,
}

/// How far an account of the queue has been read.
#[derive(Clone, Default)]
struct Progress {
    /// The low mark: everything that is due before it has been read.
    low: u64,
    /// Where an unfinished walk continues, and the time until which it reads what is due.
    unfinished: Option<(Cursor, u64)>,
    /// When the next recipient becomes due, if known.
    next_due: Option<u64>,
    /// Until when recipients that are due were read, if the next one has not been looked up since.
    read_until: Option<u64>,
    is_changed: bool,
    /// Whether recipients were left out because there was no space for them, or because they could not be read.
    has_missed: bool,
    /// Whether recipients were read that had been dealt out to servers before, and that may be due again by now.
    is_dealt: bool,
}

impl Sender {
    /// A sender that does nothing until it is run.
    pub fn new(parts: SenderParts, config: DeliveryConfig) -> Self {
        let board = Mutex::new(Board::new(&config));
        let health = SenderHealth::new(config.stuck_seconds.get());
        let memory = MessageMemory::new(config.memory_bytes_max.get());
        let (stopping, _) = watch::channel(false);
        let freed = Notify::new();
        Self { shared: Arc::new(Shared { parts, config, board, health, memory, freed, stopping }) }
    }

    /// The health of the sender.
    pub fn health(&self) -> SenderHealth {
        self.shared.health.clone()
    }

    /// Sends until `stop`, then lets the attempts that are under way end for up to 30 s. Attempts that are cut off are repeated
    /// when their leases end.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let shared = self.shared;
        let mut changes = shared.parts.queue.changes();
        let mut workers = JoinSet::new();
        let mut round = Round::new(shared.clone());
        let tending = health::tend(&shared);
        let mut tending = std::pin::pin!(tending);
        let mut stop = std::pin::pin!(stop);
        loop {
            round.note(&mut changes);
            if let Err(error) = round.run(&mut workers).await {
                warn!(%error, "the queue can't be read: it is tried again");
            }
            // In this order, not by chance: a simulation repeats a run exactly.
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = &mut tending => {}
                () = shared.freed.notified() => {}
                Some(ended) = workers.join_next() => warn_of_panic(ended),
                next = changes.next() => round.announced(next),
                received = dealing::next(shared.parts.work.as_ref()), if !round.is_held => round.received_all(received),
                () = sleep(TICK) => {}
            }
        }
        let _ = shared.stopping.send_replace(true);
        shared.board.lock().return_hints();
        let ended = async {
            while let Some(ended) = workers.join_next().await {
                warn_of_panic(ended)
            }
        };
        if timeout(STOP_TIMEOUT, ended).await.is_err() {
            info!("attempts to deliver mail were cut off: they are made again");
        }
        shared.health.stopped();
    }
}

fn warn_of_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        warn!(%error, "a worker of the queue broke off");
    }
}

/// The errors of a round. An account that can't be read must not stop mail of the others, so the round goes on.
struct Failures {
    step_begun: Instant,
    first: Option<Error>,
}

impl Failures {
    fn new(step_begun: Instant) -> Self {
        Self { step_begun, first: None }
    }

    /// Each step has a time limit of its own, so that it is made even if one account uses up the time of the step before it in each round.
    fn next_step(&mut self) {
        self.step_begun = Instant::now();
    }

    fn add(&mut self, result: Result<(), Error>) {
        if let Err(error) = result {
            self.first.get_or_insert(error);
        }
    }

    /// Whether to stop reading. If each account cost a timeout, the sender would stall for minutes.
    fn take_too_long(&self) -> bool {
        self.first.is_some() && self.step_begun.elapsed() >= FAILING_TIMEOUT
    }

    fn result(self) -> Result<(), Error> {
        self.first.map_or(Ok(()), Err)
    }
}

/// The state of the loop of the sender.
struct Round {
    shared: Arc<Shared>,
    accounts: Vec<Progress>,
    last_tick: Option<Instant>,
    last_gate: Option<Instant>,
    is_held: bool,
    /// The account that is read from the beginning next, regardless of its low mark.
    sweep: usize,
    dealing: Dealing,
    mode: Mode,
}

impl Round {
    fn new(shared: Arc<Shared>) -> Self {
        let new = Progress { is_changed: true, ..Progress::default() };
        let accounts = vec![new; usize::from(QUEUE_ACCOUNTS)];
        let dealing = Dealing::new(shared.parts.work.clone());
        Self {
            shared,
            accounts,
            last_tick: None,
            last_gate: None,
            is_held: true,
            sweep: 0,
            dealing,
            mode: Mode::Own,
        }
    }

    /// Handles a hint, and all others that are waiting.
    fn received_all(&mut self, first: Received) {
        self.received(first);
        let work = self.shared.parts.work.clone();
        for _ in 1..HINTS_MAX {
            let Some(next) = dealing::next(work.as_ref()).now_or_never() else { return };
            self.received(next);
        }
    }

    /// Handles a hint. One that can't be read is rejected, since no other server could read it either.
    fn received(&mut self, received: Received) {
        let Received { item, ticket } = received;
        match hints::decode(&item) {
            Some(item) => self.shared.board.lock().hint(item, ticket, Instant::now()),
            None => {
                warn!(bytes = item.len(), "a hint about outgoing mail can't be read");
                ticket.reject();
            }
        }
    }

    /// Looks up which server distributes the work. After a change, all accounts are read from the beginning.
    fn look_who_deals(&mut self) {
        let (mode, is_other) = self.dealing.look();
        self.mode = mode;
        if is_other {
            let is_changed = mode != Mode::Receives;
            self.accounts.fill(Progress { is_changed, ..Progress::default() });
        }
    }

    /// Handles an announcement.
    fn announced(&mut self, next: Option<Result<restante_records::Announcement, restante_records::Lagged>>) {
        match next {
            Some(Ok(announcement)) => {
                let account = QueueAccount::of_account(announcement.account);
                self.changed(account);
            }
            Some(Err(_)) => self.changed(QueueAccount::all()),
            None => {}
        }
    }

    /// Handles all announcements that are waiting.
    fn note(&mut self, changes: &mut Watch) {
        while let Some(Some(next)) = changes.next().now_or_never() {
            self.announced(Some(next));
        }
    }

    fn changed(&mut self, account: impl IntoIterator<Item = QueueAccount>) {
        if self.mode == Mode::Receives {
            return;
        }
        for account in account {
            if let Some(progress) = self.accounts.get_mut(account.number()) {
                progress.is_changed = true;
            }
        }
    }

    /// Reads what is due, and starts workers even if some accounts could not be read.
    ///
    /// # Errors
    /// The first one of the reads.
    async fn run(&mut self, workers: &mut JoinSet<()>) -> Result<(), Error> {
        let now = Instant::now();
        self.shared.health.ticked(self.shared.parts.queue.now());
        if self.is_held || self.last_gate.is_none_or(|last| now - last >= GATE_EVERY) {
            self.last_gate = Some(now);
            self.read_gate().await?;
        }
        if self.is_held {
            return Ok(());
        }
        let mut failures = Failures::new(now);
        self.look_who_deals();
        if self.last_tick.is_none_or(|last| now - last >= TICK) {
            self.last_tick = Some(now);
            self.tick(now);
            self.look_ahead(&mut failures).await;
        }
        failures.next_step();
        let time = self.shared.parts.queue.now();
        for account in self.in_turn() {
            if failures.take_too_long() {
                break;
            }
            let Some(progress) = self.accounts.get(account.number()) else { continue };
            let has_due = progress.next_due.is_some_and(|due| due <= time);
            if progress.is_changed || has_due || progress.unfinished.is_some() {
                failures.add(self.walk(account, time).await);
            }
        }
        failures.next_step();
        self.refill(time, &mut failures).await;
        self.start(workers);
        failures.result()
    }

    /// The accounts; each tick begins with another one.
    fn in_turn(&self) -> Vec<QueueAccount> {
        let mut accounts: Vec<QueueAccount> = QueueAccount::all().collect();
        accounts.rotate_left(self.sweep);
        accounts
    }

    async fn read_gate(&mut self) -> Result<(), Error> {
        let held = self.shared.parts.queue.gate().await?;
        self.shared.parts.metrics.is_held.set(held.is_some().into());
        let is_held = held.is_some();
        if let Some(held) = held.filter(|_| !self.is_held) {
            info!(why = held.why, "the queue is held: nothing is sent");
        }
        if self.is_held && !is_held {
            self.changed(QueueAccount::all());
        }
        self.is_held = is_held;
        self.shared.health.set_held(is_held);
        Ok(())
    }

    fn tick(&mut self, now: Instant) {
        let again: BTreeSet<QueueAccount> = {
            let mut board = self.shared.board.lock();
            board.review(now);
            let size = board.size();
            let metrics = &self.shared.parts.metrics;
            metrics.domains.set(gauge(size.domains));
            metrics.connections_now.set(gauge(size.workers));
            metrics.slow_connections_now.set(gauge(size.slow_workers));
            board.take_again()
        };
        let overdue = self.overdue(self.shared.parts.queue.now());
        self.dealing.forget(overdue);
        // If another server distributes the work, the hints were returned to it.
        if self.mode != Mode::Receives {
            again.into_iter().for_each(|account| self.read_anew(account.number()));
        }
        for number in 0..self.accounts.len() {
            let Some(progress) = self.accounts.get_mut(number) else { continue };
            progress.is_changed |= std::mem::take(&mut progress.is_dealt);
            if progress.has_missed {
                self.read_anew(number);
            }
        }
        // Anything that was missed, for example when a clock has jumped, is found within about a minute.
        self.read_anew(self.sweep);
        self.sweep = (self.sweep + 1) % self.accounts.len();
    }

    /// Looks up when the next recipients become due, for the accounts that were read since the last time. Times are in seconds, so
    /// one look-up for each tick is enough, instead of one after each commit.
    async fn look_ahead(&mut self, failures: &mut Failures) {
        let queue = self.shared.parts.queue.clone();
        for account in self.in_turn() {
            if failures.take_too_long() {
                return;
            }
            let Some(progress) = self.accounts.get_mut(account.number()) else { continue };
            let Some(until) = progress.read_until else { continue };
            match queue.next_due(account, Some(until)).await {
                Ok(next_due) => {
                    progress.next_due = next_due;
                    progress.read_until = None;
                }
                Err(error) => failures.add(Err(error)),
            }
        }
    }

    fn read_anew(&mut self, number: usize) {
        if let Some(progress) = self.accounts.get_mut(number).filter(|progress| progress.unfinished.is_none())
        {
            progress.low = 0;
            progress.is_changed = true;
        }
    }

    /// What has been due since before this time is overdue: it is read even if another server distributes the work.
    fn overdue(&self, time: u64) -> u64 {
        time.saturating_sub(self.shared.config.sweep_seconds.get())
    }

    /// Passes on recipients that are due: to the workers of this server, or to all servers. Returns whether some must be read again soon.
    async fn pass_on(&mut self, items: Vec<DueItem>, low: u64) -> Result<bool, Error> {
        if self.mode == Mode::Deals {
            let now = self.shared.parts.queue.now();
            // A recipient whose hint is older than this gets another one: it has become due again since, or is overdue.
            let known = low.max(self.overdue(now));
            return Ok(self.dealing.deal(&items, known, now).await? > 0);
        }
        let now = Instant::now();
        let mut board = self.shared.board.lock();
        let mut has_missed = false;
        for item in items {
            has_missed |= !board.offer(item, now);
        }
        Ok(has_missed)
    }

    /// Reads some pages of what has become due in an account.
    async fn walk(&mut self, account: QueueAccount, time: u64) -> Result<(), Error> {
        let time = if self.mode == Mode::Receives { self.overdue(time) } else { time };
        let Some(mut progress) = self.accounts.get(account.number()).cloned() else { return Ok(()) };
        let read = self.read(account, time, &mut progress).await;
        if let Some(place) = self.accounts.get_mut(account.number()) {
            *place = progress;
        }
        read
    }

    async fn read(&mut self, account: QueueAccount, time: u64, progress: &mut Progress) -> Result<(), Error> {
        let queue = self.shared.parts.queue.clone();
        let (mut after, until) = match progress.unfinished.take() {
            Some((cursor, until)) => (Some(cursor), until),
            None => {
                progress.is_changed = false;
                progress.has_missed = false;
                (None, time)
            }
        };
        for _ in 0..PAGES_MAX {
            let begun = after.clone();
            let page = match queue.due(account, (progress.low, until), after, PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    // It is read again at the next tick, and not in each round.
                    progress.next_due = None;
                    progress.has_missed = true;
                    return Err(error);
                }
            };
            match self.pass_on(page.items, progress.low).await {
                Ok(is_again) if self.mode == Mode::Deals => progress.is_dealt |= is_again,
                Ok(is_again) => progress.has_missed |= is_again,
                Err(error) => {
                    // The page is passed on again.
                    progress.is_dealt |= begun.is_none();
                    progress.unfinished = begun.map(|cursor| (cursor, until));
                    return if dealing::is_full(&error) { Ok(()) } else { Err(error) };
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        match after {
            Some(cursor) => progress.unfinished = Some((cursor, until)),
            None if self.mode == Mode::Receives => *progress = Progress::default(),
            None => {
                progress.low = until.saturating_sub(SLACK_SECONDS);
                progress.read_until = Some(until);
                progress.next_due = progress.next_due.filter(|due| *due > until);
            }
        }
        Ok(())
    }

    /// Refills domains that had more recipients than there was space for.
    async fn refill(&mut self, time: u64, failures: &mut Failures) {
        let refills = self.shared.board.lock().refills(REFILLS_MAX);
        for (domain, account) in refills {
            if failures.take_too_long() {
                self.changed([account]);
                continue;
            }
            let found = self.shared.parts.queue.due_of(account, &domain, time, PAGE).await;
            let ids = match found {
                Ok(ids) => ids,
                Err(error) => {
                    self.changed([account]);
                    failures.add(Err(error));
                    continue;
                }
            };
            let now = Instant::now();
            let mut board = self.shared.board.lock();
            for id in ids {
                let _ = board.offer(DueItem { id, domain: domain.to_string() }, now);
            }
        }
    }

    fn start(&mut self, workers: &mut JoinSet<()>) {
        while !self.shared.parts.queue.was_held() {
            let Some(start) = self.shared.board.lock().start(Instant::now()) else { return };
            let worker = Worker::new(self.shared.clone(), start);
            workers.spawn(worker.run());
        }
    }
}

fn gauge(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
