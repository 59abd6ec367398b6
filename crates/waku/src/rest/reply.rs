//! Answers: what every refusal looks like, and one table from error kinds to HTTP statuses.

use std::borrow::Cow;

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use restante_archive::Error;
use restante_core::ErrorKind;
use strsim::normalized_damerau_levenshtein;

use super::plain::plain;
use crate::validate::{Invalid, Problem};

/// A refusal's text is cut here, because it may repeat a piece of the request.
const TEXT_CHARS_MAX: usize = 300;
/// A name that a client has sent is cut here.
const NAME_CHARS_MAX: usize = 60;
/// Names that are less like each other than this (0 to 1) are not suggested.
const LIKENESS_MIN: f64 = 0.7;
/// Seconds after which a refused client may try again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Goes with an answer that operators want to know of: a limit is reached, or somebody is kept out.
#[derive(Clone, Debug)]
pub(crate) struct Noted(pub(crate) Cow<'static, str>);

impl Noted {
    /// What is to be known of an answer.
    pub(crate) fn of(response: &Response) -> Option<&str> {
        let noted = response.extensions().get::<Self>().map(|noted| &*noted.0);
        let is_unavailable = response.status() == StatusCode::SERVICE_UNAVAILABLE;
        noted.or(is_unavailable.then_some("the answer says why"))
    }
}

/// Why a request is not answered as hoped: a status and a plain text without internals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) text: Cow<'static, str>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into() }
    }

    /// 400: a field is wrong.
    pub(crate) fn field(field: &str, problem: &str) -> Self {
        Self::invalid(format!("{field}: {problem}"))
    }

    /// 400.
    pub(crate) fn invalid(text: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, cut(&text, TEXT_CHARS_MAX))
    }

    /// 400: the JSON can't be read.
    pub(crate) fn json(error: &serde_json::Error) -> Self {
        Self::invalid(plain(&error.to_string()))
    }

    /// 400: a parameter that is not among those that are known. The nearest of them is named, or all.
    pub(crate) fn unknown(name: &str, known: &[&str]) -> Self {
        let likeness =
            |known: &str| normalized_damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase());
        let mut nearest = (LIKENESS_MIN, None);
        for known in known {
            let likeness = likeness(known);
            if likeness >= nearest.0 {
                nearest = (likeness, Some(known));
            }
        }
        let hint = match nearest.1 {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("use {}", known.join(", ")),
        };
        Self::field(&cut(name, NAME_CHARS_MAX), &format!("is not known here: {hint}"))
    }

    /// 413.
    pub(crate) fn too_large(text: String) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    }

    /// 400, for a reason that repeats nothing of the request.
    pub(crate) const fn bad_request(text: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, text: Cow::Borrowed(text) }
    }

    /// 403.
    pub(crate) const fn forbidden(text: &'static str) -> Self {
        Self { status: StatusCode::FORBIDDEN, text: Cow::Borrowed(text) }
    }

    /// 404.
    pub(crate) const fn not_found(text: &'static str) -> Self {
        Self { status: StatusCode::NOT_FOUND, text: Cow::Borrowed(text) }
    }

    /// 503: enough is being worked on already.
    pub(crate) const fn busy() -> Self {
        Self::unavailable("too many requests are being worked on: try again later")
    }

    /// 503.
    pub(crate) const fn unavailable(text: &'static str) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, text: Cow::Borrowed(text) }
    }

    /// 503: the archive takes too long.
    pub(crate) const fn late() -> Self {
        Self::unavailable("the archive did not answer in time: try again later")
    }

    /// The refusal of a query that the archive could not answer.
    pub(crate) fn of_query(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Self::field("cursor", "no message with this hash is archived"),
            kind => Self::of_kind(kind),
        }
    }

    /// The one table from kinds to statuses. The texts are fixed: the errors' own ones name files, for operators.
    pub(crate) fn of_kind(kind: ErrorKind) -> Self {
        let (status, text) = match kind {
            ErrorKind::Invalid => {
                (StatusCode::BAD_REQUEST, "the archive can't take this request: it exceeds a limit")
            }
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not found"),
            ErrorKind::Conflict => (StatusCode::CONFLICT, "conflicts with what is archived"),
            ErrorKind::Full => (
                StatusCode::SERVICE_UNAVAILABLE,
                "the archive is full, or it is away and its spool is full: try again later",
            ),
            ErrorKind::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "the archive is unavailable: try again later")
            }
            ErrorKind::Corrupt => (StatusCode::INTERNAL_SERVER_ERROR, "the archive is damaged here"),
            ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal error"),
        };
        Self { status, text: Cow::Borrowed(text) }
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        let text = invalid.to_string();
        match invalid.problem {
            Problem::TooLarge { .. } => Self::too_large(text),
            _ => Self::invalid(text),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let is_noted = matches!(self.status, StatusCode::FORBIDDEN | StatusCode::SERVICE_UNAVAILABLE);
        let noted = is_noted.then(|| Noted(self.text.clone()));
        let mut response = with_status(self.status, text(self.text));
        if let Some(noted) = noted {
            response.extensions_mut().insert(noted);
        }
        response
    }
}

/// A text with so many characters at most, and dots where the rest was.
pub(crate) fn cut(text: &str, chars_max: usize) -> String {
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
pub(crate) fn text(text: impl Into<Body>) -> Response {
    with_type(TEXT, text)
}

/// 200 with JSON.
pub(crate) fn json(json: impl Into<Body>) -> Response {
    with_type(JSON, json)
}

/// JSON with a status of its own.
pub(crate) fn json_with(status: StatusCode, json: impl Into<Body>) -> Response {
    with_status(status, self::json(json))
}

/// 200 with content of a type.
pub(crate) fn with_type(content_type: HeaderValue, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("äöüß", 3), "äöü...");
        assert_eq!(&*Refusal::field("x", &"ä".repeat(1_000)).text, format!("x: {}...", "ä".repeat(297)));
    }
}
