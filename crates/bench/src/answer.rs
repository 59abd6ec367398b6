//! Extracts what a load client needs from an answer without parsing its JSON, which would cost more than the server's encoding.

use restante_core::MessageHash;

/// The cursor for the next page, searched from the end of the answer.
pub(crate) fn next_cursor(body: &[u8]) -> Option<&str> {
    const NAME: &[u8] = b"\"paginationCursor\":\"";
    const NEAR_THE_END: usize = 512;
    let far = body.len().saturating_sub(NEAR_THE_END);
    let near = body.get(far..)?;
    let (from, place) = match position_from_end(near, NAME) {
        Some(place) => (near, place),
        None => (body, position_from_end(body, NAME)?),
    };
    let value = from.get(place + NAME.len()..)?;
    let end = value.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(value.get(..end)?).ok().filter(|cursor| !cursor.is_empty())
}

fn position_from_end(text: &[u8], pattern: &[u8]) -> Option<usize> {
    text.windows(pattern.len()).rposition(|part| part == pattern)
}

/// The number of occurrences of a pattern in a text.
pub(crate) fn count(text: &[u8], pattern: &[u8]) -> usize {
    text.windows(pattern.len()).filter(|part| *part == pattern).count()
}

/// The beginning of an unexpected answer, for error messages.
pub(crate) fn beginning(body: &[u8]) -> String {
    String::from_utf8_lossy(body.get(..200).unwrap_or(body)).into_owned()
}

/// The hashes of the messages of a page, in its order; anything that is not a hash is skipped.
pub(crate) fn hashes(body: &str) -> impl Iterator<Item = MessageHash> {
    const NAME: &str = "\"messageHash\":\"";
    body.split(NAME).skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_found_anywhere() {
        assert_eq!(next_cursor(b"{\"paginationCursor\":\"0x12\"}"), Some("0x12"));
        let early = format!("{{\"paginationCursor\":\"0x12\",\"messages\":[{}]}}", "0,".repeat(1_000));
        assert_eq!(next_cursor(early.as_bytes()), Some("0x12"));
        assert_eq!(next_cursor(b"{\"messages\":[]}"), None);
        assert_eq!(next_cursor(b"{\"paginationCursor\":\"\"}"), None);
    }

    #[test]
    fn hashes_are_found_in_order() {
        let (one, other) = (MessageHash([1; 32]), MessageHash([2; 32]));
        let body =
            format!("{{\"messages\":[{{\"messageHash\":\"{other}\"}},{{\"messageHash\":\"{one}\"}}]}}");
        assert_eq!(hashes(&body).collect::<Vec<_>>(), [other, one]);
        assert_eq!(hashes("{\"messageHash\":\"0x12\"}").count(), 0);
    }
}
