use std::{fmt, str::FromStr};

use unicode_normalization::UnicodeNormalization;

use crate::{Domain, Error, text_serde};

/// RFC 5321 §4.5.3.1.1.
const LOCAL_BYTES_MAX: usize = 64;
/// RFC 5321 §4.5.3.1.3: a path has 256 octets with its angle brackets.
const ADDRESS_BYTES_MAX: usize = 254;

/// An email address: a local part, compared without regard to case, and a domain.
///
/// It is stored in one form, so that equal addresses are equal values: the local part in lower case and Unicode's
/// normalisation form C (RFC 6532 §3.1), without quotes where it needs none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EmailAddress {
    local: String,
    domain: Domain,
}

impl EmailAddress {
    /// An address of a local part and a domain.
    ///
    /// # Errors
    /// `Invalid` when the local part is invalid (RFC 5321 §4.1.2, RFC 6531 §3.3) or too long.
    pub fn new(local: &str, domain: Domain) -> Result<Self, Error> {
        let wrong = |what: &str| {
            Error::invalid(format!(
                "'{}@{domain}' is no address: its local part {what}",
                local.escape_debug()
            ))
        };
        let plain = match local.strip_prefix('"') {
            Some(rest) => {
                unquote(rest).ok_or_else(|| wrong("has a quote or a character that it can't have"))?
            }
            None if is_dot_string(local) => local.to_owned(),
            None => return Err(wrong("is empty or has a character that needs quotes")),
        };
        let folded: String = plain.to_lowercase().nfc().collect();
        let local_part = if is_dot_string(&folded) { folded } else { quote(&folded) };
        if local_part.len() > LOCAL_BYTES_MAX {
            return Err(wrong("is longer than 64 bytes"));
        }
        let address = Self { local: local_part, domain: domain.clone() };
        if address.local.len() + 1 + address.domain.as_str().len() > ADDRESS_BYTES_MAX {
            return Err(Error::invalid("an address is longer than 254 bytes"));
        }
        Ok(address)
    }

    /// The local part, in quotes where it needs them.
    pub fn local(&self) -> &str {
        &self.local
    }

    /// The domain.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// The address before the first `separator` of the local part, and the detail after it (RFC 5233). `None` when there is no
    /// separator, or the text before it can't be an address.
    pub fn split_detail(&self, separator: char) -> Option<(Self, &str)> {
        if self.local.starts_with('"') {
            return None;
        }
        let (base, detail) = self.local.split_once(separator)?;
        is_dot_string(base).then(|| (Self { local: base.to_owned(), domain: self.domain.clone() }, detail))
    }
}

impl FromStr for EmailAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > 4 * ADDRESS_BYTES_MAX {
            return Err(Error::invalid("an address is longer than 254 bytes"));
        }
        // A domain contains no @, but a quoted local part may.
        let Some((local, domain)) = text.rsplit_once('@') else {
            let shown = text.escape_debug();
            return Err(Error::invalid(format!("'{shown}' is no address: use one like anna@example.org")));
        };
        Self::new(local, domain.parse()?)
    }
}

impl fmt::Display for EmailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.local, self.domain)
    }
}

text_serde!(EmailAddress);

/// RFC 5321 §4.1.2: Dot-string, with the characters that RFC 6531 adds.
fn is_dot_string(text: &str) -> bool {
    text.split('.').all(|atom| !atom.is_empty() && atom.chars().all(is_atom_char))
}

fn is_atom_char(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    }
    !c.is_control() && !c.is_whitespace() && !is_invisible(c)
}

/// Characters that reverse the direction of text or join it invisibly, which would make different addresses look alike.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff0}'..='\u{ffff}')
}

/// The content of a quoted string; `rest` is what follows its first quote.
fn unquote(rest: &str) -> Option<String> {
    let mut content = String::with_capacity(rest.len());
    let mut chars = rest.strip_suffix('"')?.chars();
    while let Some(c) = chars.next() {
        let c = match c {
            '"' => return None,
            '\\' => chars.next()?,
            c => c,
        };
        let is_allowed = if c.is_ascii() { c == ' ' || c.is_ascii_graphic() } else { is_atom_char(c) };
        if !is_allowed {
            return None;
        }
        content.push(c);
    }
    Some(content)
}

fn quote(content: &str) -> String {
    let mut quoted = String::with_capacity(content.len() + 2);
    quoted.push('"');
    for c in content.chars() {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(text: &str) -> EmailAddress {
        text.parse().unwrap()
    }

    #[test]
    fn equal_addresses_are_equal_values() {
        for (text, canonical) in [
            ("Anna@Example.org", "anna@example.org"),
            ("\"anna\"@example.org", "anna@example.org"),
            ("\"a\\nna\"@example.org", "anna@example.org"),
            ("\"A B\"@example.org", "\"a b\"@example.org"),
            ("\"a@b\"@example.org", "\"a@b\"@example.org"),
            ("\"a\\\"b\\\\\"@example.org", "\"a\\\"b\\\\\"@example.org"),
            ("\"\"@example.org", "\"\"@example.org"),
            ("JÜRGEN@bücher.example", "jürgen@xn--bcher-kva.example"),
            ("ju\u{308}rgen@example.org", "jürgen@example.org"),
            ("a!#$%&'*+-/=?^_`{|}~.b@example.org", "a!#$%&'*+-/=?^_`{|}~.b@example.org"),
        ] {
            assert_eq!(address(text).to_string(), canonical);
            assert_eq!(address(canonical), address(text));
        }
    }

    #[test]
    fn texts_that_are_no_addresses_are_refused() {
        for text in [
            "",
            "anna",
            "@example.org",
            "anna@",
            "anna@@example.org",
            "a b@example.org",
            ".a@example.org",
            "a.@example.org",
            "a..b@example.org",
            "\"a@example.org",
            "a\"@example.org",
            "\"a\"b\"@example.org",
            "\"a\\\"@example.org",
            "\"a\u{7}\"@example.org",
            "a\n@example.org",
            "a@[192.0.2.1]",
            "<a@example.org>",
            "a\u{202e}b@example.org",
            "a,b@example.org",
            "\u{a0}@example.org",
        ] {
            assert!(text.parse::<EmailAddress>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn lengths_are_those_of_smtp() {
        let local = "l".repeat(64);
        let domain = format!("{}.{}.{}", "a".repeat(63), "b".repeat(63), "c".repeat(61));
        assert_eq!(address(&format!("{local}@{domain}")).to_string().len(), 254);
        for text in [format!("{local}l@example.org"), format!("{local}@{domain}c"), "x".repeat(1_000_000)] {
            assert!(text.parse::<EmailAddress>().is_err());
        }
    }

    #[test]
    fn a_detail_is_what_follows_the_separator() {
        let parts = |text: &str, separator| {
            let address = address(text);
            address.split_detail(separator).map(|(base, detail)| (base.to_string(), detail.to_owned()))
        };
        assert_eq!(parts("anna+shop+x@example.org", '+'), Some(("anna@example.org".into(), "shop+x".into())));
        assert_eq!(parts("anna-shop@example.org", '-'), Some(("anna@example.org".into(), "shop".into())));
        assert_eq!(parts("anna+@example.org", '+'), Some(("anna@example.org".into(), String::new())));
        for text in ["anna@example.org", "+shop@example.org", "a.+b@example.org", "\"a b+c\"@example.org"] {
            assert_eq!(parts(text, '+'), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_accepted_reads_back_as_itself(text in "\\PC{0,20}@[a-z0-9.-]{1,20}") {
            if let Ok(address) = text.parse::<EmailAddress>() {
                prop_assert_eq!(&address.to_string().parse::<EmailAddress>().unwrap(), &address);
                prop_assert!(address.local().len() <= 64);
            }
        }

        #[test]
        fn any_quoted_text_reads_back(content in "[ -~]{0,30}") {
            let address = EmailAddress::new(&quote(&content), "example.org".parse().unwrap());
            if let Ok(address) = address {
                prop_assert_eq!(&address.to_string().parse::<EmailAddress>().unwrap(), &address);
            }
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = text.parse::<EmailAddress>();
        }
    }
}
