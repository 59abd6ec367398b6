//! Filling a store with mails: one thread generates them, another commits them.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use restante_records::{AccountId, Commit, RecordId};
use tokio::sync::mpsc;

use super::{mail::Mails, store::Store};
use crate::{measure::Latencies, random::Random};

/// Mails per batch of commits between the threads, and batches in the queue.
const PARCEL_MAILS: u64 = 1_000;
const PARCELS_WAITING: usize = 4;
/// The stream of the random accounts.
const ACCOUNTS_STREAM: u64 = 1 << 61;

/// The mails to put into a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) seed: u64,
    pub(super) entities: u64,
    /// Mails of a commit.
    pub(super) batch: u64,
    /// Each commit is of one of them, at random.
    pub(super) accounts: u32,
    pub(super) inbox_every: u64,
}

/// The result.
pub(super) struct Filled {
    pub(super) payload_bytes: u64,
    pub(super) commits: Latencies,
    /// Until the last commit was answered.
    pub(super) total: Duration,
    /// The id of the first mail; with one account the others have consecutive ids.
    pub(super) first: RecordId,
}

struct Planned {
    account: AccountId,
    commit: Commit,
    payload_bytes: u64,
}

/// Commits all mails, one commit after the other. The times exclude generating them.
pub(super) async fn fill(store: &Store, load: Load) -> anyhow::Result<Filled> {
    let (sender, mut receiver) = mpsc::channel(PARCELS_WAITING);
    let producer = tokio::task::spawn_blocking(move || produce(load, &sender));
    let mut filled =
        Filled { payload_bytes: 0, commits: Latencies::default(), total: Duration::ZERO, first: RecordId(0) };
    let mut last = None;
    let mut created = 0;
    let begun = Instant::now();
    while let Some(parcel) = receiver.recv().await {
        for planned in parcel {
            let committing = Instant::now();
            let committed = store.records().commit(planned.account, planned.commit).await?;
            filled.commits.record(committing.elapsed());
            filled.payload_bytes += planned.payload_bytes;
            created += committed.created.len() as u64;
            if last.is_none() {
                filled.first = committed.created.first().copied().context("a commit created no record")?;
            }
            last = committed.created.last().copied();
        }
    }
    filled.total = begun.elapsed();
    producer.await?;
    ensure!(created == load.entities, "{created} of {} records were created", load.entities);
    let follows = last == Some(RecordId(filled.first.0 + load.entities.saturating_sub(1)));
    ensure!(load.accounts > 1 || follows, "the ids of an account have gaps");
    Ok(filled)
}

/// Generates all commits; ends early when the receiver is dropped.
fn produce(load: Load, sender: &mpsc::Sender<Vec<Planned>>) {
    let mut random = Random::new(load.seed, ACCOUNTS_STREAM);
    let mut made = vec![0; load.accounts.max(1) as usize];
    let mut left = load.entities;
    while left > 0 {
        let mut parcel = Vec::new();
        let mut mails = 0;
        while left > 0 && mails < PARCEL_MAILS {
            let place = random.below(made.len() as u64) as usize;
            let Some(made) = made.get_mut(place) else { return };
            let count = load.batch.clamp(1, left);
            parcel.push(plan(load, AccountId(place as u32 + 1), *made..*made + count));
            *made += count;
            mails += count;
            left -= count;
        }
        let is_taken = sender.blocking_send(parcel).is_ok();
        if !is_taken {
            return;
        }
    }
}

fn plan(load: Load, account: AccountId, numbers: std::ops::Range<u64>) -> Planned {
    let mails = Mails { seed: load.seed, account, inbox_every: load.inbox_every };
    let mut commit = Commit::default();
    let mut payload_bytes = 0;
    for n in numbers {
        let (create, payload) = mails.create(n);
        commit.changes.push(create);
        payload_bytes += payload;
    }
    Planned { account, commit, payload_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mail_is_generated_once_with_any_batch() {
        let payload = |batch, accounts| {
            let load = Load { seed: 0, entities: 2_345, batch, accounts, inbox_every: 2 };
            let (sender, mut receiver) = mpsc::channel(10_000);
            produce(load, &sender);
            drop(sender);
            let (mut mails, mut payload, mut batch_max) = (0, 0, 0);
            while let Ok(parcel) = receiver.try_recv() {
                for planned in parcel {
                    mails += planned.commit.changes.len();
                    batch_max = batch_max.max(planned.commit.changes.len());
                    payload += planned.payload_bytes;
                }
            }
            assert_eq!((mails, batch_max as u64), (2_345, batch));
            payload
        };
        assert_eq!(payload(1, 1), payload(100, 1));
        assert_eq!(payload(1_000, 1), payload(100, 1));
        assert_ne!(payload(100, 3), payload(100, 1), "other accounts have other mails");
    }
}
