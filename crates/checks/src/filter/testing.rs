//! A filter that answers as a test specifies.

use std::{net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A server in place of rspamd.
pub(crate) struct FakeFilter {
    pub(crate) address: SocketAddr,
    /// The received requests, head and body.
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
}

impl FakeFilter {
    /// Answers each request with this status and body; `None` never answers.
    pub(crate) async fn start(answer: Option<(u16, &str)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (seen, answer) = (requests.clone(), answer.map(|(status, body)| (status, body.to_owned())));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, seen.clone(), answer.clone()));
            }
        });
        Self { address, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Vec<String>>>, answer: Option<(u16, String)>) {
    let mut read = Vec::new();
    loop {
        let length = loop {
            let text = String::from_utf8_lossy(&read).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head
                    .lines()
                    .find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
                let length: usize = length.map_or(0, |length| length.parse().unwrap());
                if body.len() >= length {
                    break head.len() + 4 + length;
                }
            }
            if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return;
            }
        };
        seen.lock().push(String::from_utf8_lossy(&read[..length]).into_owned());
        read.drain(..length);
        let Some((status, body)) = &answer else { std::future::pending().await };
        let reply = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}
