//! Which web pages may use the REST interface through a browser.
//!
//! A browser sends requests for every page that it shows, from its user's place in the network. So a page of another site could
//! publish to a server on loopback, or empty its caches, without reading a single answer. Headers that pages can't set tell
//! such requests apart: `Sec-Fetch-Site`, or `Origin` from browsers without it, says whose page asks; `Host` is the name that
//! the page asked for, which shows a name that was made to resolve to loopback (DNS rebinding). Clients that are no browsers
//! send neither of the first two, and are not affected.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{
    Rest,
    reply::Refusal,
    token::{comes_from_here, is_guarded, names_only},
};

/// Pages that show nothing without further requests, so that links of other sites may lead there.
const LINKED: [&str; 2] = ["/", "/console"];

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static("authorization, content-type, last-event-id");
/// Seconds for which a browser may remember the answer to a preflight.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

const FOREIGN_HOST: Refusal = Refusal::forbidden(
    "without a token a server on loopback answers only as localhost, 127.0.0.1 or [::1]: rest.hosts names further hosts",
);
const FOREIGN_PAGE: Refusal = Refusal::forbidden(
    "pages of other sites may not use this server: rest.origins names those that may, and rest.live_origins those that may \
     read live streams",
);

/// What is asked of the requests of one route.
#[derive(Debug)]
pub(crate) struct SitePolicy {
    /// The hosts that a request may name beside loopback; `None` is any.
    hosts: Option<Vec<String>>,
    /// The origins whose pages may use the route, beside the server's own.
    origins: Vec<String>,
}

impl SitePolicy {
    /// The policy of the route with this path.
    pub(crate) fn of(rest: &Rest, path: &str) -> Self {
        let config = &rest.config;
        let is_any_host = !rest.access.is_for_this_machine() || config.hosts.iter().any(|host| host == "*");
        let mut origins = config.origins.clone();
        if path.ends_with("/live") {
            origins.extend(config.live_origins.iter().cloned());
        }
        if is_guarded(path) && !rest.access.has_token() {
            origins.clear(); // nothing but its place would tell such a page from an operator
        }
        Self { hosts: (!is_any_host).then(|| config.hosts.clone()), origins }
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let (headers, uri) = (request.headers(), request.uri());
        if let Some(hosts) = &self.hosts {
            let is_named =
                |authority: &Authority| hosts.iter().any(|host| authority.host().eq_ignore_ascii_case(host));
            if !names_only(uri, headers, is_named) {
                return Err(FOREIGN_HOST);
            }
        }
        if is_of_own_page(headers) || is_link(request) || self.allowed_origin(headers).is_some() {
            return Ok(());
        }
        Err(FOREIGN_PAGE)
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

/// Whether a request comes from a page of this server, or from no page. A proxy may have changed `Host`, so `Sec-Fetch-Site` counts
/// where a browser sends it; `none` is an address that the user has typed.
fn is_of_own_page(headers: &HeaderMap) -> bool {
    match headers.get("sec-fetch-site") {
        Some(site) => site == "same-origin" || site == "none",
        None => comes_from_here(headers),
    }
}

/// Whether a user has followed a link to a page that may be linked.
fn is_link(request: &Request) -> bool {
    let is_navigation = request.headers().get("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
    is_navigation && request.method() == Method::GET && LINKED.contains(&request.uri().path())
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
