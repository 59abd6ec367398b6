//! The owner of the blobs, in a file of its own because the index is discarded when it is damaged.

use std::io;

use restante_core::Identity;
use restante_disk::Disk;

use super::schema::{OWNER, OWNER_NEW};
use crate::Error;

/// Reads the owner; `None` when the file does not exist.
pub(super) fn read(disk: &dyn Disk) -> Result<Option<Identity>, Error> {
    let text = match std::fs::read(disk.path(OWNER)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", OWNER, error)),
    };
    let owner = str::from_utf8(&text).ok().and_then(|text| text.trim_end().parse().ok());
    owner.map(Some).ok_or_else(|| {
        let what = "the file OWNER of the blobs is damaged: stop the server and run `restante blobs sweep --adopt`, which \
                    makes them the blobs of the present records, or put back OWNER from a backup";
        Error::corrupt(what)
    })
}

/// Writes a new file, and renames it over the old one.
pub(super) fn write(disk: &dyn Disk, owner: Identity) -> Result<(), Error> {
    replace(disk, &text(owner)).map_err(|error| Error::io("write", OWNER, error))
}

/// The contents of the file.
pub(super) fn text(owner: Identity) -> String {
    format!("{owner}\n")
}

fn replace(disk: &dyn Disk, text: &str) -> io::Result<()> {
    disk.remove(OWNER_NEW)?; // of a former attempt
    let file = disk.create(OWNER_NEW)?;
    file.write_at(text.as_bytes(), 0)?;
    file.sync()?;
    disk.rename(OWNER_NEW, OWNER)?;
    disk.sync_folder("")
}
