//! Who sends a request, and whether they may: the trait that guards of accounts and of operators implement.

use std::{borrow::Cow, fmt, net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{
    Refusal,
    access::{AccessEnded, WhileAllowed},
    reply::LogReason,
    server::Client,
};

/// Who sends a request, as a guard has proven it. Handlers find it in the extensions of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Somebody who may administer the server.
    Operator,
    /// An account, by its number.
    Account(u32),
}

/// What a guard has proven of a request.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Who sends it.
    pub caller: Caller,
    /// Completes when the credentials become invalid; `None` if that never happens. Event streams and other answers of several
    /// pieces are then cut, and WebSockets closed.
    pub ended: Option<AccessEnded>,
}

impl From<Caller> for Admission {
    fn from(caller: Caller) -> Self {
        Self { caller, ended: None }
    }
}

/// Decides who sends a request.
#[async_trait]
pub trait Guard: fmt::Debug + Send + Sync {
    /// Returns the caller, if the request proves who that is and they may send it. Anything else that handlers should know of the
    /// caller goes into the extensions of `head`.
    ///
    /// `client` is the address of the connection; `None` in tests without one. Implementations bound their own work: this is called
    /// before anything else limits the request.
    ///
    /// # Errors
    /// The refusal, with the challenge of a 401.
    async fn check(&self, head: &mut Parts, client: Option<SocketAddr>) -> Result<Admission, Denied>;
}

/// Why a guard does not let a request pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// What the client gets.
    pub refusal: Refusal,
    /// `WWW-Authenticate`, which a 401 must have (RFC 9110 section 15.5.2).
    pub challenge: Option<HeaderValue>,
    /// Whether to log it: a client has tried wrong credentials.
    pub is_logged: bool,
    /// After how many seconds the client may try again.
    pub retry_after: Option<u64>,
}

impl Denied {
    /// 401, for a request without credentials or, if `is_wrong`, with wrong ones.
    pub fn unauthorized(text: &'static str, challenge: HeaderValue, is_wrong: bool) -> Self {
        let refusal = Refusal::new(StatusCode::UNAUTHORIZED, text);
        Self { challenge: Some(challenge), is_logged: is_wrong, ..Self::refused(refusal) }
    }

    /// 403: the caller is known, or can't be identified, and may not do this.
    pub fn forbidden(text: &'static str) -> Self {
        Self { is_logged: true, ..Self::refused(Refusal::forbidden(text)) }
    }

    /// 429: too many log-ins have failed.
    pub fn limited(wait_seconds: u64) -> Self {
        let text = format!("too many log-ins have failed: try again in {wait_seconds} s");
        let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, text);
        Self { is_logged: true, retry_after: Some(wait_seconds), ..Self::refused(refusal) }
    }

    /// For a reason other than the client's credentials.
    pub const fn refused(refusal: Refusal) -> Self {
        Self { refusal, challenge: None, is_logged: false, retry_after: None }
    }
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let text = self.refusal.text.clone();
        let mut response = self.refusal.into_response();
        if self.is_logged {
            response.extensions_mut().insert(LogReason(text));
        }
        if let Some(challenge) = self.challenge {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The credentials in a request's `Authorization` header.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials<'h> {
    /// A user and a password (RFC 7617).
    Basic {
        /// The user, without a colon.
        user: String,
        /// The password.
        password: String,
    },
    /// A token (RFC 6750 section 2.1).
    Bearer(Cow<'h, [u8]>),
}

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic { .. } => "Basic(..)",
            Self::Bearer(_) => "Bearer(..)",
        })
    }
}

impl<'h> Credentials<'h> {
    /// Parses the header. `None` for a request without it, for another scheme, and for one that can't be decoded.
    pub fn of(headers: &'h HeaderMap) -> Option<Self> {
        let value = headers.get(header::AUTHORIZATION)?.as_bytes();
        let end = value.iter().position(|byte| *byte == b' ')?;
        let (scheme, credentials) = value.split_at_checked(end)?;
        let credentials = credentials.trim_ascii();
        if scheme.eq_ignore_ascii_case(b"Bearer") {
            return Some(Self::Bearer(Cow::Borrowed(credentials)));
        }
        if !scheme.eq_ignore_ascii_case(b"Basic") {
            return None;
        }
        // RFC 7617 section 2: the first colon ends the user.
        let decoded = String::from_utf8(base64_simd::STANDARD.decode_to_vec(credentials).ok()?).ok()?;
        let (user, password) = decoded.split_once(':')?;
        Some(Self::Basic { user: user.to_owned(), password: password.to_owned() })
    }
}

/// Runs a guard in front of a route's handlers.
pub(crate) async fn layer(State(guard): State<Arc<dyn Guard>>, request: Request, next: Next) -> Response {
    let client = request.extensions().get::<Client>().map(|client| client.0);
    let (mut head, body) = request.into_parts();
    match guard.check(&mut head, client).await {
        Ok(Admission { caller, ended }) => {
            head.extensions.insert(caller);
            let Some(ended) = ended else { return next.run(Request::from_parts(head, body)).await };
            head.extensions.insert(ended.clone());
            let response = next.run(Request::from_parts(head, body)).await;
            response.map(|body| Body::new(WhileAllowed::new(body, ended)))
        }
        Err(denied) => denied.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Option<Credentials<'static>> {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
        let read = Credentials::of(&headers)?;
        Some(match read {
            Credentials::Bearer(token) => Credentials::Bearer(Cow::Owned(token.into_owned())),
            Credentials::Basic { user, password } => Credentials::Basic { user, password },
        })
    }

    #[test]
    fn basic_and_bearer_credentials_are_read() {
        let bearer = |token: &str| Some(Credentials::Bearer(Cow::Owned(token.as_bytes().to_vec())));
        assert_eq!(read("Bearer abc"), bearer("abc"));
        assert_eq!(read("bearer  abc "), bearer("abc"));
        // The example of RFC 7617 section 2, and a password with a colon.
        let basic = |user: &str, password: &str| {
            Some(Credentials::Basic { user: user.to_owned(), password: password.to_owned() })
        };
        assert_eq!(read("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="), basic("Aladdin", "open sesame"));
        assert_eq!(read("BASIC YTpiOmM="), basic("a", "b:c"));
        for other in ["", "Bearer", "abc", "Basic ???", "Basic YWJj", "Basic /w==", "Digest a=b"] {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(format!("{:?}", read("Bearer abc").unwrap()), "Bearer(..)");
    }
}
