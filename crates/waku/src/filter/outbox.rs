//! What waits to be pushed: one encoded frame per message, shared by all who want it, and a bounded queue per subscriber.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use libp2p::PeerId;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use restante_waku_wire::rpc::{self, filter::MessagePush};
use tokio::sync::Notify;

use super::FilterConfig;
use crate::live::Arrival;

/// What a frame takes beside its bytes.
const FRAME_BYTES: usize = 128;
/// A queue takes at most this part of the room that is left for all, so that the room never ends however many are slow, and
/// one who keeps up always finds some.
const QUEUE_SHARE: usize = 8;
/// So many messages and bytes are taken from a queue at once: a push is that much, and has its time-out.
const BATCH_MESSAGES_MAX: usize = 8;
const BATCH_BYTES_MAX: usize = 256 << 10;

/// The room for all frames that wait, each counted once however many want it.
#[derive(Debug)]
pub(crate) struct Room {
    used: AtomicUsize,
    bytes_max: usize,
    shown: Gauge,
}

/// A `MessagePush` behind its length.
#[derive(Debug)]
pub(crate) struct Frame {
    bytes: Vec<u8>,
    taken: usize,
    room: Arc<Room>,
}

impl Room {
    pub(crate) fn new(bytes_max: usize, shown: Gauge) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), bytes_max, shown })
    }

    fn free(&self) -> usize {
        self.bytes_max.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Encodes a message if there is room for it.
    pub(crate) fn frame(self: &Arc<Self>, arrival: &Arrival) -> Option<Arc<Frame>> {
        let taken = arrival.wire.len() + arrival.pubsub_topic.len() + FRAME_BYTES;
        let add = |used: usize| used.checked_add(taken).filter(|sum| *sum <= self.bytes_max);
        let before = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        self.shown.set((before + taken) as i64);
        let push = MessagePush {
            waku_message: Some(arrival.wire.clone()),
            pubsub_topic: Some(arrival.pubsub_topic.to_string()),
        };
        Some(Arc::new(Frame { bytes: rpc::frame(&push), taken, room: self.clone() }))
    }
}

impl Frame {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let before = self.room.used.fetch_sub(self.taken, Ordering::Relaxed);
        self.room.shown.set(before.saturating_sub(self.taken) as i64);
    }
}

/// The queue of one subscriber.
pub(crate) struct Outbox {
    pub(crate) peer: PeerId,
    /// Tells subscribers apart, also two of the same peer one after the other.
    pub(crate) number: u64,
    messages_max: usize,
    bytes_max: usize,
    room: Arc<Room>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    frames: VecDeque<Arc<Frame>>,
    /// Of the frames in the queue and of those being pushed.
    bytes: usize,
    /// Pushes that failed since the last that did not.
    failures: u32,
    is_away: bool,
    /// The peer went away since the pusher last looked.
    has_left: bool,
    is_closed: bool,
}

/// What became of an offered frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    Queued,
    NoRoom,
    Away,
}

/// What the pusher is to do next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Push these, in this order.
    Push(Vec<Arc<Frame>>),
    /// Forget the streams: the peer went away.
    Forget,
}

impl Outbox {
    pub(crate) fn new(peer: PeerId, number: u64, config: &FilterConfig, room: Arc<Room>) -> Arc<Self> {
        Arc::new(Self {
            peer,
            number,
            messages_max: config.queue_messages_max,
            bytes_max: config.queue_bytes_max,
            room,
            state: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Puts a frame into the queue if there is room: a full queue drops the newest, so that what is pushed has no holes but
    /// at its end.
    pub(crate) fn offer(&self, frame: &Arc<Frame>) -> Offered {
        let mut state = self.state.lock();
        if state.is_away {
            return Offered::Away;
        }
        let bytes_max = self.bytes_max.min(self.room.free() / QUEUE_SHARE);
        let is_empty = state.bytes == 0;
        let has_room =
            state.frames.len() < self.messages_max && state.bytes.saturating_add(frame.taken) <= bytes_max;
        if state.is_closed || !(is_empty || has_room) {
            return Offered::NoRoom;
        }
        state.bytes += frame.taken;
        state.frames.push_back(frame.clone());
        drop(state);
        self.changed.notify_one();
        Offered::Queued
    }

    /// Waits for something to do; `None` when the subscriber was removed. Nothing is lost when the wait is given up.
    pub(crate) async fn next(&self) -> Option<Next> {
        loop {
            {
                let mut state = self.state.lock();
                if state.is_closed {
                    return None;
                }
                if std::mem::take(&mut state.has_left) {
                    return Some(Next::Forget);
                }
                let batch = state.take_batch();
                if !batch.is_empty() {
                    return Some(Next::Push(batch));
                }
            }
            self.changed.notified().await;
        }
    }

    /// Makes room for others once frames are pushed or lost.
    pub(crate) fn release(&self, batch: &[Arc<Frame>]) {
        let mut state = self.state.lock();
        let bytes: usize = batch.iter().map(|frame| frame.taken).sum();
        state.bytes = state.bytes.saturating_sub(bytes);
    }

    /// A push succeeded.
    pub(crate) fn succeeded(&self) {
        self.state.lock().failures = 0;
    }

    /// A push failed. Returns how many did in a row; those to a peer that is away are not counted.
    pub(crate) fn failed(&self) -> u32 {
        let mut state = self.state.lock();
        if !state.is_away {
            state.failures = state.failures.saturating_add(1);
        }
        state.failures
    }

    /// Whether the peer is connected.
    pub(crate) fn is_away(&self) -> bool {
        self.state.lock().is_away
    }

    /// The peer is connected: messages are queued again.
    pub(crate) fn peer_came(&self) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_away) {
            state.failures = 0;
        }
    }

    /// The peer went away. Returns how many messages are dropped by that.
    pub(crate) fn peer_left(&self) -> usize {
        let mut state = self.state.lock();
        (state.is_away, state.has_left) = (true, true);
        let dropped = state.clear();
        drop(state);
        self.changed.notify_one();
        dropped
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// The subscriber was removed. Returns how many messages are dropped by that.
    pub(crate) fn close(&self) -> usize {
        let mut state = self.state.lock();
        state.is_closed = true;
        let dropped = state.clear();
        drop(state);
        self.changed.notify_one();
        dropped
    }
}

impl State {
    fn take_batch(&mut self) -> Vec<Arc<Frame>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH_MESSAGES_MAX && bytes < BATCH_BYTES_MAX {
            let Some(frame) = self.frames.pop_front() else { break };
            bytes += frame.taken;
            batch.push(frame);
        }
        batch
    }

    fn clear(&mut self) -> usize {
        let dropped = self.frames.len();
        let bytes: usize = self.frames.iter().map(|frame| frame.taken).sum();
        self.frames = VecDeque::new();
        self.bytes = self.bytes.saturating_sub(bytes);
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(bytes: usize) -> Arrival {
        Arrival {
            pubsub_topic: "/waku/2/rs/1/0".into(),
            content_topic: "/a/1/b/proto".into(),
            wire: vec![0; bytes].into(),
        }
    }

    fn config(queue_messages_max: usize, queue_bytes_max: usize) -> FilterConfig {
        FilterConfig { queue_messages_max, queue_bytes_max, ..FilterConfig::default() }
    }

    fn outbox(config: &FilterConfig, room: &Arc<Room>) -> Arc<Outbox> {
        Outbox::new(PeerId::random(), 0, config, room.clone())
    }

    async fn take(outbox: &Outbox) -> Vec<Arc<Frame>> {
        match outbox.next().await {
            Some(Next::Push(batch)) => batch,
            other => panic!("expected a batch: {other:?}"),
        }
    }

    #[test]
    fn a_queue_is_bounded_by_messages() {
        let room = Room::new(1 << 20, Gauge::default());
        let outbox = outbox(&config(3, 1 << 20), &room);
        let frame = room.frame(&arrival(10)).unwrap();
        let offered: Vec<_> = (0..5).map(|_| outbox.offer(&frame)).collect();
        use Offered::{NoRoom, Queued};
        assert_eq!(offered, [Queued, Queued, Queued, NoRoom, NoRoom]);
    }

    #[tokio::test]
    async fn a_queue_is_bounded_by_bytes_and_those_in_flight_count() {
        let room = Room::new(1 << 20, Gauge::default());
        let outbox = outbox(&config(100, 3_000), &room);
        let frame = room.frame(&arrival(1_000)).unwrap();
        assert_eq!(outbox.offer(&frame), Offered::Queued);
        assert_eq!(outbox.offer(&frame), Offered::Queued);
        assert_eq!(outbox.offer(&frame), Offered::NoRoom);
        let batch = take(&outbox).await;
        assert_eq!(outbox.offer(&frame), Offered::NoRoom, "what is being pushed still counts");
        outbox.release(&batch);
        assert_eq!(outbox.offer(&frame), Offered::Queued);
    }

    #[test]
    fn a_message_larger_than_the_queue_goes_alone() {
        let room = Room::new(1 << 20, Gauge::default());
        let outbox = outbox(&config(100, 500), &room);
        let frame = room.frame(&arrival(10_000)).unwrap();
        assert_eq!(outbox.offer(&frame), Offered::Queued);
        assert_eq!(outbox.offer(&frame), Offered::NoRoom);
    }

    #[test]
    fn the_room_counts_a_shared_frame_once_and_comes_back() {
        let shown = Gauge::default();
        let room = Room::new(10_000, shown.clone());
        let frame = room.frame(&arrival(5_000)).unwrap();
        let outboxes: Vec<_> = (0..100).map(|_| outbox(&config(9, 9_999), &room)).collect();
        for outbox in &outboxes {
            assert_eq!(outbox.offer(&frame), Offered::Queued);
        }
        assert!(room.frame(&arrival(5_000)).is_none(), "there is no room for a second");
        drop(frame);
        assert!(shown.get() > 5_000);
        for outbox in &outboxes {
            assert_eq!(outbox.close(), 1);
        }
        assert_eq!((shown.get(), room.free()), (0, 10_000));
    }

    /// Any number of slow subscribers leave room for one who keeps up.
    #[test]
    fn slow_queues_never_take_all_the_room() {
        let room = Room::new(1 << 20, Gauge::default());
        let slow: Vec<_> = (0..50).map(|_| outbox(&config(10_000, 1 << 20), &room)).collect();
        for outbox in slow.iter().cycle().take(50 * 200) {
            let frame = room.frame(&arrival(1_000)).expect("there is always room for one more");
            outbox.offer(&frame);
        }
        let quick = outbox(&config(10_000, 1 << 20), &room);
        assert_eq!(quick.offer(&room.frame(&arrival(1_000)).unwrap()), Offered::Queued);
    }

    #[tokio::test]
    async fn a_batch_is_bounded_and_in_order() {
        let room = Room::new(64 << 20, Gauge::default());
        let outbox = outbox(&FilterConfig::default(), &room);
        let frames: Vec<_> = (0..20).map(|n| room.frame(&arrival(n)).unwrap()).collect();
        for frame in &frames {
            outbox.offer(frame);
        }
        let mut taken = Vec::new();
        while taken.len() < frames.len() {
            let batch = take(&outbox).await;
            assert!(batch.len() <= BATCH_MESSAGES_MAX);
            taken.extend(batch);
        }
        assert!(taken.iter().zip(&frames).all(|(one, other)| Arc::ptr_eq(one, other)));
        let large = room.frame(&arrival(200 << 10)).unwrap();
        for _ in 0..5 {
            outbox.offer(&large);
        }
        assert_eq!(take(&outbox).await.len(), 2, "bytes end a batch");
    }

    #[tokio::test]
    async fn who_is_away_gets_nothing_and_is_not_blamed() {
        let room = Room::new(1 << 20, Gauge::default());
        let outbox = outbox(&FilterConfig::default(), &room);
        let frame = room.frame(&arrival(10)).unwrap();
        outbox.offer(&frame);
        let batch = take(&outbox).await;
        outbox.release(&batch);
        assert_eq!(outbox.failed(), 1);
        outbox.offer(&frame);
        assert_eq!(outbox.peer_left(), 1);
        assert_eq!(outbox.offer(&frame), Offered::Away);
        assert_eq!(outbox.failed(), 1, "a failure while away is not counted");
        assert!(matches!(outbox.next().await, Some(Next::Forget)));
        outbox.peer_came();
        assert_eq!(outbox.offer(&frame), Offered::Queued);
        assert_eq!(take(&outbox).await.len(), 1);
        outbox.close();
        assert!(outbox.next().await.is_none());
        assert_eq!(outbox.offer(&frame), Offered::NoRoom);
    }
}
