//! The buffers of a connection: bytes that were read and not used, and replies that were not sent.

use std::io;

use restante_mail_wire::smtp::Reply;
use restante_net::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The most bytes of one read. It has room for many command lines.
const INPUT_BYTES: usize = 32 << 10;
/// The most bytes of replies that are buffered; more are sent although further commands are waiting.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

/// A stream with its buffers.
pub(super) struct Wire {
    stream: Stream,
    input: Vec<u8>,
    /// How much of `input` was used.
    used: usize,
    output: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, input: Vec::new(), used: 0, output: Vec::new() }
    }

    pub(super) fn into_stream(self) -> Stream {
        self.stream
    }

    /// What was read and not used.
    pub(super) fn unread(&self) -> &[u8] {
        self.input.get(self.used..).unwrap_or_default()
    }

    /// Notes that `bytes` bytes were used.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.used = (self.used + bytes).min(self.input.len());
    }

    /// Reads what is available, or waits for it. Returns how many bytes were read; 0 at the end. Cancel-safe.
    pub(super) async fn fill(&mut self) -> io::Result<usize> {
        self.input.drain(..self.used);
        self.used = 0;
        self.input.reserve(INPUT_BYTES.saturating_sub(self.input.len()).max(1));
        self.stream.read_buf(&mut self.input).await
    }

    /// Buffers a reply for the next flush.
    pub(super) fn reply(&mut self, reply: Reply<'_>) {
        reply.write(&mut self.output);
    }

    /// Sends the replies.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).await?;
            self.output.clear();
        }
        self.stream.flush().await
    }

    /// Sends the replies if there are many of them.
    pub(super) async fn flush_if_full(&mut self) -> io::Result<()> {
        if self.output.len() < OUTPUT_BYTES_MAX { Ok(()) } else { self.flush().await }
    }

    /// Sends the replies if the bytes of a chunk are not here yet.
    pub(super) async fn flush_before_chunk(&mut self, bytes: u64) -> io::Result<()> {
        if self.unread().len() as u64 >= bytes { Ok(()) } else { self.flush().await }
    }

    /// Discards replies that were not sent.
    pub(super) fn drop_replies(&mut self) {
        self.output.clear();
    }
}
