//! The URL of an OpenSearch.

use std::{borrow::Cow, fmt, str::FromStr};

use crate::Error;

/// The port of OpenSearch's HTTP interface.
const PORT_DEFAULT: u16 = 9200;

/// The address of an OpenSearch: `opensearch://host:port`, or `opensearchs://` with TLS, with `user:password@` before the host if it
/// requires them. Its password is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct OpensearchUrl {
    is_tls: bool,
    /// Host and port.
    authority: String,
    user: Option<String>,
    password: Option<String>,
}

impl OpensearchUrl {
    /// The same with a password, unless the URL has one. It is never shown.
    #[must_use]
    pub fn with_password(mut self, password: String) -> Self {
        self.password.get_or_insert(password);
        self
    }

    /// Whether connections are encrypted.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The address for requests: `http://host:port`.
    #[cfg(feature = "opensearch")]
    pub(crate) fn base(&self) -> String {
        format!("{}://{}", if self.is_tls { "https" } else { "http" }, self.authority)
    }

    /// User and password, if there is a user.
    #[cfg(feature = "opensearch")]
    pub(crate) fn credentials(&self) -> Option<(&str, &str)> {
        let user = self.user.as_deref()?;
        Some((user, self.password.as_deref().unwrap_or_default()))
    }
}

impl FromStr for OpensearchUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            let shown = without_password(text);
            Error::invalid(format!(
                "search URL '{shown}' is not understood: use opensearch://<user>@<host>:<port>, or opensearchs:// with TLS"
            ))
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let is_tls = match scheme {
            "opensearch" | "http" => false,
            "opensearchs" | "https" => true,
            _ => return Err(wrong()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user_info, place) = match rest.rsplit_once('@') {
            Some((user_info, place)) => (Some(user_info), place),
            None => (None, rest),
        };
        let (user, password) = match user_info.map(|info| info.split_once(':').unwrap_or((info, ""))) {
            None | Some(("", _)) if user_info.is_some() => return Err(wrong()),
            None => (None, None),
            Some((user, "")) => (Some(user.to_owned()), None),
            Some((user, password)) => (Some(user.to_owned()), Some(password.to_owned())),
        };
        Ok(Self { is_tls, authority: authority(place).ok_or_else(wrong)?, user, password })
    }
}

/// Host and port; `None` if it is something else.
fn authority(place: &str) -> Option<String> {
    let is_of_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    if place.is_empty() || !place.chars().all(is_of_host) {
        return None;
    }
    let after_host = match place.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.1,
        None => place.find(':').and_then(|colon| place.get(colon..)).unwrap_or_default(),
    };
    if after_host.is_empty() {
        return Some(format!("{place}:{PORT_DEFAULT}"));
    }
    let port: u16 = after_host.strip_prefix(':')?.parse().ok()?;
    (port > 0 && !place.starts_with(':')).then(|| place.to_owned())
}

impl fmt::Display for OpensearchUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_tls { "opensearchs://" } else { "opensearch://" })?;
        if let Some(user) = &self.user {
            let hidden = if self.password.is_some() { ":***" } else { "" };
            write!(f, "{user}{hidden}@")?;
        }
        f.write_str(&self.authority)
    }
}

impl fmt::Debug for OpensearchUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A URL with `***` instead of its password.
pub(crate) fn without_password(url: &str) -> Cow<'_, str> {
    if let Some((scheme, rest)) = url.split_once("://")
        && let Some((user_info, place)) = rest.rsplit_once('@')
        && let Some((user, _)) = user_info.split_once(':')
    {
        return format!("{scheme}://{user}:***@{place}").into();
    }
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_read_back_with_their_port_and_others_are_refused() {
        for (text, shown) in [
            ("opensearch://search", "opensearch://search:9200"),
            ("opensearchs://me@search.example.org:443/", "opensearchs://me@search.example.org:443"),
            ("http://[::1]", "opensearch://[::1]:9200"),
            ("https://[::1]:9201", "opensearchs://[::1]:9201"),
        ] {
            let url: OpensearchUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse::<OpensearchUrl>().unwrap(), url);
        }
        for text in [
            "",
            "search:9200",
            "ftp://x",
            "http://",
            "http://:1",
            "http://a/b",
            "http://a:x",
            "http://@a",
            "http://a:0",
        ] {
            assert!(text.parse::<OpensearchUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let url: OpensearchUrl = "opensearch://me:se@cret@search".parse().unwrap();
        for shown in [url.to_string(), format!("{url:?}")] {
            assert_eq!(shown, "opensearch://me:***@search:9200");
        }
        #[cfg(feature = "opensearch")]
        assert_eq!(url.clone().with_password("other".to_owned()).credentials(), Some(("me", "se@cret")));
        let beside =
            "opensearch://me@search".parse::<OpensearchUrl>().unwrap().with_password("secret".to_owned());
        assert_eq!(beside.to_string(), "opensearch://me:***@search:9200");
        let error = "opensearch://me:secret@a/b".parse::<OpensearchUrl>().unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
