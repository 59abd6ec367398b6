//! The encoding of parameter values: `xtext` (RFC 3461 §4) and the addresses of RFC 6533.

use std::borrow::Cow;

/// Whether a text is `xtext`: visible ASCII without `=`, where two upper case hex digits follow each `+`.
pub fn is_xtext(text: &str) -> bool {
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match (first, after) {
            (b'+', [high, low, after @ ..]) if is_hex(*high) && is_hex(*low) => after,
            (b'+' | b'=', _) => return false,
            (b'!'..=b'~', _) => after,
            _ => return false,
        };
    }
    true
}

/// Decodes `xtext`; bytes that are not UTF-8 become U+FFFD. A text that is not `xtext` is returned unchanged.
pub fn decode_xtext(text: &str) -> Cow<'_, str> {
    if !text.contains('+') || !is_xtext(text) {
        return Cow::Borrowed(text);
    }
    let (mut decoded, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = match (first, after) {
            (b'+', [high, low, after @ ..]) => {
                decoded.push(hex_value(*high) << 4 | hex_value(*low));
                after
            }
            _ => {
                decoded.push(*first);
                after
            }
        };
    }
    Cow::Owned(String::from_utf8_lossy(&decoded).into_owned())
}

/// A text as `xtext`: each byte that must be encoded as `+` and two hex digits.
pub fn encode_xtext(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'+' | b'=' => encoded.push_str(&format!("+{byte:02X}")),
            b'!'..=b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("+{byte:02X}")),
        }
    }
    encoded
}

/// Whether a text is an address of the type `utf-8` (RFC 6533 §3): `utf-8-addr-xtext`, or with non-ASCII characters
/// `utf-8-addr-unitext`.
pub(super) fn is_utf8_address(text: &str) -> bool {
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '\\' => match escaped(rest) {
                Some(after) => after,
                None => return false,
            },
            '+' | '=' => return false,
            '!'..='~' => rest.get(1..).unwrap_or_default(),
            wide if !wide.is_ascii() => rest.get(wide.len_utf8()..).unwrap_or_default(),
            _ => return false,
        };
    }
    true
}

/// What follows a character that is written as `\x{20AC}`. Hex digits of ABNF have no case (RFC 5234 §2.3), unlike those of `xtext`.
fn escaped(text: &str) -> Option<&str> {
    let (digits, after) = text.strip_prefix("\\x{")?.split_once('}')?;
    let is_number = (2..=6).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u32::from_str_radix(digits, 16).ok().filter(|_| is_number)?;
    char::from_u32(number).map(|_| after)
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'A'..=b'F')
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'A'..=b'F' => digit - b'A' + 10,
        _ => digit.wrapping_sub(b'0'),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sub7_xtext_has_its_escapes_in_upper_case() {
        for (text, decoded) in [("QQ314159", "QQ314159"), ("a+2Bb+3Dc", "a+b=c"), ("+C3+A4", "ä"), ("", "")]
        {
            assert!(is_xtext(text), "{text}");
            assert_eq!(decode_xtext(text), decoded);
        }
        for wrong in ["a b", "a=b", "a+", "a+2", "a+2b", "ä", "a\u{7f}"] {
            assert!(!is_xtext(wrong), "{wrong}");
            assert_eq!(decode_xtext(wrong), wrong);
        }
    }

    #[test]
    fn sub7_addresses_of_type_utf_8_have_escapes_of_their_own() {
        for text in ["a@b.example", "\\x{20AC}@b", "j\\x{FC}rgen", "j\\x{fc}rgen", "jürgen@b"] {
            assert!(is_utf8_address(text), "{text}");
        }
        for wrong in ["a+b", "a=b", "a b", "\\x{}", "\\x{fg}", "\\x{D800}", "\\x{20AC", "\\u", "\\"] {
            assert!(!is_utf8_address(wrong), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn sub7_what_is_encoded_reads_back(text in "\\PC{0,40}") {
            let encoded = encode_xtext(&text);
            prop_assert!(is_xtext(&encoded));
            prop_assert_eq!(decode_xtext(&encoded), text);
        }
    }
}
