//! The stream below a socket: a connection of HTTP/1.1, or a stream of HTTP/2 (RFC 8441).

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::server::{ClientStream, Tracked};

/// The most bytes that one write passes to an HTTP/2 stream. hyper copies each write as a whole and accepts another one once the
/// client has opened its window by a byte, so this bounds the memory for a client that does not read: a few writes.
const HTTP2_WRITE_BYTES_MAX: usize = 16 << 10;

/// The stream below a socket.
#[derive(Debug)]
pub enum SocketStream {
    /// The whole connection.
    Http1(Box<ClientStream>),
    /// One of many streams of a connection.
    Http2(Http2Stream),
}

/// A stream of HTTP/2. A client that opens no window for it is treated like one that does not read an answer.
pub struct Http2Stream {
    io: TokioIo<Upgraded>,
    tracked: Tracked,
}

impl std::fmt::Debug for Http2Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Http2Stream")
    }
}

impl Http2Stream {
    pub(crate) fn new(upgraded: Upgraded, tracked: Tracked) -> Self {
        Self { io: TokioIo::new(upgraded), tracked }
    }

    fn noted<T>(&self, written: Poll<T>) -> Poll<T> {
        match written {
            Poll::Pending => self.tracked.note_waiting(),
            Poll::Ready(_) => self.tracked.note_nothing_to_send(),
        }
        written
    }
}

impl AsyncRead for SocketStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Http1(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Http2(stream) => Pin::new(&mut stream.io).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for SocketStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Http1(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Http2(stream) => {
                let bytes = bytes.get(..HTTP2_WRITE_BYTES_MAX).unwrap_or(bytes);
                let written = Pin::new(&mut stream.io).poll_write(context, bytes);
                stream.noted(written)
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Http1(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            http2 @ Self::Http2(_) => {
                let first = slices.iter().find(|slice| !slice.is_empty());
                Pin::new(http2).poll_write(context, first.map_or(&[][..], |slice| slice))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Http1(stream) => stream.is_write_vectored(),
            Self::Http2(_) => false,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Http1(stream) => Pin::new(stream).poll_flush(context),
            Self::Http2(stream) => {
                let flushed = Pin::new(&mut stream.io).poll_flush(context);
                stream.noted(flushed)
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Http1(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Http2(stream) => Pin::new(&mut stream.io).poll_shutdown(context),
        }
    }
}
