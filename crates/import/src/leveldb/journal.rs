//! Journals and the manifest: records in blocks of 32 KiB, split into fragments with a checksum each.

use std::cmp::Reverse;

use super::{
    Notes, Written,
    wire::{Wire, is_checksum},
};

const BLOCK_BYTES: usize = 32 << 10;
/// Checksum, length and type of a fragment.
const HEADER_BYTES: usize = 7;

/// Iterates over the records of a file. A damaged fragment is skipped together with the rest of its block.
pub(super) struct Records<'a> {
    file: &'a [u8],
    at: usize,
    /// The beginning of a record that continues in the next block.
    partial: Option<Vec<u8>>,
    /// The offsets of damage.
    pub(super) damage: Vec<usize>,
    /// The offset of a record that the end of the file truncates: it was never finished, or its length is damaged.
    pub(super) truncated: Option<usize>,
}

enum Fragment<'a> {
    Whole(&'a [u8]),
    First(&'a [u8]),
    Middle(&'a [u8]),
    Last(&'a [u8]),
    /// The rest of the block is empty.
    Padding,
    Damaged,
    /// It extends beyond the end of the file.
    Truncated,
}

impl<'a> Records<'a> {
    pub(super) fn new(file: &'a [u8]) -> Self {
        Self { file, at: 0, partial: None, damage: Vec::new(), truncated: None }
    }

    fn left_in_block(&self) -> usize {
        BLOCK_BYTES - self.at % BLOCK_BYTES
    }

    /// Reads the next fragment; `None` at the end of the file.
    fn fragment(&mut self) -> Option<Fragment<'a>> {
        if self.left_in_block() < HEADER_BYTES {
            self.at += self.left_in_block();
        }
        let mut wire = Wire(self.file.get(self.at..).filter(|left| !left.is_empty())?);
        let (Some(checksum), Some(low), Some(high), Some(kind)) =
            (wire.u32(), wire.byte(), wire.byte(), wire.byte())
        else {
            return Some(Fragment::Truncated);
        };
        let len = usize::from(u16::from_le_bytes([low, high]));
        if (checksum, len, kind) == (0, 0, 0) {
            return Some(Fragment::Padding);
        }
        if HEADER_BYTES + len > self.left_in_block() {
            return Some(Fragment::Damaged);
        }
        let Some(data) = wire.take(len) else { return Some(Fragment::Truncated) };
        if !is_checksum(checksum, [&[kind], data]) {
            return Some(Fragment::Damaged);
        }
        self.at += HEADER_BYTES + len;
        Some(match kind {
            1 => Fragment::Whole(data),
            2 => Fragment::First(data),
            3 => Fragment::Middle(data),
            4 => Fragment::Last(data),
            _ => Fragment::Damaged,
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
            match self.fragment()? {
                Fragment::Whole(data) => {
                    self.partial = None;
                    return Some(data.to_vec());
                }
                Fragment::First(data) => self.partial = Some(data.to_vec()),
                // Without a first fragment these belong to a record whose damage is already noted.
                Fragment::Middle(data) => {
                    if let Some(partial) = &mut self.partial {
                        partial.extend_from_slice(data);
                    }
                }
                Fragment::Last(data) => {
                    if let Some(mut record) = self.partial.take() {
                        record.extend_from_slice(data);
                        return Some(record);
                    }
                }
                Fragment::Padding => self.skip_block(),
                Fragment::Truncated => {
                    self.truncated = Some(at);
                    self.at = self.file.len();
                }
                Fragment::Damaged => {
                    self.damage.push(at);
                    self.partial = None;
                    self.skip_block();
                }
            }
        }
    }
}

/// Replays a journal into `written`.
pub(super) fn replay(file: &[u8], name: &str, written: &mut Written, notes: &Notes) {
    let mut records = Records::new(file);
    for batch in &mut records {
        if replay_batch(&batch, written).is_none() {
            notes.damage(|| format!("{name}: a batch is truncated"));
        }
    }
    if let Some(at) = records.truncated {
        notes.damage(|| {
            format!("{name}: it ends inside the record at byte {at}: an unfinished write, or damage")
        });
    }
    for at in records.damage {
        notes.damage(|| format!("{name}: the block at byte {at} is damaged"));
    }
}

/// Replays a batch: the sequence number of its first write, the number of writes, and each as kind, key and value.
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
