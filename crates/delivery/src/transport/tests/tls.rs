//! TLS where servers have it, and where it is demanded.

use std::path::Path;

use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, KeyPair};
use rustls::{ServerConfig, crypto::ring};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{fake::Action, *};

const BOB: &str = "bob@example.net";

/// A certificate authority.
pub(in super::super) struct Authority {
    certificate: Certificate,
    key: KeyPair,
    file: tempfile::NamedTempFile,
}

impl Authority {
    pub(in super::super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), certificate.pem()).unwrap();
        Self { certificate, key, file }
    }

    /// Its own certificate.
    pub(in super::super) fn file(&self) -> &Path {
        self.file.path()
    }

    /// A server with a certificate for a name.
    pub(in super::super) fn server(&self, name: &str) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.certificate, &self.key).unwrap();
        let private: PrivateKeyDer<'static> = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![certificate.der().clone()], private).unwrap())
    }
}

/// A policy for all domains.
struct Fixed(TlsPolicy);

#[async_trait]
impl TlsPolicies for Fixed {
    async fn policy_of(&self, _domain: &str) -> TlsPolicy {
        self.0.clone()
    }
}

fn demanding(fake: &Fake, authority: &Authority, hosts: &[&str]) -> SmtpRemote {
    let hosts = hosts.iter().map(ToString::to_string).collect();
    let policies = Arc::new(Fixed(TlsPolicy::Verified { hosts }));
    let config = RemoteConfig { authorities: authority.file().to_owned(), ..RemoteConfig::default() };
    SmtpRemote::new(&config, RemoteParts { policies, ..parts(fake) }).unwrap()
}

async fn refused(remote: &SmtpRemote) -> (u16, String) {
    code(&remote.connect(DOMAIN).await.err().unwrap())
}

#[tokio::test(start_paused = true)]
async fn out10_a_server_with_tls_is_spoken_to_in_tls_whatever_its_certificate() {
    let authority = Authority::new();
    let fake = Fake::new(&["STARTTLS", "PIPELINING"]).with_tls(authority.server("other.example"));
    assert_eq!(send(&fake, &plain(), &[BOB]).await, [is(250, "2.0.0")]);
    assert!(fake.log.lock().is_tls);
    let words: Vec<String> = fake.commands().iter().map(|command| command[..4].to_owned()).collect();
    assert_eq!(words, ["EHLO", "STAR", "EHLO", "MAIL", "RCPT", "DATA"]);
}

#[tokio::test(start_paused = true)]
async fn out10_without_a_policy_mail_goes_unencrypted_where_tls_fails() {
    let authority = Authority::new();
    let server = || authority.server(SERVER);
    for (fake, connections) in [
        (Fake::new(&["STARTTLS"]).says("STARTTLS", "454 4.7.0 not now").with_tls(server()), 1),
        (Fake::new(&["STARTTLS"]).at("STARTTLS", Action::SayAndClose("220 go\r\n".into())), 2),
        (Fake::new(&["STARTTLS"]).at("STARTTLS", Action::Say("220 go\r\n250 mx.evil.example\r\n".into())), 2),
        (Fake::new(&["STARTTLS"]), 2), // it says that it does, and does not
    ] {
        assert_eq!(send(&fake, &plain(), &[BOB]).await, [is(250, "2.0.0")]);
        let log = fake.log.lock();
        assert_eq!((log.connections, log.is_tls), (connections, false));
    }
}

#[tokio::test(start_paused = true)]
async fn out10_a_policy_demands_a_certificate_for_a_server_that_it_names() {
    let authority = Authority::new();
    let fake = Fake::new(&["STARTTLS"]).with_tls(authority.server(SERVER));
    let mut connection = demanding(&fake, &authority, &["*.example.net"]).connect(DOMAIN).await.ok().unwrap();
    assert_eq!(codes(&connection.send(&plain(), &recipients(&[BOB])).await), [is(250, "2.0.0")]);
    assert!(fake.log.lock().is_tls);
    assert_eq!(refused(&demanding(&fake, &authority, &["mx.example.com"])).await, is(451, "4.7.0"));
}

#[tokio::test(start_paused = true)]
async fn out10_with_a_policy_nothing_goes_unencrypted_or_to_another_server() {
    let authority = Authority::new();
    let other = Fake::new(&["STARTTLS"]).with_tls(authority.server("other.example"));
    assert_eq!(refused(&demanding(&other, &authority, &[SERVER])).await, is(451, "4.7.5"));
    let foreign = Fake::new(&["STARTTLS"]).with_tls(Authority::new().server(SERVER));
    assert_eq!(refused(&demanding(&foreign, &authority, &[SERVER])).await, is(451, "4.7.5"));
    let none = Fake::new(&[]);
    assert_eq!(refused(&demanding(&none, &authority, &[SERVER])).await, is(451, "4.7.10"));
    let refusing = Fake::new(&["STARTTLS"]).says("STARTTLS", "554 5.7.0 no");
    assert_eq!(refused(&demanding(&refusing, &authority, &[SERVER])).await, is(451, "4.7.10"));
    for fake in [other, foreign, none, refusing] {
        assert_eq!((fake.count("MAIL"), fake.log.lock().connections), (0, 1));
    }
}
