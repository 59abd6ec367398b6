//! The sort of Email/query (RFC 8621 §4.4.2): comparators, and the keys that emails are compared by.

use std::cmp::Ordering;

use serde_json::Value;
use unicode_normalization::UnicodeNormalization;

use crate::core::MethodError;

use super::{filter::Quantifier, list::Entry};

/// The most comparators of a sort.
pub(crate) const COMPARATORS_MAX: usize = 16;

/// Only this many characters of a text are compared; texts with equal beginnings are ordered by the next comparator.
const TEXT_KEY_CHARS_MAX: usize = 128;

/// The properties that emails can be sorted by, as the session object lists them (`emailQuerySortOptions`).
pub(crate) const SORT_OPTIONS: [&str; 9] = [
    "receivedAt",
    "size",
    "from",
    "to",
    "subject",
    "sentAt",
    "hasKeyword",
    "allInThreadHaveKeyword",
    "someInThreadHaveKeyword",
];

/// One comparator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Comparator {
    pub(crate) by: SortBy,
    pub(crate) is_ascending: bool,
    pub(crate) collation: Collation,
}

/// The property that is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SortBy {
    ReceivedAt,
    SentAt,
    Size,
    From,
    To,
    Subject,
    HasKeyword(String),
    InThread(Quantifier, String),
}

/// How texts are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Collation {
    #[default]
    Unicode,
    AsciiCase,
    AsciiNumeric,
    Octet,
}

/// The order of a result: comparators in decreasing importance; then ids, in the direction of the last comparator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sort {
    comparators: Vec<Comparator>,
}

/// The key of an email for one comparator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Number(i64),
    Text(Box<str>),
}

/// The keys of an email for all comparators, and its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// For a sort by one number, the most common case.
    One(i64),
    Many(Box<[Key]>),
}

impl Sort {
    /// Reads the `sort` argument; the default is newest first.
    pub(crate) fn parse(value: &Value) -> Result<Self, MethodError> {
        let values = match value {
            Value::Null => &[][..],
            Value::Array(values) => values.as_slice(),
            _ => return Err(invalid("sort is an array of comparators")),
        };
        if values.len() > COMPARATORS_MAX {
            return Err(unsupported(format!("more than {COMPARATORS_MAX} comparators")));
        }
        let mut comparators = Vec::with_capacity(values.len().max(1));
        for value in values {
            comparators.push(Comparator::parse(value)?);
        }
        if comparators.is_empty() {
            let (by, collation) = (SortBy::ReceivedAt, Collation::default());
            comparators.push(Comparator { by, is_ascending: false, collation });
        }
        Ok(Self { comparators })
    }

    pub(crate) fn comparators(&self) -> &[Comparator] {
        &self.comparators
    }

    /// Whether receivedAt alone decides, so that an index has the order; if so, whether the order ascends.
    pub(crate) fn by_received_alone(&self) -> Option<bool> {
        match self.comparators.as_slice() {
            [Comparator { by: SortBy::ReceivedAt, is_ascending, .. }] => Some(*is_ascending),
            _ => None,
        }
    }

    /// Whether the compared properties can change while an email exists.
    pub(crate) fn is_mutable(&self) -> bool {
        let is_mutable = |by: &SortBy| matches!(by, SortBy::HasKeyword(_) | SortBy::InThread(..));
        self.comparators.iter().any(|comparator| is_mutable(&comparator.by))
    }

    /// The order of two entries of the result.
    pub(crate) fn order(&self, left: &Entry, right: &Entry) -> Ordering {
        self.compare((&left.keys, left.id), (&right.keys, right.id))
    }

    /// The order of two emails in the result.
    pub(crate) fn compare(&self, left: (&Keys, u64), right: (&Keys, u64)) -> Ordering {
        let mut last_ascends = true;
        for (place, comparator) in self.comparators.iter().enumerate() {
            last_ascends = comparator.is_ascending;
            let order = directed(compare_at(left.0, right.0, place), comparator.is_ascending);
            if order.is_ne() {
                return order;
            }
        }
        directed(left.1.cmp(&right.1), last_ascends)
    }
}

fn compare_at(left: &Keys, right: &Keys, place: usize) -> Ordering {
    match (left, right) {
        (Keys::One(left), Keys::One(right)) => left.cmp(right),
        (Keys::Many(left), Keys::Many(right)) => left.get(place).cmp(&right.get(place)),
        // All keys of one sort have the same variant.
        (Keys::One(_), Keys::Many(_)) => Ordering::Less,
        (Keys::Many(_), Keys::One(_)) => Ordering::Greater,
    }
}

fn directed(order: Ordering, is_ascending: bool) -> Ordering {
    if is_ascending { order } else { order.reverse() }
}

impl Comparator {
    fn parse(value: &Value) -> Result<Self, MethodError> {
        let object = value.as_object().ok_or_else(|| invalid("a comparator is an object"))?;
        let property = object.get("property").and_then(Value::as_str);
        let property = property.ok_or_else(|| invalid("a comparator has a property"))?;
        let mut is_ascending = true;
        let mut collation = Collation::default();
        let mut keyword = None;
        for (name, value) in object {
            match name.as_str() {
                "property" => {}
                "isAscending" => {
                    is_ascending = value.as_bool().ok_or_else(|| invalid("isAscending is a boolean"))?;
                }
                "collation" => {
                    let name = value.as_str().ok_or_else(|| invalid("collation is a string"))?;
                    collation = Collation::parse(name)?;
                }
                "keyword" => {
                    let name = value.as_str().ok_or_else(|| invalid("keyword is a string"))?;
                    keyword = Some(name.to_ascii_lowercase());
                }
                other => return Err(invalid(format!("a comparator has no member {other}"))),
            }
        }
        Ok(Self { by: SortBy::parse(property, keyword)?, is_ascending, collation })
    }

    /// The key of a text for this comparator.
    pub(crate) fn text_key(&self, text: &str) -> Key {
        self.collation.key(text)
    }
}

impl SortBy {
    fn parse(property: &str, keyword: Option<String>) -> Result<Self, MethodError> {
        let keyword =
            || keyword.clone().ok_or_else(|| invalid(format!("a sort by {property} has a keyword")));
        Ok(match property {
            "receivedAt" => Self::ReceivedAt,
            "sentAt" => Self::SentAt,
            "size" => Self::Size,
            "from" => Self::From,
            "to" => Self::To,
            "subject" => Self::Subject,
            "hasKeyword" => Self::HasKeyword(keyword()?),
            "allInThreadHaveKeyword" => Self::InThread(Quantifier::All, keyword()?),
            "someInThreadHaveKeyword" => Self::InThread(Quantifier::Some, keyword()?),
            other => return Err(unsupported(format!("emails are not sorted by {other}"))),
        })
    }
}

impl Collation {
    fn parse(name: &str) -> Result<Self, MethodError> {
        Ok(match name {
            "i;unicode-casemap" => Self::Unicode,
            "i;ascii-casemap" => Self::AsciiCase,
            "i;ascii-numeric" => Self::AsciiNumeric,
            "i;octet" => Self::Octet,
            other => return Err(unsupported(format!("the collation {other} is not known"))),
        })
    }

    /// A key whose order is that of the collation.
    fn key(self, text: &str) -> Key {
        let cut = || text.chars().take(TEXT_KEY_CHARS_MAX);
        match self {
            Self::Unicode => {
                let folded = cut().flat_map(char::to_uppercase).nfkd().take(2 * TEXT_KEY_CHARS_MAX);
                Key::Text(folded.collect::<String>().into())
            }
            Self::AsciiCase => Key::Text(cut().map(|c| c.to_ascii_uppercase()).collect::<String>().into()),
            Self::Octet => Key::Text(cut().collect::<String>().into()),
            Self::AsciiNumeric => Key::Number(leading_number(text)),
        }
    }
}

/// The number at the beginning of a text. A text without one sorts after all numbers (RFC 4790 §9.1.1).
fn leading_number(text: &str) -> i64 {
    let digits = text.bytes().take_while(u8::is_ascii_digit);
    let mut number = None;
    for digit in digits {
        let value = i64::from(digit - b'0');
        number = Some(number.unwrap_or(0_i64).saturating_mul(10).saturating_add(value));
    }
    number.unwrap_or(i64::MAX)
}

fn invalid(why: impl Into<String>) -> MethodError {
    MethodError::InvalidArguments(why.into())
}

fn unsupported(why: impl Into<String>) -> MethodError {
    MethodError::UnsupportedSort(why.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys(numbers: &[i64]) -> Keys {
        Keys::Many(numbers.iter().map(|number| Key::Number(*number)).collect())
    }

    #[test]
    fn l4_unknown_properties_and_collations_are_unsupported() {
        let unsupported =
            [json!([{"property": "preview"}]), json!([{"property": "subject", "collation": "i;basic"}])];
        for sort in unsupported {
            assert!(matches!(Sort::parse(&sort), Err(MethodError::UnsupportedSort(_))), "{sort}");
        }
        let invalid = [
            json!({}),
            json!([5]),
            json!([{}]),
            json!([{"property": 1}]),
            json!([{"property": "size", "isAscending": "yes"}]),
            json!([{"property": "size", "collation": 1}]),
            json!([{"property": "size", "direction": "up"}]),
        ];
        for sort in invalid {
            assert!(matches!(Sort::parse(&sort), Err(MethodError::InvalidArguments(_))), "{sort}");
        }
    }

    #[test]
    fn eq3_keyword_sorts_need_a_keyword() {
        for property in ["hasKeyword", "allInThreadHaveKeyword", "someInThreadHaveKeyword"] {
            let without = Sort::parse(&json!([{ "property": property }]));
            assert!(matches!(without, Err(MethodError::InvalidArguments(_))), "{property}");
            assert!(Sort::parse(&json!([{"property": property, "keyword": "$seen"}])).is_ok());
        }
    }

    #[test]
    fn eq3_all_sort_options_are_known() {
        for property in SORT_OPTIONS {
            assert!(Sort::parse(&json!([{"property": property, "keyword": "a"}])).is_ok(), "{property}");
        }
    }

    #[test]
    fn eq3_without_a_sort_the_newest_come_first() {
        for none in [Value::Null, json!([])] {
            let sort = Sort::parse(&none).unwrap();
            assert_eq!(sort.by_received_alone(), Some(false));
            assert!(sort.compare((&Keys::One(2), 1), (&Keys::One(1), 2)).is_lt());
            assert!(sort.compare((&Keys::One(1), 2), (&Keys::One(1), 1)).is_lt(), "ties descend, too");
        }
    }

    #[test]
    fn l4_ascending_is_the_default_and_ties_are_ordered_by_id() {
        let sort = Sort::parse(&json!([{"property": "size"}, {"property": "sentAt", "isAscending": false}]))
            .unwrap();
        assert!(sort.compare((&keys(&[1, 0]), 9), (&keys(&[2, 0]), 1)).is_lt());
        assert!(sort.compare((&keys(&[1, 5]), 9), (&keys(&[1, 4]), 1)).is_lt());
        assert!(sort.compare((&keys(&[1, 5]), 2), (&keys(&[1, 5]), 1)).is_lt());
        assert!(sort.compare((&keys(&[1, 5]), 1), (&keys(&[1, 5]), 1)).is_eq());
    }

    #[test]
    fn l4_the_default_collation_folds_case_beyond_ascii() {
        let key = |collation: Collation, text: &str| collation.key(text);
        assert_eq!(key(Collation::Unicode, "straße ÉTÉ"), key(Collation::Unicode, "STRASSE été"));
        assert_eq!(key(Collation::AsciiCase, "abc"), key(Collation::AsciiCase, "ABC"));
        assert_ne!(key(Collation::AsciiCase, "é"), key(Collation::AsciiCase, "É"));
        assert_ne!(key(Collation::Octet, "a"), key(Collation::Octet, "A"));
        assert!(key(Collation::AsciiNumeric, "9 lives") < key(Collation::AsciiNumeric, "10 lives"));
        assert!(key(Collation::AsciiNumeric, "10") < key(Collation::AsciiNumeric, "ten"));
        assert_eq!(leading_number(&"9".repeat(40)), i64::MAX);
    }
}
