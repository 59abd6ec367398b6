//! `POST /admin/v1/mail/moving`: one operation of an import or an export on the mail of a running server.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Body,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use restante_core::Error;
use restante_directory::Login;
use restante_http::{Audience, Route, body};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    frame,
    mover::{BATCH_BYTES, Mover, Moving, MovingOperation},
};
use crate::doors::mail::commands::directory::{check_request, reach::Request, refusal};

/// The path on a running server.
pub(super) const PATH: &str = "/admin/v1/mail/moving";
/// Concurrent operations: each has a batch in memory.
const AT_ONCE: usize = 2;
/// How long a batch may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// The route of a server that keeps its mail below a data folder.
pub(crate) fn route(mover: Mover, data: PathBuf) -> Route {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let answer = move |login: Option<Extension<Arc<Login>>>, body: Body| {
        let (mover, data, permits) = (mover.clone(), data.clone(), permits.clone());
        let login = login.map(|Extension(login)| login);
        async move {
            let Ok(_permit) = permits.acquire().await else {
                return StatusCode::SERVICE_UNAVAILABLE.into_response();
            };
            answer(mover, data, login, body).await
        }
    };
    Route::post(PATH, "import and export mail", answer).with_audience(Audience::Operators)
}

async fn answer(mover: Mover, data: PathBuf, login: Option<Arc<Login>>, body: Body) -> Response {
    let longest = mover.message_bytes_max.saturating_add(BATCH_BYTES);
    let bytes_max = usize::try_from(longest).unwrap_or(usize::MAX).saturating_add(frame::JSON_BYTES_MAX);
    let body = match body::read(body, bytes_max, Instant::now() + BODY_TIMEOUT).await {
        Ok(body) => body,
        Err(refused) => return refused.into_response(),
    };
    let (request, messages) = match frame::read::<Request<Moving>>(body) {
        Ok(read) => read,
        Err(error) => return refusal(&error),
    };
    let moving = match check_request(request, &data, login.as_deref()) {
        Ok((_, moving)) => moving,
        Err(refused) => return refused.into_response(),
    };
    // In a separate task: an operation that has begun completes even if the client disconnects.
    match tokio::spawn(operate(mover, moving, messages)).await {
        Ok(Ok(answer)) => ([(header::CONTENT_TYPE, "application/octet-stream")], answer).into_response(),
        Ok(Err(error)) => refusal(&error),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "a task of mail ended early").into_response(),
    }
}

async fn operate(mover: Mover, moving: Moving, bytes: Bytes) -> Result<Vec<u8>, Error> {
    let lengths: Vec<u64> = match &moving.moving {
        MovingOperation::Add { messages } => messages.iter().map(|item| item.bytes).collect(),
        _ => Vec::new(),
    };
    let messages = frame::messages(bytes, lengths.into_iter())?;
    let (answer, messages) = mover.operate(moving, messages).await?;
    frame::write(&answer, &messages)
}
