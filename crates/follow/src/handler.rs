use std::error::Error as StdError;

use async_trait::async_trait;
use restante_records::{AccountId, Changes};

/// What is done with changes, such as updating an index or notifying a client.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Handles a page of an account's changes.
    ///
    /// Changes are repeated after an error, and after a crash even if they were handled: handling them twice must have the effect of
    /// handling them once. A created record may be gone by the time it is read: then its destruction follows. An update or a
    /// destruction may be passed for a record whose creation was never passed.
    ///
    /// It may be cancelled at any await, when it takes longer than [`Settings::handler_timeout`](crate::Settings).
    ///
    /// # Errors
    /// When the page can't be handled now. The account is tried again later; meanwhile others continue.
    async fn handle(&mut self, account: AccountId, changes: &Changes) -> Result<(), HandlerError>;

    /// Drops everything derived from an account: all its records follow as created.
    ///
    /// # Errors
    /// As [`Handler::handle`].
    async fn reset(&mut self, account: AccountId) -> Result<(), HandlerError>;
}

/// Why a page could not be handled.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HandlerError(#[source] Box<dyn StdError + Send + Sync>);

impl HandlerError {
    /// An error with this cause, or this text: lowercase, no full stop.
    pub fn new(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}
