//! Cursors as text.

use bytes::Bytes;
use restante_records::Cursor;

/// A cursor in hex digits.
pub(crate) fn of_cursor(cursor: &Cursor) -> String {
    cursor.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The cursor with these hex digits; `None` for any other text.
pub(crate) fn cursor(text: &str) -> Option<Cursor> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = text.as_bytes().chunks_exact(2);
    let bytes: Option<Vec<u8>> = pairs
        .map(|pair| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()))
        .collect();
    Some(Cursor(Bytes::from(bytes?)))
}
