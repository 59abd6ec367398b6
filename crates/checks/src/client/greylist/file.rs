//! The file of a greylist: `docs/formats/greylist.md` describes it.

use restante_core::Error;
use restante_disk::Disk;
use sha2::{Digest, Sha256};

use super::pool::{Entry, Key};

const NAME: &str = "greylist";
const NEW: &str = "greylist.new";
const MAGIC: [u8; 8] = *b"RSTNTGRY";
const VERSION: u32 = 1;
/// Magic, version and the two counts of entries.
const HEADER_BYTES: usize = 28;
const DIGEST_BYTES: usize = 32;

/// The entries of a greylist.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Remembered {
    /// Clients that have sent again, oldest first.
    pub(super) known: Vec<Entry>,
    /// First attempts, oldest first.
    pub(super) waiting: Vec<Entry>,
}

/// Replaces the file durably.
///
/// # Errors
/// Those of the disk; then the old file is unchanged.
pub(super) fn write(disk: &dyn Disk, remembered: &Remembered) -> Result<(), Error> {
    let failed = |error| Error::io("write", disk.path(NAME).display(), error);
    let bytes = encode(remembered);
    disk.remove(NEW).map_err(failed)?;
    let file = disk.create(NEW).map_err(failed)?;
    file.write_at(&bytes, 0).map_err(failed)?;
    file.sync().map_err(failed)?;
    disk.rename(NEW, NAME).map_err(failed)?;
    disk.sync_folder("").map_err(failed)
}

/// Reads the file: no entries if there is none, `None` if it is damaged or of another version.
///
/// # Errors
/// Those of the disk.
pub(super) fn read(disk: &dyn Disk) -> Result<Option<Remembered>, Error> {
    match disk.read(NAME) {
        Ok(bytes) => Ok(decode(&bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Some(Remembered::default())),
        Err(error) => Err(Error::io("read", disk.path(NAME).display(), error)),
    }
}

fn encode(remembered: &Remembered) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    bytes.extend_from_slice(&(remembered.known.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(remembered.waiting.len() as u64).to_le_bytes());
    for entry in remembered.known.iter().chain(&remembered.waiting) {
        bytes.extend_from_slice(&entry.key);
        bytes.extend_from_slice(&entry.owner);
        bytes.extend_from_slice(&entry.at.to_le_bytes());
    }
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Remembered> {
    let (signed, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST_BYTES)?)?;
    if Sha256::digest(signed).as_slice() != digest {
        return None;
    }
    let (header, mut rest) = signed.split_at_checked(HEADER_BYTES)?;
    if header.get(..8)? != MAGIC || header.get(8..12)? != VERSION.to_le_bytes() {
        return None;
    }
    let mut count = |from: usize| {
        let count = header.get(from..from + 8)?.try_into().ok()?;
        let count = usize::try_from(u64::from_le_bytes(count)).ok()?;
        let mut entries = Vec::new();
        for _ in 0..count {
            let (entry, others) = rest.split_first_chunk::<40>()?;
            rest = others;
            entries.push(entry_of(entry)?);
        }
        Some(entries)
    };
    let remembered = Remembered { known: count(12)?, waiting: count(20)? };
    rest.is_empty().then_some(remembered)
}

fn entry_of(bytes: &[u8; 40]) -> Option<Entry> {
    let (key, rest) = bytes.split_first_chunk::<16>()?;
    let (owner, at) = rest.split_first_chunk::<16>()?;
    let (key, owner): (Key, Key) = (*key, *owner);
    Some(Entry { key, owner, at: u64::from_le_bytes(at.try_into().ok()?) })
}
