//! What an error of the database means.

use restante_core::ErrorKind;
use tokio_postgres::error::SqlState;

use crate::Error;

/// The kind of a database error.
pub(super) fn kind_of(error: &tokio_postgres::Error) -> ErrorKind {
    let Some(state) = error.code() else {
        return ErrorKind::Unavailable; // no answer: the connection is lost or was never there
    };
    let class = state.code().get(..2).unwrap_or_default();
    match class {
        _ if *state == SqlState::DISK_FULL => ErrorKind::Full,
        // Connections, rollbacks by conflict, resources, intervention of an operator, system errors, passwords. Also what an
        // operator may repair while we wait: a database that doesn't exist, a revoked privilege, a primary that has become a
        // standby.
        "08" | "25" | "28" | "3D" | "40" | "53" | "55" | "57" | "58" => ErrorKind::Unavailable,
        "42" if *state == SqlState::INSUFFICIENT_PRIVILEGE => ErrorKind::Unavailable,
        // Windows changed faster than the attempts that were made.
        "23" if *state == SqlState::FOREIGN_KEY_VIOLATION => ErrorKind::Unavailable,
        "42" if *state == SqlState::UNDEFINED_TABLE => ErrorKind::Unavailable,
        "XX" if *state != SqlState::INTERNAL_ERROR => ErrorKind::Corrupt,
        _ => ErrorKind::Internal,
    }
}

/// An error while doing `what`.
pub(super) fn failed(what: &str, source: tokio_postgres::Error) -> Error {
    let shown = match source.as_db_error() {
        Some(error) => error.message().to_owned(),
        None => with_causes(&source),
    };
    Error::new(kind_of(&source), format!("postgres can't {what}: {shown}")).with_source(source)
}

/// Whether a table was gone: another server's retention has dropped it.
pub(super) fn is_gone(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| *state == SqlState::UNDEFINED_TABLE)
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

/// The error of an attempt, including the database's own error, which decides whether another attempt makes sense.
#[derive(Debug)]
pub(super) enum AttemptError {
    Database(&'static str, tokio_postgres::Error),
    /// Pruning dropped windows again and again between their creation and their use.
    WindowsDropped,
    Other(Error),
}

impl AttemptError {
    /// Whether the catalogue was older than the database: a table or a window was gone.
    pub(super) fn is_stale_catalog(&self) -> bool {
        match self {
            Self::Database(_, error) => {
                is_gone(error) || error.code().is_some_and(|state| *state == SqlState::FOREIGN_KEY_VIOLATION)
            }
            Self::WindowsDropped => true,
            Self::Other(_) => false,
        }
    }

    /// The error code of the database.
    pub(super) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Database(_, error) => error.code(),
            Self::WindowsDropped | Self::Other(_) => None,
        }
    }

    /// Whether the connection is still usable: everything that was sent was answered.
    pub(super) fn leaves_no_trace(&self) -> bool {
        match self {
            Self::Database(..) | Self::WindowsDropped => false,
            Self::Other(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    /// Whether a commit may have been applied although it failed: the connection ended before the answer arrived. After any other
    /// error of the database the transaction was rolled back.
    pub(super) fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Database(_, error) => {
                let ended = [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN];
                error.code().is_none_or(|state| ended.contains(state))
            }
            Self::WindowsDropped | Self::Other(_) => false,
        }
    }

    /// Whether the same request may succeed at once on another connection, or now that another transaction has ended.
    pub(super) fn is_worth_repeating(&self) -> bool {
        match self {
            Self::Database(_, error) => {
                let passing = [
                    SqlState::T_R_DEADLOCK_DETECTED,
                    SqlState::T_R_SERIALIZATION_FAILURE,
                    SqlState::ADMIN_SHUTDOWN,
                    SqlState::CRASH_SHUTDOWN,
                    // The cause was reported to an earlier statement.
                    SqlState::IN_FAILED_SQL_TRANSACTION,
                ];
                error.is_closed() || error.code().is_some_and(|state| passing.contains(state))
            }
            Self::WindowsDropped => true,
            Self::Other(_) => false,
        }
    }
}

impl From<AttemptError> for Error {
    fn from(error: AttemptError) -> Self {
        match error {
            AttemptError::Database(what, error) => failed(what, error),
            AttemptError::WindowsDropped => Error::unavailable(
                "windows are dropped as fast as they are made: is the retention policy shorter than the messages are old?",
            ),
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
