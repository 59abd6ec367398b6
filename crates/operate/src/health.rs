//! Whether the server works: of each role and of each part of a door, and what `GET /health` answers.
//!
//! The answer has nwaku's fields: `nodeHealth`, and in `protocolsHealth` an object for each component.

use std::{fmt, sync::Arc, time::Duration};

use axum::{http::StatusCode, response::Response};
use parking_lot::RwLock;
use restante_archive::{Archive, Following, Health, Query, Upkeep};
use restante_core::Timestamp;
use restante_http::reply::{self, cut};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};

/// Texts of components are cut here: they repeat those of databases.
const DESCRIPTION_CHARS_MAX: usize = 600;
/// How long a failed append counts. An archive that works again may have nothing that proves it: relayed messages are appended
/// elsewhere.
const APPEND_FAILURE_COUNTS: Duration = Duration::from_secs(60);

/// How a component is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It works.
    Ready,
    /// It does not work now.
    NotReady,
    /// It is switched off.
    NotMounted,
}

impl Status {
    /// nwaku's words.
    fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::NotReady => "Not Ready",
            Self::NotMounted => "Not Mounted",
        }
    }
}

/// The health of a role, or of a part of a door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentHealth {
    /// Its name in the answer.
    pub name: &'static str,
    /// How it is.
    pub status: Status,
    /// What is wrong, or what an operator should know although nothing is.
    pub description: Option<String>,
    /// Whether its door can't serve without it.
    pub is_vital: bool,
}

impl ComponentHealth {
    /// A component that works unless there is a problem, and without which its door serves.
    pub fn new(name: &'static str, problem: Option<String>) -> Self {
        let status = if problem.is_none() { Status::Ready } else { Status::NotReady };
        Self { name, status, description: problem, is_vital: false }
    }

    fn show(&self) -> Value {
        let mut shown = Map::new();
        shown.insert(self.name.to_owned(), self.status.as_str().into());
        if let Some(description) = &self.description {
            shown.insert("desc".to_owned(), cut(description, DESCRIPTION_CHARS_MAX).into());
        }
        Value::Object(shown)
    }
}

/// The health of a role that answers from memory.
#[derive(Clone)]
pub struct RoleCheck {
    /// The role's name.
    pub name: &'static str,
    /// What is wrong with it, if something is.
    pub problem: Arc<dyn Fn() -> Option<String> + Send + Sync>,
}

impl fmt::Debug for RoleCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoleCheck").field("name", &self.name).finish_non_exhaustive()
    }
}

impl RoleCheck {
    pub(crate) fn health(&self) -> ComponentHealth {
        ComponentHealth::new(self.name, (self.problem)())
    }
}

/// The answer to `GET /health`: 503 when a component does not work that is vital to a door of this listener.
pub(crate) fn answer(components: &[ComponentHealth]) -> Response {
    let is_ready =
        !components.iter().any(|component| component.is_vital && component.status == Status::NotReady);
    let status = if is_ready { Status::Ready } else { Status::NotReady };
    let shown: Vec<Value> = components.iter().map(ComponentHealth::show).collect();
    let mut response =
        reply::json(json!({"nodeHealth": status.as_str(), "protocolsHealth": shown}).to_string());
    if !is_ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) what: String,
    pub(crate) since: Option<Timestamp>,
}

/// Whether an archive works: everything that is known of it, in one place.
pub struct ArchiveHealth {
    archive: Arc<dyn Archive>,
    upkeep: Arc<dyn Upkeep>,
    /// How long the archive may take to answer.
    timeout: Duration,
    append_failed_at: RwLock<Option<Instant>>,
}

impl fmt::Debug for ArchiveHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchiveHealth").finish_non_exhaustive()
    }
}

impl ArchiveHealth {
    /// The health of an archive that should answer within `timeout`.
    pub fn new(archive: Arc<dyn Archive>, upkeep: Arc<dyn Upkeep>, timeout: Duration) -> Self {
        Self { archive, upkeep, timeout, append_failed_at: RwLock::default() }
    }

    /// The archive's upkeep.
    pub fn upkeep(&self) -> &Arc<dyn Upkeep> {
        &self.upkeep
    }

    /// Notes whether the archive took the last message that was offered to it.
    pub fn note_append(&self, is_taken: bool) {
        if !is_taken {
            *self.append_failed_at.write() = Some(Instant::now());
        } else if self.append_failed_at.read().is_some() {
            *self.append_failed_at.write() = None;
        }
    }

    /// Asks the archive. It is ready when it knows of no problem, took the last message that was offered to it, and answers a query.
    ///
    /// While its engine is away it is not ready although messages are taken into the spool, because queries can't be answered: a
    /// proxy shall send them elsewhere.
    pub async fn check(&self, name: &'static str) -> ComponentHealth {
        let health = self.upkeep.health();
        let mut problem = self.problem(&health);
        if health.problem.is_none() && !self.answers().await {
            problem = Some(Problem { what: "the archive does not answer".to_owned(), since: None });
        }
        let status = if problem.is_none() { Status::Ready } else { Status::NotReady };
        let described = describe(problem.as_ref(), &health);
        let description = (!described.is_empty()).then_some(described);
        ComponentHealth { name, status, description, is_vital: true }
    }

    /// Whether it is ready as far as that is known without asking it.
    pub(crate) fn is_ready(&self) -> bool {
        self.problem(&self.upkeep.health()).is_none()
    }

    /// What an operator should know, without asking the archive.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let health = self.upkeep.health();
        let mut problems: Vec<Problem> = self.problem(&health).into_iter().collect();
        if let Some(following) = &health.following
            && let Some(what) = &following.problem
        {
            let what = format!("the tandem's second archive: {what}");
            problems.push(Problem { what, since: following.since });
        }
        problems.extend(health.damage.map(|what| Problem { what, since: None }));
        problems
    }

    fn problem(&self, health: &Health) -> Option<Problem> {
        if let Some(what) = &health.problem {
            return Some(Problem { what: what.clone(), since: health.since });
        }
        let what = "the last message could not be archived".to_owned();
        (!self.takes_messages()).then_some(Problem { what, since: None })
    }

    fn takes_messages(&self) -> bool {
        self.append_failed_at.read().is_none_or(|at| at.elapsed() >= APPEND_FAILURE_COUNTS)
    }

    async fn answers(&self) -> bool {
        let query = Query { limit: 1, bodies: false, ..Query::default() };
        matches!(timeout(self.timeout, self.archive.query(&query)).await, Ok(Ok(_)))
    }
}

/// What operators want to know of an archive, in a sentence or two.
fn describe(problem: Option<&Problem>, health: &Health) -> String {
    let mut parts: Vec<String> =
        problem.map(|problem| with_since(&problem.what, problem.since)).into_iter().collect();
    parts.extend(health.damage.clone());
    if health.spooled_messages > 0 {
        let waiting = amount(health.spooled_messages, health.spooled_bytes);
        parts.push(format!("waiting in the spool: {waiting}"));
    }
    if let Some(following) = &health.following {
        parts.extend(describe_following(following));
    }
    parts.join("; ")
}

/// How far the second archive of a tandem lags behind. That changes nothing for those who publish and query.
fn describe_following(following: &Following) -> Option<String> {
    let Following { engine, problem, since, messages, bytes, .. } = following;
    let amount = amount(*messages, *bytes);
    let lag = format!("the tandem's second archive ({engine}) is behind by {amount}");
    match problem {
        Some(problem) => Some(format!("{lag}: {}", with_since(problem, *since))),
        None => (*messages > 0).then_some(lag),
    }
}

fn amount(messages: u64, bytes: u64) -> String {
    let plural = if messages == 1 { "" } else { "s" };
    format!("{messages} message{plural} ({bytes} bytes)")
}

fn with_since(problem: &str, since: Option<Timestamp>) -> String {
    since.map_or_else(|| problem.to_owned(), |since| format!("{problem}, since {since}"))
}
