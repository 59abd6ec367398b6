//! The function that the fuzz target of filters and sorts runs.

use restante_core::RecordId;
use restante_mail::email;
use restante_records::Properties;
use restante_search::{Document, Field, Hit, marks, matches};
use serde_json::Value;

use crate::{JmapConfig, core::Creations};

use super::{
    filter::{Condition, Filter},
    plan::Candidates,
    sort::{Keys, Sort},
    test::{Facts, KeywordTest, KeywordTests, Needs, Test, ThreadFacts},
    text::{self, Hits},
};

/// Reads a filter and a sort from one JSON array, and tests one email. An email that does not pass a filter must pass its negation.
///
/// # Panics
/// When something panics, or an email passes both a filter and its negation, or neither.
pub(crate) fn filter(bytes: &[u8]) {
    let Ok((filter, sort)) = serde_json::from_slice::<(Value, Value)>(bytes) else { return };
    if let Ok(sort) = Sort::parse(&sort) {
        let order = sort.compare((&Keys::One(1), 1), (&Keys::One(1), 2));
        assert!(order.is_ne(), "two emails have an order");
    }
    let Ok(filter) = Filter::parse(&filter, &Creations::default(), &JmapConfig::default()) else { return };
    let mut keywords = KeywordTests::default();
    for condition in filter.conditions() {
        if let Condition::HasKeyword(name) = condition {
            keywords.insert(name.clone(), KeywordTest::new(name, Some(1)));
        }
    }
    let mut needs = Needs::default();
    let test = Test::new(&filter, &keywords, &mut needs);
    let properties =
        Properties::default().with(email::MAILBOX, 1).with(email::RECEIVED, 100).with(email::KEYWORD, 1);
    let found = vec![Hits::from(vec![Hit { id: RecordId(1), received: 100 }]); needs.texts.len()];
    let facts =
        Facts { id: 1, properties: &properties, row: None, threads: &ThreadFacts::default(), found: &found };
    let passes = test.passes(&facts);
    assert!(!passes || Candidates::of(&test) != Candidates::Nobody, "who passes is a candidate");
    assert_ne!(passes, Test::Not(vec![test]).passes(&facts));
    if let Ok(texts) = text::of_filter(&filter) {
        let document = Document { subject: "a \u{e9} 'b' <c>".to_owned(), ..Document::default() };
        matches(&document, &texts);
        let marks = marks(Field::Subject, &document.subject, &texts);
        assert!(marks.iter().all(|mark| document.subject.get(mark.clone()).is_some()));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn condition() -> impl Strategy<Value = String> {
        let value = "(null|true|-1|7|\"m1\"|\"\\$seen\"|\"1970-01-01T00:01:40Z\"|\\[\"m1\"\\]|\\[\"a\",\"b\"\\]|\"'a \\\\\\\\\"|\"e\")";
        let name = "(inMailbox|inMailboxOtherThan|before|after|minSize|hasKeyword|notKeyword|someInThreadHaveKeyword|hasAttachment|\
                    text|body|header|other)";
        proptest::collection::vec((name, value), 0..3).prop_map(|members| {
            let members: Vec<String> =
                members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
            format!("{{{}}}", members.join(","))
        })
    }

    fn filter() -> impl Strategy<Value = String> {
        condition().prop_recursive(4, 20, 3, |inner| {
            (proptest::collection::vec(inner, 0..3), "(AND|OR|NOT|XOR)").prop_map(|(conditions, operator)| {
                format!("{{\"operator\":\"{operator}\",\"conditions\":[{}]}}", conditions.join(","))
            })
        })
    }

    proptest! {
        #[test]
        fn l3_no_filter_panics_and_each_email_passes_it_or_its_negation(filter in filter()) {
            super::filter(format!("[{filter},null]").as_bytes());
        }
    }
}
