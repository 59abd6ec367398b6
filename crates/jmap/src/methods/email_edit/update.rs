//! A patch of an email: only its mailboxes and its keywords can change (ES4, T6).

use std::collections::BTreeSet;

use restante_mail::parse_keyword;
use restante_records::RecordId;
use serde_json::{Map, Value};

use super::{draft::Invalid, placement};
use crate::core::{Creations, IdType, Patch, SetError};

type MailPatch<T> = restante_mail::Patch<T>;

/// What a patch changes.
#[derive(Debug, PartialEq)]
pub(super) struct Update {
    pub(super) mailboxes: MailPatch<RecordId>,
    pub(super) keywords: MailPatch<String>,
    /// The paths that lead to other properties. Their values must be the ones that the email has.
    pub(super) others: Patch,
}

impl Update {
    /// Reads a patch; invalid values for `mailboxIds` and `keywords` are added to `invalid`. The error is that of a path.
    pub(super) fn read(
        patch: Map<String, Value>,
        creations: &Creations,
        invalid: &mut Invalid,
    ) -> Result<Self, SetError> {
        let (mutable, others) = Patch::read(patch)?.partition(&["mailboxIds", "keywords"]);
        let mut mailboxes = Parts::default();
        let mut keywords = Parts::default();
        for (path, value) in mutable.entries() {
            let is_good = match path {
                [name] if name == "keywords" => {
                    let none = value.is_null().then(Vec::new);
                    keywords.set_whole(none.or_else(|| placement::keywords(value)))
                }
                [name, keyword] if name == "keywords" => {
                    keywords.set_part(parse_keyword(keyword).ok(), value)
                }
                [_] => {
                    mailboxes.set_whole(placement::mailboxes(value, creations).filter(|ids| !ids.is_empty()))
                }
                [_, id] => {
                    let mailbox = creations.resolve(id).and_then(|id| IdType::Mailbox.record(id));
                    mailboxes.set_part(mailbox, value)
                }
                _ => {
                    let path = path.join("/");
                    return Err(SetError::invalid_patch(format!("{path} leads through no object")));
                }
            };
            match path.first() {
                Some(name) if !is_good => {
                    invalid.add(name, "must be a set of ids or keywords, each with the value true");
                }
                _ => {}
            }
        }
        Ok(Self { mailboxes: mailboxes.patch(), keywords: keywords.patch(), others })
    }
}

/// How a set changes: a patch has either the whole set or members of it, because the paths of both would overlap.
struct Parts<T> {
    whole: Option<BTreeSet<T>>,
    add: BTreeSet<T>,
    remove: BTreeSet<T>,
}

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self { whole: None, add: BTreeSet::new(), remove: BTreeSet::new() }
    }
}

impl<T: Ord> Parts<T> {
    /// Replaces the set; false when the value is not a set.
    fn set_whole(&mut self, whole: Option<Vec<T>>) -> bool {
        let is_good = whole.is_some();
        self.whole = whole.map(|values| values.into_iter().collect());
        is_good
    }

    /// Adds a member for true and removes it for null; false for another value, and when a member that can't exist would be added.
    fn set_part(&mut self, member: Option<T>, value: &Value) -> bool {
        match (value, member) {
            (Value::Bool(true), Some(member)) => self.add.insert(member),
            (Value::Null, Some(member)) => self.remove.insert(member),
            // T6: removing an absent member is no error.
            (Value::Null, None) => return true,
            _ => return false,
        };
        true
    }

    fn patch(self) -> MailPatch<T> {
        match self.whole {
            Some(whole) => MailPatch::Whole(whole),
            None if self.add.is_empty() && self.remove.is_empty() => MailPatch::Keep,
            None => MailPatch::Parts { add: self.add, remove: self.remove },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(patch: Value) -> Result<Update, &'static str> {
        let mut creations = Creations::default();
        creations.insert("k", "m7");
        let mut invalid = Invalid::default();
        let read = Update::read(patch.as_object().unwrap().clone(), &creations, &mut invalid);
        let update = read.map_err(|error| error.name())?;
        if invalid.is_empty() { Ok(update) } else { Err("invalidProperties") }
    }

    fn keywords(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn es4_parts_add_with_true_and_remove_with_null() {
        let update = read(json!({
            "keywords/$Flagged": true, "keywords/$seen": null, "keywords/not possible": null,
            "mailboxIds/m1": true, "mailboxIds/#k": true, "mailboxIds/m2": null, "mailboxIds/nothing": null,
        }))
        .unwrap();
        let parts = MailPatch::Parts { add: keywords(&["$flagged"]), remove: keywords(&["$seen"]) };
        assert_eq!(update.keywords, parts);
        let add = BTreeSet::from([RecordId(1), RecordId(7)]);
        assert_eq!(update.mailboxes, MailPatch::Parts { add, remove: BTreeSet::from([RecordId(2)]) });
        assert!(update.others.is_empty());
    }

    #[test]
    fn es4_whole_sets_replace_and_null_is_no_keyword() {
        let update = read(json!({"keywords": {"A": true}, "mailboxIds": {"m3": true}})).unwrap();
        assert_eq!(update.keywords, MailPatch::Whole(keywords(&["a"])));
        assert_eq!(update.mailboxes, MailPatch::Whole(BTreeSet::from([RecordId(3)])));
        let update = read(json!({"keywords": null})).unwrap();
        assert_eq!((update.keywords, update.mailboxes), (MailPatch::Whole(keywords(&[])), MailPatch::Keep));
    }

    #[test]
    fn es4_other_values_are_invalid() {
        for patch in [
            json!({"keywords/a": false}),
            json!({"keywords/a": 1}),
            json!({"keywords/a b": true}),
            json!({"keywords": {"a": false}}),
            json!({"keywords": 1}),
            json!({"mailboxIds": {}}),
            json!({"mailboxIds": null}),
            json!({"mailboxIds/m1": false}),
            json!({"mailboxIds/x": true}),
            json!({"mailboxIds/#unknown": true}),
        ] {
            assert_eq!(read(patch.clone()), Err("invalidProperties"), "{patch}");
        }
    }

    #[test]
    fn t6_paths_that_overlap_or_lead_through_values_are_invalid_patches() {
        for patch in [
            json!({"keywords": {}, "keywords/a": true}),
            json!({"keywords/a/b": true}),
            json!({"mailboxIds/m1/x": null}),
            json!({"subject": "a", "subject/b": "c"}),
        ] {
            assert_eq!(read(patch.clone()), Err("invalidPatch"), "{patch}");
        }
        let update = read(json!({"keywords/a~1b": true, "subject": "same"})).unwrap();
        assert_eq!(update.keywords, MailPatch::Parts { add: keywords(&["a/b"]), remove: keywords(&[]) });
        assert_eq!(update.others.entries().count(), 1);
    }
}
