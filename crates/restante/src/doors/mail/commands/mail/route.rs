//! `POST /admin/v1/mail`: one operation on the mail of accounts of a running server.

use std::{path::PathBuf, sync::Arc};

use axum::{
    Extension, Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use restante_directory::{Actor, Login};
use restante_http::{Audience, Route};
use tokio::sync::Semaphore;

use super::{
    deliveries,
    operate::{MailOperation, Operator, PATH},
};
use crate::doors::mail::commands::directory::{parse_request, refusal};

/// The routes of a server that keeps its mail below a data folder. Operations that read a whole account run one at a time.
pub(crate) fn routes(operator: Operator, data: PathBuf) -> [Route; 2] {
    let shown = deliveries::route(operator.journal.clone());
    let permits = Arc::new(Semaphore::new(1));
    let answer = move |login: Option<Extension<Arc<Login>>>, body: Bytes| {
        let (operator, permits) = (operator.clone(), permits.clone());
        let login = login.map(|Extension(login)| login);
        let request = parse_request(&body, &data, login.as_deref());
        answer(operator, permits, request)
    };
    let operate = Route::post(PATH, "check mail, find deliveries, list and restore destroyed emails", answer);
    [operate.with_audience(Audience::Operators), shown]
}

async fn answer(
    operator: Operator,
    permits: Arc<Semaphore>,
    request: Result<(String, MailOperation), (StatusCode, String)>,
) -> Response {
    let (who, operation) = match request {
        Ok(request) => request,
        Err(refused) => return refused.into_response(),
    };
    let actor = Actor(format!("{who} over HTTP"));
    // In a separate task: an operation that has begun completes even if the client disconnects.
    let done = tokio::spawn(async move {
        let _permit = match operation {
            MailOperation::Check { .. } => permits.acquire().await.ok(),
            MailOperation::Trace { .. } | MailOperation::Vault { .. } | MailOperation::Restore { .. } => None,
        };
        operator.operate(&actor, operation).await
    });
    match done.await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(error)) => refusal(&error),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "a task of mail ended early").into_response(),
    }
}
