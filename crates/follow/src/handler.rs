use std::error::Error as StdError;

use async_trait::async_trait;
use restante_records::{AccountId, Changes};

/// What is done with changes: an index is written, a client is woken.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Takes a page of an account's changes.
    ///
    /// The same changes come again after an error, and after a crash also when they were taken: doing them twice must have
    /// the effect of doing them once. A record that is told may be gone by the time it is read: then its destruction follows.
    /// Also an update, or the destruction, of a record may come that was never told as created.
    ///
    /// It may be given up at any await, when it takes longer than [`Settings::handler_timeout`](crate::Settings).
    ///
    /// # Errors
    /// When the page can't be taken now. The account is tried again later; others go on meanwhile.
    async fn handle(&mut self, account: AccountId, changes: &Changes) -> Result<(), HandlerError>;

    /// Drops everything that was made of an account: all of it is told anew, as created.
    ///
    /// # Errors
    /// As [`Handler::handle`].
    async fn reset(&mut self, account: AccountId) -> Result<(), HandlerError>;
}

/// Why a page could not be taken.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HandlerError(#[source] Box<dyn StdError + Send + Sync>);

impl HandlerError {
    /// An error with this cause, or this text: lowercase, no full stop.
    pub fn new(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}
