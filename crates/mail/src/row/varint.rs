//! Numbers of seven bits a byte, the lowest first; all bytes but the last have the highest bit.

/// Appends a number.
pub(super) fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A signed number as one that is small when the signed one is near 0.
pub(super) fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// Reads from the beginning; None at the end and for what [`put`] would not write.
pub(super) struct Reader<'r> {
    rest: &'r [u8],
}

impl<'r> Reader<'r> {
    pub(super) fn new(bytes: &'r [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn rest(&self) -> &'r [u8] {
        self.rest
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            let is_too_large = shift == 63 && bits > 1;
            let is_longer_than_needed = byte == 0 && shift > 0;
            if is_too_large || is_longer_than_needed {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn number_of_32_bits(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// A length and so many bytes of UTF-8.
    pub(super) fn string(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(std::str::from_utf8(text).ok()?.to_owned())
    }
}

/// Appends what [`Reader::string`] reads.
pub(super) fn put_string(text: &str, out: &mut Vec<u8>) {
    put(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_as_they_were_written(number: u64, signed: i64) {
            let mut bytes = Vec::new();
            put(number, &mut bytes);
            put(zigzag(signed), &mut bytes);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.number(), Some(number));
            prop_assert_eq!(reader.number().map(unzigzag), Some(signed));
            prop_assert!(reader.rest().is_empty());
        }
    }

    #[test]
    fn numbers_have_one_form() {
        for bytes in [
            &[][..],
            &[0x80],
            &[0x80, 0],
            &[0xff; 10],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
        ] {
            assert_eq!(Reader::new(bytes).number(), None, "{bytes:?}");
        }
        assert_eq!(
            Reader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).number(),
            Some(u64::MAX)
        );
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x1f]).number_of_32_bits(), None);
    }
}
