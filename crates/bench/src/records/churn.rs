//! Flag changes: the bytes written for small changes of old records.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use restante_records::{AccountId, Change, Commit, RecordId};
use serde::{Deserialize, Serialize};

use super::{
    cost::{Counters, Head, Times, us},
    fill::{Load, fill},
    mail::{self, EMAIL, Mails},
    store::{Disk, RecordsEngine, Store},
};
use crate::{measure::Latencies, random::Random};

pub(super) const ACCOUNT: AccountId = AccountId(1);
/// Changes of a commit.
const BATCH: u64 = 100;
/// The stream of the random mails and flags.
const CHURN_STREAM: u64 = 1 << 60;

/// The figures of the changes. The written bytes in [`Head`] are those of the changes alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ChurnFigures {
    #[serde(flatten)]
    pub(super) head: Head,
    #[serde(flatten)]
    pub(super) times: Times,
    pub(super) changes: u64,
}

/// Fills a store, closes and opens it, and changes the flags of mails at random.
pub(super) async fn measure(
    engine: RecordsEngine,
    folder: &Path,
    load: Load,
    changes: u64,
) -> anyhow::Result<ChurnFigures> {
    let store = Store::open(engine, folder, &mail::schema()?).await?;
    let filled = fill(&store, load).await?;
    let store = store.reopen().await?;
    let before = Counters::now(engine, folder);
    let mut churn = Churn::new(load, filled.first);
    let mut commits = Latencies::default();
    let mut total = Duration::ZERO;
    let mut left = changes;
    while left > 0 {
        let commit = churn.commit(left.min(BATCH));
        left -= commit.changes.len() as u64;
        let begun = Instant::now();
        store.records().commit(ACCOUNT, commit).await?;
        let duration = begun.elapsed();
        commits.record(duration);
        total += duration;
    }
    store.close().await?;
    let written = before.since(folder);
    let head = Head {
        entities: load.entities,
        batch: BATCH,
        disk_bytes: Disk::of(engine, folder)?.map(|disk| disk.main_bytes),
        payload_bytes: Some(filled.payload_bytes),
        written_bytes: written.calls,
        device_bytes: written.device,
        median_us: Some(us(commits.median_ms())),
    };
    Ok(ChurnFigures { head, times: Times::of(&commits, total), changes })
}

/// Generates changes of flags.
pub(super) struct Churn {
    mails: Mails,
    entities: u64,
    first: RecordId,
    random: Random,
}

impl Churn {
    /// For the mails of a load, the first of which has this id.
    pub(super) fn new(load: Load, first: RecordId) -> Self {
        let mails = Mails { seed: load.seed, account: ACCOUNT, inbox_every: load.inbox_every };
        Self { mails, entities: load.entities, first, random: Random::new(load.seed, CHURN_STREAM) }
    }

    /// A commit of `changes` changes, or as many as there are mails; each of a different mail.
    pub(super) fn commit(&mut self, changes: u64) -> Commit {
        let count = changes.min(self.entities) as usize;
        let mut numbers = BTreeSet::new();
        while numbers.len() < count {
            numbers.insert(self.random.below(self.entities));
        }
        let update = |n: u64| Change::Update {
            kind: EMAIL,
            id: RecordId(self.first.0 + n),
            body: None,
            properties: Some(self.mails.flagged(n, &mut self.random)),
        };
        Commit::of(numbers.into_iter().map(update))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_changes_other_mails_each() {
        let load = Load { seed: 0, entities: 50, batch: 10, accounts: 1, inbox_every: 2 };
        let mut churn = Churn::new(load, RecordId(7));
        assert_eq!(churn.commit(100).changes.len(), 50, "there are no more");
        let ids = |commit: Commit| {
            let id = |change: &Change| match change {
                Change::Update { id, .. } => id.0,
                other => panic!("{other:?} is not an update"),
            };
            commit.changes.iter().map(id).collect::<BTreeSet<u64>>()
        };
        let changed = ids(churn.commit(20));
        assert_eq!(changed.len(), 20);
        assert!(changed.iter().all(|id| (7..57).contains(id)));
        assert_ne!(changed, ids(churn.commit(20)));
    }
}
