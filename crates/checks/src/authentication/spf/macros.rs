//! Domains that contain macros (RFC 7208 §7).

use std::{fmt::Write, net::IpAddr};

use super::record::Malformed;
use crate::authentication::names::NAME_BYTES_MAX;

/// The values of macros.
#[derive(Clone, Debug)]
pub(super) struct Variables {
    /// `%{s}`, including its local part.
    pub(super) sender: String,
    /// `%{h}`.
    pub(super) hello: String,
    pub(super) address: IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Letter {
    Sender,
    LocalPart,
    SenderDomain,
    Domain,
    Address,
    ValidatedName,
    Family,
    Hello,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Macro {
        letter: Letter,
        /// The number of parts to take from the right; `None` for all.
        parts: Option<usize>,
        is_reversed: bool,
        is_escaped: bool,
        delimiters: String,
    },
}

/// The domain of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DomainSpec(Vec<Part>);

impl DomainSpec {
    /// Parses a `domain-spec`: it ends with a macro, or with a label that can be a top-level domain.
    pub(super) fn parse(text: &str) -> Result<Self, Malformed> {
        let parts = read(text)?;
        match parts.last() {
            Some(Part::Macro { .. }) => Ok(Self(parts)),
            Some(Part::Text(end)) if ends_with_top_label(end) => Ok(Self(parts)),
            _ => Err(Malformed),
        }
    }

    /// Checks a `macro-string`: the value of an unknown modifier.
    pub(super) fn parse_macro_string(text: &str) -> Result<(), Malformed> {
        read(text).map(|_| ())
    }

    /// Whether it contains `%{p}`.
    pub(super) fn needs_validated_name(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Macro { letter: Letter::ValidatedName, .. }))
    }

    /// The name, for a record of `domain`. Labels on the left are removed until it is short enough (RFC 7208 §7.3).
    pub(super) fn expand(&self, variables: &Variables, domain: &str, validated_name: &str) -> String {
        let mut name = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => name.push_str(text),
                Part::Macro { letter, parts, is_reversed, is_escaped, delimiters } => {
                    let value = letter.value(variables, domain, validated_name);
                    let value = transform(&value, *parts, *is_reversed, delimiters);
                    if *is_escaped { escape(&value, &mut name) } else { name.push_str(&value) }
                }
            }
        }
        let name = name.strip_suffix('.').unwrap_or(&name);
        let mut rest = name;
        while rest.len() > NAME_BYTES_MAX {
            match rest.split_once('.') {
                Some((_, shorter)) => rest = shorter,
                None => return String::new(),
            }
        }
        rest.to_owned()
    }
}

impl Letter {
    fn parse(letter: u8) -> Option<Self> {
        Some(match letter.to_ascii_lowercase() {
            b's' => Self::Sender,
            b'l' => Self::LocalPart,
            b'o' => Self::SenderDomain,
            b'd' => Self::Domain,
            b'i' => Self::Address,
            b'p' => Self::ValidatedName,
            b'v' => Self::Family,
            b'h' => Self::Hello,
            _ => return None, // c, r and t are allowed only in explanations
        })
    }

    fn value(self, variables: &Variables, domain: &str, validated_name: &str) -> String {
        let (local_part, sender_domain) = variables.sender.rsplit_once('@').unwrap_or_default();
        match self {
            Self::Sender => variables.sender.clone(),
            Self::LocalPart => local_part.to_owned(),
            Self::SenderDomain => sender_domain.to_owned(),
            Self::Domain => domain.to_owned(),
            Self::Address => dotted(variables.address),
            Self::ValidatedName => validated_name.to_owned(),
            Self::Family => if variables.address.is_ipv4() { "in-addr" } else { "ip6" }.to_owned(),
            Self::Hello => variables.hello.clone(),
        }
    }
}

/// An address as `%{i}`: for IPv6, each half of a byte separately.
fn dotted(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let mut text = String::with_capacity(63);
            for byte in address.octets() {
                let before = if text.is_empty() { "" } else { "." };
                // Writing to a string does not fail.
                let _ = write!(text, "{before}{:x}.{:x}", byte >> 4, byte & 15);
            }
            text
        }
    }
}

/// Splits at delimiters, reverses, takes parts from the right, and joins with dots.
fn transform(value: &str, parts: Option<usize>, is_reversed: bool, delimiters: &str) -> String {
    let mut split: Vec<&str> = value.split(|character| delimiters.contains(character)).collect();
    if is_reversed {
        split.reverse();
    }
    let left_out = parts.map_or(0, |parts| split.len().saturating_sub(parts));
    split.get(left_out..).unwrap_or_default().join(".")
}

/// Escapes all but unreserved characters (RFC 3986 §2.3).
fn escape(value: &str, to: &mut String) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            to.push(char::from(byte));
        } else {
            let _ = write!(to, "%{byte:02X}");
        }
    }
}

fn read(text: &str) -> Result<Vec<Part>, Malformed> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first != '%' {
            if !first.is_ascii_graphic() {
                return Err(Malformed);
            }
            literal.push(first);
            rest = rest.get(1..).ok_or(Malformed)?;
            continue;
        }
        match rest.as_bytes().get(1) {
            Some(b'%') => literal.push('%'),
            Some(b'_') => literal.push(' '),
            Some(b'-') => literal.push_str("%20"),
            Some(b'{') => {
                let (inside, behind) =
                    rest.get(2..).and_then(|rest| rest.split_once('}')).ok_or(Malformed)?;
                if !literal.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut literal)));
                }
                parts.push(read_macro(inside)?);
                rest = behind;
                continue;
            }
            _ => return Err(Malformed),
        }
        rest = rest.get(2..).ok_or(Malformed)?;
    }
    if !literal.is_empty() {
        parts.push(Part::Text(literal));
    }
    Ok(parts)
}

/// The text between the braces: a letter, digits, `r`, delimiters.
fn read_macro(inside: &str) -> Result<Part, Malformed> {
    let first = *inside.as_bytes().first().ok_or(Malformed)?;
    let letter = Letter::parse(first).ok_or(Malformed)?;
    let rest = inside.get(1..).ok_or(Malformed)?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = rest.split_at_checked(digits).ok_or(Malformed)?;
    let parts = match digits {
        "" => None,
        // A number greater than any name has parts means all of them.
        digits => Some(digits.parse().unwrap_or(usize::MAX)),
    };
    if parts == Some(0) {
        return Err(Malformed);
    }
    let (is_reversed, delimiters) = match rest.strip_prefix(['r', 'R']) {
        Some(delimiters) => (true, delimiters),
        None => (false, rest),
    };
    if !delimiters.bytes().all(|byte| b".-+,/_=".contains(&byte)) {
        return Err(Malformed);
    }
    let delimiters = if delimiters.is_empty() { "." } else { delimiters }.to_owned();
    Ok(Part::Macro { letter, parts, is_reversed, is_escaped: first.is_ascii_uppercase(), delimiters })
}

/// `"." toplabel ["."]` at the end: letters, digits and hyphens, not digits alone.
fn ends_with_top_label(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let Some((_, label)) = text.rsplit_once('.') else {
        return false;
    };
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !label.is_empty()
        && label.bytes().all(is_inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
        && !label.bytes().all(|byte| byte.is_ascii_digit())
}
