//! Announcements over an engine that passes messages to all servers: the task that sends, receives and reconnects.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use restante_core::Identity;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tracing::{info, warn};

use crate::{
    Announcement, Announcements, Error, Listener, Metrics, Missed, OpenedAnnouncements,
    announcements::{Listeners, message},
    backoff::Backoff,
};

/// The most announcements that wait to be sent.
const OUTBOX_MAX: usize = 1_024;
/// The most announcements in one message.
const MESSAGE_MAX: usize = 256;
/// How often a message is sent even if there is nothing to announce. This server receives it, too.
const BEAT_EVERY: Duration = Duration::from_secs(5);
/// A connection on which none of this server's own messages arrived for this long counts as lost.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// An engine.
#[async_trait]
pub(crate) trait Carrier: Send + Sync + 'static {
    /// Connects, within the time-out.
    async fn connect(&self) -> Result<Connected, Error>;
}

/// An open connection.
pub(crate) struct Connected {
    pub(crate) outlet: Box<dyn Outlet>,
    /// All messages of all servers, including this one. The stream ends with the connection.
    pub(crate) messages: BoxStream<'static, Bytes>,
}

/// The sending half of a connection.
#[async_trait]
pub(crate) trait Outlet: Send {
    /// Sends a message to all servers, within the time-out.
    async fn send(&mut self, message: Vec<u8>) -> Result<(), Error>;

    /// Ends the connection.
    async fn close(&mut self);
}

/// Starts the task, and waits until the first attempt to connect has succeeded or failed.
pub(crate) async fn open(carrier: Arc<dyn Carrier>, metrics: Metrics) -> OpenedAnnouncements {
    let (outbox, to_send) = mpsc::channel(OUTBOX_MAX);
    let state = watch::Sender::new(None);
    let (mut settled, problem) = (state.subscribe(), state.subscribe());
    let listeners = Listeners::new();
    let (counted, own) = (metrics.clone(), listeners.clone());
    let bus = Bus { here: Identity::random(), carrier, metrics, listeners, state };
    let task = tokio::spawn(bus.run(to_send));
    let _ = settled.wait_for(Option::is_some).await;
    OpenedAnnouncements {
        announcements: Arc::new(Handle { outbox, listeners: own, metrics: counted, task }),
        problem: Arc::new(move || match &*problem.borrow() {
            Some(Ok(())) => None,
            Some(Err(why)) => Some(why.clone()),
            None => Some("not connected yet".to_owned()),
        }),
    }
}

struct Handle {
    outbox: mpsc::Sender<Announcement>,
    listeners: Listeners,
    metrics: Metrics,
    task: JoinHandle<()>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Announcements for Handle {
    fn announce(&self, announcement: Announcement) {
        if self.outbox.try_send(announcement).is_err() {
            self.metrics.lost.inc();
        }
    }

    fn listen(&self) -> Listener {
        self.listeners.listen()
    }
}

struct Bus {
    /// The prefix of this server's own messages.
    here: Identity,
    carrier: Arc<dyn Carrier>,
    metrics: Metrics,
    listeners: Listeners,
    state: watch::Sender<Option<Result<(), String>>>,
}

impl Bus {
    async fn run(self, mut to_send: mpsc::Receiver<Announcement>) {
        let mut backoff = Backoff::new();
        loop {
            match self.carrier.connect().await {
                Ok(mut connected) => {
                    info!("announcements are connected");
                    self.metrics.connects.inc();
                    self.metrics.announcements_up.set(1);
                    self.state.send_replace(Some(Ok(())));
                    backoff.reset();
                    let why = self.serve(&mut connected, &mut to_send).await;
                    warn!(%why, "announcements are not connected: other servers look for commits by themselves");
                    self.metrics.announcements_up.set(0);
                    self.state.send_replace(Some(Err(why.to_string())));
                    self.listeners.heard(Err(Missed));
                    connected.outlet.close().await;
                }
                Err(error) => {
                    self.metrics.announcements_up.set(0);
                    self.state.send_replace(Some(Err(error.to_string())));
                }
            }
            sleep(backoff.next()).await;
            // Drop what was queued meanwhile: it is outdated.
            while to_send.try_recv().is_ok() {
                self.metrics.lost.inc();
            }
        }
    }

    /// Sends and receives until the connection is lost; returns why.
    async fn serve(&self, connected: &mut Connected, to_send: &mut mpsc::Receiver<Announcement>) -> Error {
        let mut beats = interval(BEAT_EVERY);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_own = Instant::now();
        let mut waiting = Vec::with_capacity(MESSAGE_MAX);
        loop {
            tokio::select! {
                received = connected.messages.next() => {
                    let Some(received) = received else { return Error::unavailable("the connection is lost") };
                    if self.received(&received) {
                        last_own = Instant::now();
                    }
                }
                count = to_send.recv_many(&mut waiting, MESSAGE_MAX) => {
                    let sent = connected.outlet.send(message::encode(self.here, &waiting)).await;
                    waiting.clear();
                    let counter = if sent.is_ok() { &self.metrics.announced } else { &self.metrics.lost };
                    counter.inc_by(count as u64);
                    if let Err(error) = sent {
                        return error;
                    }
                }
                _ = beats.tick() => {
                    if last_own.elapsed() > SILENCE_MAX {
                        return Error::unavailable("messages of this server do not come back to it");
                    }
                    if let Err(error) = connected.outlet.send(message::encode(self.here, &[])).await {
                        return error;
                    }
                }
            }
        }
    }

    /// Passes a message to the listeners. Returns whether this server sent it.
    fn received(&self, bytes: &[u8]) -> bool {
        let Some((sender, announcements)) = message::decode(bytes) else {
            self.metrics.lost.inc();
            return false;
        };
        if sender == self.here {
            return true;
        }
        self.metrics.heard.inc_by(announcements.len() as u64);
        for announcement in announcements {
            self.listeners.heard(Ok(announcement));
        }
        false
    }
}
