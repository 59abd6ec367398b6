use std::error::Error as StdError;

use restante_core::ErrorKind;

/// A failure to read an archive.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// Adds the error that caused this one.
    pub(crate) fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// An I/O error while doing `what` to `name`.
    pub(crate) fn io(what: &str, name: &std::path::Path, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, format!("can't {what} {}: {source}", name.display())).with_source(source)
    }

    #[cfg(not(all(feature = "sqlite", feature = "postgres")))]
    pub(crate) fn without(engine: &str, name: &std::path::Path) -> Self {
        Self::invalid(format!(
            "can't read {}: this build is without {engine}, build it with --features {engine}",
            name.display()
        ))
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}
