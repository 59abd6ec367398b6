//! Secrets that stand in files of their own.

use std::{fs::File, io::Read, path::Path};

use anyhow::{Context, bail};

/// No secret is longer; a file that was named by mistake may be.
const SECRET_BYTES_MAX: u64 = 4 << 10;

/// Reads a file that holds a secret and nothing else, but for the end of the line.
pub(crate) fn read(what: &str, file: &Path) -> anyhow::Result<String> {
    let failed = || format!("can't read the {what} in {}", file.display());
    let mut secret = String::new();
    File::open(file)
        .and_then(|file| file.take(SECRET_BYTES_MAX).read_to_string(&mut secret))
        .with_context(failed)?;
    let secret = secret.trim_end_matches(['\r', '\n']);
    if secret.is_empty() {
        bail!("{}: it is empty", failed());
    }
    Ok(secret.to_owned())
}
