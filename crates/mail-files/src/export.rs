//! What an export stores about a message besides its bytes.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Folder;

/// The file of an export that lists its folders: a JSON array of objects with `file`, `path` and `role`.
pub const MANIFEST: &str = "restante-folders.json";

/// A message that is exported.
#[derive(Clone, Copy, Debug)]
pub struct ExportedMessage<'m> {
    /// Its id in its account, which distinguishes it from others with the same bytes.
    pub id: u64,
    /// When it was received, in seconds since 1970.
    pub received: i64,
    /// Its mailboxes.
    pub folders: &'m [Folder],
    /// Its keywords, in lowercase.
    pub keywords: &'m [String],
    /// Its bytes.
    pub raw: &'m [u8],
}

/// A folder of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManifestEntry {
    /// The file or folder, relative to the export.
    pub(crate) file: String,
    #[serde(flatten)]
    pub(crate) folder: ManifestFolder,
}

/// As [`Folder`]; flattened structs can't deny unknown fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManifestFolder {
    pub(crate) path: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<String>,
}

impl ManifestFolder {
    pub(crate) fn of(folder: &Folder) -> Self {
        Self { path: folder.path.clone(), role: folder.role.clone() }
    }

    /// `None` for an empty path.
    pub(crate) fn folder(self) -> Option<Folder> {
        let Self { path, role } = self;
        (!path.is_empty()).then_some(Folder { path, role, is_guess: false })
    }
}

/// Whether converting CRLF to LF and back preserves the bytes: every CR and LF is part of a CRLF, and there is no NUL, which an
/// import removes.
pub(crate) fn is_text(raw: &[u8]) -> bool {
    memchr::memchr3_iter(b'\r', b'\n', 0, raw).all(|at| match raw.get(at) {
        Some(b'\r') => raw.get(at + 1) == Some(&b'\n'),
        Some(b'\n') => at > 0 && raw.get(at - 1) == Some(&b'\r'),
        _ => false,
    })
}

/// The text with LF instead of CRLF.
pub(crate) fn with_lf(raw: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\r', rest) {
        let (line, after) = rest.split_at_checked(at).unwrap_or((rest, &[]));
        text.extend_from_slice(line);
        rest = after.get(1..).unwrap_or_default(); // the LF is the first byte of the rest
    }
    text.extend_from_slice(rest);
    text
}

/// Identifies a message of a source: by its bytes, and by the id that an export assigned to it.
pub(crate) fn key(raw: &[u8], id: Option<u64>) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"import");
    match id {
        Some(id) => {
            hash.update([1]);
            hash.update(id.to_be_bytes());
        }
        None => hash.update([0]),
    }
    hash.update(raw);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_that_end_with_crlf_are_text() {
        for text in ["", "a", "a\r\nb", "\r\n\r\n"] {
            assert!(is_text(text.as_bytes()), "{text:?}");
        }
        for other in ["\n", "\r", "a\r\n\n", "\r\r\n", "a\0"] {
            assert!(!is_text(other.as_bytes()), "{other:?}");
        }
        assert_eq!(with_lf(b"a\r\n\r\nb"), b"a\n\nb");
    }
}
