//! Reading: single records, the newest of a mailbox, changes since a revision. Right after commits, and after reopening.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::ensure;
use restante_records::{ChangesSince, Commit, Get, Query, RecordId, Revision};
use serde::{Deserialize, Serialize};

use super::{
    churn::{ACCOUNT, Churn},
    cost::Head,
    fill::{Load, fill},
    mail::{self, BY_MAILBOX, EMAIL, INBOX},
    store::{RecordsEngine, Store},
};
use crate::{
    measure::{median, ms, rounded},
    random::Random,
};

/// Mails in the inbox, if there are at least twice as many in all.
pub(super) const INBOX_MAILS: u64 = 50_000;
/// Mails that a client shows first.
const NEWEST: usize = 20;
/// Changes that a client fetches, one in each commit.
const CHANGES: u64 = 100;
/// The newest mails, some of which are still in the commit log only.
const RECENT: u64 = 1_000;
/// Reads that are timed together, to exclude the cost of the clock, and groups of them.
const POINTS: usize = 100;
const QUERIES: usize = 10;
const GROUPS: usize = 201;
const GROUPS_QUICK: usize = 3;
/// Groups of reads before the measured ones.
const WARM_UP: usize = 20;
const WARM_UP_QUICK: usize = 1;
/// The stream of the random mails.
const READ_STREAM: u64 = 1 << 59;

/// The kind of read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// A whole record, at random.
    Point,
    /// A whole record, at random among the newest thousand.
    RecentPoint,
    /// The ids of the newest twenty of the inbox.
    Newest,
    /// The same and the whole records.
    NewestWhole,
    /// A hundred changes.
    Changes,
}

impl What {
    pub(super) const ALL: [Self; 5] =
        [Self::Point, Self::RecentPoint, Self::Newest, Self::NewestWhole, Self::Changes];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Point => "a record with body",
            Self::RecentPoint => "one of the last 1,000",
            Self::Newest => "newest 20, ids",
            Self::NewestWhole => "newest 20, with bodies",
            Self::Changes => "changes since, 100",
        }
    }
}

/// When it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum When {
    AfterCommits,
    AfterReopening,
}

impl When {
    pub(super) const ALL: [Self; 2] = [Self::AfterCommits, Self::AfterReopening];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AfterCommits => "right after commits",
            Self::AfterReopening => "closed and opened again",
        }
    }
}

/// The times of a kind of read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ReadFigures {
    #[serde(flatten)]
    pub(super) head: Head,
    pub(super) what: What,
    pub(super) when: When,
    /// Mails in the mailbox whose newest are read.
    pub(super) mailbox_mails: u64,
    /// Rows that were in the commit log and not yet in LMDB at the beginning.
    pub(super) waiting_rows: Option<u64>,
}

/// Mails, half or fifty thousand of them in the inbox.
pub(super) fn load(seed: u64, entities: u64, batch: u64) -> Load {
    let inbox_every = (entities / INBOX_MAILS).max(2);
    Load { seed, entities, batch, accounts: 1, inbox_every }
}

/// Fills a store, changes some of it, and reads.
pub(super) async fn measure(
    engine: RecordsEngine,
    folder: &Path,
    load: Load,
    is_quick: bool,
) -> anyhow::Result<Vec<ReadFigures>> {
    let store = Store::open(engine, folder, &mail::schema()?).await?;
    let filled = fill(&store, load).await?;
    let since = store.records().states(ACCOUNT).await?.revision;
    let mut churn = Churn::new(load, filled.first);
    for change in churn.commit(CHANGES).changes {
        store.records().commit(ACCOUNT, Commit::of([change])).await?;
    }
    let reader = Reader { load, first: filled.first, since, is_quick };
    let mut figures = reader.read_all(&store, When::AfterCommits).await?;
    let store = store.reopen().await?;
    figures.extend(reader.read_all(&store, When::AfterReopening).await?);
    store.close().await?;
    Ok(figures)
}

/// Reads from a store with known content.
struct Reader {
    load: Load,
    /// The id of the first mail.
    first: RecordId,
    /// Before the last hundred changes.
    since: Revision,
    is_quick: bool,
}

impl Reader {
    async fn read_all(&self, store: &Store, when: When) -> anyhow::Result<Vec<ReadFigures>> {
        let waiting_rows = store.engine_figure("waiting_rows").await?;
        let mut figures = Vec::new();
        for what in What::ALL {
            let median_us = self.median_us(store, what).await?;
            let head = Head {
                entities: self.load.entities,
                batch: self.load.batch,
                median_us: Some(rounded(median_us)),
                ..Head::default()
            };
            figures.push(ReadFigures { head, what, when, mailbox_mails: self.inbox_mails(), waiting_rows });
        }
        Ok(figures)
    }

    fn inbox_mails(&self) -> u64 {
        self.load.entities.div_ceil(self.load.inbox_every)
    }

    /// The median over groups of reads, divided by the reads of a group; some groups before them warm up.
    async fn median_us(&self, store: &Store, what: What) -> anyhow::Result<f64> {
        let (groups, warm_up) = if self.is_quick { (GROUPS_QUICK, WARM_UP_QUICK) } else { (GROUPS, WARM_UP) };
        let mut random = Random::new(self.load.seed, READ_STREAM);
        let mut times = Vec::new();
        for group in 0..groups + warm_up {
            let (duration, reads) = self.group(store, what, &mut random).await?;
            if group >= warm_up {
                times.push(ms(duration) * 1e3 / reads as f64);
            }
        }
        Ok(median(times))
    }

    /// The time and the number of a few reads. A wrong answer is an error.
    async fn group(
        &self,
        store: &Store,
        what: What,
        random: &mut Random,
    ) -> anyhow::Result<(Duration, usize)> {
        match what {
            What::Point => self.points(store, self.load.entities, random).await,
            What::RecentPoint => self.points(store, self.load.entities.min(RECENT), random).await,
            What::Newest => self.newest(store, false).await,
            What::NewestWhole => self.newest(store, true).await,
            What::Changes => self.changes(store).await,
        }
    }

    /// Whole records, at random among the last `among`.
    async fn points(
        &self,
        store: &Store,
        among: u64,
        random: &mut Random,
    ) -> anyhow::Result<(Duration, usize)> {
        let oldest = self.first.0 + self.load.entities - among;
        let draw = |_| Get::whole(EMAIL, vec![RecordId(oldest + random.below(among))]);
        let gets: Vec<Get> = (0..POINTS).map(draw).collect();
        let mut found = 0;
        let begun = Instant::now();
        for get in &gets {
            let records = store.records().get(ACCOUNT, get).await?;
            found += records.iter().flatten().filter(|record| !record.body.bytes.is_empty()).count();
        }
        let duration = begun.elapsed();
        ensure!(found == POINTS, "{found} of {POINTS} records were found");
        Ok((duration, POINTS))
    }

    async fn newest(&self, store: &Store, is_whole: bool) -> anyhow::Result<(Duration, usize)> {
        let query = Query::new(EMAIL, BY_MAILBOX).equals(INBOX).descending().limit(NEWEST);
        let mut found = 0;
        let begun = Instant::now();
        for _ in 0..QUERIES {
            let page = store.records().query(ACCOUNT, &query).await?;
            if is_whole {
                let records = store.records().get(ACCOUNT, &Get::whole(EMAIL, page.ids)).await?;
                found += records.iter().flatten().filter(|record| !record.body.bytes.is_empty()).count();
            } else {
                found += page.ids.len();
            }
        }
        let duration = begun.elapsed();
        ensure!(found == QUERIES * NEWEST, "{found} of {} mails were found", QUERIES * NEWEST);
        Ok((duration, QUERIES))
    }

    async fn changes(&self, store: &Store) -> anyhow::Result<(Duration, usize)> {
        let since = ChangesSince { kind: Some(EMAIL), since: self.since, limit: 2 * CHANGES as usize };
        let mut returned = 0;
        let begun = Instant::now();
        for _ in 0..QUERIES {
            let changes = store.records().changes(ACCOUNT, &since).await?;
            returned += changes.updated.len();
        }
        let duration = begun.elapsed();
        ensure!(
            returned == QUERIES * CHANGES as usize,
            "{returned} of {} changes were returned",
            QUERIES as u64 * CHANGES
        );
        Ok((duration, QUERIES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inbox_has_half_of_all_mails_and_fifty_thousand_at_most() {
        for (entities, inbox) in [(400, 200), (100_000, 50_000), (1_000_000, 50_000)] {
            let load = load(0, entities, 100);
            let reader = Reader { load, first: RecordId(1), since: Revision(0), is_quick: true };
            assert_eq!(reader.inbox_mails(), inbox);
        }
    }
}
