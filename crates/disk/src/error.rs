use std::io;

use restante_core::ErrorKind;

/// An error of the disk. Role crates convert it into their own error.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// What failed, on what, and what to do: lowercase, no full stop.
    pub message: String,
    /// The error of the system, if there is one.
    pub source: Option<io::Error>,
}

impl Error {
    /// An I/O error while doing `what` to `name`.
    pub fn io(what: &str, name: &str, source: io::Error) -> Self {
        let kind = kind_of(source.kind());
        let advice = match source.kind() {
            io::ErrorKind::StorageFull => "; free some space on its disk",
            io::ErrorKind::QuotaExceeded => "; raise the disk quota, or free some space",
            io::ErrorKind::FileTooLarge => "; raise the limit on the size of files",
            _ => "",
        };
        Self { kind, message: format!("can't {what} {name}: {source}{advice}"), source: Some(source) }
    }
}

/// The kind of an I/O error.
pub fn kind_of(kind: io::ErrorKind) -> ErrorKind {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            ErrorKind::Full
        }
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Unavailable,
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
            assert_eq!(error.kind, ErrorKind::Full);
            let (_, advice) = error.message.split_once("; ").unwrap();
            assert!(!seen.contains(&advice.to_owned()), "{advice}");
            seen.push(advice.to_owned());
        }
        assert_eq!(Error::io("write", "a file", io::ErrorKind::NotFound.into()).kind, ErrorKind::NotFound);
        assert_eq!(Error::io("write", "a file", io::Error::other("x")).kind, ErrorKind::Unavailable);
    }
}
