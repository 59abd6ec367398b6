//! A block of a table: pairs in order, each key without the prefix that it shares with the previous one.

use super::wire::Wire;

/// A key and its value.
pub(super) type Pair<'a> = (&'a [u8], &'a [u8]);

/// Iterates over the pairs of a block.
pub(super) struct Block {
    /// The block without the offsets at its end, which only searching needs.
    bytes: Vec<u8>,
    at: usize,
    key: Vec<u8>,
}

impl Block {
    /// `None` when the bytes are not a block.
    pub(super) fn new(mut bytes: Vec<u8>) -> Option<Self> {
        let (_, count) = bytes.split_last_chunk::<4>()?;
        let offsets = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_add(1)?.checked_mul(4)?;
        bytes.truncate(bytes.len().checked_sub(offsets)?);
        Some(Self { bytes, at: 0, key: Vec::new() })
    }

    /// The next key and value. `Ok(None)` at the end, an error when the bytes can't be parsed.
    pub(super) fn next(&mut self) -> Result<Option<Pair<'_>>, ()> {
        let left = self.bytes.get(self.at..).unwrap_or_default();
        if left.is_empty() {
            return Ok(None);
        }
        let mut wire = Wire(left);
        let value = step(&mut wire, &mut self.key).ok_or(())?;
        self.at = self.bytes.len() - wire.0.len();
        Ok(Some((&self.key, value)))
    }
}

/// Parses a pair: updates the key and returns the value.
fn step<'a>(wire: &mut Wire<'a>, key: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (shared, own, value) = (wire.len()?, wire.len()?, wire.len()?);
    if shared > key.len() {
        return None;
    }
    key.truncate(shared);
    key.extend_from_slice(wire.take(own)?);
    wire.take(value)
}
