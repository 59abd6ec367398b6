//! A certificate is replaced while a thousand connections of HTTP/2, WebSockets and event streams are open.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    http::{StatusCode, Version},
    response::Response,
};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, stream};
use http_body_util::BodyExt;
use hyper::{
    body::Incoming,
    client::conn::{
        http1,
        http2::{self, SendRequest},
    },
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use restante_http::{
    Front, HttpMetrics, MemoryBudget, OperatorGuard, Refusal, RefusalFormat, Route, ServerLimits, Sites,
    event_stream,
    websocket::{SocketLimits, Upgrade},
};
use restante_net::{
    Limits, Listener, NetMetrics,
    tls::{CertificateFiles, Certificates, ClientTls, ServerTls, Verify},
};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustls::pki_types::ServerName;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};

const CONNECTIONS: usize = 1_000;
const RENEWALS: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(120);
const LONG: Duration = Duration::from_secs(3_600);

struct Server {
    address: SocketAddr,
    files: CertificateFiles,
    certificates: Arc<Certificates>,
    /// The number of the event that event streams send next.
    event: watch::Sender<u32>,
    _folder: tempfile::TempDir,
}

/// Writes a new certificate and its key; returns the certificate's bytes.
fn renew(files: &CertificateFiles) -> Vec<u8> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.key_pair.serialize_pem()).unwrap();
    made.cert.der().to_vec()
}

fn files_in(folder: &Path) -> CertificateFiles {
    CertificateFiles { certificate: folder.join("server.pem"), key: folder.join("server.key") }
}

async fn echo(request: Request) -> Result<Response, Refusal> {
    const LIMITS: SocketLimits =
        SocketLimits { message_bytes_max: 1 << 10, ping_interval: LONG, message_timeout: LONG };
    let upgrade = Upgrade::read(&request)?.ok_or(Refusal::bad_request("no WebSocket"))?;
    Ok(upgrade.answer(LIMITS, |socket| {
        Box::pin(async {
            while let Ok(message) = socket.receive().await {
                if socket.send([message]).await.is_err() {
                    return;
                }
            }
        })
    }))
}

/// Sends the number of each event.
fn events(event: watch::Receiver<u32>) -> Response {
    let numbers = stream::unfold(event, |mut event| async {
        event.changed().await.ok()?;
        let mut text = Vec::new();
        event_stream::write_event("number", None, event.borrow().to_string().as_bytes(), &mut text);
        Some((Bytes::from(text), event))
    });
    event_stream::response(numbers)
}

async fn start() -> Server {
    let folder = tempfile::tempdir().unwrap();
    let (files, metrics) = (files_in(folder.path()), NetMetrics::default());
    renew(&files);
    let certificates = Certificates::load(std::slice::from_ref(&files), &metrics).unwrap();
    let tls = ServerTls::new(certificates.clone(), &["h2", "http/1.1"]).unwrap();
    let limits =
        Limits { connections_max: 2 * CONNECTIONS, handshake_timeout: PATIENCE, ..Limits::default() };
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = Listener::new(socket, limits, metrics.listener("test")).unwrap().with_tls(tls);
    let address = listener.local_addr();
    let front = Front {
        metrics: HttpMetrics::default().of("test"),
        memory: Arc::<MemoryBudget>::default(),
        operators: Arc::<OperatorGuard>::default(),
        accounts: None,
        sites: Sites::default(),
        format: RefusalFormat::Text,
    };
    let event = watch::Sender::new(0);
    let subscribed = event.clone();
    let router = front.router(vec![
        Route::get("/", "a test", async || "hello"),
        Route::get("/echo", "a test", echo),
        Route::get("/events", "a test", async move || events(subscribed.subscribe())),
    ]);
    let limits = ServerLimits {
        header_timeout: LONG,
        stall_timeout: LONG,
        requests_max: 2 * CONNECTIONS,
        requests_per_address_max: 2 * CONNECTIONS,
    };
    tokio::spawn(restante_http::serve(listener, router, limits, std::future::pending()));
    Server { address, files, certificates, event, _folder: folder }
}

impl Server {
    async fn connect(&self, protocol: &str) -> TlsStream<TcpStream> {
        let mut config = ClientTls { verify: Verify::Nothing, ..ClientTls::default() }.config().unwrap();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        tokio::time::timeout(PATIENCE, connecting).await.expect("the handshake ends").unwrap()
    }
}

fn certificate(stream: &TlsStream<TcpStream>) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

/// A client with a connection that stays open.
enum Client {
    Http2(SendRequest<Body>),
    WebSocket(Box<WebSocketStream<TlsStream<TcpStream>>>),
    Events(Incoming),
}

fn get(server: &Server, path: &str) -> Request {
    let uri = format!("https://localhost:{}{path}", server.address.port());
    Request::get(uri).header("host", "localhost").body(Body::empty()).unwrap()
}

impl Client {
    async fn connect(server: &Server, number: usize) -> Self {
        match number % 3 {
            0 => {
                let stream = TokioIo::new(server.connect("h2").await);
                let (client, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
                tokio::spawn(connection);
                Self::Http2(client)
            }
            1 => {
                let stream = server.connect("http/1.1").await;
                Self::WebSocket(Box::new(client_async("wss://localhost/echo", stream).await.unwrap().0))
            }
            _ => {
                let stream = TokioIo::new(server.connect("http/1.1").await);
                let (mut client, connection) = http1::handshake(stream).await.unwrap();
                tokio::spawn(connection);
                let answer = client.send_request(get(server, "/events")).await.unwrap();
                assert_eq!(answer.status(), StatusCode::OK);
                Self::Events(answer.into_body())
            }
        }
    }

    /// Uses the connection; event streams get the event with this number.
    async fn exchange(&mut self, server: &Server, number: u32) {
        match self {
            Self::Http2(client) => {
                let answer = client.send_request(get(server, "/")).await.unwrap();
                assert_eq!((answer.status(), answer.version()), (StatusCode::OK, Version::HTTP_2));
                assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
            }
            Self::WebSocket(socket) => {
                let message = Message::Text(number.to_string().into());
                socket.send(message.clone()).await.unwrap();
                assert_eq!(socket.next().await.unwrap().unwrap(), message);
            }
            Self::Events(body) => {
                let event = body.frame().await.unwrap().unwrap().into_data().unwrap();
                assert_eq!(event, format!("event: number\ndata: {number}\n\n"));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_certificate_loses_none_of_a_thousand_connections() {
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).unwrap();
    let server = start().await;
    let old = certificate(&server.connect("h2").await);
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS {
        clients.push(Client::connect(&server, number).await);
    }
    for number in 1..=RENEWALS + 1 {
        server.event.send_replace(number);
        for client in &mut clients {
            let exchanged = client.exchange(&server, number);
            tokio::time::timeout(PATIENCE, exchanged).await.expect("the connection works");
        }
        if number > RENEWALS {
            break;
        }
        let new = renew(&server.files);
        server.certificates.reload();
        for protocol in ["h2", "http/1.1"] {
            assert_eq!(certificate(&server.connect(protocol).await), new);
        }
        assert_ne!(new, old);
    }
}
