//! The identity of the node: the file of its key, or the key itself.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use restante_waku::{
    Keypair,
    node::{KeyError, load_key, parse_key},
};

/// The file below the data folder with the key when no other is named.
const DEFAULT_FILE: &str = "node.key";
/// The hex digits of a secret key.
const DIGITS: usize = 64;
/// A text of at least this many hex digits only is meant as a key: no file has such a name.
const DIGITS_MEANT_MIN: usize = 32;
/// Shown instead of a key.
const HIDDEN: &str = "***";

/// The key of the node, or the file that holds it. Shown without the secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) enum NodeKey {
    /// `node.key` below the data folder.
    #[default]
    Default,
    /// A file; a relative one is below the data folder.
    File(PathBuf),
    /// The secret key in hex; always valid.
    Secret(String),
}

impl NodeKey {
    /// Whether the settings contain the key itself.
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self, Self::Secret(_))
    }

    /// The file of the key, when it is in one.
    pub(crate) fn file(&self, data_dir: &Path) -> Option<PathBuf> {
        match self {
            Self::Default => Some(data_dir.join(DEFAULT_FILE)),
            Self::File(path) => Some(data_dir.join(path)),
            Self::Secret(_) => None,
        }
    }

    /// Fails when the text is neither a key nor an existing file, and does not look like the path of a file to be created: a typo in a
    /// key would create a file of that name. The error does not repeat the text, which may be a secret.
    pub(crate) fn check(&self, data_dir: &Path) -> Result<(), String> {
        let Self::File(path) = self else { return Ok(()) };
        let text = path.to_string_lossy();
        if text.contains(['/', '.']) || data_dir.join(path).exists() {
            return Ok(());
        }
        Err("it is neither 64 hex digits nor a file that is there: to have a new key made in a file, write its path, as in ./mine"
            .to_owned())
    }

    /// Reads the key; a missing file is created with a new key.
    pub(crate) fn load(&self, data_dir: &Path) -> Result<Keypair, KeyError> {
        match self {
            Self::Default => load_key(&data_dir.join(DEFAULT_FILE)),
            Self::File(path) => load_key(&data_dir.join(path)),
            Self::Secret(digits) => parse_key(digits),
        }
    }
}

impl FromStr for NodeKey {
    type Err = String;

    /// No error repeats the text: it may be a secret with a typo.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::Default);
        }
        let digits = text.strip_prefix("0x").unwrap_or(text); // nwaku accepts both
        let is_key = digits.len() >= DIGITS_MEANT_MIN && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_key {
            return Ok(Self::File(text.into()));
        }
        if digits.len() != DIGITS {
            return Err(format!("a node key has {DIGITS} hex digits, and these are {}", digits.len()));
        }
        parse_key(digits).map_err(|error| error.to_string())?;
        Ok(Self::Secret(digits.to_owned()))
    }
}

impl fmt::Display for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => Ok(()),
            Self::File(path) => path.display().fmt(f),
            Self::Secret(_) => f.write_str(HIDDEN),
        }
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_file_or_its_digits() {
        let digits = "01".repeat(32);
        let secret = NodeKey::Secret(digits.clone());
        for text in [digits.clone(), format!("0x{digits}"), format!(" {digits}\n")] {
            assert_eq!(text.parse(), Ok(secret.clone()));
        }
        assert_eq!("".parse(), Ok(NodeKey::Default));
        for name in ["node.key", "/etc/restante/key", "cafe", "keys/01"] {
            assert_eq!(name.parse(), Ok(NodeKey::File(name.into())));
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let digits = "01".repeat(32);
        let key: NodeKey = digits.parse().unwrap();
        assert_eq!(format!("{key} {key:?}"), "*** NodeKey(***)");
        // A missing digit, an extra one, and a number that is not a key of the curve.
        for wrong in [&digits[1..], &format!("{digits}0"), &"f".repeat(64)] {
            let error = wrong.parse::<NodeKey>().unwrap_err();
            assert!(!error.contains(&wrong[..32]), "{error}");
        }
    }

    #[test]
    fn a_word_that_is_no_file_is_no_key() {
        let folder = tempfile::tempdir().unwrap();
        let check = |text: &str| text.parse::<NodeKey>().unwrap().check(folder.path());
        for text in ["nonsense", "cafe", "0x12"] {
            let error = check(text).unwrap_err();
            assert!(error.contains("64 hex digits") && !error.contains(text), "{error}");
        }
        std::fs::write(folder.path().join("cafe"), "").unwrap();
        for text in ["", "cafe", "./nonsense", "new.key", "keys/new", "/etc/restante/key"] {
            check(text).unwrap();
        }
        check(&"01".repeat(32)).unwrap();
    }

    #[test]
    fn a_relative_file_is_below_the_data_folder() {
        let folder = tempfile::tempdir().unwrap();
        let id = |text: &str| {
            let key: NodeKey = text.parse().unwrap();
            key.load(folder.path()).unwrap().public().to_peer_id()
        };
        let named = id("named.key");
        assert!(folder.path().join("named.key").exists());
        assert_eq!(id(&folder.path().join("named.key").display().to_string()), named);
        assert_ne!(id(""), named);
        assert!(folder.path().join("node.key").exists());
        assert_eq!(id(&"01".repeat(32)), id(&format!("0x{}", "01".repeat(32))));
    }
}
