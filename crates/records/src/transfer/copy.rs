//! Copies a store into one of another engine.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::task::JoinSet;

use super::{
    AccountHead, HeadPair, HeadPairs, Heads, Moving, Row, TRANSFER_ROWS_MAX, Transfer, count_rows, damaged,
};
use crate::{AccountId, Checkpoint, Error, Kind, Revision, TOUCHED_MAX};

/// Accounts that are copied concurrently: each has a page of rows in memory that is being written and one that is being read.
const ACCOUNTS_AT_ONCE: usize = 4;

/// The result of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Accounts that were copied.
    pub accounts: u64,
    /// Accounts that had been copied before an earlier copy was interrupted.
    pub kept: u64,
    /// Records and tombstones that were copied.
    pub rows: u64,
    /// Followers whose checkpoints were copied.
    pub followers: u64,
}

/// Copies everything in `from` to `to`, which is empty or an incomplete copy of the same store, and was opened with its identity
/// ([`crate::Config::identity`]).
///
/// - *Unchanged*: ids, revisions, states, floors, counters, the feed and the checkpoints of followers are the same in the copy,
///   so that clients and followers continue where they were.
/// - *Resumable*: calling this again continues a copy that was interrupted. Accounts that were copied and have not changed since
///   are kept, others are copied again.
/// - *Complete*: servers can't open `to` until all accounts were compared at the end and `from` had no commit meanwhile.
///
/// `progress` is called with the number of copied rows, and their total.
///
/// # Errors
/// `Invalid`: `to` contains other records or is a complete copy, or `from` is itself an incomplete copy. `Conflict`: `from` was
/// changed meanwhile. `Corrupt`: `from` is damaged. Those of both stores.
pub async fn copy(
    from: &Moving,
    to: &Moving,
    progress: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Copied, Error> {
    let is_resumed = begin(from, to).await?;
    let total = count_rows(from).await?;
    let done = Arc::new(AtomicU64::new(0));
    let mut copied = Copied::default();
    let mut pairs = HeadPairs::of(from, to).await?;
    let mut copies = JoinSet::new();
    while let Some(pair) = pairs.next().await? {
        progress(done.load(Ordering::Relaxed), total);
        let head = match pair {
            HeadPair::Both(head, there) if head == there => {
                copied.kept += 1;
                done.fetch_add(head.rows(), Ordering::Relaxed);
                continue;
            }
            HeadPair::Both(head, _) | HeadPair::Left(head) => head,
            HeadPair::Right(there) => {
                to.transfer.clear(there.account).await?;
                continue;
            }
        };
        if copies.len() >= ACCOUNTS_AT_ONCE {
            copied.add(copies.join_next().await)?;
        }
        let (from, to) = (from.transfer.clone(), to.transfer.clone());
        copies.spawn(copy_account(from, to, head, is_resumed, done.clone()));
    }
    while let Some(ended) = copies.join_next().await {
        copied.add(Some(ended))?;
        progress(done.load(Ordering::Relaxed), total);
    }
    copied.followers = copy_followers(from, to).await?;
    verify(from, to).await?;
    to.transfer.finish().await?;
    Ok(copied)
}

impl Copied {
    /// Counts a copied account.
    fn add(
        &mut self,
        ended: Option<Result<Result<u64, Error>, tokio::task::JoinError>>,
    ) -> Result<(), Error> {
        let Some(ended) = ended else { return Ok(()) };
        let rows =
            ended.map_err(|error| Error::internal("copying an account broke off").with_source(error))?;
        self.rows += rows?;
        self.accounts += 1;
        Ok(())
    }
}

/// Fails if the stores must not be copied, and makes `to` an incomplete copy; returns whether it was one.
async fn begin(from: &Moving, to: &Moving) -> Result<bool, Error> {
    let (source, target) = (from.transfer.state().await?, to.transfer.state().await?);
    if source.is_incomplete {
        return Err(Error::invalid("the records to copy are an incomplete copy themselves: finish it first"));
    }
    let is_empty = to.transfer.heads(None, 1).await?.is_empty();
    if source.identity != target.identity {
        return Err(Error::invalid("there are other records in the target: name a new place"));
    }
    if !is_empty && !target.is_incomplete {
        let what = "the target is a complete copy of these records, or an older or newer state of them: compare the two by \
                    `restante records compare`, or name a new place";
        return Err(Error::invalid(what));
    }
    to.transfer.begin(source.restores).await?;
    Ok(target.is_incomplete)
}

/// Copies an account, whose head is written with its last rows; returns the number of rows.
async fn copy_account(
    from: Arc<dyn Transfer>,
    to: Arc<dyn Transfer>,
    head: AccountHead,
    is_resumed: bool,
    done: Arc<AtomicU64>,
) -> Result<u64, Error> {
    let account = head.account;
    if is_resumed {
        to.clear(account).await?;
    }
    let mut counted = Counted::default();
    let mut page = from.rows(account, None, TRANSFER_ROWS_MAX).await?;
    loop {
        counted.add(account, &page)?;
        let next = match page.last() {
            Some(last) => from.rows(account, Some(last.key()), TRANSFER_ROWS_MAX).await?,
            None => Vec::new(),
        };
        let rows = page.len() as u64;
        if next.is_empty() {
            counted.check(&head)?;
            to.put(account, page, Some(head)).await?;
            done.fetch_add(rows, Ordering::Relaxed);
            return Ok(counted.rows);
        }
        to.put(account, page, None).await?;
        done.fetch_add(rows, Ordering::Relaxed);
        page = next;
    }
}

/// The number of records and tombstones that were read, by kind.
#[derive(Default)]
struct Counted {
    kinds: BTreeMap<Kind, (u64, u64)>,
    rows: u64,
}

impl Counted {
    /// Counts rows, and refuses damaged ones: a copy has all records.
    fn add(&mut self, account: AccountId, rows: &[Row]) -> Result<(), Error> {
        self.rows += rows.len() as u64;
        for row in rows {
            match row {
                Row::Record(record) => self.kinds.entry(record.kind).or_default().0 += 1,
                Row::Tombstone(gone) => self.kinds.entry(gone.kind).or_default().1 += 1,
                Row::Damaged(key, damage) => return Err(damaged(account, *key, damage)),
            }
        }
        Ok(())
    }

    /// Fails if an account has other rows than its head says.
    fn check(&self, head: &AccountHead) -> Result<(), Error> {
        for kind in &head.kinds {
            let found = self.kinds.get(&kind.kind).copied().unwrap_or_default();
            if found != (kind.records, kind.tombstones) {
                return Err(miscounted(head.account));
            }
        }
        if self.rows != head.rows() {
            return Err(miscounted(head.account)); // rows of a kind that the head does not have
        }
        Ok(())
    }
}

fn miscounted(account: AccountId) -> Error {
    let what = format!(
        "account {} has more or fewer records than it says: run `restante records check`, or was a server started on them?",
        account.0
    );
    Error::corrupt(what)
}

/// Copies the checkpoints of all followers; returns how many followers there are.
async fn copy_followers(from: &Moving, to: &Moving) -> Result<u64, Error> {
    let (source, target) = (&from.opened.feed, &to.opened.feed);
    for (name, _) in target.followers().await? {
        target.forget(&name).await?;
    }
    let followers = source.followers().await?;
    for (name, position) in &followers {
        target.save(name, &Checkpoint { position: *position, accounts: Vec::new() }).await?;
        let mut heads = Heads::of(from);
        loop {
            let accounts = next_accounts(&mut heads).await?;
            if accounts.is_empty() {
                break;
            }
            let mut checkpoint = source.checkpoint(name, &accounts).await?;
            checkpoint.accounts.retain(|(_, revision)| *revision > Revision(0));
            if !checkpoint.accounts.is_empty() {
                target.save(name, &checkpoint).await?;
            }
        }
    }
    Ok(followers.len() as u64)
}

/// The next accounts, as many as fit in a checkpoint.
pub(super) async fn next_accounts(heads: &mut Heads<'_>) -> Result<Vec<AccountId>, Error> {
    let mut accounts = Vec::new();
    while accounts.len() < TOUCHED_MAX
        && let Some(head) = heads.next().await?
    {
        accounts.push(head.account);
    }
    Ok(accounts)
}

/// Fails if the copy differs from what the source is now.
async fn verify(from: &Moving, to: &Moving) -> Result<(), Error> {
    let mut pairs = HeadPairs::of(from, to).await?;
    while let Some(pair) = pairs.next().await? {
        let account = match pair {
            HeadPair::Both(head, there) if head == there => continue,
            HeadPair::Both(head, _) | HeadPair::Left(head) | HeadPair::Right(head) => head.account,
        };
        let what = format!(
            "account {} was changed while it was copied: stop all servers, and copy again, which takes only what has changed",
            account.0
        );
        return Err(Error::conflict(what));
    }
    let (source, target) = (from.transfer.state().await?, to.transfer.state().await?);
    if source.restores != target.restores {
        return Err(Error::conflict(
            "the records were restored from a backup while they were copied: copy again",
        ));
    }
    Ok(())
}
