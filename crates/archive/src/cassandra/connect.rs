//! The connection to the cluster: a session that is opened on first use, prepared statements, and retries.

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use restante_core::{Clock, ErrorKind, Timestamp};
use scylla::{
    client::session::Session,
    deserialize::row::DeserializeRow,
    errors::{DbError, ExecutionError, PrepareError, RequestAttemptError},
    response::query_result::QueryResult,
    serialize::row::SerializeRow,
    statement::{
        Statement as Text,
        batch::{Batch, BatchType},
        prepared::PreparedStatement,
    },
};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    options,
    schema::{EpochId, Statement},
};
use crate::{CassandraConfig, CassandraUrl, Error};

/// The shortest and the longest pause between attempts; each is twice as long as the one before.
const BACK_OFF_MIN: Duration = Duration::from_millis(20);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// How long no new connection is tried after an attempt failed.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);
/// A change of the schema takes seconds, on a busy cluster more.
const SCHEMA_CHANGE_MAX: Duration = Duration::from_secs(60);

/// The connection to a cluster.
pub(super) struct Database {
    url: CassandraUrl,
    config: CassandraConfig,
    session: tokio::sync::RwLock<Option<Arc<Session>>>,
    /// When the last attempt to connect failed, and with which error.
    refused: Mutex<Option<(Instant, Error)>>,
    prepared: Mutex<HashMap<Statement, PreparedStatement, RandomState>>,
    reach: Mutex<Option<(String, Timestamp)>>,
    clock: Arc<dyn Clock>,
}

/// The outcome of a conditional statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applied {
    Yes,
    /// It was refused, or its outcome is unknown.
    Unsure,
}

impl Database {
    pub(super) fn new(
        url: CassandraUrl,
        config: CassandraConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        options::check(&url)?;
        Ok(Self {
            url,
            config,
            session: tokio::sync::RwLock::new(None),
            refused: Mutex::new(None),
            prepared: Mutex::default(),
            reach: Mutex::new(None),
            clock,
        })
    }

    pub(super) fn keyspace(&self) -> &str {
        self.url.keyspace()
    }

    /// The data center that the URL specifies.
    pub(super) fn datacenter(&self) -> Option<&str> {
        self.url.parameter("datacenter")
    }

    /// The problem that keeps the engine from working, and since when.
    pub(super) fn problem(&self) -> (Option<String>, Option<Timestamp>) {
        self.reach.lock().clone().unzip()
    }

    /// How long a request is repeated.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.config.patience_ms.get())
    }

    /// The session, opened if necessary. After a failure the same error is returned for a while.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Error> {
        if let Some(session) = &*self.session.read().await {
            return Ok(session.clone());
        }
        let mut slot = self.session.write().await;
        if let Some(session) = &*slot {
            return Ok(session.clone());
        }
        if let Some((at, error)) = &*self.refused.lock()
            && at.elapsed() < CONNECT_PAUSE
        {
            return Err(Error::new(error.kind(), error.to_string()));
        }
        match Box::pin(options::connect(&self.url, &self.config)).await {
            Ok(session) => {
                let session = Arc::new(session);
                *slot = Some(session.clone());
                Ok(session)
            }
            Err(error) => {
                self.note(Some(&error));
                let shown = Error::new(error.kind(), error.to_string());
                *self.refused.lock() = Some((Instant::now(), shown));
                Err(error)
            }
        }
    }

    /// Closes the connections once nothing uses them any more.
    pub(super) async fn close(&self) {
        self.prepared.lock().clear();
        *self.session.write().await = None;
    }

    /// The rows of a read that sees everything that was acknowledged.
    pub(super) async fn read<R>(
        &self,
        what: &'static str,
        statement: Statement,
        values: impl SerializeRow,
    ) -> Result<Vec<R>, Error>
    where
        R: for<'f, 'm> DeserializeRow<'f, 'm>,
    {
        let values = &values;
        let result = self
            .repeated(what, async || {
                let (session, prepared) = self.prepared(statement).await?;
                session.execute_unpaged(&prepared, values).await.map_err(Failure::Execution)
            })
            .await?;
        rows_of(what, result)
    }

    /// Executes a statement that is safe to execute twice.
    pub(super) async fn write(
        &self,
        what: &'static str,
        statement: Statement,
        values: impl SerializeRow,
    ) -> Result<(), Error> {
        let values = &values;
        let attempt = async || {
            let (session, prepared) = self.prepared(statement).await?;
            session.execute_unpaged(&prepared, values).await.map_err(Failure::Execution)
        };
        self.repeated(what, attempt).await.map(drop)
    }

    /// The same statement for several rows of one partition, all in one write.
    pub(super) async fn write_rows<V: SerializeRow>(
        &self,
        what: &'static str,
        statement: Statement,
        rows: &[V],
    ) -> Result<(), Error> {
        let attempt = async || {
            let (session, prepared) = self.prepared(statement).await?;
            if let [row] = rows {
                return session.execute_unpaged(&prepared, row).await.map_err(Failure::Execution);
            }
            let mut batch = Batch::new(BatchType::Unlogged);
            batch.set_is_idempotent(true);
            for _ in rows {
                batch.append_statement(prepared.clone());
            }
            session.batch(&batch, rows).await.map_err(Failure::Execution)
        };
        self.repeated(what, attempt).await.map(drop)
    }

    /// Executes a conditional statement, once.
    pub(super) async fn compare(
        &self,
        what: &'static str,
        statement: Statement,
        values: impl SerializeRow,
    ) -> Result<Applied, Error> {
        let (session, prepared) = self.prepared(statement).await.map_err(|failure| failure.error(what))?;
        let answer = match session.execute_unpaged(&prepared, &values).await {
            Ok(answer) => answer,
            Err(error) => {
                let failure = Failure::Execution(error);
                let verdict = failure.verdict();
                let error = failure.error(what);
                if verdict != Verdict::Passing {
                    return Err(error);
                }
                self.note(Some(&error));
                // The caller reads the state, and tries again from there.
                return Ok(Applied::Unsure);
            }
        };
        self.note(None);
        let rows: Vec<scylla::value::Row> = rows_of(what, answer)?;
        let first = rows.first().and_then(|row| row.columns.first()).and_then(Option::as_ref);
        let is_applied = first.and_then(scylla::value::CqlValue::as_boolean) == Some(true);
        Ok(if is_applied { Applied::Yes } else { Applied::Unsure })
    }

    /// Changes a keyspace or a table.
    pub(super) async fn change_schema(&self, what: &'static str, cql: &str) -> Result<(), Error> {
        let session = self.session().await?;
        let mut text = Text::new(cql);
        text.set_request_timeout(Some(SCHEMA_CHANGE_MAX));
        let done = session.query_unpaged(text, ()).await;
        done.map(drop).map_err(|error| Failure::Execution(error).error(what))
    }

    /// The rows of a statement about the cluster itself.
    pub(super) async fn ask<R>(&self, what: &'static str, cql: &str) -> Result<Vec<R>, Error>
    where
        R: for<'f, 'm> DeserializeRow<'f, 'm>,
    {
        let result = self
            .repeated(what, async || {
                let session = self.session().await.map_err(Failure::NoSession)?;
                session.query_unpaged(cql, ()).await.map_err(Failure::Execution)
            })
            .await?;
        rows_of(what, result)
    }

    /// Forgets the statements on a table that was dropped.
    pub(super) fn forget(&self, epoch: EpochId) {
        self.prepared.lock().retain(|statement, _| statement.epoch() != Some(epoch));
    }

    async fn prepared(&self, statement: Statement) -> Result<(Arc<Session>, PreparedStatement), Failure> {
        let session = self.session().await.map_err(Failure::NoSession)?;
        if let Some(prepared) = self.prepared.lock().get(&statement) {
            return Ok((session, prepared.clone()));
        }
        let prepared = session.prepare(statement.cql(self.keyspace())).await;
        let mut prepared = prepared.map_err(Failure::Prepare)?;
        prepared.set_is_idempotent(!statement.is_conditional());
        self.prepared.lock().insert(statement, prepared.clone());
        Ok((session, prepared))
    }

    /// Repeats an attempt until it succeeds, fails for good, or the patience is over.
    async fn repeated<F: Future<Output = Result<QueryResult, Failure>>>(
        &self,
        what: &'static str,
        attempt: impl Fn() -> F,
    ) -> Result<QueryResult, Error> {
        let deadline = Instant::now() + self.patience();
        let mut pause = BACK_OFF_MIN;
        loop {
            let failure = match attempt().await {
                Ok(result) => {
                    self.note(None);
                    return Ok(result);
                }
                Err(failure) => failure,
            };
            let verdict = failure.verdict();
            let error = failure.error(what);
            if verdict != Verdict::Passing {
                return Err(error);
            }
            self.note(Some(&error));
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACK_OFF_MAX);
        }
    }

    /// Remembers whether the cluster answers.
    fn note(&self, error: Option<&Error>) {
        let mut reach = self.reach.lock();
        match error {
            Some(error) if reach.is_none() => {
                warn!(%error, "cassandra does not answer");
                *reach = Some((error.to_string(), self.clock.now()));
            }
            None if reach.is_some() => {
                info!("cassandra answers again");
                *reach = None;
            }
            _ => {}
        }
    }
}

/// Why a statement has no result.
enum Failure {
    /// There is no connection, and none is tried for a while.
    NoSession(Error),
    Prepare(PrepareError),
    Execution(ExecutionError),
}

/// Whether an attempt that failed with an error is worth repeating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// No node answered, or not in time: the same request may succeed in a moment.
    Passing,
    /// A node refused it: the table does not exist (retention dropped it, or the node does not know it yet), or a permission is
    /// missing. It may succeed once that has changed.
    Refused,
    /// It can never succeed.
    Wrong,
}

impl Failure {
    fn verdict(&self) -> Verdict {
        match self {
            Self::NoSession(_) => Verdict::Refused,
            Self::Prepare(PrepareError::AllAttemptsFailed { first_attempt }) => verdict_of(first_attempt),
            Self::Execution(ExecutionError::LastAttemptError(error)) => verdict_of(error),
            Self::Execution(ExecutionError::BadQuery(_)) => Verdict::Wrong,
            Self::Prepare(_) | Self::Execution(_) => Verdict::Passing,
        }
    }

    fn error(self, what: &str) -> Error {
        let kind = match self.verdict() {
            Verdict::Passing | Verdict::Refused => ErrorKind::Unavailable,
            Verdict::Wrong => ErrorKind::Internal,
        };
        match self {
            Self::NoSession(error) => error,
            Self::Prepare(error) => {
                Error::new(kind, format!("cassandra can't {what}: {}", on_one_line(&error)))
            }
            Self::Execution(error) => {
                Error::new(kind, format!("cassandra can't {what}: {}", on_one_line(&error)))
            }
        }
    }
}

fn verdict_of(error: &RequestAttemptError) -> Verdict {
    match error {
        RequestAttemptError::DbError(DbError::Invalid | DbError::Unauthorized, _) => Verdict::Refused,
        RequestAttemptError::DbError(DbError::SyntaxError | DbError::ConfigError, _)
        | RequestAttemptError::SerializationError(_) => Verdict::Wrong,
        _ => Verdict::Passing,
    }
}

/// The text of an error, which the driver may have spread over several lines.
fn on_one_line(error: &dyn std::error::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn rows_of<R>(what: &str, result: QueryResult) -> Result<Vec<R>, Error>
where
    R: for<'f, 'm> DeserializeRow<'f, 'm>,
{
    let wrong = |error: &dyn std::error::Error| {
        Error::internal(format!(
            "cassandra can't {what}: its answer is not understood: {}",
            on_one_line(error)
        ))
    };
    if !result.is_rows() {
        return Ok(Vec::new());
    }
    let rows = result.into_rows_result().map_err(|error| wrong(&error))?;
    let rows = rows.rows::<R>().map_err(|error| wrong(&error))?;
    rows.collect::<Result<_, _>>().map_err(|error| wrong(&error))
}
