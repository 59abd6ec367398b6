//! Manifests: which blobs were put or touched when. A put or a touch is acknowledged after its manifest is stored.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use restante_core::{BlobId, Clock, Timestamp};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::{
    client::Client,
    schema::{MANIFEST_ENTRIES_MAX, encode_manifest, manifest_key},
};
use crate::{Error, TOUCH_BLOBS_MAX, error::closed};

/// The most puts and touches that wait for the next manifest; further ones wait before they are accepted.
const WAITING_MAX: usize = 1_024;

/// When this many entries wait, they are written at once, regardless of when the last manifest was: it costs little
/// compared with their puts.
const EARLY_ENTRIES: usize = 32;

/// Blobs of one put or touch.
struct Note {
    entries: Vec<(BlobId, Timestamp)>,
    done: oneshot::Sender<Result<(), Error>>,
}

/// Writes manifests, each with all blobs that wait.
pub(super) struct Log {
    clock: Arc<dyn Clock>,
    notes: Mutex<Option<mpsc::Sender<Note>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Starts the writer. It begins a manifest `interval` after the previous one, or earlier for [`EARLY_ENTRIES`].
    pub(super) fn start(client: Arc<Client>, clock: Arc<dyn Clock>, server: u64, interval: Duration) -> Self {
        let (notes, waiting) = mpsc::channel(WAITING_MAX);
        let writer = Writer { client, clock: clock.clone(), server, interval };
        let writer = tokio::spawn(writer.run(waiting));
        Self { clock, notes: Mutex::new(Some(notes)), writer: Mutex::new(Some(writer)) }
    }

    /// Notes that blobs were put or touched now, and returns when that is durable.
    pub(super) async fn note(&self, ids: impl IntoIterator<Item = BlobId>) -> Result<(), Error> {
        let notes = self.notes.lock().clone().ok_or_else(closed)?;
        let now = self.clock.now();
        let entries: Vec<_> = ids.into_iter().map(|id| (id, now)).collect();
        if entries.is_empty() {
            return Ok(());
        }
        let (done, stored) = oneshot::channel();
        notes.send(Note { entries, done }).await.map_err(|_| closed())?;
        stored.await.map_err(|_| closed())?
    }

    /// Writes the waiting blobs, and accepts no more.
    pub(super) async fn close(&self) {
        drop(self.notes.lock().take());
        let writer = self.writer.lock().take();
        if let Some(writer) = writer
            && let Err(error) = writer.await
        {
            tracing::error!(%error, "the writer of the manifests of blobs ended early");
        }
    }
}

struct Writer {
    client: Arc<Client>,
    clock: Arc<dyn Clock>,
    server: u64,
    interval: Duration,
}

impl Writer {
    async fn run(self, mut waiting: mpsc::Receiver<Note>) {
        let mut next = Instant::now();
        for number in 0.. {
            let notes = gather(&mut waiting, next).await;
            if notes.is_empty() {
                return;
            }
            next = Instant::now() + self.interval;
            let outcome = self.write(&notes, number).await;
            for note in notes {
                let outcome = outcome.as_ref().map_err(Error::duplicate).copied();
                let _gone = note.done.send(outcome); // its caller may have been cancelled
            }
        }
    }

    async fn write(&self, notes: &[Note], number: u64) -> Result<(), Error> {
        let entries: Vec<_> = notes.iter().flat_map(|note| note.entries.iter().copied()).collect();
        let key = manifest_key(self.clock.now(), self.server, number);
        // No other server uses this key: it may be put again after a failure.
        self.client.overwrite(&key, encode_manifest(&entries).into()).await
    }
}

/// The notes for the next manifest: those that wait at the time `at`, or earlier once they have [`EARLY_ENTRIES`]; none
/// when there will be no more.
async fn gather(waiting: &mut mpsc::Receiver<Note>, at: Instant) -> Vec<Note> {
    let Some(first) = waiting.recv().await else { return Vec::new() };
    let mut notes = vec![first];
    let mut entries = notes.iter().map(|note| note.entries.len()).sum::<usize>();
    while entries < EARLY_ENTRIES
        && let Ok(Some(note)) = timeout_at(at, waiting.recv()).await
    {
        entries += note.entries.len();
        notes.push(note);
    }
    while entries + TOUCH_BLOBS_MAX <= MANIFEST_ENTRIES_MAX
        && let Ok(note) = waiting.try_recv()
    {
        entries += note.entries.len();
        notes.push(note);
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(3_600);

    /// Sends notes with these numbers of blobs.
    async fn send(notes: &mpsc::Sender<Note>, blobs: &[u8]) {
        for (number, blobs) in (0..).zip(blobs) {
            let entries = (0..*blobs).map(|blob| (BlobId([number ^ blob; 32]), Timestamp(0))).collect();
            notes.send(Note { entries, done: oneshot::channel().0 }).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_manifest_waits_for_its_time() {
        let (notes, mut waiting) = mpsc::channel(WAITING_MAX);
        let begun = Instant::now();
        let later = async {
            send(&notes, &[1; 20]).await;
            tokio::time::sleep(INTERVAL / 2).await;
            send(&notes, &[1; 11]).await;
        };
        let (found, ()) = tokio::join!(gather(&mut waiting, begun + INTERVAL), later);
        assert_eq!((found.len(), begun.elapsed()), (31, INTERVAL));
    }

    #[tokio::test(start_paused = true)]
    async fn a_manifest_does_not_wait_when_it_has_enough() {
        let (notes, mut waiting) = mpsc::channel(WAITING_MAX);
        let begun = Instant::now();
        for enough in [&[1; 32][..], &[32], &[1; 200], &[31, 1, 5]] {
            send(&notes, enough).await;
            let found = gather(&mut waiting, begun + INTERVAL).await;
            assert_eq!(found.len(), enough.len(), "what else waits is noted too");
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_manifest_after_a_pause_does_not_wait_and_after_the_end_there_is_none() {
        let (notes, mut waiting) = mpsc::channel(WAITING_MAX);
        let begun = Instant::now();
        send(&notes, &[1, 1]).await;
        assert_eq!(gather(&mut waiting, begun).await.len(), 2);
        send(&notes, &[1]).await;
        drop(notes);
        assert_eq!(gather(&mut waiting, begun + INTERVAL).await.len(), 1, "nothing more can come");
        assert!(gather(&mut waiting, begun + INTERVAL).await.is_empty());
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
