//! Answers, and refusals: as plain text, or as problem details (RFC 9457).

use std::borrow::Cow;

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use strsim::normalized_damerau_levenshtein;

use crate::plain::describe_json_error;

/// A refusal's text is truncated to this, because it may repeat a part of the request.
const TEXT_CHARS_MAX: usize = 300;
/// A name that a client has sent is truncated to this.
const NAME_CHARS_MAX: usize = 60;
/// Names that are less similar than this (0 to 1) are not suggested.
const SIMILARITY_MIN: f64 = 0.7;
/// Seconds after which a refused client may try again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// In the extensions of a response: why it is logged. A limit was reached, or a client was kept out.
#[derive(Clone, Debug)]
pub struct LogReason(pub Cow<'static, str>);

impl LogReason {
    /// The reason to log a response, if there is one.
    pub(crate) fn of(response: &Response) -> Option<&str> {
        let reason = response.extensions().get::<Self>().map(|reason| &*reason.0);
        let is_unavailable = response.status() == StatusCode::SERVICE_UNAVAILABLE;
        reason.or(is_unavailable.then_some("the answer says why"))
    }
}

/// How a listener writes refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusalFormat {
    /// Plain text, as in nwaku's REST interface.
    #[default]
    Text,
    /// `application/problem+json`, RFC 9457.
    Problem,
}

/// Why a request is refused: a status, and a text without internals for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the answer.
    pub status: StatusCode,
    /// What is wrong, and how to fix it.
    pub text: Cow<'static, str>,
}

impl Refusal {
    /// A refusal with any status.
    pub fn new(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into() }
    }

    /// 400: a field is wrong.
    pub fn field(field: &str, problem: &str) -> Self {
        Self::invalid(format!("{field}: {problem}"))
    }

    /// 400.
    pub fn invalid(text: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, cut(&text, TEXT_CHARS_MAX))
    }

    /// 400: the JSON can't be read.
    pub fn json(error: &serde_json::Error) -> Self {
        Self::invalid(describe_json_error(&error.to_string()))
    }

    /// 400: an unknown parameter. The text names the most similar known one, or all.
    pub fn unknown(name: &str, known: &[&str]) -> Self {
        let mut nearest = (SIMILARITY_MIN, None);
        for known in known {
            let similarity = normalized_damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase());
            if similarity >= nearest.0 {
                nearest = (similarity, Some(known));
            }
        }
        let hint = match nearest.1 {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("use {}", known.join(", ")),
        };
        Self::field(&cut(name, NAME_CHARS_MAX), &format!("is not known here: {hint}"))
    }

    /// 413.
    pub fn too_large(text: String) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    }

    /// 400, for a reason that repeats nothing of the request.
    pub const fn bad_request(text: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, text: Cow::Borrowed(text) }
    }

    /// 403.
    pub const fn forbidden(text: &'static str) -> Self {
        Self { status: StatusCode::FORBIDDEN, text: Cow::Borrowed(text) }
    }

    /// 404.
    pub const fn not_found(text: &'static str) -> Self {
        Self { status: StatusCode::NOT_FOUND, text: Cow::Borrowed(text) }
    }

    /// 503: the server is already working on enough requests.
    pub const fn busy() -> Self {
        Self::unavailable("too many requests are being worked on: try again later")
    }

    /// 503.
    pub const fn unavailable(text: &'static str) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, text: Cow::Borrowed(text) }
    }

    /// 500. The cause belongs in the log.
    pub const fn internal() -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, text: Cow::Borrowed("internal error") }
    }

    /// The body as problem details. `about:blank` says that the status is the type (RFC 9457 section 4.2.1).
    fn problem(&self) -> Vec<u8> {
        let title = self.status.canonical_reason().unwrap_or_default();
        let problem = json!({"type": "about:blank", "title": title, "status": self.status.as_u16(), "detail": self.text});
        problem.to_string().into_bytes()
    }
}

/// Replaces the text of a refusal with problem details; other responses are unchanged.
pub(crate) fn with_problem(mut response: Response) -> Response {
    let Some(refusal) = response.extensions_mut().remove::<Refusal>() else { return response };
    *response.body_mut() = Body::from(refusal.problem());
    response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM);
    response
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = with_status(self.status, text(self.text.clone()));
        if matches!(self.status, StatusCode::FORBIDDEN | StatusCode::SERVICE_UNAVAILABLE) {
            response.extensions_mut().insert(LogReason(self.text.clone()));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// At most `chars_max` characters of a text, with dots instead of the rest.
pub fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn with_status(status: StatusCode, mut response: Response) -> Response {
    *response.status_mut() = status;
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    response
}

/// 200 with a plain text.
pub fn text(text: impl Into<Body>) -> Response {
    with_type(TEXT, text)
}

/// 200 with JSON.
pub fn json(json: impl Into<Body>) -> Response {
    with_type(JSON, json)
}

/// JSON with a status.
pub fn json_with(status: StatusCode, json: impl Into<Body>) -> Response {
    with_status(status, self::json(json))
}

/// 200 with this content type.
pub fn with_type(content_type: HeaderValue, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_details_replace_the_text_alone() {
        let response = with_problem(Refusal::busy().into_response());
        assert_eq!(
            (response.status(), &response.headers()[header::CONTENT_TYPE]),
            (StatusCode::SERVICE_UNAVAILABLE, &PROBLEM)
        );
        assert_eq!(response.headers()[header::RETRY_AFTER], RETRY_AFTER);
        let detail = Refusal::field("x", "is wrong").problem();
        let expected =
            json!({"type": "about:blank", "title": "Bad Request", "status": 400, "detail": "x: is wrong"});
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&detail).unwrap(), expected);
        assert_eq!(with_problem(text("well")).headers()[header::CONTENT_TYPE], TEXT);
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("äöüß", 3), "äöü...");
        assert_eq!(&*Refusal::field("x", &"ä".repeat(1_000)).text, format!("x: {}...", "ä".repeat(297)));
    }
}
