//! A proxy between the engine and a storage that fails as a test requires.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{Duration, sleep},
};

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// It is closed at once.
    Refuse,
    /// No answer is sent.
    Silent,
    /// Every answer is delayed by this time.
    Slow(Duration),
    /// Every request is answered with this status, and with this code of S3.
    Answer(&'static str, &'static str),
    /// It is cut after this many bytes of requests.
    CutRequest(usize),
    /// Requests pass; the first answer is lost.
    CutAnswer,
}

/// Every request is refused because there are too many.
pub(crate) const BUSY: Mode = Mode::Answer("503 Slow Down", "SlowDown");

/// A storage that is reached through this proxy.
pub(crate) struct Proxy {
    pub(crate) url: String,
    mode: watch::Sender<Mode>,
    /// The mode applies to this many connections; later ones pass.
    faults: Arc<AtomicU64>,
    /// The beginning of what was sent on each connection.
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Proxy {
    pub(crate) async fn before(storage: &str) -> Self {
        let target = storage.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (mode, modes) = watch::channel(Mode::Pass);
        let (faults, sent) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(Mutex::new(Vec::new())));
        let (counted, noted) = (faults.clone(), sent.clone());
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let mut modes = modes.clone();
                let mut mode = *modes.borrow_and_update();
                let left =
                    counted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                if mode != Mode::Pass && left.is_err() {
                    mode = Mode::Pass;
                }
                let (target, noted) = (target.clone(), noted.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = relay(client, &target, mode, &noted) => {}
                        // Connections with another mode end.
                        _ = modes.changed() => {}
                    }
                });
            }
        });
        Self { url, mode, faults, sent }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.set_for(mode, u64::MAX);
    }

    /// Sets the mode for this many connections; later ones pass.
    pub(crate) fn set_for(&self, mode: Mode, connections: u64) {
        self.faults.store(connections, Ordering::SeqCst);
        self.mode.send_replace(mode);
    }

    /// What was sent to the storage.
    pub(crate) fn sent(&self) -> String {
        String::from_utf8_lossy(&self.sent.lock()).into_owned()
    }
}

async fn relay(mut client: TcpStream, target: &str, mode: Mode, noted: &Mutex<Vec<u8>>) {
    match mode {
        Mode::Refuse => return,
        Mode::Silent => std::future::pending().await,
        Mode::Answer(status, code) => {
            let mut request = vec![0; 1 << 16];
            let _read = client.read(&mut request).await;
            let text = format!("<Error><Code>{code}</Code><Message>as the test wants</Message></Error>");
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
            let _sent = client.write_all(format!("{head}{text}").as_bytes()).await;
            // The body of the request is read, so that the answer is not lost by a reset.
            while client.read(&mut request).await.is_ok_and(|bytes| bytes > 0) {}
            return;
        }
        _ => {}
    }
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let requests = async {
        let (mut buffer, mut passed) = (vec![0; 1 << 16], 0);
        while let Ok(bytes @ 1..) = from_client.read(&mut buffer).await {
            let allowed = match mode {
                Mode::CutRequest(limit) => bytes.min(limit.saturating_sub(passed)),
                _ => bytes,
            };
            passed += bytes;
            note(noted, &buffer[..allowed.min(2_048)]);
            if to_server.write_all(&buffer[..allowed]).await.is_err() || allowed < bytes {
                break;
            }
        }
    };
    let answers = async {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(bytes @ 1..) = from_server.read(&mut buffer).await {
            match mode {
                Mode::CutAnswer => break,
                Mode::Slow(delay) => sleep(delay).await,
                _ => {}
            }
            if to_client.write_all(&buffer[..bytes]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = answers => {}
    }
}

/// Records what was sent, up to a bound.
fn note(noted: &Mutex<Vec<u8>>, bytes: &[u8]) {
    let mut noted = noted.lock();
    if noted.len() < 1 << 20 {
        noted.extend_from_slice(bytes);
    }
}
