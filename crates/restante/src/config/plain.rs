//! Rewrites error messages about values so that they can be understood without knowing Rust.

/// The deserializer's error about a value, such as `invalid type: string "x", expected u16`.
pub(super) fn setting(message: &str) -> String {
    let about = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    if let Some((found, expected)) = about.and_then(|about| about.split_once(", expected ")) {
        return format!("it must be {}, and is {}", kind(expected), value(found));
    }
    let variant =
        message.strip_prefix("unknown variant `").and_then(|about| about.split_once("`, expected "));
    if let Some((found, expected)) = variant {
        let words: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        return format!("it must be one of {}, and is \"{found}\"", words.join(", "));
    }
    match message {
        "invalid IP address syntax" => "it must be an IP address".to_owned(),
        other => other.to_owned(),
    }
}

/// The expected type, for people.
fn kind(expected: &str) -> &str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number of at least 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "string" | "a borrowed string" | "a character" => "a text",
        "path string" => "a path",
        "IP address" | "IPv4 address" | "IPv6 address" => "an IP address",
        "a sequence" => "a list",
        "a map" => "a section",
        nonzero if nonzero.starts_with("a nonzero ") => "a whole number of at least 1",
        structure if structure.starts_with("struct ") => "a section",
        other => other,
    }
}

/// The value that was found, for people.
fn value(found: &str) -> String {
    let (kind, value) = found.split_once(' ').unwrap_or((found, ""));
    match kind {
        "string" => value.to_owned(),
        "integer" | "boolean" => value.trim_matches('`').to_owned(),
        "floating" => value.trim_start_matches("point ").trim_matches('`').to_owned(),
        "sequence" => "a list".to_owned(),
        // A date is parsed as a section.
        "map" => "a date or a section".to_owned(),
        _ => found.to_owned(),
    }
}

/// An error about a command line argument.
pub(crate) fn argument(text: &str) -> String {
    const WORDS: &[(&str, &str)] = &[
        ("invalid digit found in string", "it is no whole number"),
        ("cannot parse integer from empty string", "it is empty"),
        ("number too large to fit in target type", "it is too large"),
        ("number too small to fit in target type", "it is too small"),
        ("number would be zero for non-zero type", "it must be at least 1"),
        ("invalid float literal", "it is no number"),
        ("cannot parse float from empty string", "it is empty"),
        ("invalid IP address syntax", "it is no IP address"),
        ("invalid socket address syntax", "it is no address with a port"),
        ("provided string was not `true` or `false`", "it is neither true nor false"),
    ];
    let mut text = text.to_owned();
    for (theirs, ours) in WORDS {
        text = text.replace(theirs, ours);
    }
    without_ranges(&text)
}

/// `70000 is not in 0..=65535` becomes `it is not from 0 to 65535`.
fn without_ranges(text: &str) -> String {
    const NOT_IN: &str = " is not in ";
    let lines = text.split('\n').map(|line| {
        let parts = line.split_once(NOT_IN).and_then(|(before, range)| {
            let (from, to) = range.split_once("..=").or_else(|| range.split_once(".."))?;
            let (before, _value) = before.rsplit_once(' ')?;
            Some((before, from, to))
        });
        match parts {
            Some((before, from, "")) => format!("{before} it is not {from} or more"),
            Some((before, from, to)) => format!("{before} it is not from {from} to {to}"),
            None => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_named_in_plain_words() {
        for (message, expected) in [
            (
                "invalid type: string \"x\", expected u16",
                "it must be a whole number from 0 to 65535, and is \"x\"",
            ),
            (
                "invalid value: integer `0`, expected a nonzero usize",
                "it must be a whole number of at least 1, and is 0",
            ),
            ("invalid type: sequence, expected a string", "it must be a text, and is a list"),
            (
                "unknown variant `xml`, expected `text` or `json`",
                "it must be one of text, json, and is \"xml\"",
            ),
            ("archive URL 'x' is not understood", "archive URL 'x' is not understood"),
        ] {
            assert_eq!(setting(message), expected);
        }
        let line = "error: invalid value '70000' for '--rest-port <PORT>': 70000 is not in 0..=65535";
        let plain = "error: invalid value '70000' for '--rest-port <PORT>': it is not from 0 to 65535";
        assert_eq!(argument(&format!("{line}\n\nmore")), format!("{plain}\n\nmore"));
    }
}
