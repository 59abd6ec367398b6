use std::sync::Arc;

use restante_net::{
    NetMetrics,
    tls::{CertificateFiles, Certificates, ClientTls, Verify},
};
use rustls::{ClientConfig, HandshakeKind, pki_types::ServerName};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;

use crate::support::{Client, Server};

struct Setup {
    server: Server,
    certificate: Vec<u8>,
    config: Arc<ClientConfig>,
    _folder: TempDir,
}

async fn setup(session_tickets: bool) -> Setup {
    let folder = tempfile::tempdir().unwrap();
    let own = rcgen::generate_simple_self_signed(["mail.example.org".to_owned()]).unwrap();
    let files =
        CertificateFiles { certificate: folder.path().join("own.pem"), key: folder.path().join("own.key") };
    std::fs::write(&files.certificate, own.cert.pem()).unwrap();
    std::fs::write(&files.key, own.key_pair.serialize_pem()).unwrap();
    let certificates = Certificates::load(&[files], &NetMetrics::default()).unwrap();
    let server = Server::with_tls(Some(certificates), |smtp, _| smtp.session_tickets = session_tickets).await;
    let client = ClientTls { verify: Verify::Nothing, ..ClientTls::default() };
    let config = Arc::new(client.config().unwrap());
    Setup { server, certificate: own.cert.der().to_vec(), config, _folder: folder }
}

impl Setup {
    /// A client that has started TLS with this server name, the server's certificate, and whether the handshake was a full one.
    async fn start_tls(
        &self,
        mut client: Client,
        name: &'static str,
    ) -> (Client, Vec<u8>, Option<HandshakeKind>) {
        client.dialogue(&[("STARTTLS", "220 2.0.0")]).await;
        let name = ServerName::try_from(name).unwrap();
        let stream =
            TlsConnector::from(self.config.clone()).connect(name, client.into_stream()).await.unwrap();
        let session = stream.get_ref().1;
        let shown = session.peer_certificates().unwrap()[0].to_vec();
        let kind = session.handshake_kind();
        (Client::new(stream), shown, kind)
    }
}

#[tokio::test]
async fn sm1_starttls_is_offered_once_and_forgets_what_was_said() {
    let setup = setup(false).await;
    for mut client in [setup.server.smtp().await, setup.server.lmtp().await] {
        client.begin().await;
        let is_lmtp = client.say("EHLO client.example.net").await.starts_with("500");
        let hello = if is_lmtp { "LHLO client.example.net" } else { "EHLO client.example.net" };
        assert!(client.say(hello).await.contains("\r\n250 STARTTLS"));
        client.begin().await;
        let (mut client, ..) = setup.start_tls(client, "mail.example.org").await;
        client.dialogue(&[("RCPT TO:<bob@example.org>", "503 5.5.1"), ("MAIL FROM:<>", "503 5.5.1")]).await;
        assert!(!client.say(hello).await.contains("STARTTLS"));
        client.dialogue(&[("STARTTLS", "503 5.5.1")]).await;
        assert!(client.mail(format!("a: {is_lmtp}\r\n\r\n.\r\n")).await.starts_with("250"));
        let with = if is_lmtp { " with LMTPS id " } else { " with ESMTPS id " };
        assert!(setup.server.last().contains(with), "{}", setup.server.last());
    }
}

#[tokio::test]
async fn sm1_bytes_behind_starttls_close_the_connection() {
    let setup = setup(false).await;
    let mut client = setup.server.smtp().await;
    client.send("STARTTLS\r\nMAIL FROM:<evil@example.net>\r\n").await;
    client.expect("503 5.5.1").await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn sm1_starttls_is_not_offered_without_a_certificate() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    assert!(!client.say("EHLO client.example.net").await.contains("STARTTLS"));
    client.dialogue(&[("STARTTLS", "502 5.5.1")]).await;
}

#[tokio::test]
async fn sm14_an_unknown_name_gets_the_certificate_of_the_host() {
    let setup = setup(false).await;
    for name in ["mail.example.org", "unknown.example"] {
        let (mut client, shown, _) = setup.start_tls(setup.server.smtp().await, name).await;
        assert_eq!(shown, setup.certificate, "{name}");
        client.dialogue(&[("NOOP", "250")]).await;
    }
}

#[tokio::test]
async fn sm14_sessions_are_resumed_only_where_the_setting_says_so() {
    for (session_tickets, second) in [(false, HandshakeKind::Full), (true, HandshakeKind::Resumed)] {
        let setup = setup(session_tickets).await;
        for expected in [HandshakeKind::Full, second] {
            let client = setup.server.smtp().await;
            let (mut client, _, kind) = setup.start_tls(client, "mail.example.org").await;
            client.dialogue(&[("NOOP", "250")]).await; // reads the tickets too
            assert_eq!(kind, Some(expected), "tickets: {session_tickets}");
        }
    }
}
