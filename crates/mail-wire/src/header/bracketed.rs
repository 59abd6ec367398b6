use super::scan::{Scanner, Token, is_space};

/// The MessageIds form: ids without brackets, comments, and white space outside of quotes. `None` if there is no id.
///
/// Anything between ids is skipped, such as the phrases of the obsolete In-Reply-To.
pub fn as_message_ids(value: &[u8]) -> Option<Vec<String>> {
    in_brackets(value, |id| {
        let is_plain = memchr::memchr2(b'(', b'"', id).is_none();
        if is_plain { without_white_space(id) } else { without_comments(id) }
    })
}

/// The URLs form (RFC 2369): URLs without brackets, white space and comments. `None` if there is no URL.
pub fn as_urls(value: &[u8]) -> Option<Vec<String>> {
    in_brackets(value, without_white_space)
}

/// The items in brackets, as `read` returns them, without line breaks and NUL; empty brackets are skipped.
fn in_brackets(value: &[u8], read: impl Fn(&[u8]) -> Vec<u8>) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut scanner = Scanner::new(value);
    while let Some(token) = scanner.next_word() {
        if token != Token::Special(b'<') {
            continue;
        }
        let Some(inner) = scanner.take_until(b'>') else { break };
        // Text before another opening bracket was not closed.
        let inner = inner.rsplit(|byte| *byte == b'<').next().unwrap_or_default();
        let mut inner = read(inner);
        inner.retain(|byte| !matches!(byte, b'\r' | b'\n' | 0));
        if !inner.is_empty() {
            found.push(String::from_utf8_lossy(&inner).into_owned());
        }
    }
    (!found.is_empty()).then_some(found)
}

fn without_white_space(inner: &[u8]) -> Vec<u8> {
    inner.iter().copied().filter(|byte| !is_space(*byte)).collect()
}

/// An id without the comments and the white space that obsolete syntax allows in it.
fn without_comments(id: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(id.len());
    for token in Scanner::new(id) {
        match token {
            Token::Space | Token::Comment(_) => {}
            Token::Quoted(quoted) => {
                plain.push(b'"');
                plain.extend_from_slice(quoted);
                plain.push(b'"');
            }
            Token::Atom(text) | Token::Literal(text) | Token::Encoded(_, text) => {
                plain.extend_from_slice(text)
            }
            Token::Special(special) => plain.push(special),
        }
    }
    plain
}
