//! An archive as one kind of door sees it.
//!
//! Doors share an archive, and each kind has channels of its own: pubsub topics begin with a slash, bare addresses of chat never do.
//! A door that asks through this sees what begins as its own channels do, whatever its clients ask for or leave out.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{Appended, Archive, Error, Message, Page, Query};

/// The archive for doors whose channels begin with `realm`: queries find only such, whatever realm
/// they name, and appends of others are refused. A cursor that is
/// a hash may name any message of the archive: it is a place in the order, and nothing of the message is told.
pub fn within(archive: Arc<dyn Archive>, realm: &'static str) -> Arc<dyn Archive> {
    Arc::new(Within { inner: archive, realm })
}

struct Within {
    inner: Arc<dyn Archive>,
    realm: &'static str,
}

#[async_trait]
impl Archive for Within {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        if let Some(other) = messages.iter().find(|message| !message.channel.starts_with(self.realm)) {
            return Err(Error::invalid(format!(
                "channel '{}' does not begin with '{}' as those of its door do",
                other.channel, self.realm
            )));
        }
        self.inner.append(messages).await
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        let mut page = match query.realm {
            Some(realm) if realm == self.realm => self.inner.query(query).await?, // which may list many topics
            _ => self.inner.query(&Query { realm: Some(self.realm), ..query.clone() }).await?,
        };
        // Another door may have archived its first message while the engine was at it, for which all had been of this realm.
        page.keep(|row| row.channel.starts_with(self.realm));
        Ok(page)
    }
}
