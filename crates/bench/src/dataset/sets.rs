//! The sets of topics that queries ask for. They are our choice, because the original ones were not published.

use restante_core::Bloom;
use restante_waku_wire::bloom::{content_topic_bits, filter_of};

use super::{Dataset, counts::TOPICS};

/// A set of topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetName {
    /// Three topics of the tail.
    Small,
    /// 256 topics, among them the second to fourth most frequent, which have a quarter of all messages.
    Large,
    /// The large set and the most frequent topic: nearly everything.
    Worst,
}

/// A set of topics, as a list and as the filter that a client would send instead.
#[derive(Clone, Debug)]
pub struct QuerySet {
    /// The content topics.
    pub topics: Vec<String>,
    /// The bits of all of them.
    pub bloom: Bloom,
}

/// Ranks of the small set; at full size these topics have 1,010 messages.
const SMALL_RANKS: [usize; 3] = [9, 61, 601];
/// Ranks of the large set's frequent topics.
const LARGE_HEAD_RANKS: [usize; 3] = [2, 3, 4];
const LARGE_TOPICS: usize = 256;

impl QuerySet {
    /// The set of these topics.
    pub fn of(topics: Vec<String>) -> Self {
        let bloom = filter_of(topics.iter().map(String::as_str));
        Self { topics, bloom }
    }
}

impl Dataset {
    /// One of the sets.
    pub fn query_set(&self, name: SetName) -> QuerySet {
        match name {
            SetName::Small => QuerySet::of(self.topics_of(&SMALL_RANKS)),
            SetName::Large => QuerySet::of(self.large_topics()),
            SetName::Worst => {
                let mut topics = self.large_topics();
                topics.push(self.topic(1).to_string());
                QuerySet::of(topics)
            }
        }
    }

    fn topics_of(&self, ranks: &[usize]) -> Vec<String> {
        ranks.iter().map(|rank| self.topic(*rank).to_string()).collect()
    }

    /// The frequent topics except the first, and topics taken evenly from the tail.
    ///
    /// A topic whose bits would make the filter match the most frequent topic is replaced by its neighbour: otherwise the
    /// filter would match nearly everything, which the worst case already does.
    fn large_topics(&self) -> Vec<String> {
        let mut topics = self.topics_of(&LARGE_HEAD_RANKS);
        let busiest = content_topic_bits(self.topic(1));
        let mut filter = QuerySet::of(topics.clone()).bloom;
        let stride = (TOPICS - 4) / (LARGE_TOPICS - topics.len());
        let mut rank = 5 + stride / 2;
        while topics.len() < LARGE_TOPICS && rank <= TOPICS {
            let topic = self.topic(rank);
            let mut grown = filter;
            grown.insert(content_topic_bits(topic));
            if grown.contains(busiest) {
                rank += 1;
                continue;
            }
            filter = grown;
            topics.push(topic.to_string());
            // Continue on the even grid after a replacement.
            rank = 5 + stride / 2 + (topics.len() - LARGE_HEAD_RANKS.len()) * stride;
        }
        topics
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Span, *};
    use crate::dataset::MESSAGES_FULL;

    fn rows(dataset: &Dataset, name: SetName, span: Span) -> u64 {
        let set = dataset.query_set(name);
        dataset.count(span, |topic| set.topics.iter().any(|name| name == topic))
    }

    fn rows_by_filter(dataset: &Dataset, name: SetName, span: Span) -> u64 {
        let set = dataset.query_set(name);
        dataset.count(span, |topic| set.bloom.contains(content_topic_bits(topic)))
    }

    #[test]
    fn sets_have_their_size_at_full_size() {
        let dataset = Dataset::new(0, MESSAGES_FULL);
        assert_eq!(rows(&dataset, SetName::Small, Span::Month), 1_010);
        assert!((180..250).contains(&rows(&dataset, SetName::Small, Span::Week)));
        assert_eq!(dataset.query_set(SetName::Large).topics.len(), 256);
        assert_eq!(dataset.query_set(SetName::Worst).topics.len(), 257);
        let large = rows(&dataset, SetName::Large, Span::Month);
        assert!((364_500..367_500).contains(&large), "{large}");
        assert_eq!(rows(&dataset, SetName::Worst, Span::Month), large + 1_043_120);
    }

    #[test]
    fn the_large_filter_never_matches_the_busiest_topic() {
        for seed in 0..20 {
            let dataset = Dataset::new(seed, 10_000);
            let set = dataset.query_set(SetName::Large);
            assert_eq!(set.topics.len(), 256, "seed {seed}");
            assert!(!set.bloom.contains(content_topic_bits(dataset.topic(1))), "seed {seed}");
        }
    }

    #[test]
    fn a_filter_matches_a_superset() {
        let dataset = Dataset::new(0, 100_000);
        for name in [SetName::Small, SetName::Large, SetName::Worst] {
            assert!(rows_by_filter(&dataset, name, Span::Month) >= rows(&dataset, name, Span::Month));
        }
    }
}
