//! Notices a message that a client has begun and does not end. The library that reads frames collects the fragments of a message
//! (RFC 6455 section 5.4) and does not say so, and between them a client may answer pings.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// The bits of the first byte of a frame.
const IS_LAST: u8 = 0x80;
const IS_CONTROL: u8 = 0x08;
/// The bits of the second byte.
const IS_MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;
const MASK_BYTES: usize = 4;

/// Reads the headers of frames and skips their payloads.
#[derive(Debug, Default)]
struct Frames {
    /// The header of the current frame, as far as it was read.
    header: Vec<u8>,
    /// Bytes of its payload that were not read yet.
    payload_left: u64,
    /// Whether a frame of a message was begun, and the last one has not ended.
    is_within_message: bool,
}

impl Frames {
    /// Follows bytes of a client; returns whether a message ended in them.
    fn follow(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_ended = false;
        while let Some((first, rest)) = bytes.split_first() {
            if self.payload_left > 0 {
                let (skipped, rest) = bytes.split_at(bytes.len().min(clamped(self.payload_left)));
                self.payload_left -= skipped.len() as u64;
                bytes = rest;
            } else {
                self.is_within_message |= self.header.is_empty() && first & IS_CONTROL == 0;
                self.header.push(*first);
                bytes = rest;
                let Some(payload) = payload_bytes(&self.header) else { continue };
                self.payload_left = payload;
            }
            if self.payload_left == 0 {
                has_ended |= self.end_frame();
            }
        }
        has_ended
    }

    /// Returns whether the frame was the last one of a message.
    fn end_frame(&mut self) -> bool {
        let first = self.header.first().copied().unwrap_or_default();
        self.header.clear();
        let ends_message = first & (IS_LAST | IS_CONTROL) == IS_LAST;
        self.is_within_message &= !ends_message;
        ends_message
    }
}

fn clamped(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The length of the payload, if the header is complete (section 5.2).
fn payload_bytes(header: &[u8]) -> Option<u64> {
    let [_, second, rest @ ..] = header else { return None };
    let (payload, length_bytes) = match second & LENGTH {
        126 => (u16::from_be_bytes(*rest.first_chunk()?).into(), 2),
        127 => (u64::from_be_bytes(*rest.first_chunk()?), 8),
        short => (short.into(), 0),
    };
    let mask_bytes = if second & IS_MASKED == 0 { 0 } else { MASK_BYTES };
    (rest.len() == length_bytes + mask_bytes).then_some(payload)
}

/// A stream, and since when the client has been sending the current message.
#[derive(Debug)]
pub(super) struct Watched<S> {
    pub(super) stream: S,
    frames: Frames,
    begun: Option<Instant>,
}

impl<S> Watched<S> {
    /// `read` are bytes of the client that were already read.
    pub(super) fn new(stream: S, read: &[u8]) -> Self {
        let mut watched = Self { stream, frames: Frames::default(), begun: None };
        watched.follow(read);
        watched
    }

    /// When the client began the message that has not ended yet.
    pub(super) fn begun(&self) -> Option<Instant> {
        self.begun
    }

    fn follow(&mut self, bytes: &[u8]) {
        let has_ended = self.frames.follow(bytes);
        let begun = self.begun.filter(|_| !has_ended);
        self.begun = self.frames.is_within_message.then(|| begun.unwrap_or_else(Instant::now));
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.follow(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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
        slices: &[IoSlice<'_>],
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

    /// A masked frame with a payload of so many bytes, which look like frames themselves.
    fn frame(first: u8, payload: usize) -> Vec<u8> {
        let mut frame = vec![first];
        match payload {
            ..126 => frame.push(0x80 | u8::try_from(payload).unwrap()),
            126..65_536 => {
                frame.push(0x80 | 126);
                frame.extend(u16::try_from(payload).unwrap().to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend((payload as u64).to_be_bytes());
            }
        }
        frame.extend([0x81; MASK_BYTES]);
        frame.resize(frame.len() + payload, 0x01);
        frame
    }

    #[test]
    fn a_message_is_followed_from_its_first_byte_to_its_last_whatever_its_length() {
        for payload in [0, 1, 125, 126, 127, 65_535, 65_536] {
            let (mut frames, bytes) = (Frames::default(), frame(0x81, payload));
            let (last, rest) = bytes.split_last().unwrap();
            for byte in rest {
                assert!(!frames.follow(&[*byte]), "{payload}");
                assert!(frames.is_within_message, "{payload}");
            }
            assert!(frames.follow(&[*last]) && !frames.is_within_message, "{payload}");
            assert!(Frames::default().follow(&bytes), "{payload}: all at once");
        }
    }

    #[test]
    fn fragments_are_one_message_and_control_frames_are_none() {
        let steps = [
            (frame(0x8a, 0), false, false),
            (frame(0x02, 300), true, false),
            (frame(0x89, 5), true, false),
            (frame(0x00, 0), true, false),
            (frame(0x8a, 5), true, false),
            (frame(0x80, 9), false, true),
            (frame(0x89, 125), false, false),
            ([frame(0x82, 2), frame(0x01, 2)].concat(), true, true),
        ];
        let mut frames = Frames::default();
        for (n, (bytes, is_within, has_ended)) in steps.into_iter().enumerate() {
            assert_eq!((frames.follow(&bytes), frames.is_within_message), (has_ended, is_within), "{n}");
        }
    }
}
