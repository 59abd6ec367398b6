//! The formats of the files: names, the header of a pack, the header of a record. Described in `docs/formats/blobs.md`.

use restante_core::{BlobId, Timestamp};

use crate::Error;

/// The folders of a store.
pub(super) const PACKS: &str = "packs";
pub(super) const FILES: &str = "blobs";
pub(super) const INCOMING: &str = "incoming";
pub(super) const INDEX: &str = "index";
/// The owner of the blobs.
pub(super) const OWNER: &str = "OWNER";
/// The same while it is being written.
pub(super) const OWNER_NEW: &str = "OWNER.new";
/// Locked by the process that has the store open.
pub(super) const LOCK: &str = "LOCK";

/// The version of the format of packs, and of the index.
pub(super) const VERSION: u32 = 1;

const PACK_MAGIC: [u8; 8] = *b"RSTNTPCK";
/// The first bytes of a record. The first byte occurs in no UTF-8 text, so that few offsets look like a record.
const RECORD_MAGIC: [u8; 4] = [0xf5, b'B', b'L', b'B'];

/// Bytes of the header of a pack.
pub(super) const PACK_HEADER_BYTES: u64 = 32;
/// Bytes of the header of a record; the blob follows.
pub(super) const RECORD_HEADER_BYTES: usize = 56;
/// The longest blob that a setting can allow in a pack: it is held in memory when it is put and when it is read.
pub(super) const PACKED_BYTES_LIMIT: u64 = 1 << 20;
/// Bytes of a part of a file. Each part has a checksum and is read as a whole.
pub(super) const PART_BYTES: u64 = crate::CHUNK_BYTES_MAX as u64;
/// The longest blob that a setting can allow: its checksums, 4 bytes for each part, are one row of 256 KiB.
pub(super) const BLOB_BYTES_LIMIT: u64 = 64 << 30;

/// The name of a pack.
pub(super) fn pack_name(number: u64) -> String {
    format!("{PACKS}/{number:08}.pack")
}

/// The number of a pack, by the name of its file in the folder of packs.
pub(super) fn pack_number(file: &str) -> Option<u64> {
    let digits = file.strip_suffix(".pack")?;
    let number = digits.parse().ok()?;
    (pack_name(number) == format!("{PACKS}/{file}") && number > 0).then_some(number)
}

/// The name of a blob's own file and the folders above it, the nearest first. Two levels of 256 folders keep each of them short
/// with tens of millions of files.
pub(super) fn file_name(id: BlobId) -> (String, [String; 2]) {
    let hex = id.to_string();
    let (first, rest) = hex.split_at(2);
    let (second, _) = rest.split_at(2);
    let above = format!("{FILES}/{first}");
    let folder = format!("{above}/{second}");
    (format!("{folder}/{hex}"), [folder, above])
}

/// The header of a pack.
pub(super) fn pack_header(number: u64) -> [u8; PACK_HEADER_BYTES as usize] {
    let mut header = Vec::with_capacity(PACK_HEADER_BYTES as usize);
    header.extend_from_slice(&PACK_MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&[0; 4]);
    header.extend_from_slice(&number.to_le_bytes());
    header.extend_from_slice(&[0; 4]);
    let sum = crc32c::crc32c(&header);
    header.extend_from_slice(&sum.to_le_bytes());
    header.try_into().unwrap_or([0; PACK_HEADER_BYTES as usize])
}

/// The version in the header of a pack; `None` when it is damaged.
pub(super) fn pack_version(header: &[u8]) -> Option<u32> {
    let (covered, sum) = header.split_at_checked(PACK_HEADER_BYTES as usize - 4)?;
    let is_sound = covered.starts_with(&PACK_MAGIC) && sum == crc32c::crc32c(covered).to_le_bytes();
    let version = covered.get(8..12)?.try_into().ok()?;
    is_sound.then_some(u32::from_le_bytes(version))
}

/// The refusal of a file of another version.
pub(super) fn other_version(name: &str, version: u32) -> Error {
    let known = format!("this program knows version {VERSION}");
    let what = format!("{name} has format version {version}, and {known}: use the version that wrote it");
    Error::corrupt(what)
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) id: BlobId,
    pub(super) len: u32,
    pub(super) put_at: Timestamp,
    /// CRC-32C of the blob.
    pub(super) sum: u32,
}

impl RecordHeader {
    pub(super) fn new(id: BlobId, bytes: &[u8], put_at: Timestamp) -> Self {
        Self { id, len: bytes.len() as u32, put_at, sum: crc32c::crc32c(bytes) }
    }

    pub(super) fn put_into(&self, buffer: &mut Vec<u8>) {
        let begin = buffer.len();
        buffer.extend_from_slice(&RECORD_MAGIC);
        buffer.extend_from_slice(&self.len.to_le_bytes());
        buffer.extend_from_slice(&self.put_at.nanos().to_le_bytes());
        buffer.extend_from_slice(&self.id.0);
        buffer.extend_from_slice(&self.sum.to_le_bytes());
        let sum = crc32c::crc32c(buffer.get(begin..).unwrap_or_default());
        buffer.extend_from_slice(&sum.to_le_bytes());
    }

    /// Decodes the header at the front of `bytes`; `None` when it is damaged or not a header.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        if !bytes.starts_with(&RECORD_MAGIC) {
            return None;
        }
        let (covered, rest) = bytes.split_at_checked(RECORD_HEADER_BYTES - 4)?;
        let sum = u32::from_le_bytes(rest.first_chunk().copied()?);
        if sum != crc32c::crc32c(covered) {
            return None;
        }
        let header = Self {
            len: u32::from_le_bytes(covered.get(4..8)?.try_into().ok()?),
            put_at: Timestamp(i64::from_le_bytes(covered.get(8..16)?.try_into().ok()?)),
            id: BlobId(covered.get(16..48)?.try_into().ok()?),
            sum: u32::from_le_bytes(covered.get(48..52)?.try_into().ok()?),
        };
        let is_possible = u64::from(header.len) <= PACKED_BYTES_LIMIT;
        is_possible.then_some(header)
    }

    /// Whether the length and checksum match these bytes.
    pub(super) fn fits(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.len as usize && crc32c::crc32c(bytes) == self.sum
    }

    /// Bytes of the record in its pack.
    pub(super) fn record_bytes(&self) -> u64 {
        record_bytes(u64::from(self.len))
    }
}

/// Bytes in a pack of a blob of `blob_bytes` bytes.
pub(super) fn record_bytes(blob_bytes: u64) -> u64 {
    RECORD_HEADER_BYTES as u64 + blob_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::id_of;

    #[test]
    fn a_header_reads_back_and_no_bit_of_it_may_change() {
        let header = RecordHeader::new(id_of(b"abc"), b"abc", Timestamp(-5));
        let mut bytes = Vec::new();
        header.put_into(&mut bytes);
        assert_eq!(bytes.len(), RECORD_HEADER_BYTES);
        assert_eq!(RecordHeader::read(&bytes), Some(header));
        assert!(header.fits(b"abc") && !header.fits(b"abd") && !header.fits(b"ab"));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::read(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..bytes.len() {
            assert_eq!(RecordHeader::read(&bytes[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn a_pack_has_a_version_while_its_header_is_valid() {
        let mut header = pack_header(7);
        assert_eq!(pack_version(&header), Some(VERSION));
        header[16] ^= 1;
        assert_eq!(pack_version(&header), None);
        assert_eq!(pack_version(&header[..31]), None);
    }

    #[test]
    fn names_of_packs_read_back_and_others_are_none() {
        assert_eq!(pack_number("00000012.pack"), Some(12));
        assert_eq!(pack_number("123456789.pack"), Some(123_456_789));
        for name in ["00000000.pack", "12.pack", "00000012", "00000012.pack.tmp", "+0000012.pack", ".pack"] {
            assert_eq!(pack_number(name), None, "{name}");
        }
    }
}
