//! The questions: the cells of the Status mailserver's measurement, each by a list of topics and by a bloom filter, in full
//! and for pages.

use std::sync::Arc;

use restante_archive::{Direction, PAGE_ROWS_MAX, Query, Topics};
use restante_bench::dataset::{DAYS, Dataset, SetName, Span, TOPICS, day_start};
use restante_core::{Bloom, Timestamp};
use restante_waku_wire::bloom::{content_topic_bits, topic4};

/// Rows of a page.
pub(crate) const PAGE_ROWS: u64 = 100;

/// A cell of the published chart: a span and a set of topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// Its published name.
    pub(crate) name: &'static str,
    span: Span,
    set: SetName,
}

impl Cell {
    pub(crate) const ALL: [Self; 6] = [
        Self { name: "1ws", span: Span::Week, set: SetName::Small },
        Self { name: "1ms", span: Span::Month, set: SetName::Small },
        Self { name: "1wl", span: Span::Week, set: SetName::Large },
        Self { name: "1ml", span: Span::Month, set: SetName::Large },
        Self { name: "1wx", span: Span::Week, set: SetName::Worst },
        Self { name: "1mx", span: Span::Month, set: SetName::Worst },
    ];
}

/// How a question names its topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Topics,
    Bloom,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Topics, Self::Bloom];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Topics => "topics",
            Self::Bloom => "bloom",
        }
    }
}

/// The requested part of the matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// All of them.
    Full,
    /// The newest hundred.
    Newest,
    /// The oldest hundred.
    Oldest,
}

impl Access {
    pub(crate) const ALL: [Self; 3] = [Self::Full, Self::Newest, Self::Oldest];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Newest => "newest 100",
            Self::Oldest => "oldest 100",
        }
    }
}

/// One question in the terms of all stores, prepared before the clock runs.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) cell: Cell,
    pub(crate) kind: Kind,
    pub(crate) access: Access,
    /// The start, and the end, which is excluded.
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
    /// The query for restante's archives.
    pub(crate) query: Query,
    /// The content topics that match: the list, or all of the data set's that match the filter. A rival without
    /// filters gets this list without spending time on matching.
    pub(crate) content_topics: Vec<String>,
    /// The same as four bytes each.
    pub(crate) topics: Vec<Vec<u8>>,
    /// The filter of the set of topics.
    pub(crate) bloom: Bloom,
    /// How many messages match the question.
    pub(crate) rows: u64,
    /// How many messages match the filter, which may be more than match the list.
    pub(crate) rows_by_filter: u64,
}

impl Question {
    fn new(dataset: &Dataset, cell: Cell, kind: Kind, access: Access) -> Self {
        let set = dataset.query_set(cell.set);
        let is_let_through = |topic: &str| set.bloom.contains(content_topic_bits(topic));
        let rows_by_filter = dataset.count(cell.span, is_let_through);
        let (content_topics, rows, asked) = match kind {
            Kind::Topics => {
                let rows = dataset.count(cell.span, |topic| set.topics.iter().any(|name| name == topic));
                (set.topics.clone(), rows, Topics::List(set.topics))
            }
            Kind::Bloom => {
                let all = (1..=TOPICS).map(|rank| dataset.topic(rank));
                let through = all.filter(|topic| is_let_through(topic)).map(ToString::to_string).collect();
                (through, rows_by_filter, Topics::Bloom(Box::new(set.bloom)))
            }
        };
        let (start, end) = (cell.span.start(), day_start(DAYS));
        let query = Query {
            topics: asked,
            start: Some(start),
            end: Some(end),
            direction: if access == Access::Newest { Direction::Backward } else { Direction::Forward },
            limit: if access == Access::Full { PAGE_ROWS_MAX } else { PAGE_ROWS as usize },
            ..Query::default()
        };
        let topics = content_topics.iter().map(|topic| topic4(topic).to_vec()).collect();
        let bloom = set.bloom;
        Self { cell, kind, access, start, end, query, content_topics, topics, bloom, rows, rows_by_filter }
    }

    /// All questions, cell by cell.
    pub(crate) fn all(dataset: &Dataset) -> Vec<Arc<Self>> {
        let mut questions = Vec::new();
        for cell in Cell::ALL {
            for kind in Kind::ALL {
                for access in Access::ALL {
                    questions.push(Arc::new(Self::new(dataset, cell, kind, access)));
                }
            }
        }
        questions
    }

    /// The number of rows of the right answer, if `matches` messages match.
    pub(crate) fn answer_rows(&self, matches: u64) -> u64 {
        if self.access == Access::Full { matches } else { matches.min(PAGE_ROWS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_asked_in_every_way_and_means_the_same_to_all() {
        let dataset = Dataset::new(0, 20_000);
        let questions = Question::all(&dataset);
        assert_eq!(questions.len(), 36);
        for question in questions {
            let topics = &question.content_topics;
            let span = question.cell.span;
            let rows = dataset.count(span, |topic| topics.iter().any(|name| name == topic));
            assert_eq!(question.rows, rows, "{question:?}");
            assert!(question.rows_by_filter >= question.rows);
            assert_eq!(question.topics.len(), topics.len());
            let is_filter = matches!(question.query.topics, Topics::Bloom(_));
            assert_eq!(is_filter, question.kind == Kind::Bloom);
        }
    }
}
