//! Statements: prepared once, retried when that is safe, each attempt with its own time-out.

use std::{
    collections::HashMap,
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::metrics::{counter::Counter, family::Family};
use scylla::{
    client::session::Session,
    errors::ExecutionError,
    response::query_result::QueryResult,
    statement::{
        Consistency, Statement,
        batch::{Batch, BatchType},
        prepared::PreparedStatement,
    },
    value::{CqlValue, Row},
};
use tokio::time::Instant;

use super::{
    error::{failed, is_wrong, statement_failed},
    options,
};
use crate::{CassandraUrl, Config, Error, metrics::RequestLabel};

pub(super) const BACK_OFF_MIN: Duration = Duration::from_millis(20);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// A statement and its values.
pub(super) type Bound = (&'static str, Vec<CqlValue>);

/// The connections to a cluster.
pub(super) struct Database {
    pub(super) session: Session,
    prepared: Mutex<HashMap<(&'static str, Use), PreparedStatement>>,
    /// How long a statement is retried.
    patience: Duration,
    is_reached: AtomicBool,
    requests: Family<RequestLabel, Counter>,
}

/// What a statement is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Use {
    /// It is idempotent.
    Repeatable,
    /// A read that also completes a commit in progress.
    Serial,
    /// It is conditional, or in a batch with a conditional statement.
    Conditional,
}

/// Cassandra's answer to a conditional statement or batch.
#[derive(Debug)]
pub(super) enum Answer {
    Applied,
    /// The condition did not hold. Has the columns of the row that the condition is on, as far as the row exists.
    Refused(HashMap<String, CqlValue>),
    /// The outcome is unknown: the answer was lost, or came too late.
    Unknown(Error),
}

impl Database {
    pub(super) async fn open(url: &CassandraUrl, config: &Config) -> Result<Self, Error> {
        let session = options::connect(url, &config.cassandra, true).await?;
        Ok(Self {
            session,
            prepared: Mutex::new(HashMap::new()),
            patience: Duration::from_millis(config.cassandra.patience_ms.get()),
            is_reached: AtomicBool::new(true),
            requests: config.metrics.cassandra_requests.clone(),
        })
    }

    /// The error that commits are answered with while no node can be reached.
    pub(super) fn health(&self) -> Result<(), Error> {
        if self.is_reached.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::unavailable("cassandra doesn't answer"))
    }

    /// How long a statement is retried.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// The deadline of an operation that starts now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    fn count(&self, request: RequestLabel) {
        self.requests.get_or_create(&request).inc();
    }

    /// Reads rows; sees everything that was acknowledged.
    pub(super) async fn read(
        &self,
        what: &str,
        statement: &'static str,
        values: Vec<CqlValue>,
    ) -> Result<Vec<Row>, Error> {
        self.rows(what, statement, Use::Repeatable, &values).await
    }

    /// Reads rows; sees everything that is decided, and makes it visible to all readers.
    pub(super) async fn read_serial(
        &self,
        what: &str,
        statement: &'static str,
        values: Vec<CqlValue>,
    ) -> Result<Vec<Row>, Error> {
        self.rows(what, statement, Use::Serial, &values).await
    }

    async fn rows(
        &self,
        what: &str,
        statement: &'static str,
        used: Use,
        values: &[CqlValue],
    ) -> Result<Vec<Row>, Error> {
        let result = self
            .repeated(what, async || {
                let prepared = self.prepared(what, statement, used).await?;
                self.count(if used == Use::Serial { RequestLabel::SERIAL_READ } else { RequestLabel::READ });
                self.session.execute_unpaged(&prepared, values).await.map_err(Failure::Statement)
            })
            .await?;
        rows_of(what, result)
    }

    /// Executes an idempotent statement.
    pub(super) async fn write(
        &self,
        what: &str,
        statement: &'static str,
        values: Vec<CqlValue>,
    ) -> Result<(), Error> {
        self.repeated(what, async || {
            let prepared = self.prepared(what, statement, Use::Repeatable).await?;
            self.count(RequestLabel::WRITE);
            self.session.execute_unpaged(&prepared, &values).await.map_err(Failure::Statement)
        })
        .await
        .map(drop)
    }

    /// The same for statements on one partition, which are applied together or not at all.
    pub(super) async fn write_all(&self, what: &str, statements: Vec<Bound>) -> Result<(), Error> {
        self.repeated(what, async || {
            let (mut batch, values) = self.batch(what, &statements, Use::Repeatable).await?;
            batch.set_is_idempotent(true);
            self.count(RequestLabel::WRITE);
            self.session.batch(&batch, values).await.map_err(Failure::Statement)
        })
        .await
        .map(drop)
    }

    /// Executes statements on one partition, one of them conditional: all are applied or none. No retry.
    ///
    /// # Errors
    /// The statements were certainly not applied, and never will be.
    pub(super) async fn compare(&self, what: &str, statements: &[Bound]) -> Result<Answer, Error> {
        self.count(RequestLabel::CONDITIONAL);
        let result = match statements {
            [(statement, values)] => {
                let prepared = match self.prepared(what, statement, Use::Conditional).await {
                    Ok(prepared) => prepared,
                    Err(failure) => return failure.of_comparison(what),
                };
                self.session.execute_unpaged(&prepared, values).await
            }
            _ => {
                let (batch, values) = match self.batch(what, statements, Use::Conditional).await {
                    Ok(made) => made,
                    Err(failure) => return failure.of_comparison(what),
                };
                self.session.batch(&batch, values).await
            }
        };
        self.note(result.as_ref().err());
        match result {
            Ok(result) => answer_of(what, result),
            Err(error) => Failure::Statement(error).of_comparison(what),
        }
    }

    /// The same, retried until the outcome is known; returns the columns of the row when it was refused. The statements must be idempotent.
    pub(super) async fn compare_until_known(
        &self,
        what: &str,
        statements: &[Bound],
    ) -> Result<Option<HashMap<String, CqlValue>>, Error> {
        let deadline = self.deadline();
        loop {
            match self.compare(what, statements).await? {
                Answer::Applied => return Ok(None),
                Answer::Refused(columns) => return Ok(Some(columns)),
                Answer::Unknown(error) if Instant::now() >= deadline => return Err(error),
                Answer::Unknown(_) => tokio::time::sleep(jittered(BACK_OFF_MIN)).await,
            }
        }
    }

    async fn batch(
        &self,
        what: &str,
        statements: &[Bound],
        used: Use,
    ) -> Result<(Batch, Vec<Vec<CqlValue>>), Failure> {
        let mut batch = Batch::new(BatchType::Unlogged);
        let mut values = Vec::with_capacity(statements.len());
        for (statement, bound) in statements {
            batch.append_statement(self.prepared(what, statement, used).await?);
            values.push(bound.clone());
        }
        Ok((batch, values))
    }

    async fn prepared(
        &self,
        what: &str,
        statement: &'static str,
        used: Use,
    ) -> Result<PreparedStatement, Failure> {
        if let Some(prepared) = self.prepared.lock().get(&(statement, used)) {
            return Ok(prepared.clone());
        }
        let prepared = self.session.prepare(statement).await;
        let mut prepared = prepared.map_err(|error| Failure::Other(failed(what, &error)))?;
        prepared.set_is_idempotent(used != Use::Conditional);
        if used == Use::Serial {
            prepared.set_consistency(Consistency::LocalSerial);
        }
        self.prepared.lock().insert((statement, used), prepared.clone());
        Ok(prepared)
    }

    /// Retries an operation until it succeeds or `patience` has passed.
    async fn repeated<F: Future<Output = Result<QueryResult, Failure>>>(
        &self,
        what: &str,
        attempt: impl Fn() -> F,
    ) -> Result<QueryResult, Error> {
        let deadline = self.deadline();
        let mut wait = BACK_OFF_MIN;
        loop {
            let error = match attempt().await {
                Ok(result) => {
                    self.note(None);
                    return Ok(result);
                }
                Err(Failure::Statement(error)) => {
                    self.note(Some(&error));
                    statement_failed(what, &error)
                }
                Err(Failure::Other(error)) => error,
            };
            if !error.is_transient() || Instant::now() + wait >= deadline {
                return Err(error);
            }
            tokio::time::sleep(jittered(wait)).await;
            wait = (wait * 2).min(BACK_OFF_MAX);
        }
    }

    fn note(&self, error: Option<&ExecutionError>) {
        self.is_reached.store(error.is_none_or(is_wrong), Ordering::Relaxed);
    }

    /// Changes the keyspace or a table.
    pub(super) async fn change_schema(&self, what: &str, text: &str) -> Result<(), Error> {
        change_schema(&self.session, what, text).await
    }

    /// The rows of a statement that is rarely executed, and therefore not prepared.
    pub(super) async fn ask(&self, what: &str, text: &str, values: Vec<CqlValue>) -> Result<Vec<Row>, Error> {
        let result = self.session.query_unpaged(text, values).await;
        rows_of(what, result.map_err(|error| statement_failed(what, &error))?)
    }
}

/// Changes a keyspace or a table.
pub(super) async fn change_schema(session: &Session, what: &str, text: &str) -> Result<(), Error> {
    let mut statement = Statement::new(text);
    statement.set_request_timeout(Some(Duration::from_secs(60)));
    let done = session.query_unpaged(statement, ()).await;
    done.map(drop).map_err(|error| statement_failed(what, &error))
}

/// Why a statement has no result.
#[expect(clippy::large_enum_variant, reason = "it is handled at once, and never kept")]
enum Failure {
    Statement(ExecutionError),
    Other(Error),
}

impl Failure {
    fn of_comparison(self, what: &str) -> Result<Answer, Error> {
        match self {
            Self::Statement(error) if is_wrong(&error) => Err(statement_failed(what, &error)),
            Self::Statement(error) => Ok(Answer::Unknown(failed(what, &error))),
            Self::Other(error) => Ok(Answer::Unknown(error)),
        }
    }
}

fn rows_of(what: &str, result: QueryResult) -> Result<Vec<Row>, Error> {
    if !result.is_rows() {
        return Ok(Vec::new());
    }
    let rows = result.into_rows_result().map_err(|error| failed(what, &error))?;
    let rows = rows.rows::<Row>().map_err(|error| failed(what, &error))?;
    rows.collect::<Result<Vec<Row>, _>>().map_err(|error| failed(what, &error))
}

fn answer_of(what: &str, result: QueryResult) -> Result<Answer, Error> {
    let read = || {
        let rows = result.into_rows_result().ok()?;
        let row = rows.first_row::<Row>().ok()?;
        let mut columns = HashMap::new();
        for (spec, value) in rows.column_specs().iter().zip(row.columns) {
            if let Some(value) = value {
                columns.insert(spec.name().to_owned(), value);
            }
        }
        match columns.remove("[applied]")? {
            CqlValue::Boolean(true) => Some(Answer::Applied),
            CqlValue::Boolean(false) => Some(Answer::Refused(columns)),
            _ => None,
        }
    };
    let unreadable =
        || Answer::Unknown(Error::unavailable(format!("cassandra's answer to {what} can't be read")));
    Ok(read().unwrap_or_else(unreadable))
}

/// A random duration from half of `delay` to `delay`, so that several servers don't retry at the same moment.
pub(super) fn jittered(delay: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let chance = RandomState::new().hash_one(0) % 512;
    delay / 2 + delay * chance as u32 / 1_024
}

/// The bytes in a column; `None` when it is null or has another type.
pub(super) fn bytes(row: &Row, column: usize) -> Option<&[u8]> {
    match row.columns.get(column)? {
        Some(CqlValue::Blob(bytes)) => Some(bytes),
        _ => None,
    }
}

/// The number in a column.
pub(super) fn number(row: &Row, column: usize) -> Option<u64> {
    match row.columns.get(column)? {
        Some(CqlValue::BigInt(number)) => u64::try_from(*number).ok(),
        Some(CqlValue::Int(number)) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// A value to bind.
pub(super) fn blob(bytes: impl Into<Vec<u8>>) -> CqlValue {
    CqlValue::Blob(bytes.into())
}

/// A value to bind. Our own counters are below `i64::MAX`; larger numbers come from a caller, and are bound as a value above all
/// that exist.
pub(super) fn bigint(number: u64) -> CqlValue {
    CqlValue::BigInt(i64::try_from(number).unwrap_or(i64::MAX))
}

/// A value to bind.
pub(super) fn text(text: &str) -> CqlValue {
    CqlValue::Text(text.to_owned())
}
