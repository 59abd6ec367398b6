//! Which web pages may use a listener through a browser.
//!
//! A browser sends requests for every page that it shows, from its user's location in the network. So a page of another site
//! could publish to a server on loopback, or empty its caches, without reading a single answer. Headers that pages can't set
//! identify such requests: `Sec-Fetch-Site`, or `Origin` from browsers without it, names the page's site; `Host` is the name that
//! the page used, which exposes a name that was made to resolve to loopback (DNS rebinding). Other clients send neither of the
//! first two, and are not affected.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{
    OperatorGuard, Refusal, Route,
    operators::{comes_from_here, names_only},
    routes::Audience,
};

/// Which pages may use a listener, in addition to its own.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    /// The hosts that requests may name on loopback without a token, in addition to loopback's own: names or addresses without a
    /// port, or `*`.
    pub hosts: Vec<String>,
    /// Origins as `https://chat.example`, or `*`.
    pub origins: Vec<String>,
    /// Further origins whose pages may read live streams.
    pub stream_origins: Vec<String>,
    /// Whether this is the public listener, whose refusals refer to its own setting.
    pub is_public: bool,
}

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static("authorization, content-type, last-event-id");
/// For how many seconds a browser may cache the answer to a preflight.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

const OTHER_HOST: Refusal = Refusal::forbidden(
    "without a token a server on loopback answers only as localhost, 127.0.0.1 or [::1]: rest.hosts names further hosts",
);
const OTHER_SITE: Refusal = Refusal::forbidden(
    "pages of other sites may not use this server: rest.origins names those that may, and rest.live_origins those that may \
     read live streams",
);
const OTHER_SITE_IN_PUBLIC: Refusal =
    Refusal::forbidden("pages of other sites may not use this server: public.origins names those that may");

/// The requirements for the requests of one route.
#[derive(Debug)]
pub(crate) struct SitePolicy {
    /// The hosts that a request may name in addition to loopback; `None` is any.
    hosts: Option<Vec<String>>,
    /// The origins whose pages may use the route, in addition to the server's own.
    origins: Vec<String>,
    /// Whether links of other sites may lead here.
    is_linked: bool,
    /// The answer to pages that may not use the route.
    other_site: Refusal,
}

impl SitePolicy {
    /// The policy of a route; without one, that of unknown paths.
    pub(crate) fn new(sites: &Sites, operators: &OperatorGuard, route: Option<&Route>) -> Self {
        let is_any_host = !operators.trusts_loopback() || sites.hosts.iter().any(|host| host == "*");
        let mut origins = sites.origins.clone();
        if route.is_some_and(|route| route.is_stream) {
            origins.extend(sites.stream_origins.iter().cloned());
        }
        if route.is_some_and(|route| route.audience == Audience::Operators) && !operators.has_token() {
            origins.clear(); // without a token such a page can't be distinguished from an operator
        }
        let is_linked = route.is_some_and(|route| route.is_linked);
        let other_site = if sites.is_public { OTHER_SITE_IN_PUBLIC } else { OTHER_SITE };
        Self { hosts: (!is_any_host).then(|| sites.hosts.clone()), origins, is_linked, other_site }
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let (headers, uri) = (request.headers(), request.uri());
        if let Some(hosts) = &self.hosts {
            let is_named =
                |authority: &Authority| hosts.iter().any(|host| authority.host().eq_ignore_ascii_case(host));
            if !names_only(uri, headers, is_named) {
                return Err(OTHER_HOST);
            }
        }
        if is_of_own_page(uri, headers)
            || (self.is_linked && is_navigation(request))
            || self.allowed_origin(headers).is_some()
        {
            return Ok(());
        }
        Err(self.other_site.clone())
    }

    /// The request's origin, if the settings name it.
    fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        let text = origin.to_str().ok()?;
        let is_allowed =
            self.origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(text));
        is_allowed.then(|| origin.clone())
    }
}

/// Whether a request comes from a page of this server, or from no page. A proxy may have changed `Host`, so `Sec-Fetch-Site` is
/// used if a browser sends it; `none` means that the user has typed the address.
fn is_of_own_page(uri: &Uri, headers: &HeaderMap) -> bool {
    match headers.get("sec-fetch-site") {
        Some(site) => site == "same-origin" || site == "none",
        None => comes_from_here(uri, headers),
    }
}

/// Whether a user has followed a link.
fn is_navigation(request: &Request) -> bool {
    let is_navigation = request.headers().get("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
    is_navigation && request.method() == Method::GET
}

/// Refuses requests of pages that may not use the route. Pages of allowed origins may read the answers: CORS (Fetch standard,
/// "HTTP extensions"), with preflights answered here.
pub(crate) async fn check(State(policy): State<Arc<SitePolicy>>, request: Request, next: Next) -> Response {
    if let Err(refusal) = policy.check(&request) {
        return refusal.into_response();
    }
    let origin = policy.allowed_origin(request.headers());
    let is_preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match &origin {
        Some(_) if is_preflight => answer_preflight(),
        _ => next.run(request).await,
    };
    if let Some(origin) = origin {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
    }
    response
}

fn answer_preflight() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    response
}
