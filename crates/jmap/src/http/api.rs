//! JMAP requests over HTTP.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::State,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use restante_core::Error;
use restante_directory::Login;
use restante_http::{MemoryPermit, Refusal, body, reply};
use tokio::time::Instant;

use super::{App, Failure, HttpRequest, base::base_url, is_json, login, not_json, session};
use crate::{
    core::{
        content::on_a_core,
        dispatch::{self, Exchange},
        errors::RequestError,
        request::Request,
        write_json,
    },
    slots::{Claim, Slot},
};

/// How long a response waits for memory that other responses use.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(20);

/// `POST` of a request.
pub(super) async fn api(State(app): State<Arc<App>>, request: HttpRequest) -> Response {
    let (head, body) = request.into_parts();
    match answer(&app, &head, body).await {
        Ok(bytes) => reply::json(bytes),
        Err(failure) => {
            if let Failure::Request(error) = &failure {
                app.parts.metrics.count_refused(error);
            }
            failure.into_response()
        }
    }
}

async fn answer(app: &App, head: &Parts, body: Body) -> Result<Bytes, Failure> {
    let login = login(&head.extensions)?;
    if !is_json(head) {
        return Err(not_json("Content-Type: expected application/json").into());
    }
    let base = base_url(&app.parts, &head.uri, &head.headers)?;
    let slot = app.request_slot(app.claim_slot(&login)?).await?;
    let (bytes, memory) = read(app, body).await?;
    let request = app.read(bytes).await??;
    drop(memory);
    let answer = app.run(request, login, &base, br#"{"methodResponses":["#.to_vec()).await?;
    // A response that waits for memory still counts as a request. Holders of memory never wait for a slot, so the wait ends.
    let memory = app.memory_of(answer.len()).await?;
    drop(slot);
    Ok(memory.hold(answer))
}

/// Reads a body; its memory is reserved before it arrives.
async fn read(app: &App, body: Body) -> Result<(Bytes, MemoryPermit), Failure> {
    let max = app.config.request_bytes_max.get();
    let announced = if body::is_at_most(&body, max) {
        usize::try_from(axum::body::HttpBody::size_hint(&body).lower()).unwrap_or(max)
    } else {
        max
    };
    let memory = app.memory_of(announced).await?;
    let bytes = body::read(body, max, app.body_deadline()).await.map_err(|refusal| {
        if refusal.status == StatusCode::PAYLOAD_TOO_LARGE {
            too_large(max).into()
        } else {
            Failure::from(refusal)
        }
    })?;
    Ok((bytes, memory))
}

/// RFC 8620 §3.6.1.
fn too_many() -> RequestError {
    let detail = "too many requests of this user are being answered: wait for one";
    RequestError::limit("maxConcurrentRequests", detail)
}

fn too_large(max: usize) -> RequestError {
    RequestError::limit("maxSizeRequest", format!("a request has at most {max} bytes"))
}

impl App {
    /// A claim to a slot for a request of a user, over HTTP or a WebSocket.
    pub(super) fn claim_slot(&self, login: &Login) -> Result<Claim, RequestError> {
        self.requests.claim(login.account).ok_or_else(too_many)
    }

    /// The slot, as soon as it is free.
    pub(super) async fn request_slot(&self, claim: Claim) -> Result<Slot, RequestError> {
        claim.slot(Duration::from_millis(self.config.request_wait_ms)).await.ok_or_else(too_many)
    }

    /// Memory for a response or a request.
    pub(super) async fn memory_of(&self, bytes: usize) -> Result<MemoryPermit, Refusal> {
        self.parts.memory.acquire(bytes, Instant::now() + MEMORY_TIMEOUT).await
    }

    /// Reads the bytes of a request.
    async fn read(&self, bytes: Bytes) -> Result<Result<Request, RequestError>, Error> {
        let config = self.config.clone();
        on_a_core(bytes.len(), move || Request::read(&bytes, &config)).await
    }

    /// Runs a request. `begun` is the beginning of the response, up to the first method response.
    pub(super) async fn run(
        &self,
        request: Request,
        login: Arc<Login>,
        base: &str,
        begun: Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let started = Instant::now();
        let session_state = session::state(self, &login, base).await?;
        let context = self.context(login, request.using);
        let exchange = dispatch::run(&self.methods, &self.parts.metrics, &context, request, begun).await;
        let Exchange { creations, answers, .. } = exchange;
        let mut bytes = answers.into_bytes();
        bytes.push(b']');
        if let Some(ids) = creations.returned() {
            bytes.extend_from_slice(b",\"createdIds\":");
            write_json(ids, &mut bytes);
        }
        bytes.extend_from_slice(b",\"sessionState\":");
        write_json(&session_state, &mut bytes);
        bytes.push(b'}');
        self.parts.metrics.count_request();
        self.parts.metrics.request_seconds.observe(started.elapsed().as_secs_f64());
        Ok(bytes)
    }
}
