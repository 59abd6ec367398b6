//! Keys whose bytes sort like the values that they encode.
//!
//! LMDB compares keys bytewise; its flag for integer keys (`MDB_INTEGERKEY`) is never set here, since it silently loses
//! entries whose keys are neither 4 nor 8 bytes long. A number is packed instead: its length in bytes, then the bytes without
//! leading zeros, the highest first. That preserves the order and makes small numbers short.

use smallvec::SmallVec;

/// The longest key that LMDB accepts.
pub const KEY_BYTES_MAX: usize = 511;

/// A key being built. Most fit into it without an allocation.
pub type KeyBuf = SmallVec<[u8; 40]>;

/// A buffer for packed numbers and texts, for keys and values alike.
pub trait Pack {
    /// Appends bytes as they are.
    fn put_bytes(&mut self, bytes: &[u8]);

    /// Appends a number: 1 to 9 bytes that sort like the numbers.
    fn put_number(&mut self, number: u64) {
        let skipped = (number.leading_zeros() / 8) as usize;
        let len = 8 - skipped as u64;
        // The length is placed right before the highest nonzero byte.
        let packed = u128::from(number) | u128::from(len) << (8 * len);
        self.put_bytes(packed.to_be_bytes().get(7 + skipped..).unwrap_or_default());
    }

    /// Appends bytes of any length so that they sort the same whatever follows: 0 becomes 0 255, the end is 0 0.
    fn put_text(&mut self, text: &[u8]) {
        for byte in text {
            match byte {
                0 => self.put_bytes(&[0, 0xff]),
                other => self.put_bytes(&[*other]),
            }
        }
        self.put_bytes(&[0, 0]);
    }
}

impl Pack for KeyBuf {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Pack for Vec<u8> {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Takes a byte from the front.
pub fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (byte, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*byte)
}

/// Takes `len` bytes from the front.
pub fn take_bytes<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

/// Takes a packed number from the front; `None` when the bytes end within it, or it isn't packed as by [`Pack::put_number`].
pub fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let len = usize::from(take_byte(bytes)?);
    if len > 8 {
        return None;
    }
    let packed = take_bytes(bytes, len)?;
    if packed.first() == Some(&0) {
        return None; // a leading zero: the number has a shorter form
    }
    Some(packed.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Takes what [`Pack::put_text`] appended; `None` when the end is missing or an escape is invalid.
pub fn take_text(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    loop {
        match take_byte(bytes)? {
            0 => match take_byte(bytes)? {
                0 => return Some(text),
                0xff => text.push(0),
                _ => return None,
            },
            other => text.push(other),
        }
    }
}

/// The smallest key above all keys that begin with `prefix`; `None` when there is none.
pub fn after_prefix(prefix: &[u8]) -> Option<KeyBuf> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut next: KeyBuf = prefix.iter().take(last + 1).copied().collect();
    if let Some(byte) = next.last_mut() {
        *byte += 1;
    }
    Some(next)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packed_numbers_read_back_and_keep_their_order(a: u64, b: u64, shift in 0_u32..64) {
            let (a, b) = (a >> shift, b >> (shift / 2));
            let (mut packed_a, mut packed_b) = (KeyBuf::new(), KeyBuf::new());
            packed_a.put_number(a);
            packed_b.put_number(b);
            prop_assert_eq!(packed_a.cmp(&packed_b), a.cmp(&b));
            let mut rest = &packed_a[..];
            prop_assert_eq!(take_number(&mut rest), Some(a));
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn packed_texts_read_back_and_keep_their_order(
            a in prop::collection::vec(prop_oneof![Just(0_u8), Just(255), any::<u8>()], 0..6),
            b in prop::collection::vec(prop_oneof![Just(0_u8), Just(255), any::<u8>()], 0..6),
            behind: u8,
        ) {
            let (mut packed_a, mut packed_b) = (KeyBuf::new(), KeyBuf::new());
            packed_a.put_text(&a);
            packed_a.push(behind);
            packed_b.put_text(&b);
            packed_b.push(behind);
            prop_assert_eq!(packed_a.cmp(&packed_b), a.cmp(&b));
            prop_assert_eq!(take_text(&mut &packed_a[..]), Some(a));
        }

        #[test]
        fn what_follows_a_prefix_is_above_all_that_begin_with_it(
            prefix in prop::collection::vec(prop_oneof![Just(255_u8), any::<u8>()], 0..5),
            rest in prop::collection::vec(any::<u8>(), 0..5),
        ) {
            let inside: Vec<u8> = prefix.iter().chain(&rest).copied().collect();
            match after_prefix(&prefix) {
                Some(after) => {
                    prop_assert!(inside[..] < after[..]);
                    prop_assert!(!after.starts_with(&prefix));
                }
                None => prop_assert!(prefix.iter().all(|byte| *byte == 255)),
            }
        }
    }

    #[test]
    fn bytes_that_nobody_packed_are_refused() {
        assert_eq!(take_number(&mut &[9, 1, 1, 1, 1, 1, 1, 1, 1, 1][..]), None, "nine bytes");
        assert_eq!(take_number(&mut &[2, 0, 1][..]), None, "a leading zero");
        assert_eq!(take_number(&mut &[2, 1][..]), None, "cut short");
        assert_eq!(take_text(&mut &[1, 0, 7][..]), None, "no escape");
        assert_eq!(take_text(&mut &[1, 2][..]), None, "no end");
    }
}
