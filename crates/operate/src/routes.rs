//! The routes of operators, and all routes of a listener.

use std::{fmt, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, Uri, header},
    response::Response,
};
use futures_util::future::join_all;
use restante_core::Clock;
use restante_http::{Audience, MemoryBudget, Permits, Refusal, Route, describe, path, reply};
use restante_sessions::Live;
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    ArchiveReport, ComponentHealth, Door, Listener, Offer, RoleCheck, ShowFacts,
    console::{self, ConsoleState},
    health, sessions,
};

/// The longest name of a log level that is parsed.
const LEVEL_BYTES_MAX: usize = 256;
const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Sets the log level, by a name as `debug` or `WARN`; returns an error text for an unknown one.
pub type SetLogLevel = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// What operators can see and change.
#[derive(Clone)]
pub struct Parts {
    /// The doors of the server.
    pub doors: Vec<Arc<dyn Door>>,
    /// The roles that no door reports, in the order in which health lists them.
    pub roles: Vec<RoleCheck>,
    /// The archive of messages, if one is open.
    pub archive: Option<Arc<dyn ArchiveReport>>,
    /// What the console shows of roles that no door shows.
    pub facts: Vec<ShowFacts>,
    /// Who is connected.
    pub live: Live,
    /// The listeners with their addresses, for the console.
    pub addresses: Vec<(Listener, String)>,
    /// Further routes for operators.
    pub routes: Vec<Route>,
    /// Returns the text of `GET /metrics`.
    pub metrics_text: Arc<dyn Fn() -> String + Send + Sync>,
    /// Sets the log level while the server runs, if that is possible.
    pub set_log_level: Option<SetLogLevel>,
    /// The server's version.
    pub version: &'static str,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Memory for answers.
    pub memory: Arc<MemoryBudget>,
    /// Permits for requests that query the table of sessions.
    pub permits: Permits,
    /// How long a request may take until its answer begins.
    pub request_timeout: Duration,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// The state of the handlers.
#[derive(Debug)]
pub struct Operate {
    pub(crate) parts: Parts,
    /// Held by the one iteration over the table of sessions.
    pub(crate) walks: Semaphore,
    pub(crate) console: ConsoleState,
}

impl Operate {
    /// The routes of a server with these parts.
    pub fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self { parts, walks: Semaphore::new(1), console: ConsoleState::default() })
    }

    /// All routes of a listener: those of the doors, and those of operators that are offered there. `GET /` lists them. On
    /// [`Listener::Public`] metrics, details of health and the version are left out.
    ///
    /// Where the console is offered, its plots begin with this call.
    pub fn routes(self: &Arc<Self>, listener: Listener, offer: Offer) -> Vec<Route> {
        if offer.console {
            console::watch(self);
        }
        let mut served = Vec::new();
        let mut routes = Vec::new();
        for door in &self.parts.doors {
            let of_door = door.routes(listener, offer);
            if !of_door.is_empty() || listener == Listener::Operate {
                served.push(door.clone());
            }
            routes.extend(of_door);
        }
        routes.extend(
            self.own_routes(listener, served, offer).into_iter().map(|route| route.with_state(self.clone())),
        );
        if offer.admin {
            routes.extend(self.parts.routes.iter().cloned());
        }
        routes.push(self.index(listener, &routes, offer));
        routes
    }

    fn own_routes(
        &self,
        listener: Listener,
        served: Vec<Arc<dyn Door>>,
        offer: Offer,
    ) -> Vec<Route<Arc<Self>>> {
        let health = move |State(operate): State<Arc<Self>>| health(operate, listener, served.clone());
        let mut routes = vec![Route::get("/health", "whether the server works", health)];
        if listener != Listener::Public {
            routes.push(Route::get("/metrics", "metrics for Prometheus", metrics));
        }
        if offer.console {
            let state =
                move |State(operate): State<Arc<Self>>, query| console::state(operate, query, offer.admin);
            routes.extend([
                Route::get("/console/v1/state", "what the console shows", state)
                    .with_audience(Audience::Operators),
                Route::get("/console", "leads to the console page", console::redirect).as_linked_page(),
                Route::get("/console/", "the same", console::redirect),
                Route::get("/console/{file}", "a file of the console page", console::file),
            ]);
        }
        if offer.admin {
            let (all, one) = ("/admin/v1/sessions", "/admin/v1/sessions/{sessionId}");
            let log_level = "/admin/v1/log-level/{logLevel}";
            let admin = [
                Route::get(all, "who is connected", sessions::list),
                Route::delete(all, "close all sessions of a user", sessions::close_all),
                Route::get("/admin/v1/sessions/counts", "how many are connected", sessions::counts),
                Route::get(one, "one session", sessions::one),
                Route::delete(one, "close it", sessions::close),
                Route::post(log_level, "set the log level", set_log_level),
            ];
            routes.extend(admin.map(|route| route.with_audience(Audience::Operators)));
        }
        routes
    }

    /// `GET /`: the console for browsers, where it is offered, and the routes for others.
    fn index(&self, listener: Listener, routes: &[Route], offer: Offer) -> Route {
        let (path, what) = ("/", "this text");
        let answer = |_: HeaderMap| std::future::ready(());
        let own = Route::get(path, what, answer);
        let listed = describe(&[&[own][..], routes].concat());
        let version = if listener == Listener::Public { "" } else { self.parts.version };
        let text: Arc<str> = format!("{}\n\n{listed}", format!("restante {version}").trim_end()).into();
        let answer = move |headers: HeaderMap| {
            let response = if offer.console && console::is_wanted(&headers) {
                console::page(&headers)
            } else {
                let mut response = reply::text(text.to_string());
                response.headers_mut().insert(header::VARY, console::VARY);
                response
            };
            std::future::ready(response)
        };
        Route::get(path, what, answer).as_linked_page()
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.parts.request_timeout
    }

    /// A problem of the table of sessions: whether other servers see this one's sessions, and this one theirs.
    pub(crate) fn sessions_problem(&self) -> Option<String> {
        self.parts.live.nodes.health().err().map(|error| error.to_string())
    }
}

/// `GET /health`: the doors of the listener, then the roles. A role is vital only to the doors that report it: history is served
/// without records, blobs and other servers' sessions. Public clients learn which part of a door works, but not why one does not.
async fn health(operate: Arc<Operate>, listener: Listener, doors: Vec<Arc<dyn Door>>) -> Response {
    let of_doors = join_all(doors.iter().map(|door| door.health())).await;
    let mut components: Vec<ComponentHealth> = of_doors.into_iter().flatten().collect();
    if listener == Listener::Public {
        components.iter_mut().for_each(|component| component.description = None);
        return health::answer(&components);
    }
    components.extend(operate.parts.roles.iter().map(RoleCheck::health));
    components.push(ComponentHealth::new("Sessions", operate.sessions_problem()));
    health::answer(&components)
}

/// `GET /metrics`
async fn metrics(State(operate): State<Arc<Operate>>) -> Result<Response, Refusal> {
    let text = (operate.parts.metrics_text)().into_bytes();
    let memory = operate.parts.memory.acquire(text.capacity(), operate.deadline()).await?;
    Ok(reply::with_type(OPENMETRICS, memory.hold(text)))
}

/// `POST /admin/v1/log-level/{logLevel}`
async fn set_log_level(State(operate): State<Arc<Operate>>, uri: Uri) -> Result<Response, Refusal> {
    let level = path::last(&uri, "logLevel")?;
    if level.len() > LEVEL_BYTES_MAX {
        return Err(Refusal::field("logLevel", "is too long"));
    }
    let unable = Refusal::unavailable("this server can't change its log level while it runs");
    let set = operate.parts.set_log_level.as_ref().ok_or(unable)?;
    set(&level).map_err(|problem| Refusal::field("logLevel", &problem))?;
    Ok(reply::text("OK"))
}

#[cfg(test)]
mod tests;
