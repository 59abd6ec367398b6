//! Detects which protocol a client uses.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// The first bytes of every HTTP/2 connection (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A protocol, as detected from the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// A stream whose first bytes were read to detect the protocol; they are read again before all others.
#[derive(Debug)]
pub struct FirstBytes<S> {
    first: Bytes,
    stream: S,
}

impl<S: AsyncRead + Unpin> FirstBytes<S> {
    /// Reads as much of a stream as identifies the protocol, usually one byte.
    pub(super) async fn read(mut stream: S) -> io::Result<(Protocol, Self)> {
        let mut first = Vec::with_capacity(PREFACE.len());
        while first.len() < PREFACE.len() && PREFACE.starts_with(&first) {
            let missing = (PREFACE.len() - first.len()) as u64;
            if (&mut stream).take(missing).read_buf(&mut first).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let protocol = if first == PREFACE { Protocol::Http2 } else { Protocol::Http1 };
        Ok((protocol, Self { first: first.into(), stream }))
    }

    /// The stream. Call it after the first bytes were read again.
    pub(super) fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstBytes<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let taken = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first.split_to(taken));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstBytes<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn first_bytes_tell_the_protocol_and_are_read_again() {
        let slow_preface = byte_by_byte(PREFACE);
        for (bytes, protocol) in [
            (PREFACE, Protocol::Http2),
            (b"POST / HTTP/1.1\r\n\r\n".as_slice(), Protocol::Http1),
            (b"PRI * HTTP/1.1\r\n\r\n".as_slice(), Protocol::Http1),
            (b"\n".as_slice(), Protocol::Http1),
        ] {
            let (found, mut stream) = FirstBytes::read(bytes).await.unwrap();
            let mut read = Vec::new();
            stream.read_to_end(&mut read).await.unwrap();
            assert_eq!((found, &*read), (protocol, bytes));
        }
        assert_eq!(FirstBytes::read(slow_preface).await.unwrap().0, Protocol::Http2, "a byte at a time");
        assert!(FirstBytes::read(b"PRI".as_slice()).await.is_err(), "it ends too early");
    }

    /// Returns one byte per read.
    fn byte_by_byte(bytes: &'static [u8]) -> impl AsyncRead + Unpin {
        bytes.iter().fold(Box::new(tokio::io::empty()) as Box<dyn AsyncRead + Unpin>, |before, byte| {
            Box::new(before.chain(std::slice::from_ref(byte)))
        })
    }
}
