//! Uploads (RFC 8620 §6.1).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    body::Body,
    extract::{Path, State},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use restante_blobs::{CHUNK_BYTES_MAX, Source};
use restante_core::{Error, ErrorKind};
use restante_directory::Access;
use restante_http::{Refusal, body, reply};
use tokio::time::{Instant, timeout_at};

use super::{App, Failure, HttpRequest, login};
use crate::core::{
    BlobRef, Context, Id, Members, MethodError, Object, Using, errors::RequestError, ids::account_id, uploads,
};

/// The type of an upload when the client names none.
const OCTETS: &str = "application/octet-stream";
/// A client has the body timeout for each block of this many bytes.
const BYTES_PER_TIMEOUT: usize = 1 << 20;

/// `POST` of a blob.
pub(super) async fn upload(
    State(app): State<Arc<App>>,
    Path(account): Path<String>,
    request: HttpRequest,
) -> Response {
    let (head, body) = request.into_parts();
    match answer(&app, account, &head, body).await {
        Ok(json) => reply::json_with(StatusCode::CREATED, json),
        Err(failure) => {
            if let Failure::Request(error) = &failure {
                app.parts.metrics.count_limit(error);
            }
            failure.into_response()
        }
    }
}

async fn answer(app: &App, account: String, head: &Parts, body: Body) -> Result<Vec<u8>, Failure> {
    let login = login(&head.extensions)?;
    let detail = "too many uploads of this user are under way: wait for one";
    let slot = app.uploads.take(login.account);
    let _slot = slot.ok_or_else(|| RequestError::limit("maxConcurrentUpload", detail))?;
    let context = app.context(login, Using::default());
    let account = account_of(&context, account, Access::Write).await?;
    let max = app.config.upload_bytes_max.get();
    if body::is_longer(&body, usize::try_from(max).unwrap_or(usize::MAX)) {
        return Err(too_long(max).into());
    }
    let timeout = Duration::from_millis(app.config.body_timeout_ms.get());
    let mut source = BodySource::new(body, max, timeout);
    let put = context.blobs().put(&mut source).await;
    let put = match (put, source.end) {
        (Ok(put), _) => put,
        (Err(_), Some(End::TooLong)) => return Err(too_long(max).into()),
        (Err(_), Some(End::Late)) => {
            return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "the upload did not arrive in time").into());
        }
        (Err(_), Some(End::Broken)) => return Err(Refusal::bad_request("the upload broke off").into()),
        (Err(error), None) if error.kind() == ErrorKind::Invalid => return Err(too_long(max).into()),
        (Err(error), None) => return Err(error.into()),
    };
    let id = uploads::note(&context, account, put.id, put.bytes).await?;
    let mut json = Vec::new();
    let mut answer = Object::open(&mut json);
    answer.field("accountId", &account_id(account));
    answer.field("blobId", &BlobRef::upload(id).to_string());
    // The type is the one that the client sent: it is not guessed from the bytes.
    let media_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    answer.field("type", media_type.unwrap_or(OCTETS));
    answer.field("size", &put.bytes);
    drop(answer);
    Ok(json)
}

/// The account of a URL.
pub(super) async fn account_of(
    context: &Context,
    account: String,
    needed: Access,
) -> Result<restante_records::AccountId, Failure> {
    let not_found = Refusal::not_found("there is no such account, or you may not use it");
    let Some(id) = Id::read(account) else { return Err(not_found.into()) };
    context.account(&id, needed).await.map_err(|error| match error {
        MethodError::AccountReadOnly => Refusal::forbidden("you may only read this account").into(),
        MethodError::ServerUnavailable => super::UNAVAILABLE.into(),
        MethodError::AccountNotFound => not_found.into(),
        _ => Refusal::internal().into(),
    })
}

fn too_long(max: u64) -> RequestError {
    RequestError::limit("maxSizeUpload", format!("an upload has at most {max} bytes"))
}

/// Why a body ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    TooLong,
    Late,
    Broken,
}

/// The bytes of a body, up to a limit; each MiB must arrive within the timeout.
struct BodySource {
    body: Body,
    /// Bytes that were received but not yet returned.
    waiting: Bytes,
    left: u64,
    timeout: Duration,
    deadline: Instant,
    bytes_since: usize,
    end: Option<End>,
}

impl BodySource {
    fn new(body: Body, bytes_max: u64, timeout: Duration) -> Self {
        let deadline = Instant::now() + timeout;
        Self { body, waiting: Bytes::new(), left: bytes_max, timeout, deadline, bytes_since: 0, end: None }
    }

    fn fail(&mut self, end: End) -> Error {
        self.end = Some(end);
        Error::invalid("the body of an upload ended early")
    }

    /// Receives the next bytes; `None` at the end.
    async fn receive(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = match timeout_at(self.deadline, self.body.frame()).await {
                Err(_) => return Err(self.fail(End::Late)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => return Err(self.fail(End::Broken)),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(bytes) = frame.into_data() else { continue }; // trailers
            if bytes.is_empty() {
                continue;
            }
            let Some(left) = self.left.checked_sub(bytes.len() as u64) else {
                return Err(self.fail(End::TooLong));
            };
            self.left = left;
            self.bytes_since += bytes.len();
            if self.bytes_since >= BYTES_PER_TIMEOUT {
                (self.bytes_since, self.deadline) = (0, Instant::now() + self.timeout);
            }
            return Ok(Some(bytes));
        }
    }
}

#[async_trait]
impl Source for BodySource {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.waiting.is_empty() {
            let Some(bytes) = self.receive().await? else { return Ok(None) };
            self.waiting = bytes;
        }
        Ok(Some(self.waiting.split_to(self.waiting.len().min(CHUNK_BYTES_MAX))))
    }
}
