//! Reads what is requested of a message and is not in its row, with one read of its blob.

use bytes::Bytes;
use restante_core::Error;
use restante_mail::{
    message::{self, BodyValue, Message, Part, Structure},
    row::Row,
};

use crate::core::{
    Context,
    content::{Content, on_a_core},
};

use super::properties::{EmailProperty, ValuesWanted, Wanted};

/// What was read of a message.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// The whole message, if the row does not have everything that is requested.
    pub(crate) message: Option<Message>,
    pub(crate) structure: Structure,
    pub(crate) raw: Bytes,
    pub(crate) values: Vec<(u16, BodyValue)>,
}

/// Reads what a row does not have. For a typical listing everything is in the row, and nothing is read.
pub(crate) async fn beside_row(
    context: &Context,
    content: &Content,
    row: &Row,
    wanted: &Wanted,
) -> Result<Loaded, Error> {
    let needs_structure = wanted.has_parts() || wanted.has_values();
    let structure = if needs_structure { row.structure()? } else { Some(Structure::default()) };
    let is_missing = |property: &EmailProperty| matches!(property, EmailProperty::Ready(ready) if row.json(*ready).is_none());
    let Some(structure) = structure.filter(|_| !wanted.properties.iter().any(is_missing)) else {
        return whole(context, content, wanted).await;
    };
    let mut end = if wanted.has_header() { row.header_bytes() } else { 0 };
    if wanted.has_part_headers() {
        end = structure.parts.iter().map(|part| part.header.end).fold(end, u32::max);
    }
    let parts = value_parts(&structure, wanted);
    end = parts.iter().map(|part| part.body.end).fold(end, u32::max);
    let raw = if end > 0 { context.bytes(content, 0..end.into()).await? } else { Bytes::new() };
    let values = values(raw.clone(), parts, wanted.values).await?;
    Ok(Loaded { message: None, structure, raw, values })
}

/// The properties of a message that can't be read, if everything but its texts is in the row: the texts are empty, and marked with an
/// encoding problem (RFC 8621 §4.1.4: the server could not decode them).
pub(crate) fn without_message(row: &Row, wanted: &Wanted) -> Result<Option<Loaded>, Error> {
    if wanted.has_header() || wanted.has_part_headers() {
        return Ok(None);
    }
    let is_missing = |property: &EmailProperty| matches!(property, EmailProperty::Ready(ready) if row.json(*ready).is_none());
    let Some(structure) = row.structure()?.filter(|_| !wanted.properties.iter().any(is_missing)) else {
        return Ok(None);
    };
    let lost = || BodyValue { value: String::new(), is_encoding_problem: true, is_truncated: false };
    let values = value_parts(&structure, wanted).iter().map(|part| (part.number, lost())).collect();
    Ok(Some(Loaded { message: None, structure, raw: Bytes::new(), values }))
}

/// Reads a whole message.
pub(crate) async fn whole(context: &Context, content: &Content, wanted: &Wanted) -> Result<Loaded, Error> {
    let raw = context.bytes(content, 0..content.size()).await?;
    let bytes = raw.clone();
    let mut message = on_a_core(raw.len(), move || message::read(&bytes)).await?;
    let structure = std::mem::take(&mut message.structure);
    let values = values(raw.clone(), value_parts(&structure, wanted), wanted.values).await?;
    Ok(Loaded { message: Some(message), structure, raw, values })
}

/// The parts whose text is requested, each once (E8).
fn value_parts(structure: &Structure, wanted: &Wanted) -> Vec<Part> {
    if !wanted.has_values() {
        return Vec::new();
    }
    let ValuesWanted { is_text, is_html, is_all, .. } = wanted.values;
    let is_asked = |number: &u16| {
        is_all
            || is_text && structure.text_body.contains(number)
            || is_html && structure.html_body.contains(number)
    };
    let is_text = |part: &&Part| part.media_type.starts_with("text/");
    structure.parts.iter().filter(is_text).filter(|part| is_asked(&part.number)).cloned().collect()
}

async fn values(raw: Bytes, parts: Vec<Part>, wanted: ValuesWanted) -> Result<Vec<(u16, BodyValue)>, Error> {
    let encoded: usize = parts.iter().map(|part| (part.body.end - part.body.start) as usize).sum();
    let read = move || {
        let value = |part: &Part| (part.number, message::body_value(&raw, part, wanted.bytes_max));
        parts.iter().map(value).collect()
    };
    on_a_core(encoded, read).await
}
