//! The distinct topics of an archive, known in memory: their numbers, names, bloom bits and message counts.
//!
//! A bloom filter is matched against these and never against messages.

use std::{
    collections::{HashMap, VecDeque},
    ops::RangeInclusive,
    sync::Arc,
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use restante_core::{Bloom, TopicBits};

use crate::{Query, TopicName, Topics};

/// The number of a topic while the archive is open. Numbers are not reused for other topics.
pub(crate) type TopicId = u32;

/// The most selections that are remembered.
const REMEMBERED_MAX: usize = 4;
/// Lists of so many topics are remembered: shorter ones are looked up as quickly, and comparing longer ones delays other queries.
const REMEMBERED_LIST: RangeInclusive<usize> = 32..=1_024;

/// All topics that occur, each counted once per channel.
pub(crate) struct Dictionary {
    ids: HashMap<Arc<str>, Vec<TopicId>, RandomState>,
    channels: HashMap<Arc<str>, usize, RandomState>,
    entries: Vec<Option<Entry>>,
    bits: Vec<TopicBits>,
    /// Bit n of the words, counted from the lowest bit of the first, is set when topic n occurs.
    live: Vec<u64>,
    live_topics: u64,
    /// The last selections, until topics appear or disappear: a client that reads page after page sends the same filter, or the
    /// same list, each time.
    recent: Mutex<VecDeque<Remembered>>,
    topic_bits: fn(&str) -> TopicBits,
}

/// The topics that a filter or a list selects in a channel, or in all.
struct Remembered {
    topics: Topics,
    channel: Option<String>,
    set: Arc<TopicSet>,
}

struct Entry {
    name: TopicName,
    messages: u64,
}

impl Dictionary {
    pub(crate) fn new(topic_bits: fn(&str) -> TopicBits) -> Self {
        Self {
            ids: HashMap::default(),
            channels: HashMap::default(),
            entries: Vec::new(),
            bits: Vec::new(),
            live: Vec::new(),
            live_topics: 0,
            recent: Mutex::default(),
            topic_bits,
        }
    }

    /// How many topics occur.
    pub(crate) fn len(&self) -> u64 {
        self.live_topics
    }

    /// The topic's number, if it occurs.
    pub(crate) fn find(&self, channel: &str, topic: &str) -> Option<TopicId> {
        let ids = self.ids.get(topic)?;
        ids.iter().copied().find(|id| self.name(*id).is_some_and(|name| &*name.channel == channel))
    }

    pub(crate) fn name(&self, id: TopicId) -> Option<&TopicName> {
        self.entries.get(id as usize)?.as_ref().map(|entry| &entry.name)
    }

    /// Counts `messages` more messages of a topic and returns its number and shared name.
    pub(crate) fn count(&mut self, channel: &str, topic: &str, messages: u64) -> (TopicId, TopicName) {
        let id = match self.find(channel, topic) {
            Some(id) => id,
            None => self.add(channel, topic),
        };
        let entry =
            self.entries.get_mut(id as usize).and_then(Option::as_mut).expect("the topic was found or added");
        entry.messages += messages;
        (id, entry.name.clone())
    }

    /// Counts a topic under a number that was assigned elsewhere.
    #[cfg(feature = "postgres")]
    pub(crate) fn count_numbered(&mut self, id: TopicId, channel: &str, topic: &str, messages: u64) {
        match self.entries.get_mut(id as usize) {
            Some(Some(entry)) => entry.messages += messages,
            _ => self.put(id, channel, topic, messages),
        }
    }

    fn add(&mut self, channel: &str, topic: &str) -> TopicId {
        let id = u32::try_from(self.entries.len())
            .expect("fewer than 2^32 topics are seen while an archive is open");
        self.put(id, channel, topic, 0);
        id
    }

    /// Adds a topic under a number that is free.
    fn put(&mut self, id: TopicId, channel: &str, topic: &str, messages: u64) {
        let channel: Arc<str> = match self.channels.get_key_value(channel) {
            Some((known, _)) => known.clone(),
            None => channel.into(),
        };
        let known_topic = self.ids.get_key_value(topic).map(|(known, _)| known.clone());
        let topic: Arc<str> = known_topic.unwrap_or_else(|| topic.into());
        *self.channels.entry(channel.clone()).or_insert(0) += 1;
        self.ids.entry(topic.clone()).or_default().push(id);
        let slots = self.entries.len().max(id as usize + 1);
        self.entries.resize_with(slots, || None);
        self.bits.resize(slots, TopicBits::new([0; 3]));
        if let (Some(entry), Some(bits)) = (self.entries.get_mut(id as usize), self.bits.get_mut(id as usize))
        {
            *bits = (self.topic_bits)(&topic);
            *entry = Some(Entry { name: TopicName { channel, topic }, messages });
        }
        set_bit(&mut self.live, id);
        self.live_topics += 1;
        self.recent.get_mut().clear();
    }

    /// Subtracts `messages` messages of a topic; a topic without messages is forgotten.
    pub(crate) fn discount(&mut self, id: TopicId, messages: u64) {
        let Some(slot) = self.entries.get_mut(id as usize) else { return };
        let Some(entry) = slot.as_mut() else { return };
        entry.messages = entry.messages.saturating_sub(messages);
        if entry.messages > 0 {
            return;
        }
        let Some(Entry { name, .. }) = slot.take() else { return };
        self.live_topics -= 1;
        self.recent.get_mut().clear();
        if let Some(word) = self.live.get_mut(id as usize / 64) {
            *word &= !(1 << (id % 64));
        }
        if let Some(ids) = self.ids.get_mut(&name.topic) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.ids.remove(&name.topic);
            }
        }
        if let Some(topics) = self.channels.get_mut(&name.channel) {
            *topics -= 1;
            if *topics == 0 {
                self.channels.remove(&name.channel);
            }
        }
    }

    /// The topics that a query matches.
    pub(crate) fn select(&self, query: &Query) -> Selection {
        let is_remembered = match &query.topics {
            Topics::Any if query.channel.is_none() => return Selection::All,
            Topics::Any => false,
            Topics::List(topics) => REMEMBERED_LIST.contains(&topics.len()),
            Topics::Bloom(_) => true,
        };
        let set = if is_remembered { self.select_again(query) } else { Arc::new(self.select_now(query)) };
        Selection::Topics(set)
    }

    /// The topics that a query selects, as remembered, and otherwise remembered for the next page.
    fn select_again(&self, query: &Query) -> Arc<TopicSet> {
        let is_same = |one: &&Remembered| one.topics == query.topics && one.channel == query.channel;
        if let Some(known) = self.recent.lock().iter().find(is_same) {
            return known.set.clone();
        }
        let set = Arc::new(self.select_now(query));
        let next =
            Remembered { topics: query.topics.clone(), channel: query.channel.clone(), set: set.clone() };
        let mut recent = self.recent.lock();
        recent.truncate(REMEMBERED_MAX - 1);
        recent.push_front(next);
        set
    }

    fn select_now(&self, query: &Query) -> TopicSet {
        let mut words = match &query.topics {
            Topics::Any => self.live.clone(),
            Topics::List(topics) => self.listed(topics),
            Topics::Bloom(filter) => self.filtered(filter),
        };
        if let Some(channel) = &query.channel {
            self.keep_channel(channel, &mut words);
        }
        TopicSet::of_words(words)
    }

    /// The topics of a list as a bit map.
    fn listed(&self, topics: &[String]) -> Vec<u64> {
        let mut words = vec![0; self.live.len()];
        for topic in topics {
            for id in self.ids.get(topic.as_str()).into_iter().flatten() {
                set_bit(&mut words, *id);
            }
        }
        words
    }

    /// The topics that a filter matches as a bit map. All topics are tried, so names are not looked at.
    fn filtered(&self, filter: &Bloom) -> Vec<u64> {
        let of_chunk = |(bits, live): (&[TopicBits], &u64)| {
            let matches = bits.iter().enumerate();
            let word = matches.fold(0, |word, (n, bits)| word | (u64::from(filter.contains(*bits)) << n));
            word & live
        };
        self.bits.chunks(64).zip(&self.live).map(of_chunk).collect()
    }

    /// Removes the topics of other channels from a bit map.
    fn keep_channel(&self, channel: &str, words: &mut [u64]) {
        if !self.channels.contains_key(channel) {
            words.fill(0);
        }
        for (first, word) in (0..).step_by(64).zip(words) {
            for bit in bits_of(*word) {
                let name = self.name(first + bit);
                if name.is_none_or(|name| &*name.channel != channel) {
                    *word &= !(1 << bit);
                }
            }
        }
    }
}

/// The numbers of the bits that are set, ascending.
fn bits_of(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}

/// Sets the bit of a topic; the map grows for one that has no place in it.
fn set_bit(words: &mut Vec<u64>, id: TopicId) {
    let at = id as usize / 64;
    if at >= words.len() {
        words.resize(at + 1, 0);
    }
    if let Some(word) = words.get_mut(at) {
        *word |= 1 << (id % 64);
    }
}

/// The topics that a query matches, by number.
pub(crate) enum Selection {
    All,
    Topics(Arc<TopicSet>),
}

impl Selection {
    /// Whether nothing can match.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Topics(set) if set.ids.is_empty())
    }
}

/// A set of topic numbers, as a list (of a query: sorted) and as a bit map.
#[derive(Default)]
pub(crate) struct TopicSet {
    ids: Vec<TopicId>,
    words: Vec<u64>,
}

impl TopicSet {
    fn of_words(words: Vec<u64>) -> Self {
        let mut ids = Vec::new();
        for (first, word) in (0..).step_by(64).zip(&words) {
            ids.extend(bits_of(*word).map(|bit| first + bit));
        }
        Self { ids, words }
    }

    pub(crate) fn add(&mut self, id: TopicId) {
        self.ids.push(id);
        set_bit(&mut self.words, id);
    }

    #[inline]
    pub(crate) fn contains(&self, id: TopicId) -> bool {
        self.words.get(id as usize / 64).is_some_and(|word| word & (1 << (id % 64)) != 0)
    }

    pub(crate) fn ids(&self) -> &[TopicId] {
        &self.ids
    }

    /// The bit map: bit n of the words, counted from the lowest bit of the first, is for topic n.
    #[cfg(feature = "postgres")]
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dictionary() -> Dictionary {
        Dictionary::new(|topic| TopicBits::new([topic.len() as u16; 3]))
    }

    #[test]
    fn a_topic_without_messages_is_forgotten() {
        let mut topics = dictionary();
        let (id, _) = topics.count("c", "t", 2);
        topics.discount(id, 1);
        assert_eq!(topics.find("c", "t"), Some(id));
        topics.discount(id, 1);
        assert_eq!((topics.find("c", "t"), topics.len()), (None, 0));
        assert_ne!(topics.count("c", "t", 1).0, id, "numbers are not used again");
    }

    #[test]
    fn a_topic_is_counted_per_channel() {
        let mut topics = dictionary();
        let (one, _) = topics.count("c", "t", 1);
        let (other, _) = topics.count("d", "t", 1);
        assert_ne!(one, other);
        let query = Query { topics: Topics::List(vec!["t".into(), "t".into()]), ..Query::default() };
        let Selection::Topics(set) = topics.select(&query) else { panic!("a list was asked for") };
        assert_eq!(set.ids(), [one, other]);
        let query = Query { channel: Some("d".into()), ..query };
        let Selection::Topics(set) = topics.select(&query) else { panic!("a list was asked for") };
        assert_eq!(set.ids(), [other]);
        let query = Query { topics: Topics::Any, ..query };
        let Selection::Topics(set) = topics.select(&query) else { panic!("a channel was asked for") };
        assert_eq!(set.ids(), [other]);
    }

    #[test]
    fn a_filter_matches_the_topics_that_occur_whatever_their_number() {
        let mut topics = dictionary();
        let names: Vec<String> = (1..=200).map(|len| "t".repeat(len)).collect();
        let ids: Vec<TopicId> = names.iter().map(|name| topics.count("c", name, 1).0).collect();
        topics.discount(ids[63], 1);
        let mut filter = Bloom::EMPTY;
        for at in [0, 63, 64, 130, 199] {
            filter.insert(TopicBits::new([names[at].len() as u16; 3]));
        }
        let query = Query { topics: Topics::Bloom(Box::new(filter)), ..Query::default() };
        let Selection::Topics(set) = topics.select(&query) else { panic!("a filter was asked for") };
        assert_eq!(set.ids(), [ids[0], ids[64], ids[130], ids[199]]);
        let query = Query { channel: Some("d".into()), ..query };
        let Selection::Topics(set) = topics.select(&query) else { panic!("a filter was asked for") };
        assert!(set.ids().is_empty(), "no topic of another channel");
    }

    #[test]
    fn a_selection_that_is_repeated_has_the_topics_that_occur_by_then() {
        let mut topics = dictionary();
        let filter = Topics::Bloom(Box::new(Bloom::FULL));
        let list = Topics::List((1..40).map(|len| "t".repeat(len)).collect());
        for wanted in [filter, list] {
            let query = Query { topics: wanted, ..Query::default() };
            let selected = |topics: &Dictionary| match topics.select(&query) {
                Selection::Topics(set) => set.ids().to_vec(),
                Selection::All => panic!("topics were asked for"),
            };
            let one = topics.count("c", "t", 1).0;
            assert_eq!((selected(&topics), selected(&topics)), (vec![one], vec![one]));
            let other = topics.count("c", "tt", 1).0;
            assert_eq!(selected(&topics), [one, other], "a topic that appeared");
            topics.discount(one, 1);
            assert_eq!(selected(&topics), [other], "a topic that disappeared");
            topics.discount(other, 1);
        }
    }

    #[test]
    fn each_query_gets_its_own_selection_and_few_are_remembered() {
        let mut topics = dictionary();
        let one = topics.count("c", "t", 1).0;
        for len in 0..2 * REMEMBERED_MAX as u16 {
            let mut filter = Bloom::EMPTY;
            filter.insert(TopicBits::new([len; 3]));
            let query = Query { topics: Topics::Bloom(Box::new(filter)), ..Query::default() };
            for channel in ["c", "d"] {
                let query = Query { channel: Some(channel.into()), ..query.clone() };
                let Selection::Topics(set) = topics.select(&query) else { panic!("a filter was asked for") };
                assert_eq!(set.contains(one), (len, channel) == (1, "c"));
            }
        }
        assert_eq!(topics.recent.get_mut().len(), REMEMBERED_MAX);
    }
}
