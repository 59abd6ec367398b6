//! TLS on accepted connections.

use std::{io, sync::Arc};

use rustls::{ServerConfig, crypto::ring::Ticketer, server::NoServerSessionStorage};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{Certificates, TlsError, provider};

/// How a listener speaks TLS: versions 1.2 and 1.3, without early data and without client certificates.
#[derive(Clone)]
pub struct ServerTls(TlsAcceptor);

/// What a handshake agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSession {
    /// The protocol, of those that the listener offers; `None` when the client asked for none.
    pub alpn: Option<Vec<u8>>,
}

impl ServerTls {
    /// TLS with these certificates. `alpn` lists the offered protocols, the preferred one first; a client that offers only others
    /// is refused, and one that offers none is accepted.
    ///
    /// # Errors
    /// The provider of cryptography can't generate random numbers.
    pub fn new(certificates: Arc<Certificates>, alpn: &[&str]) -> Result<Self, TlsError> {
        let mut config = config(certificates)?;
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config.ticketer = Ticketer::new().map_err(failed)?; // resumption without memory for each client
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// The same without session tickets: every connection makes a full handshake. Some mail servers fail when they resume a session.
    ///
    /// # Errors
    /// As of [`ServerTls::new`].
    pub fn without_tickets(certificates: Arc<Certificates>) -> Result<Self, TlsError> {
        let mut config = config(certificates)?;
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// The handshake. It has no time limit.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<(TlsStream<S>, TlsSession)> {
        let stream = self.0.accept(stream).await?;
        let alpn = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        Ok((stream, TlsSession { alpn }))
    }
}

fn config(certificates: Arc<Certificates>) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    Ok(builder.map_err(failed)?.with_no_client_auth().with_cert_resolver(certificates))
}

fn failed(error: rustls::Error) -> TlsError {
    TlsError(format!("can't set up TLS: {error}"))
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}
