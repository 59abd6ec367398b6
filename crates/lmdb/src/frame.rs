//! A frame of the commit log: one batch of rows, proof against torn writes.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | magic, with the version of the format, xor the salt of the store |
//! | 4 | 4 | CRC-32C of all that follows |
//! | 8 | 4 | length of the rows in bytes |
//! | 12 | 4 | epoch: how often the store had been opened |
//! | 16 | 8 | sequence of the batch |
//! | 24 | 8 | sequence of the first batch of its group: all earlier batches were synced when this was written |
//! | 32 | | rows |
//!
//! Numbers are little-endian; a frame is padded with zeros to a multiple of 8 bytes. A row consists of the number of its table,
//! the packed length of its key and the key, and the packed length plus one of its value and the value; a zero in place of that
//! length means that the row is deleted.

use crate::{
    key::{KEY_BYTES_MAX, Pack, take_byte, take_bytes, take_number},
    layer::Sequence,
};

const MAGIC: u32 = u32::from_le_bytes(*b"RCL1");

/// A random number of each store. It keeps bytes in a value, or frames of another store, from passing for a frame.
pub(crate) type Salt = u32;

pub(crate) const HEADER_BYTES: usize = 32;
pub(crate) const ALIGNMENT: usize = 8;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) epoch: u32,
    pub(crate) sequence: Sequence,
    pub(crate) group: Sequence,
}

/// A frame that was read.
#[derive(Debug)]
pub(crate) struct Frame<'b> {
    pub(crate) head: Head,
    pub(crate) rows: &'b [u8],
    /// Including header and padding.
    pub(crate) len: usize,
}

/// A row of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FrameRow<'b> {
    pub(crate) table: u8,
    pub(crate) key: &'b [u8],
    pub(crate) value: Option<&'b [u8]>,
}

/// Appends a row to the rows of a frame.
pub(crate) fn put_row(out: &mut Vec<u8>, table: u8, key: &[u8], value: Option<&[u8]>) {
    out.push(table);
    out.put_number(key.len() as u64);
    out.put_bytes(key);
    match value {
        Some(value) => {
            out.put_number(value.len() as u64 + 1);
            out.put_bytes(value);
        }
        None => out.put_number(0),
    }
}

/// Begins a frame at the end of `out`; the caller adds rows, and then calls [`finish`] with the offset that this returns.
pub(crate) fn begin(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.resize(start + HEADER_BYTES, 0);
    start
}

/// Writes the header of the frame that begins at `start` and ends with `out`.
pub(crate) fn finish(out: &mut Vec<u8>, start: usize, head: Head, salt: Salt) {
    let rows_len = out.len() - start - HEADER_BYTES;
    let mut header = [0; HEADER_BYTES];
    let mut rest = &mut header[..];
    put(&mut rest, &(MAGIC ^ salt).to_le_bytes());
    put(&mut rest, &[0; 4]);
    put(&mut rest, &(rows_len as u32).to_le_bytes());
    put(&mut rest, &head.epoch.to_le_bytes());
    put(&mut rest, &head.sequence.to_le_bytes());
    put(&mut rest, &head.group.to_le_bytes());
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    let Some(frame) = out.get_mut(start..) else { return };
    let (place, _) = frame.split_at_mut(HEADER_BYTES);
    place.copy_from_slice(&header);
    let sum = crc32c::crc32c(frame.get(8..HEADER_BYTES + rows_len).unwrap_or_default());
    if let Some(place) = frame.get_mut(4..8) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
}

fn put(rest: &mut &mut [u8], bytes: &[u8]) {
    let (place, behind) = std::mem::take(rest).split_at_mut(bytes.len());
    place.copy_from_slice(bytes);
    *rest = behind;
}

/// The frame at the front of `bytes`; `None` when there is no complete one.
pub(crate) fn read(bytes: &[u8], salt: Salt) -> Option<Frame<'_>> {
    let (header, behind) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let mut rest = &header[..];
    if take_u32(&mut rest)? != MAGIC ^ salt {
        return None;
    }
    let sum = take_u32(&mut rest)?;
    let rows_len = take_u32(&mut rest)? as usize;
    let rows = behind.get(..rows_len)?;
    let epoch = take_u32(&mut rest)?;
    let sequence = take_u64(&mut rest)?;
    let group = take_u64(&mut rest)?;
    let summed = crc32c::crc32c(bytes.get(8..HEADER_BYTES + rows_len)?);
    let len = (HEADER_BYTES + rows_len).next_multiple_of(ALIGNMENT);
    (summed == sum).then_some(Frame { head: Head { epoch, sequence, group }, rows, len })
}

/// The next row of a frame's rows; `None` at the end, `Some(None)` when the rest is not a row.
pub(crate) fn take_row<'b>(rows: &mut &'b [u8]) -> Option<Option<FrameRow<'b>>> {
    (!rows.is_empty()).then(|| parse_row(rows))
}

fn parse_row<'b>(rows: &mut &'b [u8]) -> Option<FrameRow<'b>> {
    let table = take_byte(rows)?;
    let key_len = usize::try_from(take_number(rows)?).ok()?;
    if key_len == 0 || key_len > KEY_BYTES_MAX {
        return None;
    }
    let key = take_bytes(rows, key_len)?;
    let value = match usize::try_from(take_number(rows)?).ok()? {
        0 => None,
        len => Some(take_bytes(rows, len - 1)?),
    };
    Some(FrameRow { table, key, value })
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*number))
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SALT: Salt = 0x1234_5678;

    /// A row's table, key and value.
    type Owned = (u8, Vec<u8>, Option<Vec<u8>>);

    fn frame(head: Head, rows: &[Owned]) -> Vec<u8> {
        let mut out = vec![7; 8]; // a frame may follow others
        let start = begin(&mut out);
        for (table, key, value) in rows {
            put_row(&mut out, *table, key, value.as_deref());
        }
        finish(&mut out, start, head, SALT);
        out.split_off(8)
    }

    proptest! {
        #[test]
        fn a_frame_reads_back_and_no_damaged_one_does(
            rows in prop::collection::vec(
                (any::<u8>(), prop::collection::vec(any::<u8>(), 1..20), any::<Option<Vec<u8>>>()), 0..6),
            sequence: u64, group: u64, epoch: u32, damage: prop::sample::Index, bit in 0..8,
        ) {
            let head = Head { epoch, sequence, group };
            let mut bytes = frame(head, &rows);
            let found = read(&bytes, SALT).unwrap();
            prop_assert_eq!((found.head, found.len), (head, bytes.len()));
            let mut rest = found.rows;
            for (table, key, value) in &rows {
                let row = FrameRow { table: *table, key, value: value.as_deref() };
                prop_assert_eq!(take_row(&mut rest), Some(Some(row)));
            }
            prop_assert_eq!(take_row(&mut rest), None);
            let whole = HEADER_BYTES + found.rows.len();
            prop_assert!(read(&bytes[..whole - 1], SALT).is_none(), "cut short");
            prop_assert!(read(&bytes, SALT + 1).is_none(), "another store's");
            bytes[damage.index(whole)] ^= 1_u8 << bit;
            prop_assert!(read(&bytes, SALT).is_none());
        }

        #[test]
        fn no_bytes_make_rows_panic(bytes: Vec<u8>) {
            let mut rest = &bytes[..];
            while let Some(Some(_)) = take_row(&mut rest) {}
            prop_assert!(read(&bytes, SALT).is_none_or(|frame| frame.len >= HEADER_BYTES));
        }
    }
}
