//! The archive of messages, for operators: whether it works, what it holds, and what retention did.

mod days;
mod retention;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::RwLock;
use restante_archive::{Archive, Following, Health, Query, Stats, Upkeep};
use restante_core::Timestamp;
use restante_http::reply::cut;
use serde_json::{Map, Value, json};
use tokio::{
    runtime::Handle,
    task::spawn_blocking,
    time::{Instant, timeout},
};

pub use retention::RetentionState;

use crate::{
    ArchiveReport, ComponentHealth, Problem, Status,
    console::state::{PROBLEM_CHARS_MAX, millis},
};
use days::Days;

/// How long a failed append counts. An archive that works again may have no later append to show it: relayed messages are
/// appended elsewhere.
const APPEND_FAILURE_COUNTS: Duration = Duration::from_secs(60);

/// The health of an archive: everything that is known of it, in one place.
pub struct ArchiveHealth {
    archive: Arc<dyn Archive>,
    upkeep: Arc<dyn Upkeep>,
    /// How long the archive may take to answer.
    timeout: Duration,
    retention: RetentionState,
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
        let retention = RetentionState::default();
        Self { archive, upkeep, timeout, retention, append_failed_at: RwLock::default() }
    }

    /// The archive's upkeep.
    pub fn upkeep(&self) -> &Arc<dyn Upkeep> {
        &self.upkeep
    }

    /// The same for an archive with a retention policy.
    pub fn with_retention(self, retention: RetentionState) -> Self {
        Self { retention, ..self }
    }

    /// Notes whether the archive accepted the last message that was appended.
    pub fn note_append(&self, is_taken: bool) {
        if !is_taken {
            *self.append_failed_at.write() = Some(Instant::now());
        } else if self.append_failed_at.read().is_some() {
            *self.append_failed_at.write() = None;
        }
    }

    /// Checks the archive. It is ready if it knows of no problem, accepted the last message that was appended, and answers a
    /// query.
    ///
    /// While its engine is unreachable it is not ready although messages are stored in the spool, because queries can't be
    /// answered: a proxy should send them elsewhere.
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

#[async_trait]
impl ArchiveReport for ArchiveHealth {
    fn is_ready(&self) -> bool {
        self.problem(&self.upkeep.health()).is_none()
    }

    fn problems(&self) -> Vec<Problem> {
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

    fn show(&self) -> Map<String, Value> {
        let health = self.upkeep.health();
        let following = health.following.as_ref().map(|following| {
            json!({
                "engine": following.engine,
                "problem": following.problem.as_deref().map(|problem| cut(problem, PROBLEM_CHARS_MAX)),
                "isStopped": following.is_stopped,
                "messages": following.messages,
                "bytes": following.bytes,
            })
        });
        let spool = json!({"messages": health.spooled_messages, "bytes": health.spooled_bytes});
        let is_spooling = health.spooled_messages > 0 || health.spooled_bytes > 0;
        let fields = [
            ("isWell", self.is_ready().into()),
            ("spool", json!(is_spooling.then_some(spool))),
            ("tandem", json!(following)),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn show_retention(&self) -> Value {
        self.retention.show()
    }

    /// Engines may take long to count, so this doesn't run on a worker.
    async fn held(&self, now: Timestamp) -> Value {
        let (upkeep, runtime) = (self.upkeep.clone(), Handle::current());
        let counted = spawn_blocking(move || {
            let stats = runtime.block_on(upkeep.stats());
            stats.map_or(Value::Null, |stats| show_stats(&stats, now))
        });
        counted.await.unwrap_or(Value::Null)
    }
}

fn show_stats(stats: &Stats, now: Timestamp) -> Value {
    json!({
        "at": millis(now),
        "messages": stats.messages,
        "topics": stats.topics,
        "bodyBytes": stats.body_bytes,
        "diskBytes": stats.disk_bytes,
        "oldest": stats.oldest.map(millis),
        "newest": stats.newest.map(millis),
        "parts": stats.parts.len(),
        "days": Days::of(&stats.parts, now),
    })
}

/// The state of an archive for operators, in a sentence or two.
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

/// How far the second archive of a tandem lags behind. This doesn't affect clients that publish and query.
fn describe_following(following: &Following) -> Option<String> {
    let Following { engine, problem, since, messages, bytes, .. } = following;
    let amount = amount(*messages, *bytes);
    let lag = format!("the tandem's second archive ({engine}) lags by {amount}");
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
