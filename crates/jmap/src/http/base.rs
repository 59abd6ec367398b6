//! The URL by which a client reaches the server: clients need absolute URLs.

use axum::http::{HeaderMap, Uri, header, uri::Authority};
use restante_http::Refusal;

use crate::JmapParts;

/// The prefix of all URLs for a client, without a trailing slash: the one of the settings, or the host that the request names.
pub(super) fn base_url(parts: &JmapParts, uri: &Uri, headers: &HeaderMap) -> Result<String, Refusal> {
    if let Some(url) = &parts.public_url {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    // A request over HTTP/2 names the host in its URI.
    let named = match uri.authority() {
        Some(authority) => Some(authority.clone()),
        None => headers.get(header::HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok()),
    };
    let named = named.filter(|authority| !authority.as_str().contains('@'));
    let host = named.ok_or(Refusal::bad_request("Host: expected the name of this server"))?;
    let scheme = if parts.is_tls { "https" } else { "http" };
    Ok(format!("{scheme}://{host}"))
}

/// The same for a WebSocket.
pub(super) fn socket_base_url(base: &str) -> String {
    match base.strip_prefix("http") {
        Some(rest) => format!("ws{rest}"),
        None => base.to_owned(),
    }
}
