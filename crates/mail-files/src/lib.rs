//! Reads and writes mail in files of other programs: mbox in its variants, and Maildir++.
//!
//! Sources are read sequentially with one message in memory; the file names of a Maildir are in memory, folder by folder. The
//! functions block: callers run them in their own thread.

mod export;
mod folder;
mod header;
mod keywords;
pub mod maildir;
pub mod mbox;
mod utf_7;

use std::{io, ops::ControlFlow, path::PathBuf};

pub use export::{ExportedMessage, MANIFEST};
pub use folder::Folder;
pub use keywords::well_known_keyword;

/// An item of a source.
#[derive(Debug)]
pub enum Found {
    /// A folder, before its messages.
    Folder(Folder),
    /// A message.
    Message(FileMessage),
    /// A message that its own program has marked as deleted but not yet removed.
    Deleted,
    /// A message or a file that can't be imported: where it is, and why.
    Refused(String),
}

/// A message in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMessage {
    /// The folders that it is in, at least one.
    pub folders: Vec<Folder>,
    /// Its keywords, with JMAP's names for known ones; others in any case, and possibly invalid in JMAP.
    pub keywords: Vec<String>,
    /// When it was received, in seconds since 1970, if the source has this.
    pub received: Option<i64>,
    /// When it was put into the file, which is not more reliable than the message's own date.
    pub stored: Option<i64>,
    /// Whether `raw` has the bytes of the original message. Otherwise its line breaks are those of the file.
    pub is_exact: bool,
    /// Identifies the message: equal for the same message in several folders of the source, also after its flags have changed.
    pub key: [u8; 32],
    /// The id of the email in the account from which our own export was made.
    pub exported_id: Option<u64>,
    /// Its bytes, without what the file format adds.
    pub raw: Vec<u8>,
}

/// Why a source can't be read, or a target can't be written.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The system refused it.
    #[error("can't {what} {}: {error}", path.display())]
    Io {
        /// The operation that failed, as `read`.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Its error.
        error: io::Error,
    },
    /// The path is something else.
    #[error("{} {why}", path.display())]
    Not {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, and how to fix it.
        why: &'static str,
    },
}

impl FilesError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { what, path, error }
    }
}

/// Called with each item of a source, in its order, and with how much of the source was read, in the unit of its total.
pub type Each<'e> = dyn FnMut(Found, u64) -> ControlFlow<()> + 'e;

/// Reads any bytes as an mbox, and writes them as a message of one; for a fuzz target.
///
/// # Panics
/// If reading panics, if a byte is lost, or if an exported message is not read back unchanged.
#[doc(hidden)]
pub fn fuzz_mbox(bytes: &[u8]) {
    mbox::fuzz::read(bytes);
    mbox::fuzz::export(bytes);
}
