//! An archive that discards all messages.

use std::sync::Arc;

use async_trait::async_trait;
use restante_archive::{Appended, Archive, Config, EngineUrl, Error, Message, Page, Query, open};

/// Accepts every message, stores none, and answers queries like an empty archive.
pub(crate) struct Sink {
    empty: Arc<dyn Archive>,
}

impl Sink {
    pub(crate) async fn open() -> Result<Self, Error> {
        Ok(Self { empty: open(Config::new(EngineUrl::Memory)).await?.archive })
    }
}

#[async_trait]
impl Archive for Sink {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        Ok(vec![Appended::Stored; messages.len()])
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        self.empty.query(query).await
    }
}
