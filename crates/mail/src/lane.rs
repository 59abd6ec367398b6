//! The single writer of each account: a queue of edits, and a task that plans the waiting edits one after the other and commits
//! them together.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use restante_core::{Clock, Error, ErrorKind, Gate};
use restante_records::{
    AccountId, Body, COMMIT_CHANGES_MAX, Change, Commit, Committed, Properties, RecordId, Records, Revision,
};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::{
    Delivered, Imported, Keywords, MailConfig, MailError, MailMetrics, Mailbox, MailboxSetOutcome,
    SetMailbox, Transition,
    mailboxes::NEXT,
    plan::{self, Done, Edit, Planner},
    read::Reader,
    schema::{email, keyword, mailbox},
    view::{COMMIT_OBJECTS_MAX, View, settled},
};

/// How often edits are planned again when another server commits in between: each time, the other server has committed some of its
/// own edits.
const TRIES_MAX: u32 = 64;
/// After so many tries, a server waits before the next one, and plans fewer edits at once.
const TRIES_AT_ONCE: u32 = 3;
const NEXT_TRY: Duration = Duration::from_millis(2);
/// After so many edits, the task yields to other tasks: planning an edit takes about 20 us.
const EDITS_AT_ONCE: usize = 16;
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// What all accounts share.
pub(crate) struct Writer {
    pub(crate) records: Arc<dyn Records>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: MailConfig,
    pub(crate) metrics: MailMetrics,
    lanes: Mutex<Lanes>,
    /// Mailboxes that are in memory for idle accounts and for readers.
    mailboxes_in_memory: Arc<AtomicUsize>,
}

/// Mailboxes that stay in memory, counted until this is dropped.
pub(crate) struct InMemory {
    of_all: Arc<AtomicUsize>,
    mailboxes: usize,
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.of_all.fetch_sub(self.mailboxes, Ordering::Relaxed);
    }
}

/// The accounts in memory: the recently used ones, and the older ones, which are dropped next.
#[derive(Default)]
struct Lanes {
    recent: HashMap<AccountId, Arc<Lane>>,
    older: HashMap<AccountId, Arc<Lane>>,
}

/// An account in memory.
pub(crate) struct Lane {
    account: AccountId,
    queue: Mutex<Queue>,
    /// The keywords of the account that have been read. A keyword never changes and is never removed.
    pub(crate) keywords: Mutex<Arc<Keywords>>,
    /// All mailboxes in a state, as last read.
    pub(crate) mailboxes: Mutex<Option<ListedMailboxes>>,
    is_prepared: AtomicBool,
}

/// The mailboxes of an account in a state.
pub(crate) struct ListedMailboxes {
    pub(crate) list: Arc<Vec<Mailbox>>,
    pub(crate) state: Revision,
    pub(crate) _memory: InMemory,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Whether a task works on it.
    is_running: bool,
    /// The account's view, while no task works on it.
    view: Option<(Box<View>, InMemory)>,
}

struct Waiting {
    edit: Edit,
    /// Opens when the blob that the edit refers to is durable.
    blob: Option<Gate>,
    /// The number that the edits of one call share, see [`crate::Mail::for_call`].
    call: Option<NonZero<u64>>,
    answer: oneshot::Sender<Result<Done, MailError>>,
}

impl Writer {
    pub(crate) fn new(
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
        config: MailConfig,
        metrics: MailMetrics,
    ) -> Self {
        let (lanes, mailboxes_in_memory) = (Mutex::default(), Arc::default());
        Self { records, clock, config, metrics, lanes, mailboxes_in_memory }
    }

    /// Reserves memory for so many mailboxes; `None` when the limit is reached.
    pub(crate) fn keep_in_memory(&self, mailboxes: usize) -> Option<InMemory> {
        let of_all = &self.mailboxes_in_memory;
        let before = of_all.fetch_add(mailboxes, Ordering::Relaxed);
        let taken = InMemory { of_all: of_all.clone(), mailboxes };
        (before + mailboxes <= self.config.mailboxes_in_memory_max).then_some(taken) // otherwise dropping it releases it
    }

    /// The account in memory.
    pub(crate) fn lane(&self, account: AccountId) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.recent.get(&account) {
            return lane.clone();
        }
        if lanes.recent.len() >= self.config.accounts_in_memory_max.get().div_ceil(2) {
            let forgotten = std::mem::take(&mut lanes.recent);
            let forgotten = std::mem::replace(&mut lanes.older, forgotten);
            // An account that is in use keeps its one writer.
            lanes.older.extend(forgotten.into_iter().filter(|(_, lane)| Arc::strong_count(lane) > 1));
        }
        let lane = lanes.older.remove(&account).unwrap_or_else(|| Arc::new(Lane::new(account)));
        lanes.recent.insert(account, lane.clone());
        lane
    }

    /// Drops an account that is no longer in use.
    pub(crate) fn forget(&self, account: AccountId) {
        let mut lanes = self.lanes.lock();
        lanes.recent.remove(&account);
        lanes.older.remove(&account);
    }

    /// Queues an edit after those that wait, and returns when it is durable.
    pub(crate) async fn edit(
        self: &Arc<Self>,
        account: AccountId,
        edit: Edit,
        blob: Option<Gate>,
        call: Option<NonZero<u64>>,
    ) -> Result<Done, MailError> {
        let (answer, done) = oneshot::channel();
        self.lane(account).push(self, Waiting { edit, blob, call, answer })?;
        let ended = || Error::unavailable(format!("the writer of account {} ended: try again", account.0));
        done.await.unwrap_or_else(|_| Err(ended().into()))
    }

    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.clock.now().0 / NANOS_PER_SECOND).unwrap_or(0)
    }
}

impl Lane {
    fn new(account: AccountId) -> Self {
        Self {
            account,
            queue: Mutex::default(),
            keywords: Mutex::default(),
            mailboxes: Mutex::default(),
            is_prepared: AtomicBool::new(false),
        }
    }

    /// Whether the account is known to have what every account has.
    pub(crate) fn is_prepared(&self) -> bool {
        self.is_prepared.load(Ordering::Relaxed)
    }

    pub(crate) fn set_prepared(&self) {
        self.is_prepared.store(true, Ordering::Relaxed);
    }

    /// Adds an edit to the queue, and starts a task for the queue if none runs.
    fn push(self: Arc<Self>, writer: &Arc<Writer>, waiting: Waiting) -> Result<(), MailError> {
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= writer.config.edits_waiting_max.get() {
            let what = format!("account {} has too many edits that wait: try again later", self.account.0);
            return Err(Error::unavailable(what).into());
        }
        queue.waiting.push_back(waiting);
        if !queue.is_running {
            queue.is_running = true;
            let view = queue.view.take().map(|(view, _)| view);
            let run = Run { writer: writer.clone(), lane: self.clone(), view, is_over: false };
            drop(queue);
            drop(tokio::spawn(run.until_idle()));
        }
        Ok(())
    }

    /// The edits for the next commit; empty when none wait, and then the task ends.
    fn take(&self, writer: &Writer, view: &mut Option<Box<View>>) -> VecDeque<Waiting> {
        let mut queue = self.queue.lock();
        queue.waiting.retain(|waiting| !waiting.answer.is_closed()); // their callers have stopped waiting
        let mut taken = VecDeque::new();
        while taken.len() < COMMIT_OBJECTS_MAX
            && let Some(next) = queue.waiting.front()
        {
            let is_alone = next.edit.is_alone();
            if is_alone && !taken.is_empty() {
                break;
            }
            taken.extend(queue.waiting.pop_front());
            if is_alone {
                break;
            }
        }
        if taken.is_empty() {
            queue.is_running = false;
            queue.view = view.take().and_then(|view| {
                let memory = writer.keep_in_memory(view.mailboxes().len())?;
                Some((view, memory))
            });
        }
        taken
    }
}

/// The task that works on the queue of an account.
struct Run {
    writer: Arc<Writer>,
    lane: Arc<Lane>,
    view: Option<Box<View>>,
    /// Whether the queue was empty: from then on, another task may work on it.
    is_over: bool,
}

impl Drop for Run {
    /// When the task panics or its runtime ends, the edits that wait are answered with an error, and the next one starts a task.
    fn drop(&mut self) {
        if !self.is_over {
            let mut queue = self.lane.queue.lock();
            queue.is_running = false;
            queue.waiting.clear();
        }
    }
}

/// Why edits have to be planned again, or can't be made.
enum Failed {
    /// Another server has changed what was read.
    Conflict(Error),
    Store(Error),
    /// The blob of the edit at this index of the batch was not stored, for this reason.
    NoBlob(usize, Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        if error.kind() == ErrorKind::Conflict { Self::Conflict(error) } else { Self::Store(error) }
    }
}

/// An edit that was planned.
struct Planned {
    done: Result<Done, MailError>,
    call: Option<NonZero<u64>>,
    changes_emails: bool,
}

impl Run {
    async fn until_idle(mut self) {
        loop {
            let mut batch = self.lane.take(&self.writer, &mut self.view);
            if batch.is_empty() {
                self.is_over = true;
                return;
            }
            self.make(&mut batch).await;
        }
    }

    /// Makes edits, in as many commits as they need, and answers them.
    async fn make(&mut self, batch: &mut VecDeque<Waiting>) {
        let mut tries = 0;
        let mut edits_max = COMMIT_OBJECTS_MAX;
        while !batch.is_empty() {
            match self.commit_some(batch, edits_max).await {
                Ok(answered) => {
                    tries = 0;
                    for (waiting, done) in batch.drain(..answered.len()).zip(answered) {
                        let _ = waiting.answer.send(done); // its caller may have stopped waiting
                    }
                }
                Err(Failed::Conflict(error)) if tries < TRIES_MAX => {
                    tries += 1;
                    self.view = None;
                    self.writer.metrics.conflicts.inc();
                    tracing::debug!(account = self.lane.account.0, tries, %error, "edits are planned again");
                    if tries > TRIES_AT_ONCE {
                        // Fewer edits are planned faster, so another server's commit comes first less often.
                        edits_max = (edits_max / 2).max(1);
                        tokio::time::sleep(NEXT_TRY).await;
                    }
                }
                // One edit that the records refuse must not make the others fail.
                Err(Failed::Store(error)) if is_refusal(&error) && edits_max > 1 => {
                    self.view = None;
                    edits_max = 1;
                }
                Err(Failed::NoBlob(place, error)) => {
                    self.view = None;
                    if let Some(waiting) = batch.remove(place) {
                        let _ = waiting.answer.send(Err(MailError::Store(error)));
                    }
                }
                Err(Failed::Conflict(error) | Failed::Store(error)) => {
                    self.view = None;
                    let failed = if is_refusal(&error) { 1 } else { batch.len() };
                    for waiting in batch.drain(..failed) {
                        let _ = waiting.answer.send(Err(MailError::of_store(&error)));
                    }
                }
            }
        }
    }

    /// Plans edits until the commit is full, commits them, and returns the outcome of each.
    async fn commit_some(
        &mut self,
        batch: &VecDeque<Waiting>,
        edits_max: usize,
    ) -> Result<Vec<Result<Done, MailError>>, Failed> {
        let now = self.writer.now();
        let mut view = match self.view.take() {
            Some(view) => view,
            None => self.prepared_view(now).await?,
        };
        let keywords = self.keywords_of(batch).await?;
        let planner =
            Planner { reader: self.reader(), config: &self.writer.config, keywords: &keywords, now };
        let mut planned: Vec<Planned> = Vec::with_capacity(batch.len());
        for waiting in batch.iter().take(edits_max) {
            if view.is_full() {
                break;
            }
            let before = view.email_changes();
            let done = planner.plan(&mut view, &waiting.edit).await;
            if done.is_err() && waiting.edit.is_alone() {
                self.check_current(&view).await?;
                return Ok(vec![done]); // the view may be half-changed: it is dropped
            }
            let changes_emails = view.email_changes() > before;
            planned.push(Planned { done, call: waiting.call, changes_emails });
            if planned.len().is_multiple_of(EDITS_AT_ONCE) {
                tokio::task::yield_now().await;
            }
        }
        let blobs = || batch.iter().take(planned.len()).map(|waiting| waiting.blob.as_ref());
        let gates: Vec<Gate> = blobs().flatten().cloned().collect();
        let committed = self.commit(&gates, &mut view).await.map_err(|failed| {
            let missing = blobs().enumerate().find_map(|(place, blob)| Some((place, blob?.failure()?)));
            missing.map_or(failed, |(place, error)| Failed::NoBlob(place, error))
        })?;
        if view.state(email::KIND) == committed.revision || view.state(mailbox::KIND) == committed.revision {
            self.writer.metrics.edits_per_commit.observe(planned.len() as f64);
        }
        self.view = Some(view);
        Ok(finished_all(planned, &committed))
    }

    fn reader(&self) -> Reader<'_> {
        Reader { records: &*self.writer.records, account: self.lane.account }
    }

    /// Commits the changes of the view once the blobs are durable: a record never refers to bytes that a power cut could lose.
    /// Without changes, it only checks that what was read is still current, which the answers depend on.
    async fn commit(&self, blobs: &[Gate], view: &mut View) -> Result<Committed, Failed> {
        if view.changes() == 0 {
            return self.check_current(view).await;
        }
        let committed = self.writer.records.commit_after(blobs, self.lane.account, view.commit()).await?;
        view.settle(&committed);
        Ok(committed)
    }

    /// An empty commit, if nothing has changed since the view was read.
    async fn check_current(&self, view: &View) -> Result<Committed, Failed> {
        let account = self.lane.account;
        let states = self.writer.records.states(account).await?;
        if !view.is_current(&states) {
            let what = format!("account {} was changed by another server", account.0);
            return Err(Failed::Conflict(Error::conflict(what)));
        }
        Ok(Committed { revision: states.revision, created: Vec::new() })
    }

    /// The current view of the account, which first gets what every account has.
    async fn prepared_view(&self, now: u64) -> Result<Box<View>, Failed> {
        let mut view = Box::new(self.reader().view().await?);
        if view.account.id.is_none() {
            plan::prepare(&mut view, now);
            self.commit(&[], &mut view).await?;
        }
        Ok(view)
    }

    /// The keywords of the account with all those that the edits give to emails: new ones get numbers, up to the limit of the account.
    async fn keywords_of(&self, batch: &VecDeque<Waiting>) -> Result<Arc<Keywords>, Failed> {
        let known = self.lane.keywords.lock().clone();
        if batch.iter().flat_map(|waiting| waiting.edit.keywords()).all(|name| known.is_known(name)) {
            return Ok(known);
        }
        let (mut keywords, state) = self.reader().keywords().await?;
        let names = batch.iter().flat_map(|waiting| waiting.edit.keywords());
        let new: BTreeSet<&str> = names.filter(|name| !keywords.is_known(name)).collect();
        let room = self.writer.config.keywords_max.get().saturating_sub(keywords.len());
        let new: Vec<&str> = new.into_iter().take(room.min(COMMIT_CHANGES_MAX)).collect();
        if !new.is_empty() {
            let commit = Commit::of(new.iter().map(|name| keyword_record(name)));
            let commit = commit.if_in_state(keyword::KIND, state);
            let committed = self.writer.records.commit(self.lane.account, commit).await?;
            for (name, id) in new.iter().zip(committed.created) {
                keywords.insert(id.0 + keyword::FIRST_OTHER, (*name).to_owned());
            }
        }
        let keywords = Arc::new(keywords);
        self.lane.keywords.lock().clone_from(&keywords);
        Ok(keywords)
    }
}

/// Whether the records refuse a commit because of one of its edits: it is too large, or, on a damaged store, a record is missing.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound)
}

fn keyword_record(name: &str) -> Change {
    let properties = Properties::default().with(keyword::HASH, keyword_hash(name));
    Change::Create {
        kind: keyword::KIND,
        body: Body::new(Bytes::copy_from_slice(name.as_bytes())),
        properties,
    }
}

/// The hash that a keyword in lowercase is found by: the first 8 bytes of its SHA-256.
pub(crate) fn keyword_hash(name: &str) -> u64 {
    Sha256::digest(name).iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

/// The outcomes of the edits of a commit.
fn finished_all(planned: Vec<Planned>, committed: &Committed) -> Vec<Result<Done, MailError>> {
    let changes = planned.iter().filter(|planned| planned.changes_emails).count();
    let mut changes_of_calls: HashMap<NonZero<u64>, usize> = HashMap::new();
    for planned in planned.iter().filter(|planned| planned.changes_emails) {
        if let Some(call) = planned.call {
            *changes_of_calls.entry(call).or_default() += 1;
        }
    }
    let finish = |planned: Planned| {
        let own = planned.call.and_then(|call| changes_of_calls.get(&call)).copied().unwrap_or(1);
        planned.done.map(|done| finished(done, changes > own, committed))
    };
    planned.into_iter().map(finish).collect()
}

/// The outcome of an edit, with the ids and the revision that the commit got.
fn finished(done: Done, is_shared: bool, committed: &Committed) -> Done {
    let id_of = |id: RecordId| settled(id, committed);
    let states_of = |states: Transition| match states.new == NEXT {
        true => Transition { new: committed.revision, is_shared, ..states },
        false => states,
    };
    match done {
        Done::Delivered(Delivered::New(id)) => Done::Delivered(Delivered::New(id_of(id))),
        Done::Imported(Imported::New(id)) => Done::Imported(Imported::New(id_of(id))),
        Done::Imported(Imported::Placed(id)) => Done::Imported(Imported::Placed(id_of(id))),
        Done::Email { id, thread, states } => {
            Done::Email { id: id_of(id), thread: id_of(thread), states: states_of(states) }
        }
        Done::Updated(states) => Done::Updated(states_of(states)),
        Done::Mailboxes(outcome) => {
            let settle_error = |error| match error {
                MailError::AlreadyExists { existing } => {
                    MailError::AlreadyExists { existing: id_of(existing) }
                }
                other => other,
            };
            let settle = |set: Result<SetMailbox, MailError>| {
                set.map(|set| SetMailbox { id: id_of(set.id), ..set }).map_err(settle_error)
            };
            Done::Mailboxes(MailboxSetOutcome {
                states: Transition { is_shared: false, ..states_of(outcome.states) },
                created: outcome.created.into_iter().map(settle).collect(),
                updated: outcome.updated.into_iter().map(settle).collect(),
                destroyed: outcome.destroyed,
            })
        }
        other => other,
    }
}
