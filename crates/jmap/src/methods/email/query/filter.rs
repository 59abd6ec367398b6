//! The filter of Email/query (RFC 8621 §4.4.1), read from JSON into a tree.

use restante_core::RecordId;
use serde_json::{Map, Value};

use crate::{
    JmapConfig,
    core::{
        Creations, Id, IdType, MethodError,
        args::{INT_MAX, UtcDate},
    },
};

/// A filter: operators over conditions. A condition object with several members is the conjunction of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// True when all are true, and when there are none.
    And(Vec<Filter>),
    /// True when at least one is true.
    Or(Vec<Filter>),
    /// True when none is true.
    Not(Vec<Filter>),
    Is(Condition),
}

/// A condition on an email.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// `None` for an id that no mailbox can have.
    InMailbox(Option<RecordId>),
    InMailboxOtherThan(Vec<RecordId>),
    /// receivedAt is before this time, in seconds.
    Before(i64),
    /// receivedAt is this time or later, in seconds.
    After(i64),
    MinSize(u64),
    MaxSize(u64),
    HasKeyword(String),
    NotKeyword(String),
    InThread(Quantifier, String),
    HasAttachment(bool),
    Text(TextField, String),
    Header {
        name: String,
        text: Option<String>,
    },
}

/// How many emails of a thread must have a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Quantifier {
    All,
    Some,
    None,
}

/// Which text of an email is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TextField {
    /// Addresses, subject and bodies.
    Any,
    From,
    To,
    Cc,
    Bcc,
    Subject,
    Body,
}

impl Filter {
    /// Reads the `filter` argument; `null` matches everything.
    pub(crate) fn parse(
        value: &Value,
        creations: &Creations,
        config: &JmapConfig,
    ) -> Result<Self, MethodError> {
        if value.is_null() {
            return Ok(Self::And(Vec::new()));
        }
        let mut parser = Parser { creations, config, conditions: 0 };
        parser.filter(value, 1)
    }

    /// All conditions of the tree.
    pub(crate) fn conditions(&self) -> Vec<&Condition> {
        let mut found = Vec::new();
        self.visit(&mut |condition| found.push(condition));
        found
    }

    fn visit<'f>(&'f self, see: &mut impl FnMut(&'f Condition)) {
        match self {
            Self::And(parts) | Self::Or(parts) | Self::Not(parts) => {
                for part in parts {
                    part.visit(see);
                }
            }
            Self::Is(condition) => see(condition),
        }
    }
}

/// Counts conditions while reading. Each member of a condition object counts as one, and so does each operator.
struct Parser<'p> {
    creations: &'p Creations,
    config: &'p JmapConfig,
    conditions: usize,
}

impl Parser<'_> {
    fn filter(&mut self, value: &Value, depth: usize) -> Result<Filter, MethodError> {
        let depth_max = self.config.filter_depth_max.get();
        if depth > depth_max {
            return Err(unsupported(format!("operators are nested deeper than {depth_max}")));
        }
        let Value::Object(object) = value else {
            return Err(invalid("a filter is an object"));
        };
        match object.get("operator") {
            Some(operator) => self.operator(operator, object, depth),
            None => self.condition(object),
        }
    }

    fn operator(
        &mut self,
        operator: &Value,
        object: &Map<String, Value>,
        depth: usize,
    ) -> Result<Filter, MethodError> {
        self.count()?;
        let Some(Value::Array(conditions)) = object.get("conditions") else {
            return Err(invalid("a filter operator has an array of conditions"));
        };
        if object.len() > 2 {
            return Err(invalid("a filter operator has the members operator and conditions only"));
        }
        let mut parts = Vec::new();
        for condition in conditions {
            parts.push(self.filter(condition, depth + 1)?);
        }
        match operator.as_str() {
            Some("AND") => Ok(Filter::And(parts)),
            Some("OR") => Ok(Filter::Or(parts)),
            Some("NOT") => Ok(Filter::Not(parts)),
            _ => Err(invalid("a filter operator is AND, OR or NOT")),
        }
    }

    fn condition(&mut self, object: &Map<String, Value>) -> Result<Filter, MethodError> {
        let mut parts = Vec::new();
        for (name, value) in object {
            self.count()?;
            parts.push(Filter::Is(self.member(name, value)?));
        }
        match parts.len() {
            1 => parts.pop().ok_or_else(|| invalid("a filter is an object")),
            _ => Ok(Filter::And(parts)),
        }
    }

    /// One member of a condition object.
    fn member(&self, name: &str, value: &Value) -> Result<Condition, MethodError> {
        match name {
            "inMailbox" => Ok(Condition::InMailbox(self.mailbox(name, value)?)),
            "inMailboxOtherThan" => {
                let ids = value.as_array().ok_or_else(|| ill_typed(name, "an array of ids"))?;
                let mut mailboxes = Vec::with_capacity(ids.len());
                for id in ids {
                    // An id that no mailbox has excludes nothing.
                    mailboxes.extend(self.mailbox(name, id)?);
                }
                mailboxes.sort_unstable();
                mailboxes.dedup();
                Ok(Condition::InMailboxOtherThan(mailboxes))
            }
            _ => condition(name, value),
        }
    }

    /// A mailbox; `None` for an id that none can have.
    fn mailbox(&self, name: &str, value: &Value) -> Result<Option<RecordId>, MethodError> {
        let id = Id::read(string(name, value)?).ok_or_else(|| ill_typed(name, "an id"))?;
        Ok(self.creations.resolve(id.as_str()).and_then(|id| IdType::Mailbox.record(id)))
    }

    fn count(&mut self) -> Result<(), MethodError> {
        self.conditions += 1;
        let max = self.config.filter_conditions_max.get();
        if self.conditions > max {
            return Err(unsupported(format!("more than {max} conditions")));
        }
        Ok(())
    }
}

/// A member that does not name a mailbox.
fn condition(name: &str, value: &Value) -> Result<Condition, MethodError> {
    Ok(match name {
        "before" => Condition::Before(utc_date(name, value)?),
        "after" => Condition::After(utc_date(name, value)?),
        "minSize" => Condition::MinSize(unsigned(name, value)?),
        "maxSize" => Condition::MaxSize(unsigned(name, value)?),
        "hasKeyword" => Condition::HasKeyword(keyword(name, value)?),
        "notKeyword" => Condition::NotKeyword(keyword(name, value)?),
        "allInThreadHaveKeyword" => Condition::InThread(Quantifier::All, keyword(name, value)?),
        "someInThreadHaveKeyword" => Condition::InThread(Quantifier::Some, keyword(name, value)?),
        "noneInThreadHaveKeyword" => Condition::InThread(Quantifier::None, keyword(name, value)?),
        "hasAttachment" => {
            Condition::HasAttachment(value.as_bool().ok_or_else(|| ill_typed(name, "a boolean"))?)
        }
        "text" => Condition::Text(TextField::Any, string(name, value)?),
        "from" => Condition::Text(TextField::From, string(name, value)?),
        "to" => Condition::Text(TextField::To, string(name, value)?),
        "cc" => Condition::Text(TextField::Cc, string(name, value)?),
        "bcc" => Condition::Text(TextField::Bcc, string(name, value)?),
        "subject" => Condition::Text(TextField::Subject, string(name, value)?),
        "body" => Condition::Text(TextField::Body, string(name, value)?),
        "header" => header(value)?,
        _ => return Err(unsupported(format!("the condition {name} is not known"))),
    })
}

fn header(value: &Value) -> Result<Condition, MethodError> {
    let wrong = || invalid("header is an array of a field's name and, perhaps, a text");
    let parts = value.as_array().ok_or_else(wrong)?;
    let (name, text) = match parts.as_slice() {
        [Value::String(name)] => (name, None),
        [Value::String(name), Value::String(text)] => (name, Some(text.clone())),
        _ => return Err(wrong()),
    };
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
    if !is_name {
        return Err(invalid("header begins with the name of a field"));
    }
    Ok(Condition::Header { name: name.to_ascii_lowercase(), text })
}

fn string(name: &str, value: &Value) -> Result<String, MethodError> {
    value.as_str().map(str::to_owned).ok_or_else(|| ill_typed(name, "a string"))
}

/// Keywords are compared in lower case (RFC 8621 §4.1.1).
fn keyword(name: &str, value: &Value) -> Result<String, MethodError> {
    Ok(string(name, value)?.to_ascii_lowercase())
}

fn unsigned(name: &str, value: &Value) -> Result<u64, MethodError> {
    let number = value.as_u64().filter(|number| *number <= INT_MAX);
    number.ok_or_else(|| ill_typed(name, "an unsigned integer"))
}

/// A UTCDate in whole seconds. receivedAt has whole seconds, so a fraction is rounded up, for `before` and for `after`.
fn utc_date(name: &str, value: &Value) -> Result<i64, MethodError> {
    let text = value.as_str().unwrap_or_default();
    let UtcDate(seconds) = UtcDate::parse(text).ok_or_else(|| ill_typed(name, "a UTCDate"))?;
    Ok(seconds + i64::from(text.contains('.')))
}

fn ill_typed(name: &str, wanted: &str) -> MethodError {
    invalid(format!("the condition {name} is {wanted}"))
}

fn invalid(why: impl Into<String>) -> MethodError {
    MethodError::InvalidArguments(why.into())
}

fn unsupported(why: impl Into<String>) -> MethodError {
    MethodError::UnsupportedFilter(why.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(filter: &Value) -> Result<Filter, MethodError> {
        let mut creations = Creations::default();
        creations.insert("made", "m77");
        Filter::parse(filter, &creations, &JmapConfig::default())
    }

    fn is_invalid(filter: &Value) -> bool {
        matches!(parse(filter), Err(MethodError::InvalidArguments(_)))
    }

    fn is_unsupported(filter: &Value) -> bool {
        matches!(parse(filter), Err(MethodError::UnsupportedFilter(_)))
    }

    #[test]
    fn l3_operators_nest_and_members_of_a_condition_are_a_conjunction() {
        let filter = json!({"operator": "OR", "conditions": [
            {"hasKeyword": "$Flagged", "minSize": 5},
            {"operator": "NOT", "conditions": [{}]},
        ]});
        let flagged = Filter::Is(Condition::HasKeyword("$flagged".to_owned()));
        let expected = Filter::Or(vec![
            Filter::And(vec![flagged, Filter::Is(Condition::MinSize(5))]),
            Filter::Not(vec![Filter::And(Vec::new())]),
        ]);
        assert_eq!(parse(&filter).unwrap(), expected);
        assert_eq!(parse(&Value::Null).unwrap(), Filter::And(Vec::new()));
    }

    #[test]
    fn l3_unknown_operators_and_ill_typed_conditions_are_invalid_arguments() {
        let wrong = [
            json!({"operator": "XOR", "conditions": []}),
            json!({"operator": "and", "conditions": []}),
            json!({"operator": 1, "conditions": []}),
            json!({"operator": "AND"}),
            json!({"operator": "AND", "conditions": {}}),
            json!({"operator": "AND", "conditions": [], "text": "a"}),
            json!({"operator": "AND", "conditions": [null]}),
            json!([]),
            json!("inMailbox"),
            json!({"inMailbox": null}),
            json!({"inMailbox": ""}),
            json!({"inMailbox": "a b"}),
            json!({"inMailboxOtherThan": "m1"}),
            json!({"before": "2020-01-01"}),
            json!({"before": 5}),
            json!({"minSize": -1}),
            json!({"maxSize": 1.5}),
            json!({"maxSize": 1u64 << 53}),
            json!({"hasKeyword": ["$seen"]}),
            json!({"hasAttachment": "true"}),
            json!({"text": 1}),
        ];
        for filter in wrong {
            assert!(is_invalid(&filter), "{filter}");
        }
    }

    #[test]
    fn l3_unknown_conditions_and_too_deep_filters_are_unsupported() {
        assert!(is_unsupported(&json!({"colour": "red"})));
        let mut deep = json!({});
        for _ in 1..16 {
            deep = json!({"operator": "AND", "conditions": [deep]});
        }
        assert!(parse(&deep).is_ok());
        assert!(is_unsupported(&json!({"operator": "AND", "conditions": [deep]})));
        let wide = |count: usize| json!({"operator": "OR", "conditions": vec![json!({"text": "a"}); count]});
        assert!(parse(&wide(99)).is_ok());
        assert!(is_unsupported(&wide(100)));
    }

    #[test]
    fn eq1_header_has_a_name_and_at_most_one_text() {
        let header = |value: Value| json!({ "header": value });
        let parsed = parse(&header(json!(["X-Mailer", "kube"]))).unwrap();
        let expected = Condition::Header { name: "x-mailer".to_owned(), text: Some("kube".to_owned()) };
        assert_eq!(parsed, Filter::Is(expected));
        assert!(parse(&header(json!(["X-Mailer"]))).is_ok());
        for wrong in
            [json!([]), json!(["a", "b", "c"]), json!(["a", null]), json!([""]), json!(["a:b"]), json!("a")]
        {
            assert!(is_invalid(&header(wrong.clone())), "{wrong}");
        }
    }

    #[test]
    fn eq1_a_mailbox_that_cannot_exist_is_no_error() {
        assert_eq!(parse(&json!({"inMailbox": "nobody"})).unwrap(), Filter::Is(Condition::InMailbox(None)));
        assert_eq!(
            parse(&json!({"inMailboxOtherThan": ["m3", "nobody", "m3"]})).unwrap(),
            Filter::Is(Condition::InMailboxOtherThan(vec![RecordId(3)]))
        );
    }

    #[test]
    fn r3_a_filter_names_a_mailbox_that_was_just_made() {
        let of = |id: &str| parse(&json!({ "inMailbox": id })).unwrap();
        assert_eq!(of("#made"), Filter::Is(Condition::InMailbox(Some(RecordId(77)))));
        assert_eq!(of("#other"), Filter::Is(Condition::InMailbox(None)));
    }
}
