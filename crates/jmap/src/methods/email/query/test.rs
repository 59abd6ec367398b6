//! A filter prepared for the emails of one account: keywords are resolved to numbers, and conditions on text to the emails that match.

use std::collections::HashMap;

use restante_mail::{SEEN, email, row::Row};
use restante_records::{Properties, Property, Value};

use super::{
    filter::{Condition, Filter, Quantifier},
    text::Hits,
};

/// A keyword in the form in which emails have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum KeywordTest {
    Seen,
    Number(u64),
    /// No email of the account ever had it.
    Unknown,
}

impl KeywordTest {
    /// The test for a keyword in lowercase, with its number, if it has one.
    pub(crate) fn new(name: &str, number: Option<u64>) -> Self {
        match number {
            _ if name == SEEN => Self::Seen,
            Some(number) => Self::Number(number),
            None => Self::Unknown,
        }
    }

    pub(crate) fn is_of(self, properties: &Properties) -> bool {
        match self {
            Self::Seen => properties.values(email::UNSEEN).next().is_none(),
            Self::Number(number) => has(properties, email::KEYWORD, number),
            Self::Unknown => false,
        }
    }
}

/// The keywords of a filter and a sort, by their names.
pub(crate) type KeywordTests = HashMap<String, KeywordTest>;

/// The conditions of a filter, prepared for single emails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    And(Vec<Test>),
    Or(Vec<Test>),
    Not(Vec<Test>),
    Never,
    InMailbox(u64),
    InMailboxOtherThan(Vec<u64>),
    Before(i64),
    After(i64),
    MinSize(u64),
    MaxSize(u64),
    HasAttachment(bool),
    Keyword {
        keyword: KeywordTest,
        is_wanted: bool,
    },
    InThread(Quantifier, KeywordTest),
    /// It is among the emails that a search found.
    Found(usize),
}

/// What a test needs to know of emails in addition to their properties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) row: bool,
    /// The keywords for which whole threads are tested.
    pub(crate) thread_keywords: Vec<KeywordTest>,
    /// The conditions on text, in the order of [`Test::Found`].
    pub(crate) texts: Vec<Condition>,
}

impl Needs {
    pub(crate) fn thread_keyword(&mut self, keyword: KeywordTest) {
        if !self.thread_keywords.contains(&keyword) {
            self.thread_keywords.push(keyword);
        }
    }
}

impl Test {
    /// Prepares a filter, and adds what it needs to `needs`.
    pub(crate) fn new(filter: &Filter, keywords: &KeywordTests, needs: &mut Needs) -> Self {
        let mut all = |parts: &[Filter]| parts.iter().map(|part| Self::new(part, keywords, needs)).collect();
        match filter {
            Filter::And(parts) => Self::And(all(parts)),
            Filter::Or(parts) => Self::Or(all(parts)),
            Filter::Not(parts) => Self::Not(all(parts)),
            Filter::Is(condition) => Self::of_condition(condition, keywords, needs),
        }
    }

    fn of_condition(condition: &Condition, keywords: &KeywordTests, needs: &mut Needs) -> Self {
        let test_of = |name: &str| keywords.get(name).copied().unwrap_or(KeywordTest::Unknown);
        let keyword = |name: &str, is_wanted| Self::Keyword { keyword: test_of(name), is_wanted };
        match condition {
            Condition::InMailbox(mailbox) => mailbox.map_or(Self::Never, |id| Self::InMailbox(id.0)),
            Condition::InMailboxOtherThan(ids) => {
                Self::InMailboxOtherThan(ids.iter().map(|id| id.0).collect())
            }
            Condition::Before(time) => Self::Before(*time),
            Condition::After(time) => Self::After(*time),
            Condition::HasKeyword(name) => keyword(name, true),
            Condition::NotKeyword(name) => keyword(name, false),
            Condition::InThread(quantifier, name) => {
                let keyword = test_of(name);
                needs.thread_keyword(keyword);
                Self::InThread(*quantifier, keyword)
            }
            Condition::MinSize(size) => Self::MinSize(*size),
            Condition::MaxSize(size) => Self::MaxSize(*size),
            Condition::HasAttachment(is_wanted) => {
                needs.row = true;
                Self::HasAttachment(*is_wanted)
            }
            Condition::Text(..) | Condition::Header { .. } => {
                needs.texts.push(condition.clone());
                Self::Found(needs.texts.len() - 1)
            }
        }
    }

    /// Whether the tested properties can change while an email exists.
    pub(crate) fn is_mutable(&self) -> bool {
        match self {
            Self::And(parts) | Self::Or(parts) | Self::Not(parts) => parts.iter().any(Self::is_mutable),
            Self::InMailbox(_) | Self::InMailboxOtherThan(_) | Self::Keyword { .. } | Self::InThread(..) => {
                true
            }
            Self::Never
            | Self::Before(_)
            | Self::After(_)
            | Self::MinSize(_)
            | Self::MaxSize(_)
            | Self::HasAttachment(_)
            | Self::Found(_) => false,
        }
    }

    /// The tests that must all be true; nested conjunctions are flattened.
    pub(crate) fn conjuncts(&self) -> Vec<&Self> {
        match self {
            Self::And(parts) => parts.iter().flat_map(Self::conjuncts).collect(),
            other => vec![other],
        }
    }

    /// Whether it depends on the results of a text search.
    pub(crate) fn has_texts(&self) -> bool {
        match self {
            Self::And(parts) | Self::Or(parts) | Self::Not(parts) => parts.iter().any(Self::has_texts),
            other => matches!(other, Self::Found(_)),
        }
    }

    /// Whether an email passes.
    pub(crate) fn passes(&self, facts: &Facts<'_>) -> bool {
        match self {
            Self::And(parts) => parts.iter().all(|part| part.passes(facts)),
            Self::Or(parts) => parts.iter().any(|part| part.passes(facts)),
            Self::Not(parts) => !parts.iter().any(|part| part.passes(facts)),
            Self::Never => false,
            Self::InMailbox(id) => has(facts.properties, email::MAILBOX, *id),
            Self::InMailboxOtherThan(ids) => {
                let mut mailboxes = facts.properties.values(email::MAILBOX);
                mailboxes.any(|mailbox| !matches!(mailbox, Value::Number(id) if ids.contains(id)))
            }
            Self::Before(time) => received(facts.properties) < *time,
            Self::After(time) => received(facts.properties) >= *time,
            Self::MinSize(bytes) => size(facts.properties) >= *bytes,
            Self::MaxSize(bytes) => size(facts.properties) < *bytes,
            Self::HasAttachment(is_wanted) => facts.row.is_some_and(|row| row.has_attachment() == *is_wanted),
            Self::Keyword { keyword, is_wanted } => keyword.is_of(facts.properties) == *is_wanted,
            Self::InThread(quantifier, keyword) => facts.thread_has(*quantifier, *keyword),
            Self::Found(place) => {
                facts.found.get(*place).is_some_and(|found| found.received(facts.id).is_some())
            }
        }
    }
}

/// What is known about an email.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'f> {
    pub(crate) id: u64,
    pub(crate) properties: &'f Properties,
    pub(crate) row: Option<&'f Row>,
    pub(crate) threads: &'f ThreadFacts,
    pub(crate) found: &'f [Hits],
}

impl Facts<'_> {
    /// Whether the required number of emails of its thread have a keyword.
    pub(crate) fn thread_has(&self, quantifier: Quantifier, keyword: KeywordTest) -> bool {
        self.threads.has(thread(self.properties), quantifier, keyword)
    }
}

/// Which keywords the emails of threads have.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadFacts {
    threads: HashMap<u64, HashMap<KeywordTest, Holders>>,
}

/// Which emails of a thread have a keyword.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Holders {
    emails: usize,
    with: usize,
}

impl ThreadFacts {
    pub(crate) fn is_known(&self, thread: u64) -> bool {
        self.threads.contains_key(&thread)
    }

    /// Adds a thread without emails.
    pub(crate) fn begin(&mut self, thread: u64) {
        self.threads.entry(thread).or_default();
    }

    /// Adds an email to a thread that was begun.
    pub(crate) fn add(&mut self, properties: &Properties, keywords: &[KeywordTest]) {
        let Some(thread) = self.threads.get_mut(&thread(properties)) else { return };
        for keyword in keywords {
            let holders = thread.entry(*keyword).or_default();
            holders.emails += 1;
            holders.with += usize::from(keyword.is_of(properties));
        }
    }

    fn has(&self, thread: u64, quantifier: Quantifier, keyword: KeywordTest) -> bool {
        let holders = self.threads.get(&thread).and_then(|keywords| keywords.get(&keyword));
        let holders = holders.copied().unwrap_or_default();
        match quantifier {
            Quantifier::All => holders.with == holders.emails,
            Quantifier::Some => holders.with > 0,
            Quantifier::None => holders.with == 0,
        }
    }
}

fn has(properties: &Properties, property: Property, number: u64) -> bool {
    properties.values(property).any(|value| *value == Value::Number(number))
}

/// The only number of a property; 0 if the property is absent.
fn number(properties: &Properties, property: Property) -> u64 {
    match properties.values(property).next() {
        Some(Value::Number(number)) => *number,
        _ => 0,
    }
}

/// The thread of an email.
pub(crate) fn thread(properties: &Properties) -> u64 {
    number(properties, email::THREAD)
}

/// When an email was received, in seconds since 1970.
pub(crate) fn received(properties: &Properties) -> i64 {
    i64::try_from(number(properties, email::RECEIVED)).unwrap_or(i64::MAX)
}

/// The size of an email in bytes.
pub(crate) fn size(properties: &Properties) -> u64 {
    number(properties, email::SIZE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{JmapConfig, core::Creations};

    fn email_of(mailbox: u64, received: u64, thread: u64, keywords: &[u64], is_unseen: bool) -> Properties {
        let mut properties = Properties::default()
            .with(email::MAILBOX, mailbox)
            .with(email::RECEIVED, received)
            .with(email::THREAD, thread);
        for keyword in keywords {
            properties.add(email::KEYWORD, Value::Number(*keyword));
        }
        if is_unseen {
            properties.add(email::UNSEEN, Value::Number(1));
        }
        properties
    }

    fn passes(filter: serde_json::Value, properties: &Properties, of_thread: &[&Properties]) -> bool {
        let mut needs = Needs::default();
        let known = [("$flagged", Some(1)), ("$draft", Some(2)), ("$seen", None)];
        let keywords = known.map(|(name, number)| (name.to_owned(), KeywordTest::new(name, number)));
        let test = Test::new(
            &Filter::parse(&filter, &Creations::default(), &JmapConfig::default()).unwrap(),
            &keywords.into(),
            &mut needs,
        );
        let mut threads = ThreadFacts::default();
        threads.begin(thread(properties));
        for other in of_thread {
            threads.add(other, &needs.thread_keywords);
        }
        test.passes(&Facts { id: 1, properties, row: None, threads: &threads, found: &[] })
    }

    #[test]
    fn l3_empty_operators_are_true_false_and_true() {
        let email = email_of(1, 5, 9, &[], false);
        for (operator, expected) in [("AND", true), ("OR", false), ("NOT", true)] {
            let filter = json!({"operator": operator, "conditions": []});
            assert_eq!(passes(filter, &email, &[]), expected, "{operator}");
        }
        assert!(passes(json!({}), &email, &[]));
        let none = json!({"operator": "NOT", "conditions": [{"inMailbox": "m2"}, {"inMailbox": "m3"}]});
        assert!(passes(none, &email, &[]));
        let one = json!({"operator": "NOT", "conditions": [{"inMailbox": "m2"}, {"inMailbox": "m1"}]});
        assert!(!passes(one, &email, &[]));
    }

    #[test]
    fn eq1_conditions_on_mailboxes_times_and_keywords() {
        let email = email_of(1, 100, 9, &[1], true).with(email::MAILBOX, 2).with(email::SIZE, 50);
        let cases = [
            (json!({"inMailbox": "m2"}), true),
            (json!({"inMailbox": "m3"}), false),
            (json!({"inMailbox": "nobody"}), false),
            (json!({"inMailboxOtherThan": ["m1"]}), true),
            (json!({"inMailboxOtherThan": ["m1", "m2", "m3"]}), false),
            (json!({"inMailboxOtherThan": []}), true),
            (json!({"before": "1970-01-01T00:01:40Z"}), false),
            (json!({"before": "1970-01-01T00:01:40.5Z"}), true),
            (json!({"after": "1970-01-01T00:01:40Z"}), true),
            (json!({"after": "1970-01-01T00:01:40.5Z"}), false),
            (json!({"hasKeyword": "$FLAGGED"}), true),
            (json!({"notKeyword": "$flagged"}), false),
            (json!({"hasKeyword": "$seen"}), false),
            (json!({"notKeyword": "$seen"}), true),
            (json!({"hasKeyword": "never-used"}), false),
            (json!({"notKeyword": "never-used"}), true),
            (json!({"minSize": 50}), true),
            (json!({"minSize": 51}), false),
            (json!({"maxSize": 50}), false),
            (json!({"maxSize": 51}), true),
        ];
        for (filter, expected) in cases {
            assert_eq!(passes(filter.clone(), &email, &[]), expected, "{filter}");
        }
    }

    #[test]
    fn eq1_conditions_on_the_keywords_of_a_thread() {
        let flagged = email_of(1, 1, 9, &[1], false);
        let plain = email_of(2, 2, 9, &[], true);
        let other = email_of(2, 2, 8, &[1], false);
        let thread: &[&Properties] = &[&flagged, &plain, &other];
        let cases = [
            ("allInThreadHaveKeyword", "$flagged", false),
            ("someInThreadHaveKeyword", "$flagged", true),
            ("noneInThreadHaveKeyword", "$flagged", false),
            ("allInThreadHaveKeyword", "$seen", false),
            ("someInThreadHaveKeyword", "$seen", true),
            ("noneInThreadHaveKeyword", "$draft", true),
        ];
        for (condition, keyword, expected) in cases {
            assert_eq!(
                passes(json!({ condition: keyword }), &plain, thread),
                expected,
                "{condition} {keyword}"
            );
        }
        assert!(passes(json!({"allInThreadHaveKeyword": "$flagged"}), &flagged, &[&flagged]));
    }
}
