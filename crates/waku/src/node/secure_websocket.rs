//! WebSockets, whose certificate may change while the node runs.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use libp2p::{
    Multiaddr, Transport,
    core::transport::{DialOpts, ListenerId, TransportError, TransportEvent},
    dns, tcp, websocket,
};
use restante_net::tls::Certificates;
use tracing::warn;

use super::NodeError;

type WebSocket = websocket::Config<dns::tokio::Transport<tcp::tokio::Transport>>;

/// libp2p's WebSockets. They take a certificate by value: whenever it has changed, it is set again before a connection is
/// accepted. Open connections are not affected.
pub(super) struct ReloadingWebSocket {
    websocket: WebSocket,
    /// `None` for a node without secure WebSockets.
    certificates: Option<Arc<Certificates>>,
    /// The version of `certificates` that is set.
    version: u64,
}

impl ReloadingWebSocket {
    pub(super) fn new(
        websocket: WebSocket,
        certificates: Option<Arc<Certificates>>,
    ) -> Result<Self, NodeError> {
        let mut own = Self { websocket, certificates, version: 0 };
        own.set_certificate()
            .map_err(|error| NodeError::Config(format!("secure WebSockets can't be set up: {error}")))?;
        Ok(own)
    }

    fn set_certificate(&mut self) -> Result<(), websocket::tls::Error> {
        let Some(certificates) = &self.certificates else { return Ok(()) };
        self.version = certificates.version(); // read first: a change after it is seen with the next poll
        let Some((chain, key)) = certificates.first() else { return Ok(()) };
        let chain =
            chain.into_iter().map(|certificate| websocket::tls::Certificate::new(certificate.to_vec()));
        let key = websocket::tls::PrivateKey::new(key.secret_der().to_vec());
        self.websocket.set_tls_config(websocket::tls::Config::new(key, chain)?);
        Ok(())
    }
}

impl Transport for ReloadingWebSocket {
    type Output = <WebSocket as Transport>::Output;
    type Error = <WebSocket as Transport>::Error;
    type ListenerUpgrade = <WebSocket as Transport>::ListenerUpgrade;
    type Dial = <WebSocket as Transport>::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<Self::Error>> {
        self.websocket.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.websocket.remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Self::Dial, TransportError<Self::Error>> {
        self.websocket.dial(address, options)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        let is_changed = self.certificates.as_ref().is_some_and(|found| found.version() != self.version);
        if is_changed && let Err(error) = self.set_certificate() {
            warn!(%error, "secure WebSockets keep the former certificate");
        }
        Pin::new(&mut self.websocket).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, path::Path};

    use futures_util::{FutureExt, StreamExt};
    use libp2p::core::transport::TransportEvent;
    use restante_net::{
        NetMetrics,
        tls::{CertificateFiles, ClientTls, Roots, Verify},
    };
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;

    use super::*;

    /// Writes a new certificate and its key; returns the certificate's bytes.
    fn renew(folder: &Path) -> (CertificateFiles, Vec<u8>) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let files = CertificateFiles { certificate: folder.join("own.pem"), key: folder.join("own.key") };
        std::fs::write(&files.certificate, made.cert.pem()).unwrap();
        std::fs::write(&files.key, made.key_pair.serialize_pem()).unwrap();
        (files, made.cert.der().to_vec())
    }

    /// The certificate that a client is shown.
    async fn shown(address: SocketAddr) -> Vec<u8> {
        let tls = ClientTls { verify: Verify::Nothing, roots: Roots::System, identity: None };
        let connector = TlsConnector::from(Arc::new(tls.config().unwrap()));
        let socket = TcpStream::connect(address).await.unwrap();
        let stream = connector.connect("localhost".try_into().unwrap(), socket).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    }

    #[tokio::test]
    async fn a_renewed_certificate_is_shown_to_new_connections() {
        let folder = tempfile::tempdir().unwrap();
        let (files, old) = renew(folder.path());
        let certificates = Certificates::load(&[files], &NetMetrics::default()).unwrap();
        let tcp = tcp::tokio::Transport::new(tcp::Config::default());
        let websocket = websocket::Config::new(dns::tokio::Transport::system(tcp).unwrap());
        let transport = ReloadingWebSocket::new(websocket, Some(certificates.clone())).unwrap();
        let mut transport = transport.boxed();
        transport.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0/tls/ws".parse().unwrap()).unwrap();
        let listening = transport.select_next_some().await;
        let TransportEvent::NewAddress { listen_addr, .. } = listening else { panic!("{listening:?}") };
        let port = listen_addr.iter().find_map(|part| match part {
            libp2p::multiaddr::Protocol::Tcp(port) => Some(port),
            _ => None,
        });
        let address = SocketAddr::from(([127, 0, 0, 1], port.unwrap()));
        let accepting = tokio::spawn(async move {
            loop {
                if let TransportEvent::Incoming { upgrade, .. } = transport.select_next_some().await {
                    tokio::spawn(upgrade.map(|_| ()));
                }
            }
        });
        assert_eq!(shown(address).await, old);
        let (_, new) = renew(folder.path());
        certificates.reload();
        assert_eq!(shown(address).await, new);
        accepting.abort();
    }
}
