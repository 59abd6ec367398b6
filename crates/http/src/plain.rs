//! Errors of JSON parsing in terms of JSON: serde names Rust types.

/// The names of types in serde's errors, and in our answers.
const TYPES: [(&str, &str); 11] = [
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number from 0"),
    ("usize", "a whole number from 0"),
    ("i64", "a whole number"),
    ("f64", "a number"),
    ("bool", "true or false"),
    ("a boolean", "true or false"),
    ("a sequence", "an array"),
    ("a map", "an object"),
];
const FOUND: [(&str, &str); 2] =
    [("invalid type: sequence", "invalid type: array"), ("invalid type: map", "invalid type: object")];
const TOO_EARLY: &str = "EOF while parsing";
const POSITION: &str = " at line ";

/// The text of a serde_json error without names of Rust types.
pub fn describe_json_error(text: &str) -> String {
    let (text, position) = match text.rfind(POSITION) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    if text.starts_with(TOO_EARLY) {
        return format!("the JSON ends too early{position}");
    }
    let Some((found, expected)) = text.rsplit_once(", expected ") else { return format!("{text}{position}") };
    let expected = TYPES.iter().find(|(theirs, _)| *theirs == expected).map_or(expected, |(_, ours)| ours);
    let mut found = found.to_owned();
    for (theirs, ours) in FOUND {
        // The name of a field may precede it.
        if let Some(before) = found.strip_suffix(theirs) {
            found = format!("{before}{ours}");
        }
    }
    format!("{found}, expected {expected}{position}")
}
