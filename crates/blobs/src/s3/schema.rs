//! The keys and the small objects. `docs/formats/blobs-s3.md` describes them.

use restante_core::{BlobId, Timestamp};

use crate::Error;

/// The key of the object that identifies the layout; it is compared when a store is opened.
pub(super) const FORMAT: &str = "format";
/// The content of [`FORMAT`].
pub(super) const FORMAT_TEXT: &str = "restante blobs s3 1\n";
/// The key of the object with the identity of the records that own the blobs.
pub(super) const OWNER: &str = "owner";
/// The prefix of the keys of blobs.
pub(super) const BLOBS: &str = "b/";
/// The prefix of the keys of removed blobs.
pub(super) const TRASH: &str = "trash/";
/// The prefix of the keys of manifests.
pub(super) const LOG: &str = "log/";

/// The longest blob: a storage copies no more with one request.
pub(super) const BLOB_BYTES_LIMIT: u64 = 5 << 30;
/// The length of a part of a longer upload. S3 allows 10,000 of them.
pub(super) const PART_BYTES: u64 = 8 << 20;
/// Blobs up to this length are put by one request.
pub(super) const SINGLE_PUT_BYTES_MAX: u64 = PART_BYTES;

/// The first bytes of a manifest.
const MANIFEST_MAGIC: &[u8; 4] = b"RBM1";
const ENTRY_BYTES: usize = 40;
/// The most entries of a manifest.
pub(super) const MANIFEST_ENTRIES_MAX: usize = 16_384;

/// A time as a part of a key: texts have the same order as times.
fn time_text(time: Timestamp) -> String {
    format!("{:016x}", (time.nanos() as u64) ^ (1 << 63))
}

fn parse_time(text: &str) -> Option<Timestamp> {
    let is_time = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let bits = is_time.then(|| u64::from_str_radix(text, 16).ok()).flatten()?;
    Some(Timestamp((bits ^ (1 << 63)) as i64))
}

/// The key of a blob.
pub(super) fn blob_key(id: BlobId) -> String {
    let [first, ..] = id.0;
    format!("{BLOBS}{first:02x}/{id}")
}

/// The blob of a key; `None` if it is another kind of key.
pub(super) fn parse_blob_key(key: &str) -> Option<BlobId> {
    let (_, name) = key.strip_prefix(BLOBS)?.split_once('/')?;
    let id = name.parse().ok()?;
    (blob_key(id) == key).then_some(id)
}

/// A removal of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Removal {
    pub(super) id: BlobId,
    pub(super) at: Timestamp,
    /// It was removed because it was last put before this time.
    pub(super) put_before: Timestamp,
    /// The server that removed it.
    pub(super) server: u64,
}

impl Removal {
    pub(super) fn key(&self) -> String {
        let (at, put_before) = (time_text(self.at), time_text(self.put_before));
        format!("{}{at}-{put_before}-{:016x}", trash_of(self.id), self.server)
    }

    pub(super) fn parse(key: &str) -> Option<Self> {
        let (id, name) = key.strip_prefix(TRASH)?.split_once('/')?;
        let mut parts = name.split('-');
        let (at, put_before, server) = (parts.next()?, parts.next()?, parts.next()?);
        let server = u64::from_str_radix(server, 16).ok()?;
        let (at, put_before) = (parse_time(at)?, parse_time(put_before)?);
        let removal = Self { id: id.parse().ok()?, at, put_before, server };
        (removal.key() == key).then_some(removal)
    }
}

/// The prefix of the keys of the removals of a blob.
pub(super) fn trash_of(id: BlobId) -> String {
    format!("{TRASH}{id}/")
}

/// The key of a manifest.
pub(super) fn manifest_key(at: Timestamp, server: u64, number: u64) -> String {
    format!("{LOG}{}-{server:016x}-{number:08x}", time_text(at))
}

/// The time of a manifest; `None` if it is another kind of key.
pub(super) fn manifest_time(key: &str) -> Option<Timestamp> {
    let (time, _) = key.strip_prefix(LOG)?.split_once('-')?;
    parse_time(time)
}

/// A key that sorts before the manifests from a time on, and after earlier ones.
pub(super) fn manifests_from(time: Timestamp) -> String {
    format!("{LOG}{}", time_text(time))
}

/// Encodes a manifest.
pub(super) fn encode_manifest(entries: &[(BlobId, Timestamp)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + entries.len() * ENTRY_BYTES);
    bytes.extend_from_slice(MANIFEST_MAGIC);
    for (id, at) in entries {
        bytes.extend_from_slice(&id.0);
        bytes.extend_from_slice(&at.nanos().to_be_bytes());
    }
    let sum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
    bytes
}

/// Decodes a manifest.
///
/// # Errors
/// `Corrupt`.
pub(super) fn decode_manifest(key: &str, bytes: &[u8]) -> Result<Vec<(BlobId, Timestamp)>, Error> {
    let corrupt = || {
        Error::corrupt(format!(
            "the manifest {key} of the blobs is damaged: no blob is removed before it is deleted or restored from a copy"
        ))
    };
    let (content, sum) = bytes.split_last_chunk::<4>().ok_or_else(corrupt)?;
    if crc32c::crc32c(content) != u32::from_be_bytes(*sum) {
        return Err(corrupt());
    }
    let rows = content.strip_prefix(MANIFEST_MAGIC).ok_or_else(corrupt)?;
    let (rows, rest) = rows.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() {
        return Err(corrupt());
    }
    let mut entries = Vec::with_capacity(rows.len());
    for row in rows {
        let (id, at) = row.split_first_chunk::<32>().ok_or_else(corrupt)?;
        let at = at.first_chunk::<8>().ok_or_else(corrupt)?;
        entries.push((BlobId(*id), Timestamp(i64::from_be_bytes(*at))));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: BlobId = BlobId([0xa7; 32]);

    #[test]
    fn keys_read_back_and_others_are_nobodys() {
        let key = blob_key(ID);
        assert_eq!(key, format!("b/a7/{}", "a7".repeat(32)));
        assert_eq!(parse_blob_key(&key), Some(ID));
        for other in ["b/a7/x", "b/a7", "c/a7/a7", &key.replace("b/a7", "b/a8"), &key.to_uppercase()] {
            assert_eq!(parse_blob_key(other), None, "{other}");
        }
        let removal = Removal { id: ID, at: Timestamp(-5), put_before: Timestamp(7), server: 3 };
        assert_eq!(Removal::parse(&removal.key()), Some(removal));
        assert_eq!(Removal::parse(&format!("{}x", removal.key())), None);
        let key = manifest_key(Timestamp(12), 1, 2);
        assert_eq!(key, "log/800000000000000c-0000000000000001-00000002");
        assert_eq!(manifest_time(&key), Some(Timestamp(12)));
        assert_eq!(manifest_time("log/x-y"), None);
    }

    #[test]
    fn keys_of_times_are_in_the_order_of_times() {
        let times = [i64::MIN, -1, 0, 1, 1_000_000_000, i64::MAX].map(Timestamp);
        let keys = times.map(|time| manifest_key(time, 9, 9));
        assert!(keys.is_sorted(), "{keys:?}");
        for (time, key) in times.iter().zip(&keys) {
            let bound = manifests_from(*time);
            assert!(bound < *key && keys.iter().filter(|other| **other < bound).all(|other| other < key));
        }
    }

    #[test]
    fn a_manifest_reads_back_and_no_damage_goes_unseen() {
        let entries = [(ID, Timestamp(-1)), (BlobId([1; 32]), Timestamp::MAX)];
        let bytes = encode_manifest(&entries);
        assert_eq!(decode_manifest("x", &bytes).unwrap(), entries);
        assert_eq!(decode_manifest("x", &encode_manifest(&[])).unwrap(), []);
        for n in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[n] ^= 1;
            decode_manifest("x", &damaged).unwrap_err();
            decode_manifest("x", &bytes[..n]).unwrap_err();
        }
    }
}
