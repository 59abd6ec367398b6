//! The index of interests by channel and topic.

use std::{collections::HashMap, sync::Arc};

use smallvec::SmallVec;

use super::{Interest, TopicMatch, prefixes::Prefixes, subscriber::Subscriber};

/// Subscribers with the same interest, each once. Almost always there is one.
#[derive(Default)]
pub(super) struct Subscribers(SmallVec<[Arc<Subscriber>; 1]>);

impl Subscribers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Subscriber>> {
        self.0.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a subscriber that is not in the list.
    pub(super) fn add(&mut self, subscriber: &Arc<Subscriber>) {
        self.0.push(subscriber.clone());
    }

    pub(super) fn remove(&mut self, subscriber: &Arc<Subscriber>) {
        let found = self.0.iter().position(|one| Arc::ptr_eq(one, subscriber));
        if let Some(found) = found {
            self.0.swap_remove(found);
        }
        if self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to_fit();
        }
    }
}

/// The subscribers of an event, in groups that may overlap.
pub(super) type Groups<'a> = SmallVec<[&'a Subscribers; 4]>;

#[derive(Default)]
pub(super) struct Index {
    by_channel: HashMap<Arc<str>, Topics>,
    all_channels: Topics,
    /// The bytes of all interests.
    pub(super) bytes: usize,
}

#[derive(Default)]
struct Topics {
    exact: HashMap<Arc<str>, Subscribers>,
    prefixes: Prefixes,
    all: Subscribers,
}

impl Index {
    /// The subscribers of a channel and topic.
    pub(super) fn find(&self, channel: &str, topic: &str) -> Groups<'_> {
        let mut groups = Groups::new();
        if let Some(topics) = self.by_channel.get(channel) {
            topics.find(topic, &mut groups);
        }
        self.all_channels.find(topic, &mut groups);
        groups
    }

    /// Replaces the texts of an interest by the equal ones that the index has already.
    pub(super) fn share(&self, interest: &mut Interest) {
        let mut topics = Some(&self.all_channels);
        if let Some(channel) = &mut interest.channel {
            let known = self.by_channel.get_key_value(channel);
            topics = known.map(|(_, topics)| topics);
            if let Some((known, _)) = known {
                *channel = known.clone();
            }
        }
        if let (Some(topics), TopicMatch::Exact(topic)) = (topics, &mut interest.topics)
            && let Some((known, _)) = topics.exact.get_key_value(topic)
        {
            *topic = known.clone();
        }
    }

    /// Adds an interest that the subscriber does not have yet.
    pub(super) fn add(&mut self, interest: &Interest, subscriber: &Arc<Subscriber>) {
        let topics = match &interest.channel {
            Some(channel) => self.by_channel.entry(channel.clone()).or_default(),
            None => &mut self.all_channels,
        };
        match &interest.topics {
            TopicMatch::All => topics.all.add(subscriber),
            TopicMatch::Exact(topic) => topics.exact.entry(topic.clone()).or_default().add(subscriber),
            TopicMatch::Prefix(prefix) => topics.prefixes.add(prefix, subscriber),
        }
    }

    /// Removes an interest of a subscriber, and every entry that becomes empty by it.
    pub(super) fn remove(&mut self, interest: &Interest, subscriber: &Arc<Subscriber>) {
        self.bytes -= interest.bytes();
        let Some(channel) = &interest.channel else {
            return self.all_channels.remove(&interest.topics, subscriber);
        };
        let Some(topics) = self.by_channel.get_mut(channel) else { return };
        topics.remove(&interest.topics, subscriber);
        if topics.is_empty() {
            self.by_channel.remove(channel);
            shrink(&mut self.by_channel);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_channel.is_empty() && self.all_channels.is_empty() && self.bytes == 0
    }
}

impl Topics {
    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty() && self.all.is_empty()
    }

    fn find<'a>(&'a self, topic: &str, groups: &mut Groups<'a>) {
        if let Some(subscribers) = self.exact.get(topic) {
            groups.push(subscribers);
        }
        self.prefixes.find(topic, |subscribers| groups.push(subscribers));
        if !self.all.is_empty() {
            groups.push(&self.all);
        }
    }

    fn remove(&mut self, topics: &TopicMatch, subscriber: &Arc<Subscriber>) {
        match topics {
            TopicMatch::All => self.all.remove(subscriber),
            TopicMatch::Prefix(prefix) => self.prefixes.remove(prefix, subscriber),
            TopicMatch::Exact(topic) => {
                let Some(subscribers) = self.exact.get_mut(topic) else { return };
                subscribers.remove(subscriber);
                if subscribers.is_empty() {
                    self.exact.remove(topic);
                    shrink(&mut self.exact);
                }
            }
        }
    }
}

/// Frees memory when most entries are gone.
fn shrink<T>(map: &mut HashMap<Arc<str>, T>) {
    if map.len() < map.capacity() / 8 {
        map.shrink_to_fit();
    }
}
