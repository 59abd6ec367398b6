//! Where the broker is, and how a connection is made.

use std::{path::Path, sync::Arc, time::Duration};

use lapin::{
    Connection, ConnectionProperties,
    uri::{AMQPScheme, AMQPUri},
};
use restante_net::tls::{ClientTls, Roots};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::{Config, Error};

/// A connection on which nothing arrives for this long, twice in a row, counts as lost.
const HEARTBEAT_SECONDS: u16 = 10;

#[derive(Clone)]
pub(super) struct Address {
    uri: AMQPUri,
    /// For connections with TLS.
    tls: Option<TlsConnector>,
    pub(super) timeout: Duration,
}

impl Address {
    /// # Errors
    /// `Invalid`: the URL or the certificates can't be used.
    pub(super) fn new(url: &str, config: &Config) -> Result<Self, Error> {
        // The error of the client library might contain the password.
        let form = "the URL of RabbitMQ can't be used: it is amqp://<user>@<host>:<port>/<virtual host>, with / of the virtual host as %2f";
        let mut uri: AMQPUri = url.parse().map_err(|_| Error::invalid(form))?;
        if url.contains('[') {
            // The library replaces every one by localhost.
            return Err(Error::invalid("the URL of RabbitMQ takes the name of a host, no IPv6 address"));
        }
        let has_password = url.rsplit_once('@').is_some_and(|(before, _)| before.matches(':').count() > 1);
        if let (false, Some(password)) = (has_password, &config.password) {
            uri.authority.userinfo.password.clone_from(password);
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        let tls = match uri.scheme {
            AMQPScheme::AMQP => None,
            AMQPScheme::AMQPS => Some(connector(&config.shared.ca_file)?),
        };
        Ok(Self { uri, tls, timeout: Duration::from_millis(config.shared.timeout_ms.get()) })
    }

    /// Connects. The library's own recovery stays off: the user of the connection opens a new one, with its channels and consumers.
    ///
    /// # Errors
    /// `Unavailable`.
    pub(super) async fn connect(&self, name: &str) -> Result<Connection, Error> {
        let connecting = async {
            let mut uri = self.uri.clone();
            if let Some(tls) = &self.tls {
                uri.scheme = AMQPScheme::AMQP;
                let forwarded = self.forward(tls).await;
                (uri.authority.host, uri.authority.port) =
                    forwarded.map_err(|error| unavailable("can't reach RabbitMQ", error))?;
            }
            let properties = ConnectionProperties::default().with_connection_name(name.into());
            let connected = Connection::connect_uri(uri, properties).await;
            connected.map_err(|error| unavailable("can't connect to RabbitMQ", error))
        };
        self.in_time(connecting).await
    }

    /// Waits for an answer of the broker.
    ///
    /// # Errors
    /// `Unavailable` when it doesn't arrive in time.
    pub(super) async fn in_time<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let late =
            || Error::unavailable(format!("RabbitMQ does not answer within {} ms", self.timeout.as_millis()));
        timeout(self.timeout, work).await.map_err(|_| late())?
    }

    /// Opens a TLS connection, and forwards one local connection to it: the TLS of the client library would bring
    /// ciphers that nobody needs, and without it the library sends passwords in the clear.
    async fn forward(&self, tls: &TlsConnector) -> std::io::Result<(String, u16)> {
        let (host, port) = (self.uri.authority.host.clone(), self.uri.authority.port);
        let broker = TcpStream::connect((host.as_str(), port)).await?;
        broker.set_nodelay(true)?;
        let name = ServerName::try_from(host).map_err(std::io::Error::other)?;
        let mut broker = tls.connect(name, broker).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let limit = self.timeout;
        tokio::spawn(async move {
            // An error reaches the client as a closed connection.
            let Ok(Ok((mut client, _))) = timeout(limit, listener.accept()).await else { return };
            let _ = client.set_nodelay(true);
            let _ = copy_bidirectional(&mut client, &mut broker).await;
        });
        Ok((address.ip().to_string(), address.port()))
    }
}

fn connector(ca_file: &Path) -> Result<TlsConnector, Error> {
    let roots = match ca_file.as_os_str().is_empty() {
        true => Roots::System,
        false => Roots::File(ca_file.to_owned()),
    };
    let config = ClientTls { roots, ..ClientTls::default() }.config();
    let config =
        config.map_err(|error| Error::invalid(format!("TLS to RabbitMQ can't be set up: {error}")))?;
    Ok(Arc::new(config).into())
}

pub(super) fn unavailable(what: &str, error: impl std::fmt::Display) -> Error {
    Error::unavailable(format!("{what}: {error}"))
}
