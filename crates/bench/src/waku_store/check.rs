//! Checks the archive after the servers have stopped: every acknowledged message must be in it, once.

use std::collections::HashSet;

use anyhow::ensure;
use restante_archive::{Archive, EngineUrl, PAGE_ROWS_MAX, Query, Walk, open};
use restante_core::{Key, MessageHash};

use super::{
    posts::{PUBSUB_TOPIC, Posts},
    publish::Published,
};
use crate::store::config;

/// All messages that were published and stored.
pub(super) struct StoredMessages {
    pub(super) hashes: HashSet<MessageHash>,
    /// Rows that a walk returned twice, or out of order.
    pub(super) repeated: u64,
}

impl StoredMessages {
    /// Opens the archive, reads all published messages, and checks that the archive's own count agrees.
    /// `filled` messages were in it before.
    pub(super) async fn read(archive: &EngineUrl, filled: u64) -> anyhow::Result<Self> {
        let opened = open(config(archive.clone())).await?;
        let stored_messages = Self::walk(&*opened.archive).await;
        let counted = opened.upkeep.stats().await.map(|stats| stats.messages);
        opened.upkeep.close().await?;
        let (stored_messages, counted) = (stored_messages?, counted?);
        let walked = filled + stored_messages.len();
        ensure!(counted == walked, "the archive counts {counted} messages, and {walked} can be read");
        Ok(stored_messages)
    }

    async fn walk(archive: &dyn Archive) -> anyhow::Result<Self> {
        let channel = Some(PUBSUB_TOPIC.to_owned());
        let query = Query { channel, bodies: false, limit: PAGE_ROWS_MAX, ..Query::default() };
        let mut walk = Walk::new(query);
        let mut stored_messages = Self { hashes: HashSet::new(), repeated: 0 };
        let mut last: Option<Key> = None;
        while let Some(page) = walk.next(archive).await? {
            for row in page.rows() {
                let is_next = last.is_none_or(|last| last < row.key());
                let is_new = stored_messages.hashes.insert(row.message_hash);
                stored_messages.repeated += u64::from(!is_next || !is_new);
                last = Some(row.key());
            }
        }
        Ok(stored_messages)
    }

    pub(super) fn len(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// The number of acknowledged messages that are missing.
    pub(super) fn lost(&self, posts: &Posts, published: &Published) -> u64 {
        let numbers: HashSet<u64> = published.acknowledged.iter().copied().collect();
        numbers.iter().filter(|number| !self.hashes.contains(&posts.hash(**number))).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use restante_archive::Message;
    use restante_core::Timestamp;

    use super::*;

    #[tokio::test]
    async fn a_missing_acknowledged_message_is_lost() {
        let posts = Posts::new(0, 100, Timestamp(1));
        let archive = open(config(EngineUrl::Memory)).await.unwrap().archive;
        let message = |number: u64, channel: &str| Message {
            message_hash: posts.hash(number),
            channel: channel.into(),
            topic: "t".into(),
            timestamp: Timestamp(number as i64),
            body: "b".into(),
        };
        let messages = vec![message(0, PUBSUB_TOPIC), message(1, PUBSUB_TOPIC), message(2, "another")];
        archive.append(messages).await.unwrap();
        let stored_messages = StoredMessages::walk(&*archive).await.unwrap();
        assert_eq!((stored_messages.len(), stored_messages.repeated), (2, 0));
        // Two servers acknowledged message 1.
        let published = Published { acknowledged: vec![0, 1, 1, 2, 3], ..Published::default() };
        assert_eq!(stored_messages.lost(&posts, &published), 2);
    }
}
