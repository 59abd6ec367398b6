//! `POST /admin/v1/directory` and `/admin/v1/dkim`: one operation of a running server's directory, or on DKIM keys. `GET /admin/v1/operations`: what operators did last.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Extension, Json,
    extract::RawQuery,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use restante_core::ErrorKind;
use restante_delivery::dkim::DkimKeys;
use restante_directory::{Actor, Answer, Directory, Error, Login, Operation, OperationEntry};
use restante_http::{Audience, Refusal, Route};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tracing::warn;

use super::{
    dkim,
    reach::{PATH, Request},
};

/// The longest name of a user who runs commands.
const BY_BYTES_MAX: usize = 64;
/// The default and the maximum of shown operations.
const OPERATIONS: usize = 50;
const OPERATIONS_MAX: usize = 1_000;

/// The routes of a server that keeps its directory below a data folder. `removed` is notified when an account was removed.
pub(crate) fn routes(directory: &Directory, data: PathBuf, removed: Arc<Notify>) -> [Route; 2] {
    let (changed, shown) = (directory.clone(), directory.clone());
    let change = move |login: Option<Extension<Arc<Login>>>, body: Bytes| {
        let login = login.map(|Extension(login)| login);
        let request = parse_request(&body, &data, login.as_deref());
        answer(changed.clone(), removed.clone(), request)
    };
    let show = move |query| operations(shown.clone(), query);
    let routes = [
        Route::post(PATH, "domains, accounts, aliases, tokens", change),
        Route::get("/admin/v1/operations", "what operators did in the directory, the newest first", show),
    ];
    routes.map(|route| route.with_audience(Audience::Operators))
}

/// The route for DKIM keys of a server with this data folder.
pub(crate) fn dkim_route(keys: DkimKeys, data: PathBuf) -> Route {
    let answer = move |login: Option<Extension<Arc<Login>>>, body: Bytes| {
        let login = login.map(|Extension(login)| login);
        answer_dkim(keys.clone(), parse_request(&body, &data, login.as_deref()))
    };
    Route::post(dkim::PATH, "DKIM keys of domains", answer).with_audience(Audience::Operators)
}

async fn answer_dkim(
    keys: DkimKeys,
    request: Result<(String, restante_delivery::dkim::Operation), (StatusCode, String)>,
) -> Response {
    let (who, operation) = match request {
        Ok(request) => request,
        Err(refused) => return refused.into_response(),
    };
    let actor = Actor(format!("{who} over HTTP"));
    // In a separate task: two keys are two commits, with their lines in the log, and must not be interrupted between them.
    match tokio::spawn(async move { keys.operate(&actor, operation).await }).await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(error)) => refusal(&error),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "a task of DKIM ended early").into_response(),
    }
}

/// `GET /admin/v1/operations?limit=50`
async fn operations(directory: Directory, RawQuery(query): RawQuery) -> Result<Json<Value>, Response> {
    let limit = limit_in(query.as_deref().unwrap_or_default()).map_err(IntoResponse::into_response)?;
    let actor = Actor(String::new()); // reads are not logged
    match directory.operate(&actor, Operation::Log { limit }).await {
        Ok(Answer::Log(entries)) => {
            let show =
                |OperationEntry { at, who, what }| json!({"at": at / 1_000_000, "who": who, "what": what});
            Ok(Json(json!({"operations": entries.into_iter().map(show).collect::<Vec<Value>>()})))
        }
        Ok(_) => Err(Refusal::internal().into_response()),
        Err(error) => Err(refusal(&error)),
    }
}

fn limit_in(query: &str) -> Result<usize, Refusal> {
    let mut limit = OPERATIONS;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name != "limit" {
            return Err(Refusal::unknown(name, &["limit"]));
        }
        let value = value.parse().ok().filter(|limit| (1..=OPERATIONS_MAX).contains(limit));
        limit = value.ok_or_else(|| Refusal::field("limit", "expected a whole number from 1 to 1000"))?;
    }
    Ok(limit)
}

async fn answer(
    directory: Directory,
    removed: Arc<Notify>,
    request: Result<(String, Operation), (StatusCode, String)>,
) -> Response {
    let (who, operation) = match request {
        Ok(request) => request,
        Err(refused) => return refused.into_response(),
    };
    let is_removal = matches!(operation, Operation::RemoveAccount { .. });
    // In a separate task: a change of several commits must not stop halfway when the client disconnects.
    let actor = Actor(format!("{who} over HTTP"));
    let done = tokio::spawn(async move {
        let done = directory.operate(&actor, operation).await;
        if is_removal {
            removed.notify_one(); // also after an error: the first of its commits may have been made
        }
        done
    });
    match done.await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(error)) => refusal(&error),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "a task of the directory ended early").into_response(),
    }
}

/// The user who runs the command, and the operation; refuses a request that is meant for another server.
pub(crate) fn parse_request<O: DeserializeOwned>(
    body: &[u8],
    data: &Path,
    login: Option<&Login>,
) -> Result<(String, O), (StatusCode, String)> {
    let request = serde_json::from_slice(body).map_err(|error| {
        let text = format!("expected {{\"by\": \"a name\", \"operation\": {{\"do\": ...}}}}: {error}");
        (StatusCode::BAD_REQUEST, text)
    })?;
    check_request(request, data, login)
}

/// The same for a request that was parsed already.
pub(crate) fn check_request<O>(
    request: Request<O>,
    data: &Path,
    login: Option<&Login>,
) -> Result<(String, O), (StatusCode, String)> {
    let Request { by, data: meant, operation } = request;
    if by.is_empty() || by.len() > BY_BYTES_MAX || by.chars().any(char::is_control) {
        let text = format!("'by' names who asks in 1 to {BY_BYTES_MAX} bytes");
        return Err((StatusCode::BAD_REQUEST, text));
    }
    if let Some(meant) = meant.filter(|meant| meant != data) {
        let text = format!("this server keeps what is in {}, and not {}", data.display(), meant.display());
        return Err((StatusCode::CONFLICT, text));
    }
    // A log-in authenticates the user; without one the name in the request counts.
    Ok((login.map_or(by, |login| login.address.to_string()), operation))
}

/// The response for an error of an operation.
pub(crate) fn refusal(error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Full => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Corrupt | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    };
    if status.is_server_error() {
        warn!(%error, "an operation of an operator failed");
    }
    (status, error.to_string()).into_response()
}
