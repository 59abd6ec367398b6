//! Properties that hold for any bytes: checked by the fuzz targets, and by ordinary tests over their seeds.

use super::{
    AuthResponse, COMMAND_LINE_BYTES_MAX, ChunkDecoder, Command, DataDecoder, ForwardPath, LineError,
    LineReader, Newlines, ReadLine, Reply, challenge_text, decode_xtext, encode_xtext, is_xtext,
    peer::{Extensions, PeerReply, REPLY_BYTES_MAX, ReadReply, ReplyError, ReplyReader},
};

/// Splits a fuzz input into offsets and bytes: the first byte is the number of offsets that follow, two bytes each.
pub fn with_splits(input: &[u8]) -> (Vec<usize>, &[u8]) {
    let Some((&count, rest)) = input.split_first() else { return (Vec::new(), input) };
    let Some((numbers, rest)) = rest.split_at_checked(usize::from(count % 16) * 2) else {
        return (Vec::new(), rest);
    };
    let split = |pair: &[u8]| pair.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
    (numbers.chunks(2).map(split).collect(), rest)
}

/// The pieces of an input that is split at these offsets, which may be in any order.
fn pieces<'i>(input: &'i [u8], splits: &[usize]) -> Vec<&'i [u8]> {
    let mut offsets: Vec<usize> = splits.iter().map(|split| (*split).min(input.len())).collect();
    offsets.extend([0, input.len()]);
    offsets.sort_unstable();
    let pairs = offsets.iter().zip(offsets.iter().skip(1));
    pairs.filter_map(|(from, to)| input.get(*from..*to)).collect()
}

/// Decodes pieces until the end. Returns the decoder, the message and how many bytes were consumed.
pub fn decode_data(newlines: Newlines, input: &[u8], splits: &[usize]) -> (DataDecoder, Vec<u8>, usize) {
    let (mut decoder, mut message, mut consumed) = (DataDecoder::new(newlines), Vec::new(), 0);
    for piece in pieces(input, splits) {
        let before = message.len();
        let bytes = decoder.decode(piece, &mut message);
        consumed += bytes;
        assert!(bytes == piece.len() || decoder.is_done());
        assert!(message.len() - before <= 2 * bytes + 2);
    }
    (decoder, message, consumed)
}

/// The message as a client sends it after `DATA`.
pub fn dot_stuffed(message: &[u8]) -> Vec<u8> {
    let mut wire = Vec::with_capacity(message.len() + 5);
    let mut is_line_start = true;
    for byte in message {
        if is_line_start && *byte == b'.' {
            wire.push(b'.');
        }
        wire.push(*byte);
        is_line_start = wire.ends_with(b"\r\n");
    }
    if !is_line_start {
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(b".\r\n");
    wire
}

/// A message ends at the first `CRLF.CRLF` and nowhere else, whatever the splits; a repaired one has no bare CR or LF.
///
/// # Panics
/// If that does not hold.
pub fn data(input: &[u8], splits: &[usize]) {
    let with_command = [b"\r\n", input].concat();
    let end = with_command.windows(5).position(|window| window == b"\r\n.\r\n").map(|at| at + 3);
    for newlines in [Newlines::Strict, Newlines::Repaired] {
        let (decoder, message, consumed) = decode_data(newlines, input, splits);
        assert_eq!(decoder.is_done().then_some(consumed), end, "the end of {}", input.escape_ascii());
        let (whole, all, _) = decode_data(newlines, input, &[]);
        assert_eq!(decoder.error(), whole.error());
        if decoder.error().is_none() {
            assert_eq!(message, all, "splits matter in {}", input.escape_ascii());
            assert!(has_no_bare_newline(&message), "{}", message.escape_ascii());
        }
    }
    let (decoder, again, _) = decode_data(Newlines::Strict, &dot_stuffed(input), splits);
    if decoder.error().is_none() {
        assert!(again == input || again.strip_suffix(b"\r\n") == Some(input), "{}", input.escape_ascii());
    }
}

fn has_no_bare_newline(text: &[u8]) -> bool {
    let mut previous = b' ';
    for byte in text {
        if (previous == b'\r') != (*byte == b'\n') {
            return false;
        }
        previous = *byte;
    }
    previous != b'\r'
}

/// Decodes pieces of one chunk.
pub fn decode_chunks(is_text: bool, input: &[u8], splits: &[usize]) -> Vec<u8> {
    let (mut decoder, mut message) = (ChunkDecoder::new(is_text), Vec::new());
    for piece in pieces(input, splits) {
        let before = message.len();
        decoder.decode(piece, &mut message);
        assert!(message.len() - before <= 2 * piece.len() + 2);
    }
    decoder.finish(&mut message);
    message
}

/// Splits don't change the result of decoding chunks; text has no bare CR or LF, and other bytes stay as they are.
///
/// # Panics
/// If that does not hold.
pub fn chunks(input: &[u8], splits: &[usize]) {
    let text = decode_chunks(true, input, splits);
    assert_eq!(text, decode_chunks(true, input, &[]));
    assert!(has_no_bare_newline(&text));
    assert_eq!(decode_chunks(false, input, splits), input);
}

/// The lines of an input that arrives in pieces.
pub fn lines_of(input: &[u8], splits: &[usize]) -> Vec<Result<Vec<u8>, LineError>> {
    let (mut reader, mut buffer, mut lines) = (LineReader::default(), Vec::new(), Vec::new());
    for piece in pieces(input, splits) {
        buffer.extend_from_slice(piece);
        loop {
            let ReadLine { consumed, line } = reader.next(&buffer);
            let line = line.map(|line| line.map(<[u8]>::to_vec));
            buffer.drain(..consumed);
            let Some(line) = line else { break };
            lines.push(line);
        }
        assert!(buffer.len() < COMMAND_LINE_BYTES_MAX);
    }
    lines
}

/// Splits don't change the lines, and each is parsed to a command or an error.
///
/// # Panics
/// If that does not hold.
pub fn lines(input: &[u8], splits: &[usize]) {
    let lines = lines_of(input, splits);
    assert_eq!(lines, lines_of(input, &[]));
    for line in lines.iter().flatten() {
        command(line);
    }
}

/// A line is parsed to a command or an error; a path is short and parsed again to the same path, and any text is one reply.
///
/// # Panics
/// If that does not hold.
pub fn command(line: &[u8]) {
    if let Ok(Command::Mail(Some(mailbox), _)) = Command::parse(line) {
        let text = mailbox.to_string();
        assert!(text.len() <= 254 && mailbox.local.len() <= 64);
        let again = format!("MAIL FROM:<{text}>");
        assert!(
            matches!(Command::parse(again.as_bytes()), Ok(Command::Mail(Some(read), _)) if read == mailbox)
        );
    }
    if let Ok(parsed) = Command::parse(line) {
        let is_hello = matches!(parsed, Command::Ehlo(_) | Command::Helo(_) | Command::Lhlo(_));
        assert!(
            is_hello || Command::parse_lenient(line) == Ok(parsed),
            "lenient parsing changes nothing but errors"
        );
        parameters(parsed);
    }
    if let Some(AuthResponse::Bytes(bytes)) = AuthResponse::parse(line) {
        assert!(bytes.len() <= line.len());
        let again = challenge_text(&bytes);
        assert_eq!(AuthResponse::parse(again.as_bytes()), Some(AuthResponse::Bytes(bytes)));
    }
    let (text, mut out) = (String::from_utf8_lossy(line).replace('\n', " "), Vec::new());
    Reply::new(500, "5.5.2", &text).write(&mut out);
    assert!(out.len() <= 512 && has_no_bare_newline(&out));
    assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
}

/// The replies of an input that arrives in pieces.
///
/// # Errors
/// It contains something that is not a reply.
pub fn replies(input: &[u8], splits: &[usize]) -> Result<Vec<PeerReply>, ReplyError> {
    let (mut reader, mut buffer, mut replies) = (ReplyReader::default(), Vec::new(), Vec::new());
    for piece in pieces(input, splits) {
        buffer.extend_from_slice(piece);
        loop {
            let ReadReply { consumed, reply } = reader.next(&buffer)?;
            buffer.drain(..consumed);
            let Some(reply) = reply else { break };
            replies.push(reply);
        }
        assert!(buffer.len() <= REPLY_BYTES_MAX);
    }
    Ok(replies)
}

/// Splits don't change the replies of a server; their texts have no control characters and are bounded, and any of them can be
/// parsed as a reply to `EHLO`.
///
/// # Panics
/// If that does not hold.
pub fn peer(input: &[u8], splits: &[usize]) {
    let found = replies(input, splits);
    assert_eq!(found, replies(input, &[]));
    for reply in found.iter().flatten() {
        assert!((200..600).contains(&reply.code));
        let text = reply.text(100);
        assert!(text.len() <= 100 && !text.chars().any(char::is_control));
        let extensions = Extensions::of(reply);
        assert!(!extensions.name.contains(' ') && extensions.size_max != Some(0));
    }
}

/// Parameters are short, and `xtext` can be decoded and encoded to the same text.
fn parameters(command: Command<'_>) {
    match command {
        Command::Mail(_, parameters) => {
            assert!(parameters.envelope_id.is_none_or(|id| id.len() <= 100 && is_xtext(id)));
            if let Some(id) = parameters.envelope_id {
                let decoded = decode_xtext(id);
                assert_eq!(decode_xtext(&encode_xtext(&decoded)), decoded);
            }
        }
        Command::Rcpt(path, parameters) => {
            assert!(parameters.original.is_none_or(|original| original.len() <= 500));
            if let (ForwardPath::Mailbox(mailbox), Some(original)) = (path, parameters.original) {
                let again = format!("RCPT TO:<{mailbox}> ORCPT={original}");
                assert!(
                    matches!(Command::parse(again.as_bytes()), Ok(Command::Rcpt(_, read)) if read.original == Some(original))
                );
            }
        }
        _ => {}
    }
}
