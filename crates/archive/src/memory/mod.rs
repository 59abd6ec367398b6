//! The reference model: a `BTreeMap` in the archive's order; every query filters all of it. Slow, and obviously right.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use async_trait::async_trait;
use restante_core::{Cursor, Key, NANOS_PER_SECOND, Timestamp, TopicBits};

use crate::{
    Appended, Archive, Config, Direction, Error, Health, Message, Opened, PAGE_BYTES_MAX, Page, Part,
    PartStats, Pruned, Query, Report, Retention, RowAt, Stats, TopicName, Topics, Upkeep,
    message::check_batch, record,
};

pub(crate) fn open(config: &Config) -> Opened {
    let state = State { messages: BTreeMap::new(), is_closed: config.read_only };
    let memory = Arc::new(Memory { state: RwLock::new(state), topic_bits: config.topic_bits });
    Opened { archive: memory.clone(), upkeep: memory }
}

struct Memory {
    state: RwLock<State>,
    topic_bits: fn(&str) -> TopicBits,
}

struct State {
    messages: BTreeMap<Key, Message>,
    is_closed: bool,
}

impl Memory {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn matches(&self, query: &Query, message: &Message) -> bool {
        let is_topic = match &query.topics {
            Topics::Any => true,
            Topics::List(topics) => topics.iter().any(|topic| **topic == *message.topic),
            Topics::Bloom(filter) => filter.contains((self.topic_bits)(&message.topic)),
        };
        let is_hash = query.hashes.is_empty() || query.hashes.contains(&message.message_hash);
        query.has_channel(&message.channel) && is_topic && is_hash
    }
}

#[async_trait]
impl Archive for Memory {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        check_batch(&messages)?;
        let mut state = self.write();
        if state.is_closed {
            return Err(Error::unavailable("the archive takes no messages: it is closed or read-only"));
        }
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            let is_new = !state.messages.contains_key(&message.key());
            if is_new {
                state.messages.insert(message.key(), message);
            }
            answers.push(if is_new { Appended::Stored } else { Appended::Duplicate });
        }
        Ok(answers)
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        query.check_bounds()?;
        let state = self.read();
        let cursor = match query.cursor {
            Some(Cursor::At(key)) => Some(key),
            Some(Cursor::Message(hash)) => {
                let found = state.messages.keys().find(|key| key.message_hash == hash);
                Some(*found.ok_or_else(|| Error::not_found(format!("cursor {hash} is not archived")))?)
            }
            None => None,
        };
        let range = query.range(cursor);
        let mut found: Vec<&Message> = Vec::new();
        for (key, message) in &state.messages {
            if range.contains(*key) && self.matches(query, message) {
                found.push(message);
            }
        }
        Ok(page_of(found, query))
    }
}

/// Cuts all matches down to one page.
fn page_of(mut found: Vec<&Message>, query: &Query) -> Page {
    if query.direction == Direction::Backward {
        found.reverse();
    }
    let mut bytes = 0;
    let mut len = 0;
    for message in &found {
        if len == query.limit || bytes >= PAGE_BYTES_MAX {
            break;
        }
        bytes += message.body.len();
        len += 1;
    }
    let next = if len < found.len() { len.checked_sub(1).and_then(|last| found.get(last)) } else { None };
    let next = next.map(|message| Cursor::At(message.key()));
    found.truncate(len);
    if query.direction == Direction::Backward {
        found.reverse();
    }
    let mut buffer = Vec::new();
    let mut topics = Vec::new();
    let mut rows = Vec::new();
    for (number, message) in (0..).zip(&found) {
        rows.push(RowAt {
            part: 0,
            offset: u32::try_from(buffer.len()).expect("a page is bounded by PAGE_BYTES_MAX"),
        });
        topics.push(TopicName { channel: message.channel.clone(), topic: message.topic.clone() });
        record::encode_message(0, number, message.key(), &message.body, &mut buffer);
    }
    Page {
        parts: vec![Part { bytes: buffer.into(), topics: topics.into() }],
        rows,
        next,
        bodies: query.bodies,
    }
}

/// The days that have messages, in UTC. Keys arrive in order.
fn days_of<'a>(keys: impl Iterator<Item = &'a Key>) -> Vec<PartStats> {
    let mut days: Vec<PartStats> = Vec::new();
    let day_of = |timestamp: Timestamp| timestamp.nanos().div_euclid(DAY_NANOS);
    for Key { timestamp, .. } in keys {
        match days.last_mut().filter(|day| day_of(day.newest) == day_of(*timestamp)) {
            Some(day) => {
                day.newest = *timestamp;
                day.messages += 1;
            }
            None => days.push(PartStats {
                name: format!("day {}", day_of(*timestamp)),
                oldest: *timestamp,
                newest: *timestamp,
                messages: 1,
                disk_bytes: 0,
                is_open: true,
            }),
        }
    }
    days
}

const DAY_NANOS: i64 = 86_400 * NANOS_PER_SECOND;

#[async_trait]
impl Upkeep for Memory {
    async fn stats(&self) -> Result<Stats, Error> {
        let state = self.read();
        let topics: BTreeSet<_> =
            state.messages.values().map(|message| (&message.channel, &message.topic)).collect();
        Ok(Stats {
            engine: "memory",
            messages: state.messages.len() as u64,
            topics: topics.len() as u64,
            body_bytes: state.messages.values().map(|message| message.body.len() as u64).sum(),
            oldest: state.messages.keys().next().map(|key| key.timestamp),
            newest: state.messages.keys().next_back().map(|key| key.timestamp),
            parts: days_of(state.messages.keys()),
            ..Stats::default()
        })
    }

    fn health(&self) -> Health {
        Health::default()
    }

    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
        let mut state = self.write();
        let mut pruned = Pruned::default();
        let mut bytes: u64 = state.messages.values().map(|message| message.body.len() as u64).sum();
        while let Some((key, oldest)) = state.messages.first_key_value() {
            let len = oldest.body.len() as u64;
            let is_too_old = policy.oldest_kept(now).is_some_and(|kept| key.timestamp < kept);
            let is_too_big = policy.size_bytes.is_some_and(|limit| bytes > limit);
            let is_too_many = policy.capacity.is_some_and(|limit| state.messages.len() as u64 > limit);
            if !(is_too_old || is_too_big || is_too_many) {
                break;
            }
            state.messages.pop_first();
            bytes -= len;
            pruned.messages += 1;
        }
        Ok(pruned)
    }

    async fn check(&self, _progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        Ok(Report { messages: self.read().messages.len() as u64, ..Report::default() })
    }

    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.check(progress).await
    }

    async fn backup(&self, _folder: &Path) -> Result<(), Error> {
        Err(Error::invalid("the memory engine keeps nothing on disk: there is nothing to back up"))
    }

    async fn close(&self) -> Result<(), Error> {
        self.write().is_closed = true;
        Ok(())
    }
}
