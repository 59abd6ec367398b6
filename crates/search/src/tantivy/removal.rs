//! Removing documents by a term.

use ::tantivy::{
    DocId, DocSet, Result, Score, SegmentReader, TantivyError, Term,
    query::{ConstScorer, EmptyScorer, EnableScoring, Explanation, Query, Scorer, Weight},
    schema::IndexRecordOption,
};

/// Matches the documents with a term. `IndexWriter::delete_term` does the same with a `TermQuery`, which prepares to compute scores:
/// that uses a kilobyte for each removal until the next commit, and every new document is a removal too.
#[derive(Clone, Debug)]
pub(super) struct WithTerm(pub(super) Term);

impl Query for WithTerm {
    fn weight(&self, _: EnableScoring<'_>) -> Result<Box<dyn Weight>> {
        Ok(Box::new(self.clone()))
    }
}

impl Weight for WithTerm {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> Result<Box<dyn Scorer>> {
        let index = reader.inverted_index(self.0.field())?;
        Ok(match index.read_postings(&self.0, IndexRecordOption::Basic)? {
            Some(postings) => Box::new(ConstScorer::new(postings, boost)),
            None => Box::new(EmptyScorer),
        })
    }

    fn explain(&self, reader: &SegmentReader, doc: DocId) -> Result<Explanation> {
        let mut scorer = self.scorer(reader, 1.0)?;
        if scorer.doc() > doc || scorer.seek(doc) != doc {
            return Err(TantivyError::InvalidArgument(format!("document {doc} does not have the term")));
        }
        Ok(Explanation::new("a document with the term", 1.0))
    }
}
