//! What is told while a backup is made: to whoever asked, in this process or over REST as an object a line.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{Trouble, manifest::Role};
use crate::signals::Stop;

/// Events that wait for whoever asked. When more come, those about progress are left out.
const WAITING_MAX: usize = 64;

/// What happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub(crate) enum Event {
    /// It will take about so many bytes, and so many are free.
    Begun { folder: PathBuf, bytes: u64, free_bytes: u64 },
    /// So much of a role is copied.
    Copying { role: Role, bytes: u64, of_bytes: u64 },
    /// So much of all is synced and summed up.
    Summing { bytes: u64, of_bytes: u64 },
    /// The engine's content is not in the backup.
    Omitted { role: Role, why: String },
    /// Something that a person should know.
    Note { text: String },
    /// It is there.
    Done(Summary),
    /// It is not.
    Failed { kind: String, error: String },
}

/// A finished backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) folder: PathBuf,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// What was counted: messages, records, blobs.
    #[serde(flatten)]
    pub(crate) counts: BTreeMap<String, u64>,
}

impl Event {
    pub(crate) fn failed(trouble: &Trouble) -> Self {
        Self::Failed { kind: trouble.kind().as_str().to_owned(), error: trouble.to_string() }
    }
}

/// Tells somebody who may go away.
#[derive(Clone, Debug)]
pub(crate) struct Teller {
    events: mpsc::Sender<Event>,
    /// The end of the process that takes the backup, and what is said then.
    stop: Option<(Stop, fn() -> Trouble)>,
}

impl Teller {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Event>) {
        let (events, told) = mpsc::channel(WAITING_MAX);
        (Self { events, stop: None }, told)
    }

    /// One by which a backup ends when the process is told to, for the reason `why`, whether or not somebody still listens.
    pub(crate) fn until(stop: Stop, why: fn() -> Trouble) -> (Self, mpsc::Receiver<Event>) {
        let (teller, told) = Self::new();
        (Self { stop: Some((stop, why)), ..teller }, told)
    }

    /// Tells how far it is, unless enough waits to be heard.
    pub(crate) fn progress(&self, event: Event) {
        let _ = self.events.try_send(event); // the next one says more
    }

    /// Tells something that matters.
    pub(crate) async fn say(&self, event: Event) {
        // That nobody listens any more, or that the process ends, is looked at where the work can end.
        tokio::select! {
            biased;
            _ = self.events.send(event) => {}
            _ = self.stopped() => {}
        }
    }

    /// Returns when the process that takes the backup is told to end.
    async fn stopped(&self) -> Trouble {
        match self.stop.clone() {
            Some((stop, why)) => {
                stop.requested().await;
                why()
            }
            None => std::future::pending().await,
        }
    }

    /// Whether it was told to.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|(stop, _)| stop.is_requested())
    }

    /// Returns when the backup is to end before it is finished, with the reason.
    pub(super) async fn unheard(&self) -> Trouble {
        tokio::select! {
            biased;
            why = self.stopped() => why,
            () = self.events.closed() => Trouble::stopped(),
        }
    }

    /// Fails when nobody listens any more, for whoever asked wants it no more, and when the process ends.
    pub(crate) fn check_heard(&self) -> Result<(), Trouble> {
        if let Some((stop, why)) = &self.stop
            && stop.is_requested()
        {
            return Err(why());
        }
        if self.events.is_closed() {
            return Err(Trouble::stopped());
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
        let (teller, mut told) = Teller::new();
        for bytes in 0..1_000 {
            teller.progress(Event::Summing { bytes, of_bytes: 1_000 });
        }
        let end = Event::Note { text: "end".into() };
        let (teller, said) = (teller.clone(), end.clone());
        let sender = tokio::spawn(async move { teller.say(said).await });
        let mut last = None;
        while last.as_ref() != Some(&end) {
            last = told.recv().await;
        }
        sender.await.unwrap();
    }

    #[tokio::test]
    async fn who_goes_away_is_noticed() {
        let (teller, told) = Teller::new();
        teller.check_heard().unwrap();
        drop(told);
        teller.say(Event::Note { text: "nobody".into() }).await;
        assert!(teller.check_heard().is_err());
    }
}
