//! The routes of the door.

mod api;
mod base;
mod download;
mod events;
mod mta_sts;
mod session;
mod socket;
mod token;
mod upload;

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, Request, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use restante_core::Error;
use restante_directory::{Login, Scope};
use restante_http::{Audience, Refusal, Route, reply};
use tokio::{sync::watch, time::Instant};
use tracing::warn;

use crate::{
    JmapConfig, JmapParts,
    connections::{ConnectionKind, OpenConnection},
    core::{
        Context, Object, Using,
        dispatch::Methods,
        errors::{RequestError, RequestErrorKind},
    },
    methods::{self, email::query::Views},
    push::{Pusher, subscriptions::PushSender},
    slots::Slots,
};
pub(crate) use events::visible_accounts;
use session::SessionStates;
pub use token::url_token;

/// The most requests that wait for each slot: some connections of each device of a user.
const WAITING_FOR_A_SLOT: usize = 8;

/// The state that all routes share.
pub(crate) struct App {
    pub(crate) parts: Arc<JmapParts>,
    pub(crate) config: Arc<JmapConfig>,
    pub(crate) pusher: Arc<Pusher>,
    pub(crate) push: Arc<PushSender>,
    methods: Methods,
    views: Arc<Views>,
    requests: Slots,
    uploads: Slots,
    session_states: SessionStates,
    /// True once the door closes, which ends streams and sockets.
    closing: watch::Sender<bool>,
}

impl App {
    pub(crate) fn new(parts: JmapParts, config: JmapConfig) -> Self {
        let parts = Arc::new(parts);
        let requests_max = config.requests_per_user_max.get();
        let pusher = Pusher::new(parts.clone(), Duration::from_millis(config.push_delay_ms));
        let pusher = Arc::new(pusher);
        Self {
            push: Arc::new(PushSender::new(parts.clone(), config.push.clone(), pusher.clone())),
            pusher,
            methods: Methods::new(methods::ALL),
            views: Arc::new(Views::new(config.views_bytes_max.get(), parts.metrics.queries.clone())),
            requests: Slots::new(requests_max, requests_max.saturating_mul(WAITING_FOR_A_SLOT)),
            uploads: Slots::new(config.uploads_per_user_max.get(), 0),
            session_states: SessionStates::default(),
            closing: watch::Sender::new(false),
            parts,
            config: Arc::new(config),
        }
    }

    /// The context for the methods of a request.
    pub(crate) fn context(&self, login: Arc<Login>, using: Using) -> Context {
        Context {
            parts: self.parts.clone(),
            config: self.config.clone(),
            login,
            using,
            views: self.views.clone(),
            push: self.push.clone(),
        }
    }

    /// Counts a stream or a socket of a user until the guard is dropped.
    ///
    /// # Errors
    /// 429 when the user has as many open as one may have.
    fn open_connection(&self, kind: ConnectionKind, login: &Login) -> Result<OpenConnection, Refusal> {
        let max = self.config.connections_per_user_max.get();
        self.parts.connections.open(kind, login.account, max).ok_or_else(|| {
            self.parts.metrics.count_refused_connection();
            let text = format!("this user has {max} event streams and WebSockets open: close one");
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, text)
        })
    }

    /// Ends all streams and sockets.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
        self.push.close();
    }

    /// Completes when the door closes.
    fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closing = self.closing.subscribe();
        async move {
            let _ = closing.wait_for(|closing| *closing).await; // fails when the door is gone
        }
    }

    /// The deadline for the next piece of a body.
    fn body_deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.config.body_timeout_ms.get())
    }
}

/// The routes, on the listener for users.
pub(crate) fn routes(app: &Arc<App>) -> Vec<Route> {
    let all = [
        Route::get("/.well-known/jmap", "the session object of JMAP", session::session),
        Route::post(API, "JMAP requests", api::api),
        Route::get(EVENTS, "changes of states, as an event stream", events::events).as_stream(),
        Route::get(SOCKET, "JMAP over a WebSocket", socket::socket).as_stream(),
        Route::post("/jmap/token", "a short-lived token for URLs", token::token),
        Route::post("/jmap/upload/{account}", "store a blob for a day", upload::upload),
        Route::get("/jmap/download/{account}/{blob}/{name}", "the bytes of a blob", download::download),
        Route::get("/jmap/download/{account}/{blob}/", "the bytes of a blob", download::download_unnamed),
    ];
    let policy = Route::get(mta_sts::PATH, "the MTA-STS policy of a domain", mta_sts::policy);
    let of_accounts = all.into_iter().map(|route| route.with_audience(Audience::Accounts));
    of_accounts.chain([policy]).map(|route| route.with_state(app.clone())).collect()
}

const API: &str = "/jmap/api";
const EVENTS: &str = "/jmap/events";
const SOCKET: &str = "/jmap/ws";
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Why a request is refused.
enum Failure {
    /// With an error that JMAP has a type for.
    Request(RequestError),
    /// With any other response.
    Refused(Refusal),
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for Failure {
    /// An error of a store: its text goes to the log.
    fn from(error: Error) -> Self {
        if error.is_transient() {
            return Self::Refused(UNAVAILABLE);
        }
        warn!(kind = error.kind().as_str(), %error, "a request of JMAP failed");
        Self::Refused(Refusal::internal())
    }
}

const UNAVAILABLE: Refusal = Refusal::unavailable("the server can't do this now: try again later");

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Refused(refusal) => refusal.into_response(),
            Self::Request(error) => {
                let mut body = Vec::new();
                error.write(&mut Object::open(&mut body));
                let mut response = reply::with_type(PROBLEM, body);
                *response.status_mut() = error.status();
                response
            }
        }
    }
}

/// The log-in of a request, as verified by the guard; its credentials must be valid for mail.
fn login(extensions: &axum::http::Extensions) -> Result<Arc<Login>, Refusal> {
    let login = extensions.get::<Arc<Login>>().cloned().ok_or(Refusal::internal())?;
    if !login.allows(Scope::Mail) {
        return Err(Refusal::forbidden("this token is not for mail: make one with the scope mail"));
    }
    Ok(login)
}

/// Whether the Content-Type of the body is JSON; parameters are allowed.
fn is_json(head: &Parts) -> bool {
    let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

fn not_json(detail: &'static str) -> RequestError {
    RequestError::new(RequestErrorKind::NotJson, detail)
}

type HttpRequest = Request<Body>;
