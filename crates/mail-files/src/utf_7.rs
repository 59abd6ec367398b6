//! The modified UTF-7 of mailbox names (RFC 3501 §5.1.3).

use base64_simd::STANDARD_NO_PAD;

/// Decodes a name; `None` if the text is not modified UTF-7. Characters that need no encoding may be encoded, too.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut name = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, encoded)) = rest.split_once('&') {
        name.push_str(plain);
        let (encoded, after) = encoded.split_once('-')?;
        rest = after;
        if encoded.is_empty() {
            name.push('&');
            continue;
        }
        if encoded.contains('/') {
            return None;
        }
        // Forgiving: some programs don't clear the unused bits at the end.
        let bytes = base64_simd::forgiving_decode_to_vec(encoded.replace(',', "/").as_bytes()).ok()?;
        let (units, odd) = bytes.as_chunks::<2>();
        if !odd.is_empty() {
            return None;
        }
        let units = units.iter().map(|unit| u16::from_be_bytes(*unit));
        for character in char::decode_utf16(units) {
            name.push(character.ok()?);
        }
    }
    name.push_str(rest);
    name.chars().all(|c| !c.is_control()).then_some(name)
}

/// Encodes a name. `.` and `/` are encoded, too, since they separate names in files.
pub(crate) fn encode(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut units: Vec<u8> = Vec::new();
    for character in name.chars() {
        let is_plain = (' '..='~').contains(&character) && !matches!(character, '.' | '/');
        if !is_plain {
            let mut buffer = [0; 2];
            units.extend(character.encode_utf16(&mut buffer).iter().flat_map(|unit| unit.to_be_bytes()));
            continue;
        }
        end_encoded(&mut units, &mut text);
        text.push(character);
        if character == '&' {
            text.push('-');
        }
    }
    end_encoded(&mut units, &mut text);
    text
}

fn end_encoded(units: &mut Vec<u8>, text: &mut String) {
    if !units.is_empty() {
        text.push('&');
        text.push_str(&STANDARD_NO_PAD.encode_to_string(&*units).replace('/', ","));
        text.push('-');
        units.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rfc_3501_are_decoded() {
        assert_eq!(decode("~peter/mail/&U,BTFw-/&ZeVnLIqe-").as_deref(), Some("~peter/mail/台北/日本語"));
        assert_eq!(decode("Entw&APw-rfe &- more").as_deref(), Some("Entwürfe & more"));
        for wrong in ["&", "&AB-", "&!-", "a&Jjo!", "&2D0-"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_name_is_decoded_as_it_was_encoded(name in "[^\\p{Cc}]{0,40}") {
            let text = encode(&name);
            proptest::prop_assert!(text.bytes().all(|byte| (32..127).contains(&byte) && byte != b'.' && byte != b'/'));
            proptest::prop_assert_eq!(decode(&text), Some(name));
        }
    }
}
