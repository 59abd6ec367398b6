//! Certificates and keys in PEM files.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};

/// The longest PEM file. The certificates of all public authorities take a quarter of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Certificates or a key that can't be used. The text names the file and says what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(pub(crate) String);

/// The bytes of a PEM file.
///
/// # Errors
/// It can't be read, is not a regular file, or is longer than 1 MiB.
pub fn read_pem(file: &Path) -> Result<Vec<u8>, TlsError> {
    read(file).map_err(|error| TlsError(format!("can't read {}: {error}", file.display())))
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(file)?.is_file() {
        return Err(io::Error::other("it is no regular file")); // opening a FIFO would wait for a writer
    }
    let mut bytes = Vec::new();
    File::open(file)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("it is longer than 1 MiB, which no PEM file is"));
    }
    Ok(bytes)
}

/// The certificates of a file, at least one.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read_pem(file)?).collect();
    let certificates = parsed.map_err(|error| unreadable("certificates", file, &error))?;
    if certificates.is_empty() {
        return Err(TlsError(format!("{} has no certificate in PEM form", file.display())));
    }
    Ok(certificates)
}

/// The private key of a file.
pub(crate) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read_pem(file)?).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError(format!("{} has no private key in PEM form", file.display())),
        error => unreadable("the private key", file, &error),
    })
}

fn unreadable(what: &str, file: &Path, error: &pem::Error) -> TlsError {
    TlsError(format!("can't read {what} in {}: {error}", file.display()))
}
