//! Maps errors of Cassandra to errors of the records.

use scylla::errors::{DbError, ExecutionError, RequestAttemptError};

use crate::Error;

/// An error of the driver: Cassandra is unreachable or overloaded, unless the error says otherwise.
pub(super) fn failed(what: &str, error: &(impl std::error::Error + ?Sized)) -> Error {
    Error::unavailable(format!("cassandra can't {what}: {error}"))
}

/// An error of a statement.
pub(super) fn statement_failed(what: &str, error: &ExecutionError) -> Error {
    if is_wrong(error) {
        return Error::internal(format!("cassandra can't {what}: {error}"));
    }
    failed(what, error)
}

/// Whether the statement was not executed and will fail again.
pub(super) fn is_wrong(error: &ExecutionError) -> bool {
    match error {
        ExecutionError::BadQuery(_) => true,
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, _)) => matches!(
            error,
            DbError::SyntaxError | DbError::Invalid | DbError::ConfigError | DbError::Unauthorized
        ),
        _ => false,
    }
}
