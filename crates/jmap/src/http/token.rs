//! Tokens for URLs: a browser's event stream, WebSocket and link to a download can't send `Authorization`.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, Method, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use restante_http::reply;

use super::{App, EVENTS, HttpRequest, SOCKET, login};
use crate::core::{Members, Object, args::write_utc_date};

/// The parameter that contains the token (RFC 6750 §2.3).
const PARAMETER: &str = "access_token";
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const DOWNLOAD: &str = "/jmap/download/";

/// `POST` that creates a token for the caller.
pub(super) async fn token(State(app): State<Arc<App>>, request: HttpRequest) -> Response {
    let login = match login(request.extensions()) {
        Ok(login) => login,
        Err(refusal) => return refusal.into_response(),
    };
    let seconds = app.config.url_token_seconds.get();
    let (token, expires) = app.parts.directory.make_url_token(&login, seconds);
    let mut json = Vec::new();
    let mut object = Object::open(&mut json);
    object.field("accessToken", &token);
    write_utc_date(expires, object.member("expires"));
    drop(object);
    let mut response = reply::json_with(StatusCode::CREATED, json);
    response.headers_mut().insert(header::CACHE_CONTROL, NO_STORE);
    response
}

/// The token in the URL of a JMAP request that may have one there. The guard of the listener checks it with
/// [`Directory::check_url_token`](restante_directory::Directory::check_url_token) when the request has no `Authorization`.
pub fn url_token(head: &Parts) -> Option<&str> {
    let path = head.uri.path();
    let may_have_token = match head.method {
        Method::GET => path == EVENTS || path == SOCKET || path.starts_with(DOWNLOAD),
        Method::HEAD => path.starts_with(DOWNLOAD),
        _ => false,
    };
    if !may_have_token {
        return None;
    }
    let mut parameters = head.uri.query()?.split('&').filter_map(|parameter| parameter.split_once('='));
    // The characters of tokens are never escaped.
    parameters.find(|(name, _)| *name == PARAMETER).map(|(_, token)| token)
}
