//! A query whose documents may be sought in any ascending order.
//!
//! Tantivy 0.27 excludes documents by asking the excluded query whether it contains one, even if that query is at a later document
//! already. A phrase does not allow that (`debug_assert` in `PhraseScorer::seek_danger`). The default of `DocSet` does.

use ::tantivy::{
    DocId, DocSet, Score, SegmentReader, TantivyError,
    query::{EnableScoring, Explanation, Query, Scorer, Weight},
};

/// The same query, for exclusion.
pub(super) fn guarded(query: Box<dyn Query>) -> Box<dyn Query> {
    Box::new(Guarded(query))
}

#[derive(Debug)]
struct Guarded(Box<dyn Query>);

impl Clone for Guarded {
    fn clone(&self) -> Self {
        Self(self.0.box_clone())
    }
}

impl Query for Guarded {
    fn weight(&self, scoring: EnableScoring<'_>) -> Result<Box<dyn Weight>, TantivyError> {
        Ok(Box::new(GuardedWeight(self.0.weight(scoring)?)))
    }
}

struct GuardedWeight(Box<dyn Weight>);

impl Weight for GuardedWeight {
    fn scorer(&self, segment: &SegmentReader, boost: Score) -> Result<Box<dyn Scorer>, TantivyError> {
        Ok(Box::new(GuardedScorer(self.0.scorer(segment, boost)?)))
    }

    fn explain(&self, segment: &SegmentReader, document: DocId) -> Result<Explanation, TantivyError> {
        self.0.explain(segment, document)
    }
}

struct GuardedScorer(Box<dyn Scorer>);

impl DocSet for GuardedScorer {
    fn advance(&mut self) -> DocId {
        self.0.advance()
    }

    fn seek(&mut self, target: DocId) -> DocId {
        self.0.seek(target)
    }

    fn doc(&self) -> DocId {
        self.0.doc()
    }

    fn size_hint(&self) -> u32 {
        self.0.size_hint()
    }

    fn cost(&self) -> u64 {
        self.0.cost()
    }
}

impl Scorer for GuardedScorer {
    fn score(&mut self) -> Score {
        self.0.score()
    }
}
