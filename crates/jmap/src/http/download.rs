//! Downloads (RFC 8620 §6.2).

use std::{fmt::Write, sync::Arc};

use axum::{
    body::Body,
    extract::{Path, State},
    http::{Extensions, HeaderName, HeaderValue, Uri, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use restante_core::ErrorKind;
use restante_directory::Access;
use restante_http::{Refusal, reply};

use super::{App, Failure, HttpRequest, login, upload::account_of};
use crate::core::{BlobRef, Using};

/// A blob id always names the same bytes.
const CACHE: HeaderValue = HeaderValue::from_static("private, immutable, max-age=31536000");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
/// A page that came by mail must not run scripts on the server's origin.
const SANDBOX: HeaderValue =
    HeaderValue::from_static("sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'");
const CONTENT_SECURITY_POLICY: HeaderName = header::CONTENT_SECURITY_POLICY;
/// The characters that RFC 8187 §3.2.1 leaves unescaped.
const ATTR_CHARS: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');
/// The longest name of a download.
const NAME_BYTES_MAX: usize = 1_024;
const NOT_FOUND: Refusal = Refusal::not_found("there is no such blob");

/// `GET` of a blob.
pub(super) async fn download(
    State(app): State<Arc<App>>,
    Path((account, blob, name)): Path<(String, String, String)>,
    request: HttpRequest,
) -> Response {
    let answered = answer(&app, account, &blob, &name, request.uri(), request.extensions()).await;
    answered.unwrap_or_else(IntoResponse::into_response)
}

/// `GET` of a blob when the client had no name for the URL template.
pub(super) async fn download_unnamed(
    State(app): State<Arc<App>>,
    Path((account, blob)): Path<(String, String)>,
    request: HttpRequest,
) -> Response {
    let answered = answer(&app, account, &blob, "", request.uri(), request.extensions()).await;
    answered.unwrap_or_else(IntoResponse::into_response)
}

async fn answer(
    app: &App,
    account: String,
    blob: &str,
    name: &str,
    uri: &Uri,
    extensions: &Extensions,
) -> Result<Response, Failure> {
    let context = app.context(login(extensions)?, Using::default());
    let content_type = content_type(uri)?;
    let disposition = disposition(name)?;
    let account = account_of(&context, account, Access::Read).await?;
    let blob: BlobRef = blob.parse().map_err(|()| NOT_FOUND)?;
    let content = context.content(account, &blob).await?.ok_or(NOT_FOUND)?;
    let size = content.size();
    let source = context.stream(content, 0..size).await.map_err(|error| match error.kind() {
        ErrorKind::NotFound => NOT_FOUND.into(), // it was removed meanwhile
        _ => Failure::from(error),
    })?;
    let chunks = stream::try_unfold(source, async |mut source| {
        Ok::<_, restante_core::Error>(source.next().await?.map(|chunk| (chunk, source)))
    });
    let mut response = reply::with_type(content_type, Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, size.into());
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    headers.insert(header::CACHE_CONTROL, CACHE);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    headers.insert(CONTENT_SECURITY_POLICY, SANDBOX);
    Ok(response)
}

/// The type that the URL requests: the server does not know one.
fn content_type(uri: &Uri) -> Result<HeaderValue, Refusal> {
    let parameters = uri.query().unwrap_or_default().split('&');
    let asked =
        parameters.filter_map(|parameter| parameter.split_once('=')).find(|(name, _)| *name == "type");
    let Some((_, escaped)) = asked.filter(|(_, value)| !value.is_empty()) else {
        return Ok(HeaderValue::from_static("application/octet-stream"));
    };
    // The URL is expanded from a template (RFC 6570), which writes a space as %20 and may leave the `+` of image/svg+xml unescaped.
    let text = percent_decode_str(escaped).decode_utf8_lossy();
    let is_type = text.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
    let value = HeaderValue::from_str(&text).ok().filter(|_| is_type && text.is_ascii());
    value.ok_or_else(|| Refusal::field("type", "expected a media type"))
}

/// Tells browsers to save the blob by a name (RFC 6266). Without a name they choose one.
fn disposition(name: &str) -> Result<HeaderValue, Refusal> {
    if name.is_empty() {
        return Ok(HeaderValue::from_static("attachment"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Refusal::field("name", "is too long"));
    }
    let mut value = "attachment; filename=\"".to_owned();
    for character in name.chars() {
        match character {
            '"' | '\\' | '%' | '\0'..='\x1f' | '\x7f'.. => value.push('_'),
            plain => value.push(plain),
        }
    }
    value.push('"');
    if !name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') || name.contains(['"', '\\', '%']) {
        // Writing to a string can't fail.
        let _ = write!(value, "; filename*=UTF-8''{}", utf8_percent_encode(name, ATTR_CHARS));
    }
    HeaderValue::from_str(&value).map_err(|_| Refusal::field("name", "can't be the name of a file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_names_are_quoted_and_encoded() {
        let text = |name: &str| disposition(name).unwrap().to_str().unwrap().to_owned();
        assert_eq!(text("a b.txt"), r#"attachment; filename="a b.txt""#);
        assert_eq!(text("grün.txt"), r#"attachment; filename="gr_n.txt"; filename*=UTF-8''gr%C3%BCn.txt"#);
        assert_eq!(text("a\"\r\n%"), r#"attachment; filename="a____"; filename*=UTF-8''a%22%0D%0A%25"#);
        assert_eq!(text(""), "attachment");
        assert!(disposition(&"x".repeat(1_025)).is_err());
    }

    #[test]
    fn b3_the_type_is_that_of_the_url() {
        let of = |query: &str| {
            let uri: Uri = format!("/jmap/download/a1/be1/x?{query}").parse().unwrap();
            content_type(&uri).map(|value| value.to_str().unwrap().to_owned()).ok()
        };
        let octets = || Some("application/octet-stream".to_owned());
        assert_eq!(of("type=text%2Fplain"), Some("text/plain".to_owned()));
        assert_eq!(of("type=image/svg+xml"), Some("image/svg+xml".to_owned()));
        assert_eq!(
            of("accept=x&type=text/html;%20charset=utf-8").as_deref(),
            Some("text/html; charset=utf-8")
        );
        assert_eq!((of("type="), of("")), (octets(), octets()));
        for wrong in ["type=text", "type=/x", "type=a%0Ab/c", "type=%ff/a", "type=%C3%A4/b"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
