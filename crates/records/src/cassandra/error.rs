//! What an error of Cassandra means.

use scylla::errors::{DbError, ExecutionError, RequestAttemptError};

use crate::Error;

/// An error of the driver: cassandra can't be reached or is overloaded, unless it says otherwise.
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

/// Whether the same statement will always fail, and was not executed.
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
