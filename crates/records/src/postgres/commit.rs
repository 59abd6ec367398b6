//! Commits: a few writer tasks, each with a connection, take the pending commits and write them in one transaction.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use restante_core::{ErrorKind, Identity};
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::{
    Shared,
    connect::{BACK_OFF_MIN, jittered},
    error::AttemptError,
    schema::state_key,
    transact::{self, MadeBy, Wanted},
};
use crate::{
    AccountId, Change, Commit, Committed, Error, Position, Revision, Touched,
    map::work::{Read, Work, Writes, bodies_of},
    validate::check_commit,
};

/// The most commits that wait for each writer; further ones wait for room.
const WAITING_MAX: usize = 1_024;
/// The most that one transaction contains, unless a single commit has more.
const GROUP_COMMITS: usize = 256;
const GROUP_CHANGES: usize = 4_096;
const GROUP_BYTES: usize = 8 << 20;
/// Larger groups are computed on the blocking pool: each change takes some microseconds.
const CHANGES_INLINE_MAX: usize = 128;
/// How often a group that was certainly not committed is tried.
const ATTEMPTS: u32 = 5;
/// How often the outcome of a commit whose answer was lost is queried: for about half a minute.
const INQUIRIES: u32 = 10;

/// A pending commit.
struct Waiting {
    account: AccountId,
    commit: Commit,
    bytes: usize,
    reply: oneshot::Sender<Result<Committed, Error>>,
}

/// The senders to the writers. All commits of an account go to the same writer, so that they are grouped.
pub(super) struct Queue(Mutex<Vec<mpsc::Sender<Waiting>>>);

/// The receiver of a writer.
pub(super) struct Waitings(mpsc::Receiver<Waiting>);

/// A queue for this many writers.
pub(super) fn queue(writers: usize) -> (Queue, Vec<Waitings>) {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..writers).map(|_| mpsc::channel(WAITING_MAX)).unzip();
    (Queue(Mutex::new(senders)), receivers.into_iter().map(Waitings).collect())
}

impl Queue {
    /// Queues a commit and waits for its result.
    pub(super) async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        let sender = {
            let senders = self.0.lock();
            let place = (account.0 as usize).checked_rem(senders.len());
            place.and_then(|place| senders.get(place).cloned()).ok_or_else(closed)?
        };
        let (reply, answer) = oneshot::channel();
        let bytes = commit.changes.iter().map(bytes_of).sum();
        let waiting = Waiting { account, commit, bytes, reply };
        sender.send(waiting).await.map_err(|_| closed())?;
        drop(sender); // a writer ends when all senders are dropped
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Accepts no more commits; the pending ones are still made.
    pub(super) fn close(&self) {
        self.0.lock().clear();
    }
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

/// Makes commits until the queue is closed.
pub(super) async fn run(shared: Arc<Shared>, mut waitings: Waitings) {
    while let Some(first) = waitings.0.recv().await {
        let mut group = Group::default();
        group.add(first);
        while group.has_room()
            && let Ok(next) = waitings.0.try_recv()
        {
            group.add(next);
        }
        shared.metrics.postgres_group_commits.observe(group.commits.len() as f64);
        make(&shared, group).await;
    }
}

/// Commits that are made in one transaction.
#[derive(Default)]
struct Group {
    commits: Vec<(AccountId, Commit)>,
    replies: Vec<oneshot::Sender<Result<Committed, Error>>>,
    changes: usize,
    bytes: usize,
}

impl Group {
    fn add(&mut self, waiting: Waiting) {
        self.changes += waiting.commit.changes.len();
        self.bytes += waiting.bytes;
        self.commits.push((waiting.account, waiting.commit));
        self.replies.push(waiting.reply);
    }

    fn has_room(&self) -> bool {
        self.commits.len() < GROUP_COMMITS && self.changes < GROUP_CHANGES && self.bytes < GROUP_BYTES
    }

    fn answer(self, answers: Vec<Result<Committed, Error>>) {
        for (reply, answer) in self.replies.into_iter().zip(answers) {
            let _ = reply.send(answer); // fails when the caller has given up
        }
    }

    fn refuse(self, error: &Error) {
        for reply in self.replies {
            let _ = reply.send(Err(error.duplicate()));
        }
    }

    /// Splits the group by account, keeping the order of each account's commits.
    fn by_account(self) -> impl Iterator<Item = Self> {
        let mut groups: BTreeMap<AccountId, Self> = BTreeMap::new();
        for ((account, commit), reply) in self.commits.into_iter().zip(self.replies) {
            let bytes = commit.changes.iter().map(bytes_of).sum();
            groups.entry(account).or_default().add(Waiting { account, commit, bytes, reply });
        }
        groups.into_values()
    }

    /// What the group needs to lock and read.
    fn wanted(&self) -> Wanted {
        let mut wanted = Wanted::default();
        for (account, commit) in &self.commits {
            wanted.accounts.push(*account);
            wanted.bodies += bodies_of(commit);
            for change in &commit.changes {
                if let Change::Update { kind, id, .. } | Change::Destroy { kind, id } = change {
                    wanted.rows.push((*account, state_key(*kind, *id)));
                }
            }
        }
        wanted.accounts.sort_unstable();
        wanted.accounts.dedup();
        wanted.rows.sort_unstable();
        wanted.rows.dedup();
        wanted
    }
}

/// The outcome of a transaction.
pub(super) enum Outcome {
    /// It was committed, or there was nothing to write. The accounts that were touched got the positions after this one.
    Made(u64),
    /// It was certainly not committed.
    NotMade(AttemptError),
    /// The answer to the commit was lost.
    InDoubt(Error),
}

/// Makes the commits of a group and sends the answers. When rows of an account are damaged, only the commits of that account are refused.
async fn make(shared: &Arc<Shared>, group: Group) {
    let Some((group, error)) = try_make_group(shared, group).await else { return };
    if error.kind() != ErrorKind::Corrupt || group.wanted().accounts.len() < 2 {
        return group.refuse(&error);
    }
    for part in group.by_account() {
        if let Some((part, error)) = try_make_group(shared, part).await {
            part.refuse(&error);
        }
    }
}

/// Makes the commits of a group and sends the answers. Returns the group and the error if the database refused it.
async fn try_make_group(shared: &Arc<Shared>, group: Group) -> Option<(Group, Error)> {
    let wanted = group.wanted();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let made_by = Identity::random().0;
        let mut worked = Worked::default();
        let error = match try_make(shared, &group, &wanted, &made_by, &mut worked).await {
            Outcome::Made(base) => {
                shared.announce(base, &worked.touched);
                group.answer(worked.answers);
                return None;
            }
            Outcome::NotMade(error) if error.is_worth_repeating() && attempt < ATTEMPTS => {
                tokio::time::sleep(jittered(BACK_OFF_MIN)).await;
                continue;
            }
            Outcome::NotMade(error) => return Some((group, error.into())),
            Outcome::InDoubt(error) => match settle(shared, &worked.touched, &made_by, error).await {
                Settled::Made(feed) => {
                    shared.announce_found(&feed);
                    group.answer(worked.answers);
                    return None;
                }
                Settled::NotMade(_) if attempt < ATTEMPTS => continue,
                Settled::NotMade(error) | Settled::Unknown(error) => error,
            },
        };
        group.refuse(&error);
        return None;
    }
}

/// What was computed for a group.
#[derive(Default)]
struct Worked {
    answers: Vec<Result<Committed, Error>>,
    touched: Vec<(AccountId, Revision)>,
}

async fn try_make(
    shared: &Arc<Shared>,
    group: &Group,
    wanted: &Wanted,
    made_by: &MadeBy,
    worked: &mut Worked,
) -> Outcome {
    let lease = match shared.writer().await {
        Ok(lease) => lease,
        Err(error) => return Outcome::NotMade(error.into()),
    };
    let connection = lease.connection.clone();
    let mut is_committing = false;
    let work = async {
        let read = transact::begin(shared, &connection, wanted).await?;
        let writes;
        (worked.answers, writes) = work_out(shared, group, read).await?;
        worked.touched = writes.touched.clone();
        if writes.is_empty() {
            connection.run("commit records", "ROLLBACK").await?;
            return Ok(0);
        }
        is_committing = true;
        transact::end(shared, &connection, &wanted.accounts, &writes, made_by).await
    };
    let done = lease.drive("commit records", work).await;
    outcome(done, is_committing)
}

/// Computes the commits of a group, one after the other.
async fn work_out(
    shared: &Arc<Shared>,
    group: &Group,
    read: Read,
) -> Result<(Vec<Result<Committed, Error>>, Writes), Error> {
    let (schema, now, commits) = (shared.schema.clone(), shared.now(), group.commits.clone());
    let work = move || {
        let mut work = Work::new(&schema, now, read);
        let answers = commits.into_iter().map(|(account, commit)| work.commit(account, commit)).collect();
        (answers, work.writes)
    };
    if group.changes <= CHANGES_INLINE_MAX {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::internal(format!("work on records broke off: {error}")))
}

/// The outcome of a transaction that ended or failed.
pub(super) fn outcome(done: Result<u64, AttemptError>, is_committing: bool) -> Outcome {
    match done {
        Ok(base) => Outcome::Made(base),
        Err(error) if !is_committing || error.is_refusal() => Outcome::NotMade(error),
        Err(error) => Outcome::InDoubt(error.into()),
    }
}

/// What was found out about a commit whose outcome was unknown.
pub(super) enum Settled {
    /// With the last commits of its accounts, which may be later ones.
    Made(Vec<Touched>),
    NotMade(Error),
    Unknown(Error),
}

/// Finds out whether a transaction was committed: its mark is in the heads that it touched, until later commits have touched all
/// of them.
pub(super) async fn settle(
    shared: &Arc<Shared>,
    touched: &[(AccountId, Revision)],
    made_by: &MadeBy,
    error: Error,
) -> Settled {
    let mut accounts: Vec<AccountId> = touched.iter().map(|(account, _)| *account).collect();
    accounts.sort_unstable();
    let mut wait = BACK_OFF_MIN;
    for _ in 0..INQUIRIES {
        tokio::time::sleep(jittered(wait)).await;
        wait = (wait * 2).min(Duration::from_secs(5));
        let Ok(lease) = shared.database.writer().await else { continue };
        let connection = lease.connection.clone();
        let found = lease.drive("look for a commit", transact::find_out(&connection, &accounts)).await;
        let Ok(found) = found else { continue };
        shared.metrics.postgres_settled.inc();
        if found.heads.values().any(|(_, mark)| mark[..] == made_by[..]) {
            return Settled::Made(found.feed);
        }
        let expected: BTreeMap<AccountId, Revision> = touched.iter().copied().collect();
        let is_below = |(account, (head, _)): (&AccountId, &(crate::rows::AccountRow, Vec<u8>))| {
            expected.get(account).is_some_and(|revision| head.revision < *revision)
        };
        if found.heads.iter().any(is_below) {
            return Settled::NotMade(error); // atomic: all of it would be there, or nothing
        }
        break;
    }
    warn!(%error, "it is unknown whether a group of commits was made");
    Settled::Unknown(error)
}

impl Shared {
    /// Checks a commit, queues it and waits for its result.
    pub(super) async fn commit(
        &self,
        queue: &Queue,
        account: AccountId,
        commit: Commit,
    ) -> Result<Committed, Error> {
        check_commit(&self.schema, &commit)?;
        queue.commit(account, commit).await
    }

    /// Announces what this server has committed.
    pub(super) fn announce(&self, base: u64, touched: &[(AccountId, Revision)]) {
        for (number, (account, revision)) in (1..).zip(touched) {
            self.announcements.committed(*account, *revision, Position(base + number));
        }
    }

    /// Announces what was found in the feed.
    pub(super) fn announce_found(&self, feed: &[Touched]) {
        for touched in feed {
            self.announcements.committed(touched.account, touched.revision, touched.position);
        }
    }
}
