//! An archive as in the measurements of nwaku's store: many messages of one size, most of them of one content topic.

use std::sync::Arc;

use anyhow::{bail, ensure};
use restante_archive::{Archive, EngineUrl, Message};
use restante_core::{MessageHash, Timestamp};
use tokio::sync::mpsc;

use crate::{
    args::{CommonArgs, EngineChoice},
    peers::letters::{Letters, Names},
    progress,
    store::{Store, append_new},
};

/// The topic that three of four messages have.
pub(crate) const HOT_TOPIC: &str = "/restante-bench/1/hot/proto";
/// A topic that no message has.
pub(crate) const ABSENT_TOPIC: &str = "/restante-bench/1/absent/proto";
/// Topics of the other messages.
const OTHER_TOPICS: u64 = 1_000;
/// One message in this many has another topic than the hot one.
const OTHER_EACH: u64 = 4;
/// The size in nwaku's measurements.
pub(crate) const PAYLOAD_BYTES: usize = 1_400;
/// The start of all messages, which are spread evenly over ten days.
const START: Timestamp = Timestamp::from_seconds(1_700_000_000);
const SPAN_NANOS: u64 = 10 * 86_400 * 1_000_000_000;
const FILL_BATCH: u64 = 2_500;
/// Batches that wait for the archive while it is filled.
const FILL_WAITING: usize = 4;
/// The disk space of a data set's message, in units of one of these.
const DISK_SHARE: u64 = 2;

/// The messages of such an archive.
pub(crate) struct Stock {
    messages: u64,
    hot: (Letters, Names),
    others: Vec<(Letters, Names)>,
}

impl Stock {
    pub(crate) fn new(seed: u64, messages: u64) -> Self {
        let streams = (seed.wrapping_mul(2), seed.wrapping_mul(2).wrapping_add(1));
        let named = |letters: Letters| {
            let names = letters.names();
            (letters, names)
        };
        let other = |number| {
            Letters::new(streams.1, &format!("/restante-bench/1/other-{number}/proto"), PAYLOAD_BYTES)
        };
        Self {
            messages,
            hot: named(Letters::new(streams.0, HOT_TOPIC, PAYLOAD_BYTES)),
            others: (0..OTHER_TOPICS.min(messages)).map(|number| named(other(number))).collect(),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.messages
    }

    /// The message with this index in time order.
    fn message(&self, number: u64) -> Message {
        let offset = (u128::from(SPAN_NANOS) * u128::from(number) / u128::from(self.messages)) as i64;
        let timestamp = Timestamp(START.nanos() + offset);
        let (letters, names) = match self.other(number) {
            Some(place) => self.others.get(place).unwrap_or(&self.hot),
            None => &self.hot,
        };
        letters.message(number, timestamp, names)
    }

    /// The index of a message's topic among the others; `None` for the hot one.
    fn other(&self, number: u64) -> Option<usize> {
        let is_other = number.is_multiple_of(OTHER_EACH);
        is_other.then(|| ((number / OTHER_EACH) % self.others.len().max(1) as u64) as usize)
    }

    /// The hashes of the newest messages of the hot topic, the newest first.
    pub(crate) fn newest(&self, count: usize) -> Vec<MessageHash> {
        let hot = (0..self.messages).rev().filter(|number| self.other(*number).is_none());
        hot.take(count).map(|number| self.message(number).message_hash).collect()
    }

    /// Opens the chosen engine, fills it with these messages, and closes it for a server.
    pub(crate) async fn lay_in(
        self: &Arc<Self>,
        choice: &EngineChoice,
        parent: &std::path::Path,
    ) -> anyhow::Result<Store> {
        let store = Store::open(choice, parent, self.messages * DISK_SHARE).await?;
        let held = store.opened.upkeep.stats().await?.messages;
        let expected = self.messages;
        ensure!(
            held == 0 || held == expected,
            "{} holds {held} messages instead of {expected}: name an empty folder",
            store.config.url
        );
        if held == 0 {
            self.append_to(&**store.archive()).await?;
        }
        store.settle().await?;
        store.opened.upkeep.close().await?;
        Ok(store)
    }

    /// Appends all messages to an archive that is empty.
    pub(crate) async fn append_to(self: &Arc<Self>, archive: &dyn Archive) -> anyhow::Result<()> {
        let bar = progress::bar("filling the archive", self.messages);
        let (sender, mut batches) = mpsc::channel(FILL_WAITING);
        let stock = self.clone();
        let producer = tokio::task::spawn_blocking(move || stock.produce(&sender));
        while let Some(batch) = batches.recv().await {
            let len = batch.len() as u64;
            append_new(archive, batch).await?;
            bar.inc(len);
        }
        producer.await?;
        bar.finish_and_clear();
        Ok(())
    }

    /// Generates all messages in batches; ends early when the receiver is dropped.
    fn produce(&self, batches: &mpsc::Sender<Vec<Message>>) {
        let mut next = 0;
        while next < self.messages {
            let end = (next + FILL_BATCH).min(self.messages);
            let batch = (next..end).map(|number| self.message(number)).collect();
            if batches.blocking_send(batch).is_err() {
                return;
            }
            next = end;
        }
    }
}

/// A server in another process can't open an archive in memory.
pub(crate) fn refuse_memory(common: &CommonArgs, bench: &str) -> anyhow::Result<()> {
    if common.engines.contains(&EngineChoice::At(EngineUrl::Memory)) {
        bail!(
            "{bench} runs a server in another process, which can't open a memory archive: use --engine log:"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use restante_archive::{Query, Topics};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn three_of_four_messages_are_hot_and_the_newest_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let stock = Arc::new(Stock::new(0, 2_000));
        let mut store = stock.lay_in(&"log:".parse().unwrap(), folder.path()).await.unwrap();
        store.reopen().await.unwrap();
        let query = |topic: &str, limit| Query {
            topics: Topics::List(vec![topic.to_owned()]),
            direction: restante_archive::Direction::Backward,
            limit,
            ..Query::default()
        };
        let page = store.archive().query(&query(HOT_TOPIC, 10_000)).await.unwrap();
        assert_eq!(page.len(), 1_500);
        let newest: Vec<_> = page.rows().rev().take(50).map(|row| row.message_hash).collect();
        assert_eq!(newest, stock.newest(50));
        assert!(page.rows().all(|row| row.body.len() > PAYLOAD_BYTES));
        assert!(store.archive().query(&query(ABSENT_TOPIC, 1)).await.unwrap().is_empty());
        store.opened.upkeep.close().await.unwrap();
        let again = Arc::new(Stock::new(0, 10));
        let choice = store.config.url.to_string().parse().unwrap();
        assert!(again.lay_in(&choice, folder.path()).await.is_err());
    }
}
