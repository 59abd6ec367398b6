//! The data set of a Status mailserver: 1,467,846 messages of 30 days over 9,606 topics, generated from a seed.
//!
//! Counts are the published ones (see [`counts`]); topics are independent of time; times are uniform in the first 23 days and
//! in the last 7. No sizes were published: a clear text has a log-normal length (median 400 bytes), is padded to a multiple
//! of 256 and grows by 28 bytes of encryption, as the Status mailserver's envelopes did. Payloads are random, like
//! encrypted ones. Each message is a Waku message on a content topic that represents a 4-byte topic.

mod counts;
mod sets;

use std::{ops::Range, sync::Arc};

use restante_archive::Message;
use restante_core::{NANOS_PER_SECOND, Timestamp};
use restante_waku_wire::{WakuMessage, message_hash};

pub use counts::{DAYS, MESSAGES_FULL, TOPICS, WEEK_DAYS};
pub use sets::{QuerySet, SetName};

use crate::random::Random;

/// The pubsub topic of every message.
pub const PUBSUB_TOPIC: &str = "/waku/2/default-waku/proto";
/// 2019-04-01T00:00:00Z: the first moment of the data set.
pub const START: Timestamp = Timestamp::from_seconds(1_554_076_800);
const DAY_SECONDS: i64 = 86_400;
/// The published topics, most frequent first.
const HEAD_TOPICS: [u32; 4] = [0x5c6c_9b56, 0xf894_6aac, 0x98ac_139b, 0x13f4_f374];

/// The streams of random numbers. Bodies use the streams from `BODIES` on, one for each message.
mod stream {
    pub(super) const TOPIC_NAMES: u64 = 1;
    pub(super) const ORDER: u64 = 2;
    pub(super) const TIMES: u64 = 1_000;
    pub(super) const BODIES: u64 = 1_000_000;
}

/// A data set without its times and bodies, which are generated while iterating.
///
/// It takes two bytes for each message.
pub struct Dataset {
    seed: u64,
    channel: Arc<str>,
    /// Content topics, most frequent first.
    topics: Vec<Arc<str>>,
    /// The topic of each message (index into `topics`) in time order.
    order: Vec<u16>,
    day_counts: Vec<u64>,
}

/// The time range of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// The last seven days.
    Week,
    /// All thirty.
    Month,
}

impl Span {
    /// Its start; every span ends with the data set.
    pub fn start(self) -> Timestamp {
        match self {
            Self::Week => day_start(DAYS - WEEK_DAYS),
            Self::Month => START,
        }
    }
}

/// The start of a day of the data set; day 30 is its end.
pub fn day_start(day: usize) -> Timestamp {
    START.plus_seconds(day as i64 * DAY_SECONDS)
}

impl Dataset {
    /// A data set of `messages` messages.
    pub fn new(seed: u64, messages: u64) -> Self {
        let topics = topic_names(seed);
        let mut order = Vec::with_capacity(messages as usize);
        for (topic, count) in (0_u16..).zip(counts::topic_counts(messages)) {
            order.extend(std::iter::repeat_n(topic, count as usize));
        }
        Random::new(seed, stream::ORDER).shuffle(&mut order);
        Self { seed, channel: PUBSUB_TOPIC.into(), topics, order, day_counts: counts::day_counts(messages) }
    }

    /// The number of messages.
    pub fn len(&self) -> u64 {
        self.order.len() as u64
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The number of messages of a day.
    pub(crate) fn day_len(&self, day: usize) -> u64 {
        self.day_counts.get(day).copied().unwrap_or(0)
    }

    /// The content topic of a rank, 1 being the most frequent.
    pub fn topic(&self, rank: usize) -> &Arc<str> {
        self.topics.get(rank.saturating_sub(1)).unwrap_or(&self.channel)
    }

    /// The rank of the first topic that has at most `count` messages, or of the last topic.
    pub(crate) fn rank_with(&self, count: u64) -> usize {
        let counts = counts::topic_counts(self.len());
        let more_frequent = counts.iter().take_while(|of_topic| **of_topic > count).count();
        (more_frequent + 1).min(counts.len())
    }

    /// The number of messages in a span whose topic `is_match` accepts.
    pub fn count(&self, span: Span, is_match: impl Fn(&str) -> bool) -> u64 {
        let matches: Vec<bool> = self.topics.iter().map(|topic| is_match(topic)).collect();
        let before = match span {
            Span::Month => 0,
            Span::Week => self.day_counts.iter().take(DAYS - WEEK_DAYS).sum::<u64>() as usize,
        };
        let mut count = 0;
        for topic in self.order.iter().skip(before) {
            count += u64::from(matches.get(usize::from(*topic)).copied().unwrap_or(false));
        }
        count
    }

    /// All messages in time order, in batches of at most `size`; a batch ends with its day.
    pub fn batches(&self, size: usize) -> Batches<'_> {
        Batches { dataset: self, size, day: 0, times: Vec::new(), given: 0, index: 0 }
    }

    /// The times of a day's messages, ascending.
    fn times(&self, day: usize) -> Vec<Timestamp> {
        let mut random = Random::new(self.seed, stream::TIMES + day as u64);
        let day_nanos = (DAY_SECONDS * NANOS_PER_SECOND) as u64;
        let start = day_start(day).nanos();
        let mut times = Vec::with_capacity(self.day_len(day) as usize);
        for _ in 0..self.day_len(day) {
            times.push(Timestamp(start + random.below(day_nanos) as i64));
        }
        times.sort_unstable();
        times
    }

    /// The message with this index in time order.
    fn message(&self, index: u64, timestamp: Timestamp) -> Message {
        let rank = self.order.get(index as usize).copied().unwrap_or(0);
        let topic = self.topic(usize::from(rank) + 1);
        let payload = payload(&mut Random::new(self.seed, stream::BODIES + index));
        let waku = WakuMessage {
            payload: payload.into(),
            content_topic: topic.to_string(),
            version: Some(1),
            timestamp: Some(timestamp.nanos()),
            ..WakuMessage::default()
        };
        Message {
            message_hash: message_hash(PUBSUB_TOPIC, &waku.payload, topic, &[], timestamp.nanos()),
            channel: self.channel.clone(),
            topic: topic.clone(),
            timestamp,
            body: waku.to_wire(),
        }
    }
}

/// The content topics of the data set, most frequent first: the published ones, then random ones.
fn topic_names(seed: u64) -> Vec<Arc<str>> {
    let mut random = Random::new(seed, stream::TOPIC_NAMES);
    let mut numbers = HEAD_TOPICS.to_vec();
    let mut taken: std::collections::HashSet<u32> = numbers.iter().copied().collect();
    while numbers.len() < counts::TOPICS {
        let number = (random.bits() >> 32) as u32;
        let is_new = taken.insert(number);
        if is_new {
            numbers.push(number);
        }
    }
    numbers.into_iter().map(|number| content_topic(number).into()).collect()
}

/// The content topic of a 4-byte topic of Waku version 1 (`26/WAKU2-PAYLOAD`).
pub(crate) fn content_topic(topic: u32) -> String {
    format!("/waku/1/0x{topic:08x}/rfc26")
}

/// An encrypted payload: random bytes of a plausible length.
fn payload(random: &mut Random) -> Vec<u8> {
    const CLEAR: Range<f64> = 40.0..16_000.0;
    const PADDED_TO: usize = 256;
    const ENCRYPTION: usize = 12 + 16; // nonce and tag of AES-GCM
    let length = 400.0 * (0.7 * random.normal()).exp();
    let clear = length.clamp(CLEAR.start, CLEAR.end).round() as usize;
    let mut payload = vec![0; clear.next_multiple_of(PADDED_TO) + ENCRYPTION];
    random.fill(&mut payload);
    payload
}

/// See [`Dataset::batches`].
pub struct Batches<'a> {
    dataset: &'a Dataset,
    size: usize,
    /// The next day whose times are not generated yet.
    day: usize,
    times: Vec<Timestamp>,
    /// The number of `times` already used.
    given: usize,
    index: u64,
}

impl Iterator for Batches<'_> {
    type Item = Vec<Message>;

    fn next(&mut self) -> Option<Vec<Message>> {
        while self.given == self.times.len() {
            if self.day == DAYS {
                return None;
            }
            self.times = self.dataset.times(self.day);
            self.given = 0;
            self.day += 1;
        }
        let mut batch = Vec::with_capacity(self.size);
        for timestamp in self.times.iter().skip(self.given).take(self.size) {
            batch.push(self.dataset.message(self.index, *timestamp));
            self.index += 1;
        }
        self.given += batch.len();
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(dataset: &Dataset, batch: usize) -> Vec<Message> {
        dataset.batches(batch).flatten().collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_messages_in_batches_of_any_size() {
        let messages = all(&Dataset::new(3, 500), 7);
        assert_eq!(messages, all(&Dataset::new(3, 500), 1_000));
        let others = all(&Dataset::new(4, 500), 7);
        assert_ne!(messages[0].message_hash, others[0].message_hash);
    }

    #[test]
    fn messages_come_in_time_order_and_fill_their_days() {
        let dataset = Dataset::new(0, 3_000);
        let messages = all(&dataset, 100);
        assert_eq!(messages.len(), 3_000);
        assert!(messages.is_sorted_by_key(|message| message.timestamp));
        for day in 0..DAYS {
            let of_day =
                |message: &&Message| (day_start(day)..day_start(day + 1)).contains(&message.timestamp);
            assert_eq!(messages.iter().filter(of_day).count() as u64, dataset.day_len(day), "day {day}");
        }
    }

    #[test]
    fn a_body_is_the_waku_message_whose_hash_it_has() {
        for message in all(&Dataset::new(0, 50), 10) {
            let waku = WakuMessage::from_wire(&message.body).unwrap();
            assert_eq!(waku.content_topic, *message.topic);
            let timestamp = message.timestamp.nanos();
            assert_eq!(waku.timestamp, Some(timestamp));
            let hash = message_hash(PUBSUB_TOPIC, &waku.payload, &message.topic, &[], timestamp);
            assert_eq!(message.message_hash, hash);
            assert_eq!((waku.payload.len() - 28) % 256, 0);
        }
    }

    #[test]
    fn bodies_have_about_700_bytes() {
        let messages = all(&Dataset::new(0, 5_000), 1_000);
        let mean = messages.iter().map(|message| message.body.len()).sum::<usize>() / messages.len();
        assert!((650..760).contains(&mean), "{mean}");
    }

    #[test]
    fn counting_agrees_with_the_messages() {
        let dataset = Dataset::new(0, 5_000);
        let busiest = dataset.topic(1);
        assert_eq!(**busiest, *"/waku/1/0x5c6c9b56/rfc26");
        let messages = all(&dataset, 1_000);
        let of_topic = |message: &&Message| message.topic == *busiest;
        let in_week = |message: &&Message| message.timestamp >= Span::Week.start();
        let month = messages.iter().filter(of_topic).count() as u64;
        let week = messages.iter().filter(of_topic).filter(in_week).count() as u64;
        assert_eq!(dataset.count(Span::Month, |topic| topic == &**busiest), month);
        assert_eq!(dataset.count(Span::Week, |topic| topic == &**busiest), week);
    }
}
