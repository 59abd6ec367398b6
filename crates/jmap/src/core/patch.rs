//! Patches: paths into an object, each with its new value (RFC 8620 §5.3).

use serde_json::{Map, Value};

use super::{SetError, reference::unescape};

/// A patch with split paths, in ascending order; no path is a prefix of another one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Patch(Vec<(Vec<String>, Value)>);

impl Patch {
    /// Reads a `PatchObject`.
    ///
    /// # Errors
    /// `invalidPatch` when a path is a prefix of another one, or has an invalid escape.
    pub(crate) fn read(object: Map<String, Value>) -> Result<Self, SetError> {
        let mut entries = Vec::with_capacity(object.len());
        for (path, value) in object {
            entries.push((split(&path)?, value));
        }
        entries.sort_by(|(path, _), (other, _)| path.cmp(other));
        // A prefix comes directly before the first path that begins with it: everything between them begins with it, too.
        let mut previous: Option<&[String]> = None;
        for (path, _) in &entries {
            if previous.is_some_and(|previous| path.starts_with(previous)) {
                return Err(SetError::invalid_patch(format!("two paths overlap at {}", path.join("/"))));
            }
            previous = Some(path);
        }
        Ok(Self(entries))
    }

    /// The paths, ascending, each with its value; null removes, or sets the default.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&[String], &Value)> {
        self.0.iter().map(|(path, value)| (path.as_slice(), value))
    }

    /// Whether it changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Splits the patch: the paths into these properties, and all others.
    pub(crate) fn partition(self, names: &[&str]) -> (Self, Self) {
        let leads_into = |path: &[String]| path.first().is_some_and(|first| names.contains(&first.as_str()));
        let (inside, outside) = self.0.into_iter().partition(|(path, _)| leads_into(path));
        (Self(inside), Self(outside))
    }

    /// Applies it to the object as it is now. Null removes a member; removing an absent member is no error.
    ///
    /// # Errors
    /// `invalidPatch` when a parent is missing, or is an array or a plain value; the object may have been changed then.
    pub(crate) fn apply(self, object: &mut Map<String, Value>) -> Result<(), SetError> {
        for (path, value) in self.0 {
            set(object, &path, value)?;
        }
        Ok(())
    }
}

fn split(path: &str) -> Result<Vec<String>, SetError> {
    let token = |token| {
        let wrong = || SetError::invalid_patch(format!("'{path}' is no path"));
        unescape(token).map(Into::into).ok_or_else(wrong)
    };
    path.split('/').map(token).collect()
}

fn set(object: &mut Map<String, Value>, path: &[String], value: Value) -> Result<(), SetError> {
    let Some((last, parents)) = path.split_last() else { return Ok(()) };
    let mut object = object;
    for parent in parents {
        object = match object.get_mut(parent) {
            Some(Value::Object(child)) => child,
            // RFC 8620 §5.3: all parts before the last must exist, and no path may lead into an array.
            _ => return Err(SetError::invalid_patch(format!("{} leads through no object", path.join("/")))),
        };
    }
    if value.is_null() {
        object.remove(last);
    } else {
        object.insert(last.clone(), value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { panic!("an object") };
        map
    }

    fn patched(of: Value, patch: Value) -> Result<Value, String> {
        let mut of = object(of);
        let patch = Patch::read(object(patch)).map_err(|error| error.name().to_owned())?;
        patch.apply(&mut of).map_err(|error| error.name().to_owned())?;
        Ok(Value::Object(of))
    }

    #[test]
    fn t6_paths_set_and_null_removes() {
        let email = json!({"keywords": {"$seen": true}, "mailboxIds": {"m1": true}, "a/b": {"c~d": 1}});
        let patch = json!({"keywords/$flagged": true, "keywords/$seen": null, "keywords/absent": null,
            "mailboxIds": {"m2": true}, "a~1b/c~0d": 2, "absent": null});
        let expected = json!({"keywords": {"$flagged": true}, "mailboxIds": {"m2": true}, "a/b": {"c~d": 2}});
        assert_eq!(patched(email, patch), Ok(expected));
    }

    #[test]
    fn t6_invalid_patch_for_missing_parents_arrays_and_plain_values() {
        let of = || json!({"list": [1], "number": 1, "null": null, "object": {}});
        for path in [
            "absent/x",
            "list/0",
            "list/-",
            "number/x",
            "null/x",
            "object/absent/x",
            "/object/x",
            "object/~2",
            "object/~",
        ] {
            assert_eq!(patched(of(), json!({path: 1})), Err("invalidPatch".to_owned()), "{path}");
        }
    }

    #[test]
    fn t6_invalid_patch_when_one_path_is_a_prefix_of_another() {
        let of = || json!({"a": {"b": {}}, "ab": {}});
        for (one, other) in [("a", "a/b"), ("a/b", "a/b/c"), ("a", "a/b/c")] {
            assert_eq!(patched(of(), json!({one: {}, other: {}, "ab": {}})), Err("invalidPatch".to_owned()));
        }
        // Characters that sort before a slash come between a path and the paths below it.
        assert_eq!(patched(of(), json!({"a": {}, "a!": {}, "a/b": {}})), Err("invalidPatch".to_owned()));
        assert!(patched(of(), json!({"a/b": 1, "ab": 2})).is_ok());
    }

    fn any_object(depth: u32) -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(json!(1)), Just(json!(true)), Just(json!([1]))];
        let inner = leaf.prop_recursive(depth, 16, 4, |inner| {
            prop::collection::btree_map("[ab/~]{1,2}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect()))
        });
        prop::collection::btree_map("[ab/~]{1,2}", inner, 0..4)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    /// The patch that turns `from` into `to`: deep where both are objects.
    fn difference(from: &Value, to: &Value, path: &str, patch: &mut Map<String, Value>) {
        let (Value::Object(from), Value::Object(to)) = (from, to) else { return };
        let at = |key: &str| {
            let key = key.replace('~', "~0").replace('/', "~1");
            if path.is_empty() { key } else { format!("{path}/{key}") }
        };
        for key in from.keys().filter(|key| !to.contains_key(*key)) {
            patch.insert(at(key), Value::Null);
        }
        for (key, value) in to {
            match from.get(key) {
                Some(old) if old == value => {}
                Some(old @ Value::Object(_)) if value.is_object() => difference(old, value, &at(key), patch),
                _ => {
                    patch.insert(at(key), value.clone());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn t6_the_difference_of_two_objects_makes_one_of_the_other(from in any_object(3), to in any_object(3)) {
            let mut patch = Map::new();
            difference(&from, &to, "", &mut patch);
            prop_assert_eq!(patched(from, Value::Object(patch)), Ok(to));
        }

        #[test]
        fn t6_overlap_is_found_in_any_order(paths in prop::collection::btree_set("[a!/]{1,5}", 1..6)) {
            let split: Vec<Vec<&str>> = paths.iter().map(|path| path.split('/').collect()).collect();
            let overlaps = split.iter().enumerate().any(|(at, path)| {
                split.iter().enumerate().any(|(other, longer)| at != other && longer.starts_with(path))
            });
            let patch = paths.iter().map(|path| (path.clone(), json!(1))).collect();
            prop_assert_eq!(Patch::read(patch).is_err(), overlaps);
        }
    }
}
