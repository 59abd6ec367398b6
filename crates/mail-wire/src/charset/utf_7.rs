use super::Decoded;

/// Decodes UTF-7, RFC 2152: base64 of UTF-16BE between `+` and the first character that is not base64; `+-` is a plus sign.
pub(super) fn decode(bytes: &[u8]) -> Decoded {
    let mut decoded = Decoded { text: String::with_capacity(bytes.len()), is_problem: false };
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'+' {
            decoded.is_problem |= !first.is_ascii();
            decoded.text.push(if first.is_ascii() { char::from(first) } else { char::REPLACEMENT_CHARACTER });
            continue;
        }
        let length = rest.iter().take_while(|byte| sextet(**byte).is_some()).count();
        let (shifted, after) = rest.split_at(length);
        rest = after.strip_prefix(b"-").unwrap_or(after);
        if shifted.is_empty() {
            decoded.is_problem |= !after.starts_with(b"-");
            decoded.text.push('+');
        } else {
            push_utf_16(shifted, &mut decoded);
        }
    }
    decoded
}

/// Decodes base64 of UTF-16BE and appends the text. Up to five bits may be left over, and must be zero.
fn push_utf_16(shifted: &[u8], decoded: &mut Decoded) {
    let mut units = Vec::with_capacity(shifted.len() * 6 / 16);
    let (mut bits, mut bit_count) = (0_u32, 0_u32);
    for value in shifted.iter().filter_map(|byte| sextet(*byte)) {
        bits = bits << 6 | u32::from(value);
        bit_count += 6;
        if bit_count >= 16 {
            bit_count -= 16;
            units.push(u16::try_from(bits >> bit_count).unwrap_or_default());
            bits &= (1 << bit_count) - 1;
        }
    }
    decoded.is_problem |= bit_count >= 6 || bits != 0;
    for character in char::decode_utf16(units) {
        decoded.is_problem |= character.is_err();
        decoded.text.push(character.unwrap_or(char::REPLACEMENT_CHARACTER));
    }
}

fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}
