//! Words that a reader of the field would have to look up: none of them is in a name or in prose.

use std::path::Path;

use crate::tidy::texts;

/// No type has one of them as a part of its name.
const TYPES: &[&str] = &[
    "Acquaintance",
    "Arrival",
    "Arriving",
    "Bell",
    "Corner",
    "Desk",
    "Fate",
    "Fates",
    "Fault",
    "Faults",
    "Hasty",
    "Kept",
    "Newcomer",
    "Newcomers",
    "Onward",
    "Place",
    "Places",
    "Ride",
    "Room",
    "Seat",
    "Seats",
    "Statics",
    "Taken",
    "Torn",
    "Trip",
    "Trouble",
    "Turn",
    "Turns",
    "Way",
];

/// No function and no module has one of them as a part of its name.
const NAMES: &[&str] = &[
    "acquaint",
    "corner",
    "desk",
    "fate",
    "fates",
    "hasty",
    "hood",
    "newcomers",
    "onward",
    "seat",
    "seats",
    "told",
    "unwant",
];

/// No text has one of them: comments, pages, settings, messages.
const PROSE: &[&str] = &["seat", "seats", "told", "unwant", "unwants", "whoever"];

/// Files that may hold them: the history, and this list.
const EXEMPT: &[&str] = &["CHANGELOG.md", "tests/tidy/src/words.rs"];

/// Keywords that a new name follows.
const DEFINITIONS: &[&str] = &["struct", "enum", "union", "trait", "type", "fn", "mod"];

/// The private words of a text, each with the number of its line.
fn private_words(path: &Path, text: &str) -> Vec<(usize, String)> {
    let is_code = path.extension().is_some_and(|ending| ending == "rs");
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut previous = "";
        for word in line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()) {
            let is_defined = is_code && DEFINITIONS.contains(&previous);
            if PROSE.contains(&word.to_lowercase().as_str()) || is_defined && is_private_name(word) {
                found.push((index + 1, word.to_owned()));
            }
            previous = word;
        }
    }
    found
}

fn is_private_name(name: &str) -> bool {
    if name.starts_with(char::is_uppercase) {
        words_of_type(name).iter().any(|word| TYPES.contains(word))
    } else {
        name.split('_').any(|word| NAMES.contains(&word))
    }
}

/// `QueueFull` as `Queue` and `Full`.
fn words_of_type(name: &str) -> Vec<&str> {
    let starts: Vec<usize> =
        name.char_indices().filter(|(_, c)| c.is_uppercase()).map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([name.len()]);
    starts.iter().zip(ends).filter_map(|(start, end)| name.get(*start..end)).collect()
}

#[test]
fn no_text_has_a_private_word() {
    let mut found = Vec::new();
    for (path, text) in texts() {
        if !EXEMPT.iter().any(|exempt| path == Path::new(exempt)) {
            let words = private_words(&path, &text);
            found.extend(words.iter().map(|(line, word)| format!("{}:{line}: {word}", path.display())));
        }
    }
    assert!(
        found.is_empty(),
        "{} private words, see the list in tests/tidy/src/words.rs: {found:#?}",
        found.len()
    );
}

#[test]
fn private_words_are_found_in_names_and_in_prose() {
    let words = |text: &str| -> Vec<String> {
        private_words(Path::new("a.rs"), text).into_iter().map(|(_, word)| word).collect()
    };
    assert_eq!(words("struct Turn; fn take_seat() {} // Whoever asks"), ["Turn", "take_seat", "Whoever"]);
    assert_eq!(words("struct MessageRoom;\nenum Taken {}"), ["MessageRoom", "Taken"]);
    assert_eq!(words("struct Return; // In turn there is room. fn takes() {}"), Vec::<String>::new());
    assert_eq!(private_words(Path::new("a.md"), "one\nwas told"), [(2, "told".to_owned())]);
}
