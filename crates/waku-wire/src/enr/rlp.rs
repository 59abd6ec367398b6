//! The part of RLP, Ethereum's encoding, that node records need: byte strings, and lists of them.
//!
//! Decoding is strict: each value has exactly one encoding, and so has a record.

/// A decoded value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item<'a> {
    /// A string's bytes, or a list's encoded items.
    pub(super) payload: &'a [u8],
    pub(super) is_list: bool,
}

impl<'a> Item<'a> {
    /// The bytes of a string.
    pub(super) fn string(self) -> Option<&'a [u8]> {
        (!self.is_list).then_some(self.payload)
    }
}

/// Lengths up to this one are encoded in the first byte.
const SHORT_MAX: usize = 55;
/// The first byte of an empty string, and of an empty list.
const STRING: u8 = 0x80;
const LIST: u8 = 0xc0;

/// Decodes an item from the front of `bytes` and advances `bytes`; `None` when there is none, or its encoding is not canonical.
pub(super) fn take<'a>(bytes: &mut &'a [u8]) -> Option<Item<'a>> {
    let (&first, rest) = bytes.split_first()?;
    if first < STRING {
        let (payload, rest) = bytes.split_at_checked(1)?;
        *bytes = rest;
        return Some(Item { payload, is_list: false });
    }
    let is_list = first >= LIST;
    let short_len = usize::from(first - if is_list { LIST } else { STRING });
    let (len, rest) = match short_len.checked_sub(SHORT_MAX) {
        None | Some(0) => (short_len, rest),
        Some(len_bytes) => take_len(len_bytes, rest)?,
    };
    let (payload, rest) = rest.split_at_checked(len)?;
    // A byte below 0x80 is its own encoding.
    let is_longer_than_needed = !is_list && matches!(payload, [byte] if *byte < STRING);
    if is_longer_than_needed {
        return None;
    }
    *bytes = rest;
    Some(Item { payload, is_list })
}

/// A length of one to eight bytes, the highest first.
fn take_len(len_bytes: usize, bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (digits, rest) = bytes.split_at_checked(len_bytes)?;
    let len = usize::try_from(number(digits)?).ok()?;
    (len > SHORT_MAX).then_some((len, rest))
}

/// Decodes a number without leading zeros.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.first() == Some(&0) || digits.len() > 8 {
        return None;
    }
    Some(digits.iter().fold(0, |number, digit| (number << 8) | u64::from(*digit)))
}

/// Appends a string.
pub(super) fn put_string(string: &[u8], out: &mut Vec<u8>) {
    if !matches!(string, [byte] if *byte < STRING) {
        put_len(STRING, string.len(), out);
    }
    out.extend_from_slice(string);
}

/// Appends a number.
pub(super) fn put_number(number: u64, out: &mut Vec<u8>) {
    put_string(significant(&number.to_be_bytes()), out);
}

/// Encodes a list of encoded items.
pub(super) fn list(items: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(items.len() + 9);
    put_len(LIST, items.len(), &mut out);
    out.extend_from_slice(items);
    out
}

fn put_len(kind: u8, len: usize, out: &mut Vec<u8>) {
    if len <= SHORT_MAX {
        out.push(kind + len as u8); // at most 55
        return;
    }
    let len = (len as u64).to_be_bytes();
    let digits = significant(&len);
    out.push(kind + SHORT_MAX as u8 + digits.len() as u8); // at most 8 digits
    out.extend_from_slice(digits);
}

/// The bytes without leading zeros.
fn significant(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.get(zeros..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_string(bytes, &mut out);
        out
    }

    /// From the examples of Ethereum's description of RLP.
    #[test]
    fn the_examples_of_the_description_hold() {
        let long = b"Lorem ipsum dolor sit amet, consectetur adipisicing elit";
        let cases: [(&[u8], &[u8]); 6] = [
            (b"dog", b"\x83dog"),
            (b"", b"\x80"),
            (b"\x00", b"\x00"),
            (b"\x0f", b"\x0f"),
            (b"\x04\x00", b"\x82\x04\x00"),
            (long, &[b"\xb8\x38", &long[..]].concat()),
        ];
        for (bytes, encoded) in cases {
            assert_eq!(string(bytes), encoded);
            let mut rest = encoded;
            assert_eq!(take(&mut rest).and_then(Item::string), Some(bytes));
            assert!(rest.is_empty());
        }
        assert_eq!(list(&[string(b"cat"), string(b"dog")].concat()), b"\xc8\x83cat\x83dog");
        assert_eq!(list(b""), b"\xc0");
        let mut zero = Vec::new();
        put_number(0, &mut zero);
        put_number(1024, &mut zero);
        assert_eq!(zero, b"\x80\x82\x04\x00");
    }

    #[test]
    fn long_strings_and_lists_read_back() {
        for len in [0, 1, 54, 55, 56, 57, 255, 256, 65_535, 65_536] {
            let bytes = vec![0xee; len];
            let encoded = string(&bytes);
            assert_eq!(take(&mut &encoded[..]).unwrap().string(), Some(&bytes[..]), "{len}");
            let encoded = list(&bytes);
            assert_eq!(take(&mut &encoded[..]), Some(Item { payload: &bytes, is_list: true }), "{len}");
        }
    }

    #[test]
    fn other_encodings_are_refused() {
        let cases: [(&[u8], &str); 9] = [
            (b"", "nothing"),
            (b"\x81\x7f", "a low byte with a length"),
            (b"\x82x", "cut off"),
            (b"\xb8", "no length"),
            (b"\xb8\x01x", "a short string with a long length"),
            (&[&b"\xb9\x00\x38"[..], &[0; 56]].concat(), "a length with a leading zero"),
            (b"\xbf\xff\xff\xff\xff\xff\xff\xff\xffx", "a length beyond memory"),
            (b"\xf8\x00", "an empty list with a long length"),
            (b"\xc2x", "a list that is cut off"),
        ];
        for (bytes, why) in cases {
            assert_eq!(take(&mut &bytes[..]), None, "{why}");
        }
        assert_eq!(number(b"\x00\x01"), None);
        assert_eq!(number(&[1; 9]), None);
        assert_eq!(number(b""), Some(0));
    }
}
