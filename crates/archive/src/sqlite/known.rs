//! The topics of the archive in memory, with the numbers of their rows.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use restante_core::TopicBits;
use rusqlite::Connection;

use super::schema;
use crate::{
    Query, TopicName,
    topics::{Dictionary, Selection, TopicId, TopicSet},
};

/// The number of a topic's row. It is never used again for another topic, so that it means the same in every snapshot.
pub(super) type RowId = u32;

/// All topics that have messages. The dictionary assigns its own numbers, which are mapped to those of the rows.
pub(super) struct Known {
    dictionary: Dictionary,
    /// By the dictionary's number.
    topics: Vec<Topic>,
    numbers: HashMap<RowId, TopicId, RandomState>,
    messages: u64,
    /// Rows from this one on are not known yet.
    next: RowId,
}

#[derive(Clone, Copy)]
struct Topic {
    row: RowId,
    messages: u64,
}

/// The topics that a query matches, by their rows.
pub(super) enum Wanted {
    All,
    Topics(WantedTopics),
}

pub(super) struct WantedTopics {
    pub(super) set: TopicSet,
    /// Those with the most messages first.
    pub(super) by_size: Vec<RowId>,
    /// Messages of all of them.
    pub(super) messages: u64,
    /// Messages of the archive.
    pub(super) messages_in_all: u64,
}

impl Wanted {
    pub(super) fn contains(&self, row: RowId) -> bool {
        match self {
            Self::All => true,
            Self::Topics(topics) => topics.set.contains(row),
        }
    }

    /// Whether nothing can match.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Topics(topics) if topics.by_size.is_empty())
    }
}

impl Known {
    pub(super) fn new(topic_bits: fn(&str) -> TopicBits) -> Self {
        Self {
            dictionary: Dictionary::new(topic_bits),
            topics: Vec::new(),
            numbers: HashMap::default(),
            messages: 0,
            next: 1,
        }
    }

    /// Reads the topics that were added since the last time.
    pub(super) fn load_new(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let next: RowId = connection.prepare_cached(schema::NEXT_TOPIC)?.query_row([], |row| row.get(0))?;
        if next <= self.next {
            return Ok(()); // a query with a newer snapshot was first
        }
        let mut statement = connection.prepare_cached(schema::TOPICS_FROM)?;
        let mut rows = statement.query([self.next])?;
        while let Some(row) = rows.next()? {
            let (channel, topic) = (row.get_ref(1)?.as_str()?, row.get_ref(2)?.as_str()?);
            let messages: i64 = row.get(3)?;
            self.count(row.get(0)?, channel, topic, messages.max(0).unsigned_abs());
        }
        self.next = next;
        Ok(())
    }

    /// The number after the highest one that was ever known here.
    pub(super) fn next(&self) -> RowId {
        self.next
    }

    /// Whether rows up to `next` are known.
    pub(super) fn knows_until(&self, next: RowId) -> bool {
        self.next >= next
    }

    pub(super) fn find(&self, channel: &str, topic: &str) -> Option<RowId> {
        let number = self.dictionary.find(channel, topic)?;
        self.topics.get(number as usize).map(|topic| topic.row)
    }

    pub(super) fn name(&self, row: RowId) -> Option<&TopicName> {
        self.dictionary.name(*self.numbers.get(&row)?)
    }

    /// Counts messages of a topic, which is added when it isn't known.
    pub(super) fn count(&mut self, row: RowId, channel: &str, topic: &str, messages: u64) {
        let (number, _) = self.dictionary.count(channel, topic, messages);
        if self.topics.len() <= number as usize {
            self.topics.push(Topic { row, messages: 0 }); // the dictionary numbers topics consecutively
            self.numbers.insert(row, number);
        }
        if let Some(topic) = self.topics.get_mut(number as usize) {
            if topic.row != row {
                // Another process has removed the topic and added it again.
                self.numbers.remove(&topic.row);
                self.numbers.insert(row, number);
                topic.row = row;
            }
            topic.messages += messages;
        }
        self.messages += messages;
        self.next = self.next.max(row.saturating_add(1));
    }

    /// Subtracts messages of a topic; a topic without messages is forgotten.
    pub(super) fn discount(&mut self, row: RowId, messages: u64) {
        let Some(number) = self.numbers.get(&row).copied() else { return };
        self.dictionary.discount(number, messages);
        if self.dictionary.name(number).is_none() {
            self.numbers.remove(&row);
        }
        if let Some(topic) = self.topics.get_mut(number as usize) {
            topic.messages = topic.messages.saturating_sub(messages);
        }
        self.messages = self.messages.saturating_sub(messages);
    }

    pub(super) fn wanted(&self, query: &Query) -> Wanted {
        let selected = match self.dictionary.select(query) {
            Selection::All => return Wanted::All,
            Selection::Topics(selected) => selected,
        };
        let topics = selected.ids().iter().filter_map(|number| self.topics.get(*number as usize));
        let mut topics: Vec<Topic> = topics.copied().collect();
        topics.sort_unstable_by_key(|topic| (std::cmp::Reverse(topic.messages), topic.row));
        let mut set = TopicSet::default();
        for topic in &topics {
            set.add(topic.row);
        }
        Wanted::Topics(WantedTopics {
            set,
            by_size: topics.iter().map(|topic| topic.row).collect(),
            messages: topics.iter().map(|topic| topic.messages).sum(),
            messages_in_all: self.messages,
        })
    }
}
