use std::net::IpAddr;

use hyper::Uri;
use restante_net::is_public;

/// Where a worker of rspamd listens. It speaks plain HTTP, so it must be in the operator's own network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilterUrl {
    /// A name, or an address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl FilterUrl {
    /// Parses a URL; `None` for an empty text.
    pub(super) fn parse_if_any(text: &str) -> Result<Option<Self>, String> {
        if text.is_empty() { Ok(None) } else { Self::parse(text).map(Some) }
    }

    /// Parses `http://HOST:PORT`, with or without a trailing slash.
    fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|_| "write it as http://127.0.0.1:11333".to_owned())?;
        if uri.scheme_str() != Some("http") {
            return Err("it begins with http://: rspamd's workers speak no other protocol".to_owned());
        }
        let host = uri.host().filter(|host| !host.is_empty());
        let (Some(host), Some(port)) = (host, uri.port_u16()) else {
            return Err("name a host and a port, as http://127.0.0.1:11333".to_owned());
        };
        let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
        if has_user || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err("name a host and a port alone, as http://127.0.0.1:11333".to_owned());
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.parse::<IpAddr>().is_ok_and(is_public) {
            return Err(
                "use an address of this machine or of a private network: mail goes there unencrypted"
                    .to_owned(),
            );
        }
        Ok(Self { host, port })
    }

    /// `HOST:PORT`, as in the `Host` header.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_host_and_a_port() {
        for (text, host, port) in [
            ("http://127.0.0.1:11333", "127.0.0.1", 11_333),
            ("http://rspamd:11334/", "rspamd", 11_334),
            ("http://[::1]:11333", "::1", 11_333),
            ("http://10.1.2.3:80", "10.1.2.3", 80),
        ] {
            let url = FilterUrl::parse(text).unwrap();
            assert_eq!((url.host.as_str(), url.port), (host, port), "{text}");
            assert_eq!(format!("http://{}", url.authority()), text.trim_end_matches('/'));
        }
        for text in [
            "127.0.0.1:11333",
            "rspamd",
            "http://127.0.0.1",
            "https://127.0.0.1:11333",
            "http://127.0.0.1:11333/checkv2",
            "http://127.0.0.1:11333/?a=b",
            "http://user:password@127.0.0.1:11333",
            "http://8.8.8.8:11333",
            "http://[2a01:4f8::1]:11333",
            "http://:11333",
        ] {
            assert!(FilterUrl::parse(text).is_err(), "{text}");
        }
        assert_eq!(FilterUrl::parse_if_any(""), Ok(None));
    }
}
