//! The listener for the users of mail: its settings, and its URL.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZero,
    str::FromStr,
};

use axum::http::Uri;
use restante_core::{nonzero, settings};
use restante_http::PageOrigin;
use serde::{Deserialize, Serialize};

use crate::MtaStsConfig;

/// The settings of the public listener.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicConfig {
    /// Where it listens: one address or a list; none by default. It is not opened if no door has routes on it.
    #[serde(deserialize_with = "one_or_many")]
    pub listen: Vec<SocketAddr>,
    /// The URL by which clients reach it.
    pub url: PublicUrl,
    /// Whether it speaks HTTPS.
    pub tls: bool,
    /// Addresses of proxies. Each connection from one begins with a header of the PROXY protocol.
    pub proxies: Vec<IpAddr>,
    /// The most connections at a time, and the most open requests on all of them.
    pub connections_max: NonZero<usize>,
    /// The most connections of one address at a time, and the most open requests.
    pub connections_per_address_max: NonZero<usize>,
    /// How long a client may take to send the head of a request.
    pub header_timeout_ms: NonZero<u64>,
    /// How long a client may take for each 64 KiB of an answer.
    pub stall_timeout_ms: NonZero<u64>,
    /// Pages of other sites that may use the listener in a browser.
    #[serde(with = "settings::texts")]
    pub origins: Vec<PageOrigin>,
    /// The policy that makes other servers use TLS for mail to domains of this one.
    pub mta_sts: MtaStsConfig,
}

impl Default for PublicConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            url: PublicUrl::default(),
            tls: false,
            proxies: Vec::new(),
            connections_max: nonzero!(4_096),
            connections_per_address_max: nonzero!(256),
            header_timeout_ms: nonzero!(10_000),
            stall_timeout_ms: nonzero!(30_000),
            origins: Vec::new(),
            mta_sts: MtaStsConfig::default(),
        }
    }
}

impl PublicConfig {
    /// The URL of the listener on one of its addresses: `url`, or without one the address itself. It has no trailing slash.
    pub fn url(&self, address: SocketAddr) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        self.url.0.clone().unwrap_or_else(|| format!("{scheme}://{address}"))
    }
}

/// The URL by which clients reach the public listener, as `https://mail.example.org`; empty for none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicUrl(Option<String>);

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        let wrong = || {
            let text = text.escape_debug();
            format!("'{text}' is no URL for clients: write it as https://mail.example.org, without a path")
        };
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
        let is_host = uri.authority().is_some_and(|host| !host.as_str().contains('@'));
        // `/.well-known/jmap` is at the root of a host (RFC 8620 section 2.2).
        let is_root = uri.path_and_query().is_none_or(|path| path == "/") && !text.contains('#');
        if is_web && is_host && is_root {
            Ok(Self(Some(text.trim_end_matches('/').to_owned())))
        } else {
            Err(wrong())
        }
    }
}

impl TryFrom<String> for PublicUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PublicUrl> for String {
    fn from(url: PublicUrl) -> Self {
        url.0.unwrap_or_default()
    }
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Addresses {
        One(String),
        Many(Vec<String>),
    }
    let wrong = || {
        serde::de::Error::custom(
            "expected an IP address with a port, as in \"0.0.0.0:443\", or a list of them",
        )
    };
    let addresses = match Addresses::deserialize(deserializer).map_err(|_| wrong())? {
        Addresses::One(address) if address.is_empty() => Vec::new(),
        Addresses::One(address) => vec![address],
        Addresses::Many(addresses) => addresses,
    };
    addresses.iter().map(|address| address.parse().map_err(|_| wrong())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_url_is_a_scheme_and_a_host() {
        for (text, expected) in [
            ("https://mail.example.org", "https://mail.example.org"),
            ("https://mail.example.org/", "https://mail.example.org"),
            ("http://[::1]:8647", "http://[::1]:8647"),
            ("", ""),
        ] {
            assert_eq!(text.parse::<PublicUrl>().map(String::from).as_deref(), Ok(expected));
        }
        for text in [
            "mail.example.org",
            "https://",
            "ftp://mail.example.org",
            "https://me@mail.example.org",
            "https://mail.example.org/mail",
            "https://mail.example.org/?a",
            "https://mail.example.org#a",
        ] {
            assert!(text.parse::<PublicUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_address_stands_in_for_a_missing_url() {
        let address: SocketAddr = "127.0.0.1:8647".parse().unwrap();
        let named = PublicConfig { url: "https://a.example".parse().unwrap(), ..PublicConfig::default() };
        assert_eq!(named.url(address), "https://a.example");
        assert_eq!(PublicConfig::default().url(address), "http://127.0.0.1:8647");
        let secure = PublicConfig { tls: true, ..PublicConfig::default() };
        assert_eq!(secure.url(address), "https://127.0.0.1:8647");
    }

    #[test]
    fn addresses_are_one_or_a_list() {
        let read = |listen: serde_json::Value| {
            let mut config = serde_json::to_value(PublicConfig::default()).unwrap();
            config["listen"] = listen;
            serde_json::from_value::<PublicConfig>(config).map(|config| config.listen)
        };
        let addresses =
            |texts: &[&str]| -> Vec<SocketAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        assert_eq!(read(json!("[::]:443")).unwrap(), addresses(&["[::]:443"]));
        assert_eq!(read(json!(["1.2.3.4:1", "[::]:2"])).unwrap(), addresses(&["1.2.3.4:1", "[::]:2"]));
        assert_eq!(read(json!("")).unwrap(), []);
        for wrong in [json!("localhost:80"), json!(["1.2.3.4"]), json!(80)] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.starts_with("expected an IP address with a port"), "{error}");
        }
    }
}
