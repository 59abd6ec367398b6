//! The checksums of the parts of a file, by which a range of it can be verified without the rest.

use super::schema::PART_BYTES;

/// Computes checksums.
#[derive(Default)]
pub(super) struct Sums {
    done: Vec<u8>,
    /// The checksum and length of the incomplete part.
    open: u32,
    open_bytes: u64,
}

impl Sums {
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = PART_BYTES - self.open_bytes;
            let (part, rest) = bytes.split_at(bytes.len().min(left as usize));
            self.open = crc32c::crc32c_append(self.open, part);
            self.open_bytes += part.len() as u64;
            if self.open_bytes == PART_BYTES {
                self.end_part();
            }
            bytes = rest;
        }
    }

    /// CRC-32C of each part, 4 bytes, little-endian.
    pub(super) fn finish(mut self) -> Vec<u8> {
        if self.open_bytes > 0 {
            self.end_part();
        }
        self.done
    }

    fn end_part(&mut self) {
        self.done.extend_from_slice(&self.open.to_le_bytes());
        (self.open, self.open_bytes) = (0, 0);
    }
}

/// Whether these bytes match the checksum of part `number`.
pub(super) fn fits(sums: &[u8], part: u64, bytes: &[u8]) -> bool {
    let begin = part as usize * 4;
    sums.get(begin..begin + 4) == Some(&crc32c::crc32c(bytes).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_depend_on_how_the_bytes_came() {
        let bytes: Vec<u8> = (0..2 * PART_BYTES + 5).map(|n| (n % 251) as u8).collect();
        let mut whole = Sums::default();
        whole.add(&bytes);
        let whole = whole.finish();
        let mut pieces = Sums::default();
        bytes.chunks(300_007).for_each(|piece| pieces.add(piece));
        assert_eq!(pieces.finish(), whole);
        assert_eq!(whole.len(), 3 * 4);
        for (number, part) in bytes.chunks(PART_BYTES as usize).enumerate() {
            assert!(fits(&whole, number as u64, part));
            assert!(!fits(&whole, number as u64, &part[1..]));
        }
        assert!(!fits(&whole, 3, b""), "there is no fourth part");
        assert!(Sums::default().finish().is_empty());
    }
}
