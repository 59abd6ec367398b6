//! Whether the server works: the health of each role and of each part of a door, and the answer of `GET /health`.
//!
//! The answer has nwaku's fields: `nodeHealth`, and in `protocolsHealth` an object for each component.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use axum::{http::StatusCode, response::Response};
use restante_core::Timestamp;
use restante_http::reply::{self, cut};
use serde_json::{Map, Value, json};

/// Texts of components are truncated to this: they repeat those of databases.
const DESCRIPTION_CHARS_MAX: usize = 600;

/// The state of a component.
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
    /// Its state.
    pub status: Status,
    /// What is wrong, or what an operator should know although nothing is wrong.
    pub description: Option<String>,
    /// Whether its door can't serve without it.
    pub is_vital: bool,
}

impl ComponentHealth {
    /// A component that works unless there is a problem, and that is not vital to its door.
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

/// The health of a role that is checked without I/O.
#[derive(Clone)]
pub struct RoleCheck {
    /// The role's name.
    pub name: &'static str,
    /// What is wrong with it, if anything.
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

/// The answer to `GET /health`: 503 if a component that is vital to a door of this listener does not work.
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
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// Since when, if that is known.
    pub since: Option<Timestamp>,
}

/// What the console shows of an archive of messages. Implemented by `ArchiveHealth`, which the feature `archive` adds.
#[async_trait]
pub trait ArchiveReport: Send + Sync {
    /// Whether it is ready as far as that is known without querying it.
    fn is_ready(&self) -> bool;

    /// What an operator should know, without querying the archive.
    fn problems(&self) -> Vec<Problem>;

    /// The fields of `archive` in the state that the page reads, without querying the archive.
    fn show(&self) -> Map<String, Value>;

    /// What retention keeps, and the result of its last runs.
    fn show_retention(&self) -> Value;

    /// Its content; `null` if it can't be counted now.
    async fn held(&self, now: Timestamp) -> Value;
}
