//! Refusals by the archive and by the rules for messages.

use std::borrow::Cow;

use axum::http::StatusCode;
use restante_archive::Error;
use restante_core::ErrorKind;
use restante_http::Refusal;

use crate::validate::{Invalid, Problem};

/// 503: the archive did not answer in time.
pub(crate) const fn late() -> Refusal {
    Refusal::unavailable("the archive did not answer in time: try again later")
}

/// The refusal of a query that failed.
pub(crate) fn of_query(error: &Error) -> Refusal {
    match error.kind() {
        ErrorKind::NotFound => Refusal::field("cursor", "no message with this hash is archived"),
        kind => of_kind(kind),
    }
}

/// The only table from the kinds of archive errors to statuses. The texts are fixed: those of the errors name files, for operators.
pub(crate) fn of_kind(kind: ErrorKind) -> Refusal {
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
        ErrorKind::Internal => return Refusal::internal(),
    };
    Refusal { status, text: Cow::Borrowed(text) }
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
