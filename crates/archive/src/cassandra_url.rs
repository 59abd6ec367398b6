//! Where Cassandra is.

use std::{collections::BTreeMap, fmt, str::FromStr};

use crate::{Error, url::without_password};

/// The parameters that a URL may have.
const PARAMETERS: [&str; 5] = ["datacenter", "sslmode", "sslrootcert", "sslcert", "sslkey"];

/// The location of an archive in a Cassandra cluster: `cassandra://[user[:password]@]host[:port],.../keyspace`, with `datacenter`,
/// `sslmode`, `sslrootcert`, `sslcert` and `sslkey` as parameters. It is never shown with its password.
#[derive(Clone, PartialEq, Eq)]
pub struct CassandraUrl(Box<Parts>);

/// Boxed, because URLs of other engines are small.
#[derive(Clone, PartialEq, Eq)]
struct Parts {
    nodes: Vec<String>,
    keyspace: String,
    user: Option<String>,
    /// From the URL; percent-decoded when connecting.
    password: Option<String>,
    /// Used when the URL has no password.
    password_beside: Option<String>,
    parameters: BTreeMap<String, String>,
}

impl CassandraUrl {
    /// The nodes to contact first, which know all others: each a host, or a host and a port.
    pub fn nodes(&self) -> &[String] {
        &self.0.nodes
    }

    /// The keyspace with the tables.
    pub fn keyspace(&self) -> &str {
        &self.0.keyspace
    }

    /// The same cluster, another keyspace.
    ///
    /// # Errors
    /// `Invalid` when the name isn't made of lower-case letters, digits and underscores.
    pub fn with_keyspace(&self, keyspace: &str) -> Result<Self, Error> {
        check_name("keyspace", keyspace)?;
        let mut other = self.clone();
        other.0.keyspace = keyspace.to_owned();
        Ok(other)
    }

    /// The same location with a password, which is used unless the URL has its own. It is never shown.
    #[must_use]
    pub fn with_password(mut self, password: String) -> Self {
        self.0.password_beside = Some(password);
        self
    }

    /// The URL with its password, for connecting and not for display.
    pub fn connection(&self) -> String {
        self.text(self.0.password.as_deref().map(|password| format!(":{password}")))
    }

    fn text(&self, password: Option<String>) -> String {
        let user = self.0.user.as_ref().map(|user| format!("{user}{}@", password.unwrap_or_default()));
        let mut text =
            format!("cassandra://{}{}/{}", user.unwrap_or_default(), self.0.nodes.join(","), self.0.keyspace);
        for (number, (name, value)) in self.0.parameters.iter().enumerate() {
            text.push(if number == 0 { '?' } else { '&' });
            text.push_str(name);
            text.push('=');
            text.push_str(value);
        }
        text
    }

    /// A parameter of the URL.
    #[cfg(feature = "cassandra")]
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.0.parameters.get(name).map(String::as_str)
    }

    /// The user as written in the URL.
    #[cfg(feature = "cassandra")]
    pub(crate) fn user(&self) -> Option<&str> {
        self.0.user.as_deref()
    }

    /// The password as written in the URL.
    #[cfg(feature = "cassandra")]
    pub(crate) fn password(&self) -> Option<&str> {
        self.0.password.as_deref()
    }

    /// The password from outside the URL.
    #[cfg(feature = "cassandra")]
    pub(crate) fn password_beside(&self) -> Option<&str> {
        self.0.password_beside.as_deref()
    }
}

/// Refuses a name that would have to be quoted.
fn check_name(what: &str, name: &str) -> Result<(), Error> {
    let is_first_right = name.starts_with(|c: char| c.is_ascii_lowercase());
    let is_rest_right = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !is_first_right || !is_rest_right || name.len() > 48 {
        return Err(Error::invalid(format!(
            "{what} '{name}' is no name for one: use at most 48 lower-case letters, digits and underscores"
        )));
    }
    Ok(())
}

impl FromStr for CassandraUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |what: &str| {
            Error::invalid(format!(
                "archive URL '{}' {what}: use cassandra://<host>,<host>/<keyspace>",
                without_password(text)
            ))
        };
        let rest = text.strip_prefix("cassandra://").ok_or_else(|| invalid("is not understood"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user_info, place) = match place.rsplit_once('@') {
            Some((user_info, place)) => (Some(user_info), place),
            None => (None, place),
        };
        let (nodes, keyspace) = place.split_once('/').ok_or_else(|| invalid("names no keyspace"))?;
        let nodes: Vec<String> = nodes.split(',').map(str::to_owned).collect();
        if nodes.iter().any(String::is_empty) {
            return Err(invalid("names no host"));
        }
        check_name("keyspace", keyspace)?;
        let mut parameters = BTreeMap::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if !PARAMETERS.contains(&name) {
                return Err(invalid(&format!("has the unknown parameter '{name}'")));
            }
            parameters.insert(name.to_owned(), value.to_owned());
        }
        let (user, password) = match user_info.map(|info| info.split_once(':').unwrap_or((info, ""))) {
            Some((user, "")) => (Some(user.to_owned()), None),
            Some((user, password)) => (Some(user.to_owned()), Some(password.to_owned())),
            None => (None, None),
        };
        let keyspace = keyspace.to_owned();
        Ok(Self(Box::new(Parts { nodes, keyspace, user, password, password_beside: None, parameters })))
    }
}

impl fmt::Display for CassandraUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(self.0.password.as_ref().map(|_| ":***".to_owned())))
    }
}

impl fmt::Debug for CassandraUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_read_back() {
        for text in [
            "cassandra://one,two:9043/archive",
            "cassandra://me@[::1]:9042/archive?datacenter=dc1&sslmode=verify-ca",
        ] {
            assert_eq!(text.parse::<CassandraUrl>().unwrap().to_string(), text);
        }
        let url: CassandraUrl = "cassandra://one/archive".parse().unwrap();
        assert_eq!(url.with_keyspace("t_1").unwrap().to_string(), "cassandra://one/t_1");
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in [
            "cassandra://one",
            "cassandra:///archive",
            "cassandra://one,/archive",
            "cassandra://one/Archive",
            "cassandra://one/archive?no_such=1",
            "postgres://one/archive",
        ] {
            assert!(text.parse::<CassandraUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let url: CassandraUrl = "cassandra://me:se@cret@host/archive".parse().unwrap();
        let url = url.with_password("hidden".to_owned());
        for shown in [url.to_string(), format!("{url:?}")] {
            assert!(
                shown.contains("me:***@host") && !shown.contains("cret") && !shown.contains("hidden"),
                "{shown}"
            );
        }
        assert_eq!(url.connection(), "cassandra://me:se@cret@host/archive");
        let error = "cassandra://me:secret@host/archive?x=1".parse::<CassandraUrl>().unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
