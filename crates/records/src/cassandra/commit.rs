//! Commits: each account with pending commits has a task, which takes the waiting ones and writes them in one batch.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    task::JoinSet,
    time::Instant,
};

use super::{
    Shared,
    finish::{Finishing, Left},
    head::Head,
    schema::{gone_key, state_key, state_prefix},
    sequence::{Numbers, give_way},
    transact::{Outcome, Rows, is_too_large, too_large},
    view::{View, ViewError},
};
use crate::{
    AccountId, Change, Commit, Committed, Error, Position, Revision,
    map::work::{Read, Work, Writes, bodies_of},
};

/// The most commits that wait or run; further ones wait for a permit.
const WAITING_MAX: usize = 4_096;
/// Accounts that are committed to concurrently.
const ACCOUNTS_MAX: usize = 128;
/// The most that one batch contains, unless a single commit has more.
const GROUP_COMMITS: usize = 64;
const GROUP_CHANGES: usize = 1_024;
const GROUP_BYTES: usize = 1 << 20;
/// When this server made this many of an account's last changes, it assumes that the head it knows is the current one.
const MARKS_OF_OWN: usize = 3;
/// Larger groups are computed on the blocking pool: each change takes some microseconds.
const CHANGES_INLINE_MAX: usize = 64;

/// A pending commit.
struct Waiting {
    commit: Commit,
    bytes: usize,
    reply: oneshot::Sender<Result<Committed, Error>>,
    /// Its share of [`WAITING_MAX`].
    _permit: OwnedSemaphorePermit,
}

/// The pending commits.
pub(super) struct Queue(Arc<Queued>);

struct Queued {
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
    accounts: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The pending commits of each account that has a task.
    waiting: HashMap<AccountId, VecDeque<Waiting>>,
    tasks: JoinSet<()>,
    is_closed: bool,
}

/// The error for a store that was closed.
pub(super) fn closed() -> Error {
    Error::unavailable("the record store is closed")
}

fn bytes_of(change: &Change) -> usize {
    match change {
        Change::Create { body, .. } | Change::Update { body: Some(body), .. } => body.bytes.len(),
        Change::Update { body: None, .. } | Change::Destroy { .. } => 0,
    }
}

impl Queue {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(Arc::new(Queued {
            shared,
            room: Arc::new(Semaphore::new(WAITING_MAX)),
            accounts: Semaphore::new(ACCOUNTS_MAX),
            state: Mutex::default(),
        }))
    }

    /// Queues a commit and waits for its result.
    pub(super) async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        let permit = self.0.room.clone().acquire_owned().await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let bytes = commit.changes.iter().map(bytes_of).sum();
        let waiting = Waiting { commit, bytes, reply, _permit: permit };
        {
            let mut state = self.0.state.lock();
            if state.is_closed {
                return Err(closed());
            }
            let is_new = !state.waiting.contains_key(&account);
            state.waiting.entry(account).or_default().push_back(waiting);
            if is_new {
                while state.tasks.try_join_next().is_some() {} // reap finished tasks
                let queued = self.0.clone();
                state.tasks.spawn(async move { queued.run(account).await });
            }
        }
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Accepts no more commits, and waits until the pending ones are done.
    pub(super) async fn close(&self) {
        let mut tasks = {
            let mut state = self.0.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.tasks)
        };
        while tasks.join_next().await.is_some() {}
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The tasks hold a reference to this queue: without the abort neither would ever be dropped.
        self.0.state.lock().tasks.abort_all();
    }
}

impl Queued {
    /// Processes the pending commits of an account until there are none left.
    async fn run(&self, account: AccountId) {
        let Ok(_permit) = self.accounts.acquire().await else { return };
        loop {
            let was_held_up = self.shared.holds.wait(account).await;
            let group = {
                let mut state = self.state.lock();
                let group = state.waiting.get_mut(&account).map(take_group).unwrap_or_default();
                if group.is_empty() {
                    state.waiting.remove(&account);
                    return;
                }
                group
            };
            if was_held_up {
                self.shared.metrics.cassandra_held_up.inc();
            }
            let is_contended = self.shared.make(account, group).await;
            let has_more = self.state.lock().waiting.get(&account).is_some_and(|rest| !rest.is_empty());
            if is_contended && has_more {
                // This server knows the new head first, so without a pause it would win the next race as well.
                give_way().await;
            }
        }
    }
}

/// Takes the next group from the front of the queue.
fn take_group(waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let mut group: Vec<Waiting> = Vec::new();
    let (mut changes, mut bytes) = (0, 0);
    while group.len() < GROUP_COMMITS
        && let Some(next) = waiting.pop_front()
    {
        changes += next.commit.changes.len();
        bytes += next.bytes;
        if !group.is_empty() && (changes > GROUP_CHANGES || bytes > GROUP_BYTES) {
            waiting.push_front(next);
            break;
        }
        group.push(next);
    }
    group
}

/// What was computed for a group.
struct Worked {
    answers: Vec<Result<Committed, Error>>,
    writes: Writes,
}

/// The outcome of an attempt.
enum Tried {
    Made(Made),
    /// There was nothing to write.
    Nothing(Vec<Result<Committed, Error>>),
    /// Another server changed the account first.
    Refused,
    TooLarge(usize),
}

/// A group that was committed.
struct Made {
    answers: Vec<Result<Committed, Error>>,
    revision: Revision,
    position: Position,
    left: Left,
    is_contended: bool,
}

impl Shared {
    /// Commits a group of an account and sends the answers; returns whether another server commits to the account as well.
    async fn make(&self, account: AccountId, group: Vec<Waiting>) -> bool {
        let commits: Vec<Commit> = group.iter().map(|waiting| waiting.commit.clone()).collect();
        self.metrics.cassandra_group_commits.observe(commits.len() as f64);
        match self.make_commits(account, &commits).await {
            Ok(Tried::Made(made)) => {
                // Held until the leftovers are removed; a walk over references waits for that.
                let guard = self.finishing.clone().read_owned().await;
                self.announcements.committed(account, made.revision, made.position);
                answer(group, made.answers);
                // If the finisher task has ended, upkeep removes the leftovers later.
                let _ = self.finisher.send(Finishing { account, left: made.left, _guard: guard }).await;
                made.is_contended
            }
            Ok(Tried::Nothing(answers)) => {
                answer(group, answers);
                false
            }
            Ok(Tried::TooLarge(rows)) if group.len() == 1 => {
                refuse(group, &too_large(rows));
                false
            }
            Ok(Tried::TooLarge(_)) => {
                let mut is_contended = false;
                for waiting in group {
                    is_contended |= Box::pin(self.make(account, vec![waiting])).await;
                }
                is_contended
            }
            Ok(Tried::Refused) => {
                let what =
                    format!("other servers commit in account {} all the time: try again later", account.0);
                refuse(group, &Error::unavailable(what));
                true
            }
            Err(error) => {
                refuse(group, &error);
                false
            }
        }
    }

    async fn make_commits(&self, account: AccountId, commits: &[Commit]) -> Result<Tried, Error> {
        let deadline = self.database.deadline();
        let mut attempt = self.read_by_known_head(account, commits);
        let mut was_refused = false;
        loop {
            let is_guess = attempt.is_some();
            match self.try_make(account, commits, attempt.take(), deadline).await? {
                // A result that was computed from a guessed head counts only if the commit succeeded.
                Tried::Nothing(_) if is_guess => {}
                Tried::Refused if Instant::now() < deadline => was_refused = true,
                Tried::Made(made) => {
                    let is_contended = made.is_contended || was_refused;
                    return Ok(Tried::Made(Made { is_contended, ..made }));
                }
                other => return Ok(other),
            }
        }
    }

    async fn try_make(
        &self,
        account: AccountId,
        commits: &[Commit],
        guess: Option<(Option<Head>, Read)>,
        deadline: Instant,
    ) -> Result<Tried, Error> {
        let is_guess = guess.is_some();
        let read = match guess {
            Some(guess) => Some(guess),
            None => self.read_for(account, commits).await?,
        };
        let Some((before, read)) = read else { return Ok(Tried::Refused) };
        let bodies: usize = commits.iter().map(bodies_of).sum();
        // First with provisional numbers, to see whether there is anything to write, and how much.
        let worked = self.work_out(account, &read, 1, commits).await?;
        if worked.writes.is_empty() || is_guess && worked.answers.iter().any(Result::is_err) {
            return Ok(Tried::Nothing(worked.answers));
        }
        let rows = rows_of(&worked.writes);
        if is_too_large(&rows) {
            return Ok(Tried::TooLarge(rows.rows.len()));
        }
        let taken = self.sequence.take(account, bodies).await?;
        let worked = match bodies {
            0 => worked,
            _ => self.work_out(account, &read, taken.first_body, commits).await?,
        };
        self.commit_worked(account, before, worked, taken, deadline).await
    }

    /// Writes a computed group.
    async fn commit_worked(
        &self,
        account: AccountId,
        before: Option<Head>,
        worked: Worked,
        taken: Numbers,
        deadline: Instant,
    ) -> Result<Tried, Error> {
        let Worked { answers, writes } = worked;
        // A head at revision 0 may come from settling a position: it does not show that the account is listed.
        if before.as_ref().is_none_or(|head| head.row.revision.0 == 0) {
            self.list_account(account).await?;
        }
        self.write_bodies(account, &writes.bodies).await?;
        let row = writes.heads.get(&account).cloned();
        let row = row.ok_or_else(|| Error::internal("a commit has no head"))?;
        let revision = row.revision;
        let mut after = before.clone().unwrap_or_else(|| Head::new(self.epoch)).changed(self.mark());
        after.row = row;
        after.row.position = taken.position;
        after.settled = taken.position;
        after.committed_ms = self.now_ms();
        let outcome = self.change(account, before.as_ref(), &after, &rows_of(&writes), deadline).await?;
        match outcome {
            Outcome::Refused => {
                let numbers: Vec<u64> = writes.bodies.keys().filter_map(|n| u64::try_from(*n).ok()).collect();
                self.remove_bodies(account, &numbers).await?;
                Ok(Tried::Refused)
            }
            Outcome::Made => {
                let last = before.as_ref().and_then(|head| head.marks.first());
                let left = Left {
                    position: Some(taken.position),
                    position_before: before.as_ref().map(|head| head.row.position),
                    bodies: gone_of(&writes),
                };
                let is_contended = last.is_some_and(|mark| !self.is_own(mark));
                Ok(Tried::Made(Made { answers, revision, position: taken.position, left, is_contended }))
            }
        }
    }

    /// As `read_for`, but from the last head that this server has read, without reading anything. Only for commits that only
    /// create records, in accounts whose last changes this server made. If another server has committed since, the commit is
    /// refused.
    fn read_by_known_head(&self, account: AccountId, commits: &[Commit]) -> Option<(Option<Head>, Read)> {
        let mut changes = commits.iter().flat_map(|commit| &commit.changes);
        let only_create = changes.all(|change| matches!(change, Change::Create { .. }));
        let head = self.confirmed(account).filter(|head| {
            let is_own = head.marks.iter().take(MARKS_OF_OWN).all(|mark| self.is_own(mark));
            is_own && head.version > 0 && head.epoch == self.epoch && head.row.restores == self.restores()
        });
        let head = Head::clone(&*head.filter(|_| only_create)?);
        let mut read = Read { restores: self.restores(), ..Read::default() };
        read.heads.insert(account, head.row.clone());
        Some((Some(head), read))
    }

    /// Reads what is needed to compute commits of an account; `None` when the account changes meanwhile.
    async fn read_for(
        &self,
        account: AccountId,
        commits: &[Commit],
    ) -> Result<Option<(Option<Head>, Read)>, Error> {
        let mut keys = Vec::new();
        for change in commits.iter().flat_map(|commit| &commit.changes) {
            if let Change::Update { kind, id, .. } | Change::Destroy { kind, id } = change {
                keys.push(state_key(*kind, *id));
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let (rows, head) = self.find_all(account, &keys).await?;
        if let Some(head) = &head {
            self.check_epoch(head.epoch)?;
            if head.epoch < self.epoch {
                self.adapt_account(account).await?;
                return Ok(None);
            }
        }
        let mut read = Read { restores: self.restores(), ..Read::default() };
        read.heads.extend(head.as_ref().map(|head| (account, head.row.clone())));
        read.rows.extend(rows.into_iter().map(|(key, value)| ((account, key), value)));
        if let Some(head) = &head
            && head.row.restores < read.restores
        {
            match self.counters_of(account, head).await {
                Ok(counters) => read.counters = counters,
                Err(ViewError::Moved) => return Ok(None),
                Err(ViewError::Failed(error)) => return Err(error),
            }
        }
        Ok(Some((head, read)))
    }

    /// The records with counters, if the account had no commit since a restore.
    pub(super) async fn counters_of(
        &self,
        account: AccountId,
        head: &Head,
    ) -> Result<Vec<(crate::map::work::Key, Vec<u8>)>, ViewError> {
        let view = View::of(self, account, head.clone());
        let mut counters = Vec::new();
        for kind in self.schema.kinds().iter().filter(|kind| !kind.counters.is_empty()) {
            let from = state_prefix(kind.kind);
            let rows = view.whole(&from, &super::schema::after_prefix(&from)).await?;
            counters.extend(rows.into_iter().map(|(key, value)| ((account, key), value)));
        }
        Ok(counters)
    }

    /// Computes commits, one after the other. The numbers of their bodies start at `first_body`.
    async fn work_out(
        &self,
        account: AccountId,
        read: &Read,
        first_body: u64,
        commits: &[Commit],
    ) -> Result<Worked, Error> {
        let bodies: usize = commits.iter().map(bodies_of).sum();
        let body_ids = (first_body..first_body + bodies as u64).filter_map(|id| i64::try_from(id).ok());
        let read = Read { body_ids: body_ids.collect(), ..read.clone() };
        let changes: usize = commits.iter().map(|commit| commit.changes.len()).sum();
        let (schema, now, commits) = (self.schema.clone(), self.now(), commits.to_vec());
        let work = move || {
            let mut work = Work::new(&schema, now, read);
            let answers = commits.into_iter().map(|commit| work.commit(account, commit)).collect();
            Worked { answers, writes: work.writes }
        };
        if changes <= CHANGES_INLINE_MAX {
            return Ok(work());
        }
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| Error::internal(format!("work on records broke off: {error}")))
    }

    /// The current time in milliseconds since 1970; earlier times count as 0.
    pub(super) fn now_ms(&self) -> u64 {
        self.now().nanos().max(0).unsigned_abs() / 1_000_000
    }
}

/// The rows that a commit writes, including the marks of bodies that no record refers to any more.
pub(super) fn rows_of(writes: &Writes) -> Rows {
    let mut rows = Rows::default();
    for ((_, key), value) in &writes.rows {
        rows.rows.insert(key.clone(), value.as_ref().map(|value| value.bytes.clone()));
    }
    for number in gone_of(writes) {
        rows.rows.insert(gone_key(number), Some(Vec::new()));
    }
    rows
}

/// The bodies that no record refers to any more.
pub(super) fn gone_of(writes: &Writes) -> Vec<u64> {
    writes.gone_bodies.iter().filter_map(|number| u64::try_from(*number).ok()).collect()
}

fn answer(group: Vec<Waiting>, answers: Vec<Result<Committed, Error>>) {
    for (waiting, answer) in group.into_iter().zip(answers) {
        let _ = waiting.reply.send(answer); // fails when the caller has given up
    }
}

fn refuse(group: Vec<Waiting>, error: &Error) {
    for waiting in group {
        let _ = waiting.reply.send(Err(error.duplicate()));
    }
}
