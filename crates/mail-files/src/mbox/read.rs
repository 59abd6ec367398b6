use std::{
    fs::File,
    io::{self, BufReader},
    ops::ControlFlow,
    path::Path,
};

use super::{
    from_line,
    split::{Content, Split, Splitter, unquoted},
    status,
    walk::{Mbox, mboxes},
};
use crate::{Each, FileMessage, FilesError, Folder, Found, export};

/// The size of the mboxes at a path, in bytes.
///
/// # Errors
/// It does not exist, can't be read, or has no mbox.
pub fn total_bytes(path: &Path) -> Result<u64, FilesError> {
    Ok(mboxes(path)?.iter().map(|mbox| mbox.bytes).sum())
}

/// Reads a file, or all mboxes below a folder. Messages that are longer than `bytes_max` and files that can't be read are
/// refused. Progress is in bytes.
///
/// # Errors
/// Those of [`total_bytes`]; `path` itself is a file that can't be read or is not an mbox.
pub fn read(path: &Path, bytes_max: u64, each: &mut Each<'_>) -> Result<(), FilesError> {
    let mboxes = mboxes(path)?;
    let mut done = 0;
    for mbox in &mboxes {
        match read_one(mbox, bytes_max, done, each) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => return Ok(()),
            Err(error) if mbox.path == path => return Err(FilesError::io("read", path)(error)),
            Err(error) => {
                let what = format!("{}: {error}", mbox.path.display());
                if each(Found::Refused(what), done).is_break() {
                    return Ok(());
                }
            }
        }
        done += mbox.bytes;
    }
    Ok(())
}

fn read_one(mbox: &Mbox, bytes_max: u64, done: u64, each: &mut Each<'_>) -> io::Result<ControlFlow<()>> {
    let file = File::open(&mbox.path)?;
    let ahead = file.try_clone()?;
    let mut splitter = Splitter::new(BufReader::with_capacity(256 << 10, file), ahead, bytes_max);
    // An mbox is a mailbox only if a message is in its own folder: a file of labelled messages is not one.
    let mut is_announced = false;
    let mut number = 0_u64;
    loop {
        let at = splitter.offset();
        let Some(split) = splitter.next_message()? else { break };
        number += 1;
        let found = match split.content {
            Content::Bytes(_) => message(split, &mbox.folder),
            Content::TooLong(bytes) => {
                let place = format!("{}, message {number} at byte {at}", mbox.path.display());
                Found::Refused(format!("{place}: it has {bytes} bytes, and at most {bytes_max} are taken"))
            }
        };
        is_announced |= matches!(&found, Found::Message(message) if !message.folders.contains(&mbox.folder));
        if !is_announced {
            is_announced = true;
            if each(Found::Folder(mbox.folder.clone()), done + at).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if each(found, done + splitter.offset()).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    if number == 0 {
        return Ok(each(Found::Folder(mbox.folder.clone()), done));
    }
    Ok(ControlFlow::Continue(()))
}

pub(super) fn message(split: Split, folder: &Folder) -> Found {
    let Split { from_line, content, is_unquoted, .. } = split;
    let Content::Bytes(content) = content else { return Found::Deleted };
    // Our own files are quoted, whatever an old Content-Length of a message says.
    let content = if is_unquoted && !status::is_ours(&content) { content } else { unquoted(content) };
    let read = status::read(content);
    if read.is_deleted {
        return Found::Deleted;
    }
    let key = export::key(read.named_by.as_deref().unwrap_or(&read.raw), read.id);
    let folders = if read.folders.is_empty() { vec![folder.clone()] } else { read.folders };
    Found::Message(FileMessage {
        folders,
        keywords: read.keywords,
        received: read.received,
        stored: from_line::time_of(&from_line),
        is_exact: read.is_exact,
        key,
        exported_id: read.id,
        raw: read.raw,
    })
}
