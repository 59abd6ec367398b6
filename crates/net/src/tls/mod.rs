//! TLS by rustls, with *ring* as the one provider of cryptography.

mod client;
mod files;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

pub use client::{ClientTls, Roots, Verify};
pub use files::{TlsError, read_pem};

/// Makes *ring* the provider of libraries that ask rustls for the one of the process. Does nothing when there is one already.
pub fn install_provider() {
    let _ = ring::default_provider().install_default(); // an error says that there is one
}

fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
}
