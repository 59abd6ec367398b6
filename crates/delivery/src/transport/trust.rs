//! TLS that checks certificates.

use std::{path::Path, path::PathBuf, sync::Arc};

use restante_net::tls::{ClientTls, Roots, Verify};
use rustls::ClientConfig;
use tokio::sync::OnceCell;

/// Connections to servers whose certificates are checked. It is set up on first use, so a system without authorities can send without.
pub(super) struct TrustedTls {
    authorities: PathBuf,
    config: OnceCell<Arc<ClientConfig>>,
}

impl TrustedTls {
    /// With the authorities in a file; those of the system for an empty path.
    pub(super) fn new(authorities: &Path) -> Self {
        Self { authorities: authorities.to_owned(), config: OnceCell::new() }
    }

    /// The configuration of rustls.
    ///
    /// # Errors
    /// There are no authorities, or they can't be read; the next call tries again.
    pub(super) async fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let make = || async {
            let is_system = self.authorities.as_os_str().is_empty();
            let roots = if is_system { Roots::System } else { Roots::File(self.authorities.clone()) };
            let tls = ClientTls { verify: Verify::ChainAndName, roots, identity: None };
            let made = tokio::task::spawn_blocking(move || tls.config()).await;
            let made = made.map_err(|error| error.to_string())?;
            made.map(Arc::new).map_err(|error| error.to_string())
        };
        self.config.get_or_try_init(make).await.cloned()
    }
}
