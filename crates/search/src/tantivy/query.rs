//! A filter as a query of Tantivy, and its hits.

use ::tantivy::{
    DocId, DocSet, Score, Searcher, SegmentOrdinal, SegmentReader, TERMINATED, TantivyError, Term,
    collector::{Collector, Count, SegmentCollector},
    columnar::Column,
    query::{BooleanQuery, EmptyQuery, ExistsQuery, Occur, PhraseQuery, Query as IndexQuery, TermQuery},
    schema::IndexRecordOption,
};

use super::{files::OpenIndex, guarded::guarded, newest::newest, schema::Fields};
use crate::{AccountId, Field, Filter, Hit, Order, Page, Phrase, Query, RecordId, Revision, SearchText};

/// A page of the matching documents of an account.
pub(super) fn page(open: &OpenIndex, account: AccountId, query: &Query) -> Result<Page, TantivyError> {
    let (searcher, fields) = (&open.reader.searcher(), &open.fields);
    let translator = Translator { fields, account };
    let of_account = translator.account_query();
    let query_of_account = all_of(vec![of_account, translator.translate(&query.filter)]);
    let count = query.limit + 1;
    let mut hits = match query.order {
        Order::ById => {
            let collector = Smallest { after: query.after.map(|after| after.id), count };
            searcher.search(&*query_of_account, &collector)?
        }
        Order::NewestFirst => newest(searcher, &*query_of_account, &open.times, query.after, count)?,
    };
    let has_more = hits.len() > query.limit;
    hits.truncate(query.limit);
    Ok(Page { hits, has_more, revision: revision(searcher, fields, account)? })
}

/// The committed revision of an account.
pub(super) fn revision(
    searcher: &Searcher,
    fields: &Fields,
    account: AccountId,
) -> Result<Revision, TantivyError> {
    let term = fields.state_term(account);
    let mut revision = 0;
    for segment in searcher.segment_readers() {
        let inverted = segment.inverted_index(term.field())?;
        let Some(mut postings) = inverted.read_postings(&term, IndexRecordOption::Basic)? else { continue };
        let numbers = segment.fast_fields().u64("number")?.first_or_default_col(0);
        let alive = segment.alive_bitset();
        let mut document = postings.doc();
        while document != TERMINATED {
            if alive.is_none_or(|alive| alive.is_alive(document)) {
                revision = revision.max(numbers.get_val(document));
            }
            document = postings.advance();
        }
    }
    Ok(Revision(revision))
}

/// The number of documents of all accounts.
pub(super) fn documents(searcher: &Searcher) -> Result<usize, TantivyError> {
    searcher.search(&ExistsQuery::new("received".to_owned(), false), &Count)
}

/// Translates filters for one account.
struct Translator<'f> {
    fields: &'f Fields,
    account: AccountId,
}

impl Translator<'_> {
    fn account_query(&self) -> Box<dyn IndexQuery> {
        term(self.fields.account_term(self.account))
    }

    fn translate(&self, filter: &Filter) -> Box<dyn IndexQuery> {
        match filter {
            Filter::And(filters) => self.all(filters.iter().map(|filter| self.translate(filter)).collect()),
            Filter::Or(filters) => any_of(filters.iter().map(|filter| self.translate(filter)).collect()),
            Filter::Not(filters) => {
                let mut clauses = vec![(Occur::Must, self.account_query())];
                clauses
                    .extend(filters.iter().map(|filter| (Occur::MustNot, guarded(self.translate(filter)))));
                Box::new(BooleanQuery::new(clauses))
            }
            Filter::Text(text) => {
                self.all(text.phrases().iter().map(|phrase| self.anywhere(phrase)).collect())
            }
            Filter::In(field, text) => self.everything(text, |word| self.fields.word_term(*field, word)),
            Filter::Header(name, None) => term(self.fields.header_term(name.as_str(), "")),
            Filter::Header(name, Some(text)) => {
                let exists = term(self.fields.header_term(name.as_str(), ""));
                let contains = self.everything(text, |word| self.fields.header_term(name.as_str(), word));
                all_of(vec![exists, contains])
            }
        }
    }

    /// A phrase in one of the fields.
    fn anywhere(&self, phrase: &Phrase) -> Box<dyn IndexQuery> {
        let in_field = |field: Field| phrase_query(phrase, |word| self.fields.word_term(field, word));
        any_of(Field::ALL.into_iter().map(in_field).collect())
    }

    fn everything(&self, text: &SearchText, to_term: impl Fn(&str) -> Term) -> Box<dyn IndexQuery> {
        self.all(text.phrases().iter().map(|phrase| phrase_query(phrase, &to_term)).collect())
    }

    /// All of the queries; if there are none, every document of the account.
    fn all(&self, queries: Vec<Box<dyn IndexQuery>>) -> Box<dyn IndexQuery> {
        if queries.is_empty() {
            return self.account_query();
        }
        all_of(queries)
    }
}

fn phrase_query(phrase: &Phrase, to_term: impl Fn(&str) -> Term) -> Box<dyn IndexQuery> {
    let mut terms: Vec<(usize, Term)> = Vec::new();
    for (offset, word) in phrase.words() {
        terms.push((usize::try_from(*offset).unwrap_or(usize::MAX), to_term(word)));
    }
    match terms.len() {
        0 => Box::new(EmptyQuery),
        1 => term(terms.remove(0).1),
        _ => Box::new(PhraseQuery::new_with_offset(terms)),
    }
}

fn term(term: Term) -> Box<dyn IndexQuery> {
    Box::new(TermQuery::new(term, IndexRecordOption::Basic))
}

fn all_of(mut queries: Vec<Box<dyn IndexQuery>>) -> Box<dyn IndexQuery> {
    if queries.len() == 1
        && let Some(only) = queries.pop()
    {
        return only;
    }
    Box::new(BooleanQuery::intersection(queries))
}

fn any_of(mut queries: Vec<Box<dyn IndexQuery>>) -> Box<dyn IndexQuery> {
    if queries.is_empty() {
        return Box::new(EmptyQuery);
    }
    if queries.len() == 1
        && let Some(only) = queries.pop()
    {
        return only;
    }
    Box::new(BooleanQuery::union(queries))
}

/// Collects the hits with the smallest ids greater than a given one, in bounded memory.
struct Smallest {
    after: Option<RecordId>,
    count: usize,
}

impl Collector for Smallest {
    type Fruit = Vec<Hit>;
    type Child = SmallestOfSegment;

    fn for_segment(
        &self,
        _: SegmentOrdinal,
        segment: &SegmentReader,
    ) -> Result<SmallestOfSegment, TantivyError> {
        Ok(SmallestOfSegment {
            after: self.after,
            hits: SmallestHits { count: self.count, hits: Vec::new() },
            numbers: segment.fast_fields().u64("number")?,
            received: segment.fast_fields().i64("received")?,
        })
    }

    fn requires_scoring(&self) -> bool {
        false
    }

    fn merge_fruits(&self, fruits: Vec<Vec<Hit>>) -> Result<Vec<Hit>, TantivyError> {
        let mut smallest = SmallestHits { count: self.count, hits: Vec::new() };
        for hit in fruits.into_iter().flatten() {
            smallest.add(hit);
        }
        Ok(smallest.finish())
    }
}

struct SmallestOfSegment {
    after: Option<RecordId>,
    hits: SmallestHits,
    numbers: Column<u64>,
    received: Column<i64>,
}

impl SegmentCollector for SmallestOfSegment {
    type Fruit = Vec<Hit>;

    fn collect(&mut self, document: DocId, _: Score) {
        let Some(number) = self.numbers.first(document) else { return };
        let id = RecordId(number);
        if self.after.is_none_or(|after| id > after) {
            self.hits.add(Hit { id, received: self.received.first(document).unwrap_or_default() });
        }
    }

    fn harvest(self) -> Vec<Hit> {
        self.hits.hits
    }
}

/// The hits with the smallest ids so far, fewer than twice as many as are requested.
struct SmallestHits {
    count: usize,
    hits: Vec<Hit>,
}

impl SmallestHits {
    fn add(&mut self, hit: Hit) {
        self.hits.push(hit);
        if self.hits.len() >= 2 * self.count {
            self.hits.select_nth_unstable(self.count);
            self.hits.truncate(self.count);
        }
    }

    fn finish(mut self) -> Vec<Hit> {
        self.hits.sort_unstable();
        self.hits.truncate(self.count);
        self.hits
    }
}
