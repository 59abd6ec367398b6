//! Keywords: their syntax, and the numbers that stand for them in emails.

use std::collections::BTreeMap;

use crate::{
    EmailState, MailError,
    schema::keyword::{FIRST_OTHER, KNOWN},
};

/// The keyword that is stored as the absence of [`crate::email::UNSEEN`].
pub const SEEN: &str = "$seen";
/// The longest keyword (RFC 8621 §4.1.1).
pub const KEYWORD_BYTES_MAX: usize = 255;

/// The names of keywords by their numbers: the well-known ones, and those that the account has records of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keywords {
    names: BTreeMap<u64, String>,
    numbers: BTreeMap<String, u64>,
}

impl Keywords {
    /// The name of a number; `None` when the account has no such keyword.
    pub fn name(&self, number: u64) -> Option<&str> {
        if number >= FIRST_OTHER {
            return self.names.get(&number).map(String::as_str);
        }
        KNOWN.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
    }

    /// The number of a keyword in lowercase; `None` when no email has or had it, and for `$seen`, which has none.
    pub fn number(&self, name: &str) -> Option<u64> {
        let known = KNOWN.iter().find(|(_, known)| *known == name).map(|(number, _)| *number);
        known.or_else(|| self.numbers.get(name).copied())
    }

    /// The keywords of an email, in lowercase, `$seen` first. Those whose numbers have no name here are left out.
    pub fn of_email<'k>(&'k self, email: &'k EmailState) -> impl Iterator<Item = &'k str> {
        let seen = (!email.is_unseen).then_some(SEEN);
        seen.into_iter().chain(email.keywords.iter().filter_map(|number| self.name(*number)))
    }

    /// Whether a keyword needs no number, or has one.
    pub(crate) fn is_known(&self, name: &str) -> bool {
        name == SEEN || self.number(name).is_some()
    }

    /// Whether all of these numbers have names here.
    pub(crate) fn has_all(&self, numbers: &[u64]) -> bool {
        numbers.iter().all(|number| self.name(*number).is_some())
    }

    /// The keywords that are not well-known.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn insert(&mut self, number: u64, name: String) {
        self.numbers.insert(name.clone(), number);
        self.names.insert(number, name);
    }
}

/// Parses a keyword, and returns it in lowercase.
///
/// # Errors
/// [`MailError::BadKeyword`] for a text that is not a keyword (RFC 8621 §4.1.1), and for IMAP's \Recent and \Deleted.
pub fn parse_keyword(text: &str) -> Result<String, MailError> {
    let is_possible = |byte: u8| (33..=126).contains(&byte) && !br#"(){]%*"\"#.contains(&byte);
    let is_keyword = (1..=KEYWORD_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_possible);
    if is_keyword { Ok(text.to_ascii_lowercase()) } else { Err(MailError::BadKeyword(text.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e1_a_keyword_is_1_to_255_characters_of_ascii_without_specials_and_lowercase() {
        assert_eq!(parse_keyword("$Forwarded").unwrap(), "$forwarded");
        assert_eq!(parse_keyword("}[~!").unwrap(), "}[~!");
        assert_eq!(parse_keyword(&"k".repeat(255)).unwrap().len(), 255);
        let long = "k".repeat(256);
        let wrong = [
            "",
            " ",
            "a b",
            "a\u{7f}",
            "ä",
            "(",
            ")",
            "{",
            "]",
            "%",
            "*",
            "\"",
            "\\",
            "\\Recent",
            "\\Deleted",
            &long,
        ];
        for text in wrong {
            assert!(
                matches!(parse_keyword(text), Err(MailError::BadKeyword(bad)) if bad == text),
                "{text:?}"
            );
        }
    }

    #[test]
    fn e1_seen_is_the_absence_of_unseen() {
        let mut keywords = Keywords::default();
        keywords.insert(FIRST_OTHER + 7, "later".into());
        let mut email = EmailState { keywords: vec![1, FIRST_OTHER + 7], ..EmailState::default() };
        assert_eq!(keywords.of_email(&email).collect::<Vec<_>>(), ["$seen", "$flagged", "later"]);
        email.is_unseen = true;
        assert_eq!(keywords.of_email(&email).collect::<Vec<_>>(), ["$flagged", "later"]);
        assert_eq!(keywords.number(SEEN), None);
        assert_eq!(keywords.number("later"), Some(FIRST_OTHER + 7));
    }
}
