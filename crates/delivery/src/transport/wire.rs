//! Bytes to and from a server, each in bounded time.

use std::{io, net::SocketAddr, time::Duration};

use async_trait::async_trait;
use futures_util::FutureExt;
use restante_mail::queue::Reply;
use restante_mail_wire::smtp::peer::{PeerReply, ReplyError, ReplyReader};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Bytes that are read at once.
const READ_BYTES: usize = 4_096;

/// A stream of bytes to a server.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// How servers are reached. Tests replace it.
#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// Connects to an address.
    ///
    /// # Errors
    /// Nobody listens there, or it can't be reached.
    async fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Socket>>;
}

/// The network of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpNetwork;

#[async_trait]
impl Network for TcpNetwork {
    async fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Socket>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

/// Why a connection is no longer usable.
#[derive(Debug)]
pub(super) enum WireError {
    Closed,
    TimedOut,
    Io(io::Error),
    NoReply(ReplyError),
}

impl WireError {
    /// A reply that stands for the error. It is always temporary.
    pub(super) fn reply(&self, doing: &str) -> Reply {
        let (enhanced, what) = match self {
            Self::Closed => ("4.4.2", "the server closed the connection".to_owned()),
            Self::TimedOut => ("4.4.2", "the server took too long".to_owned()),
            Self::Io(error) => ("4.4.2", format!("the connection broke ({})", error.kind())),
            Self::NoReply(error) => ("4.5.0", format!("the server does not speak SMTP ({error})")),
        };
        Reply::own(451, enhanced, format!("{what} while {doing}"))
    }
}

/// A connection, and the bytes that were read from it.
pub(super) struct Wire {
    socket: Box<dyn Socket>,
    reader: ReplyReader,
    /// The bytes that were read after the last reply.
    buffer: Vec<u8>,
}

impl Wire {
    pub(super) fn new(socket: Box<dyn Socket>) -> Self {
        Self { socket, reader: ReplyReader::default(), buffer: Vec::new() }
    }

    /// The socket, if no bytes were read after the last reply.
    pub(super) fn into_socket(self) -> Option<Box<dyn Socket>> {
        self.buffer.is_empty().then_some(self.socket)
    }

    /// The next reply. After an error the connection must not be used.
    pub(super) async fn reply(&mut self, time: Duration) -> Result<PeerReply, WireError> {
        timeout(time, self.next_reply()).await.unwrap_or(Err(WireError::TimedOut))
    }

    async fn next_reply(&mut self) -> Result<PeerReply, WireError> {
        loop {
            let read = self.reader.next(&self.buffer).map_err(WireError::NoReply)?;
            self.buffer.drain(..read.consumed);
            if let Some(reply) = read.reply {
                return Ok(reply);
            }
            let mut chunk = [0; READ_BYTES];
            let length = self.socket.read(&mut chunk).await.map_err(WireError::Io)?;
            if length == 0 {
                return Err(WireError::Closed);
            }
            self.buffer.extend_from_slice(chunk.get(..length).unwrap_or_default());
        }
    }

    /// Whether the server has sent something unexpected, or has closed the connection. Does not wait.
    pub(super) fn has_unread(&mut self) -> bool {
        if !self.buffer.is_empty() {
            return true;
        }
        let mut chunk = [0; READ_BYTES];
        match self.socket.read(&mut chunk).now_or_never() {
            None => false,
            Some(Ok(length)) => {
                self.buffer.extend_from_slice(chunk.get(..length).unwrap_or_default());
                true
            }
            Some(Err(_)) => true,
        }
    }

    /// Writes commands.
    pub(super) async fn write(&mut self, bytes: &[u8], time: Duration) -> Result<(), WireError> {
        let writing = async {
            self.socket.write_all(bytes).await?;
            self.socket.flush().await
        };
        timeout(time, writing).await.map_err(|_| WireError::TimedOut)?.map_err(WireError::Io)
    }
}
