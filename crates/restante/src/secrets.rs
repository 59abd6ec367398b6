//! Secrets that stand in files of their own.

use std::{fs::File, io::Read, path::Path};

use anyhow::{Context, bail};

/// No secret is longer; a file that was named by mistake may be.
const SECRET_BYTES_MAX: u64 = 4 << 10;

/// Reads the first line of a file, which is the secret.
pub(crate) fn read(what: &str, file: &Path) -> anyhow::Result<String> {
    let failed = || format!("can't read the {what} in {}", file.display());
    let mut bytes = Vec::new();
    // One byte more shows that it is too long: a part of a secret is none.
    File::open(file)
        .and_then(|file| file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut bytes))
        .with_context(failed)?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        bail!("{}: it is longer than {SECRET_BYTES_MAX} bytes", failed());
    }
    let secret = std::str::from_utf8(&bytes).with_context(failed)?.lines().next().unwrap_or_default();
    if secret.is_empty() {
        bail!("{}: it is empty", failed());
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_from(bytes: &[u8]) -> anyhow::Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, bytes).unwrap();
        read("token", &file)
    }

    #[test]
    fn a_secret_is_the_file_without_the_end_of_its_line() {
        assert_eq!(read_from(b"secret").unwrap(), "secret");
        assert_eq!(read_from(b" a secret \r\n").unwrap(), " a secret ");
    }

    #[test]
    fn a_file_that_holds_no_secret_is_refused_and_not_shown() {
        let longest = vec![b'x'; SECRET_BYTES_MAX as usize];
        assert_eq!(read_from(&longest).unwrap().as_bytes(), longest);
        let longer = [longest.as_slice(), b"x"].concat();
        for (bytes, why) in [(&longer[..], "longer"), (b"\n", "empty"), (b"xxx\xff", "utf-8")] {
            let error = format!("{:#}", read_from(bytes).unwrap_err());
            assert!(error.contains("can't read the token in ") && error.contains(why), "{error}");
            assert!(!error.contains("xxx"), "{error}");
        }
    }
}
