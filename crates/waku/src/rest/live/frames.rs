//! The frames of a WebSocket, as a server writes and reads them (RFC 6455). Written here because a stream that idles shall hold
//! no buffers, and many messages shall be one write.
//!
//! Clients of a live stream have nothing to say but that they are there, and that they leave: what else they send is read and
//! dropped, up to a limit.

use bytes::{Buf, BytesMut};

/// The most bytes of a frame of data that is dropped; a client that sends more is not meant for this.
const DATA_BYTES_MAX: u64 = 64 << 10;
/// The most bytes of a control frame (§5.5).
const CONTROL_BYTES_MAX: u64 = 125;

const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Why a connection is closed (§7.4.1 and the registry of codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseCode {
    Normal = 1000,
    GoingAway = 1001,
    ProtocolError = 1002,
    PolicyViolation = 1008,
    TooBig = 1009,
    TryAgainLater = 1013,
}

/// Writes a text in one frame, from its pieces.
pub(super) fn write_text(pieces: &[&[u8]], out: &mut Vec<u8>) {
    write_frame(TEXT, pieces, out);
}

pub(super) fn write_ping(out: &mut Vec<u8>) {
    write_frame(PING, &[], out);
}

pub(super) fn write_pong(payload: &[u8], out: &mut Vec<u8>) {
    write_frame(PONG, &[payload], out);
}

/// Writes the frame behind which nothing comes. The reason is a word, well below what a control frame takes.
pub(super) fn write_close(code: CloseCode, reason: &str, out: &mut Vec<u8>) {
    write_frame(CLOSE, &[&(code as u16).to_be_bytes(), reason.as_bytes()], out);
}

/// §5.2: the length in 7 bits or, behind 126 or 127, in 16 or 64. A server does not mask (§5.1).
fn write_frame(opcode: u8, pieces: &[&[u8]], out: &mut Vec<u8>) {
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    out.push(FINAL | opcode);
    match len {
        0..=125 => out.push(len as u8),
        126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
}

/// What a client has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// Something that is nobody's business here.
    Data,
    Ping(Vec<u8>),
    Pong,
    Close,
}

/// Reads frames out of the bytes that have come.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// Bytes of a frame of data that are still to be dropped.
    skip: u64,
}

/// The head of a frame.
struct Head {
    opcode: u8,
    len: u64,
    mask: [u8; 4],
    /// What the head itself takes.
    bytes: usize,
}

impl Decoder {
    /// Takes the next whole frame out of `bytes`; `None` when more must come first.
    ///
    /// # Errors
    /// By which code the connection is to be closed.
    pub(super) fn next(&mut self, bytes: &mut BytesMut) -> Result<Option<Incoming>, CloseCode> {
        if self.skip == 0 {
            let Some(head) = read_head(bytes)? else { return Ok(None) };
            if head.opcode >= CLOSE {
                return Ok(take_control(&head, bytes));
            }
            bytes.advance(head.bytes);
            self.skip = head.len;
        }
        let dropped = bytes.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
        bytes.advance(dropped);
        self.skip -= dropped as u64;
        Ok((self.skip == 0).then_some(Incoming::Data))
    }
}

fn read_head(bytes: &[u8]) -> Result<Option<Head>, CloseCode> {
    let Some((&[first, second], rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let opcode = first & 15;
    // §5.2: reserved bits are for extensions, of which none was agreed on; §5.1: clients mask.
    let is_known = matches!(opcode, 0..=2 | CLOSE | PING | PONG);
    if first & RESERVED != 0 || !is_known || second & MASKED == 0 {
        return Err(CloseCode::ProtocolError);
    }
    let (len, rest) = match second & !MASKED {
        126 => match rest.split_first_chunk() {
            Some((len, rest)) => (u64::from(u16::from_be_bytes(*len)), rest),
            None => return Ok(None),
        },
        127 => match rest.split_first_chunk() {
            Some((len, rest)) => (u64::from_be_bytes(*len), rest),
            None => return Ok(None),
        },
        len => (u64::from(len), rest),
    };
    if opcode >= CLOSE && (len > CONTROL_BYTES_MAX || first & FINAL == 0) {
        return Err(CloseCode::ProtocolError); // §5.5: control frames are short and whole
    }
    if len > DATA_BYTES_MAX {
        return Err(CloseCode::TooBig);
    }
    let Some((mask, rest)) = rest.split_first_chunk() else { return Ok(None) };
    Ok(Some(Head { opcode, len, mask: *mask, bytes: bytes.len() - rest.len() }))
}

fn take_control(head: &Head, bytes: &mut BytesMut) -> Option<Incoming> {
    let len = head.len as usize; // at most CONTROL_BYTES_MAX
    if bytes.len() < head.bytes + len {
        return None;
    }
    bytes.advance(head.bytes);
    let masked = bytes.split_to(len);
    let payload = masked.iter().zip(head.mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    Some(match head.opcode {
        PING => Incoming::Ping(payload.collect()),
        PONG => Incoming::Pong,
        _ => Incoming::Close,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MASK: [u8; 4] = [1, 2, 3, 4];

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        match payload.len() {
            len @ 0..=125 => frame.push(MASKED | len as u8),
            len => {
                frame.push(MASKED | 126);
                frame.extend_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
            }
        }
        frame.extend_from_slice(&MASK);
        frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    /// Feeds bytes in pieces of a size.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<Incoming>, CloseCode> {
        let (mut decoder, mut waiting, mut read) = (Decoder::default(), BytesMut::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            waiting.extend_from_slice(piece);
            while let Some(incoming) = decoder.next(&mut waiting)? {
                read.push(incoming);
            }
        }
        Ok(read)
    }

    #[test]
    fn frames_are_read_however_they_are_cut() {
        let frames = [
            masked(FINAL | PING, b"who"),
            masked(TEXT, &[b'x'; 70]),
            masked(FINAL, &[b'y'; 60_000]),
            masked(FINAL | TEXT, b""),
            masked(FINAL | PONG, &[0; 125]),
            masked(FINAL | CLOSE, &1000_u16.to_be_bytes()),
        ];
        let expected = [
            Incoming::Ping(b"who".to_vec()),
            Incoming::Data,
            Incoming::Data,
            Incoming::Data,
            Incoming::Pong,
            Incoming::Close,
        ];
        for piece in [1, 2, 7, 1_000, 100_000] {
            assert_eq!(read(&frames.concat(), piece).unwrap(), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn what_breaks_the_rules_is_told_by_its_code() {
        let unmasked = [FINAL | PING, 0];
        let fragmented_ping = masked(PING, b"");
        let long_ping = masked(FINAL | PING, &[0; 126]);
        for frame in
            [&unmasked[..], &[FINAL | 0x40, MASKED], &[FINAL | 3, MASKED], &fragmented_ping, &long_ping]
        {
            assert_eq!(read(frame, 1_000), Err(CloseCode::ProtocolError), "{frame:x?}");
        }
        let mut endless = vec![FINAL | 2, MASKED | 127];
        endless.extend_from_slice(&u64::MAX.to_be_bytes());
        assert_eq!(read(&endless, 1_000), Err(CloseCode::TooBig));
    }

    #[test]
    fn lengths_are_written_in_the_shortest_form() {
        for (len, head) in [(0, 2), (125, 2), (126, 4), (0xffff, 4), (0x10000, 10)] {
            let mut out = Vec::new();
            write_text(&[&vec![b'x'; len]], &mut out);
            assert_eq!((out.len(), out[0]), (head + len, FINAL | TEXT), "{len}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_or_are_kept(bytes in proptest::collection::vec(any::<u8>(), 0..400), piece in 1..50_usize) {
            let (mut decoder, mut waiting) = (Decoder::default(), BytesMut::from(&bytes[..]));
            let end = loop {
                match decoder.next(&mut waiting) {
                    Ok(Some(_)) => {}
                    end => break end,
                }
            };
            // Two bytes, a length of eight, a mask of four, and a control frame of which a byte is missing.
            let kept_max = 2 + 8 + 4 + CONTROL_BYTES_MAX as usize - 1;
            prop_assert!(end.is_err() || waiting.len() <= kept_max, "{} bytes wait", waiting.len());
            prop_assert_eq!(read(&bytes, piece), read(&bytes, 400), "how they are cut does not show");
        }
    }
}
