//! The transition from the archive to live events, without a gap and without a repeat: what is still to be sent, and what was sent.
//!
//! A stream begins by joining the hub; after that it waits until the archive has what was announced before (*settled*); then it
//! walks the archive, page by page, from its cursor to the end. Why nothing is missing at the end, and nothing is sent twice:
//!
//! - **The position** is a key in the archive's order. The walk has sent everything up to it that was archived when the walk
//!   passed, and will never look there again.
//! - **What was announced before the stream joined** is in the archive when the walk begins: a message that a client publishes is
//!   counted as in flight before it is announced, and a message from relay is put into the archive's queue before it is
//!   announced. Settling waits for all messages in flight and in that queue, and for the spool of an archive that is unavailable:
//!   no query returns the spool's messages. A message published at another node is archived before that node announces it.
//! - **What is announced later** arrives in the subscription's queue, which is read all the time, also while a page is fetched or
//!   waits for the client. Each event is in one of four cases:
//!   1. *It is after the position*: the walk may meet it, or pass its key before it is archived. It is **held**. When the walk
//!      meets it, the row is sent and the event is discarded. When the position passes its key without having met it, it is sent
//!      then: nothing else will ever send it. What is still held at the walk's end is sent then.
//!   2. *It is at or before the position, and the walk has sent it*: it was archived and met before it was taken from the queue.
//!      It is discarded. For this the walk remembers what it sent recently, as keyed 64-bit hashes. A message is identified by
//!      its hash and its topics: the hash covers the concatenated texts, so a message with other topics can have the same hash.
//!      No archive has both: the one that the walk does not meet is sent as late.
//!   3. *It is at or before the position, and the walk has not sent it*: it is late, and is sent at once.
//!   4. *It is never archived* (ephemeral, or with a time that no archive accepts): no walk would meet it, and it is sent at once.
//! - **When there is no space to hold an event** it is dropped, and the walk has to meet it. Until that is certain the walk goes
//!   no further than the earliest time of a dropped event; there it settles, so that all of them are archived, and continues. So
//!   memory is bounded, and a walk that is slower than the incoming messages continues for as long as it takes.
//! - **The end** is a page after which the archive has nothing, with nothing dropped since the walk last settled. What is held is
//!   sent, and from here on events are sent as they arrive.
//!
//! What can go wrong is bounded, too:
//!
//! - A message that was announced but that the archive does not accept (it is full, it refuses, or its disk fails) is sent from
//!   the held events, unless it was dropped because the limit was reached. Its publisher gets the error and sends it again: then
//!   all streams get it, also those that had it, because some may have joined meanwhile.
//! - The walk remembers the rows that it sent whose time is at most [`REMEMBERED_BACK`] and the window of valid timestamps before
//!   its start, the last [`REMEMBERED_MAX`] of them, until [`REMEMBERED_FOR`] after its end. Only a message that is announced
//!   later than that after it was archived can be repeated.
//! - A node does not know what other nodes of the same archive have announced and not yet archived: the walk begins no sooner
//!   than [`OTHERS_LAG`] after the stream joined and, whenever it settles, waits as long after the last dropped event. So a
//!   stream that cannot hold what arrives in that time does not become live: it stays behind by about that time.
//! - What must be sent at once is also sent while the walk waits for something to be archived.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use restante_archive::Row;
use restante_core::{Key, MessageHash, NANOS_PER_SECOND, Timestamp};
use restante_sessions::hub::Event;
use restante_waku_wire::WakuMessageView;

use crate::validate::{Rules, TIMESTAMP_WINDOW_SECONDS};

/// How far before the walk's start, in addition to the window of valid timestamps, the time of a remembered row may be.
const REMEMBERED_BACK: Duration = Duration::from_secs(60);
/// The most rows that are remembered: some hundred kilobytes, for a minute or so.
const REMEMBERED_MAX: usize = 16_384;
/// How long after its end the walk's sent rows are remembered.
pub(super) const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// How long other nodes may take to archive what they have announced.
pub(super) const OTHERS_LAG: Duration = Duration::from_secs(1);
/// How long a message may take from the check of its timestamp until it is announced: no time at this node; other nodes get it
/// after it is archived.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(10);

/// The times of messages that may still be announced or archived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// How far a timestamp may be from the clock; a server that accepts any is treated as one with the usual window.
    window_ns: i64,
    takes_any: bool,
}

impl Times {
    pub(super) fn of(rules: &Rules) -> Self {
        let takes_any = rules.timestamp_window_seconds == 0;
        let seconds = if takes_any { TIMESTAMP_WINDOW_SECONDS } else { rules.timestamp_window_seconds };
        let window_ns = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(NANOS_PER_SECOND);
        Self { window_ns, takes_any }
    }

    /// The earliest time of a message that is announced or archived after `now`.
    pub(super) fn earliest_after(self, now: Timestamp) -> Timestamp {
        Timestamp(now.nanos().saturating_sub(self.window_ns).saturating_sub(nanos(ANNOUNCED_WITHIN)))
    }

    /// The time from which a walk that begins now remembers rows.
    fn remembered_from(self, now: Timestamp) -> Timestamp {
        if self.takes_any {
            return Timestamp::MIN;
        }
        Timestamp(now.nanos().saturating_sub(self.window_ns).saturating_sub(nanos(REMEMBERED_BACK)))
    }

    /// Whether an event that arrives now is certainly never archived.
    fn is_unarchived(self, event: &Event, now: Timestamp) -> bool {
        if is_ephemeral(event) {
            return true;
        }
        let off = now.nanos().abs_diff(event.timestamp.nanos());
        let most = self.window_ns.unsigned_abs().saturating_add(nanos(REMEMBERED_BACK).unsigned_abs());
        !self.takes_any && off > most
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Whether no archive accepts a message, independent of its time: it is ephemeral, or has no timestamp (`14/WAKU2-MESSAGE`). The
/// body is decoded for the first stream that checks.
pub(super) fn is_ephemeral(event: &Event) -> bool {
    !event.is_archived(|event| {
        !WakuMessageView::parse(&event.body)
            .is_ok_and(|view| view.ephemeral == Some(true) || view.timestamp.is_none())
    })
}

/// The key of an event in the archive's order.
pub(super) fn key_of(event: &Event) -> Key {
    Key { timestamp: event.timestamp, message_hash: event.message_hash }
}

/// Whether an event has these topics.
fn is_of(event: &Event, channel: &str, topic: &str) -> bool {
    *event.channel == *channel && *event.topic == *topic
}

/// The memory of a waiting event, at most. It has no JSON yet: that is made after it was taken, and a copy from
/// [`Event::to_unmetered`] begins without.
fn size_of(event: &Event) -> usize {
    event.body.len() + event.topic.len() + event.channel.len() + EVENT_BYTES
}

/// The memory of an event besides its bytes and topics.
const EVENT_BYTES: usize = 256;

/// The limits on what waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) events_max: usize,
    pub(super) bytes_max: usize,
    /// The most events that are held: at most `events_max`.
    pub(super) held_max: usize,
}

/// The reader is too slow: there is no space for what must be sent at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooSlow;

/// See the module.
#[derive(Debug)]
pub(super) struct HandOver {
    position: Key,
    held: BTreeMap<Key, Arc<Event>>,
    held_bytes: usize,
    /// What is to be sent at once, in the order of arrival.
    late: VecDeque<Arc<Event>>,
    late_bytes: usize,
    /// The earliest time of an event that was dropped since the walk last settled.
    dropped_from: Option<Timestamp>,
    given: Given,
    bounds: Bounds,
    times: Times,
}

impl HandOver {
    /// The hand-over of a walk that begins after `position`.
    pub(super) fn new(position: Key, now: Timestamp, times: Times, bounds: Bounds) -> Self {
        Self {
            position,
            held: BTreeMap::new(),
            held_bytes: 0,
            late: VecDeque::new(),
            late_bytes: 0,
            dropped_from: None,
            given: Given::new(times.remembered_from(now)),
            bounds,
            times,
        }
    }

    /// The next page begins after this.
    pub(super) fn position(&self) -> Key {
        self.position
    }

    /// The next page ends before this: what follows may not be archived yet.
    pub(super) fn end(&self) -> Option<Timestamp> {
        self.dropped_from
    }

    /// Whether a page may lack something from this key on, because it was dropped.
    pub(super) fn is_uncertain(&self, key: Key) -> bool {
        self.dropped_from.is_some_and(|from| key.timestamp >= from)
    }

    /// The walk waits until everything that was announced is archived, so that it will meet what was dropped. Events that are
    /// dropped while it waits count for the next time.
    pub(super) fn settle(&mut self) {
        self.dropped_from = None;
    }

    /// Handles an event that arrived. Returns whether it was dropped, so that the walk has to meet it.
    pub(super) fn arrived(&mut self, event: Arc<Event>, now: Timestamp) -> Result<bool, TooSlow> {
        let key = key_of(&event);
        if self.times.is_unarchived(&event, now) {
            return self.push_late(event);
        }
        if key <= self.position {
            return if self.given.has(&event) { Ok(false) } else { self.push_late(event) };
        }
        if let Some(held) = self.held.get(&key) {
            return if is_of(held, &event.channel, &event.topic) { Ok(false) } else { self.push_late(event) };
        }
        let size = size_of(&event);
        let has_room = self.held.len() < self.bounds.events_max.min(self.bounds.held_max)
            && self.held_bytes.saturating_add(size) <= self.bounds.bytes_max;
        if !has_room {
            let earliest = self.dropped_from.unwrap_or(Timestamp::MAX);
            self.dropped_from = Some(earliest.min(key.timestamp));
            return Ok(true);
        }
        self.held_bytes += size;
        self.held.insert(key, event);
        Ok(false)
    }

    fn push_late(&mut self, event: Arc<Event>) -> Result<bool, TooSlow> {
        let size = size_of(&event);
        let has_room = self.late.len() < self.bounds.events_max
            && self.late_bytes.saturating_add(size) <= self.bounds.bytes_max;
        if !has_room {
            return Err(TooSlow);
        }
        self.late_bytes += size;
        self.late.push_back(event);
        Ok(false)
    }

    /// Whether something is to be sent at once.
    pub(super) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// The next event to send at once.
    pub(super) fn take_late(&mut self) -> Option<Arc<Event>> {
        let event = self.late.pop_front()?;
        self.late_bytes = self.late_bytes.saturating_sub(size_of(&event));
        Some(event)
    }

    /// The next held event that the walk passes on its way to `key` without having met it. The position is then at that event,
    /// and may stay there: the walk will not send what is archived at that key from now on.
    pub(super) fn take_passed(&mut self, key: Key) -> Option<Arc<Event>> {
        let first = self.held.first_entry().filter(|first| *first.key() < key)?;
        let (place, event) = first.remove_entry();
        self.held_bytes = self.held_bytes.saturating_sub(size_of(&event));
        self.position = self.position.max(place);
        Some(event)
    }

    /// The walk sends a row. Held events before it were taken by [`HandOver::take_passed`].
    pub(super) fn give(&mut self, row: &Row<'_>) {
        let key = row.key();
        if let Some(event) = self.held.remove(&key) {
            let size = size_of(&event);
            self.held_bytes = self.held_bytes.saturating_sub(size);
            if !is_of(&event, row.channel, row.topic) {
                self.late_bytes += size; // it already had space among the held ones
                self.late.push_back(event);
            }
        }
        self.given.remember(key, row.channel, row.topic);
        self.position = key;
    }

    /// The walk passes a row that the stream does not want.
    pub(super) fn pass(&mut self, key: Key) {
        self.position = key;
    }

    /// Whether nothing waits, neither for the walk nor for the client.
    pub(super) fn has_nothing_waiting(&self) -> bool {
        self.late.is_empty() && self.held.is_empty() && self.dropped_from.is_none()
    }

    /// The walk is at its end: returns what is held, to be sent in order, and what was sent, still to be remembered.
    pub(super) fn finish(self) -> (impl Iterator<Item = Arc<Event>>, Given) {
        (self.late.into_iter().chain(self.held.into_values()), self.given)
    }
}

/// What a walk sent recently.
#[derive(Debug)]
pub(super) struct Given {
    from: Timestamp,
    /// The seed is random, so that nobody can craft messages that are mistaken for others.
    seed: RandomState,
    hashes: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Given {
    fn new(from: Timestamp) -> Self {
        Self { from, seed: RandomState::new(), hashes: HashSet::new(), order: VecDeque::new() }
    }

    fn remember(&mut self, key: Key, channel: &str, topic: &str) {
        if key.timestamp < self.from {
            return;
        }
        if self.order.len() >= REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.hashes.remove(&oldest);
        }
        let hash = self.hash_of(&key.message_hash, channel, topic);
        if self.hashes.insert(hash) {
            self.order.push_back(hash);
        }
    }

    fn hash_of(&self, message_hash: &MessageHash, channel: &str, topic: &str) -> u64 {
        self.seed.hash_one((message_hash, channel, topic))
    }

    /// Whether the walk has sent a message.
    pub(super) fn has(&self, event: &Event) -> bool {
        let hash = || self.hash_of(&event.message_hash, &event.channel, &event.topic);
        !self.hashes.is_empty() && self.hashes.contains(&hash())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}
