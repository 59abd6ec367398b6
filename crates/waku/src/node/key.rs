//! The node's key, which determines its peer id. It is stored in a file.

use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use libp2p::identity::{Keypair, secp256k1};
use tracing::warn;

/// Why a key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It is not 64 hex digits, or not a secp256k1 key.
    #[error("not a node key: expected 64 hex digits (a secp256k1 secret key)")]
    Malformed,
    /// The file can't be read or written.
    #[error("can't use the node key {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file holds something else.
    #[error("{path} holds no node key: expected 64 hex digits; move it away to have a new key made")]
    FileMalformed {
        /// The file.
        path: PathBuf,
    },
}

/// Parses a key of 64 hex digits, the format of nwaku's `--nodekey`.
///
/// # Errors
/// When the text is not a secp256k1 secret key.
pub fn parse(text: &str) -> Result<Keypair, KeyError> {
    let digits = text.trim();
    let mut bytes = [0; 32];
    hex::decode_to_slice(digits, &mut bytes).map_err(|_| KeyError::Malformed)?;
    let secret = secp256k1::SecretKey::try_from_bytes(&mut bytes).map_err(|_| KeyError::Malformed)?;
    Ok(secp256k1::Keypair::from(secret).into())
}

/// Reads the key from a file; if the file does not exist, creates a key and writes it there. On a full disk the new key is used
/// without being written.
///
/// # Errors
/// When the file can't be read or written, or holds no key.
pub fn load_or_create(path: &Path) -> Result<Keypair, KeyError> {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text).map_err(|_| KeyError::FileMalformed { path: path.to_owned() }),
        Err(error) if error.kind() == ErrorKind::NotFound => create(path),
        Err(source) => Err(KeyError::File { path: path.to_owned(), source }),
    }
}

fn create(path: &Path) -> Result<Keypair, KeyError> {
    let keypair = secp256k1::Keypair::generate();
    let text = hex::encode(keypair.secret().to_bytes());
    match write_private(path, &text) {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            let advice = "free some space and start again: until then each start has another peer id";
            warn!(path = %path.display(), %error, advice, "the node's key can't be saved");
        }
        Err(source) => return Err(KeyError::File { path: path.to_owned(), source }),
    }
    Ok(keypair.into())
}

/// Writes a file that only its owner can read. It appears with all of its content or not at all.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let draft = path.with_extension("draft");
    let _ = fs::remove_file(&draft); // left by a start that was interrupted
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    if let Err(error) = writeln!(file, "{text}").and_then(|()| file.sync_all()) {
        let _ = fs::remove_file(&draft); // otherwise the next start removes it
        return Err(error);
    }
    // A link fails when another process has created the file meanwhile; a rename would replace its key.
    fs::hard_link(&draft, path)?;
    fs::remove_file(&draft)?;
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_the_same_and_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/node.key");
        let made = load_or_create(&path).unwrap();
        let read = load_or_create(&path).unwrap();
        assert_eq!(made.public(), read.public());
        assert!(made.public().to_peer_id().to_string().starts_with("16Uiu2HA"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "no draft is left");
    }

    /// The peer id was computed from this key by go-waku.
    #[test]
    fn keys_are_parsed_as_in_nwaku() {
        let digits = "0101010101010101010101010101010101010101010101010101010101010101";
        let key = parse(digits).unwrap();
        assert_eq!(key.public().to_peer_id(), parse(&format!(" {digits}\n")).unwrap().public().to_peer_id());
        let zeros = "0".repeat(64);
        for text in ["", "01", &zeros, "zz", &format!("0x{digits}")] {
            assert!(matches!(parse(text), Err(KeyError::Malformed)), "{text}");
        }
    }

    #[test]
    fn other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.key");
        fs::write(&path, "a diary").unwrap();
        assert!(matches!(load_or_create(&path), Err(KeyError::FileMalformed { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "a diary");
        assert!(matches!(load_or_create(folder.path()), Err(KeyError::File { .. })));
    }
}
