//! A minimal HTTP/1.1 client: the load must cost less than the server that it measures.
//!
//! It talks to restante's own server over one kept-alive connection, reads bodies of known length and chunked ones,
//! and passes their bytes on as they arrive.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Bytes of the read buffer; also the longest line of a head.
const BUFFER_BYTES: usize = 256 << 10;

/// A connection; one request at a time.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The received bytes that are not consumed yet.
    start: usize,
    end: usize,
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream =
            TcpStream::connect(address).await.with_context(|| format!("can't connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0 })
    }

    /// Sends a whole request and passes the body of the answer to `body` in parts. Returns the status code.
    pub(crate) async fn ask(&mut self, request: &[u8], mut body: impl FnMut(&[u8])) -> anyhow::Result<u16> {
        self.stream.write_all(request).await?;
        let (status, framing) = self.head().await?;
        match framing {
            Framing::Length(length) => self.pass(length, &mut body).await?,
            Framing::Chunked => self.chunks(&mut body).await?,
        }
        Ok(status)
    }

    async fn head(&mut self) -> anyhow::Result<(u16, Framing)> {
        let line = self.line().await?;
        let code = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = code.with_context(|| format!("not an HTTP answer: '{line}'"))?;
        let mut framing = Framing::Length(0);
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok((status, framing));
            }
            let (name, value) = line.split_once(':').with_context(|| format!("not a header: '{line}'"))?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                framing = Framing::Length(value.parse().context("content-length is not a number")?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked")
            {
                framing = Framing::Chunked;
            }
        }
    }

    /// Reads chunks until the last, which is empty, and the trailer after it (RFC 9112 section 7.1).
    async fn chunks(&mut self, body: &mut impl FnMut(&[u8])) -> anyhow::Result<()> {
        loop {
            let line = self.line().await?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size =
                u64::from_str_radix(size, 16).with_context(|| format!("not a chunk size: '{line}'"))?;
            if size == 0 {
                break;
            }
            self.pass(size, body).await?;
            self.line().await?;
        }
        while !self.line().await?.is_empty() {}
        Ok(())
    }

    /// Passes `length` bytes on.
    async fn pass(&mut self, mut length: u64, body: &mut impl FnMut(&[u8])) -> anyhow::Result<()> {
        while length > 0 {
            if self.start == self.end {
                self.receive().await?;
            }
            let received = self.buffer.get(self.start..self.end).unwrap_or_default();
            let take = usize::try_from(length).unwrap_or(usize::MAX).min(received.len());
            body(received.get(..take).unwrap_or_default());
            self.start += take;
            length -= take as u64;
        }
        Ok(())
    }

    /// The next line, without its end.
    async fn line(&mut self) -> anyhow::Result<String> {
        loop {
            let received = self.buffer.get(self.start..self.end).unwrap_or_default();
            if let Some(length) = received.iter().position(|byte| *byte == b'\n') {
                let line = received.get(..length).unwrap_or_default();
                let text = String::from_utf8_lossy(line).trim_end_matches('\r').to_owned();
                self.start += length + 1;
                return Ok(text);
            }
            self.receive().await?;
        }
    }

    /// Waits for more bytes.
    async fn receive(&mut self) -> anyhow::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let Some(space) = self.buffer.get_mut(self.end..).filter(|space| !space.is_empty()) else {
            bail!("a line of the answer's head is longer than {BUFFER_BYTES} bytes");
        };
        let received = self.stream.read(space).await?;
        if received == 0 {
            bail!("the server closed the connection before its answer was complete");
        }
        self.end += received;
        Ok(())
    }
}

/// A request without a body.
pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

/// A request with a body of JSON.
pub(crate) fn post(path: &str, json: &str) -> String {
    let length = json.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{json}"
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A server that answers every request by `answer`, a function of its first line and body.
    pub(crate) async fn serve<A>(answer: A) -> SocketAddr
    where
        A: Fn(&str, &str) -> Vec<u8> + Clone + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, answer.clone()));
            }
        });
        address
    }

    async fn converse(mut stream: TcpStream, answer: impl Fn(&str, &str) -> Vec<u8>) {
        let mut text = String::new();
        let mut buffer = vec![0; 4_096];
        loop {
            while let Some((head, rest)) = text.split_once("\r\n\r\n") {
                let length =
                    head.split("content-length: ").nth(1).map_or("0", |rest| rest.lines().next().unwrap());
                let length: usize = length.parse().unwrap();
                let Some(body) = rest.get(..length) else { break };
                let answer = answer(head.lines().next().unwrap(), body);
                let rest = rest[length..].to_owned();
                // In two parts, so that no answer arrives whole.
                let (first, second) = answer.split_at(answer.len() / 2);
                stream.write_all(first).await.unwrap();
                tokio::task::yield_now().await;
                stream.write_all(second).await.unwrap();
                text = rest;
            }
            let received = stream.read(&mut buffer).await.unwrap_or(0);
            if received == 0 {
                return;
            }
            text.push_str(std::str::from_utf8(&buffer[..received]).unwrap());
        }
    }

    /// An answer with a body of known length.
    pub(crate) fn sized(status: &str, body: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    /// An answer in chunks of at most seven bytes.
    pub(crate) fn chunked(body: &str) -> Vec<u8> {
        let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in body.as_bytes().chunks(7) {
            answer.extend(format!("{:x};note=1\r\n", chunk.len()).bytes());
            answer.extend(chunk);
            answer.extend(b"\r\n");
        }
        answer.extend(b"0\r\nchecksum: 1\r\n\r\n");
        answer
    }

    fn echo(line: &str, body: &str) -> Vec<u8> {
        match line.split(' ').nth(1) {
            Some("/chunks") => chunked(&"0123456789".repeat(100)),
            Some("/none") => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
            Some("/close") => b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\nshort".to_vec(),
            _ => sized("200 OK", body),
        }
    }

    async fn body_of(connection: &mut Connection, request: &str) -> (u16, Vec<u8>) {
        let mut body = Vec::new();
        let status = connection.ask(request.as_bytes(), |piece| body.extend_from_slice(piece)).await.unwrap();
        (status, body)
    }

    #[tokio::test]
    async fn bodies_of_all_framings_are_read_over_one_connection() {
        let mut connection = Connection::open(serve(echo).await).await.unwrap();
        for _ in 0..3 {
            assert_eq!(body_of(&mut connection, &post("/", "{\"a\":1}")).await, (200, b"{\"a\":1}".to_vec()));
            let (status, body) = body_of(&mut connection, &get("/chunks")).await;
            assert_eq!((status, body.len()), (200, 1_000));
            assert_eq!(body_of(&mut connection, &get("/none")).await, (204, Vec::new()));
        }
    }

    #[tokio::test]
    async fn a_truncated_answer_is_an_error() {
        async fn cut_off(listener: TcpListener) {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&echo("GET /close HTTP/1.1", "")).await.unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(cut_off(listener));
        let mut connection = Connection::open(address).await.unwrap();
        assert!(connection.ask(get("/close").as_bytes(), |_| ()).await.is_err());
    }
}
