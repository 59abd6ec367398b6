//! The URL of a subscription, and the addresses that it may lead to.

use std::net::{IpAddr, SocketAddr};

use axum::http::{Uri, uri::Scheme};
use restante_net::is_public;
use tokio::net::lookup_host;

/// The longest URL.
const URL_BYTES_MAX: usize = 2_048;
const HTTPS_PORT: u16 = 443;
/// The most addresses of a host that are tried.
const ADDRESSES_MAX: usize = 4;

/// A URL to which pushes are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    port: u16,
    /// The host as in the header of that name.
    pub(super) authority: String,
    pub(super) path: String,
}

impl Endpoint {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it, for the client's developers.
    pub(crate) fn read(url: &str, allow_private: bool) -> Result<Self, &'static str> {
        if url.len() > URL_BYTES_MAX {
            return Err("is too long");
        }
        let uri: Option<Uri> = url.is_ascii().then(|| url.parse().ok()).flatten();
        let uri = uri.ok_or("is not a URL")?;
        // RFC 8620 §7.2: it must begin with https://.
        if uri.scheme() != Some(&Scheme::HTTPS) || !url.starts_with("https://") {
            return Err("must begin with https://");
        }
        let authority = uri.authority().ok_or("has no host")?;
        if authority.as_str().contains('@') {
            return Err("must not have a user or a password");
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if authority.as_str() == authority.host() => HTTPS_PORT,
            None => 0,
        };
        if port == 0 {
            return Err("has a port that is none");
        }
        if host.is_empty() {
            return Err("has no host");
        }
        let is_private = match host.parse::<IpAddr>() {
            Ok(ip) => !is_public(ip),
            // The addresses of a name are checked before each push.
            Err(_) => host == "localhost" || host.ends_with(".localhost"),
        };
        if is_private && !allow_private {
            return Err("leads to this machine or to a private network");
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let authority = authority.as_str().to_ascii_lowercase();
        Ok(Self { host, port, authority, path })
    }

    /// The addresses to connect to. Exactly these were checked, so a name can't resolve to others afterwards.
    ///
    /// # Errors
    /// Why there are none, for the log.
    pub(super) async fn addresses(&self, allow_private: bool) -> Result<Vec<SocketAddr>, String> {
        let found = lookup_host((self.host.as_str(), self.port)).await;
        let found = found.map_err(|error| format!("can't resolve the host: {error}"))?;
        let allowed: Vec<SocketAddr> =
            found.filter(|address| allow_private || is_public(address.ip())).take(ADDRESSES_MAX).collect();
        if allowed.is_empty() {
            return Err("the host has no public address".to_owned());
        }
        Ok(allowed)
    }

    /// What VAPID calls the audience (RFC 8292 §2): the origin.
    pub(super) fn origin(&self) -> String {
        let authority = self.authority.strip_suffix(":443").unwrap_or(&self.authority);
        format!("https://{authority}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p5_a_url_begins_with_https_and_leads_to_a_public_address() {
        let read = |url: &str| Endpoint::read(url, false);
        let endpoint = read("https://Push.example.org/send/abc?x=1#fragment").unwrap();
        assert_eq!((endpoint.host.as_str(), endpoint.port), ("push.example.org", 443));
        assert_eq!(
            (endpoint.path.as_str(), endpoint.origin().as_str()),
            ("/send/abc?x=1", "https://push.example.org")
        );
        let endpoint = read("https://push.example.org:8443").unwrap();
        assert_eq!((endpoint.port, endpoint.path.as_str()), (8_443, "/"));
        assert_eq!(endpoint.origin(), "https://push.example.org:8443");
        assert_eq!(read("https://push.example.org:443/").unwrap().origin(), "https://push.example.org");
        assert_eq!(read("https://[2a01:4f8::1]/x").unwrap().host, "2a01:4f8::1");
        let long = format!("https://push.example.org/{}", "x".repeat(2_048));
        for wrong in [
            "",
            "x",
            "/path",
            "http://push.example.org/",
            "HTTPS://push.example.org/",
            "ftp://push.example.org/",
            "https://",
            "https:///x",
            "https://a@push.example.org/",
            "https://a:b@push.example.org/",
            "https://push.example.org:/",
            "https://push.example.org:0/",
            "https://push.example.org:65536/",
            "https://push.example.org/a b",
            "https://push.example.org/\u{e4}",
            "https://localhost/",
            "https://a.localhost/",
            "https://127.0.0.1/",
            "https://10.0.0.1/",
            "https://169.254.169.254/latest",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://0.0.0.0/",
            "https://[fd00::1]/",
            &long,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(Endpoint::read("https://localhost:1/", true).is_ok());
        assert!(Endpoint::read("http://localhost:1/", true).is_err(), "https also there");
    }

    #[tokio::test]
    async fn p5_what_a_host_resolves_to_is_checked() {
        let endpoint = Endpoint::read("https://localhost:1/", true).unwrap();
        assert!(endpoint.addresses(true).await.is_ok());
        assert_eq!(endpoint.addresses(false).await, Err("the host has no public address".to_owned()));
        let decimal = Endpoint::read("https://2130706433/", false);
        assert!(
            decimal.is_err() || decimal.unwrap().addresses(false).await.is_err(),
            "127.0.0.1 as one number"
        );
    }
}
