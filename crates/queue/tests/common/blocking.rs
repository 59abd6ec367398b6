//! A proxy in front of RabbitMQ that sends what a broker sends when it is short of memory, and when it no longer is: to connections
//! that have published something.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// Frames of AMQP 0-9-1 on channel 0: their type, channel, length, class and method, arguments, and end.
const BLOCKED: &[u8] = b"\x01\x00\x00\x00\x00\x00\x08\x00\x0a\x00\x3c\x03low\xce";
const UNBLOCKED: &[u8] = b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x3d\xce";
/// The class and the method of a message that is published.
const PUBLISH: &[u8] = b"\x00\x3c\x00\x28";
/// What precedes the payload of a frame.
const FRAME_HEADER_BYTES: usize = 7;

pub struct Blocking {
    pub address: SocketAddr,
    is_blocked: watch::Sender<bool>,
}

impl Blocking {
    /// A proxy in front of the broker at `host:port`.
    pub async fn before(broker: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let is_blocked = watch::Sender::new(false);
        let said = is_blocked.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&broker).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                let has_published = Arc::new(AtomicBool::new(false));
                tokio::spawn(requests(from_client, to_server, has_published.clone()));
                tokio::spawn(answers(from_server, to_client, said.subscribe(), has_published));
            }
        });
        Self { address, is_blocked }
    }

    /// Announces to all clients whether the broker accepts messages.
    pub fn set(&self, is_blocked: bool) {
        self.is_blocked.send_replace(is_blocked);
    }
}

/// Forwards what a client sends, and notes whether it has published something.
async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    has_published: Arc<AtomicBool>,
) -> std::io::Result<()> {
    let mut chunk = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut chunk).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        if chunk[..count].windows(PUBLISH.len()).any(|bytes| bytes == PUBLISH) {
            has_published.store(true, Ordering::SeqCst);
        }
        to.write_all(&chunk[..count]).await?;
    }
}

/// Forwards whole frames, and inserts the announcement of a change between two of them.
async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut is_blocked: watch::Receiver<bool>,
    has_published: Arc<AtomicBool>,
) -> std::io::Result<()> {
    let (mut read, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        while let Some(bytes) = frame_bytes(&read) {
            to.write_all(&read[..bytes]).await?;
            read.drain(..bytes);
        }
        tokio::select! {
            count = from.read(&mut chunk) => match count? {
                0 => return to.shutdown().await,
                count => read.extend_from_slice(&chunk[..count]),
            },
            changed = is_blocked.changed() => {
                let Ok(()) = changed else { return Ok(()) };
                let frame = if *is_blocked.borrow_and_update() { BLOCKED } else { UNBLOCKED };
                if has_published.load(Ordering::SeqCst) {
                    to.write_all(frame).await?;
                }
            }
        }
    }
}

/// How long the first frame is, if all of it is there.
fn frame_bytes(read: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(read.get(3..FRAME_HEADER_BYTES)?.try_into().ok()?) as usize;
    let bytes = FRAME_HEADER_BYTES + length + 1;
    (read.len() >= bytes).then_some(bytes)
}
