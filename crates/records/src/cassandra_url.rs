//! The URL of records in Cassandra.

use std::{collections::BTreeMap, fmt, str::FromStr};

use crate::{Error, postgres_url::without_password};

/// The default store of records in their keyspace.
const STORE_DEFAULT: &str = "records";
/// The parameters that a URL may have.
const PARAMETERS: [&str; 6] = ["store", "datacenter", "sslmode", "sslrootcert", "sslcert", "sslkey"];

/// The location of records in a Cassandra cluster: `cassandra://[user[:password]@]host[:port],.../keyspace`. Several stores may
/// share the tables of a keyspace: the parameter `store=<name>` selects one other than `records`. Never shown with its password.
#[derive(Clone, PartialEq, Eq)]
pub struct CassandraUrl {
    nodes: Vec<String>,
    keyspace: String,
    user: Option<String>,
    /// From the URL, still percent-encoded; decoded when connecting.
    password: Option<String>,
    /// Used when the URL has no password.
    password_beside: Option<String>,
    parameters: BTreeMap<String, String>,
}

impl CassandraUrl {
    /// The nodes to connect to first, from which the others are found: each a host, or a host and a port.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// The keyspace that contains the tables.
    pub fn keyspace(&self) -> &str {
        &self.keyspace
    }

    /// The name of the store in the keyspace.
    pub fn store(&self) -> &str {
        self.parameters.get("store").map_or(STORE_DEFAULT, String::as_str)
    }

    /// The same cluster and keyspace, with another store.
    ///
    /// # Errors
    /// `Invalid` when the name isn't made of lower-case letters, digits and underscores.
    pub fn with_store(&self, store: &str) -> Result<Self, Error> {
        check_name("store", store)?;
        let mut other = self.clone();
        other.parameters.insert("store".to_owned(), store.to_owned());
        Ok(other)
    }

    /// The same location with a password that is used unless the URL has one. It is never shown.
    #[must_use]
    pub fn with_password(mut self, password: String) -> Self {
        self.password_beside = Some(password);
        self
    }

    /// A parameter of the URL.
    #[cfg(feature = "cassandra")]
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// The user as the URL has it.
    #[cfg(feature = "cassandra")]
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password as the URL has it.
    #[cfg(feature = "cassandra")]
    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// The password that was given separately from the URL.
    #[cfg(feature = "cassandra")]
    pub(crate) fn password_beside(&self) -> Option<&str> {
        self.password_beside.as_deref()
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
                "records URL '{}' {what}: use cassandra://<host>,<host>/<keyspace>",
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
        if let Some(store) = parameters.get("store") {
            check_name("store", store)?;
        }
        let (user, password) = match user_info.map(|info| info.split_once(':').unwrap_or((info, ""))) {
            Some((user, "")) => (Some(user.to_owned()), None),
            Some((user, password)) => (Some(user.to_owned()), Some(password.to_owned())),
            None => (None, None),
        };
        Ok(Self { nodes, keyspace: keyspace.to_owned(), user, password, password_beside: None, parameters })
    }
}

impl fmt::Display for CassandraUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cassandra://")?;
        if let Some(user) = &self.user {
            f.write_str(user)?;
            f.write_str(if self.password.is_some() { ":***@" } else { "@" })?;
        }
        write!(f, "{}/{}", self.nodes.join(","), self.keyspace)?;
        for (number, (name, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{name}={value}", if number == 0 { '?' } else { '&' })?;
        }
        Ok(())
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
            "cassandra://one,two:9043/mail",
            "cassandra://me@[::1]:9042/mail?datacenter=dc1&sslmode=verify-ca&store=other",
        ] {
            assert_eq!(text.parse::<CassandraUrl>().unwrap().to_string(), text);
        }
        let url: CassandraUrl = "cassandra://one/mail".parse().unwrap();
        assert_eq!((url.keyspace(), url.store()), ("mail", "records"));
        assert_eq!(url.with_store("t_1").unwrap().to_string(), "cassandra://one/mail?store=t_1");
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in [
            "cassandra://one",
            "cassandra:///mail",
            "cassandra://one,/mail",
            "cassandra://one/Mail",
            "cassandra://one/mail?no_such=1",
            "cassandra://one/mail?store=A",
            "postgres://one/mail",
        ] {
            assert!(text.parse::<CassandraUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let url: CassandraUrl = "cassandra://me:se@cret@host/mail".parse().unwrap();
        let url = url.with_password("hidden".to_owned());
        for shown in [url.to_string(), format!("{url:?}")] {
            assert!(
                shown.contains("me:***@host") && !shown.contains("cret") && !shown.contains("hidden"),
                "{shown}"
            );
        }
        let error = "cassandra://me:secret@host/mail?x=1".parse::<CassandraUrl>().unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
