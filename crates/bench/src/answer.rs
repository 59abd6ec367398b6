//! What a load client reads of an answer: as little as it can do with, because reading JSON would cost more than making it.

use restante_core::MessageHash;

/// The cursor for the next page: looked for from the end of the answer, because reading JSON would cost more than making it.
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

fn position_from_end(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).rposition(|part| part == wanted)
}

/// How often a text stands in another.
pub(crate) fn count(text: &[u8], wanted: &[u8]) -> usize {
    text.windows(wanted.len()).filter(|part| *part == wanted).count()
}

/// What an unexpected answer says, as far as an error message has room for it.
pub(crate) fn beginning(body: &[u8]) -> String {
    String::from_utf8_lossy(body.get(..200).unwrap_or(body)).into_owned()
}

/// The hashes of the messages of a page, in its order; a text that is no hash is left out.
pub(crate) fn hashes(body: &str) -> impl Iterator<Item = MessageHash> {
    const NAME: &str = "\"messageHash\":\"";
    body.split(NAME).skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_found_wherever_they_stand() {
        assert_eq!(next_cursor(b"{\"paginationCursor\":\"0x12\"}"), Some("0x12"));
        let early = format!("{{\"paginationCursor\":\"0x12\",\"messages\":[{}]}}", "0,".repeat(1_000));
        assert_eq!(next_cursor(early.as_bytes()), Some("0x12"));
        assert_eq!(next_cursor(b"{\"messages\":[]}"), None);
        assert_eq!(next_cursor(b"{\"paginationCursor\":\"\"}"), None);
    }

    #[test]
    fn hashes_are_found_in_their_order() {
        let (one, other) = (MessageHash([1; 32]), MessageHash([2; 32]));
        let body =
            format!("{{\"messages\":[{{\"messageHash\":\"{other}\"}},{{\"messageHash\":\"{one}\"}}]}}");
        assert_eq!(hashes(&body).collect::<Vec<_>>(), [other, one]);
        assert_eq!(hashes("{\"messageHash\":\"0x12\"}").count(), 0);
    }
}
