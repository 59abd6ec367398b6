//! The document of an email for searching.

use restante_mail_wire::header::{Header, as_addresses, as_text};
use restante_records::RecordId;
use restante_search::{Document, HEADER_VALUE_CHARS_MAX};

use crate::{
    message::{HEADER_BYTES_MAX, Structure, search_text},
    row::Row,
};

/// The most bytes of the bodies' text that are searched.
pub const SEARCHED_BODY_BYTES_MAX: usize = 1 << 20;

/// The most bytes that are searched of addresses, of header fields and of attachment names, each.
const SEARCHED_LIST_BYTES_MAX: usize = 512 << 10;

/// The document of an email for a search index and for direct matching: both must be made by this function to agree. The time is
/// linear in the length of the message.
pub fn document(id: RecordId, received: i64, raw: &[u8], structure: &Structure) -> Document {
    let header = Header::parse(raw.get(..HEADER_BYTES_MAX).unwrap_or(raw));
    let text = search_text(raw, structure, SEARCHED_BODY_BYTES_MAX);
    Document {
        id,
        received,
        from: addresses(&header, "From"),
        to: addresses(&header, "To"),
        cc: addresses(&header, "Cc"),
        bcc: addresses(&header, "Bcc"),
        subject: header.last("Subject").map(|field| as_text(field.value)).unwrap_or_default(),
        body: text.bodies,
        attachments: bounded(text.names.into_iter(), String::len),
        headers: headers(&header),
    }
}

/// How much of a message [`document`] needs: up to the end of its last text. Only attachments follow; their names are all that is
/// searched of them, and the names are in the structure.
pub fn searched_end(row: &Row, structure: &Structure) -> u64 {
    let texts = structure.parts.iter().filter(|part| part.media_type.starts_with("text/"));
    texts.map(|part| part.body.end).fold(row.header_bytes(), u32::max).into()
}

/// Each address with its name: a condition on the field searches both.
fn addresses(header: &Header<'_>, name: &str) -> Vec<String> {
    let addresses = header.all(name).flat_map(|field| as_addresses(field.value));
    let texts = addresses.map(|address| match address.name {
        Some(name) => format!("{name} {}", address.email),
        None => address.email,
    });
    bounded(texts, String::len)
}

fn headers(header: &Header<'_>) -> Vec<(String, String)> {
    let fields = header.fields().map(|field| {
        let text = as_text(field.value);
        let searched = text.char_indices().nth(HEADER_VALUE_CHARS_MAX).map_or(text.len(), |(end, _)| end);
        (field.name.to_owned(), text.get(..searched).unwrap_or_default().to_owned())
    });
    bounded(fields, |(name, value)| name.len() + value.len())
}

/// The first values, up to [`SEARCHED_LIST_BYTES_MAX`] bytes in total.
fn bounded<T>(values: impl Iterator<Item = T>, bytes_of: impl Fn(&T) -> usize) -> Vec<T> {
    let mut bytes = 0;
    let mut kept = Vec::new();
    for value in values {
        bytes += bytes_of(&value);
        if bytes > SEARCHED_LIST_BYTES_MAX {
            break;
        }
        kept.push(value);
    }
    kept
}

#[cfg(test)]
mod tests;
