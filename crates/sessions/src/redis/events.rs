//! Events that one node publishes to the others.
//!
//! ```text
//! message:  version (1 byte: 1), sending node (u32, big-endian), message hash (32 bytes), timestamp (i64, big-endian),
//!           length of the channel (varint), the channel, length of the topic (varint), the topic, the body
//! ```
//!
//! Nothing is stored: a node that is not subscribed at that moment misses the event. Clients that must not miss anything query
//! the archive from their cursor.

use std::{
    iter::Peekable,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use restante_core::{MessageHash, Timestamp};
use smallvec::SmallVec;
use tokio::sync::mpsc;

use super::table::Table;
use crate::{
    NodeId,
    hub::Event,
    redis_metrics::{EventLoss, LossLabel},
    varint::{put, take, take_array, take_byte, take_slice},
};

/// The most events that wait to be sent: one second of a busy network.
const QUEUE_EVENTS_MAX: usize = 4_096;
/// The most bytes of these events.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// The most events in a batch.
const BATCH_EVENTS_MAX: usize = 64;
/// The most bytes of a batch of several events: it must be sent within the timeout of a request.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// The most bytes of an event: a Waku message has at most 150 KiB by default, a stanza is shorter.
const EVENT_BYTES_MAX: usize = 1 << 20;
/// The most bytes of a channel or a topic.
const NAME_BYTES_MAX: usize = 16 << 10;
/// The most bytes of an event besides names and body.
const OVERHEAD_BYTES: usize = 64;

const VERSION: u8 = 1;

/// An event that waits to be sent, and the bytes that it counts for.
pub(super) struct Waiting {
    message: Vec<u8>,
}

/// The queue of events to send: its input.
pub(super) struct Queue {
    sender: mpsc::Sender<Waiting>,
    bytes: Arc<AtomicUsize>,
}

/// The queue of events to send: its output.
pub(super) struct Outbox {
    waiting: mpsc::Receiver<Waiting>,
    bytes: Arc<AtomicUsize>,
}

pub(super) fn queue() -> (Queue, Outbox) {
    let (sender, waiting) = mpsc::channel(QUEUE_EVENTS_MAX);
    let bytes = Arc::new(AtomicUsize::new(0));
    (Queue { sender, bytes: bytes.clone() }, Outbox { waiting, bytes })
}

impl Queue {
    /// Puts an event into the queue, if it fits.
    fn put(&self, message: Vec<u8>) -> bool {
        let bytes = message.len();
        let before = self.bytes.fetch_add(bytes, Ordering::SeqCst);
        let is_put = before + bytes <= QUEUE_BYTES_MAX && self.sender.try_send(Waiting { message }).is_ok();
        if !is_put {
            self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        }
        is_put
    }
}

impl Table {
    /// Queues an event for the sender. Never waits.
    pub(super) fn broadcast(&self, event: &Event) {
        if self.link().is_none() {
            return self.lost_events(EventLoss::Away, 1);
        }
        let is_long = event.channel.len() > NAME_BYTES_MAX
            || event.topic.len() > NAME_BYTES_MAX
            || event.body.len() > EVENT_BYTES_MAX;
        if is_long {
            return self.lost_events(EventLoss::TooLong, 1);
        }
        if !self.events.put(encode(self.here, event)) {
            self.lost_events(EventLoss::QueueFull, 1);
        }
    }

    /// Receives a message from the channel of events.
    pub(super) fn receive(&self, message: &[u8]) {
        match decode(message) {
            Some((node, _)) if node == self.here => {}
            Some((_, event)) => {
                self.metrics.heard.inc();
                self.owner.received(event);
            }
            None => self.lost_events(EventLoss::Unreadable, 1),
        }
    }

    fn lost_events(&self, loss: EventLoss, count: usize) {
        self.metrics.lost.get_or_create(&LossLabel::new(loss)).inc_by(count as u64);
    }
}

/// Sends queued events in batches until the table is closed.
pub(super) async fn send(table: Arc<Table>, mut outbox: Outbox) {
    let channel = table.keys.live();
    let mut taken = Vec::with_capacity(BATCH_EVENTS_MAX);
    while outbox.waiting.recv_many(&mut taken, BATCH_EVENTS_MAX).await > 0 {
        let mut messages = taken.drain(..).map(|waiting| waiting.message).peekable();
        while messages.peek().is_some() {
            let batch = next_batch(&mut messages);
            let bytes: usize = batch.iter().map(Vec::len).sum();
            send_batch(&table, &channel, &batch).await;
            outbox.bytes.fetch_sub(bytes, Ordering::SeqCst);
        }
    }
}

/// Takes the next message, and those after it that fit into a batch with it.
fn next_batch(messages: &mut Peekable<impl Iterator<Item = Vec<u8>>>) -> Vec<Vec<u8>> {
    let mut batch = Vec::new();
    let mut left = BATCH_BYTES_MAX;
    while let Some(message) = messages.next_if(|message| batch.is_empty() || message.len() <= left) {
        left = left.saturating_sub(message.len());
        batch.push(message);
    }
    batch
}

async fn send_batch(table: &Table, channel: &str, messages: &[Vec<u8>]) {
    let Some(link) = table.link() else { return table.lost_events(EventLoss::Away, messages.len()) };
    match link.publish(channel, messages).await {
        Ok(()) => {
            table.metrics.sent.inc_by(messages.len() as u64);
        }
        Err(error) => {
            table.report(&link, &error);
            table.lost_events(EventLoss::Away, messages.len());
        }
    }
}

/// Encodes an event whose parts are within their bounds.
fn encode(here: NodeId, event: &Event) -> Vec<u8> {
    let mut head: SmallVec<[u8; 256]> = SmallVec::new();
    head.push(VERSION);
    head.extend_from_slice(&here.0.to_be_bytes());
    head.extend_from_slice(event.message_hash.as_bytes());
    head.extend_from_slice(&event.timestamp.nanos().to_be_bytes());
    for name in [&event.channel, &event.topic] {
        put(name.len() as u32, &mut head);
        head.extend_from_slice(name.as_bytes());
    }
    let mut message = Vec::with_capacity(head.len() + event.body.len());
    message.extend_from_slice(&head);
    message.extend_from_slice(&event.body);
    message
}

/// Decodes a message; `None` if [`encode`] could not have made it.
fn decode(message: &[u8]) -> Option<(NodeId, Event)> {
    if message.len() > EVENT_BYTES_MAX + 2 * NAME_BYTES_MAX + OVERHEAD_BYTES {
        return None;
    }
    let mut rest = message;
    if take_byte(&mut rest)? != VERSION {
        return None;
    }
    let node = NodeId(u32::from_be_bytes(take_array(&mut rest)?));
    let message_hash = MessageHash(take_array(&mut rest)?);
    let timestamp = Timestamp(i64::from_be_bytes(take_array(&mut rest)?));
    let channel = take_name(&mut rest)?;
    let topic = take_name(&mut rest)?;
    if rest.len() > EVENT_BYTES_MAX {
        return None;
    }
    let body = Bytes::copy_from_slice(rest);
    Some((node, Event::new(channel.into(), topic.into(), message_hash, timestamp, body)))
}

fn take_name<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let len = take(bytes)? as usize;
    if len > NAME_BYTES_MAX {
        return None;
    }
    std::str::from_utf8(take_slice(bytes, len)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(channel: &str, topic: &str, body: &[u8]) -> Event {
        Event::new(
            channel.into(),
            topic.into(),
            MessageHash([7; 32]),
            Timestamp(-5),
            Bytes::copy_from_slice(body),
        )
    }

    proptest! {
        #[test]
        fn events_survive(channel in ".{0,40}", topic in ".{0,200}", body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let sent = event(&channel, &topic, &body);
            let (node, decoded) = decode(&encode(NodeId(9), &sent)).unwrap();
            prop_assert_eq!(node, NodeId(9));
            prop_assert_eq!((&decoded.channel, &decoded.topic, &decoded.body), (&sent.channel, &sent.topic, &sent.body));
            prop_assert_eq!((decoded.message_hash, decoded.timestamp), (sent.message_hash, sent.timestamp));
        }

        #[test]
        fn any_bytes_are_read_without_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = decode(&bytes);
            if let Some(version) = bytes.first_mut() {
                *version = VERSION;
            }
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn an_event_cut_short_or_of_another_version_is_none() {
        let whole = encode(NodeId(9), &event("/waku/2/rs/0/0", "/app/1/chat/proto", b""));
        for end in 0..whole.len() {
            assert!(decode(&whole[..end]).is_none(), "{end}");
        }
        let mut other = whole.clone();
        other[0] = 2;
        assert!(decode(&other).is_none());
    }

    #[test]
    fn a_batch_is_bounded_in_bytes_but_has_one_message() {
        let most = BATCH_BYTES_MAX;
        let lens = [most + 1, 1, most - 1, 1, most / 2, most / 2, most / 2, EVENT_BYTES_MAX, EVENT_BYTES_MAX];
        let mut messages = lens.into_iter().map(|len| vec![0; len]).peekable();
        let mut batches = Vec::new();
        while messages.peek().is_some() {
            batches.push(next_batch(&mut messages).iter().map(Vec::len).collect::<Vec<_>>());
        }
        let half = most / 2;
        let long = EVENT_BYTES_MAX;
        assert_eq!(
            batches,
            [vec![most + 1], vec![1, most - 1], vec![1, half], vec![half, half], vec![long], vec![long]]
        );
    }

    #[test]
    fn the_queue_is_bounded_in_bytes_and_in_events() {
        let (queue, mut outbox) = queue();
        let mut put = 0;
        while queue.put(vec![0; 1 << 20]) {
            put += 1;
        }
        assert_eq!(put, QUEUE_BYTES_MAX >> 20);
        let waiting = outbox.waiting.try_recv().unwrap();
        outbox.bytes.fetch_sub(waiting.message.len(), Ordering::SeqCst);
        assert!(queue.put(vec![0; 1 << 20]) && !queue.put(vec![0]));

        let (queue, _outbox) = super::queue();
        let put = (0..2 * QUEUE_EVENTS_MAX).filter(|_| queue.put(vec![0; 10])).count();
        assert_eq!(put, QUEUE_EVENTS_MAX);
    }
}
