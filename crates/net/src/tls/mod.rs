//! TLS by rustls, with *ring* as the only provider of cryptography.

#[cfg(test)]
pub(crate) mod authority;
mod certificates;
mod client;
mod files;
mod server;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

pub use certificates::{CertificateFiles, Certificates, POLL_INTERVAL};
pub use client::{ClientTls, Roots, Verify};
pub use files::{TlsError, read_pem};
pub use server::{ServerTls, TlsSession};

/// Makes *ring* the process's provider, for libraries that use rustls' default. Does nothing when there already is one.
pub fn install_provider() {
    let _ = ring::default_provider().install_default(); // an error says that there is one
}

fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
}
