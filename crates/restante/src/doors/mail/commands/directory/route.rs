//! `POST /admin/v1/directory`: one operation of a running server's directory.

use std::path::PathBuf;

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use restante_core::ErrorKind;
use restante_directory::{Actor, Directory, Error};
use restante_http::{Audience, Route};
use tracing::warn;

use super::reach::{PATH, Request};

/// The longest name of who asks.
const BY_BYTES_MAX: usize = 64;

/// The route of a server that keeps its directory below a data folder.
pub(crate) fn route(directory: Directory, data: PathBuf) -> Route {
    let answer = move |body: Bytes| answer(directory.clone(), data.clone(), body);
    Route::post(PATH, "domains, accounts, aliases, tokens", answer).with_audience(Audience::Operators)
}

async fn answer(directory: Directory, data: PathBuf, body: Bytes) -> Response {
    let Request { by, data: meant, operation } = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => {
            let text = format!("expected {{\"by\": \"a name\", \"operation\": {{\"do\": ...}}}}: {error}");
            return (StatusCode::BAD_REQUEST, text).into_response();
        }
    };
    if by.is_empty() || by.len() > BY_BYTES_MAX || by.chars().any(char::is_control) {
        let text = format!("'by' names who asks in 1 to {BY_BYTES_MAX} bytes");
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    if let Some(meant) = meant.filter(|meant| *meant != data) {
        let text = format!("this server keeps what is in {}, and not {}", data.display(), meant.display());
        return (StatusCode::CONFLICT, text).into_response();
    }
    // A task of its own: a change of several commits is not left halfway when the client goes away.
    let actor = Actor(format!("{by} over HTTP"));
    let done = tokio::spawn(async move { directory.operate(&actor, operation).await });
    match done.await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(error)) => refusal(&error),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "a task of the directory ended early").into_response(),
    }
}

fn refusal(error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Full => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Corrupt | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    };
    if status.is_server_error() {
        warn!(%error, "an operation of the directory failed");
    }
    (status, error.to_string()).into_response()
}
