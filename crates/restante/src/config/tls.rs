//! The certificates of listeners.

use std::path::PathBuf;

use restante_net::tls::CertificateFiles;
use serde::{Deserialize, Serialize};

/// Certificates for listeners with TLS; the key of each is at the same position of the other list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tls {
    pub(crate) certificate_files: Vec<PathBuf>,
    pub(crate) certificate_key_files: Vec<PathBuf>,
}

impl Tls {
    /// The pairs of files.
    pub(crate) fn files(&self) -> Vec<CertificateFiles> {
        let pairs = self.certificate_files.iter().zip(&self.certificate_key_files);
        pairs
            .map(|(certificate, key)| CertificateFiles { certificate: certificate.clone(), key: key.clone() })
            .collect()
    }

    /// What is wrong with the lists, and the key to report; `needed_by` is a setting that needs a certificate.
    pub(super) fn contradiction(&self, needed_by: Option<&'static str>) -> Option<(&'static str, String)> {
        let (certificates, keys) = (self.certificate_files.len(), self.certificate_key_files.len());
        if certificates != keys {
            let what = format!(
                "{certificates} certificates and {keys} keys: tls.certificate_key_files names the key of each certificate, in the \
                 same order"
            );
            return Some(("tls.certificate_files", what));
        }
        let what = "TLS needs a certificate: set tls.certificate_files and its keys";
        needed_by.filter(|_| certificates == 0).map(|key| (key, what.to_owned()))
    }
}
