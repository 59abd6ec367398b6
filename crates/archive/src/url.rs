use std::{borrow::Cow, fmt, path::PathBuf, str::FromStr};

use crate::{CassandraUrl, Error};

/// Which engine, and where: `log:<folder>`, `sqlite:<file>`, `postgres://user@host/database`,
/// `cassandra://host,host/keyspace`, or `memory:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineUrl {
    /// The embedded engine, in a folder.
    Log(PathBuf),
    /// SQLite, in one file.
    Sqlite(PathBuf),
    /// PostgreSQL.
    Postgres(PostgresUrl),
    /// Cassandra.
    Cassandra(CassandraUrl),
    /// The reference model: everything in memory, nothing stored.
    Memory,
}

impl EngineUrl {
    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Log(_) => "log",
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
            Self::Cassandra(_) => "cassandra",
            Self::Memory => "memory",
        }
    }
}

impl FromStr for EngineUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            Some(("log", folder)) if !folder.is_empty() => Ok(Self::Log(folder.into())),
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("sqlite" | "sqlite3", file)) => {
                let file = file.strip_prefix("//").unwrap_or(file); // as nwaku's operators write it
                if file.is_empty() {
                    return Err(Error::invalid("archive URL 'sqlite:' names no file: use sqlite:<file>"));
                }
                Ok(Self::Sqlite(file.into()))
            }
            Some(("postgres" | "postgresql", _)) => text.parse().map(Self::Postgres),
            Some(("cassandra", _)) => text.parse().map(Self::Cassandra),
            _ => Err(Error::invalid(format!(
                "archive URL '{}' is not understood: use log:<folder>, sqlite:<file>, \
                 postgres://<user>@<host>/<database>, cassandra://<host>/<keyspace> or memory:",
                without_password(text)
            ))),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(folder) => write!(f, "log:{}", folder.display()),
            Self::Sqlite(file) => write!(f, "sqlite:{}", file.display()),
            Self::Postgres(url) => fmt::Display::fmt(url, f),
            Self::Cassandra(url) => fmt::Display::fmt(url, f),
            Self::Memory => f.write_str("memory:"),
        }
    }
}

/// The location of an archive in a PostgreSQL server: a libpq URL, with `schema=<name>` among its parameters for a schema other
/// than `restante`. It is never shown with its password.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// The URL without the parameters of this program.
    connection: String,
    schema: String,
}

/// The default schema of an archive in its database.
const SCHEMA_DEFAULT: &str = "restante";

impl PostgresUrl {
    /// The URL as PostgreSQL's clients expect it, including the password: not to be shown.
    pub fn connection(&self) -> &str {
        &self.connection
    }

    /// The schema that holds the archive: lower-case letters, digits and underscores.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The same database, another schema.
    ///
    /// # Errors
    /// `Invalid` when the name isn't made of lower-case letters, digits and underscores.
    pub fn with_schema(&self, schema: &str) -> Result<Self, Error> {
        let is_first_right = schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        let is_rest_right = schema.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !is_first_right || !is_rest_right || schema.len() > 48 {
            return Err(Error::invalid(format!(
                "schema '{schema}' is no name for one: use at most 48 lower-case letters, digits and underscores"
            )));
        }
        Ok(Self { connection: self.connection.clone(), schema: schema.to_owned() })
    }
}

impl FromStr for PostgresUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |what: &str| Error::invalid(format!("archive URL '{}' {what}", without_password(text)));
        let (place, parameters) = text.split_once('?').unwrap_or((text, ""));
        if !place.contains("://") {
            return Err(invalid("is not understood: use postgres://<user>@<host>/<database>"));
        }
        // PostgreSQL's clients assume that the host follows the first one, and would print the end of a password as a host.
        if place.matches('@').count() > 1 {
            return Err(invalid(
                "has more than one '@': write one in a user, a password or a database as %40",
            ));
        }
        let mut schema = SCHEMA_DEFAULT;
        let mut others = Vec::new();
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("schema", name)) => schema = name,
                _ => others.push(parameter),
            }
        }
        let mut connection = place.to_owned();
        if !others.is_empty() {
            connection.push('?');
            connection.push_str(&others.join("&"));
        }
        let url = Self { connection, schema: String::new() }.with_schema(schema)?;
        #[cfg(feature = "postgres")]
        crate::postgres::ConnectOptions::new(&url)?;
        Ok(url)
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_password(&self.connection))?;
        if self.schema != SCHEMA_DEFAULT {
            let joint = if self.connection.contains('?') { '&' } else { '?' };
            write!(f, "{joint}schema={}", self.schema)?;
        }
        Ok(())
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A URL with `***` in place of its password, wherever it occurs in it.
pub(crate) fn without_password(url: &str) -> Cow<'_, str> {
    let mut shown = Cow::Borrowed(url);
    if let Some((scheme, rest)) = url.split_once("://")
        && let Some((user_info, place)) = rest.rsplit_once('@')
        && let Some((user, _)) = user_info.split_once(':')
    {
        shown = format!("{scheme}://{user}:***@{place}").into();
    }
    if let Some((before, rest)) = shown.split_once("password=") {
        let after = rest.split_once('&').map(|(_, after)| format!("&{after}")).unwrap_or_default();
        shown = format!("{before}password=***{after}").into();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_read_back() {
        for text in [
            "log:data/archive",
            "sqlite:a/b.db",
            "postgres://me@db/archive",
            "postgresql://db:5433/x?sslmode=require&schema=other",
            "cassandra://me@one:9042,two/archive?sslmode=require",
            "memory:",
        ] {
            assert_eq!(text.parse::<EngineUrl>().unwrap().to_string(), text);
        }
        assert_eq!(
            "sqlite://store.sqlite3".parse::<EngineUrl>().unwrap().to_string(),
            "sqlite:store.sqlite3"
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "log:", "sqlite:", "sqlite://", "memory:x", "mongo:x", "postgres://h/d?schema=A-b"] {
            assert!(text.parse::<EngineUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for text in [
            "postgres://me:secret@host/db?schema=x",
            "postgres://me:se%40cret@host/db",
            "postgres://host/db?user=me&password=secret&schema=x",
        ] {
            let url: PostgresUrl = text.parse().unwrap();
            for shown in [url.to_string(), format!("{url:?}")] {
                assert!(!shown.contains("secret") && !shown.contains("cret"), "{shown}");
                assert!(shown.contains("***") && shown.contains("host/db"), "{shown}");
            }
            assert!(url.connection().contains("cret") && !url.connection().contains("schema="));
        }
        let error = "postgre://me:secret@host/db".parse::<EngineUrl>().unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
