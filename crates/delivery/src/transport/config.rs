use std::{
    net::SocketAddr,
    num::{NonZero, NonZeroU64},
    path::PathBuf,
    time::Duration,
};

use restante_core::nonzero;
use restante_net::dns::ResolverConfig;
use serde::{Deserialize, Serialize};

/// The settings of sending to other servers. Times are those of RFC 5321 §4.5.3.2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteConfig {
    /// A server that takes all mail for other servers and passes it on, such as `smtp.example.net:587`; empty for the servers of
    /// each domain. On port 465, TLS begins at once, on others by STARTTLS.
    pub smarthost: String,
    /// A file with the credentials for the smarthost, as `user:password` in one line; empty for no log-in. It is read for each
    /// connection. The smarthost must then have TLS and a certificate for its name.
    pub smarthost_credentials: PathBuf,
    /// The most connections to the smarthost at once, for all domains together. `delivery.connections_max` applies as well.
    pub smarthost_connections_max: NonZero<usize>,
    /// A file with the certificates of the authorities that certificates of other servers are checked with, where they are; empty for those of the
    /// system.
    pub authorities: PathBuf,
    /// The name servers to query, such as `192.0.2.53:53`; empty for those of the system.
    pub resolver: Vec<SocketAddr>,
    /// How long a name server may take to answer.
    pub resolver_timeout_ms: NonZeroU64,
    /// The port of other servers.
    pub port: NonZero<u16>,
    /// The most addresses of one domain that are tried in one attempt.
    pub addresses_max: NonZero<usize>,
    /// Whether TLS policies of domains (MTA-STS, RFC 8461) are looked up and followed.
    pub mta_sts: bool,
    /// How long connecting may take.
    pub connect_timeout_ms: NonZeroU64,
    /// How long it may take until a server of a domain is ready for a message, over all of its addresses.
    pub session_timeout_ms: NonZeroU64,
    /// How long a server may take to send its greeting.
    pub greeting_timeout_ms: NonZeroU64,
    /// How long a server may take to answer a command, and for a TLS handshake.
    pub command_timeout_ms: NonZeroU64,
    /// How long a server may take to answer `DATA`.
    pub data_timeout_ms: NonZeroU64,
    /// How long a server may take for 64 KiB of a message.
    pub block_timeout_ms: NonZeroU64,
    /// How long a server may take to answer the end of a message.
    pub end_timeout_ms: NonZeroU64,
    /// How long one message may take in all.
    pub message_timeout_ms: NonZeroU64,
}

impl Default for RemoteConfig {
    fn default() -> Self {
        Self {
            smarthost: String::new(),
            smarthost_credentials: PathBuf::new(),
            // As many as Postfix opens to one destination (default_destination_concurrency_limit).
            smarthost_connections_max: nonzero!(20),
            authorities: PathBuf::new(),
            resolver: Vec::new(),
            resolver_timeout_ms: nonzero!(5_000),
            port: nonzero!(25),
            addresses_max: nonzero!(5),
            mta_sts: true,
            connect_timeout_ms: nonzero!(30_000),
            session_timeout_ms: nonzero!(600_000),
            greeting_timeout_ms: nonzero!(300_000),
            command_timeout_ms: nonzero!(300_000),
            data_timeout_ms: nonzero!(120_000),
            block_timeout_ms: nonzero!(180_000),
            end_timeout_ms: nonzero!(600_000),
            message_timeout_ms: nonzero!(3_600_000),
        }
    }
}

impl RemoteConfig {
    /// The first wrong setting, if there is one, and what to do about it.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if !self.smarthost.is_empty() && self.smarthost_parts().is_none() {
            return Some(("smarthost", "use a name and a port, as smtp.example.net:587".to_owned()));
        }
        if self.smarthost.is_empty() && !self.smarthost_credentials.as_os_str().is_empty() {
            return Some((
                "smarthost_credentials",
                "name the smarthost, or remove its credentials".to_owned(),
            ));
        }
        None
    }

    /// The name, or the address without brackets, and the port of the smarthost.
    pub(crate) fn smarthost_parts(&self) -> Option<(String, u16)> {
        let (host, port) = self.smarthost.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_host = !host.is_empty()
            && host.len() <= 253
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'_'));
        let port = port.parse().ok().filter(|port| *port > 0)?;
        is_host.then(|| (host.to_ascii_lowercase(), port))
    }

    /// How names are looked up.
    pub fn resolver(&self) -> ResolverConfig {
        ResolverConfig {
            servers: self.resolver.clone(),
            timeout: Duration::from_millis(self.resolver_timeout_ms.get()),
            ..ResolverConfig::default()
        }
    }
}

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) connect: Duration,
    pub(super) session: Duration,
    pub(super) greeting: Duration,
    pub(super) command: Duration,
    pub(super) data: Duration,
    pub(super) block: Duration,
    pub(super) end: Duration,
    pub(super) message: Duration,
}

impl Times {
    pub(super) fn of(config: &RemoteConfig) -> Self {
        let of = |ms: NonZeroU64| Duration::from_millis(ms.get());
        Self {
            connect: of(config.connect_timeout_ms),
            session: of(config.session_timeout_ms),
            greeting: of(config.greeting_timeout_ms),
            command: of(config.command_timeout_ms),
            data: of(config.data_timeout_ms),
            block: of(config.block_timeout_ms),
            end: of(config.end_timeout_ms),
            message: of(config.message_timeout_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out12_a_smarthost_has_a_name_and_a_port() {
        let of = |smarthost: &str| RemoteConfig { smarthost: smarthost.into(), ..RemoteConfig::default() };
        assert_eq!(of("Smtp.example.net:587").smarthost_parts(), Some(("smtp.example.net".into(), 587)));
        assert_eq!(of("[2001:db8::1]:25").smarthost_parts(), Some(("2001:db8::1".into(), 25)));
        for wrong in ["smtp.example.net", ":25", "a:0", "a:x", "a b:25", "a:99999"] {
            assert_eq!(of(wrong).problem().unwrap().0, "smarthost", "{wrong}");
        }
        let credentials =
            RemoteConfig { smarthost_credentials: "/etc/secret".into(), ..RemoteConfig::default() };
        assert_eq!(credentials.problem().unwrap().0, "smarthost_credentials");
        assert_eq!(RemoteConfig::default().problem(), None);
    }
}
