//! `POST /admin/v1/queue`: one operation on the queue of outgoing mail of a running server.

use std::{path::PathBuf, sync::Arc};

use axum::{
    Extension, Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use restante_directory::{Actor, Login};
use restante_http::{Audience, Route};

use super::operate::{Operator, PATH, QueueOperation};
use crate::doors::mail::commands::directory::{parse_request, refusal};

/// The route of a server that keeps its mail below a data folder.
pub(crate) fn route(operator: Operator, data: PathBuf) -> Route {
    let answer = move |login: Option<Extension<Arc<Login>>>, body: Bytes| {
        let operator = operator.clone();
        let login = login.map(|Extension(login)| login);
        let request = parse_request(&body, &data, login.as_deref());
        answer(operator, request)
    };
    Route::post(PATH, "list, hold, release, retry and drop outgoing mail", answer)
        .with_audience(Audience::Operators)
}

async fn answer(
    operator: Operator,
    request: Result<(String, QueueOperation), (StatusCode, String)>,
) -> Response {
    let (who, operation) = match request {
        Ok(request) => request,
        Err(refused) => return refused.into_response(),
    };
    let actor = Actor(format!("{who} over HTTP"));
    // In a separate task: an operation that has begun completes even if the client disconnects.
    match tokio::spawn(async move { operator.operate(&actor, operation).await }).await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(error)) => refusal(&error),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "a task of the queue ended early").into_response(),
    }
}
