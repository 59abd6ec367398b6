//! Journals and the manifest: records in blocks of 32 KiB, each piece of a record with a checksum.

use std::cmp::Reverse;

use super::{
    Notes, Written,
    wire::{Wire, is_checksum},
};

const BLOCK_BYTES: usize = 32 << 10;
/// Checksum, length and type of a piece.
const HEADER_BYTES: usize = 7;

/// The records of a file. What is damaged is passed over together with the rest of its block.
pub(super) struct Records<'a> {
    file: &'a [u8],
    at: usize,
    /// The beginning of a record that goes on in the next block.
    begun: Option<Vec<u8>>,
    /// Where damage was seen.
    pub(super) damage: Vec<usize>,
    /// Where a record begins that the end of the file cuts off: it was never finished, or its length is damaged.
    pub(super) torn: Option<usize>,
}

enum Piece<'a> {
    Whole(&'a [u8]),
    First(&'a [u8]),
    Middle(&'a [u8]),
    Last(&'a [u8]),
    /// The rest of the block is empty.
    Padding,
    Damaged,
    /// It goes beyond the end of the file.
    Torn,
}

impl<'a> Records<'a> {
    pub(super) fn new(file: &'a [u8]) -> Self {
        Self { file, at: 0, begun: None, damage: Vec::new(), torn: None }
    }

    fn left_in_block(&self) -> usize {
        BLOCK_BYTES - self.at % BLOCK_BYTES
    }

    /// The next piece, and moves behind it; `None` at the end of the file.
    fn piece(&mut self) -> Option<Piece<'a>> {
        if self.left_in_block() < HEADER_BYTES {
            self.at += self.left_in_block();
        }
        let mut wire = Wire(self.file.get(self.at..).filter(|left| !left.is_empty())?);
        let (Some(checksum), Some(low), Some(high), Some(kind)) =
            (wire.u32(), wire.byte(), wire.byte(), wire.byte())
        else {
            return Some(Piece::Torn);
        };
        let len = usize::from(u16::from_le_bytes([low, high]));
        if (checksum, len, kind) == (0, 0, 0) {
            return Some(Piece::Padding);
        }
        if HEADER_BYTES + len > self.left_in_block() {
            return Some(Piece::Damaged);
        }
        let Some(data) = wire.take(len) else { return Some(Piece::Torn) };
        if !is_checksum(checksum, [&[kind], data]) {
            return Some(Piece::Damaged);
        }
        self.at += HEADER_BYTES + len;
        Some(match kind {
            1 => Piece::Whole(data),
            2 => Piece::First(data),
            3 => Piece::Middle(data),
            4 => Piece::Last(data),
            _ => Piece::Damaged,
        })
    }

    fn skip_block(&mut self) {
        self.at += self.left_in_block();
    }
}

impl Iterator for Records<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let at = self.at;
            match self.piece()? {
                Piece::Whole(data) => {
                    self.begun = None;
                    return Some(data.to_vec());
                }
                Piece::First(data) => self.begun = Some(data.to_vec()),
                // Without a beginning these are the rest of a record whose beginning was damaged, which is noted already.
                Piece::Middle(data) => {
                    if let Some(begun) = &mut self.begun {
                        begun.extend_from_slice(data);
                    }
                }
                Piece::Last(data) => {
                    if let Some(mut record) = self.begun.take() {
                        record.extend_from_slice(data);
                        return Some(record);
                    }
                }
                Piece::Padding => self.skip_block(),
                Piece::Torn => {
                    self.torn = Some(at);
                    self.at = self.file.len();
                }
                Piece::Damaged => {
                    self.damage.push(at);
                    self.begun = None;
                    self.skip_block();
                }
            }
        }
    }
}

/// Adds what a journal says to what is known.
pub(super) fn replay(file: &[u8], name: &str, written: &mut Written, notes: &Notes) {
    let mut records = Records::new(file);
    for batch in &mut records {
        if replay_batch(&batch, written).is_none() {
            notes.damage(|| format!("{name}: a batch is cut off in its middle"));
        }
    }
    if let Some(at) = records.torn {
        notes.damage(|| {
            format!("{name}: it ends inside the record at byte {at}: an unfinished write, or damage")
        });
    }
    for at in records.damage {
        notes.damage(|| format!("{name}: the block at byte {at} is damaged"));
    }
}

/// A batch: the number of its first write, how many they are, and each as kind, key and value.
fn replay_batch(batch: &[u8], written: &mut Written) -> Option<()> {
    let mut wire = Wire(batch);
    let first = wire.u64()?;
    let count = wire.u32()?;
    for number in 0..u64::from(count) {
        let kind = wire.byte()?;
        let key = wire.bytes()?.to_vec();
        let value = match kind {
            0 => None,
            1 => Some(wire.bytes()?.to_vec()),
            _ => return None,
        };
        written.insert((key, Reverse(first.wrapping_add(number))), value);
    }
    Some(())
}
