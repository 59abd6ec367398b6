//! Listeners that speak TLS.

use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::tls::{
    CertificateFiles, Certificates, ClientTls, Roots, Verify,
    authority::{Authority, files_in},
};

/// A server with a certificate for localhost.
struct Setup {
    folder: TempDir,
    authority: Authority,
    files: CertificateFiles,
    certificates: Arc<Certificates>,
    server: Echo,
}

async fn setup(limits: Limits, alpn: &[&str]) -> Setup {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.write(folder.path());
    let files = files_in(folder.path(), "server");
    authority.renew(&files, &["localhost"]);
    let certificates = Certificates::load(std::slice::from_ref(&files), &NetMetrics::default()).unwrap();
    let tls = ServerTls::new(certificates.clone(), alpn).unwrap();
    let server = start_with(limits, |listener| listener.with_tls(tls)).await;
    Setup { folder, authority, files, certificates, server }
}

impl Setup {
    async fn connect(&self, alpn: &[&str]) -> io::Result<TlsStream<TcpStream>> {
        let roots = Roots::File(self.folder.path().join("ca.pem"));
        let tls = ClientTls { verify: Verify::ChainAndName, roots, identity: None };
        let mut config = tls.config().unwrap();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let socket = self.server.connect().await;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, socket).await
    }

    fn handshakes(&self, result: &'static str) -> u64 {
        self.server.metrics.handshakes(result)
    }
}

fn certificate(stream: &TlsStream<TcpStream>) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[tokio::test]
async fn a_changed_certificate_loses_no_connection_and_new_ones_see_it() {
    let setup = setup(Limits::default(), &[]).await;
    let mut open = Vec::new();
    for _ in 0..200 {
        open.push(setup.connect(&[]).await.unwrap());
    }
    let old = certificate(&open[0]);
    exchange(&mut open[0]).await;
    let new = setup.authority.renew(&setup.files, &["localhost"]);
    setup.certificates.reload();
    for stream in &mut open {
        exchange(stream).await;
    }
    let mut fresh = setup.connect(&[]).await.unwrap();
    exchange(&mut fresh).await;
    assert_eq!(certificate(&fresh), new);
    assert_ne!(old, new);
    assert_eq!(setup.server.metrics.connections.get(), 201);
}

#[tokio::test]
async fn a_stopped_listener_ends_connections_with_what_was_written() {
    let setup = setup(Limits::default(), &[]).await;
    let mut stream = setup.connect(&[]).await.unwrap();
    exchange(&mut stream).await;
    let mut in_handshake = setup.server.connect().await;
    in_handshake.write_all(&[22]).await.unwrap();
    until("both are accepted", || setup.server.metrics.connections.get() == 2).await;
    setup.server.stop.send(()).unwrap();
    assert_eq!(rest_of(&mut stream).await, b"bye", "and the end of TLS, without which reading fails");
    drop(stream);
    setup.server.task.await.unwrap();
}

#[tokio::test]
async fn a_protocol_that_is_not_offered_is_refused() {
    let setup = setup(Limits::default(), &["h2", "http/1.1"]).await;
    let agreed = setup.connect(&["http/1.1", "h2"]).await.unwrap();
    assert_eq!(agreed.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "the server prefers it");
    let silent = setup.connect(&[]).await.unwrap();
    assert_eq!(silent.get_ref().1.alpn_protocol(), None);
    assert!(setup.connect(&["xmpp-client"]).await.is_err());
    until("all are counted", || setup.handshakes(metrics::OK) == 2 && setup.handshakes(metrics::FAILED) == 1)
        .await;
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_ended() {
    let limits = Limits { handshake_timeout: Duration::from_millis(10), ..Limits::default() };
    let setup = setup(limits, &[]).await;
    let mut slow = setup.server.connect().await;
    slow.write_all(&[22]).await.unwrap();
    assert_eq!(rest_of(&mut slow).await, b"");
    assert_eq!(setup.handshakes(metrics::TIMEOUT), 1);
}

#[tokio::test]
async fn handshakes_that_stall_keep_nobody_out() {
    let never = Duration::from_secs(86_400);
    let setup =
        setup(Limits { connections_max: 4, handshake_timeout: never, ..Limits::default() }, &[]).await;
    let mut stalled = Vec::new();
    for _ in 0..40 {
        stalled.push(setup.server.connect().await);
    }
    let mut stream = setup.connect(&[]).await.unwrap();
    exchange(&mut stream).await;
    assert!(setup.server.metrics.connections.get() <= 4);
}

#[tokio::test]
async fn the_header_of_a_proxy_comes_before_tls() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let files = files_in(folder.path(), "server");
    let shown = authority.renew(&files, &["localhost"]);
    let certificates = Certificates::load(&[files], &NetMetrics::default()).unwrap();
    let tls = ServerTls::new(certificates, &[]).unwrap();
    let server =
        start_with(Limits::default(), |listener| listener.with_tls(tls).with_proxies([local()])).await;
    let mut socket = server.connect().await;
    socket.write_all(&header(1)).await.unwrap();
    let client = ClientTls { verify: Verify::Nothing, ..ClientTls::default() }.config().unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(client)).connect(name, socket).await.unwrap();
    exchange(&mut stream).await;
    assert_eq!(certificate(&stream), shown);
}

/// Answers `+`, makes a handshake, then echoes.
async fn upgrade(mut connection: Connection) {
    connection.stream.write_all(b"+").await.unwrap();
    let start = connection.start_tls.take().unwrap();
    let Some((stream, session)) = start.shake_hands(connection.stream).await else { return };
    assert_eq!(session, TlsSession { alpn: None });
    echo(Connection { stream, ..connection }).await;
}

#[tokio::test]
async fn a_protocol_begins_tls_by_itself() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let ca = authority.write(folder.path());
    let files = files_in(folder.path(), "server");
    authority.renew(&files, &["localhost"]);
    let certificates = Certificates::load(&[files], &NetMetrics::default()).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = NetMetrics::default().listener("test");
    let listener = Listener::new(socket, Limits::default(), metrics.clone()).unwrap();
    let listener = listener.with_start_tls(ServerTls::without_tickets(certificates).unwrap());
    let address = listener.local_addr();
    let task = tokio::spawn(listener.serve(upgrade, std::future::pending()));
    let tls = ClientTls { verify: Verify::ChainAndName, roots: Roots::File(ca), identity: None };
    let connector = TlsConnector::from(Arc::new(tls.config().unwrap()));
    for _ in 0..2 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        assert_eq!(socket.read_u8().await.unwrap(), b'+');
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, socket).await.unwrap();
        exchange(&mut stream).await;
        let kind = stream.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(rustls::HandshakeKind::Full), "it has no session to resume");
    }
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(b"no TLS").await.unwrap();
    until("it fails", || metrics.handshakes(metrics::FAILED) == 1).await;
    task.abort();
}
