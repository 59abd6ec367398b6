//! The way in: every message that arrives, by whatever protocol, goes through here to the archive, the network and those
//! who are here.
//!
//! What a client gives us (REST, lightpush) is told at once to those who are here, and relayed and acknowledged when it is
//! archived, so that what is acknowledged is durable, and nobody who reads live waits for the disk. What relay brings goes to
//! the archive through a bounded queue of its own: a slow archive never holds up relay.

mod handover;
mod in_flight;
mod metrics;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use restante_archive::{Appended, Archive, Message};
use restante_core::{Clock, ErrorKind, Timestamp};
use restante_waku_wire::{WakuMessageView, message_hash};
use tokio::time::timeout;

pub use handover::HandoverConfig;
pub use metrics::IntakeMetrics;

use crate::{
    live::{Event, Listener, Stage},
    node::{Node, PublishError},
    validate::{Invalid, Problem, Rules, validate},
};
use handover::Handover;
use in_flight::{InFlight, InFlightGuard};
use metrics::Refused;

/// How long the node may take to put a message into its queues: whoever published it waits for that.
pub(crate) const RELAY_TIMEOUT: Duration = Duration::from_secs(2);

/// What relay does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Relay it on.
    Accept,
    /// Relay it not: others may take it, so the peer that sent it is none the worse.
    Ignore,
    /// Relay it not, and think less of the peer that sent it: no decoder takes it.
    Reject,
}

/// What became of a message that a client has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// To how many peers it was relayed.
    pub relay_peers: usize,
    /// Nothing becomes of it: it is ephemeral, so not archived, and nobody is there to get it.
    pub is_lost: bool,
}

/// Why a message that a client has published was not taken.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// The message itself is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The archive did not take it.
    #[error("the archive did not take the message: {0}")]
    Archive(restante_archive::Error),
}

/// The way in. Cloning gives another handle of the same.
#[derive(Clone)]
pub struct Intake {
    shared: Arc<Shared>,
}

struct Shared {
    archive: Arc<dyn Archive>,
    clock: Arc<dyn Clock>,
    rules: Rules,
    handover: Handover,
    in_flight: Arc<InFlight>,
    /// Whether the archive refused what came last.
    is_refusing: AtomicBool,
    listeners: OnceLock<Vec<Arc<dyn Listener>>>,
    node: OnceLock<Node>,
    metrics: IntakeMetrics,
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intake").field("rules", &self.shared.rules).finish_non_exhaustive()
    }
}

impl Intake {
    /// A way into `archive`. Its queue is worked on by a task of the present runtime until [`Intake::close`].
    pub fn new(
        archive: Arc<dyn Archive>,
        clock: Arc<dyn Clock>,
        rules: Rules,
        config: HandoverConfig,
        metrics: IntakeMetrics,
    ) -> Self {
        let handover = Handover::start(archive.clone(), config, metrics.clone());
        let (in_flight, listeners, node) = Default::default();
        let is_refusing = AtomicBool::new(false);
        let shared =
            Shared { archive, clock, rules, handover, in_flight, is_refusing, listeners, node, metrics };
        Self { shared: Arc::new(shared) }
    }

    /// Tells who hears of messages as they arrive, and by which node they are relayed. Called once, before messages come:
    /// both need the intake themselves.
    pub fn connect(&self, listeners: Vec<Arc<dyn Listener>>, node: Option<Node>) {
        let is_first = self.shared.listeners.set(listeners).is_ok();
        debug_assert!(is_first, "an intake is connected once");
        if let Some(node) = node {
            let _ = self.shared.node.set(node);
        }
    }

    /// Which messages are taken.
    pub fn rules(&self) -> &Rules {
        &self.shared.rules
    }

    /// Takes a message that a client has published: it is handed to those who are here, archived (unless it is ephemeral), then
    /// told to other nodes and relayed. When this returns, what is archived is durable. A message that is valid goes all of its
    /// way, also when the client leaves meanwhile.
    ///
    /// Those who are here have it before it is durable. If the archive does not take it, or the machine fails first, they have
    /// had a message that was never acknowledged, and that history has only if its publisher sends it again; then all who are
    /// here are handed it again. From the first refusal until the archive takes a message, none is handed out before it is taken.
    ///
    /// # Errors
    /// When the message is not valid, or the archive did not take it; then it was not relayed.
    pub async fn publish(&self, pubsub_topic: &str, wire: Bytes) -> Result<Published, IntakeError> {
        let shared = &*self.shared;
        let message = validate(pubsub_topic, wire, shared.clock.now(), &shared.rules)?;
        let event = event_of(&message);
        let intake = self.clone();
        let on_its_way = if is_ephemeral(&message.body) {
            let is_wanted = self.is_wanted(&event);
            self.tell(&event, Stage::Published);
            tokio::spawn(async move { Ok(intake.send_on(&event, is_wanted).await) })
        } else {
            // Before it is told: see `settled`.
            let trip = shared.in_flight.begin();
            let is_told = !shared.is_refusing.load(Ordering::Relaxed);
            if is_told {
                self.tell(&event, Stage::Published);
            }
            tokio::spawn(async move {
                intake.append(message, &event, is_told, trip).await?;
                Ok(intake.send_on(&event, true).await)
            })
        };
        on_its_way.await.unwrap_or_else(|_| Err(IntakeError::interrupted()))
    }

    /// Archives a message. While the archive refuses what comes, messages are told when it has taken them: otherwise each try
    /// of each publisher would be told, of messages that nobody may ever find again.
    async fn append(
        &self,
        message: Message,
        event: &Arc<Event>,
        is_told: bool,
        _trip: InFlightGuard,
    ) -> Result<(), IntakeError> {
        let appended = self.shared.archive.append(vec![message]).await;
        let is_refusing = appended.as_ref().is_err_and(|error| error.kind() != ErrorKind::Invalid);
        self.shared.is_refusing.store(is_refusing, Ordering::Relaxed);
        match (&appended, is_told) {
            (Ok(_), false) => self.tell(event, Stage::Published),
            (Err(_), true) => self.tell(event, Stage::Refused),
            _ => {}
        }
        appended.map(drop).map_err(IntakeError::Archive)
    }

    /// Tells others of a message that was accepted. `is_wanted` says whether somebody has got it, or will.
    async fn send_on(&self, event: &Arc<Event>, is_wanted: bool) -> Published {
        self.tell(event, Stage::Accepted);
        let relay_peers = self.relay(event).await;
        Published { relay_peers, is_lost: !is_wanted && relay_peers == 0 }
    }

    /// Sends a message on its way. Nobody to send it to is no error: whoever comes later finds it in the archive.
    async fn relay(&self, event: &Event) -> usize {
        let Some(node) = self.shared.node.get() else { return 0 };
        let published = node.publish(&event.channel, event.body.clone());
        match timeout(RELAY_TIMEOUT, published).await.unwrap_or(Err(PublishError::Busy)) {
            Ok(peers) => peers,
            Err(PublishError::NoPeers) => 0,
            Err(error) => {
                tracing::debug!(%error, "a published message was not relayed");
                self.shared.metrics.unrelayed.inc();
                0
            }
        }
    }

    /// Takes a message that relay has brought. Never waits.
    ///
    /// As nwaku does, messages with a timestamp that no archive takes are relayed and delivered all the same.
    pub fn take_relayed(&self, pubsub_topic: &str, wire: Bytes) -> Verdict {
        let shared = &*self.shared;
        match validate(pubsub_topic, wire.clone(), shared.clock.now(), &shared.rules) {
            Ok(message) => {
                let event = event_of(&message);
                // Offered before it is told: see `settled`.
                if !is_ephemeral(&message.body) {
                    shared.handover.offer(message);
                }
                self.tell(&event, Stage::Relayed);
                shared.metrics.relayed(None);
                Verdict::Accept
            }
            Err(invalid) => self.take_unarchived(&invalid, pubsub_topic, wire),
        }
    }

    fn take_unarchived(&self, invalid: &Invalid, pubsub_topic: &str, wire: Bytes) -> Verdict {
        let refused = Refused::of(invalid);
        self.shared.metrics.relayed(Some(refused));
        let verdict = refused.verdict();
        if verdict == Verdict::Accept
            && let Ok(view) = WakuMessageView::parse(&wire)
        {
            self.tell(&unarchived(pubsub_topic, &view, wire.clone()), Stage::Relayed);
        }
        verdict
    }

    /// Takes messages that another archive has kept and ours lacks. They are valid: whoever calls has made sure, and has not
    /// looked at their age. What is answered is durable.
    ///
    /// # Errors
    /// When the archive does not take them.
    pub(crate) async fn take_kept(&self, messages: Vec<Message>) -> Result<Vec<Appended>, IntakeError> {
        self.shared.archive.append(messages).await.map_err(IntakeError::Archive)
    }

    fn tell(&self, event: &Arc<Event>, stage: Stage) {
        for listener in self.listeners() {
            listener.hear(event, stage);
        }
    }

    fn is_wanted(&self, event: &Event) -> bool {
        self.listeners().any(|listener| listener.is_wanted(event))
    }

    fn listeners(&self) -> impl Iterator<Item = &Arc<dyn Listener>> {
        self.shared.listeners.get().into_iter().flatten()
    }

    /// Waits until the archive has all that was told to listeners before this call, but for what it does not take or what
    /// was dropped. So whoever begins to listen, waits for this, and then reads the archive misses nothing.
    ///
    /// While the archive is away it waits: give it a time-out.
    pub async fn settled(&self) {
        let shared = &self.shared;
        tokio::join!(shared.in_flight.settled(), shared.handover.settled());
    }

    /// Waits until the archive has what relay has brought. What comes later is dropped.
    pub async fn close(&self) {
        self.shared.handover.close().await;
    }
}

impl IntakeError {
    /// The server ends, or failed, before the message had gone its way.
    fn interrupted() -> Self {
        Self::Archive(restante_archive::Error::new(ErrorKind::Internal, "the server was interrupted"))
    }

    /// What kind of trouble it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::Archive(error) => error.kind(),
        }
    }
}

fn event_of(message: &Message) -> Arc<Event> {
    let (channel, topic) = (message.channel.clone(), message.topic.clone());
    Arc::new(Event::new(channel, topic, message.message_hash, message.timestamp, message.body.clone()))
}

/// The event of a message that no archive takes: `14/WAKU2-MESSAGE` does not say what the hash of one without a timestamp is,
/// and it need only be the same whenever the message comes.
fn unarchived(pubsub_topic: &str, view: &WakuMessageView<'_>, wire: Bytes) -> Arc<Event> {
    let (content_topic, timestamp) = (view.content_topic, view.timestamp.unwrap_or_default());
    let meta = view.meta.unwrap_or_default();
    let hash = message_hash(pubsub_topic, view.payload, content_topic, meta, timestamp);
    Arc::new(Event::new(pubsub_topic.into(), content_topic.into(), hash, Timestamp(timestamp), wire))
}

/// `14/WAKU2-MESSAGE`: ephemeral messages are not archived.
fn is_ephemeral(wire: &[u8]) -> bool {
    WakuMessageView::parse(wire).is_ok_and(|view| view.ephemeral == Some(true))
}

impl Refused {
    fn of(invalid: &Invalid) -> Self {
        match invalid.problem {
            Problem::TooOld { .. } => Self::TooOld,
            Problem::InFuture { .. } => Self::InFuture,
            Problem::Missing if invalid.field == "timestamp" => Self::NoTimestamp,
            Problem::TooLarge { .. } => Self::TooLarge,
            Problem::NotServed(_) => Self::NotServed,
            _ if matches!(invalid.field, "contentTopic" | "pubsubTopic") => Self::NotServed,
            _ => Self::Malformed,
        }
    }

    /// What relay does with the message. Nodes differ in what they take beyond what `14/WAKU2-MESSAGE` asks, so nobody is
    /// thought less of for what only we don't take.
    fn verdict(self) -> Verdict {
        match self {
            Self::TooOld | Self::InFuture | Self::NoTimestamp => Verdict::Accept,
            Self::TooLarge | Self::NotServed => Verdict::Ignore,
            Self::Malformed => Verdict::Reject,
        }
    }
}

#[cfg(test)]
mod tests;
