//! The URL of records in PostgreSQL. The archive has its own copy of this: a role imports no other role.

use std::{borrow::Cow, fmt, str::FromStr};

use crate::Error;

/// The location of records in a PostgreSQL server: a libpq URL, with the parameter `schema=<name>` for a schema other than
/// `restante_records`. Never shown with its password.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// The URL without our own parameters.
    connection: String,
    schema: String,
    /// Used when the URL has no password.
    password: Option<String>,
}

/// The default schema of records in their database.
const SCHEMA_DEFAULT: &str = "restante_records";

impl PostgresUrl {
    /// The URL as PostgreSQL's clients accept it, including the password: must not be shown.
    pub fn connection(&self) -> &str {
        &self.connection
    }

    /// The schema that holds the records: lower-case letters, digits and underscores.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The same database, with another schema.
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
        Ok(Self { schema: schema.to_owned(), ..self.clone() })
    }

    /// The same database with a password that is used unless the URL has one. It is never shown.
    #[must_use]
    pub fn with_password(mut self, password: String) -> Self {
        self.password = Some(password);
        self
    }

    /// The password that was given separately from the URL, if any.
    #[cfg(feature = "postgres")]
    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }
}

impl FromStr for PostgresUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |what: &str| Error::invalid(format!("records URL '{}' {what}", without_password(text)));
        let (place, parameters) = text.split_once('?').unwrap_or((text, ""));
        if !place.contains("://") {
            return Err(invalid("is not understood: use postgres://<user>@<host>/<database>"));
        }
        // PostgreSQL's clients take everything after the first `@` for the host, and would print the end of a password as part of it.
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
        let url = Self { connection, schema: String::new(), password: None }.with_schema(schema)?;
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

/// A URL with `***` in place of its password, wherever the password is.
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
        for text in ["postgres://me@db/mail", "postgresql://db:5433/x?sslmode=require&schema=other"] {
            assert_eq!(text.parse::<PostgresUrl>().unwrap().to_string(), text);
        }
        assert!("postgres://h/d?schema=A-b".parse::<PostgresUrl>().is_err());
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
            let beside = url.with_password("hidden".to_owned());
            assert!(!format!("{beside} {beside:?} {}", beside.connection()).contains("hidden"));
        }
    }
}
