//! TCP and Unix sockets.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use tracing::debug;

/// A socket that accepts connections.
#[derive(Debug)]
pub(crate) enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listening {
    /// The next connection and the address of its client; no address on a Unix socket.
    pub(crate) async fn accept(&self) -> io::Result<(Socket, Option<SocketAddr>)> {
        match self {
            Self::Tcp(socket) => {
                socket.accept().await.map(|(socket, peer)| (Socket::Tcp(socket), Some(peer)))
            }
            Self::Unix(socket) => socket.accept().await.map(|(socket, _)| (Socket::Unix(socket), None)),
        }
    }
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Makes TCP send small pieces without waiting for acknowledgements of earlier ones.
    pub(crate) fn send_at_once(&self) {
        if let Self::Tcp(socket) = self
            && let Err(error) = socket.set_nodelay(true)
        {
            debug!(%error, "can't set TCP_NODELAY");
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, slices),
            Self::Unix(socket) => Pin::new(socket).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true // both kinds
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // sockets buffer nothing in the process
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}
