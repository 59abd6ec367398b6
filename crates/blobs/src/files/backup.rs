//! A copy of a store in use.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::Path,
};

use restante_core::{BlobId, ErrorKind};
use tracing::warn;

use super::{
    index::{Entry, Files, Index, Location, Pack, Row},
    owner,
    schema::{FILES, OWNER, PACKS, file_name, pack_name},
    shared::Shared,
};
use crate::Error;

/// Rows that are copied at once.
const PAGE_BLOBS: usize = 4_096;

/// Fails unless the folder exists and is empty.
pub(super) fn check_folder(folder: &Path) -> Result<(), Error> {
    let name = folder.display().to_string();
    let mut entries = std::fs::read_dir(folder).map_err(|error| Error::io("read", &name, error))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(Error::conflict(format!("the folder {name} is not empty: name another one"))),
    }
}

/// Copies the store into a folder; returns the index of the copy, which the caller closes. Nothing may be removed meanwhile.
///
/// The index is copied before the packs, so that the packs contain everything in it; further records of a pack are read when the
/// copy is opened. Files never change, and are hard-linked where the file system can.
pub(super) fn copy(shared: &Shared, folder: &Path) -> Result<Index, Error> {
    let target = Target { folder };
    for name in [PACKS, FILES] {
        target.create_folder(name)?;
    }
    // Their lengths in the ledger may include blobs whose rows are not written yet.
    let known = shared.index()?.packs()?;
    target.write_owner(shared)?;
    let index = Index::open_copy(folder)?;
    let mut copied = Copied { packs: BTreeMap::new(), files: Files::default(), folders: BTreeSet::new() };
    for (number, Pack { len, .. }) in known {
        copied.packs.insert(number, Pack { len, ..Pack::default() });
    }
    copy_blobs(shared, &index, &target, &mut copied)?;
    let mut rows: Vec<Row> = copied.packs.iter().map(|(number, pack)| Row::Pack(*number, *pack)).collect();
    rows.push(Row::Files(copied.files));
    index.write(rows)?;
    let packs = shared.ledger.lock().packs.clone();
    for (number, pack) in packs {
        target.copy(shared, &pack_name(number), pack.len)?;
    }
    copied.folders.extend([PACKS, FILES, ""].map(str::to_owned));
    // The deepest first, so that every synced folder contains only durable names.
    copied.folders.iter().rev().try_for_each(|folder| target.sync_folder(folder))?;
    Ok(index)
}

/// The contents of the copy so far.
struct Copied {
    packs: BTreeMap<u64, Pack>,
    files: Files,
    /// Folders of files to sync.
    folders: BTreeSet<String>,
}

impl Copied {
    fn count(&mut self, entry: &Entry) {
        match entry.location {
            Location::File => {
                self.files.blobs += 1;
                self.files.bytes += entry.bytes;
            }
            Location::Pack { number, offset } => {
                // Later records are counted when the copy is opened.
                if let Some(pack) = self.packs.get_mut(&number).filter(|pack| offset < pack.len) {
                    pack.live += 1;
                    pack.live_bytes += entry.record_bytes();
                }
            }
        }
    }
}

fn copy_blobs(shared: &Shared, copy: &Index, target: &Target<'_>, copied: &mut Copied) -> Result<(), Error> {
    let index = shared.index()?;
    let mut after = None;
    loop {
        let page = index.page(after, PAGE_BLOBS)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = Some(*last);
        let mut rows = Vec::new();
        for (id, entry) in page {
            if entry.location == Location::File {
                let sums = index.sums(id)?.unwrap_or_default();
                rows.push(Row::Sums(id, sums));
                target.link(shared, id, entry.bytes, &mut copied.folders)?;
            }
            copied.count(&entry);
            rows.push(Row::Blob(id, entry));
        }
        copy.write(rows)?;
    }
}

/// The folder of the copy.
struct Target<'a> {
    folder: &'a Path,
}

impl Target<'_> {
    fn create_folder(&self, name: &str) -> Result<(), Error> {
        match std::fs::create_dir(self.folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done.map_err(|error| Error::io("create", name, error)),
        }
    }

    fn sync_folder(&self, name: &str) -> Result<(), Error> {
        let synced = File::open(self.folder.join(name)).and_then(|folder| folder.sync_all());
        synced.map_err(|error| Error::io("sync", name, error))
    }

    /// Copies the owner. A damaged one is left out: it has to be set again for both.
    fn write_owner(&self, shared: &Shared) -> Result<(), Error> {
        let owner = match owner::read(&*shared.disk) {
            Ok(Some(owner)) => owner,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                warn!(%error, "the copy has no owner of the blobs");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let path = self.folder.join(OWNER);
        let written = File::create_new(path).and_then(|mut file| {
            file.write_all(owner::text(owner).as_bytes())?;
            file.sync_all()
        });
        written.map_err(|error| Error::io("write", OWNER, error))
    }

    fn link(
        &self,
        shared: &Shared,
        id: BlobId,
        bytes: u64,
        folders: &mut BTreeSet<String>,
    ) -> Result<(), Error> {
        let (name, [folder, above]) = file_name(id);
        if !folders.contains(&folder) {
            self.create_folder(&above)?;
            self.create_folder(&folder)?;
            folders.extend([folder, above]);
        }
        match std::fs::hard_link(shared.disk.path(&name), self.folder.join(&name)) {
            Ok(()) => Ok(()),
            Err(_) => self.copy(shared, &name, bytes), // another file system, or one without links
        }
    }

    /// Copies the first bytes of a file, and syncs them. A missing file is missing in the copy too, without failing the rest.
    fn copy(&self, shared: &Shared, name: &str, bytes: u64) -> Result<(), Error> {
        match copy_file(&shared.disk.path(name), &self.folder.join(name), bytes) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                warn!(file = name, "a file is not there and was not copied");
                Ok(())
            }
            copied => copied.map_err(|error| Error::io("copy", name, error)),
        }
    }
}

fn copy_file(from: &Path, to: &Path, bytes: u64) -> io::Result<()> {
    let mut source = File::open(from)?.take(bytes);
    let mut target = OpenOptions::new().write(true).create_new(true).open(to)?;
    io::copy(&mut source, &mut target)?;
    target.sync_all()
}
