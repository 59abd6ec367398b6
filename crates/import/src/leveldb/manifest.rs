//! The files of a LevelDB: `CURRENT` names the manifest, which lists the tables and the journals.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::{
    journal::Records,
    name_of, read_whole,
    wire::{Wire, split_key},
};
use crate::Error;

/// The order of a Status mailserver's keys. With another order the merge would return pairs twice or lose them.
const COMPARATOR: &[u8] = b"leveldb.BytewiseComparator";

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableFile {
    pub(super) number: u64,
    pub(super) bytes: u64,
    pub(super) smallest: Vec<u8>,
    pub(super) largest: Vec<u8>,
}

/// The files in use.
#[derive(Debug, Default)]
pub(super) struct Manifest {
    /// The tables of each level, in order of their smallest keys.
    pub(super) levels: BTreeMap<u64, Vec<TableFile>>,
    /// Journals with lower numbers are already in the tables.
    journal: u64,
    /// The one exception: a journal that is not in the tables yet.
    previous_journal: u64,
    /// The damage at the end of the manifest.
    pub(super) truncated: Option<String>,
}

impl Manifest {
    pub(super) fn read(folder: &Path) -> Result<Self, Error> {
        let current = folder.join("CURRENT");
        let text = read_whole(&current)?;
        let name = std::str::from_utf8(&text).unwrap_or_default().trim_end_matches('\n');
        let is_name = name
            .strip_prefix("MANIFEST-")
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
        if !is_name {
            return Err(Error::corrupt(format!("{} names no manifest", current.display())));
        }
        let path = folder.join(name);
        let file = read_whole(&path)?;
        let (mut manifest, truncated) =
            Self::parse(&file).ok_or_else(|| Error::corrupt(format!("{} is damaged", path.display())))?;
        manifest.truncated = truncated
            .map(|at| format!("{name}: it ends inside the record at byte {at}: tables may be missing"));
        Ok(manifest)
    }

    /// Applies all edits of a manifest. Also returns the offset of a truncated record. `None` if an edit is damaged, since the
    /// rest can't be trusted then.
    fn parse(file: &[u8]) -> Option<(Self, Option<usize>)> {
        let mut tables = BTreeMap::new();
        let mut manifest = Self::default();
        let mut records = Records::new(file);
        for edit in &mut records {
            manifest.apply(&edit, &mut tables)?;
        }
        if !records.damage.is_empty() {
            return None;
        }
        for ((level, _), table) in tables {
            manifest.levels.entry(level).or_default().push(table);
        }
        for level in manifest.levels.values_mut() {
            level.sort_by(|one, other| one.smallest.cmp(&other.smallest));
        }
        Some((manifest, records.truncated))
    }

    fn apply(&mut self, edit: &[u8], tables: &mut BTreeMap<(u64, u64), TableFile>) -> Option<()> {
        let mut wire = Wire(edit);
        while !wire.0.is_empty() {
            match wire.varint()? {
                1 => {
                    if wire.bytes()? != COMPARATOR {
                        return None;
                    }
                }
                2 => self.journal = wire.varint()?,
                // The next file's number, and the last sequence number.
                3 | 4 => {
                    wire.varint()?;
                }
                // The key at which the next compaction of a level begins.
                5 => {
                    wire.varint()?;
                    wire.bytes()?;
                }
                6 => {
                    tables.remove(&(wire.varint()?, wire.varint()?));
                }
                7 => {
                    let (level, number, bytes) = (wire.varint()?, wire.varint()?, wire.varint()?);
                    let (smallest, _, _) = split_key(wire.bytes()?)?;
                    let (largest, _, _) = split_key(wire.bytes()?)?;
                    let (smallest, largest) = (smallest.to_vec(), largest.to_vec());
                    tables.insert((level, number), TableFile { number, bytes, smallest, largest });
                }
                9 => self.previous_journal = wire.varint()?,
                _ => return None,
            }
        }
        Some(())
    }

    /// The journals that are not in the tables yet, oldest first.
    pub(super) fn journals(&self, folder: &Path) -> Result<Vec<PathBuf>, Error> {
        let failed = |error| Error::io("read", folder.display(), error);
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = name_of(&path);
            let number = name.strip_suffix(".log").and_then(|number| number.parse().ok());
            if let Some(number) = number.filter(|number| self.is_needed(*number)) {
                found.insert(number, path);
            }
        }
        Ok(found.into_values().collect())
    }

    fn is_needed(&self, journal: u64) -> bool {
        journal >= self.journal || (journal == self.previous_journal && journal != 0)
    }
}
