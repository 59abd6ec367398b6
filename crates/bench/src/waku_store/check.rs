//! What is in the archive when the servers have gone: whether everything that was acknowledged is there, once.

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
pub(super) struct Kept {
    pub(super) hashes: HashSet<MessageHash>,
    /// Rows that a walk gave a second time, or out of order.
    pub(super) repeated: u64,
}

impl Kept {
    /// Opens the archive, walks through everything that was published, and checks that the archive's own count agrees.
    /// `filled` messages were there before.
    pub(super) async fn read(archive: &EngineUrl, filled: u64) -> anyhow::Result<Self> {
        let opened = open(config(archive.clone())).await?;
        let kept = Self::walk(&*opened.archive).await;
        let counted = opened.upkeep.stats().await.map(|stats| stats.messages);
        opened.upkeep.close().await?;
        let (kept, counted) = (kept?, counted?);
        let walked = filled + kept.len();
        ensure!(counted == walked, "the archive counts {counted} messages where {walked} can be read");
        Ok(kept)
    }

    async fn walk(archive: &dyn Archive) -> anyhow::Result<Self> {
        let channel = Some(PUBSUB_TOPIC.to_owned());
        let query = Query { channel, bodies: false, limit: PAGE_ROWS_MAX, ..Query::default() };
        let mut walk = Walk::new(query);
        let mut kept = Self { hashes: HashSet::new(), repeated: 0 };
        let mut last: Option<Key> = None;
        while let Some(page) = walk.next(archive).await? {
            for row in page.rows() {
                let is_next = last.is_none_or(|last| last < row.key());
                let is_new = kept.hashes.insert(row.message_hash);
                kept.repeated += u64::from(!is_next || !is_new);
                last = Some(row.key());
            }
        }
        Ok(kept)
    }

    pub(super) fn len(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// How many of the acknowledged messages are not there.
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
    async fn what_was_acknowledged_and_is_not_there_is_lost() {
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
        let kept = Kept::walk(&*archive).await.unwrap();
        assert_eq!((kept.len(), kept.repeated), (2, 0));
        // Two servers acknowledged message 1.
        let published = Published { acknowledged: vec![0, 1, 1, 2, 3], ..Published::default() };
        assert_eq!(kept.lost(&posts, &published), 2);
    }
}
