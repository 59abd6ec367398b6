//! Publishers by relay, and the list of what they have published.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use restante_core::{Clock, MessageHash, SystemClock, Timestamp};
use tokio::task::JoinSet;

use crate::{
    pace::Tickets,
    peers::{Peer, letters::Letters},
    stock::PAYLOAD_BYTES,
};

/// The content topic of all messages.
pub(super) const CONTENT_TOPIC: &str = "/restante-bench/1/soak/proto";
const STREAM: u64 = 3_000;

/// Published messages that are not checked yet. It is emptied several times within the retention time, so it
/// holds at most what is published in that time.
#[derive(Default)]
pub(super) struct Book {
    waiting: Mutex<VecDeque<(Timestamp, MessageHash)>>,
    pub(super) published: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) retries: AtomicU64,
    is_closed: AtomicBool,
    first_error: Mutex<Option<String>>,
}

impl Book {
    fn note(&self, timestamp: Timestamp, hash: MessageHash) {
        self.waiting.lock().push_back((timestamp, hash));
        self.published.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether publishing has ended and the list is empty.
    pub(super) fn is_finished(&self) -> bool {
        self.is_closed.load(Ordering::Acquire) && self.waiting.lock().is_empty()
    }

    /// Removes and returns what was published before a time.
    pub(super) fn take_before(&self, moment: Timestamp) -> Vec<(Timestamp, MessageHash)> {
        let mut waiting = self.waiting.lock();
        let (older, newer): (Vec<_>, Vec<_>) =
            waiting.drain(..).partition(|(timestamp, _)| *timestamp < moment);
        waiting.extend(newer);
        older
    }

    pub(super) fn first_error(&self) -> Option<String> {
        self.first_error.lock().clone()
    }
}

/// Publishes until the tickets end.
pub(super) async fn publish(
    peers: Vec<Arc<Peer>>,
    tickets: Arc<Tickets>,
    book: Arc<Book>,
) -> anyhow::Result<()> {
    let letters = Arc::new(Letters::new(STREAM, CONTENT_TOPIC, PAYLOAD_BYTES));
    let mut publishing = JoinSet::new();
    for peer in peers {
        publishing.spawn(publish_all(peer, letters.clone(), tickets.clone(), book.clone()));
    }
    while let Some(done) = publishing.join_next().await {
        done?;
    }
    book.is_closed.store(true, Ordering::Release);
    Ok(())
}

async fn publish_all(peer: Arc<Peer>, letters: Arc<Letters>, tickets: Arc<Tickets>, book: Arc<Book>) {
    while let Some(ticket) = tickets.take().await {
        let letter = letters.write(ticket.number, SystemClock.now(), 0);
        match peer.publish(&letter.wire).await {
            Ok(sent) => {
                book.retries.fetch_add(sent.retries, Ordering::Relaxed);
                book.note(letter.timestamp, letter.message_hash);
            }
            Err(error) => {
                book.failed.fetch_add(1, Ordering::Relaxed);
                book.first_error.lock().get_or_insert_with(|| error.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_taken_from_the_list_are_older_and_removed() {
        let book = Book::default();
        for second in [3, 1, 2] {
            book.note(Timestamp::from_seconds(second), MessageHash([second as u8; 32]));
        }
        let older = book.take_before(Timestamp::from_seconds(3));
        let seconds: Vec<i64> =
            older.iter().map(|(timestamp, _)| timestamp.nanos() / 1_000_000_000).collect();
        assert_eq!(seconds, [1, 2]);
        assert_eq!(book.take_before(Timestamp::from_seconds(9)).len(), 1);
        assert!(book.take_before(Timestamp::from_seconds(9)).is_empty());
        assert!(!book.is_finished());
        book.is_closed.store(true, Ordering::Release);
        assert!(book.is_finished());
    }
}
