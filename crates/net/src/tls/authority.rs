//! A certificate authority for tests.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::CertificateFiles;

pub(crate) struct Authority {
    pub(crate) certificate: Certificate,
    key: KeyPair,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self { certificate: params.self_signed(&key).unwrap(), key }
    }

    pub(crate) fn sign(&self, names: &[&str]) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let params = CertificateParams::new(names).unwrap();
        (params.signed_by(&key, &self.certificate, &self.key).unwrap(), key)
    }

    /// Writes the authority's own certificate.
    pub(crate) fn write(&self, folder: &Path) -> PathBuf {
        let file = folder.join("ca.pem");
        std::fs::write(&file, self.certificate.pem()).unwrap();
        file
    }

    /// Overwrites the files with a new certificate and its key. Returns the certificate's bytes.
    pub(crate) fn renew(&self, files: &CertificateFiles, names: &[&str]) -> Vec<u8> {
        let (certificate, key) = self.sign(names);
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        certificate.der().to_vec()
    }
}

/// The names of files in a folder; [`Authority::renew`] writes them.
pub(crate) fn files_in(folder: &Path, name: &str) -> CertificateFiles {
    CertificateFiles {
        certificate: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}.key")),
    }
}

pub(crate) fn private(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(key.serialize_der()).into()
}
