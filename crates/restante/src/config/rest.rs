//! The settings of nwaku's REST interface, and of its listener.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
};

use restante_waku::rest::RestConfig;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rest {
    pub(crate) enabled: bool,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    /// Whether the listener speaks TLS, with the certificates of [`Tls`](super::tls::Tls).
    pub(crate) tls: bool,
    /// The addresses from which connections begin with a PROXY header.
    pub(crate) proxies: Vec<IpAddr>,
    /// Empty for no token.
    pub(crate) token_file: PathBuf,
    #[serde(flatten)]
    pub(crate) door: RestConfig,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            enabled: true,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8645, // the port of nwaku's REST server
            tls: false,
            proxies: Vec::new(),
            token_file: PathBuf::new(),
            door: RestConfig::default(),
        }
    }
}
