//! LevelDB's encoding of numbers and byte strings, and its checksum.

/// Bytes that are still to be parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire<'a>(pub(super) &'a [u8]);

impl<'a> Wire<'a> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*bytes))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    /// A number of one to ten bytes, seven bits in each, the lowest first.
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return None;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn len(&mut self) -> Option<usize> {
        usize::try_from(self.varint()?).ok()
    }

    /// A length-prefixed byte string.
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.len()?;
        self.take(len)
    }
}

/// Whether a stored checksum is that of these parts. LevelDB rotates and offsets a CRC-32C, because the CRC of data that
/// includes CRCs is weak.
pub(super) fn is_checksum(stored: u32, parts: [&[u8]; 2]) -> bool {
    let [first, second] = parts;
    let crc = crc32c::crc32c_append(crc32c::crc32c(first), second);
    crc.rotate_right(15).wrapping_add(0xa282_ead8) == stored
}

/// The parts of a key in a table: the user's key, the sequence number, and whether it is a value (or a deletion).
pub(super) fn split_key(key: &[u8]) -> Option<(&[u8], u64, bool)> {
    let (user_key, tag) = key.split_last_chunk::<8>()?;
    let tag = u64::from_le_bytes(*tag);
    match tag & 0xff {
        0 => Some((user_key, tag >> 8, false)),
        1 => Some((user_key, tag >> 8, true)),
        _ => None,
    }
}
