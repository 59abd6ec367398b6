//! A cell of the published chart: a span, a set of topics, their queries and answers.

use std::{sync::Arc, time::Instant};

use anyhow::{bail, ensure};
use restante_archive::{Archive, PAGE_ROWS_MAX, Page, Query, Topics, Walk};
use restante_core::Key;
use restante_waku_wire::bloom::content_topic_bits;
use tokio::runtime::Handle;

use crate::{
    args::CommonArgs,
    dataset::{DAYS, Dataset, QuerySet, SetName, Span, day_start},
    measure::{Latencies, rounded, touch_all},
    store::Store,
};

/// A span and a set of topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) name: &'static str,
    pub(super) span: Span,
    pub(super) set: SetName,
}

impl Cell {
    pub(super) const ALL: [Self; 6] = [
        Self { name: "1ws", span: Span::Week, set: SetName::Small },
        Self { name: "1ms", span: Span::Month, set: SetName::Small },
        Self { name: "1wl", span: Span::Week, set: SetName::Large },
        Self { name: "1ml", span: Span::Month, set: SetName::Large },
        Self { name: "1wx", span: Span::Week, set: SetName::Worst },
        Self { name: "1mx", span: Span::Month, set: SetName::Worst },
    ];
}

/// How a query names its topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryKind {
    Topics,
    Bloom,
}

impl QueryKind {
    pub(super) const ALL: [Self; 2] = [Self::Topics, Self::Bloom];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Topics => "topics",
            Self::Bloom => "bloom",
        }
    }

    fn topics(self, set: QuerySet) -> Topics {
        match self {
            Self::Topics => Topics::List(set.topics),
            Self::Bloom => Topics::Bloom(Box::new(set.bloom)),
        }
    }
}

/// The measured cell and archive, and the repetitions.
pub(super) struct Bench {
    pub(super) engine: &'static str,
    pub(super) cell: Cell,
    pub(super) kind: QueryKind,
    pub(super) query: Query,
    pub(super) common: CommonArgs,
    archive: Arc<dyn Archive>,
    dataset: Arc<Dataset>,
    handle: Handle,
}

/// All matches of a query.
pub(super) struct Answer {
    pub(super) pages: Vec<Page>,
    pub(super) tally: Tally,
}

/// The result of a walk. The sum is over the words of all bodies, so walks with equal tallies read the same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) sum: u64,
}

impl Tally {
    fn add(&mut self, page: &Page) {
        self.rows += page.len() as u64;
        let mut bytes = 0;
        let bodies = page.bodies().inspect(|body| bytes += body.len() as u64);
        self.sum = self.sum.wrapping_add(touch_all(bodies));
        self.bytes += bytes;
    }
}

impl Answer {
    /// The bodies of all rows, not copied.
    pub(super) fn bodies(&self) -> Vec<&[u8]> {
        self.pages.iter().flat_map(Page::bodies).collect()
    }

    /// The key of a row.
    pub(super) fn key(&self, row: u64) -> Option<Key> {
        let mut before = 0;
        for page in &self.pages {
            let len = page.len() as u64;
            if row < before + len {
                return page.rows().nth((row - before) as usize).map(|row| row.key());
            }
            before += len;
        }
        None
    }
}

impl Bench {
    pub(super) fn new(
        store: &Store,
        dataset: &Arc<Dataset>,
        cell: Cell,
        kind: QueryKind,
        common: &CommonArgs,
    ) -> Self {
        Self {
            engine: store.engine(),
            cell,
            kind,
            query: query(cell.span, kind.topics(dataset.query_set(cell.set))),
            common: common.clone(),
            archive: store.archive().clone(),
            dataset: dataset.clone(),
            handle: Handle::current(),
        }
    }

    /// One page.
    pub(super) fn page(&self, query: &Query) -> anyhow::Result<Page> {
        Ok(self.handle.block_on(self.archive.query(query))?)
    }

    /// Reads every byte of all matches, page by page, `times` times.
    pub(super) fn walk(&self, times: u64) -> anyhow::Result<Tally> {
        let mut tally = Tally::default();
        for _ in 0..times {
            tally = Tally::default();
            let mut walk = Walk::new(self.query.clone());
            while let Some(page) = self.handle.block_on(walk.next(&*self.archive))? {
                tally.add(&page);
            }
        }
        Ok(tally)
    }

    /// Collects all matches. This also warms up: afterwards all rows are in memory.
    pub(super) fn collect(&self) -> anyhow::Result<Answer> {
        let mut walk = Walk::new(self.query.clone());
        let mut pages = Vec::new();
        let mut tally = Tally::default();
        while let Some(page) = self.handle.block_on(walk.next(&*self.archive))? {
            tally.add(&page);
            pages.push(page);
        }
        Ok(Answer { pages, tally })
    }

    /// Compares the number of rows with that of the data set.
    pub(super) fn check(&self, answer: &Answer) -> anyhow::Result<()> {
        let expected = match &self.query.topics {
            Topics::Any => self.dataset.count(self.cell.span, |_| true),
            Topics::List(topics) => {
                self.dataset.count(self.cell.span, |topic| topics.iter().any(|name| name == topic))
            }
            Topics::Bloom(filter) => {
                self.dataset.count(self.cell.span, |topic| filter.contains(content_topic_bits(topic)))
            }
        };
        let found = answer.tally.rows;
        if found != expected {
            let (cell, kind, engine) = (self.cell.name, self.kind.name(), self.engine);
            bail!("{engine} found {found} rows in cell {cell} by {kind} instead of {expected}");
        }
        Ok(())
    }

    /// The time of matching a filter: medians of pages of one row, by filter minus by list. Only for the small cells.
    ///
    /// Each pair of topics has another filter, so that an engine that caches filters gains nothing.
    pub(super) fn bloom_match_ms(&self) -> anyhow::Result<Option<f64>> {
        const PAIRS: usize = 64;
        const FIRST_RANK: usize = 20;
        if self.kind != QueryKind::Bloom || self.cell.set != SetName::Small {
            return Ok(None);
        }
        let rounds = self.common.pick(8, 1);
        let pairs = self.common.pick(PAIRS, 4);
        let (mut by_filter, mut by_list) = (Latencies::default(), Latencies::default());
        for pair in (0..pairs).cycle().take(pairs * rounds) {
            let ranks = [FIRST_RANK + 2 * pair, FIRST_RANK + 2 * pair + 1];
            let set = QuerySet::of(ranks.iter().map(|rank| self.dataset.topic(*rank).to_string()).collect());
            for (kind, times) in [(QueryKind::Topics, &mut by_list), (QueryKind::Bloom, &mut by_filter)] {
                let query = Query { limit: 1, ..query(self.cell.span, kind.topics(set.clone())) };
                let begun = Instant::now();
                let page = self.page(&query)?;
                times.record(begun.elapsed());
                ensure!(page.len() <= 1, "a page of one row has {} rows", page.len());
            }
        }
        Ok(Some(rounded((by_filter.median_ms() - by_list.median_ms()).max(0.0))))
    }
}

/// The query for these topics in that span, in the largest pages.
fn query(span: Span, topics: Topics) -> Query {
    Query {
        topics,
        start: Some(span.start()),
        end: Some(day_start(DAYS)),
        limit: PAGE_ROWS_MAX,
        ..Query::default()
    }
}
