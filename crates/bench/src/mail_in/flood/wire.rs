//! Connections to the server, as made by a proxy: each starts with the address of a client.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};

/// The beginning of a header of the PROXY protocol, version 2, with addresses of IPv4.
const PROXY_HEADER: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c";
/// The destination address and the ports, which have no meaning here.
const PROXY_REST: [u8; 8] = [203, 0, 113, 9, 0x1f, 0x90, 0x00, 0x19];
/// No line of a reply is longer (RFC 5321 §4.5.3.1.5).
const LINE_BYTES_MAX: u64 = 512;
/// A reply has few lines: thousands of connections are open.
const BUFFER_BYTES: usize = 512;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection.
pub(super) struct Wire {
    stream: BufReader<Box<dyn Stream>>,
    line: String,
}

impl Wire {
    /// Connects with the address of a client.
    pub(super) async fn connect(server: SocketAddr, client: Ipv4Addr) -> io::Result<Self> {
        let mut stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let header = [PROXY_HEADER, &client.octets(), &PROXY_REST].concat();
        stream.write_all(&header).await?;
        Ok(Self::of(Box::new(stream)))
    }

    fn of(stream: Box<dyn Stream>) -> Self {
        Self { stream: BufReader::with_capacity(BUFFER_BYTES, stream), line: String::new() }
    }

    /// Sends STARTTLS, and makes the handshake.
    pub(super) async fn start_tls(mut self, config: &Arc<ClientConfig>) -> io::Result<Self> {
        self.ask("STARTTLS\r\n", 220).await?;
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let stream = TlsConnector::from(config.clone()).connect(name, self.stream.into_inner()).await?;
        Ok(Self::of(Box::new(stream)))
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(bytes).await?;
        stream.flush().await
    }

    /// The code of the next reply. The end of the connection is an error.
    pub(super) async fn reply(&mut self) -> io::Result<u16> {
        loop {
            self.line.clear();
            if (&mut self.stream).take(LINE_BYTES_MAX).read_line(&mut self.line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if self.line.as_bytes().get(3) != Some(&b'-') {
                return self
                    .line
                    .get(..3)
                    .and_then(|code| code.parse().ok())
                    .ok_or_else(|| self.unexpected());
            }
        }
    }

    /// Reads a reply that must have this code.
    pub(super) async fn expect(&mut self, code: u16) -> io::Result<()> {
        if self.reply().await? == code { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Sends a command, whose reply must have this code.
    pub(super) async fn ask(&mut self, command: &str, code: u16) -> io::Result<()> {
        self.send(command.as_bytes()).await?;
        self.expect(code).await
    }

    fn unexpected(&self) -> io::Error {
        io::Error::other(format!("the server said: {}", self.line.trim_end()))
    }
}
