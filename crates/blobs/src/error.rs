use std::error::Error as StdError;

use restante_core::{BlobId, ErrorKind};

/// An error of a blob store: a kind for programs, a text for operators.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    is_of_index: bool,
}

impl Error {
    /// An error of `kind`; the text says what failed, on what, and what to do: lowercase, no full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, is_of_index: false }
    }

    /// The same with the error that caused it.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        self.kind.is_transient()
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn no_blob(id: BlobId) -> Self {
        Self::new(ErrorKind::NotFound, format!("there is no blob {id}"))
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Unavailable, "the blob store is closed")
    }

    /// A copy for another waiter of the same operation, without the source.
    pub(crate) fn duplicate(&self) -> Self {
        Self::new(self.kind, self.message.clone())
    }

    /// Marks it as an error of the index.
    pub(crate) fn of_index(self) -> Self {
        Self { is_of_index: true, ..self }
    }

    /// Whether the index is damaged; it can be rebuilt from packs and files.
    pub(crate) fn is_damaged_index(&self) -> bool {
        self.is_of_index && self.kind == ErrorKind::Corrupt
    }

    /// An I/O error while doing `what` to `name`.
    pub(crate) fn io(what: &str, name: &str, source: std::io::Error) -> Self {
        restante_disk::Error::io(what, name, source).into()
    }
}

impl From<restante_disk::Error> for Error {
    fn from(error: restante_disk::Error) -> Self {
        let source = error.source.map(Into::into);
        Self { kind: error.kind, message: error.message, source, is_of_index: false }
    }
}

impl From<restante_lmdb::Error> for Error {
    fn from(error: restante_lmdb::Error) -> Self {
        Self::new(error.kind(), format!("the index of the blobs: {error}")).of_index()
    }
}
