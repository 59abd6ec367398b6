use std::{fmt, net::Ipv4Addr, str::FromStr};

use crate::{Error, text_serde};

/// A DNS name in the form in which IDNA (UTS #46) looks it up: lower-case A-labels, at most 253 bytes, no trailing dot.
///
/// Two texts that IDNA maps to the same name are equal: `Bücher.example` is `xn--bcher-kva.example`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(String);

impl Domain {
    /// The name in ASCII.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Domain {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong =
            || Error::invalid(format!("'{}' is no domain: use a name like example.org", text.escape_debug()));
        let ascii = idna::domain_to_ascii_strict(text).map_err(|_| wrong())?;
        if ascii.parse::<Ipv4Addr>().is_ok() {
            return Err(wrong());
        }
        Ok(Self(ascii))
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_serde!(Domain);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_lower_case_ascii() {
        for (text, ascii) in [
            ("Example.ORG", "example.org"),
            ("Bücher.example", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
            ("localhost", "localhost"),
            ("ｅxample。org", "example.org"),
        ] {
            assert_eq!(text.parse::<Domain>().unwrap().as_str(), ascii);
        }
        let longest = format!("{}.{}.{}.{}", "a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61));
        assert_eq!(longest.len(), 253);
        assert!(longest.parse::<Domain>().is_ok());
        for text in [
            "",
            ".",
            "a..b",
            "a.",
            "-a.org",
            "a_b.org",
            "a b.org",
            "a@b.org",
            "192.0.2.1",
            "[192.0.2.1]",
            "xn--a.org",
            &format!("{}.org", "a".repeat(64)),
            &format!("{longest}d"),
        ] {
            assert!(text.parse::<Domain>().is_err(), "{text}");
        }
    }
}
