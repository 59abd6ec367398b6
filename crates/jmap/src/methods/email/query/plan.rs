//! How a query is answered: by an index, or by reading the emails that may pass.

use std::ops::Bound;

use restante_mail::email;
use restante_records::{Index, Query, Value};

use super::test::{KeywordTest, Test};

/// A range of an index by receivedAt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    index: Index,
    equals: Vec<u64>,
    from: Option<i64>,
    to: Option<i64>,
    /// Whether its entries are exactly the emails that pass, so that none need be read.
    pub(crate) is_exact: bool,
    /// The mailbox that all its emails are in.
    pub(crate) mailbox: Option<u64>,
}

/// Which emails may pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Candidates {
    Nobody,
    /// Those of an index.
    Walk(Walk),
    /// The emails that a search found.
    Found(usize),
}

impl Candidates {
    /// The narrowest set of one index that contains all emails that pass a test.
    pub(crate) fn of(test: &Test) -> Self {
        let conjuncts = test.conjuncts();
        let mut best = Best::default();
        for conjunct in &conjuncts {
            if best.take(conjunct) {
                return Self::Nobody;
            }
        }
        match best.found {
            Some(place) => Self::Found(place),
            None => Self::Walk(best.walk(conjuncts.len())),
        }
    }
}

/// For a conjunction with exactly one condition on text: that condition, and the index that has all emails for which the rest is true,
/// `None` when there is no rest. The emails that a search found need not be read then.
pub(crate) fn text_and_index(test: &Test) -> Option<(usize, Option<Walk>)> {
    let mut conjuncts = test.conjuncts();
    let text = conjuncts.iter().position(|conjunct| matches!(conjunct, Test::Found(_)))?;
    let Test::Found(place) = conjuncts.remove(text) else { return None };
    if conjuncts.is_empty() {
        return Some((*place, None));
    }
    match Candidates::of(&Test::And(conjuncts.into_iter().cloned().collect())) {
        Candidates::Walk(walk) if walk.is_exact => Some((*place, Some(walk))),
        _ => None,
    }
}

/// The parts of a conjunction that an index can use.
#[derive(Default)]
struct Best {
    mailbox: Option<u64>,
    keyword: Option<u64>,
    is_unseen: bool,
    from: Option<i64>,
    to: Option<i64>,
    found: Option<usize>,
    /// The number of conjuncts about times.
    times: usize,
}

impl Best {
    /// Adds a conjunct; returns whether no email passes it.
    fn take(&mut self, conjunct: &Test) -> bool {
        match conjunct {
            Test::Never | Test::Keyword { keyword: KeywordTest::Unknown, is_wanted: true } => return true,
            Test::InMailbox(id) if self.mailbox.is_none() => self.mailbox = Some(*id),
            Test::Keyword { keyword: KeywordTest::Seen, is_wanted: false } => self.is_unseen = true,
            Test::Keyword { keyword: KeywordTest::Number(number), is_wanted: true }
                if self.keyword.is_none() =>
            {
                self.keyword = Some(*number);
            }
            Test::After(time) => {
                self.from = Some(self.from.map_or(*time, |from| from.max(*time)));
                self.times += 1;
            }
            Test::Before(time) => {
                self.to = Some(self.to.map_or(*time, |to| to.min(*time)));
                self.times += 1;
            }
            Test::Found(place) if self.found.is_none() => self.found = Some(*place),
            _ => {}
        }
        false
    }

    fn walk(&self, conjuncts: usize) -> Walk {
        let (from, to) = (self.from, self.to);
        let (index, equals, used) = match (self.mailbox, self.keyword) {
            (Some(mailbox), _) if self.is_unseen => (email::BY_UNSEEN, vec![mailbox, 1], 2),
            (Some(mailbox), _) => (email::BY_MAILBOX, vec![mailbox], 1),
            (None, Some(keyword)) => (email::BY_KEYWORD, vec![keyword], 1),
            (None, None) => (email::BY_RECEIVED, Vec::new(), 0),
        };
        let is_exact = conjuncts == used + self.times;
        Walk { index, equals, from, to, is_exact, mailbox: self.mailbox }
    }
}

impl Walk {
    /// The mailbox, if all its emails pass: its counters give their number.
    pub(crate) fn whole_mailbox(&self) -> Option<u64> {
        let is_whole =
            self.is_exact && self.index == email::BY_MAILBOX && self.from.is_none() && self.to.is_none();
        self.mailbox.filter(|_| is_whole)
    }

    /// The query on the records.
    pub(crate) fn query(&self, is_ascending: bool) -> Query {
        let at = |time: i64| Value::Number(u64::try_from(time).unwrap_or(0));
        let from = self.from.map_or(Bound::Unbounded, |time| Bound::Included(at(time)));
        let to = self.to.map_or(Bound::Unbounded, |time| Bound::Excluded(at(time)));
        let mut query = Query::new(email::KIND, self.index).between(from, to);
        for value in &self.equals {
            query = query.equals(*value);
        }
        if is_ascending { query } else { query.descending() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSEEN: Test = Test::Keyword { keyword: KeywordTest::Seen, is_wanted: false };
    const FLAGGED: Test = Test::Keyword { keyword: KeywordTest::Number(1), is_wanted: true };

    fn walk(test: &Test) -> Walk {
        match Candidates::of(test) {
            Candidates::Walk(walk) => walk,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_mailbox_is_one_range_of_an_index() {
        let walk = walk(&Test::And(vec![Test::And(vec![Test::InMailbox(3)])]));
        assert_eq!((walk.index, &walk.equals[..], walk.is_exact), (email::BY_MAILBOX, &[3][..], true));
        assert_eq!(walk.whole_mailbox(), Some(3));
    }

    #[test]
    fn times_narrow_the_range() {
        let times = [Test::After(5), Test::Before(10), Test::After(7), Test::Before(9)];
        let walk = walk(&Test::And([vec![Test::InMailbox(3)], times.to_vec()].concat()));
        assert_eq!((walk.from, walk.to, walk.is_exact), (Some(7), Some(9), true));
        assert_eq!((walk.mailbox, walk.whole_mailbox()), (Some(3), None));
    }

    #[test]
    fn unread_mail_of_a_mailbox_and_flagged_mail_have_indexes() {
        let unseen = walk(&Test::And(vec![UNSEEN, Test::InMailbox(3)]));
        assert_eq!(
            (unseen.index, &unseen.equals[..], unseen.is_exact),
            (email::BY_UNSEEN, &[3, 1][..], true)
        );
        let flagged = walk(&FLAGGED);
        assert_eq!(
            (flagged.index, &flagged.equals[..], flagged.is_exact),
            (email::BY_KEYWORD, &[1][..], true)
        );
        let all = walk(&Test::And(Vec::new()));
        assert_eq!((all.index, all.is_exact), (email::BY_RECEIVED, true));
    }

    #[test]
    fn what_an_index_does_not_say_is_read_from_the_emails() {
        let inexact = [
            UNSEEN,
            Test::And(vec![FLAGGED, Test::InMailbox(3)]),
            Test::And(vec![Test::InMailbox(3), Test::InMailbox(4)]),
            Test::And(vec![FLAGGED, Test::Keyword { keyword: KeywordTest::Number(2), is_wanted: true }]),
            Test::And(vec![Test::InMailbox(3), Test::MinSize(5)]),
            Test::Or(vec![Test::InMailbox(3)]),
            Test::Not(vec![Test::InMailbox(3)]),
        ];
        for test in inexact {
            assert!(!walk(&test).is_exact, "{test:?}");
        }
        let found = Test::And(vec![Test::InMailbox(3), Test::Found(0)]);
        let (place, rest) = text_and_index(&found).unwrap();
        assert_eq!((place, rest.unwrap().equals), (0, vec![3]));
        assert_eq!(text_and_index(&Test::Found(1)), Some((1, None)));
        let inexact = [Test::Or(vec![Test::Found(0)]), Test::And(vec![Test::Found(0), Test::Found(1)])];
        assert!(inexact.iter().all(|test| text_and_index(test).is_none()));
        assert_eq!(Candidates::of(&found), Candidates::Found(0));
        let unknown = Test::Keyword { keyword: KeywordTest::Unknown, is_wanted: true };
        assert_eq!(Candidates::of(&Test::And(vec![Test::InMailbox(3), unknown])), Candidates::Nobody);
    }
}
