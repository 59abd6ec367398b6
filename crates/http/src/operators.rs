//! The guard of what only operators may see and do: it requires the server's token or, without one, a client on this machine.
//! With a guard of log-ins it also lets operators who log in pass, wherever they are.
//!
//! A browser runs on this machine too, and any page that it shows can make it send requests here. So a request without a token must
//! name this machine as its host, which a page whose own name was made to resolve to loopback (DNS rebinding) does not; and one
//! that changes something must not come from a page of another site.
//!
//! A proxy on this machine connects from this machine for all its clients. So a request with a proxy's headers is refused without
//! a token; many proxies add none, so a server behind a proxy needs a token.

use std::{fmt, hint::black_box, net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, request::Parts, uri::Authority};
use sha2::{Digest, Sha256};

use crate::guard::{Admission, Caller, Credentials, Denied, Guard};

/// A shorter token could be guessed by trying.
pub const TOKEN_CHARS_MIN: usize = 16;
/// A longer one is probably the wrong file.
pub const TOKEN_CHARS_MAX: usize = 512;

const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"restante\"");

/// Why a text can't be a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It has too few characters, or too many.
    #[error("a token has {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters, and not {0}")]
    Length(usize),
    /// It could not be sent in a header.
    #[error("a token has no spaces, and no characters beyond ASCII")]
    Characters,
}

/// The secret that operators prove themselves with. Only its digest is held in memory, so that nothing can print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    digest: [u8; 32],
}

impl Token {
    /// The token with this text.
    ///
    /// # Errors
    /// When it is too short or too long, or can't be sent in a header.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let chars = text.chars().count();
        if !(TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX).contains(&chars) {
            return Err(TokenError::Length(chars));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Characters);
        }
        Ok(Self { digest: digest(text.as_bytes()) })
    }

    /// Whether this is its text. Digests are compared in full, so the time this takes reveals nothing about the token.
    fn is(&self, text: &[u8]) -> bool {
        let offered = digest(text);
        let differences = self.digest.iter().zip(offered).fold(0, |all, (own, other)| all | (own ^ other));
        black_box(differences) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

fn digest(text: &[u8]) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// Decides who is an operator: a client that sends the token, if there is one, and otherwise every client of a listener on
/// loopback, within the limits in the module's documentation; and those that a guard of log-ins lets pass. Without a token, on a
/// listener that is not on loopback, every client is an operator.
#[derive(Clone, Debug, Default)]
pub struct OperatorGuard {
    token: Option<Token>,
    is_loopback: bool,
    logins: Option<Arc<dyn Guard>>,
}

impl OperatorGuard {
    /// The guard of a listener with this address.
    pub fn new(token: Option<Token>, listener: SocketAddr) -> Self {
        Self { token, is_loopback: listener.ip().is_loopback(), logins: None }
    }

    /// The same guard, which also lets those pass whom another guard identifies as operators by their credentials.
    #[must_use]
    pub fn with_logins(self, logins: Arc<dyn Guard>) -> Self {
        Self { logins: Some(logins), ..self }
    }

    /// Whether there is a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether the guard keeps out everybody but operators.
    pub fn is_safe(&self) -> bool {
        self.has_token() || self.is_loopback
    }

    /// Whether only the listener's address keeps others out.
    pub fn trusts_loopback(&self) -> bool {
        !self.has_token() && self.is_loopback
    }

    /// Whether a request may pass without a log-in.
    pub fn passes(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
        self.check_head(method, uri, headers).is_ok()
    }

    fn check_head(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Reason> {
        if let Some(token) = &self.token {
            return match Credentials::of(headers) {
                Some(Credentials::Bearer(offered)) if token.is(&offered) => Ok(()),
                Some(Credentials::Bearer(_)) => Err(Reason::WrongToken),
                _ => Err(Reason::NoToken),
            };
        }
        if self.is_loopback && !names_only(uri, headers, |_| false) {
            return Err(Reason::Host);
        }
        if self.is_loopback && was_forwarded(headers) {
            return Err(Reason::Proxy);
        }
        if !method.is_safe() && !comes_from_here(uri, headers) {
            return Err(Reason::Origin);
        }
        Ok(())
    }
}

#[async_trait]
impl Guard for OperatorGuard {
    async fn check(&self, head: &mut Parts, client: Option<SocketAddr>) -> Result<Admission, Denied> {
        let Err(reason) = self.check_head(&head.method, &head.uri, &head.headers) else {
            return Ok(Caller::Operator.into());
        };
        let (Some(logins), Some(credentials)) = (&self.logins, Credentials::of(&head.headers)) else {
            return Err(reason.denied());
        };
        // A browser sends a password that it remembers with the requests of every page.
        let is_password = matches!(credentials, Credentials::Basic { .. });
        if is_password && !head.method.is_safe() && !comes_from_here(&head.uri, &head.headers) {
            return Err(Reason::Origin.denied());
        }
        logins.check(head, client).await
    }
}

/// Why a request may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    NoToken,
    WrongToken,
    Host,
    Proxy,
    Origin,
}

impl Reason {
    fn denied(self) -> Denied {
        let no_token = "this needs the server's token: Authorization: Bearer <token>";
        match self {
            Self::NoToken => Denied::unauthorized(no_token, CHALLENGE, false),
            Self::WrongToken => Denied::unauthorized("this is not the server's token", CHALLENGE, true),
            Self::Host => Denied::forbidden(
                "without a token this is for this machine alone: ask localhost, 127.0.0.1 or [::1], or set operate.token_file",
            ),
            Self::Proxy => Denied::forbidden(
                "without a token this is for this machine alone, and a proxy may forward requests of others: set \
                 operate.token_file",
            ),
            Self::Origin => Denied::forbidden("pages of others may not change anything here"),
        }
    }
}

/// Whether all hosts that a request names are loopback's or allowed by `is_further`. A request that names none is not a browser's.
pub(crate) fn names_only(uri: &Uri, headers: &HeaderMap, is_further: impl Fn(&Authority) -> bool) -> bool {
    let is_allowed = |authority: &Authority| is_loopback(authority.host()) || is_further(authority);
    let mut hosts = headers.get_all(header::HOST).iter();
    hosts.all(|host| Authority::try_from(host.as_bytes()).is_ok_and(|host| is_allowed(&host)))
        && uri.authority().is_none_or(is_allowed)
}

fn is_loopback(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// Headers that proxies add, in addition to those that begin with [`FORWARDED_PREFIX`] (RFC 7239, RFC 9110 section 7.6.3, and
/// their predecessors).
const PROXY_HEADERS: [HeaderName; 3] = [header::FORWARDED, header::VIA, HeaderName::from_static("x-real-ip")];
const FORWARDED_PREFIX: &str = "x-forwarded-";

/// Whether a proxy has marked a request as forwarded.
fn was_forwarded(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| PROXY_HEADERS.contains(name) || name.as_str().starts_with(FORWARDED_PREFIX))
}

/// Whether a request comes from a page of this server, or from no page. Browsers name the page with every request that may change
/// something (Fetch standard, "append a request `Origin` header"). A page whose name was made to resolve to this server (DNS rebinding)
/// passes this check: the host's name must be checked too.
pub(crate) fn comes_from_here(uri: &Uri, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let origin = origin.to_str().unwrap_or_default();
    let page = origin.split_once("://").map(|(_, authority)| authority);
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| uri.authority().map(Authority::as_str)); // HTTP/2 has `:authority` instead
    page.zip(host).is_some_and(|(page, host)| page.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "correct-horse-battery";

    fn local() -> OperatorGuard {
        OperatorGuard::new(None, "127.0.0.1:8645".parse().unwrap())
    }

    fn with_token() -> OperatorGuard {
        OperatorGuard::new(Some(Token::new(SECRET).unwrap()), "0.0.0.0:8645".parse().unwrap())
    }

    fn check(guard: &OperatorGuard, method: Method, headers: &[(&'static str, &str)]) -> Result<(), Reason> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        guard.check_head(&method, &Uri::from_static("/admin/v1/peers"), &map)
    }

    #[test]
    fn tokens_are_long_and_can_be_sent() {
        assert_eq!(Token::new("fifteen-letters"), Err(TokenError::Length(15)));
        assert_eq!(Token::new(&"x".repeat(513)), Err(TokenError::Length(513)));
        assert_eq!(Token::new("sixteen letters!"), Err(TokenError::Characters));
        assert_eq!(Token::new("sechzehn-zeichän"), Err(TokenError::Characters));
        let token = Token::new("sixteen-letters!").unwrap();
        assert!(token.is(b"sixteen-letters!"));
        for other in ["", "sixteen-letters", "sixteen-letters!!", "Sixteen-letters!"] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn a_token_must_be_shown_from_everywhere() {
        let guard = with_token();
        let sent = |value: &str| check(&guard, Method::POST, &[("authorization", value)]);
        assert_eq!(sent(&format!("Bearer {SECRET}")), Ok(()));
        assert_eq!(sent(&format!("bearer  {SECRET} ")), Ok(()));
        assert_eq!(sent("Bearer correct-horse-batterie"), Err(Reason::WrongToken));
        assert_eq!(sent("Bearer "), Err(Reason::WrongToken));
        for other in ["", "Bearer", SECRET, "Basic Zm9vOmJhcg==", "Bearerx"] {
            assert_eq!(sent(other), Err(Reason::NoToken), "{other}");
        }
        assert_eq!(check(&guard, Method::GET, &[("host", "localhost")]), Err(Reason::NoToken));
    }

    /// Accepts one password and one token.
    #[derive(Debug)]
    struct Logins;

    #[async_trait]
    impl Guard for Logins {
        async fn check(&self, head: &mut Parts, _: Option<SocketAddr>) -> Result<Admission, Denied> {
            match Credentials::of(&head.headers) {
                Some(Credentials::Basic { user, .. }) if user == "olga" => Ok(Caller::Operator.into()),
                Some(Credentials::Bearer(token)) if &*token == b"of-olga" => Ok(Caller::Operator.into()),
                _ => Err(Denied::forbidden("no operator")),
            }
        }
    }

    #[tokio::test]
    async fn log_ins_are_asked_where_the_server_s_token_is_not_shown() {
        let olga = "Basic b2xnYTp4"; // olga:x
        let server = format!("Bearer {SECRET}");
        for (guard, headers, status) in [
            (with_token(), vec![("authorization", &*server)], None),
            (with_token(), vec![("authorization", olga)], None),
            (with_token(), vec![("authorization", "Bearer of-olga")], None),
            (with_token(), vec![("authorization", "Bearer of-somebody")], Some(403)),
            (with_token(), vec![], Some(401)),
            (local(), vec![], None),
            (local(), vec![("via", "1.1 proxy")], Some(403)),
            (local(), vec![("via", "1.1 proxy"), ("authorization", olga)], None),
            // A browser sends the password with the requests of any page.
            (with_token(), vec![("origin", "https://evil.example"), ("authorization", olga)], Some(403)),
            (with_token(), vec![("origin", "https://a.example"), ("authorization", "Bearer of-olga")], None),
        ] {
            let mut request = axum::http::Request::post("/admin/v1/peers");
            for (name, value) in &headers {
                request = request.header(*name, *value);
            }
            let (mut head, ()) = request.body(()).unwrap().into_parts();
            let checked = guard.with_logins(Arc::new(Logins)).check(&mut head, None).await;
            let refused = checked.err().map(|denied| denied.refusal.status.as_u16());
            assert_eq!(refused, status, "{headers:?}");
        }
    }

    #[test]
    fn without_a_token_the_host_must_be_this_machine() {
        for host in
            ["localhost", "LocalHost:8645", "127.0.0.1", "127.0.0.1:1", "127.0.0.2", "[::1]:8645", "[::1]"]
        {
            assert_eq!(check(&local(), Method::GET, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8645",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "0.0.0.0",
            "[::2]",
            "",
            "localhost@evil.example",
            "a b",
        ] {
            assert_eq!(check(&local(), Method::GET, &[("host", host)]), Err(Reason::Host), "{host}");
        }
        assert_eq!(check(&local(), Method::GET, &[]), Ok(()), "every browser sends it");
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(check(&local(), Method::GET, &two), Err(Reason::Host));
        let absolute = Uri::from_static("http://evil.example/admin/v1/peers");
        assert_eq!(local().check_head(&Method::GET, &absolute, &HeaderMap::new()), Err(Reason::Host));
    }

    #[test]
    fn without_a_token_forwarded_requests_are_refused() {
        let forwarded = [
            ("forwarded", "for=192.0.2.1"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "localhost"),
            ("x-real-ip", "192.0.2.1"),
            ("via", "1.1 proxy"),
        ];
        for header in forwarded {
            let headers = [("host", "127.0.0.1:8645"), header];
            assert_eq!(check(&local(), Method::GET, &headers), Err(Reason::Proxy), "{header:?}");
            let token = format!("Bearer {SECRET}");
            let headers = [header, ("authorization", &*token)];
            assert_eq!(check(&with_token(), Method::GET, &headers), Ok(()), "{header:?}");
            assert_eq!(check(&OperatorGuard::default(), Method::GET, &[header]), Ok(()), "it is open to all");
        }
    }

    #[test]
    fn without_a_token_pages_of_others_change_nothing() {
        let from = |guard: &OperatorGuard, method, origin| {
            check(guard, method, &[("host", "localhost:8645"), ("origin", origin)])
        };
        for guard in [local(), OperatorGuard::default()] {
            assert_eq!(from(&guard, Method::DELETE, "http://localhost:8645"), Ok(()));
            assert_eq!(check(&guard, Method::DELETE, &[("host", "localhost:8645")]), Ok(()), "no browser");
            for origin in [
                "http://evil.example",
                "http://localhost:1",
                "http://localhost",
                "null",
                "",
                "localhost:8645",
            ] {
                assert_eq!(from(&guard, Method::DELETE, origin), Err(Reason::Origin), "{origin}");
                assert_eq!(from(&guard, Method::POST, origin), Err(Reason::Origin), "{origin}");
                assert_eq!(from(&guard, Method::GET, origin), Ok(()), "{origin} can't read the answer");
            }
        }
    }
}
