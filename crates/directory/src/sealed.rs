//! Secrets that the server must be able to read (keys of DKIM, passwords of smarthosts), sealed by a key in a file of its own,
//! so that records and backups of them are not enough to read them.

use std::{
    fs::{self, File},
    io::{ErrorKind as IoKind, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    digest::{SHA256, digest},
};

use crate::{Error, random};

const KEY_BYTES: usize = 32;
/// The first byte of a sealed secret.
const VERSION: u8 = 1;
/// Bytes of a key's hash, with which a sealed secret identifies its key.
const KEY_ID_BYTES: usize = 8;

/// The key that seals secrets.
pub struct KeyFile {
    path: PathBuf,
    key: LessSafeKey,
    id: [u8; KEY_ID_BYTES],
}

impl KeyFile {
    /// Reads the key in a file; creates it, with mode 0600, if there is no file.
    ///
    /// # Errors
    /// `Invalid` when the file contains no key, `Unavailable` when it can't be read or created.
    pub fn open_or_create(path: &Path) -> Result<Self, Error> {
        match File::open(path) {
            Ok(file) => Self::read(path, file),
            Err(error) if error.kind() == IoKind::NotFound => Self::create(path),
            Err(error) => Err(unavailable("read", path, error)),
        }
    }

    /// Reads the key in a file, to open what it has sealed before.
    ///
    /// # Errors
    /// `Invalid` when the file contains no key, `Unavailable` when it is missing or can't be read.
    pub fn open_existing(path: &Path) -> Result<Self, Error> {
        match File::open(path) {
            Ok(file) => Self::read(path, file),
            Err(error) if error.kind() == IoKind::NotFound => {
                let path = path.display();
                Err(Error::unavailable(format!(
                    "the key file {path} is missing: put it back from a copy of it"
                )))
            }
            Err(error) => Err(unavailable("read", path, error)),
        }
    }

    fn read(path: &Path, file: File) -> Result<Self, Error> {
        let mut text = String::new();
        // One byte more than a key with a line end, to notice a file that is too long.
        file.take(2 * KEY_BYTES as u64 + 2)
            .read_to_string(&mut text)
            .map_err(|error| unavailable("read", path, error))?;
        let mut key = [0; KEY_BYTES];
        hex::decode_to_slice(text.trim_end(), &mut key).map_err(|_| {
            let path = path.display();
            Error::invalid(format!(
                "{path} holds no key of 64 hex digits: put the file back from a backup of it"
            ))
        })?;
        Ok(Self::of(path, &key))
    }

    fn create(path: &Path) -> Result<Self, Error> {
        let key: [u8; KEY_BYTES] = random::bytes()?;
        // Written under another name first: half a key would be refused for ever.
        let partial = path.with_extension("partial");
        let written = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)
            .and_then(|mut file| {
                writeln!(file, "{}", hex::encode(key))?;
                file.sync_all()
            })
            // A link fails where a rename would replace the key that another process has just created.
            .and_then(|()| fs::hard_link(&partial, path));
        let removed = fs::remove_file(&partial);
        match written {
            Err(error) if error.kind() == IoKind::AlreadyExists => return Self::open_or_create(path),
            written => written.and(removed).map_err(|error| unavailable("make", path, error))?,
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        synced.map_err(|error| unavailable("make", path, error))?;
        Ok(Self::of(path, &key))
    }

    fn of(path: &Path, key: &[u8; KEY_BYTES]) -> Self {
        let unbound = UnboundKey::new(&CHACHA20_POLY1305, key).expect("ChaCha20 has keys of 32 bytes");
        let hash = digest(&SHA256, &[b"restante key", &key[..]].concat());
        let id = hash.as_ref().first_chunk().copied().unwrap_or_default();
        Self { path: path.to_owned(), key: LessSafeKey::new(unbound), id }
    }

    /// Seals a secret under a name; the same name is needed to open it.
    ///
    /// # Errors
    /// `Internal` when the system has no random numbers.
    pub fn seal(&self, name: &str, secret: &[u8]) -> Result<Vec<u8>, Error> {
        let nonce: [u8; NONCE_LEN] = random::bytes()?;
        let mut sealed = secret.to_vec();
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(name), &mut sealed)
            .map_err(|_| Error::internal(format!("can't seal the secret '{name}'")))?;
        Ok([&[VERSION], &self.id[..], &nonce[..], &sealed].concat())
    }

    /// Opens a secret that was sealed under a name.
    ///
    /// # Errors
    /// `Invalid` when it was sealed with another key, `Corrupt` when it is damaged or was sealed under another name.
    pub fn open(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>, Error> {
        let damaged = || Error::corrupt(format!("the sealed secret '{name}' is damaged: set it again"));
        let (head, rest) = sealed.split_at_checked(1 + KEY_ID_BYTES).ok_or_else(damaged)?;
        let (nonce, rest) = rest.split_at_checked(NONCE_LEN).ok_or_else(damaged)?;
        if head.first() != Some(&VERSION) {
            return Err(damaged());
        }
        if head.get(1..) != Some(&self.id[..]) {
            let path = self.path.display();
            return Err(Error::invalid(format!(
                "the secret '{name}' was sealed with another key than that in {path}: put the right file there, or set the secret again"
            )));
        }
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
        let mut rest = rest.to_vec();
        let opened = self.key.open_in_place(nonce, Aad::from(name), &mut rest).map_err(|_| damaged())?;
        Ok(opened.to_vec())
    }
}

fn unavailable(what: &str, path: &Path, error: std::io::Error) -> Error {
    let text = format!("can't {what} the key file {}: {error}", path.display());
    Error::unavailable(text).with_source(error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use restante_core::ErrorKind;

    use super::*;

    #[test]
    fn what_is_sealed_opens_with_its_key_and_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        let sealed = KeyFile::open_or_create(&path).unwrap().seal("dkim example.org", b"secret").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        let again = KeyFile::open_or_create(&path).unwrap();
        assert_eq!(again.open("dkim example.org", &sealed).unwrap(), b"secret");
        assert_eq!(again.open("dkim other.org", &sealed).unwrap_err().kind(), ErrorKind::Corrupt);
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(again.open("dkim example.org", &damaged).is_err(), "byte {at}");
            assert!(again.open("dkim example.org", &sealed[..at]).is_err(), "length {at}");
        }
        assert_ne!(again.seal("x", b"secret").unwrap(), again.seal("x", b"secret").unwrap());
    }

    #[test]
    fn a_wrong_or_damaged_key_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        let sealed = KeyFile::open_or_create(&one).unwrap().seal("x", b"secret").unwrap();
        let error = KeyFile::open_or_create(&other).unwrap().open("x", &sealed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("sealed with another key than that in "), "{error}");
        for text in ["", "abc", &"0".repeat(63), &"0".repeat(70)] {
            fs::write(&one, text).unwrap();
            let error = KeyFile::open_or_create(&one).err().unwrap();
            assert!(error.to_string().contains("holds no key"), "{error}");
        }
        let error = KeyFile::open_or_create(&folder.path().join("no/key")).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let missing = folder.path().join("missing");
        let error = KeyFile::open_existing(&missing).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("is missing") && !missing.exists(), "{error}");
    }
}
