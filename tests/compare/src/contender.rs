//! The compared stores, and how each was filled.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use restante_archive::Message;
use restante_bench::{dataset::Dataset, touch_all};
use tokio::sync::mpsc;

use crate::question::Question;

/// Messages of a batch for a loader.
pub(crate) const BATCH: usize = 2_500;
/// Batches in the queue of a loader, so that generating and storing messages overlap.
const BATCHES_WAITING: usize = 8;

/// A store with the data set that answers questions.
#[async_trait]
pub(crate) trait Store: Send + Sync + 'static {
    /// Answers once and reads every byte of the answer. Concurrent equal questions have lanes of their own, from 0 on.
    async fn ask(&self, question: &Question, lane: usize) -> anyhow::Result<Tally>;

    /// Answers before anything is timed, so that all data is in memory. A store with several ways to answer
    /// tries them and uses the fastest until the next warm-up.
    async fn warm_up(&self, question: &Question) -> anyhow::Result<Tally>;
}

/// The size of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) rows: u64,
    /// Bytes of the bodies, or of what the store holds in their place.
    pub(crate) bytes: u64,
}

impl Tally {
    /// Counts a row and reads its parts. Only the body counts as bytes.
    pub(crate) fn add(&mut self, body: &[u8], others: &[&[u8]]) {
        touch_all([body].into_iter().chain(others.iter().copied()));
        self.rows += 1;
        self.bytes += body.len() as u64;
    }
}

/// The part of a store in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The judged engine.
    Ours,
    /// A store that it should beat.
    Rival,
    /// Shown for reference, not judged.
    Reference,
}

/// How a store was filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// From the first message to the last index.
    pub(crate) time: Duration,
    pub(crate) messages: u64,
    /// Bytes of the bodies of all messages, whichever of them the store holds.
    pub(crate) payload_bytes: u64,
    pub(crate) disk_bytes: u64,
    /// The method, for the table.
    pub(crate) how: &'static str,
}

/// A store and its part.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) part: Part,
    /// Whether it answers a list of topics by the list's filter, and so returns more rows.
    pub(crate) is_by_filter: bool,
    /// Whether its rows have the original bodies of the messages.
    pub(crate) has_bodies: bool,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) load: Load,
}

/// All messages in time order, generated on a thread of their own, which ends early when the receiver is dropped.
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
