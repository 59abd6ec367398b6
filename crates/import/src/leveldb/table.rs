//! A table: blocks of pairs, an index block with their offsets, and a footer with the offset of the index.

use std::{
    collections::VecDeque,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{
    BLOCK_BYTES_MAX, Entry, Notes,
    block::Block,
    name_of,
    wire::{Wire, is_checksum, split_key},
};
use crate::{Error, location::check_regular};

const FOOTER_BYTES: usize = 48;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// The compression of the block, and a checksum.
const TRAILER_BYTES: usize = 5;

/// Iterates over the pairs of a table.
pub(super) struct Table {
    file: TableBytes,
    /// Blocks that are not read yet.
    waiting: VecDeque<BlockHandle>,
    block: Option<(BlockHandle, Block)>,
}

/// The offset and length of a block, without its trailer.
#[derive(Clone, Copy, Debug)]
struct BlockHandle {
    offset: u64,
    len: usize,
}

struct TableBytes {
    file: File,
    name: String,
    len: u64,
}

impl Table {
    /// Opens a table to be read from the block that may contain `from`, or a later key.
    pub(super) fn open(folder: &Path, number: u64, from: &[u8]) -> Result<Self, Error> {
        let path = find(folder, number);
        let failed = |error| Error::io("read", path.display(), error);
        check_regular(&path)?;
        let file = File::open(&path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let file = TableBytes { file, name: name_of(&path), len };
        let index = file.index().map_err(|what| Error::corrupt(format!("{}: {what}", file.name)))?;
        let waiting = index.into_iter().filter(|(last, _)| last.as_slice() >= from);
        Ok(Self { waiting: waiting.map(|(_, handle)| handle).collect(), file, block: None })
    }

    /// The next entry. Damaged blocks are noted and skipped.
    pub(super) fn next(&mut self, notes: &Notes) -> Option<Entry> {
        loop {
            if let Some((handle, block)) = &mut self.block {
                match next_of(block) {
                    Ok(Some(entry)) => return Some(entry),
                    Ok(None) => {}
                    Err(()) => self.file.note(*handle, "its pairs can't be parsed", notes),
                }
                self.block = None;
            }
            let handle = self.waiting.pop_front()?;
            notes.read((handle.len + TRAILER_BYTES) as u64);
            match self.file.block(handle) {
                Ok(block) => self.block = Some((handle, block)),
                Err(what) => self.file.note(handle, &what, notes),
            }
        }
    }
}

fn next_of(block: &mut Block) -> Result<Option<Entry>, ()> {
    let Some((key, value)) = block.next()? else { return Ok(None) };
    let (key, sequence, is_value) = split_key(key).ok_or(())?;
    let value = is_value.then(|| value.to_vec());
    Ok(Some(Entry { key: key.to_vec(), sequence, value }))
}

/// A table's file: `.ldb`, and `.sst` in old LevelDBs.
fn find(folder: &Path, number: u64) -> PathBuf {
    let old = folder.join(format!("{number:06}.sst"));
    if old.is_file() { old } else { folder.join(format!("{number:06}.ldb")) }
}

impl TableBytes {
    fn note(&self, handle: BlockHandle, what: &str, notes: &Notes) {
        notes.damage(|| format!("{}: the block at byte {} is damaged: {what}", self.name, handle.offset));
    }

    /// The last key of each block, and its handle.
    fn index(&self) -> Result<Vec<(Vec<u8>, BlockHandle)>, String> {
        let footer_at =
            self.len.checked_sub(FOOTER_BYTES as u64).ok_or("it is not a table: it is too short")?;
        let footer = self.read(footer_at, FOOTER_BYTES)?;
        let handle = index_handle(&footer).ok_or("it is not a table: its end is damaged")?;
        let mut block = self.block(handle)?;
        let mut index = Vec::new();
        while let Some((key, value)) = block.next().map_err(|()| "its index is damaged")? {
            let key = split_key(key).map(|(key, _, _)| key.to_vec());
            let handle = parse_handle(&mut Wire(value));
            index.push(key.zip(handle).ok_or("its index is damaged")?);
        }
        Ok(index)
    }

    fn block(&self, handle: BlockHandle) -> Result<Block, String> {
        if handle.len > BLOCK_BYTES_MAX {
            return Err(format!("a length of {} bytes, which no block has", handle.len));
        }
        let mut bytes = self.read(handle.offset, handle.len + TRAILER_BYTES)?;
        let trailer = bytes.split_off(handle.len);
        let mut trailer = Wire(&trailer);
        let (Some(compression), Some(checksum)) = (trailer.byte(), trailer.u32()) else {
            return Err("its end is missing".into());
        };
        if !is_checksum(checksum, [&bytes, &[compression]]) {
            return Err("its checksum is wrong".into());
        }
        let bytes = match compression {
            0 => bytes,
            1 => unpack(&bytes)?,
            other => return Err(format!("compression {other} is not known")),
        };
        Block::new(bytes).ok_or_else(|| "it is not a block".into())
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err("it extends beyond the end of the file".into());
        }
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset).map_err(|error| error.to_string())?;
        Ok(bytes)
    }
}

/// The handle of the index, from the footer: two handles, padding, the magic number.
fn index_handle(footer: &[u8]) -> Option<BlockHandle> {
    let (handles, magic) = footer.split_last_chunk::<8>()?;
    if u64::from_le_bytes(*magic) != MAGIC {
        return None;
    }
    let mut wire = Wire(handles);
    parse_handle(&mut wire)?; // of optional parts such as filters
    parse_handle(&mut wire)
}

fn parse_handle(wire: &mut Wire<'_>) -> Option<BlockHandle> {
    Some(BlockHandle { offset: wire.varint()?, len: wire.len()? })
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>, String> {
    let failed = |error: snap::Error| format!("it can't be decompressed: {error}");
    let len = snap::raw::decompress_len(packed).map_err(failed)?;
    if len > BLOCK_BYTES_MAX {
        return Err(format!("it has {len} bytes when decompressed, which no block has"));
    }
    snap::raw::Decoder::new().decompress_vec(packed).map_err(failed)
}
