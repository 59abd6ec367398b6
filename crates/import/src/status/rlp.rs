//! The subset of RLP that envelopes use: one list of byte strings.

/// Why bytes are not a valid list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RlpError {
    #[error("the bytes are truncated")]
    Truncated,
    #[error("it is not a list")]
    NoList,
    #[error("there are bytes after the list")]
    Trailing,
    #[error("there is a list where a field should be")]
    Nested,
    #[error("a length or number is not encoded in the shortest form")]
    NotShortest,
    #[error("a number is too large")]
    TooLarge,
}

/// Parses bytes that are exactly one list.
pub(super) fn list(bytes: &[u8]) -> Result<Fields<'_>, RlpError> {
    let mut wire = bytes;
    let (is_list, content) = item(&mut wire)?;
    if !is_list {
        return Err(RlpError::NoList);
    }
    if wire.is_empty() { Ok(Fields(content)) } else { Err(RlpError::Trailing) }
}

/// Fields that are still to be parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next field as bytes.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], RlpError> {
        match item(&mut self.0)? {
            (false, content) => Ok(content),
            (true, _) => Err(RlpError::Nested),
        }
    }

    /// The next field as a number: big-endian, without leading zeros.
    pub(super) fn number(&mut self) -> Result<u64, RlpError> {
        let bytes = self.bytes()?;
        if bytes.first() == Some(&0) {
            return Err(RlpError::NotShortest);
        }
        if bytes.len() > 8 {
            return Err(RlpError::TooLarge);
        }
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

/// Splits off the first item: whether it is a list, and its content.
fn item<'a>(wire: &mut &'a [u8]) -> Result<(bool, &'a [u8]), RlpError> {
    let whole = *wire;
    let first = *take(wire, 1)?.first().ok_or(RlpError::Truncated)?;
    let (is_list, len) = match first {
        0..=0x7f => return Ok((false, whole.get(..1).ok_or(RlpError::Truncated)?)), // the byte is the content
        0x80..=0xb7 => (false, usize::from(first - 0x80)),
        0xb8..=0xbf => (false, long_len(wire, first - 0xb7)?),
        0xc0..=0xf7 => (true, usize::from(first - 0xc0)),
        0xf8..=0xff => (true, long_len(wire, first - 0xf7)?),
    };
    let content = take(wire, len)?;
    // A single byte below 0x80 is encoded as itself.
    let is_too_long = !is_list && matches!(content, [0..=0x7f]);
    if is_too_long { Err(RlpError::NotShortest) } else { Ok((is_list, content)) }
}

/// A length in so many bytes: above 55, as shorter ones are in the first byte.
fn long_len(wire: &mut &[u8], bytes: u8) -> Result<usize, RlpError> {
    let digits = take(wire, usize::from(bytes))?;
    let len = digits.iter().fold(0_u64, |len, byte| len << 8 | u64::from(*byte));
    if digits.first() == Some(&0) || len <= 55 {
        return Err(RlpError::NotShortest);
    }
    usize::try_from(len).map_err(|_| RlpError::Truncated)
}

fn take<'a>(wire: &mut &'a [u8], len: usize) -> Result<&'a [u8], RlpError> {
    let (item, rest) = wire.split_at_checked(len).ok_or(RlpError::Truncated)?;
    *wire = rest;
    Ok(item)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes a byte string, or the content of a list, as in the yellow paper of Ethereum (appendix B).
    fn put(out: &mut Vec<u8>, short: u8, content: &[u8]) {
        if short == 0x80 && matches!(content, [0..=0x7f]) {
            return out.extend_from_slice(content);
        }
        if content.len() <= 55 {
            out.push(short + content.len() as u8);
        } else {
            let digits = content.len().to_be_bytes();
            let zeros = digits.iter().take_while(|digit| **digit == 0).count();
            out.push(short + 55 + (digits.len() - zeros) as u8);
            out.extend_from_slice(&digits[zeros..]);
        }
        out.extend_from_slice(content);
    }

    pub(in crate::status) fn encode(fields: &[Vec<u8>]) -> Vec<u8> {
        let mut content = Vec::new();
        for field in fields {
            put(&mut content, 0x80, field);
        }
        let mut out = Vec::new();
        put(&mut out, 0xc0, &content);
        out
    }

    pub(in crate::status) fn encode_number(number: u64) -> Vec<u8> {
        number.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect()
    }

    fn decode(bytes: &[u8]) -> Result<Vec<Vec<u8>>, RlpError> {
        let mut fields = list(bytes)?;
        let mut found = Vec::new();
        while !fields.is_empty() {
            found.push(fields.bytes()?.to_vec());
        }
        Ok(found)
    }

    #[test]
    fn published_examples_are_parsed() {
        let cases: [(&[u8], &[&[u8]]); 4] = [
            (b"\xc0", &[]),
            (b"\xc8\x83cat\x83dog", &[b"cat", b"dog"]),
            (b"\xc4\x80\x00\x0f\x7f", &[b"", b"\x00", b"\x0f", b"\x7f"]),
            (b"\xc3\x82\x04\x00", &[b"\x04\x00"]),
        ];
        for (bytes, fields) in cases {
            assert_eq!(decode(bytes).unwrap(), fields, "{bytes:x?}");
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        use RlpError::{Nested, NoList, NotShortest, TooLarge, Trailing, Truncated};
        let cases: [(&[u8], RlpError); 10] = [
            (b"", Truncated),
            (b"\xc1", Truncated),
            (b"\xc2\x83a", Truncated),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff", Truncated),
            (b"\x83cat", NoList),
            (b"\xc0\x00", Trailing),
            (b"\xc1\xc0", Nested),
            (b"\xc2\x81\x05", NotShortest),
            (b"\xf8\x01\x05", NotShortest),
            (b"\xf9\x00\x01\x05", NotShortest),
        ];
        for (bytes, error) in cases {
            assert_eq!(decode(bytes), Err(error), "{bytes:x?}");
        }
        assert_eq!(list(b"\xc1\x00").unwrap().number(), Err(NotShortest));
        assert_eq!(list(b"\xca\x89\x01\0\0\0\0\0\0\0\0").unwrap().number(), Err(TooLarge));
        assert_eq!(list(b"\xc1\x80").unwrap().number(), Ok(0));
    }

    proptest! {
        #[test]
        fn lists_read_back(fields in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8)) {
            prop_assert_eq!(decode(&encode(&fields)), Ok(fields));
        }

        #[test]
        fn numbers_read_back(number: u64) {
            prop_assert_eq!(list(&encode(&[encode_number(number)])).unwrap().number(), Ok(number));
        }

        /// A list has one encoding: parsing and encoding returns the same bytes.
        #[test]
        fn parsed_lists_are_encoded_the_same(
            bytes in prop::collection::vec(prop_oneof![Just(0xc3_u8), Just(0x81), Just(0xb8), 0_u8..60, any::<u8>()], 0..80),
        ) {
            if let Ok(fields) = decode(&bytes) {
                prop_assert_eq!(encode(&fields), bytes);
            }
        }
    }
}
