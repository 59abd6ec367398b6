use std::{error::Error as StdError, fmt::Display, io};

/// An error of this project's crates: a kind for programs, a text for operators.
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

    /// An error of kind [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// An error of kind [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// An error of kind [`ErrorKind::Conflict`].
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, message)
    }

    /// An error of kind [`ErrorKind::Full`].
    pub fn full(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Full, message)
    }

    /// An error of kind [`ErrorKind::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// An error of kind [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// An error of kind [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// An I/O error while doing `what` to `name`, with advice when a disk, a quota or a file is full.
    pub fn io(what: &str, name: impl Display, source: io::Error) -> Self {
        let advice = match source.kind() {
            io::ErrorKind::StorageFull => "; free some space on its disk",
            io::ErrorKind::QuotaExceeded => "; raise the disk quota, or free some space",
            io::ErrorKind::FileTooLarge => "; raise the limit on the size of files",
            _ => "",
        };
        Self::new(ErrorKind::of_io(source.kind()), format!("can't {what} {name}: {source}{advice}"))
            .with_source(source)
    }

    /// The same with the error that caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same with `what` and a colon before its text.
    #[must_use]
    pub fn context(mut self, what: impl Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// A copy for another waiter of the same operation, without the source.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        Self::new(self.kind, self.message.clone())
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        self.kind.is_transient()
    }
}

/// The kind of an error: enough for a door to choose its reply, and for a caller to decide whether to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The requested thing does not exist.
    NotFound,
    /// The request is wrong, and repeating it won't help.
    Invalid,
    /// The request conflicts with what is stored, or another process holds the resource.
    Conflict,
    /// The disk or a bounded queue is full.
    Full,
    /// The engine can't answer now.
    Unavailable,
    /// Stored data is damaged.
    Corrupt,
    /// A bug or an unexpected state.
    Internal,
}

impl ErrorKind {
    /// The kind of an I/O error.
    pub const fn of_io(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full
            }
            io::ErrorKind::NotFound => Self::NotFound,
            _ => Self::Unavailable,
        }
    }

    /// Whether the same request may succeed later.
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Full | Self::Unavailable)
    }

    /// The kind as one lowercase word, for labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::Full => "full",
            Self::Unavailable => "unavailable",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_a_quota_and_a_limit_on_files_are_one_kind_with_advice_each() {
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge];
        let mut seen = Vec::new();
        for kind in kinds {
            let error = Error::io("write", "a file", kind.into());
            assert_eq!(error.kind(), ErrorKind::Full);
            let text = error.to_string();
            let (_, advice) = text.split_once("; ").unwrap();
            assert!(!seen.contains(&advice.to_owned()), "{advice}");
            seen.push(advice.to_owned());
        }
        assert_eq!(Error::io("write", "a file", io::ErrorKind::NotFound.into()).kind(), ErrorKind::NotFound);
        assert_eq!(Error::io("write", "a file", io::Error::other("x")).kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn context_stands_before_the_text_and_keeps_kind_and_source() {
        let error = Error::full("no space").with_source(io::Error::other("x")).context("the index");
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Full, "the index: no space".to_owned()));
        assert_eq!(error.source().map(ToString::to_string), Some("x".to_owned()));
        let copy = error.duplicate();
        assert_eq!((copy.kind(), copy.to_string()), (error.kind(), error.to_string()));
        assert!(copy.source().is_none());
    }
}
