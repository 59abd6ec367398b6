//! What a part's own header says about it (RFC 2045, RFC 8621 §4.1.4).

use restante_mail_wire::header::{self, Header, Parameters};

use super::Encoding;

/// The fields of a part that describe its body.
pub(super) struct Mime {
    pub(super) media_type: String,
    /// The boundary of a multipart. A multipart without one has no parts.
    pub(super) boundary: Option<Vec<u8>>,
    pub(super) encoding: Encoding,
    pub(super) charset: Option<String>,
    pub(super) name: Option<String>,
    pub(super) disposition: Option<String>,
    pub(super) cid: Option<String>,
    pub(super) language: Option<Vec<String>>,
    pub(super) location: Option<String>,
}

impl Mime {
    /// Reads a header. `default_type` is the type of a part without Content-Type; of repeated fields, the last one counts.
    pub(super) fn read(header: &[u8], default_type: &str) -> Self {
        let mut content_type = None;
        let mut content_disposition = None;
        let mut encoding = Encoding::Identity;
        let (mut cid, mut language, mut location) = (None, None, None);
        for field in Header::parse(header).fields() {
            let Some(name) = field.name.get(..8).filter(|name| name.eq_ignore_ascii_case("content-")) else {
                continue;
            };
            match field.name.get(name.len()..).unwrap_or_default().to_ascii_lowercase().as_str() {
                "type" => content_type = Some(media_type_with_parameters(field.value)),
                "disposition" => content_disposition = Some(header::as_parameters(field.value)),
                "transfer-encoding" => encoding = encoding_of(field.value),
                "id" => cid = content_id(field.value),
                "language" => language = languages(field.value),
                "location" => location = uri(field.value),
                _ => {}
            }
        }
        let media_type = match &content_type {
            None => default_type.to_owned(),
            Some(content_type) if is_media_type(&content_type.value) => content_type.value.clone(),
            // RFC 2045 §5.2: an invalid Content-Type means the default.
            Some(_) => "text/plain".to_owned(),
        };
        let parameter = |name| content_type.as_ref().and_then(|parameters| parameter(parameters, name));
        let charset = match parameter("charset") {
            None if media_type.starts_with("text/") => Some("us-ascii".to_owned()),
            charset => charset,
        };
        let boundary = parameter("boundary").map(String::into_bytes);
        let file_name =
            content_disposition.as_ref().and_then(|parameters| self::parameter(parameters, "filename"));
        let name = file_name.or_else(|| parameter("name"));
        let disposition = content_disposition.map(|it| it.value).filter(|value| !value.is_empty());
        Self { media_type, boundary, encoding, charset, name, disposition, cid, language, location }
    }
}

/// A parameter that is not empty. White space at its end does not belong to it (RFC 2046 §5.1.1 for boundaries).
fn parameter(parameters: &Parameters, name: &str) -> Option<String> {
    let value = parameters.get(name)?.trim_ascii_end();
    (!value.trim_ascii_start().is_empty()).then(|| value.to_owned())
}

/// The value of Content-Type. Some senders forget the semicolon after the type.
fn media_type_with_parameters(field: &[u8]) -> Parameters {
    let parameters = header::as_parameters(field);
    let field = field.trim_ascii_start();
    let end = field.iter().position(u8::is_ascii_whitespace);
    match end.and_then(|end| field.split_at_checked(end)) {
        Some((media_type, rest)) if !is_media_type(&parameters.value) => {
            header::as_parameters(&[media_type, b";", rest].concat())
        }
        _ => parameters,
    }
}

/// Two tokens with a slash between them.
fn is_media_type(text: &str) -> bool {
    let is_token = |token: &str| {
        !token.is_empty()
            && token.bytes().all(|byte| byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(&byte))
    };
    text.split_once('/').is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype))
}

fn encoding_of(value: &[u8]) -> Encoding {
    match header::as_parameters(value).value.as_str() {
        "" | "7bit" | "8bit" | "binary" => Encoding::Identity,
        "base64" => Encoding::Base64,
        "quoted-printable" => Encoding::QuotedPrintable,
        _ => Encoding::Unknown,
    }
}

fn content_id(value: &[u8]) -> Option<String> {
    let value = String::from_utf8_lossy(value);
    let inside = value.split_once('<').map(|(_, after)| after.split_once('>').map_or(after, |(id, _)| id));
    let id = inside.unwrap_or(&value).trim();
    (!id.is_empty()).then(|| id.to_owned())
}

/// RFC 3282: tags separated by commas.
fn languages(value: &[u8]) -> Option<Vec<String>> {
    let tags: Vec<String> = header::as_text(value)
        .split(',')
        .map(|tag| tag.trim().to_owned())
        .filter(|tag| !tag.is_empty())
        .collect();
    (!tags.is_empty()).then_some(tags)
}

/// RFC 2557 §4.4: a URI may be folded anywhere, and white space is no part of it.
fn uri(value: &[u8]) -> Option<String> {
    let uri: String = header::as_text(value).split_whitespace().collect();
    (!uri.is_empty()).then_some(uri)
}
