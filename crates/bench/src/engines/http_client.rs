//! A client of engines that are reached by HTTP: kept-alive connections, over TLS where the address says so.

use std::{path::Path, time::Duration};

use anyhow::{Context, bail};
use hyper::{Uri, body::Body};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use restante_net::tls::{ClientTls, Roots, Verify};

use super::EnginesArgs;

const CONNECT_MAX: Duration = Duration::from_secs(10);

pub(super) type HttpClient<B> = Client<HttpsConnector<HttpConnector>, B>;

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// `http://host:port` or `https://host:port`.
    pub(super) base: String,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_tls: bool,
    /// User and password, where the URL has them.
    pub(super) credentials: Option<String>,
}

impl Address {
    /// Reads the URL that the flag `flag` takes.
    ///
    /// # Errors
    /// When it is no URL of HTTP, or has a path. The error does not contain the URL, which may have a password.
    pub(super) fn parse(url: &str, flag: &str) -> anyhow::Result<Self> {
        let advice = || format!("{flag} takes http://<host>:<port> or https://<host>:<port>");
        let uri: Uri = url.parse().map_err(|_| anyhow::anyhow!(advice()))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => bail!(advice()),
        };
        let authority = uri.authority().with_context(advice)?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            bail!("{}, without a path", advice());
        }
        let (credentials, place) = match authority.as_str().rsplit_once('@') {
            Some((credentials, place)) => (Some(credentials.to_owned()), place),
            None => (None, authority.as_str()),
        };
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let scheme = if is_tls { "https" } else { "http" };
        let host = authority.host().to_owned();
        Ok(Self { base: format!("{scheme}://{place}"), host, port, is_tls, credentials })
    }

    /// A client for it.
    ///
    /// # Errors
    /// When the certificates that it should trust can't be read.
    pub(super) fn client<B>(&self, args: &EnginesArgs) -> anyhow::Result<HttpClient<B>>
    where
        B: Body + Send,
        B::Data: Send,
    {
        let tls = match args.ca_file.as_deref().map(Path::to_owned) {
            // No certificates are read for connections without TLS.
            _ if !self.is_tls => ClientTls { verify: Verify::Nothing, ..ClientTls::default() },
            Some(file) => ClientTls { roots: Roots::File(file), ..ClientTls::default() },
            None => ClientTls::default(),
        };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls.config()?);
        let connector = match self.is_tls {
            true => builder.https_only().enable_http1().wrap_connector(tcp),
            false => builder.https_or_http().enable_http1().wrap_connector(tcp),
        };
        Ok(Client::builder(TokioExecutor::new()).build(connector))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_and_no_password() {
        let address = Address::parse("https://search.example.org/", "--opensearch").unwrap();
        assert_eq!((address.base.as_str(), address.port), ("https://search.example.org", 443));
        assert!(address.is_tls && address.credentials.is_none());
        let address = Address::parse("http://me:secret@[::1]:9200", "--opensearch").unwrap();
        assert_eq!((address.base.as_str(), address.host.as_str()), ("http://[::1]:9200", "[::1]"));
        assert_eq!((address.credentials.as_deref(), address.port), (Some("me:secret"), 9200));
    }

    #[test]
    fn a_wrong_address_says_which_flag_and_keeps_the_password() {
        for url in ["", "search:9200", "ftp://me:secret@host", "http://me:secret@host/path", "http://a b"] {
            let error = Address::parse(url, "--opensearch").unwrap_err().to_string();
            assert!(error.contains("--opensearch") && !error.contains("secret"), "{error}");
        }
    }
}
