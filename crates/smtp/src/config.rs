use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::{NonZero, NonZeroU32, NonZeroU64},
    os::unix,
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use restante_core::nonzero;
use restante_directory::EmailAddress;
use restante_net::{Limits, Rate};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// The settings of SMTP; those about messages, times and memory apply to LMTP too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SmtpConfig {
    /// Where mail from other servers is received: one address or a list, as `0.0.0.0:25`; empty to disable it.
    #[serde(deserialize_with = "one_or_many")]
    pub listen: Vec<SocketAddr>,
    /// The name of this server, which the DNS knows: it is in the greeting and in `Received` fields.
    pub hostname: String,
    /// The address that gets mail for `postmaster` without a domain, and for `postmaster` at domains without such an address;
    /// empty for `postmaster` at the host name or its parent domain.
    #[serde(with = "restante_core::settings::text_or_empty")]
    pub postmaster: Option<EmailAddress>,
    /// Whether clients may resume TLS sessions. Some of Microsoft's servers close the connection when they do.
    pub session_tickets: bool,
    /// Addresses of proxies. Each connection from one begins with a header of the PROXY protocol.
    pub proxies: Vec<IpAddr>,
    /// The most connections of one listener at a time.
    pub connections_max: NonZero<usize>,
    /// The most connections of one address at a time. An IPv6 /64 counts as one address; loopback is not limited.
    pub connections_per_address_max: NonZero<usize>,
    /// The most connections of one address per minute; further ones get 421.
    pub connects_per_minute_max: NonZeroU32,
    /// The most messages of one address per minute; further ones get 450.
    pub messages_per_minute_max: NonZeroU32,
    /// The most unknown recipients of one address per minute; one more ends the connection.
    pub unknown_per_minute_max: NonZeroU32,
    /// How many times the limits of one address a whole network (an IPv4 /24 or an IPv6 /48) may use per minute, for connections,
    /// messages and unknown recipients; 0 for no limit per network.
    pub network_factor: u32,
    /// How much longer the reply to each unknown recipient after the second of a connection is delayed than the one before, up to
    /// five times this.
    pub unknown_delay_ms: u64,
    /// The most errors of a connection since its last message; one more ends it.
    pub errors_max: NonZeroU32,
    /// How long a client must wait for the greeting; one that sends something earlier is refused.
    pub greeting_delay_ms: u64,
    /// The longest message.
    pub message_bytes_max: NonZero<usize>,
    /// The most memory of all messages that are being received or stored.
    pub memory_bytes_max: NonZero<usize>,
    /// How long a message waits for memory before it is refused with a temporary error.
    pub memory_timeout_ms: u64,
    /// The most recipients of a message. RFC 5321 requires at least 100.
    pub recipients_max: NonZero<usize>,
    /// How many recipients of one message are stored at a time.
    pub deliveries_at_once_max: NonZero<usize>,
    /// Whether mail that exceeds an account's quota is refused permanently (552) instead of temporarily (452).
    pub quota_is_permanent: bool,
    /// How long a client may take for a command.
    pub command_timeout_ms: NonZeroU64,
    /// How long a client may take for the next bytes of a message.
    pub data_timeout_ms: NonZeroU64,
    /// How long a client may take for a whole message.
    pub message_timeout_ms: NonZeroU64,
    /// How long a client may take to read replies.
    pub stall_timeout_ms: NonZeroU64,
    /// How long messages that have begun may take after the server began to stop; then their connections are closed.
    #[serde(skip)]
    pub stop_timeout_ms: u64,
}

impl Default for SmtpConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            hostname: "localhost".to_owned(),
            postmaster: None,
            session_tickets: false,
            proxies: Vec::new(),
            connections_max: nonzero!(1_024),
            connections_per_address_max: nonzero!(30),
            connects_per_minute_max: nonzero!(300),
            messages_per_minute_max: nonzero!(500),
            unknown_per_minute_max: nonzero!(60),
            network_factor: 10,
            unknown_delay_ms: 1_000,
            errors_max: nonzero!(10),
            greeting_delay_ms: 100,
            message_bytes_max: nonzero!(70_000_000),
            memory_bytes_max: nonzero!(256_000_000),
            memory_timeout_ms: 10_000,
            recipients_max: nonzero!(1_000),
            deliveries_at_once_max: nonzero!(32),
            quota_is_permanent: false,
            command_timeout_ms: nonzero!(300_000),
            data_timeout_ms: nonzero!(180_000),
            message_timeout_ms: nonzero!(3_600_000),
            stall_timeout_ms: nonzero!(30_000),
            stop_timeout_ms: 5_000,
        }
    }
}

impl SmtpConfig {
    /// What is wrong with these settings, if anything: the setting, and how to fix it.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let is_host = !self.hostname.is_empty()
            && self.hostname.len() <= 255
            && self.hostname.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'));
        if !is_host {
            return Some(("hostname", "use a name like mail.example.org".to_owned()));
        }
        if self.recipients_max.get() < 100 {
            return Some(("recipients_max", "use at least 100 (RFC 5321 section 4.5.3.1.8)".to_owned()));
        }
        // A message's memory grows by doubling, and its trace fields are added to it.
        let least = self.message_bytes_max.get().saturating_add(1 << 20);
        if self.memory_bytes_max.get() < least {
            return Some(("memory_bytes_max", format!("use at least message_bytes_max and 1 MiB: {least}")));
        }
        None
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connections_max: self.connections_max.get(),
            connections_per_address_max: self.connections_per_address_max.get(),
            stall_timeout: Duration::from_millis(self.stall_timeout_ms.get()),
            stop_timeout: Duration::from_millis(self.stop_timeout_ms),
            ..Limits::default()
        }
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        Duration::from_millis(self.command_timeout_ms.get())
    }

    pub(crate) fn data_timeout(&self) -> Duration {
        Duration::from_millis(self.data_timeout_ms.get())
    }
}

/// This many requests in a minute.
pub(crate) fn per_minute(requests: NonZeroU32) -> Rate {
    Rate { requests: requests.get(), period: Duration::from_secs(60) }
}

/// The settings of LMTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LmtpConfig {
    /// Where a mail server delivers by LMTP: one address or a list, as `127.0.0.1:24` or `unix:/run/restante/lmtp`; empty to
    /// disable it. Every client that can connect can deliver: for a Unix socket, the permissions of its folder decide who can.
    #[serde(deserialize_with = "one_or_many")]
    pub listen: Vec<LmtpAddress>,
    /// Clients whose messages may have bare CR or LF as line breaks, which become CRLF, and whose `X-Spam-Flag: YES` puts a
    /// message into Junk. Clients on Unix sockets are always trusted.
    pub trusted: Vec<IpAddr>,
    /// The most connections of one listener at a time.
    pub connections_max: NonZero<usize>,
}

impl Default for LmtpConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            trusted: vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            connections_max: nonzero!(1_024),
        }
    }
}

impl LmtpConfig {
    pub(crate) fn limits(&self, smtp: &SmtpConfig) -> Limits {
        let connections_max = self.connections_max.get();
        Limits { connections_max, connections_per_address_max: connections_max, ..smtp.limits() }
    }
}

/// Where LMTP is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LmtpAddress {
    /// An address with a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket, written as `unix:<path>`.
    Unix(PathBuf),
}

impl FromStr for LmtpAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => match unix::net::SocketAddr::from_pathname(path) {
                Ok(_) => Ok(Self::Unix(path.into())),
                Err(_) => {
                    let (shown, bytes) = (path.escape_debug(), path.len());
                    Err(format!(
                        "'{shown}' can't be the path of a socket: it has {bytes} bytes, use a shorter one"
                    ))
                }
            },
            _ => text.parse().map(Self::Tcp).map_err(|_| {
                let shown = text.escape_debug();
                format!("'{shown}' is no address: use one like 127.0.0.1:24 or unix:/run/restante/lmtp")
            }),
        }
    }
}

impl fmt::Display for LmtpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for LmtpAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LmtpAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// One address, a list of them, or an empty string for none.
pub(crate) fn one_or_many<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Addresses {
        One(String),
        Many(Vec<String>),
    }
    let wrong = |_| D::Error::custom("expected an address with a port, or a list of them");
    let addresses = match Addresses::deserialize(deserializer).map_err(wrong)? {
        Addresses::One(address) if address.is_empty() => Vec::new(),
        Addresses::One(address) => vec![address],
        Addresses::Many(addresses) => addresses,
    };
    let parse = |address: &String| {
        address.parse().map_err(|error| D::Error::custom(format!("the address '{address}': {error}")))
    };
    addresses.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_one_or_a_list() {
        let listen = |value| serde_json::from_value::<LmtpConfig>(json!({"listen": value})).map(|c| c.listen);
        let (tcp, unix) = ("127.0.0.1:24".parse().unwrap(), LmtpAddress::Unix("/run/lmtp".into()));
        assert_eq!(listen(json!("127.0.0.1:24")).unwrap(), [LmtpAddress::Tcp(tcp)]);
        assert_eq!(listen(json!(["unix:/run/lmtp"])).unwrap(), [unix]);
        assert_eq!(listen(json!("")).unwrap(), []);
        let long = format!("unix:/{}", "a".repeat(107)); // a socket's address has room for 107 bytes
        for wrong in [json!("unix:"), json!(long), json!("/run/lmtp"), json!("localhost:24"), json!(24)] {
            assert!(listen(wrong.clone()).is_err(), "{wrong}");
        }
        assert!(listen(json!(&long[..long.len() - 1])).is_ok());
        let config = SmtpConfig { listen: vec!["[::]:25".parse().unwrap()], ..SmtpConfig::default() };
        let written = serde_json::to_value(&config).unwrap();
        assert_eq!(serde_json::from_value::<SmtpConfig>(written).unwrap(), config);
    }

    #[test]
    fn settings_that_can_not_work_are_named() {
        let default = SmtpConfig::default();
        assert_eq!(default.problem(), None);
        let problem = |config: SmtpConfig| config.problem().map(|(setting, _)| setting);
        assert_eq!(problem(SmtpConfig { hostname: "a b".into(), ..default.clone() }), Some("hostname"));
        assert_eq!(
            problem(SmtpConfig { recipients_max: nonzero!(99), ..default.clone() }),
            Some("recipients_max")
        );
        assert_eq!(
            problem(SmtpConfig { memory_bytes_max: nonzero!(70_000_000), ..default }),
            Some("memory_bytes_max")
        );
    }
}
