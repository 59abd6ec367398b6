//! Producers and consumers of one queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use futures_util::{FutureExt, Stream, StreamExt, stream::FuturesUnordered};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, Consumer, Event,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    },
    types::FieldTable,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{timeout, timeout_at},
};

use super::{
    super::load::{Measured, Times},
    Access,
};
use crate::{machine, measure::Latencies, progress};

/// As in seed 004.
pub(super) const PRODUCERS: usize = 2;
const CONSUMERS: usize = 4;
/// Messages of a producer that wait for their confirms, and messages of a consumer that wait for its acknowledgement.
pub(super) const WINDOW: usize = 100;
/// Without confirms: messages of a producer that wait to be written to its connection, and those that wait in a consumer.
const UNWRITTEN: usize = 1;
const UNBOUNDED_PREFETCH: u16 = 10_000;
/// A load without confirms ends after this many messages, before they fill the broker's memory.
const MESSAGES_MAX: u64 = 2_000_000;
/// After the time of a load: how long the last confirms and messages may take.
const END_MAX: Duration = Duration::from_secs(10);
/// This many failures end a producer: the broker is gone.
const FAILURES_MAX: u64 = 20;
/// A backlog up to this is normal: what producers and consumers have in flight.
const UNDER_WAY: u64 = 2 * (PRODUCERS * WINDOW + CONSUMERS * WINDOW) as u64;

/// The times of a load: from sending to the confirm, and from sending to the consumer.
pub(super) const CONFIRM: &str = "confirm";
pub(super) const DELIVERY: &str = "end to end";

/// A load on one queue.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// The type of the queue, and its name.
    pub(super) kind: &'static str,
    pub(super) queue: String,
    duration: Duration,
    /// Bytes of a message; 0, or at least 8 for the time at which it was sent.
    bytes: usize,
    has_confirms: bool,
    messages_max: u64,
}

impl Load {
    pub(super) fn of_seed(queue: String, duration: Duration) -> Self {
        Self { kind: "classic", queue, duration, bytes: 0, has_confirms: false, messages_max: MESSAGES_MAX }
    }

    pub(super) fn bounded(kind: &'static str, queue: String, duration: Duration) -> Self {
        Self { kind, queue, duration, bytes: 1_000, has_confirms: true, messages_max: u64::MAX }
    }

    fn properties(&self) -> BasicProperties {
        const TRANSIENT: u8 = 1;
        const PERSISTENT: u8 = 2;
        let mode = if self.has_confirms { PERSISTENT } else { TRANSIENT };
        BasicProperties::default().with_delivery_mode(mode)
    }
}

/// The outcome of a load.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The messages sent; with confirms, those confirmed.
    pub(super) measured: Measured,
    received: u64,
    /// Until the last message was received, or until the wait for more ended.
    receiving: Duration,
    /// Sent and not received when the producers stopped.
    pub(super) backlog: u64,
}

impl Outcome {
    pub(super) fn sent_per_second(&self) -> f64 {
        self.measured.per_second()
    }

    pub(super) fn received_per_second(&self) -> f64 {
        self.received as f64 / self.receiving.as_secs_f64().max(1e-9)
    }

    /// Whether the consumers fell behind, by more than is in flight at any time.
    pub(super) fn has_growing_backlog(&self) -> bool {
        self.backlog > UNDER_WAY.max(self.measured.operations / 5)
    }
}

/// What producers and consumers of one load share.
struct Shared {
    load: Load,
    begun: Instant,
    taken: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Shared {
    fn until(&self) -> Instant {
        self.begun + self.load.duration
    }

    /// Whether one more message is to be sent.
    fn take(&self) -> bool {
        Instant::now() < self.until() && self.taken.fetch_add(1, Ordering::Relaxed) < self.load.messages_max
    }

    /// Sent and not received.
    fn backlog(&self) -> u64 {
        self.sent.load(Ordering::Relaxed).saturating_sub(self.received.load(Ordering::Relaxed))
    }
}

/// Runs a load on an existing queue.
///
/// # Errors
/// When a connection can't be opened or breaks. A broker that accepts no messages is no error, but a failure in the outcome.
pub(super) async fn run(access: &Access, load: Load) -> anyhow::Result<Outcome> {
    let (mut to_produce, mut to_consume) = (Vec::new(), Vec::new());
    for _ in 0..PRODUCERS {
        to_produce.push(access.open().await?);
    }
    // First, because a broker with a full queue makes new consumers wait.
    for _ in 0..CONSUMERS {
        let connection = access.open().await?;
        let consumer = subscribe(&connection, &load).await?;
        to_consume.push((connection, consumer));
    }
    let bar = progress::bar(&format!("rabbitmq: {}", load.queue), 1);
    let cpu = machine::processor_time("self");
    let shared = Arc::new(Shared {
        load,
        begun: Instant::now(),
        taken: AtomicU64::new(0),
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
    });
    let (stop, stopped) = watch::channel(false);
    let mut consumers = JoinSet::new();
    for (connection, consumer) in to_consume {
        consumers.spawn(consume(connection, consumer, shared.clone(), stopped.clone()));
    }
    let mut producers = JoinSet::new();
    for connection in to_produce {
        producers.spawn(produce(connection, shared.clone()));
    }
    let mut outcome = Outcome::default();
    let mut confirms = Times::default();
    while let Some(ended) = producers.join_next().await {
        let produced = ended.context("a producer panicked")??;
        outcome.measured.errors += produced.errors;
        outcome.measured.first_error = outcome.measured.first_error.or(produced.first_error);
        confirms.service.add(&produced.times);
    }
    let measured = &mut outcome.measured;
    measured.operations = shared.sent.load(Ordering::Relaxed);
    measured.bytes = measured.operations * shared.load.bytes as u64;
    measured.wall = shared.begun.elapsed();
    let now = machine::processor_time("self");
    measured.cpu = now.zip(cpu).map(|(now, before)| now.saturating_sub(before));
    outcome.backlog = shared.backlog();
    outcome.receiving = receive_the_rest(&shared, &mut consumers).await?;
    stop.send_replace(true);
    let mut deliveries = Times::default();
    while let Some(ended) = consumers.join_next().await {
        deliveries.service.add(&ended.context("a consumer panicked")??);
    }
    outcome.received = shared.received.load(Ordering::Relaxed);
    outcome.measured.times = vec![(CONFIRM, confirms), (DELIVERY, deliveries)];
    bar.finish_and_clear();
    Ok(outcome)
}

/// Waits until all messages have arrived; for those without confirms only until the time of the load is over. Returns the time
/// since the start.
async fn receive_the_rest(
    shared: &Shared,
    consumers: &mut JoinSet<anyhow::Result<Latencies>>,
) -> anyhow::Result<Duration> {
    const POLL: Duration = Duration::from_millis(5);
    let end = if shared.load.has_confirms { Instant::now() + END_MAX } else { shared.until() };
    while shared.backlog() > 0 && Instant::now() < end {
        if let Ok(Some(ended)) = timeout(POLL, consumers.join_next()).await {
            ended.context("a consumer panicked")??;
            bail!("a consumer ended before all messages had arrived");
        }
    }
    Ok(shared.begun.elapsed())
}

/// What one producer did.
#[derive(Default)]
struct Produced {
    times: Latencies,
    errors: u64,
    first_error: Option<String>,
}

impl Produced {
    fn fail(&mut self, count: u64, error: String) {
        self.errors += count;
        self.first_error.get_or_insert(error);
    }
}

/// Sends messages until the time is over, with a bounded number in flight.
async fn produce(connection: Connection, shared: Arc<Shared>) -> anyhow::Result<Produced> {
    let mut events = Box::pin(connection.events_listener());
    let channel = connection.create_channel().await?;
    let load = &shared.load;
    if load.has_confirms {
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
    }
    let width = if load.has_confirms { WINDOW } else { UNWRITTEN };
    let end = tokio::time::Instant::from_std(shared.until() + END_MAX);
    let mut produced = Produced::default();
    let mut under_way = FuturesUnordered::new();
    loop {
        while under_way.len() < width && shared.take() {
            under_way.push(publish(&channel, &shared));
        }
        if under_way.is_empty() {
            return Ok(produced);
        }
        match timeout_at(end, under_way.next()).await {
            Ok(Some(Ok(time))) => {
                shared.sent.fetch_add(1, Ordering::Relaxed);
                produced.times.record(time);
            }
            Ok(Some(Err(error))) => {
                produced.fail(1, format!("{error:#}"));
                if produced.errors >= FAILURES_MAX {
                    return Err(error.context("the broker stopped to take messages"));
                }
            }
            Ok(None) => return Ok(produced),
            Err(_) => {
                let reason = why_blocked(&connection, &mut events);
                produced.fail(under_way.len() as u64, reason);
                return Ok(produced);
            }
        }
    }
}

/// Why messages wait for longer than the time of a load.
fn why_blocked(connection: &Connection, events: &mut (impl Stream<Item = Event> + Unpin)) -> String {
    let mut reason = None;
    while let Some(Some(event)) = events.next().now_or_never() {
        match event {
            Event::ConnectionBlocked(why) => reason = Some(why),
            Event::ConnectionUnblocked => reason = None,
            _ => {}
        }
    }
    match reason {
        Some(why) => format!(
            "the broker takes no messages: {why} (it is at the alarm that `rabbitmqctl status` names: free memory or disk \
             space, or raise the limit)"
        ),
        None if connection.status().blocked() => {
            "the broker takes no messages, and does not say why".to_owned()
        }
        None => format!("no confirm within {} s", END_MAX.as_secs()),
    }
}

/// Sends a message and waits for its confirm, or until it is written to the connection.
async fn publish(channel: &Channel, shared: &Shared) -> anyhow::Result<Duration> {
    let load = &shared.load;
    let sent = shared.begun.elapsed();
    let mut body = vec![b'm'; load.bytes];
    if let Some(front) = body.first_chunk_mut() {
        *front = u64::try_from(sent.as_nanos()).unwrap_or(u64::MAX).to_be_bytes();
    }
    // Without it, a message for which there is no queue is confirmed.
    let options = BasicPublishOptions { mandatory: load.has_confirms, ..BasicPublishOptions::default() };
    let queue = load.queue.as_str().into();
    let written = channel.basic_publish("".into(), queue, options, &body, load.properties()).await?;
    match written.await? {
        Confirmation::Ack(None) => {}
        Confirmation::Ack(Some(_)) => bail!("the queue is gone"),
        Confirmation::Nack(_) => bail!("the broker could not keep a message"),
        Confirmation::NotRequested if load.has_confirms => bail!("the broker sends no confirms"),
        Confirmation::NotRequested => {}
    }
    Ok(shared.begun.elapsed().saturating_sub(sent))
}

async fn subscribe(connection: &Connection, load: &Load) -> anyhow::Result<Consumer> {
    let channel = connection.create_channel().await?;
    let prefetch = if load.has_confirms { WINDOW as u16 } else { UNBOUNDED_PREFETCH };
    channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
    let (queue, options) = (load.queue.as_str().into(), BasicConsumeOptions::default());
    Ok(channel.basic_consume(queue, "".into(), options, FieldTable::default()).await?)
}

/// Receives and acknowledges messages until it is stopped, then closes the connection.
async fn consume(
    _connection: Connection,
    mut consumer: Consumer,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<Latencies> {
    let mut times = Latencies::default();
    // As many as the broker delivers without an acknowledgement: its prefetch.
    let mut acknowledging = FuturesUnordered::new();
    loop {
        let delivery = tokio::select! {
            _ = stopped.changed() => return Ok(times),
            Some(acknowledged) = acknowledging.next(), if !acknowledging.is_empty() => {
                let _: bool = acknowledged?; // false after the connection broke, which the next delivery reports
                continue;
            }
            delivery = consumer.next() => delivery,
        };
        let delivery = delivery.ok_or_else(|| anyhow!("the broker cancelled a consumer"))??;
        if let Some(sent) = delivery.data.first_chunk() {
            let sent = Duration::from_nanos(u64::from_be_bytes(*sent));
            times.record(shared.begun.elapsed().saturating_sub(sent));
        }
        shared.received.fetch_add(1, Ordering::Relaxed);
        acknowledging.push(async move { delivery.acker.ack(BasicAckOptions::default()).await });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_grows_when_consumers_fall_behind() {
        let outcome = |sent, backlog| {
            let mut outcome = Outcome { backlog, ..Outcome::default() };
            outcome.measured.operations = sent;
            outcome
        };
        assert!(!outcome(10_000, UNDER_WAY).has_growing_backlog());
        assert!(outcome(10_000, 2_001).has_growing_backlog());
        assert!(!outcome(1_000, 900).has_growing_backlog());
    }

    #[test]
    fn rates_are_those_of_their_own_time() {
        let mut outcome = Outcome { received: 300, receiving: Duration::from_secs(3), ..Outcome::default() };
        outcome.measured.operations = 300;
        outcome.measured.wall = Duration::from_secs(2);
        assert_eq!((outcome.sent_per_second(), outcome.received_per_second()), (150.0, 100.0));
    }
}
