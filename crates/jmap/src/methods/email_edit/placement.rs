//! The mailboxes, the keywords and the time of an email: what creations, imports and copies have in common.

use restante_mail::parse_keyword;
use restante_records::RecordId;
use serde_json::{Map, Value};

use super::draft::Invalid;
use crate::core::{Creations, IdType, args::UtcDate};

/// The mutable properties of an email, and when it was received.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Placement {
    /// At least one, when nothing was invalid.
    pub(super) mailboxes: Vec<RecordId>,
    /// In lower case; `None` when not given.
    pub(super) keywords: Option<Vec<String>>,
    /// In seconds since 1970; `None` when not given.
    pub(super) received: Option<i64>,
}

impl Placement {
    /// Reads `mailboxIds`, `keywords` and `receivedAt` of an object; everything that is invalid is added to `invalid`.
    pub(super) fn read(object: &Map<String, Value>, creations: &Creations, invalid: &mut Invalid) -> Self {
        let mut placement = Self::default();
        match object.get("mailboxIds").and_then(|ids| mailboxes(ids, creations)) {
            Some(mailboxes) if !mailboxes.is_empty() => placement.mailboxes = mailboxes,
            _ => invalid.add("mailboxIds", "must name one mailbox at least, each with the value true"),
        }
        if let Some(value) = object.get("keywords").filter(|value| !value.is_null()) {
            placement.keywords = keywords(value);
            if placement.keywords.is_none() {
                invalid.add("keywords", "must be keywords, each with the value true");
            }
        }
        if let Some(value) = object.get("receivedAt").filter(|value| !value.is_null()) {
            let time = value.as_str().and_then(UtcDate::parse).map(|date| date.0);
            // Records have no times before 1970.
            placement.received = time.filter(|seconds| *seconds >= 0);
            if placement.received.is_none() {
                invalid.add("receivedAt", "must be a time as 2014-10-30T06:12:00Z, not before 1970");
            }
        }
        placement
    }
}

/// The mailboxes of a whole set of ids or `#` and creation ids.
pub(super) fn mailboxes(set: &Value, creations: &Creations) -> Option<Vec<RecordId>> {
    let mut mailboxes = Vec::new();
    for (id, value) in set.as_object()? {
        if *value != Value::Bool(true) {
            return None;
        }
        let mailbox = IdType::Mailbox.record(creations.resolve(id)?)?;
        if !mailboxes.contains(&mailbox) {
            mailboxes.push(mailbox);
        }
    }
    Some(mailboxes)
}

/// The keywords of a whole set, in lower case.
pub(super) fn keywords(set: &Value) -> Option<Vec<String>> {
    let mut keywords = Vec::new();
    for (name, value) in set.as_object()? {
        let keyword = parse_keyword(name).ok().filter(|_| *value == Value::Bool(true))?;
        if !keywords.contains(&keyword) {
            keywords.push(keyword);
        }
    }
    Some(keywords)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(object: Value) -> Result<Placement, Vec<String>> {
        let mut creations = Creations::default();
        creations.insert("k", "m7");
        creations.insert("e", "e7");
        let mut invalid = Invalid::default();
        let placement = Placement::read(object.as_object().unwrap(), &creations, &mut invalid);
        if invalid.is_empty() { Ok(placement) } else { Err(invalid.properties) }
    }

    #[test]
    fn e1_keywords_and_mailboxes_are_sets_of_true() {
        let placement =
            read(json!({"mailboxIds": {"m1": true, "#k": true, "m7": true}, "keywords": {"$Seen": true}}));
        let expected = Placement {
            mailboxes: vec![RecordId(7), RecordId(1)],
            keywords: Some(vec!["$seen".to_owned()]),
            received: None,
        };
        assert_eq!(placement, Ok(expected));
        let placement =
            read(json!({"mailboxIds": {"m1": true}, "keywords": null, "receivedAt": "1970-01-01T00:01:00Z"}));
        assert_eq!(placement.map(|placement| (placement.keywords, placement.received)), Ok((None, Some(60))));
    }

    #[test]
    fn es1_an_email_needs_a_mailbox_and_valid_keywords() {
        for ids in
            [json!({}), json!(null), json!([]), json!({"m1": false}), json!({"x": true}), json!({"#e": true})]
        {
            assert_eq!(read(json!({"mailboxIds": ids})), Err(vec!["mailboxIds".to_owned()]), "{ids}");
        }
        assert_eq!(read(json!({"mailboxIds": {"#unknown": true}})), Err(vec!["mailboxIds".to_owned()]));
        for keywords in [json!([]), json!({"a": false}), json!({"a b": true}), json!({"\\Deleted": true})] {
            let email = json!({"mailboxIds": {"m1": true}, "keywords": keywords});
            assert_eq!(read(email), Err(vec!["keywords".to_owned()]), "{keywords}");
        }
        let email = json!({"mailboxIds": {}, "keywords": 1, "receivedAt": "1970-01-01"});
        assert_eq!(read(email).unwrap_err(), ["mailboxIds", "keywords", "receivedAt"]);
    }

    #[test]
    fn es1_a_time_before_1970_is_refused_and_not_changed() {
        let email = |time: &str| json!({"mailboxIds": {"m1": true}, "receivedAt": time});
        assert_eq!(read(email("1970-01-01T00:00:00Z")).unwrap().received, Some(0));
        assert_eq!(read(email("1969-12-31T23:59:59Z")), Err(vec!["receivedAt".to_owned()]));
    }
}
