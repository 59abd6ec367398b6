use std::net::SocketAddr;

/// The names and addresses of this server.
#[derive(Clone, Debug, Default)]
pub struct OwnHost {
    /// Its names, in lower case.
    pub names: Vec<String>,
    /// Where it accepts mail from other servers. An unspecified address stands for all of loopback.
    pub listeners: Vec<SocketAddr>,
}

impl OwnHost {
    /// Whether a name is one of this server. `localhost` is not: every server has it.
    pub fn is_name(&self, name: &str) -> bool {
        name != "localhost" && self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Whether an address leads to this server.
    pub fn is_address(&self, address: SocketAddr) -> bool {
        self.listeners.iter().any(|own| {
            let is_same = own.ip() == address.ip();
            own.port() == address.port()
                && (is_same || own.ip().is_unspecified() && address.ip().is_loopback())
        })
    }
}
