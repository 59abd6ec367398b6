//! The operations of one thread, and the time of each kind.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

use super::{
    population::{Keys, Population},
    session_table::{SessionTable, info_of},
};

/// In the first mix one of this many operations changes an entry.
const MERGE_EVERY: usize = 10;
/// In the second mix one of this many closes a session, and another opens one.
const CHURN_EVERY: usize = 20;
const CHURN_OPENS_AT: usize = 10;
/// Series of closing, and as many of opening between them.
const SERIES: usize = 8;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    ByUser,
    ByAddress,
    ById,
    SetPresence,
    MergeInfo,
    /// Alternating series of closing and of opening: each kind has a time of its own.
    Churn,
    /// 90 % look-ups by user, 10 % changes of an entry.
    MixedMerge,
    /// 90 % look-ups by user, 5 % closes, 5 % opens.
    MixedChurn,
}

impl Load {
    pub(super) const ALL: [Self; 8] = [
        Self::ByUser,
        Self::ByAddress,
        Self::ById,
        Self::SetPresence,
        Self::MergeInfo,
        Self::Churn,
        Self::MixedMerge,
        Self::MixedChurn,
    ];

    /// Draws series of sessions to close and to open.
    fn draw_churn<I: Copy>(
        self,
        ops: usize,
        absent: usize,
        users: &mut Population<I>,
    ) -> anyhow::Result<Vec<(Keys<I>, Keys<I>)>> {
        let (series, each) = match self {
            Self::Churn => (SERIES, ops.min(absent) / SERIES),
            Self::MixedChurn => (1, (ops / CHURN_EVERY).min(absent)),
            _ => (0, 0),
        };
        let mut churn = Vec::with_capacity(series);
        for _ in 0..series {
            churn.push((users.take(each.max(1))?, users.invite(each.max(1))?));
        }
        Ok(churn)
    }

    /// For messages.
    fn name(self) -> String {
        self.ops().join(" and ")
    }

    /// The operations that it measures.
    pub(super) fn ops(self) -> &'static [&'static str] {
        match self {
            Self::ByUser => &["by_user"],
            Self::ByAddress => &["by_address"],
            Self::ById => &["by_id"],
            Self::SetPresence => &["set_presence"],
            Self::MergeInfo => &["merge_info"],
            Self::Churn => &["close", "open"],
            Self::MixedMerge => &["90% by_user, 10% merge_info"],
            Self::MixedChurn => &["90% by_user, 5% close, 5% open"],
        }
    }
}

/// The keys of one thread.
pub(super) struct Job<I> {
    load: Load,
    /// Sessions that are open before and after.
    keys: Keys<I>,
    /// Series of sessions to close and sessions to open.
    churn: Vec<(Keys<I>, Keys<I>)>,
    has_info: bool,
}

/// The result of a job.
pub(super) struct Done<I> {
    /// How long it took, for each of the load's operations.
    pub(super) times: Vec<Duration>,
    /// Operations of each kind.
    pub(super) counts: Vec<usize>,
    churn: Vec<(Keys<I>, Keys<I>, Vec<I>)>,
}

impl<I> Done<I> {
    /// Records which users have a session now.
    pub(super) fn settle(self, users: &mut Population<I>)
    where
        I: Copy,
    {
        for (closed, opened, ids) in self.churn {
            users.leave(&closed);
            users.join(&opened, &ids);
        }
    }
}

impl<I: Copy> Job<I> {
    /// Draws the keys of `jobs` jobs, of about `ops` operations each. Together they leave most sessions unchanged.
    pub(super) fn draw(
        load: Load,
        ops: usize,
        jobs: usize,
        has_info: bool,
        users: &mut Population<I>,
    ) -> anyhow::Result<Vec<Self>> {
        let absent = users.absent() / jobs.max(1);
        // First all sessions to close: no other job may look them up.
        let mut all = Vec::with_capacity(jobs);
        for _ in 0..jobs {
            all.push(load.draw_churn(ops, absent, users)?);
        }
        let draw_kept = |churn: Vec<(Keys<I>, Keys<I>)>| {
            let opened: usize = churn.iter().map(|(_, opened)| opened.len()).sum();
            let keys = users.draw(match load {
                Load::Churn => 0,
                Load::MixedChurn => opened * CHURN_EVERY,
                _ => ops,
            });
            Self { load, keys, churn, has_info }
        };
        Ok(all.into_iter().map(draw_kept).collect())
    }

    /// Runs all operations.
    pub(super) fn run<T: SessionTable<Id = I>>(self, table: &T) -> anyhow::Result<Done<I>> {
        let keys = &self.keys;
        let (took, good) = match self.load {
            Load::ByUser => timed(|| keys.names().map(|name| table.by_user(name.user)).sum()),
            Load::ByAddress => timed(|| keys.names().map(|name| table.by_address(name)).sum()),
            Load::ById => timed(|| keys.named_ids().map(|(_, id)| table.by_id(id)).sum()),
            Load::SetPresence => timed(|| self.set_presence(table)),
            Load::MergeInfo => timed(|| self.merge_info(table)),
            Load::MixedMerge => timed(|| self.mixed_merge(table)),
            Load::Churn => return self.churn(table),
            Load::MixedChurn => return self.mixed_churn(table),
        };
        let count = keys.len();
        ensure!(
            good == count as u64,
            "{}, {}: {good} of {count} sessions were found",
            T::NAME,
            self.load.name()
        );
        Ok(Done { times: vec![took], counts: vec![count], churn: Vec::new() })
    }

    fn set_presence<T: SessionTable<Id = I>>(&self, table: &T) -> u64 {
        let mut good = 0;
        for (number, (name, id)) in self.keys.named_ids().enumerate() {
            good += u64::from(table.set_presence(name, id, (number % 3) as i8));
        }
        good
    }

    fn merge_info<T: SessionTable<Id = I>>(&self, table: &T) -> u64 {
        let mut good = 0;
        for (number, (name, id)) in self.keys.named_ids().enumerate() {
            good += u64::from(table.merge_info(name, id, (number % 2 + 1) as i64));
        }
        good
    }

    fn mixed_merge<T: SessionTable<Id = I>>(&self, table: &T) -> u64 {
        let mut good = 0;
        for (number, (name, id)) in self.keys.named_ids().enumerate() {
            good += if number % MERGE_EVERY == 0 {
                u64::from(table.merge_info(name, id, (number % 4 / 2 + 1) as i64))
            } else {
                table.by_user(name.user)
            };
        }
        good
    }

    fn churn<T: SessionTable<Id = I>>(self, table: &T) -> anyhow::Result<Done<I>> {
        let mut done = Done {
            times: vec![Duration::ZERO; 2],
            counts: vec![0; 2],
            churn: Vec::with_capacity(self.churn.len()),
        };
        let (mut closing, mut opening) = (Duration::ZERO, Duration::ZERO);
        let mut sessions = 0;
        for (to_close, to_open) in self.churn {
            let (took, closed) = timed(|| close_all(table, &to_close));
            closing += took;
            let (took, ids) = timed(|| open_all(table, &to_open, self.has_info));
            opening += took;
            ensure!(
                closed == to_close.len() as u64,
                "{} did not know a session that was to be closed",
                T::NAME
            );
            let ids = ids.with_context(|| format!("{} refused a session", T::NAME))?;
            sessions += to_close.len();
            done.churn.push((to_close, to_open, ids));
        }
        done.times = vec![closing, opening];
        done.counts = vec![sessions, sessions];
        Ok(done)
    }

    fn mixed_churn<T: SessionTable<Id = I>>(self, table: &T) -> anyhow::Result<Done<I>> {
        let mut churn = self.churn;
        let (to_close, to_open) = churn.pop().context("the mix has no sessions to close or open")?;
        let (mut closing, mut opening) = (to_close.named_ids(), to_open.names().zip(to_open.numbers()));
        let mut ids = Vec::with_capacity(to_open.len());
        let mut good = 0;
        let begun = Instant::now();
        for (number, name) in self.keys.names().enumerate() {
            good += match number % CHURN_EVERY {
                0 => u64::from(closing.next().is_some_and(|(name, id)| table.close(name, id))),
                CHURN_OPENS_AT => {
                    let opened = opening.next().and_then(|(name, number)| {
                        let info = info_of(*number);
                        table.open(name, if self.has_info { &info } else { &[] })
                    });
                    ids.extend(opened);
                    u64::from(opened.is_some())
                }
                _ => table.by_user(name.user),
            };
        }
        let took = begun.elapsed();
        let count = self.keys.len();
        ensure!(
            good == count as u64,
            "{}, {}: {good} of {count} sessions were found",
            T::NAME,
            self.load.name()
        );
        drop((closing, opening));
        Ok(Done { times: vec![took], counts: vec![count], churn: vec![(to_close, to_open, ids)] })
    }
}

fn close_all<T: SessionTable>(table: &T, keys: &Keys<T::Id>) -> u64 {
    keys.named_ids().map(|(name, id)| u64::from(table.close(name, id))).sum()
}

fn open_all<T: SessionTable>(table: &T, keys: &Keys<T::Id>, has_info: bool) -> Option<Vec<T::Id>> {
    let mut ids = Vec::with_capacity(keys.len());
    for (name, number) in keys.names().zip(keys.numbers()) {
        let info = info_of(*number);
        ids.push(table.open(name, if has_info { &info } else { &[] })?);
    }
    Some(ids)
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begun = Instant::now();
    let done = black_box(work());
    (begun.elapsed(), done)
}

#[cfg(test)]
mod tests {
    use super::{super::restante_table::RestanteTable, *};

    #[tokio::test]
    async fn every_load_leaves_as_many_sessions_as_there_were() {
        let table = RestanteTable::open().await.unwrap();
        let mut users = Population::fill(&table, 1_000, true).unwrap();
        for load in Load::ALL {
            // The last one first: a job once looked up users whose session another job had closed.
            for job in Job::draw(load, 400, 2, true, &mut users).unwrap().into_iter().rev() {
                let done = job.run(&table).unwrap();
                assert_eq!((done.times.len(), done.counts.len()), (load.ops().len(), load.ops().len()));
                assert!(done.counts.iter().all(|count| *count >= 20), "{load:?} {:?}", done.counts);
                done.settle(&mut users);
            }
            assert_eq!((users.sessions(), users.absent()), (1_000, 250), "{load:?}");
        }
    }

    #[tokio::test]
    async fn a_table_that_loses_sessions_is_an_error() {
        let table = RestanteTable::open().await.unwrap();
        let mut users = Population::fill(&table, 100, false).unwrap();
        let job = Job::draw(Load::ByUser, 50, 1, false, &mut users).unwrap().pop().unwrap();
        assert!(job.run(&RestanteTable::open().await.unwrap()).is_err(), "an empty table has no sessions");
    }
}
