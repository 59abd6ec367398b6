//! Which hosts a request may name, and which pages may use a listener.

use std::{fmt, str::FromStr};

use axum::http::{Uri, uri::Authority};

/// An origin as browsers send it (RFC 6454 §6.1), as `https://chat.example:8443`, or `*` for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOrigin(String);

impl FromStr for PageOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("'{text}' is no origin: write it as https://<host> or http://<host>:<port>, or * for all")
        };
        if text == "*" {
            return Ok(Self(text.to_owned()));
        }
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
        let is_bare = uri.authority().is_some_and(|authority| {
            // Browsers never send a path, a user, or a trailing slash.
            text.ends_with(authority.as_str()) && !authority.as_str().contains('@')
        });
        if is_web && is_bare { Ok(Self(text.to_ascii_lowercase())) } else { Err(wrong()) }
    }
}

impl fmt::Display for PageOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A host as a request names it, without a port, or `*` for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_bare = |authority: &Authority| authority.host() == text && !text.is_empty();
        let is_host = text == "*" || text.parse().is_ok_and(|authority| is_bare(&authority));
        let wrong =
            || format!("'{text}' is no host: write a name or an address without a port, or * for all");
        is_host.then(|| Self(text.to_ascii_lowercase())).ok_or_else(wrong)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_without_a_port() {
        for text in ["*", "waku.example", "10.0.0.1", "[fd00::1]"] {
            assert_eq!(text.parse::<HostName>().map(|host| host.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "waku.example:80", "me@waku.example", "http://waku.example", "a b", "waku.example/"]
        {
            assert!(text.parse::<HostName>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        for text in ["*", "https://chat.example", "http://localhost:3000", "http://[::1]:3000"] {
            assert_eq!(text.parse::<PageOrigin>().map(|origin| origin.to_string()), Ok(text.to_owned()));
        }
        let parsed = "HTTPS://Chat.Example".parse::<PageOrigin>();
        assert_eq!(parsed.map(|origin| origin.to_string()).as_deref(), Ok("https://chat.example"));
        for text in [
            "",
            "chat.example",
            "https://chat.example/",
            "https://chat.example/x",
            "ftp://x",
            "https://me@x",
            "null",
        ] {
            assert!(text.parse::<PageOrigin>().is_err(), "{text}");
        }
    }
}
