//! Mail in files of other programs, read and written: mbox in its variants, and Maildir++.
//!
//! Everything is read from the front to the end with one message in memory; a Maildir's names are in memory, folder by folder.
//! The functions block: callers run them in a thread of their own.

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

/// What a source has.
#[derive(Debug)]
pub enum Found {
    /// A folder, before its messages.
    Folder(Folder),
    /// A message.
    Message(FileMessage),
    /// A message that the source's own program has marked as deleted and not yet removed.
    Deleted,
    /// A message or a file that can't be imported: where it is, and why.
    Refused(String),
}

/// A message in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMessage {
    /// The folders that it is in, one at least.
    pub folders: Vec<Folder>,
    /// Its keywords, as JMAP names those that it knows; others in any case, and perhaps not possible in JMAP.
    pub keywords: Vec<String>,
    /// When it was received, in seconds since 1970, if the source says so.
    pub received: Option<i64>,
    /// When it was put into the file, which is not better than what the message itself says.
    pub stored: Option<i64>,
    /// Whether `raw` has the bytes of the original message. Else its line breaks are those of the file.
    pub is_exact: bool,
    /// What names the message: equal for the same message in several folders of the source, also after its flags have changed.
    pub key: [u8; 32],
    /// The id that the email had in the account that our own export was made of.
    pub exported_id: Option<u64>,
    /// Its bytes, without what the file's format adds.
    pub raw: Vec<u8>,
}

/// Why a source can't be read, or a target can't be written.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The system refused it.
    #[error("can't {what} {}: {error}", path.display())]
    Io {
        /// What was tried, as `read`.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Its error.
        error: io::Error,
    },
    /// The path has something else.
    #[error("{} {why}", path.display())]
    Not {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        why: &'static str,
    },
}

impl FilesError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { what, path, error }
    }
}

/// Takes what a source has, in its order, with how much of the source is read, in the unit of its total.
pub type Each<'e> = dyn FnMut(Found, u64) -> ControlFlow<()> + 'e;

/// Reads any bytes as an mbox, and writes them as a message of one; for a fuzz target.
///
/// # Panics
/// When reading panics, when a byte is lost, or when an exported message is read as another one.
#[doc(hidden)]
pub fn fuzz_mbox(bytes: &[u8]) {
    mbox::fuzz::read(bytes);
    mbox::fuzz::export(bytes);
}
