//! The options of connections: those of tokio-postgres, and the TLS parameters that only libpq has.

use std::{
    error::Error as _,
    net::IpAddr,
    path::{Path, PathBuf},
};

use percent_encoding::percent_decode_str;
use restante_net::tls::{ClientTls, Roots, Verify};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{Error, PostgresUrl};

/// The value of `sslrootcert` that selects the authorities of the operating system, as in libpq.
const SYSTEM_ROOTS: &str = "system";

/// The options of connections to a PostgreSQL server.
pub struct ConnectOptions {
    /// What tokio-postgres connects with.
    pub config: tokio_postgres::Config,
    tls: ClientTls,
}

impl ConnectOptions {
    /// The options of a URL. `sslmode` is one of libpq's: `disable`, `prefer`, `require`, `verify-ca` and `verify-full`. Without
    /// it a server on this machine is reached without TLS, any other one as with `prefer`. `sslrootcert` is a file, or `system`,
    /// which is the default with `verify-ca` and `verify-full`; with `require` a file is checked as with `verify-ca`. `sslcert`
    /// and `sslkey` are the client's own certificate and key.
    ///
    /// # Errors
    /// `Invalid`: the URL is not understood. Files are read by [`ConnectOptions::connector`].
    pub fn new(url: &PostgresUrl) -> Result<Self, Error> {
        let invalid = |what: String| Error::invalid(format!("archive URL {url} {what}"));
        let mut parameters = TlsParameters::default();
        let plain = parameters.take_from(url.connection());
        let mut config: tokio_postgres::Config =
            plain.parse().map_err(|error| invalid(what_is_wrong(&error)))?;
        if !config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if !name.is_empty())) {
            return Err(invalid("names no host: use postgres://<user>@<host>/<database>".to_owned()));
        }
        let default = if is_local(&config) { "disable" } else { "prefer" };
        let has_roots = parameters.root_certificates.is_some();
        let (mode, verify) = match parameters.mode.as_deref().unwrap_or(default) {
            "disable" => (SslMode::Disable, Verify::Nothing),
            "prefer" => (SslMode::Prefer, Verify::Nothing),
            "require" if has_roots => (SslMode::Require, Verify::Chain),
            "require" => (SslMode::Require, Verify::Nothing),
            "verify-ca" => (SslMode::Require, Verify::Chain),
            "verify-full" => (SslMode::Require, Verify::ChainAndName),
            other => {
                let known = "use disable, prefer, require, verify-ca or verify-full";
                return Err(invalid(format!("has the unknown sslmode '{other}': {known}")));
            }
        };
        config.ssl_mode(mode);
        let roots = match parameters.root_certificates {
            Some(file) if file != Path::new(SYSTEM_ROOTS) => Roots::File(file),
            _ => Roots::System,
        };
        let identity = match (parameters.certificate, parameters.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(invalid("names only one of sslcert and sslkey: name both".to_owned())),
        };
        Ok(Self { config, tls: ClientTls { verify, roots, identity } })
    }

    /// The TLS connector, used when the server and the options want TLS. This reads the certificates: a new one is used from the
    /// next connection on.
    ///
    /// # Errors
    /// `Invalid`: a file can't be read or used.
    pub fn connector(&self) -> Result<MakeRustlsConnect, Error> {
        let config =
            self.tls.config().map_err(|error| Error::invalid(format!("TLS to postgres: {error}")))?;
        Ok(MakeRustlsConnect::new(config))
    }
}

/// The part of a URL that tokio-postgres rejects: the parameter, or the part of the URL that stands for one.
fn what_is_wrong(error: &tokio_postgres::Error) -> String {
    let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let name_after = |words: &str| cause.strip_prefix(words).and_then(|rest| rest.strip_suffix('`'));
    if let Some(name) = name_after("unknown option `") {
        return format!("has the unknown parameter '{name}'");
    }
    match name_after("invalid value for option `") {
        Some(name) => format!("has a {name} that can't be used"),
        None => format!("is not understood: {cause}"),
    }
}

/// Whether all hosts are this machine, where TLS would not protect anything.
fn is_local(config: &tokio_postgres::Config) -> bool {
    config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        }
        _ => true, // a socket in the file system
    })
}

/// The parameters of a URL that tokio-postgres doesn't support, or supports in part.
#[derive(Default)]
struct TlsParameters {
    mode: Option<String>,
    root_certificates: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl TlsParameters {
    /// Removes the parameters from a URL; returns the rest of it.
    fn take_from(&mut self, url: &str) -> String {
        let Some((place, parameters)) = url.split_once('?') else { return url.to_owned() };
        let mut others = Vec::new();
        for parameter in parameters.split('&') {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = || percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "sslmode" => self.mode = Some(value()),
                "sslrootcert" => self.root_certificates = Some(value().into()),
                "sslcert" => self.certificate = Some(value().into()),
                "sslkey" => self.key = Some(value().into()),
                _ => others.push(parameter),
            }
        }
        if others.is_empty() { place.to_owned() } else { format!("{place}?{}", others.join("&")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<ConnectOptions, Error> {
        ConnectOptions::new(&url.parse()?)
    }

    #[test]
    fn a_server_on_this_machine_is_reached_without_tls_unless_asked() {
        for (url, expected) in [
            ("postgres://me@localhost/x", SslMode::Disable),
            ("postgres://me@127.0.0.1:5433/x", SslMode::Disable),
            ("postgres://me@[::1]/x", SslMode::Disable),
            ("postgres://me@db/x", SslMode::Prefer),
            ("postgres://me@localhost,db/x", SslMode::Prefer),
            ("postgres://me@localhost/x?sslmode=require", SslMode::Require),
            ("postgres://me@db/x?sslmode=disable", SslMode::Disable),
        ] {
            assert_eq!(options(url).unwrap().config.get_ssl_mode(), expected, "{url}");
        }
    }

    #[test]
    fn modes_check_what_libpq_checks() {
        let file = || Roots::File("/etc/ca.pem".into());
        for (parameters, verify, roots) in [
            ("sslmode=require", Verify::Nothing, Roots::System),
            ("sslmode=require&sslrootcert=/etc/ca.pem", Verify::Chain, file()),
            ("sslrootcert=%2Fetc%2Fca.pem&sslmode=verify-ca", Verify::Chain, file()),
            ("sslmode=verify-full&sslrootcert=/etc/ca.pem&connect_timeout=3", Verify::ChainAndName, file()),
            ("sslmode=verify-full", Verify::ChainAndName, Roots::System),
            ("sslmode=verify-full&sslrootcert=system", Verify::ChainAndName, Roots::System),
        ] {
            let options = options(&format!("postgres://me@db/x?{parameters}")).unwrap();
            assert_eq!(options.tls, ClientTls { verify, roots, identity: None }, "{parameters}");
            assert_eq!(options.config.get_ssl_mode(), SslMode::Require, "{parameters}");
        }
        let own = options("postgres://me@db/x?sslmode=require&sslcert=/c.pem&sslkey=/k.pem").unwrap();
        assert_eq!(own.tls.identity, Some(("/c.pem".into(), "/k.pem".into())));
    }

    /// Settings with such a URL passed `restante config check`, but no server started with them.
    #[test]
    fn a_url_by_which_nothing_is_reached_is_refused_when_it_is_parsed() {
        for (url, hint) in [
            ("postgres://me@db/x?sslmode=verify", "verify-full"),
            ("postgres://me@db/x?sslcert=/c.pem", "sslkey"),
            ("postgres:///x", "names no host"),
            ("postgres://", "names no host"),
            ("postgres://me@:5432/x", "names no host"),
            ("postgres:x", "use postgres://"),
            ("postgres://me@db:99999/x", "has a port that can't be used"),
            ("postgres://me@db/x?connect_timeout=soon", "connect_timeout"),
            ("postgres://me:secret@db/x?no_such=1", "the unknown parameter 'no_such'"),
            ("postgres://me:my@secret:5432/x@db/x", "%40"),
        ] {
            let error = url.parse::<PostgresUrl>().unwrap_err().to_string();
            assert!(error.contains(hint) && !error.contains("secret"), "{error}");
        }
    }
}
