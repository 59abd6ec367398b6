//! Errors: of whole requests, of calls, and of the objects of a /set.

use std::borrow::Cow;

use axum::http::StatusCode;
use restante_core::Error;
use restante_mail::MailError;
use serde_json::Value;
use tracing::{debug, warn};

use super::answers::{Members, Object};

/// Why a call failed; it has changed nothing then (RFC 8620 §3.6.2). The names are those of JMAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MethodError {
    UnknownMethod,
    /// The text says what is wrong.
    InvalidArguments(String),
    InvalidResultReference(String),
    Forbidden(&'static str),
    AccountNotFound,
    AccountNotSupportedByMethod,
    AccountReadOnly,
    ServerFail,
    ServerUnavailable,
    RequestTooLarge(String),
    StateMismatch,
    CannotCalculateChanges,
    TooManyChanges,
    AnchorNotFound,
    UnsupportedSort(String),
    UnsupportedFilter(String),
    FromAccountNotFound,
    UnknownDataType(String),
}

impl MethodError {
    /// `invalidArguments` with the name of the argument, and what is wrong with it.
    pub(crate) fn argument(name: &str, problem: &str) -> Self {
        Self::InvalidArguments(format!("{name}: {problem}"))
    }

    /// The type, as RFC 8620 §3.6.2 and the methods' sections name it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::UnknownMethod => "unknownMethod",
            Self::InvalidArguments(_) => "invalidArguments",
            Self::InvalidResultReference(_) => "invalidResultReference",
            Self::Forbidden(_) => "forbidden",
            Self::AccountNotFound => "accountNotFound",
            Self::AccountNotSupportedByMethod => "accountNotSupportedByMethod",
            Self::AccountReadOnly => "accountReadOnly",
            Self::ServerFail => "serverFail",
            Self::ServerUnavailable => "serverUnavailable",
            Self::RequestTooLarge(_) => "requestTooLarge",
            Self::StateMismatch => "stateMismatch",
            Self::CannotCalculateChanges => "cannotCalculateChanges",
            Self::TooManyChanges => "tooManyChanges",
            Self::AnchorNotFound => "anchorNotFound",
            Self::UnsupportedSort(_) => "unsupportedSort",
            Self::UnsupportedFilter(_) => "unsupportedFilter",
            Self::FromAccountNotFound => "fromAccountNotFound",
            Self::UnknownDataType(_) => "unknownDataType",
        }
    }

    fn description(&self) -> Option<&str> {
        match self {
            Self::InvalidArguments(text)
            | Self::InvalidResultReference(text)
            | Self::RequestTooLarge(text)
            | Self::UnsupportedSort(text)
            | Self::UnsupportedFilter(text)
            | Self::UnknownDataType(text) => Some(text),
            Self::Forbidden(text) => Some(text),
            _ => None,
        }
    }

    /// Writes the arguments of the `error` response.
    pub(crate) fn write(&self, out: &mut impl Members) {
        out.field("type", self.name());
        if let Some(description) = self.description() {
            out.field("description", description);
        }
    }
}

impl From<Error> for MethodError {
    /// An error of a store: the text goes to the log, and the client only learns whether to try again.
    fn from(error: Error) -> Self {
        if error.kind().is_transient() {
            debug!(kind = error.kind().as_str(), %error, "a JMAP call failed");
            return Self::ServerUnavailable;
        }
        warn!(kind = error.kind().as_str(), %error, "a JMAP call failed");
        Self::ServerFail
    }
}

impl From<MailError> for MethodError {
    /// An error of mail that concerns a whole call.
    fn from(error: MailError) -> Self {
        match error {
            MailError::Store(error) => error.into(),
            MailError::StateMismatch => Self::StateMismatch,
            MailError::Forbidden(why) => Self::Forbidden(why),
            other => {
                warn!(error = %other, "a JMAP call failed for a reason that concerns one object");
                Self::ServerFail
            }
        }
    }
}

/// Why one object of a /set, /copy or /import was not changed (RFC 8620 §5.3).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SetError {
    name: &'static str,
    description: Option<Cow<'static, str>>,
    properties: Vec<String>,
    extra: Vec<(&'static str, Value)>,
}

impl SetError {
    /// An error that has nothing but its type.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, description: None, properties: Vec::new(), extra: Vec::new() }
    }

    /// `invalidProperties` with all properties that are wrong.
    pub(crate) fn invalid<P: Into<String>>(
        properties: impl IntoIterator<Item = P>,
        description: impl Into<Cow<'static, str>>,
    ) -> Self {
        let properties = properties.into_iter().map(Into::into).collect();
        Self { properties, ..Self::new("invalidProperties").describe(description) }
    }

    /// `notFound`.
    pub(crate) fn not_found() -> Self {
        Self::new("notFound")
    }

    /// `invalidPatch`.
    pub(crate) fn invalid_patch(description: impl Into<Cow<'static, str>>) -> Self {
        Self::new("invalidPatch").describe(description)
    }

    /// The same with a text for developers.
    #[must_use]
    pub(crate) fn describe(mut self, description: impl Into<Cow<'static, str>>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// The same with one more member, such as `existingId` of `alreadyExists`.
    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.extra.push((name, value.into()));
        self
    }

    /// The type.
    #[cfg(test)]
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Writes it as a JSON object.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut object = Object::open(out);
        object.field("type", self.name);
        if let Some(description) = &self.description {
            object.field("description", description);
        }
        // RFC 8620 §5.3: the properties that were invalid.
        if !self.properties.is_empty() {
            object.field("properties", &self.properties);
        }
        for (name, value) in &self.extra {
            object.field(name, value);
        }
    }
}

/// Why a whole request is refused: a response of type `application/problem+json` (RFC 8620 §3.6.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestError {
    pub(crate) kind: RequestErrorKind,
    pub(crate) detail: Cow<'static, str>,
}

/// The types of [`RequestError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestErrorKind {
    NotJson,
    NotRequest,
    UnknownCapability,
    /// With the name of the limit in the session object.
    Limit(&'static str),
    /// The server can't answer now: JMAP has no type for it.
    Unavailable,
}

impl RequestError {
    pub(crate) fn new(kind: RequestErrorKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, detail: detail.into() }
    }

    /// `limit`.
    pub(crate) fn limit(name: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(RequestErrorKind::Limit(name), detail)
    }

    /// What is wrong.
    pub(crate) fn kind(&self) -> RequestErrorKind {
        self.kind
    }

    /// The last part of its type.
    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            RequestErrorKind::NotJson => "notJSON",
            RequestErrorKind::NotRequest => "notRequest",
            RequestErrorKind::UnknownCapability => "unknownCapability",
            RequestErrorKind::Limit(_) => "limit",
            RequestErrorKind::Unavailable => "unavailable",
        }
    }

    /// 503: the server can't answer now.
    pub(crate) fn unavailable() -> Self {
        Self::new(RequestErrorKind::Unavailable, "the server can't do this now: try again later")
    }

    /// The HTTP status of the answer: 503 when the server can't answer now, otherwise 400.
    pub(crate) fn status(&self) -> StatusCode {
        match self.kind {
            RequestErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// Writes its members.
    pub(crate) fn write(&self, out: &mut impl Members) {
        match self.kind {
            // RFC 9457 §4.2.1: the status says it.
            RequestErrorKind::Unavailable => out.field("type", "about:blank"),
            _ => out.field("type", &format!("urn:ietf:params:jmap:error:{}", self.name())),
        }
        out.field("status", &self.status().as_u16());
        out.field("detail", &*self.detail);
        if let RequestErrorKind::Limit(limit) = self.kind {
            out.field("limit", limit);
        }
    }
}
