//! Events of a backup in progress, sent to its client: in this process, or over REST as one JSON object per line.

use std::{collections::BTreeMap, path::PathBuf};

use restante_core::Error;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use super::manifest::Role;

/// Events that wait for the client. When the queue is full, progress events are dropped.
const WAITING_MAX: usize = 64;

/// What happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum Event {
    /// The backup begins: about how many bytes it will have, and how many are free.
    Begun {
        /// The folder of the backup.
        folder: PathBuf,
        /// The approximate bytes of the copies.
        bytes: u64,
        /// Bytes that are free on its disk.
        free_bytes: u64,
    },
    /// The progress of copying a role.
    Copying {
        /// What is copied.
        role: Role,
        /// Bytes of all copies so far.
        bytes: u64,
        /// The approximate bytes of all copies at the end.
        of_bytes: u64,
    },
    /// The progress of syncing and hashing all files.
    Summing {
        /// Bytes so far.
        bytes: u64,
        /// Bytes of all files.
        of_bytes: u64,
    },
    /// The engine's content is not in the backup.
    Omitted {
        /// The store.
        role: Role,
        /// Why.
        why: String,
    },
    /// Something that the operator should know.
    Note {
        /// The text.
        text: String,
    },
    /// The backup is finished.
    Done(Summary),
    /// The backup has failed.
    Failed {
        /// The kind of the error, by its name.
        kind: String,
        /// Its text.
        error: String,
    },
}

/// A finished backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Its folder.
    pub folder: PathBuf,
    /// The number of its files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The counted contents: messages, records, blobs.
    #[serde(flatten)]
    pub counts: BTreeMap<String, u64>,
}

impl Event {
    pub(crate) fn failed(error: &Error) -> Self {
        Self::Failed { kind: error.kind().as_str().to_owned(), error: error.to_string() }
    }
}

/// Becomes true when the process is asked to stop.
pub type StopSignal = watch::Receiver<bool>;

/// Returns when the process is asked to stop.
pub(super) async fn requested(mut stop: StopSignal) {
    if stop.wait_for(|is_requested| *is_requested).await.is_err() {
        std::future::pending::<()>().await; // the sender is gone
    }
}

/// The client of the backup has disconnected, or the user has stopped it.
pub fn stopped() -> Error {
    Error::unavailable("the backup was stopped before it was finished: there is none")
}

/// The server that takes a backup is stopping.
pub(super) fn server_stops() -> Error {
    Error::unavailable("the server is stopping, and no backup was taken: take it when the server runs again")
}

/// Sends events to a client that may disconnect.
#[derive(Clone, Debug)]
pub struct EventSender {
    events: mpsc::Sender<Event>,
    /// The stop signal of the process, and the error that it causes.
    stop: Option<(StopSignal, fn() -> Error)>,
}

impl EventSender {
    /// A sender, and what the client receives.
    pub fn new() -> (Self, mpsc::Receiver<Event>) {
        let (sender, events) = mpsc::channel(WAITING_MAX);
        (Self { events: sender, stop: None }, events)
    }

    /// A sender whose backup also ends when the process is asked to stop, with the error `why`, even while a client listens.
    pub fn until(stop: StopSignal, why: fn() -> Error) -> (Self, mpsc::Receiver<Event>) {
        let (sender, events) = Self::new();
        (Self { stop: Some((stop, why)), ..sender }, events)
    }

    /// Sends a progress event, unless the queue is full.
    pub(crate) fn progress(&self, event: Event) {
        let _ = self.events.try_send(event); // the next one is more recent
    }

    /// Sends an event that must not be dropped.
    pub(crate) async fn say(&self, event: Event) {
        // A disconnect or a stop is handled by `check_heard` and `unheard`, where the work can end.
        tokio::select! {
            biased;
            _ = self.events.send(event) => {}
            _ = self.stopped() => {}
        }
    }

    /// Returns when the process is asked to stop.
    async fn stopped(&self) -> Error {
        match self.stop.clone() {
            Some((stop, why)) => {
                requested(stop).await;
                why()
            }
            None => std::future::pending().await,
        }
    }

    /// Whether the process has been asked to stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|(stop, _)| *stop.borrow())
    }

    /// Returns when the backup is to end before it is finished, with the reason.
    pub(super) async fn unheard(&self) -> Error {
        tokio::select! {
            biased;
            why = self.stopped() => why,
            () = self.events.closed() => stopped(),
        }
    }

    /// Fails when the client has disconnected, and when the process is asked to stop.
    pub(crate) fn check_heard(&self) -> Result<(), Error> {
        if let Some((stop, why)) = &self.stop
            && *stop.borrow()
        {
            return Err(why());
        }
        if self.events.is_closed() {
            return Err(stopped());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_read_back_as_lines() {
        let counts: BTreeMap<String, u64> = [("messages".to_owned(), 5)].into();
        for event in [
            Event::Begun { folder: "/b".into(), bytes: 1, free_bytes: 2 },
            Event::Copying { role: Role::Archive, bytes: 1, of_bytes: 2 },
            Event::Summing { bytes: 1, of_bytes: 2 },
            Event::Omitted { role: Role::Archive, why: "it is elsewhere".into() },
            Event::Note { text: "note".into() },
            Event::Done(Summary { folder: "/b".into(), files: 1, bytes: 2, counts }),
            Event::Failed { kind: "full".into(), error: "no room".into() },
        ] {
            let line = serde_json::to_string(&event).unwrap();
            assert!(line.starts_with("{\"event\":\""), "{line}");
            assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        }
    }

    #[tokio::test]
    async fn progress_is_left_out_and_the_end_is_not() {
        let (sender, mut events) = EventSender::new();
        for bytes in 0..1_000 {
            sender.progress(Event::Summing { bytes, of_bytes: 1_000 });
        }
        let end = Event::Note { text: "end".into() };
        let (sender, said) = (sender.clone(), end.clone());
        let sending = tokio::spawn(async move { sender.say(said).await });
        let mut last = None;
        while last.as_ref() != Some(&end) {
            last = events.recv().await;
        }
        sending.await.unwrap();
    }

    #[tokio::test]
    async fn a_disconnect_is_noticed() {
        let (sender, events) = EventSender::new();
        sender.check_heard().unwrap();
        drop(events);
        sender.say(Event::Note { text: "nobody".into() }).await;
        assert!(sender.check_heard().is_err());
    }
}
