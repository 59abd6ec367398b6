//! The text that a user types into a search field.

use restante_core::Error;

use crate::{Word, Words};

/// The most words of a text.
pub const TEXT_WORDS_MAX: usize = 256;

/// The text of a condition, parsed: phrases that must all be found (RFC 8621 §4.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchText {
    phrases: Vec<Phrase>,
}

/// Consecutive words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phrase {
    words: Vec<(u32, String)>,
}

impl Phrase {
    /// Its words, folded, each with its position relative to the first.
    pub fn words(&self) -> &[(u32, String)] {
        &self.words
    }

    fn of(text: &str) -> Self {
        let mut words: Vec<Word> = Vec::new();
        let mut reader = Words::new(text);
        while let Some(word) = reader.advance() {
            words.push(word.clone());
            if words.len() > 2 * TEXT_WORDS_MAX {
                break; // too many: the caller returns the error
            }
        }
        let pairs: Vec<u32> = words.iter().filter(|word| word.is_pair).map(|word| word.position).collect();
        let has_pair = |position: u32| pairs.binary_search(&position).is_ok();
        // A pair implies its two characters, and their order.
        let is_covered = |word: &Word| {
            let is_second = word.position.checked_sub(1).is_some_and(has_pair);
            !word.is_pair && (is_second || has_pair(word.position))
        };
        words.retain(|word| !is_covered(word));
        words.sort_by_key(|word| word.position);
        Self { words: words.into_iter().map(|word| (word.position, word.text)).collect() }
    }
}

impl SearchText {
    /// Parses the text of a condition.
    ///
    /// - White space separates; every part must be found, in any order and in any of the fields that the condition names.
    /// - Text in `'..'` or `".."` is a phrase; so is `example.com`, whose words must follow each other. In it `\` makes
    ///   the next character an ordinary one. A quotation mark within a word, or without its counterpart, is an ordinary character.
    /// - A part without a word, such as a single `-`, has no effect: a text without words matches everything.
    ///
    /// # Errors
    /// `Invalid` for more than [`TEXT_WORDS_MAX`] words.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut phrases: Vec<Phrase> = Vec::new();
        let mut words = 0;
        for part in parts(text) {
            let phrase = Phrase::of(&part);
            if phrase.words.is_empty() || phrases.contains(&phrase) {
                continue;
            }
            words += phrase.words.len();
            if words > TEXT_WORDS_MAX {
                return Err(Error::invalid(format!("search text has more than {TEXT_WORDS_MAX} words")));
            }
            phrases.push(phrase);
        }
        Ok(Self { phrases })
    }

    /// The phrases that must be found.
    pub fn phrases(&self) -> &[Phrase] {
        &self.phrases
    }
}

/// Splits a text at white space outside of quotation marks.
fn parts(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start();
    // If a mark has no counterpart in the rest, no later one has: without this check, many of them would take quadratic time.
    let mut unpaired: Vec<char> = Vec::new();
    while let Some(first) = rest.chars().next() {
        let is_quote = matches!(first, '"' | '\'') && !unpaired.contains(&first);
        let quoted = if is_quote { quoted(rest, first) } else { None };
        if let Some((part, length)) = quoted {
            parts.push(part);
            rest = rest.get(length..).unwrap_or_default().trim_start();
            continue;
        }
        if is_quote {
            unpaired.push(first);
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        parts.push(unescaped(rest.get(..end).unwrap_or_default()));
        rest = rest.get(end..).unwrap_or_default().trim_start();
    }
    parts
}

/// The text between a quotation mark at the beginning and the next one, and the bytes of all that.
fn quoted(text: &str, quote: char) -> Option<(String, usize)> {
    let mut part = String::new();
    let mut is_escaped = false;
    for (index, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => {
                part.push(c);
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            _ if c == quote => return Some((part, index + c.len_utf8())),
            _ => part.push(c),
        }
    }
    None
}

fn unescaped(text: &str) -> String {
    let mut part = String::new();
    let mut is_escaped = false;
    for c in text.chars() {
        is_escaped = c == '\\' && !is_escaped;
        if !is_escaped {
            part.push(c);
        }
    }
    part
}

#[cfg(test)]
mod tests;
