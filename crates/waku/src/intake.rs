//! Accepts messages of all protocols and passes them to the archive, the network and live subscribers.
//!
//! A message that a client publishes (REST, lightpush) is delivered to live subscribers at once, and relayed and acknowledged
//! when it is archived: an acknowledged message is durable, and live delivery does not wait for the disk. Relayed messages
//! go to the archive through a bounded queue, so a slow archive never blocks relay.

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

/// How long the node may take to queue a message for its peers: the publisher waits for this.
pub(crate) const RELAY_TIMEOUT: Duration = Duration::from_secs(2);

/// What relay does with a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Forward it.
    Accept,
    /// Drop it without a penalty for the sender: other nodes may accept it.
    Ignore,
    /// Drop it and lower the sender's score: no decoder accepts it.
    Reject,
}

/// The result of publishing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The number of peers to which it was relayed.
    pub relay_peers: usize,
    /// The message is ephemeral, so not archived, and nobody received it.
    pub is_lost: bool,
}

/// Why a published message was refused.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// The message is not valid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The archive did not store it.
    #[error("the archive did not take the message: {0}")]
    Archive(restante_archive::Error),
}

/// Accepts incoming messages. Clones are handles of the same intake.
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
    /// Whether the last append failed.
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
    /// Starts the queue to `archive` in a task of the current runtime. It runs until [`Intake::close`].
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

    /// Sets the listeners of new messages and the node that relays them. Call it once, before messages arrive. It is separate
    /// from [`Intake::new`] because both need the intake themselves.
    pub fn connect(&self, listeners: Vec<Arc<dyn Listener>>, node: Option<Node>) {
        let is_first = self.shared.listeners.set(listeners).is_ok();
        debug_assert!(is_first, "an intake is connected once");
        if let Some(node) = node {
            let _ = self.shared.node.set(node);
        }
    }

    /// Which messages are accepted.
    pub fn rules(&self) -> &Rules {
        &self.shared.rules
    }

    /// Publishes a client's message: delivers it to live subscribers, archives it (unless it is ephemeral), then sends it to
    /// other nodes and relays it. When this returns, an archived message is durable. Cancelling this call does not stop the
    /// steps that follow.
    ///
    /// Live subscribers get the message before it is durable. If the append fails, or the machine fails first, they have
    /// received a message that was never acknowledged, and that is in the archive only if its publisher sends it again; then
    /// they receive it again. After a failed append, messages are delivered only when they are archived, until an append succeeds.
    ///
    /// # Errors
    /// When the message is not valid, or the archive did not store it; then it was not relayed.
    pub async fn publish(&self, pubsub_topic: &str, wire: Bytes) -> Result<Published, IntakeError> {
        let shared = &*self.shared;
        let message = validate(pubsub_topic, wire, shared.clock.now(), &shared.rules)?;
        let event = event_of(&message);
        let intake = self.clone();
        let publishing = if is_ephemeral(&message.body) {
            let has_subscriber = self.has_subscriber(&event);
            self.notify(&event, Stage::Published);
            tokio::spawn(async move { Ok(intake.forward(&event, has_subscriber).await) })
        } else {
            // Before it is announced: see `settled`.
            let in_flight = shared.in_flight.begin();
            let is_announced = !shared.is_refusing.load(Ordering::Relaxed);
            if is_announced {
                self.notify(&event, Stage::Published);
            }
            tokio::spawn(async move {
                intake.append(message, &event, is_announced, in_flight).await?;
                Ok(intake.forward(&event, true).await)
            })
        };
        publishing.await.unwrap_or_else(|_| Err(IntakeError::interrupted()))
    }

    /// Archives a message. While appends fail, messages are announced only when they are archived: otherwise every retry of
    /// every publisher would be announced, for messages that may never be archived.
    async fn append(
        &self,
        message: Message,
        event: &Arc<Event>,
        is_announced: bool,
        _in_flight: InFlightGuard,
    ) -> Result<(), IntakeError> {
        let appended = self.shared.archive.append(vec![message]).await;
        let is_refusing = appended.as_ref().is_err_and(|error| error.kind() != ErrorKind::Invalid);
        self.shared.is_refusing.store(is_refusing, Ordering::Relaxed);
        match (&appended, is_announced) {
            (Ok(_), false) => self.notify(event, Stage::Published),
            (Err(_), true) => self.notify(event, Stage::Refused),
            _ => {}
        }
        appended.map(drop).map_err(IntakeError::Archive)
    }

    /// Sends an accepted message to other nodes and relays it. `is_received`: whether it is archived or has a subscriber.
    async fn forward(&self, event: &Arc<Event>, is_received: bool) -> Published {
        self.notify(event, Stage::Accepted);
        let relay_peers = self.relay(event).await;
        Published { relay_peers, is_lost: !is_received && relay_peers == 0 }
    }

    /// Relays a message; returns to how many peers. It is not an error if there are none: peers that connect later find the
    /// message in the archive.
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

    /// Accepts a message from relay. Never waits.
    ///
    /// As in nwaku, messages with a timestamp that no archive accepts are still relayed and delivered.
    pub fn take_relayed(&self, pubsub_topic: &str, wire: Bytes) -> Verdict {
        let shared = &*self.shared;
        match validate(pubsub_topic, wire.clone(), shared.clock.now(), &shared.rules) {
            Ok(message) => {
                let event = event_of(&message);
                // Offered before it is announced: see `settled`.
                if !is_ephemeral(&message.body) {
                    shared.handover.offer(message);
                }
                self.notify(&event, Stage::Relayed);
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
            self.notify(&unarchived(pubsub_topic, &view, wire.clone()), Stage::Relayed);
        }
        verdict
    }

    /// Archives messages that were fetched from another archive. The caller has validated them, apart from their age. They are
    /// durable when this returns.
    ///
    /// # Errors
    /// When the archive does not store them.
    pub(crate) async fn append_fetched(&self, messages: Vec<Message>) -> Result<Vec<Appended>, IntakeError> {
        self.shared.archive.append(messages).await.map_err(IntakeError::Archive)
    }

    fn notify(&self, event: &Arc<Event>, stage: Stage) {
        for listener in self.listeners() {
            listener.on_message(event, stage);
        }
    }

    fn has_subscriber(&self, event: &Event) -> bool {
        self.listeners().any(|listener| listener.has_subscriber(event))
    }

    fn listeners(&self) -> impl Iterator<Item = &Arc<dyn Listener>> {
        self.shared.listeners.get().into_iter().flatten()
    }

    /// Waits until all messages that were announced to listeners before this call are archived, refused or dropped. A client that
    /// subscribes, waits for this, and then reads the archive misses nothing.
    ///
    /// It waits for as long as the archive is unavailable: use a time-out.
    pub async fn settled(&self) {
        let shared = &self.shared;
        tokio::join!(shared.in_flight.settled(), shared.handover.settled());
    }

    /// Waits until all relayed messages are archived. Later ones are dropped.
    pub async fn close(&self) {
        self.shared.handover.close().await;
    }
}

impl IntakeError {
    /// The server stopped or failed before the message was handled.
    fn interrupted() -> Self {
        Self::Archive(restante_archive::Error::internal("the server was interrupted"))
    }

    /// The kind of the error.
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

/// The event of a message that no archive accepts. `14/WAKU2-MESSAGE` does not define the hash of a message without a timestamp;
/// this hash only has to be the same each time the message arrives.
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

    /// What relay does with the message. Nodes have different limits beyond `14/WAKU2-MESSAGE`, so no sender is penalised for
    /// messages that only this node refuses.
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
