//! Whoever is asked, and what is known about how it was filled.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use restante_archive::Message;
use restante_bench::{dataset::Dataset, touch_all};
use tokio::sync::mpsc;

use crate::question::Question;

/// Messages that are made and handed to a loader at once.
pub(crate) const BATCH: usize = 2_500;
/// Batches that wait for a loader, so that making messages and storing them overlap.
const BATCHES_WAITING: usize = 8;

/// A store that holds the data set and answers questions.
#[async_trait]
pub(crate) trait Store: Send + Sync + 'static {
    /// Answers once and touches every byte of the answer. Equal questions at once come in lanes of their own, from 0 on.
    async fn ask(&self, question: &Question, lane: usize) -> anyhow::Result<Tally>;

    /// Answers before anything is timed, so that everybody's data lie in memory. A store that has several ways to answer
    /// tries them and keeps to the quickest until the next warm-up.
    async fn warm_up(&self, question: &Question) -> anyhow::Result<Tally>;
}

/// What an answer had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) rows: u64,
    /// Bytes of the bodies, or of what the store keeps in their place.
    pub(crate) bytes: u64,
}

impl Tally {
    /// Counts a row and touches what came with it. Only the body counts as bytes.
    pub(crate) fn add(&mut self, body: &[u8], others: &[&[u8]]) {
        touch_all([body].into_iter().chain(others.iter().copied()));
        self.rows += 1;
        self.bytes += body.len() as u64;
    }
}

/// What a store is in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The engine that is judged.
    Ours,
    /// What it is to beat.
    Rival,
    /// Shown beside, not judged.
    Beside,
}

/// How a store was filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// From the first message to the last index.
    pub(crate) time: Duration,
    pub(crate) messages: u64,
    /// Bytes of the bodies of all messages, whatever the store keeps of them.
    pub(crate) payload_bytes: u64,
    pub(crate) disk_bytes: u64,
    /// In words, for the table.
    pub(crate) how: &'static str,
}

/// A store and its part.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) part: Part,
    /// Whether it answers a list of topics by the list's filter, and so gives more rows.
    pub(crate) is_by_filter: bool,
    /// Whether its rows have the very bodies of the messages.
    pub(crate) has_bodies: bool,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) load: Load,
}

/// All messages in the order of time, made on a thread of their own. It ends early when nobody takes them any more.
pub(crate) fn feed(dataset: &Arc<Dataset>) -> mpsc::Receiver<Vec<Message>> {
    let (sender, receiver) = mpsc::channel(BATCHES_WAITING);
    let dataset = dataset.clone();
    tokio::task::spawn_blocking(move || {
        for batch in dataset.batches(BATCH) {
            let is_taken = sender.blocking_send(batch).is_ok();
            if !is_taken {
                return;
            }
        }
    });
    receiver
}
