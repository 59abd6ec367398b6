//! The connections of a server to the broker, as long as all of them work: one to publish, one to receive. A broker that is short of
//! memory or disk stops reading from a connection that published, so acknowledgements use the other one.

use std::{
    collections::BTreeSet,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, Consumer, Event,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, BasicRejectOptions,
        ConfirmSelectOptions,
    },
    types::FieldTable,
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::info;

use super::{
    Shared,
    address::unavailable,
    topology::{self, Names},
};
use crate::{Error, Received, Ticket, metrics::SettledLabel, work::Settlement};

/// How often the connections are checked, and each server sends a message to the one that distributes the work: the broker delivers
/// all of these messages to the same server as long as that one receives.
const TICK: Duration = Duration::from_secs(3);
/// How long a server distributes the work after such a message.
const DEALER_FOR: Duration = Duration::from_secs(10);
/// How often the queue is checked.
const PROBE_EVERY: Duration = Duration::from_secs(30);
/// The most items that wait for their confirms; further ones wait for a permit.
const UNCONFIRMED_MAX: usize = 100;
const PERSISTENT: u8 = 2;
const CLOSED: u16 = 200;
const CLOSED_TEXT: &str = "the queue is closed";

type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// A received item, with the number of the link that it came by.
pub(super) type Delivered = (u64, Received);

pub(super) struct Link {
    /// The number of the link; each new link has a greater one.
    pub(super) term: u64,
    publishing: Connection,
    publisher: Channel,
    /// Permits for items that wait for their confirms.
    unconfirmed: Semaphore,
    consuming: Connection,
    is_blocked: AtomicBool,
    /// A channel without confirms, for the messages to the dealer.
    beacon: Channel,
    /// Until when this server distributes the work.
    dealer_until: parking_lot::Mutex<Option<Instant>>,
    /// The number of items that are held.
    held: AtomicUsize,
    /// The number of items that were received so far.
    received: AtomicU64,
    /// Why the link is lost.
    lost: watch::Sender<Option<String>>,
}

/// The state that only the task that serves a link needs.
pub(super) struct Inlet {
    channel: Channel,
    /// `None` when this server doesn't receive.
    consumer: Option<Consumer>,
    /// The consumer of the messages that only the dealer receives.
    tokens: Option<Consumer>,
    settlements: mpsc::Receiver<(u64, Settlement)>,
    settle: mpsc::Sender<(u64, Settlement)>,
    /// The delivery tags of items that are held.
    held: BTreeSet<u64>,
    events: [Events; 2],
}

impl Link {
    /// Connects, declares the queues, and begins to receive.
    ///
    /// # Errors
    /// `Unavailable`.
    pub(super) async fn open(shared: &Shared, term: u64) -> Result<(Self, Inlet), Error> {
        let address = &shared.address;
        let publishing = address.connect("restante publishes work").await?;
        let consuming = address.connect("restante receives work").await?;
        let prepared = address.in_time(async {
            let failed = |error| unavailable("RabbitMQ refused a request", error);
            let publisher = publishing.create_channel().await.map_err(failed)?;
            shared.names.declare(&publisher).await?;
            publisher.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
            let channel = consuming.create_channel().await.map_err(failed)?;
            channel.basic_qos(shared.prefetch, BasicQosOptions::default()).await.map_err(failed)?;
            let beacon = publishing.create_channel().await.map_err(failed)?;
            if !shared.receives {
                return Ok((publisher, beacon, channel, None, None));
            }
            let (queue, options) = (shared.names.work.as_str().into(), BasicConsumeOptions::default());
            let consumer = channel.basic_consume(queue, "".into(), options, FieldTable::default()).await;
            let consumer = Some(consumer.map_err(failed)?);
            let (queue, options) = (
                shared.names.dealer.as_str().into(),
                BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() },
            );
            let receiving = consuming.create_channel().await.map_err(failed)?;
            let tokens = receiving.basic_consume(queue, "".into(), options, FieldTable::default()).await;
            Ok((publisher, beacon, channel, consumer, Some(tokens.map_err(failed)?)))
        });
        let events: [Events; 2] =
            [Box::pin(publishing.events_listener()), Box::pin(consuming.events_listener())];
        let (publisher, beacon, channel, consumer, tokens) = match prepared.await {
            Ok(prepared) => prepared,
            Err(error) => {
                close(shared, &[&publishing, &consuming]).await;
                return Err(error);
            }
        };
        // Each item that is held is settled once.
        let (settle, settlements) = mpsc::channel(usize::from(shared.prefetch));
        let link = Self {
            term,
            publishing,
            publisher,
            unconfirmed: Semaphore::new(UNCONFIRMED_MAX),
            consuming,
            is_blocked: AtomicBool::new(false),
            beacon,
            dealer_until: parking_lot::Mutex::new(None),
            held: AtomicUsize::new(0),
            received: AtomicU64::new(0),
            lost: watch::Sender::new(None),
        };
        Ok((link, Inlet { channel, consumer, tokens, settlements, settle, held: BTreeSet::new(), events }))
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Relaxed)
    }

    fn lose(&self, why: impl Into<String>) {
        let why = why.into();
        self.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            lost.get_or_insert(why);
            is_first
        });
    }

    /// Adds items, and waits for the confirms of all. It gives up when the broker does not answer in time.
    ///
    /// # Errors
    /// As [`crate::Work::publish`].
    pub(super) async fn publish(&self, shared: &Shared, queue: &str, items: &[Bytes]) -> Result<(), Error> {
        let mut publishing = Vec::with_capacity(items.len());
        for item in items {
            publishing.push(self.publish_one(shared, queue, item));
        }
        let mut are_taken = true;
        let mut confirms = stream::iter(publishing).buffer_unordered(UNCONFIRMED_MAX);
        while let Some(is_taken) = confirms.try_next().await? {
            are_taken &= is_taken;
        }
        if are_taken { Ok(()) } else { Err(Error::full(format!("the queue {queue} takes no more items"))) }
    }

    /// Adds an item; returns whether the queue accepted it.
    async fn publish_one(&self, shared: &Shared, queue: &str, item: &Bytes) -> Result<bool, Error> {
        let failed = |error| unavailable("RabbitMQ takes no items", error);
        let _room = self.unconfirmed.acquire().await.map_err(|_| crate::closed())?;
        let publishing = async {
            // Without `mandatory`, a message that no queue receives is confirmed.
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
            let sent = self.publisher.basic_publish("".into(), queue.into(), options, item, properties).await;
            sent.map_err(failed)?.await.map_err(failed)
        };
        match shared.address.in_time(publishing).await {
            Ok(Confirmation::Ack(Some(_))) => {
                let error = Error::unavailable(format!("the queue {queue} is gone"));
                self.lose(error.to_string());
                Err(error)
            }
            Ok(confirmation) => Ok(!matches!(confirmation, Confirmation::Nack(_))),
            Err(error) => {
                self.lose(error.to_string());
                Err(error)
            }
        }
    }

    /// A channel for single requests.
    ///
    /// # Errors
    /// `Unavailable`.
    pub(super) async fn channel(&self) -> Result<Channel, Error> {
        self.consuming
            .create_channel()
            .await
            .map_err(|error| unavailable("RabbitMQ refused a channel", error))
    }

    /// Receives and settles items until the link is lost or the queue is closed; returns why.
    pub(super) async fn serve(&self, shared: &Shared, mut inlet: Inlet) -> String {
        let mut closing = shared.closing.subscribe();
        let mut lost = self.lost.subscribe();
        let mut ticks = interval(TICK);
        let mut probes = interval(PROBE_EVERY);
        for ticks in [&mut ticks, &mut probes] {
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        let mut probed = None;
        let mut permit = None;
        let [of_publishing, of_consuming] = &mut inlet.events;
        loop {
            let done = tokio::select! {
                biased;
                () = closed(&mut closing) => return CLOSED_TEXT.to_owned(),
                why = loss(&mut lost) => return why,
                Some(event) = of_publishing.next() => self.note(&event, &self.publishing),
                Some(event) = of_consuming.next() => self.note(&event, &self.consuming),
                Some(first) = inlet.settlements.recv() => {
                    let mut settled = vec![first];
                    while let Ok(next) = inlet.settlements.try_recv() {
                        settled.push(next); // at most one for each held item
                    }
                    self.settle(shared, &inlet.channel, &mut inlet.held, &settled).await
                }
                _ = ticks.tick() => self.tick(shared).await,
                _ = probes.tick() => self.probe(shared, &mut probed).await,
                token = next(&mut inlet.tokens) => match token {
                    Some(Ok(_)) => {
                        self.dealt(shared);
                        Ok(())
                    }
                    _ => Err("RabbitMQ ended the delivery of messages".to_owned()),
                },
                reserved = shared.delivered.reserve(), if permit.is_none() => match reserved {
                    Ok(reserved) => {
                        permit = Some(reserved);
                        Ok(())
                    }
                    Err(_) => return CLOSED_TEXT.to_owned(),
                },
                delivery = next(&mut inlet.consumer), if permit.is_some() => match delivery {
                    None => Err("RabbitMQ ended the delivery of items".to_owned()),
                    Some(Err(error)) => Err(format!("RabbitMQ ended the delivery of items: {error}")),
                    Some(Ok(delivery)) => {
                        inlet.held.insert(delivery.delivery_tag);
                        let received = self.received(shared, &inlet.settle, delivery);
                        if let Some(permit) = permit.take() {
                            permit.send((self.term, received));
                        }
                        Ok(())
                    }
                },
            };
            if let Err(why) = done {
                return why;
            }
        }
    }

    fn note(&self, event: &Event, connection: &Connection) -> Result<(), String> {
        match event {
            // The broker blocks connections that publish.
            Event::ConnectionBlocked(why) => {
                info!(why, "RabbitMQ takes no items for now");
                self.is_blocked.store(true, Relaxed);
            }
            Event::ConnectionUnblocked => self.is_blocked.store(false, Relaxed),
            // Errors of a single channel arrive here, too.
            Event::Error(error) if !connection.status().connected() => {
                return Err(format!("the connection to RabbitMQ is lost: {error}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn received(
        &self,
        shared: &Shared,
        settle: &mpsc::Sender<(u64, Settlement)>,
        delivery: Delivery,
    ) -> Received {
        self.held.fetch_add(1, Relaxed);
        self.received.fetch_add(1, Relaxed);
        shared.metrics.received.inc();
        let (tag, settle) = (delivery.delivery_tag, settle.clone());
        let ticket = Ticket::new(move |settlement| {
            // An error means that the link is lost: the broker has returned the item by itself.
            let _ = settle.try_send((tag, settlement));
        });
        Received { item: delivery.data.into(), ticket }
    }

    /// Acknowledges and rejects items, in as few requests as possible.
    async fn settle(
        &self,
        shared: &Shared,
        channel: &Channel,
        held: &mut BTreeSet<u64>,
        settled: &[(u64, Settlement)],
    ) -> Result<(), String> {
        let mut done = Vec::new();
        let sending = async {
            let failed = |error| unavailable("RabbitMQ takes no acknowledgement", error);
            for (tag, settlement) in settled {
                held.remove(tag);
                let requeue = match settlement {
                    Settlement::Done => {
                        done.push(*tag);
                        continue;
                    }
                    Settlement::Returned => true,
                    Settlement::Rejected => false,
                };
                channel.basic_reject(*tag, BasicRejectOptions { requeue }).await.map_err(failed)?;
            }
            // After the others, as an acknowledgement may include all items before it.
            for (tag, multiple) in acknowledgements(done, held.first().copied()) {
                channel.basic_ack(tag, BasicAckOptions { multiple }).await.map_err(failed)?;
            }
            Ok(())
        };
        shared.address.in_time(sending).await.map_err(|error| error.to_string())?;
        self.held.fetch_sub(settled.len(), Relaxed);
        for (_, settlement) in settled {
            shared.metrics.settled.get_or_create(&SettledLabel::of(*settlement)).inc();
        }
        Ok(())
    }

    /// Checks the connections, and sends a message to the server that distributes the work.
    async fn tick(&self, shared: &Shared) -> Result<(), String> {
        for connection in [&self.publishing, &self.consuming] {
            if !connection.status().connected() {
                return Err("the connection to RabbitMQ is lost".to_owned());
            }
        }
        let is_dealer = self.is_dealer();
        shared.metrics.is_dealer.set(is_dealer.into());
        if !shared.receives || self.is_blocked() {
            return Ok(());
        }
        let sending = async {
            let (queue, options) = (shared.names.dealer.as_str().into(), BasicPublishOptions::default());
            let properties = BasicProperties::default();
            let sent = self.beacon.basic_publish("".into(), queue, options, &[], properties).await;
            sent.map(drop).map_err(|error| unavailable("RabbitMQ takes no messages", error))
        };
        shared.address.in_time(sending).await.map_err(|error| error.to_string())
    }

    /// Notes a message that only the dealer receives: this server is the dealer.
    fn dealt(&self, shared: &Shared) {
        let before = self.dealer_until.lock().replace(Instant::now() + DEALER_FOR);
        if before.is_none_or(|until| until <= Instant::now()) {
            info!("this server deals out the work of the queue");
            shared.metrics.is_dealer.set(1);
        }
    }

    /// Whether this server distributes the work.
    pub(super) fn is_dealer(&self) -> bool {
        self.dealer_until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Checks that the queue is there and delivers its items. `probed` is how many items had been received at the last probe, if some
    /// were waiting then.
    async fn probe(&self, shared: &Shared, probed: &mut Option<u64>) -> Result<(), String> {
        let Names { work, dead, .. } = &shared.names;
        let looking = async {
            let channel = self.channel().await?;
            let ((waiting, consumers), (dead, _)) =
                (topology::size(&channel, work).await?, topology::size(&channel, dead).await?);
            let _ = channel.close(CLOSED, "done".into()).await;
            Ok((waiting, consumers, dead))
        };
        let looked = shared.address.in_time(looking).await.map_err(|error| error.to_string());
        let (waiting, consumers, dead) = looked?;
        shared.metrics.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        shared.metrics.dead.set(i64::try_from(dead).unwrap_or(i64::MAX));
        if consumers == 0 && shared.receives {
            return Err(format!("the queue {work} has no consumer, though this server is one"));
        }
        let received = self.received.load(Relaxed);
        let is_idle = shared.receives && waiting > 0 && self.held.load(Relaxed) == 0;
        if is_idle && *probed == Some(received) {
            return Err(format!("{waiting} items wait in the queue {work}, and none is delivered"));
        }
        *probed = is_idle.then_some(received);
        Ok(())
    }

    /// Ends the connections. The broker returns what is held.
    pub(super) async fn close(&self, shared: &Shared) {
        close(shared, &[&self.publishing, &self.consuming]).await;
    }
}

/// The acknowledgements for items that are done: each a tag, and whether it includes all items before it. One acknowledgement is
/// enough for those before the oldest item that is still held.
fn acknowledgements(mut done: Vec<u64>, oldest_held: Option<u64>) -> Vec<(u64, bool)> {
    done.sort_unstable();
    let together = done.partition_point(|tag| oldest_held.is_none_or(|held| *tag < held));
    let single = done.split_off(together);
    let last = done.last().map(|last| (*last, done.len() > 1));
    last.into_iter().chain(single.into_iter().map(|tag| (tag, false))).collect()
}

/// The next item of the consumer; waits forever if there is no consumer.
async fn next(consumer: &mut Option<Consumer>) -> Option<lapin::Result<Delivery>> {
    match consumer {
        Some(consumer) => consumer.next().await,
        None => std::future::pending().await,
    }
}

/// Waits until the queue is closed.
async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|is_closing| *is_closing).await; // an error means that the queue was dropped
}

/// Waits until the link is lost; returns why.
async fn loss(lost: &mut watch::Receiver<Option<String>>) -> String {
    lost.wait_for(Option::is_some).await.ok().and_then(|why| why.clone()).unwrap_or_default()
}

async fn close(shared: &Shared, connections: &[&Connection]) {
    for connection in connections {
        let closing = async {
            let _ = connection.close(CLOSED, "done".into()).await;
            Ok(())
        };
        // A connection that does not answer ends when it is dropped, or when its heartbeat is missing.
        let _ = shared.address.in_time(closing).await;
    }
}

/// The queue of a server, with the task that supervises its link.
pub(super) async fn supervise(shared: Arc<Shared>) {
    let mut backoff = crate::backoff::Backoff::new();
    let mut closing = shared.closing.subscribe();
    for term in 1.. {
        match Link::open(&shared, term).await {
            Ok((link, inlet)) => {
                let link = Arc::new(link);
                shared.metrics.connects.inc();
                shared.metrics.work_up.set(1);
                shared.set_link(Ok(link.clone()));
                let why = link.serve(&shared, inlet).await;
                shared.metrics.work_up.set(0);
                shared.metrics.is_dealer.set(0);
                shared.set_link(Err(why));
                link.close(&shared).await;
                backoff.reset();
            }
            Err(error) => {
                shared.metrics.work_up.set(0);
                shared.set_link(Err(error.to_string()));
            }
        }
        tokio::select! {
            () = closed(&mut closing) => return,
            () = tokio::time::sleep(backoff.next()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_before_the_oldest_that_is_held_are_acknowledged_together() {
        for (done, oldest_held, expected) in [
            (vec![], Some(1), vec![]),
            (vec![4], None, vec![(4, false)]),
            (vec![6, 4, 5], None, vec![(6, true)]),
            (vec![6, 4, 5], Some(7), vec![(6, true)]),
            (vec![8, 4, 9, 5], Some(6), vec![(5, true), (8, false), (9, false)]),
            (vec![9, 8], Some(4), vec![(8, false), (9, false)]),
        ] {
            assert_eq!(acknowledgements(done, oldest_held), expected);
        }
    }
}
