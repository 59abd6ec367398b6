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

/// Puts and touches that wait for the next manifest; further ones wait before they are accepted.
const WAITING_MAX: usize = 1_024;

/// So many entries are noted at once, whenever the last manifest was: a manifest for them costs little beside their puts.
const EARLY_ENTRIES: usize = 32;

/// Blobs of one put or touch.
struct Note {
    entries: Vec<(BlobId, Timestamp)>,
    done: oneshot::Sender<Result<(), Error>>,
}

/// Writes manifests, each with all that wait.
pub(super) struct Log {
    clock: Arc<dyn Clock>,
    notes: Mutex<Option<mpsc::Sender<Note>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Starts the writer. It begins a manifest `interval` after the former one, or earlier for [`EARLY_ENTRIES`].
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

    /// Writes what waits, and accepts nothing more.
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
        // Nobody else has this key: it may be put again after a failure.
        self.client.overwrite(&key, encode_manifest(&entries).into()).await
    }
}

/// What the next manifest notes: all that waits at a time, or earlier when there is enough; nothing when nothing comes any more.
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
