//! Reads request bodies up to a limit and a deadline.

use axum::{
    body::{Body, HttpBody},
    http::StatusCode,
};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::{Instant, timeout_at};

use crate::Refusal;

/// Reads a whole body of at most `bytes_max` before the deadline. A longer `Content-Length` is refused before any byte is read.
///
/// # Errors
/// 413 for a longer body, 408 for a late one, and 400 for one that ends early.
pub async fn read(body: Body, bytes_max: usize, deadline: Instant) -> Result<Bytes, Refusal> {
    if is_longer(&body, bytes_max) {
        return Err(too_long(bytes_max));
    }
    let collected = timeout_at(deadline, Limited::new(body, bytes_max).collect()).await;
    let late = || Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time");
    match collected.map_err(|_| late())? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_long(bytes_max)),
        Err(_) => Err(Refusal::invalid("the body broke off".to_owned())),
    }
}

/// Whether the body announces more than `bytes`.
pub fn is_longer(body: &Body, bytes: usize) -> bool {
    body.size_hint().lower() > bytes as u64
}

/// Whether the body announces at most `bytes`.
pub fn is_at_most(body: &Body, bytes: usize) -> bool {
    body.size_hint().upper().is_some_and(|upper| upper <= bytes as u64)
}

fn too_long(bytes_max: usize) -> Refusal {
    Refusal::too_large(format!("the body is too long: the limit is {bytes_max} bytes"))
}
