use std::error::Error as StdError;

use restante_core::ErrorKind;

/// What went wrong in an LMDB store: a kind for machines, a text for operators.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; the text says what failed, on what, and what to do: lowercase, no full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
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

    /// The same error for another caller.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.kind, self.message.clone())
    }

    /// An I/O error while doing `what` to `name`.
    pub(crate) fn io(what: &str, name: &str, source: std::io::Error) -> Self {
        restante_disk::Error::io(what, name, source).into()
    }

    /// An error of LMDB while doing `what`.
    pub(crate) fn lmdb(what: &str, source: heed::Error) -> Self {
        use heed::{Error as Heed, MdbError};
        let kind = match &source {
            Heed::Io(error) => return Self::io(what, "the LMDB store", std::io::Error::from(error.kind())),
            Heed::Mdb(MdbError::MapFull | MdbError::TxnFull) => ErrorKind::Full,
            Heed::Mdb(
                MdbError::Corrupted
                | MdbError::PageNotFound
                | MdbError::Invalid
                | MdbError::VersionMismatch
                | MdbError::BadTxn, // the transaction met a damaged page before
            ) => ErrorKind::Corrupt,
            Heed::Mdb(MdbError::ReadersFull) => ErrorKind::Unavailable,
            _ => ErrorKind::Internal,
        };
        Self::new(kind, format!("can't {what} the LMDB store: {source}")).with_source(source)
    }

    pub(crate) fn no_table(name: &str) -> Self {
        Self::new(ErrorKind::Internal, format!("the store was opened without the table {name}"))
    }
}

impl From<restante_disk::Error> for Error {
    fn from(error: restante_disk::Error) -> Self {
        let source = error.source.map(Into::into);
        Self { kind: error.kind, message: error.message, source }
    }
}
