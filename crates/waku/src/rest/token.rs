//! Who may see and do what is for operators: those who know the server's token or, without one, those on this machine.
//!
//! A browser is on this machine, too, and whatever page it shows can have it send requests here. So a request without a token
//! must name this machine as its host, which a page whose own name was made to lead here (DNS rebinding) does not; and one
//! that changes something must not come from a page of somebody else's.
//!
//! A proxy on this machine is on this machine, too, whoever asks it. So a request that says it came by one is refused without a
//! token; but many do not say it, so that behind a proxy there must be a token.

use std::{fmt, hint::black_box, net::SocketAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};

use super::reply::{Noted, Refusal};

/// A shorter token could be guessed by asking.
pub const TOKEN_CHARS_MIN: usize = 16;
/// A longer one is a file that was named by mistake.
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

/// What operators prove themselves by. It is kept as its digest alone, so that it is nowhere shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    digest: [u8; 32],
}

impl Token {
    /// The token that is written so.
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

    /// Whether it is written so. How long this takes tells nothing about the token: digests are compared, and all of them.
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

/// To whom the paths below `/admin/` and `/console/v1/` are open. The default opens them to whoever reaches the door: they are
/// there when the settings say so.
#[derive(Clone, Debug, Default)]
pub struct Access {
    token: Option<Token>,
    is_loopback: bool,
}

impl Access {
    /// To those who know the token, if there is one, and else to who comes to a door that listens there.
    pub fn new(token: Option<Token>, listener: SocketAddr) -> Self {
        Self { token, is_loopback: listener.ip().is_loopback() }
    }

    /// Whether there is a token, so that what is for operators is there without a further setting.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether nobody but operators can come.
    pub(crate) fn is_safe(&self) -> bool {
        self.has_token() || self.is_loopback
    }

    /// Whether nothing but the place of the listener keeps others out.
    pub(crate) fn is_for_this_machine(&self) -> bool {
        !self.has_token() && self.is_loopback
    }

    /// Whether a request may pass.
    pub(crate) fn lets_pass(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
        self.check(method, uri, headers).is_ok()
    }

    fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Denied> {
        if let Some(token) = &self.token {
            return match bearer(headers) {
                Some(offered) if token.is(offered) => Ok(()),
                Some(_) => Err(Denied::WrongToken),
                None => Err(Denied::NoToken),
            };
        }
        if self.is_loopback && !names_only(uri, headers, |_| false) {
            return Err(Denied::Host);
        }
        if self.is_loopback && comes_by_proxy(headers) {
            return Err(Denied::Proxy);
        }
        if !method.is_safe() && !comes_from_here(headers) {
            return Err(Denied::Origin);
        }
        Ok(())
    }
}

/// Why a request may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Denied {
    NoToken,
    WrongToken,
    Host,
    Proxy,
    Origin,
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::NoToken => {
                (StatusCode::UNAUTHORIZED, "this needs the server's token: Authorization: Bearer <token>")
            }
            Self::WrongToken => (StatusCode::UNAUTHORIZED, "this is not the server's token"),
            Self::Host => (
                StatusCode::FORBIDDEN,
                "without a token this is for this machine alone: ask localhost, 127.0.0.1 or [::1], or set rest.token_file",
            ),
            Self::Proxy => (
                StatusCode::FORBIDDEN,
                "without a token this is for this machine alone, and a proxy may hand on what comes from others: set rest.token_file",
            ),
            Self::Origin => (StatusCode::FORBIDDEN, "pages of others may not change anything here"),
        };
        let mut response = Refusal::new(status, text).into_response();
        if self == Self::WrongToken {
            response.extensions_mut().insert(Noted(text.into()));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, CHALLENGE); // RFC 9110 §15.5.2
        }
        response
    }
}

/// The token that a request brings (RFC 6750 §2.1). The scheme's name has no case (RFC 9110 §11.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}

/// Whether all hosts that a request names are loopback's or among further ones. A request that names none comes from no browser.
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

/// Headers by which proxies say for whom they ask, beside those that begin with [`FORWARDED_AS`] (RFC 7239, RFC 9110 §7.6.3, and
/// what proxies had before them).
const OF_PROXIES: [HeaderName; 3] = [header::FORWARDED, header::VIA, HeaderName::from_static("x-real-ip")];
const FORWARDED_AS: &str = "x-forwarded-";

/// Whether a request says that a proxy has handed it on. Many proxies do not say so unless they are told to, and ask in the
/// name of loopback: only a token keeps out who comes by those.
fn comes_by_proxy(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| OF_PROXIES.contains(name) || name.as_str().starts_with(FORWARDED_AS))
}

/// Whether a request comes from a page of this server, or from no page. Browsers name the page with every request that may
/// change something (Fetch standard, "append a request `Origin` header"). A page whose own name was made to lead here (DNS
/// rebinding) is one of this server by that: what must be kept from it looks at the host's name, too.
pub(crate) fn comes_from_here(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let origin = origin.to_str().unwrap_or_default();
    let page = origin.split_once("://").map(|(_, authority)| authority);
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    page.zip(host).is_some_and(|(page, host)| page.eq_ignore_ascii_case(host))
}

/// Whether a path is for operators alone.
pub(crate) fn is_guarded(path: &str) -> bool {
    path.starts_with("/admin/") || path.starts_with("/console/v1/")
}

/// Lets those pass who may.
pub(crate) async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    match access.check(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(denied) => denied.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "correct-horse-battery";

    fn local() -> Access {
        Access::new(None, "127.0.0.1:8645".parse().unwrap())
    }

    fn with_token() -> Access {
        Access::new(Some(Token::new(SECRET).unwrap()), "0.0.0.0:8645".parse().unwrap())
    }

    fn check(access: &Access, method: Method, headers: &[(&'static str, &str)]) -> Result<(), Denied> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        access.check(&method, &Uri::from_static("/admin/v1/peers"), &map)
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
    fn with_a_token_it_must_be_shown_from_wherever_one_comes() {
        let access = with_token();
        let sent = |value: &str| check(&access, Method::POST, &[("authorization", value)]);
        assert_eq!(sent(&format!("Bearer {SECRET}")), Ok(()));
        assert_eq!(sent(&format!("bearer  {SECRET} ")), Ok(()));
        assert_eq!(sent("Bearer correct-horse-batterie"), Err(Denied::WrongToken));
        assert_eq!(sent("Bearer "), Err(Denied::WrongToken));
        for other in ["", "Bearer", SECRET, "Basic Zm9vOmJhcg==", "Bearerx"] {
            assert_eq!(sent(other), Err(Denied::NoToken), "{other}");
        }
        assert_eq!(check(&access, Method::GET, &[("host", "localhost")]), Err(Denied::NoToken));
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
            assert_eq!(check(&local(), Method::GET, &[("host", host)]), Err(Denied::Host), "{host}");
        }
        assert_eq!(check(&local(), Method::GET, &[]), Ok(()), "no browser leaves it out");
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(check(&local(), Method::GET, &two), Err(Denied::Host));
        let absolute = Uri::from_static("http://evil.example/admin/v1/peers");
        assert_eq!(local().check(&Method::GET, &absolute, &HeaderMap::new()), Err(Denied::Host));
    }

    #[test]
    fn without_a_token_what_a_proxy_hands_on_is_refused() {
        let of_proxies = [
            ("forwarded", "for=192.0.2.1"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "localhost"),
            ("x-real-ip", "192.0.2.1"),
            ("via", "1.1 proxy"),
        ];
        for header in of_proxies {
            let headers = [("host", "127.0.0.1:8645"), header];
            assert_eq!(check(&local(), Method::GET, &headers), Err(Denied::Proxy), "{header:?}");
            let token = format!("Bearer {SECRET}");
            let headers = [header, ("authorization", &*token)];
            assert_eq!(check(&with_token(), Method::GET, &headers), Ok(()), "{header:?}");
            assert_eq!(check(&Access::default(), Method::GET, &[header]), Ok(()), "it is open to all");
        }
    }

    #[test]
    fn without_a_token_pages_of_others_change_nothing() {
        let from = |access: &Access, method, origin| {
            check(access, method, &[("host", "localhost:8645"), ("origin", origin)])
        };
        for access in [local(), Access::default()] {
            assert_eq!(from(&access, Method::DELETE, "http://localhost:8645"), Ok(()));
            assert_eq!(check(&access, Method::DELETE, &[("host", "localhost:8645")]), Ok(()), "no browser");
            for origin in [
                "http://evil.example",
                "http://localhost:1",
                "http://localhost",
                "null",
                "",
                "localhost:8645",
            ] {
                assert_eq!(from(&access, Method::DELETE, origin), Err(Denied::Origin), "{origin}");
                assert_eq!(from(&access, Method::POST, origin), Err(Denied::Origin), "{origin}");
                assert_eq!(from(&access, Method::GET, origin), Ok(()), "{origin} can't read the answer");
            }
        }
    }

    #[test]
    fn what_is_for_operators_alone_is_guarded() {
        for path in ["/admin/v1/peers", "/admin/v1/sessions/{id}", "/console/v1/state"] {
            assert!(is_guarded(path), "{path}");
        }
        for path in ["/", "/console/{file}", "/store/v3/messages", "/metrics", "/live"] {
            assert!(!is_guarded(path), "{path}");
        }
    }
}
