//! How a client verifies a server's certificate, and its own certificate.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

use super::{TlsError, files, provider};

/// What a client checks of the server's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Nothing. The connection is encrypted, but not protected from an attacker between client and server.
    Nothing,
    /// A trusted authority has signed the certificate, for any name.
    Chain,
    /// A trusted authority has signed the certificate for the name by which the server was reached.
    #[default]
    ChainAndName,
}

/// The authorities that a client trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Roots {
    /// Those of the operating system.
    #[default]
    System,
    /// Those of a PEM file.
    File(PathBuf),
}

/// How a client speaks TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// What it checks.
    pub verify: Verify,
    /// The authorities that it trusts.
    pub roots: Roots,
    /// Its own certificate with the intermediate ones, and the key: two PEM files.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl ClientTls {
    /// Reads the files, and creates a rustls configuration for TLS 1.2 and 1.3.
    ///
    /// # Errors
    /// A file can't be read, or holds nothing that can be used.
    pub fn config(&self) -> Result<ClientConfig, TlsError> {
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError(format!("can't set up TLS: {error}")))?
            .dangerous() // `verifier` decides what is checked
            .with_custom_certificate_verifier(self.verifier(provider)?);
        let Some((certificate_file, key_file)) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let (certificates, key) = (files::certificates(certificate_file)?, files::private_key(key_file)?);
        builder.with_client_auth_cert(certificates, key).map_err(|error| {
            let files = format!("{} and {}", certificate_file.display(), key_file.display());
            TlsError(format!("the certificate and key in {files} can't be used: {error}"))
        })
    }

    fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
        match self.verify {
            Verify::Nothing => Ok(Arc::new(WithoutName { roots: None, provider })),
            Verify::Chain => Ok(Arc::new(WithoutName { roots: Some(self.root_store()?), provider })),
            Verify::ChainAndName => {
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(Arc::new(self.root_store()?), provider)
                        .build();
                verifier
                    .map(|verifier| verifier as _)
                    .map_err(|error| TlsError(format!("the trusted certificates can't be used: {error}")))
            }
        }
    }

    fn root_store(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        match &self.roots {
            Roots::System => {
                let found = rustls_native_certs::load_native_certs();
                let (added, _) = roots.add_parsable_certificates(found.certs);
                if added == 0 {
                    let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
                    let advice = "install the package ca-certificates, or name a file";
                    return Err(TlsError(format!("the system has no trusted certificates{why}: {advice}")));
                }
            }
            Roots::File(file) => {
                for certificate in files::certificates(file)? {
                    roots.add(certificate).map_err(|error| {
                        TlsError(format!("a certificate in {} can't be used: {error}", file.display()))
                    })?;
                }
            }
        }
        Ok(roots)
    }
}

/// Checks the chain, when there are roots, and never the name.
#[derive(Debug)]
struct WithoutName {
    roots: Option<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for WithoutName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        path::Path,
        thread,
    };

    use rustls::{ClientConnection, ServerConfig, ServerConnection, Stream, server::WebPkiClientVerifier};

    use super::*;
    use crate::tls::authority::{Authority, private};

    /// A server that sends "hello" to the first client whose handshake succeeds; its certificate is for `name`.
    fn serve(authority: &Authority, name: &str, wants_certificate: bool) -> u16 {
        let (certificate, key) = authority.sign(&[name]);
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let builder = if wants_certificate {
            let mut roots = RootCertStore::empty();
            roots.add(authority.certificate.der().clone()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots.into(), provider()).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let config =
            Arc::new(builder.with_single_cert(vec![certificate.der().clone()], private(&key)).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut connection = ServerConnection::new(config).unwrap();
            let mut stream = Stream::new(&mut connection, &mut socket);
            if stream.write_all(b"hello").and_then(|()| stream.flush()).is_ok() {
                let _ = stream.read(&mut [0]); // until the client has read and hangs up
            }
        });
        port
    }

    fn greet(tls: &ClientTls, port: u16) -> Result<String, String> {
        let config = Arc::new(tls.config().map_err(|error| error.to_string())?);
        let mut connection = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut greeting = [0; 5];
        let read = Stream::new(&mut connection, &mut socket).read_exact(&mut greeting);
        read.map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&greeting).into_owned())
    }

    fn of(verify: Verify, roots: &Path) -> ClientTls {
        ClientTls { verify, roots: Roots::File(roots.to_owned()), identity: None }
    }

    #[test]
    fn a_name_is_checked_only_when_that_is_asked() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let roots = authority.write(folder.path());
        for (name, verify, is_accepted) in [
            ("localhost", Verify::ChainAndName, true),
            ("db.example", Verify::ChainAndName, false),
            ("db.example", Verify::Chain, true),
            ("db.example", Verify::Nothing, true),
        ] {
            let greeted = greet(&of(verify, &roots), serve(&authority, name, false));
            assert_eq!(greeted.is_ok(), is_accepted, "{name} {verify:?}: {greeted:?}");
        }
    }

    #[test]
    fn another_authority_is_not_trusted_by_a_client_that_checks() {
        let (folder, ours, theirs) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
        let roots = ours.write(folder.path());
        for (verify, is_accepted) in
            [(Verify::ChainAndName, false), (Verify::Chain, false), (Verify::Nothing, true)]
        {
            let greeted = greet(&of(verify, &roots), serve(&theirs, "localhost", false));
            assert_eq!(greeted.is_ok(), is_accepted, "{verify:?}: {greeted:?}");
        }
    }

    #[test]
    fn a_client_shows_its_certificate() {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let mut tls = of(Verify::ChainAndName, &authority.write(folder.path()));
        assert!(greet(&tls, serve(&authority, "localhost", true)).is_err());
        let (certificate, key) = authority.sign(&["client"]);
        let (certificate_file, key_file) =
            (folder.path().join("client.pem"), folder.path().join("client.key"));
        std::fs::write(&certificate_file, certificate.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        tls.identity = Some((certificate_file, key_file));
        assert_eq!(greet(&tls, serve(&authority, "localhost", true)), Ok("hello".to_owned()));
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (missing, empty) = (folder.path().join("missing.pem"), folder.path().join("empty.pem"));
        std::fs::write(&empty, "").unwrap();
        for file in [&missing, &empty] {
            let error = of(Verify::Chain, file).config().unwrap_err().to_string();
            assert!(error.contains(file.to_str().unwrap()), "{error}");
        }
        let identity = Some((empty.clone(), missing.clone()));
        let error =
            ClientTls { verify: Verify::Nothing, roots: Roots::System, identity }.config().unwrap_err();
        assert!(error.to_string().contains("empty.pem has no certificate"), "{error}");
    }
}
