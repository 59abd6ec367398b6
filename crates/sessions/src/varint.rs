//! Small numbers in few bytes: seven bits per byte, the lowest first, as in LEB128.

use smallvec::{Array, SmallVec};

/// Appends a number.
#[inline]
pub(crate) fn put<A: Array<Item = u8>>(mut number: u32, out: &mut SmallVec<A>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number from the front; `None` when the bytes end within it or it is longer than 32 bits.
#[inline]
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u32> {
    if let Some((small @ 0..0x80, rest)) = bytes.split_first() {
        *bytes = rest;
        return Some(u32::from(*small));
    }
    let (long, rest) = take_long(bytes)?;
    *bytes = rest;
    Some(long)
}

#[cold]
fn take_long(mut bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut number = 0_u32;
    for shift in [0, 7, 14, 21, 28] {
        let byte = take_byte(&mut bytes)?;
        let part = u32::from(byte & 0x7f);
        if shift == 28 && part > 0xf {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some((number, bytes));
        }
    }
    None
}

/// Takes the first byte.
#[inline]
pub(crate) fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (byte, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*byte)
}

/// Takes `len` bytes.
#[inline]
pub(crate) fn take_slice<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

/// Takes exactly `N` bytes.
#[inline]
pub(crate) fn take_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive() {
        for number in [0, 1, 127, 128, 16_383, 16_384, u32::MAX] {
            let mut bytes: SmallVec<[u8; 8]> = SmallVec::new();
            put(number, &mut bytes);
            let mut rest = &bytes[..];
            assert_eq!((take(&mut rest), rest.len()), (Some(number), 0));
            assert_eq!(take(&mut &bytes[..bytes.len() - 1]), None, "{number} cut short");
        }
        assert_eq!(take(&mut &[0xff, 0xff, 0xff, 0xff, 0x1f][..]), None, "33 bits");
        assert_eq!(take(&mut &[0x80; 9][..]), None, "without an end");
    }
}
