//! Maps errors of PostgreSQL to errors of the records.

use restante_core::ErrorKind;
use tokio_postgres::error::SqlState;

use crate::Error;

/// The kind of a database error.
fn kind_of(error: &tokio_postgres::Error) -> ErrorKind {
    let Some(state) = error.code() else {
        return ErrorKind::Unavailable; // no answer: the connection is lost or was never there
    };
    let class = state.code().get(..2).unwrap_or_default();
    match class {
        _ if is_in_the_way(error) => ErrorKind::Corrupt,
        _ if *state == SqlState::DISK_FULL => ErrorKind::Full,
        // Connections, rollbacks by conflict, resources, operator intervention, system errors, passwords; and what an operator
        // can repair while we wait: a missing database, a revoked privilege, a primary that has become a standby.
        "08" | "25" | "28" | "3D" | "40" | "53" | "55" | "57" | "58" => ErrorKind::Unavailable,
        "42" if *state == SqlState::INSUFFICIENT_PRIVILEGE => ErrorKind::Unavailable,
        "XX" if *state != SqlState::INTERNAL_ERROR => ErrorKind::Corrupt,
        _ => ErrorKind::Internal,
    }
}

/// Whether the row of a record to be created exists already.
fn is_in_the_way(error: &tokio_postgres::Error) -> bool {
    let Some(error) = error.as_db_error() else { return false };
    let table = error.table().unwrap_or_default();
    *error.code() == SqlState::UNIQUE_VIOLATION && table.starts_with("entry")
}

/// The privileges that the user of a server needs.
const RIGHTS: &str = "let its user own the schema of the records, or grant it SELECT, INSERT, UPDATE and DELETE on all tables there";

/// An error while doing `what`.
pub(super) fn failed(what: &str, source: tokio_postgres::Error) -> Error {
    let shown = match source.as_db_error() {
        Some(error) if *error.code() == SqlState::INSUFFICIENT_PRIVILEGE => {
            format!("{}: {RIGHTS}", error.message())
        }
        Some(error) if is_in_the_way(&source) => {
            let rows = "there are rows already of a record that is new: run `restante records check`, restore a backup";
            format!("{rows} ({})", error.detail().unwrap_or_default())
        }
        Some(error) => error.message().to_owned(),
        None => with_causes(&source),
    };
    Error::new(kind_of(&source), format!("postgres can't {what}: {shown}")).with_source(source)
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut shown = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        shown.push_str(": ");
        shown.push_str(&error.to_string());
        cause = error.source();
    }
    shown
}

/// The error of an attempt, with the database's own error, which decides whether another attempt makes sense.
#[derive(Debug)]
pub(super) enum AttemptError {
    Database(&'static str, tokio_postgres::Error),
    Other(Error),
}

impl AttemptError {
    /// Whether the same work may succeed at once on another connection, or now that another transaction has ended. Only for work
    /// that has certainly not been committed.
    pub(super) fn is_worth_repeating(&self) -> bool {
        let Self::Database(_, error) = self else { return false };
        let passing = [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
            // The actual error was reported to an earlier statement.
            SqlState::IN_FAILED_SQL_TRANSACTION,
        ];
        error.is_closed() || error.code().is_some_and(|state| passing.contains(state))
    }

    /// Whether a lock could not be acquired in time.
    pub(super) fn is_locked_out(&self) -> bool {
        matches!(self, Self::Database(_, error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }

    /// Whether the server refused a statement and so has rolled back the transaction. A shutdown doesn't count: it may have come
    /// after the commit.
    pub(super) fn is_refusal(&self) -> bool {
        let ends = [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW];
        matches!(self, Self::Database(_, error) if error.code().is_some_and(|state| !ends.contains(state)))
    }
}

impl From<AttemptError> for Error {
    fn from(error: AttemptError) -> Self {
        match error {
            AttemptError::Database(what, error) => failed(what, error),
            AttemptError::Other(error) => error,
        }
    }
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Adds to an error what the statement was for.
pub(super) trait Doing<T> {
    fn doing(self, what: &'static str) -> Result<T, AttemptError>;
}

impl<T> Doing<T> for Result<T, tokio_postgres::Error> {
    fn doing(self, what: &'static str) -> Result<T, AttemptError> {
        self.map_err(|error| AttemptError::Database(what, error))
    }
}

/// A column of a row that one of our statements returned.
pub(super) fn column<'r, T: tokio_postgres::types::FromSql<'r>>(
    row: &'r tokio_postgres::Row,
    number: usize,
) -> Result<T, AttemptError> {
    row.try_get(number).doing("be understood")
}

/// The same for callers that have no attempt to repeat.
pub(super) fn value<'r, T: tokio_postgres::types::FromSql<'r>>(
    row: &'r tokio_postgres::Row,
    number: usize,
) -> Result<T, Error> {
    column(row, number).map_err(Error::from)
}
