//! Errors of readers of JSON, in words of JSON: their own name types of the language that this server is written in.

/// Words of an error for a type, and the words that replace them in answers.
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
const PLACE: &str = " at line ";

/// The text of an error in plain words.
pub(crate) fn plain(text: &str) -> String {
    let (text, place) = match text.rfind(PLACE) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    if text.starts_with(TOO_EARLY) {
        return format!("the JSON ends too early{place}");
    }
    let Some((found, expected)) = text.rsplit_once(", expected ") else { return format!("{text}{place}") };
    let expected = TYPES.iter().find(|(theirs, _)| *theirs == expected).map_or(expected, |(_, ours)| ours);
    let mut found = found.to_owned();
    for (theirs, ours) in FOUND {
        // A field's name may stand before it.
        if let Some(before) = found.strip_suffix(theirs) {
            found = format!("{before}{ours}");
        }
    }
    format!("{found}, expected {expected}{place}")
}
