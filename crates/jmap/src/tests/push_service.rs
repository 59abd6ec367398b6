//! A push service on loopback, with TLS, and a client's keys.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral},
    hkdf::{HKDF_SHA256, KeyType, Salt},
    rand::SystemRandom,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer},
};

use crate::{JmapConfig, PushConfig};

/// Long enough for the busiest machine; a request that takes longer is considered missing.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request that the service has received.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// The service. It answers each request with the next prepared response, and with 201 when there is none.
pub(crate) struct PushService {
    port: u16,
    folder: TempDir,
    received: mpsc::Receiver<Received>,
    answers: Arc<Mutex<Vec<&'static str>>>,
}

impl PushService {
    pub(crate) async fn start() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let ca = params.self_signed(&ca_key).unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &ca, &ca_key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), ca.pem()).unwrap();
        restante_net::tls::install_provider();
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, received) = mpsc::channel(100);
        let answers = Arc::<Mutex<Vec<&'static str>>>::default();
        let planned = answers.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, sender, planned) = (acceptor.clone(), sender.clone(), planned.clone());
                tokio::spawn(serve(stream, acceptor, sender, planned));
            }
        });
        Self { port, folder, received, answers }
    }

    /// The settings of a server that may reach the service.
    pub(crate) fn config(&self) -> JmapConfig {
        let push = PushConfig {
            allow_private: true,
            root_file: self.folder.path().join("ca.pem"),
            retry_ms: restante_core::nonzero!(1),
            ..PushConfig::default()
        };
        JmapConfig { push_delay_ms: 1, push, ..JmapConfig::default() }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }

    /// Answers the next requests with these heads, such as `503 X\r\nRetry-After: 1`.
    pub(crate) fn answer(&self, heads: &[&'static str]) {
        self.answers.lock().splice(0..0, heads.iter().rev().copied());
    }

    /// The next request.
    pub(crate) async fn next(&mut self) -> Received {
        timeout(PATIENCE, self.received.recv()).await.expect("a push").unwrap()
    }

    /// Whether no request has arrived so far.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.received.try_recv().is_err()
    }
}

async fn serve(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    sender: mpsc::Sender<Received>,
    planned: Arc<Mutex<Vec<&'static str>>>,
) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let mut stream = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut first = lines[0].split(' ');
    assert_eq!(first.next(), Some("POST"));
    let path = first.next().unwrap().to_owned();
    let headers: HashMap<String, String> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers["content-length"].parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    let head = planned.lock().pop().unwrap_or("201 Created");
    sender.send(Received { path, headers, body }).await.unwrap();
    let answer = format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n");
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.flush().await;
    let _ = stream.get_mut().shutdown().await;
}

/// The keys of a client, usable for one push.
pub(crate) struct ClientKeys {
    private: EphemeralPrivateKey,
    public: Vec<u8>,
    auth: [u8; 16],
}

impl ClientKeys {
    pub(crate) fn new() -> Self {
        let private = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new()).unwrap();
        let public = private.compute_public_key().unwrap().as_ref().to_vec();
        Self { private, public, auth: *b"0123456789abcdef" }
    }

    /// `keys` of a subscription.
    pub(crate) fn json(&self) -> Value {
        let encode = |bytes: &[u8]| base64_simd::URL_SAFE_NO_PAD.encode_to_string(bytes);
        json!({"p256dh": encode(&self.public), "auth": encode(&self.auth)})
    }

    /// Decrypts as a client does (RFC 8188 §2, RFC 8291 §3.4).
    pub(crate) fn decrypt(self, body: &[u8]) -> Vec<u8> {
        let (salt, rest) = body.split_at(16);
        assert_eq!(rest[..5], [0, 0, 16, 0, 65], "records of 4,096 bytes, and the length of the key");
        let (theirs, sealed) = rest[5..].split_at(65);
        let mut info = b"WebPush: info\0".to_vec();
        info.extend_from_slice(&self.public);
        info.extend_from_slice(theirs);
        let key = UnparsedPublicKey::new(&ECDH_P256, theirs);
        let input =
            agree_ephemeral(self.private, &key, |shared| derive(&self.auth, shared, &info, 32)).unwrap();
        let key = derive(salt, &input, b"Content-Encoding: aes128gcm\0", 16);
        let nonce = derive(salt, &input, b"Content-Encoding: nonce\0", 12);
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
        let nonce = Nonce::try_assume_unique_for_key(&nonce).unwrap();
        let mut record = sealed.to_vec();
        let mut plain = key.open_in_place(nonce, Aad::empty(), &mut record).unwrap().to_vec();
        assert_eq!(plain.pop(), Some(2), "the last record");
        plain
    }
}

fn derive(salt: &[u8], input: &[u8], info: &[u8], bytes: usize) -> Vec<u8> {
    struct Length(usize);
    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut derived = vec![0; bytes];
    let extracted = Salt::new(HKDF_SHA256, salt).extract(input);
    extracted.expand(&[info], Length(bytes)).unwrap().fill(&mut derived).unwrap();
    derived
}
