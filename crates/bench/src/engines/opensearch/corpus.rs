//! Documents like those of the published workload, whose 6 GB are not available: generated from a seed, one at a time.
//!
//! Words follow Zipf's law, lengths a log-normal distribution. One word and one phrase are planted in a known share of the
//! documents, so that a search that finds another number of them is seen.

use std::io::Write;

use crate::random::Random;

/// Words of the vocabulary.
const WORDS: usize = 200_000;
/// The exponent of Zipf's law.
const EXPONENT: f64 = 1.05;
/// Bytes of the average body, as in the published corpus.
const BODY_BYTES_MEAN: f64 = 40_500.0;
/// The standard deviation of the logarithm of the length.
const LENGTH_SIGMA: f64 = 0.6;
const BODY_BYTES_MIN: f64 = 1_000.0;
const BODY_BYTES_MAX: f64 = 400_000.0;
/// A word of 3 % of the documents; no word of the vocabulary ends with a consonant.
pub(super) const TERM: &str = "physician";
/// Two words that follow each other in 0.1 % of the documents.
pub(super) const PHRASE: &str = "newspaper coverage";
const CONSONANTS: &[u8; 20] = b"tnshrdlcmwfgpbvkjxqz";
const VOWELS: &[u8; 5] = b"eaoiu";

/// Makes documents. A document depends on the seed and its number alone.
pub(super) struct Corpus {
    seed: u64,
    /// All words one after the other, the most frequent first, and where each ends.
    text: Vec<u8>,
    ends: Vec<u32>,
    /// Walker's alias method: word `i` is kept with this probability, otherwise the other one is used.
    aliases: Vec<(f32, u32)>,
}

impl Corpus {
    pub(super) fn new(seed: u64) -> Self {
        let (mut text, mut ends) = (Vec::new(), Vec::with_capacity(WORDS));
        for rank in 0..WORDS {
            add_word(rank, &mut text);
            ends.push(text.len() as u32);
        }
        Self { seed, text, ends, aliases: aliases() }
    }

    /// Appends the two lines of a bulk request that index this document.
    pub(super) fn append(&self, number: u64, out: &mut Vec<u8>) {
        let mut random = Random::new(self.seed, number);
        out.extend_from_slice(b"{\"index\":{}}\n");
        let (journal, volume, issue) = (random.below(2_000), 1 + random.below(90), 1 + random.below(12));
        let (year, month, day) = (1990 + random.below(25), 1 + random.below(12), 1 + random.below(28));
        // Writing to a vector can't fail.
        let _ = write!(
            out,
            "{{\"name\":\"{number:08x}.nxml\",\"accession\":\"PMC{number}\",\"journal\":\"journal of {}\",\
             \"date\":\"{year} {month} {day}\",\"volume\":\"{volume}\",\"issue\":\"{issue}\",\
             \"timestamp\":\"{year}-{month:02}-{day:02} 00:00:00\",\"pmid\":{number},\"body\":\"",
            String::from_utf8_lossy(self.word(journal as usize)),
        );
        self.append_body(number, &mut random, out);
        out.extend_from_slice(b"\"}\n");
    }

    fn append_body(&self, number: u64, random: &mut Random, out: &mut Vec<u8>) {
        let mean = BODY_BYTES_MEAN.ln() - LENGTH_SIGMA * LENGTH_SIGMA / 2.0;
        let length =
            (mean + LENGTH_SIGMA * random.normal()).exp().clamp(BODY_BYTES_MIN, BODY_BYTES_MAX) as usize;
        let planted_at = out.len() + random.below(length as u64) as usize;
        let end = out.len() + length;
        let mut planted = Some((has_term(number), has_phrase(number)));
        while out.len() < end {
            out.extend_from_slice(self.random_word(random));
            out.push(b' ');
            if out.len() > planted_at
                && let Some((has_term, has_phrase)) = planted.take()
            {
                if has_term {
                    out.extend_from_slice(TERM.as_bytes());
                    out.push(b' ');
                }
                if has_phrase {
                    out.extend_from_slice(PHRASE.as_bytes());
                    out.push(b' ');
                }
            }
        }
    }

    fn random_word(&self, random: &mut Random) -> &[u8] {
        let column = random.below(WORDS as u64) as usize;
        let chosen = match self.aliases.get(column) {
            Some((probability, _)) if random.unit() < f64::from(*probability) => column,
            Some((_, alias)) => *alias as usize,
            None => 0,
        };
        self.word(chosen)
    }

    fn word(&self, rank: usize) -> &[u8] {
        let end = |rank: usize| self.ends.get(rank).copied().unwrap_or_default() as usize;
        let start = rank.checked_sub(1).map_or(0, end);
        self.text.get(start..end(rank)).unwrap_or_default()
    }
}

/// Whether the document of that number has the planted word.
fn has_term(number: u64) -> bool {
    matches!(number % 100, 11 | 47 | 83)
}

fn has_phrase(number: u64) -> bool {
    number % 1_000 == 99
}

/// Documents among the first `documents` that have the planted word, and those that have the planted phrase.
pub(super) fn planted(documents: u64) -> (u64, u64) {
    let count = |has: fn(u64) -> bool| (0..documents).filter(|number| has(*number)).count() as u64;
    (count(has_term), count(has_phrase))
}

/// The word of a rank: syllables, few for the frequent ones. No two ranks have the same word.
fn add_word(rank: usize, out: &mut Vec<u8>) {
    let mut rest = rank;
    loop {
        let syllable = rest % 100;
        out.extend(CONSONANTS.get(syllable / 5));
        out.extend(VOWELS.get(syllable % 5));
        if rest < 100 {
            return;
        }
        rest = rest / 100 - 1;
    }
}

/// The table of Walker's method, in Vose's form: one look-up for each word.
fn aliases() -> Vec<(f32, u32)> {
    let weights: Vec<f64> = (1..=WORDS).map(|rank| (rank as f64).powf(-EXPONENT)).collect();
    let mean = weights.iter().sum::<f64>() / WORDS as f64;
    let mut scaled: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) =
        (0..WORDS).partition(|rank| scaled.get(*rank).is_some_and(|share| *share < 1.0));
    // What is left at the end is 1, apart from rounding.
    let mut table: Vec<(f32, u32)> = (0..WORDS).map(|rank| (1.0, rank as u32)).collect();
    while let Some(less) = small.pop() {
        let Some(more) = large.last().copied() else { break };
        let share = scaled.get(less).copied().unwrap_or(1.0);
        if let Some(column) = table.get_mut(less) {
            *column = (share as f32, more as u32);
        }
        let Some(rest) = scaled.get_mut(more) else { break };
        *rest -= 1.0 - share;
        if *rest < 1.0 {
            large.pop();
            small.push(more);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn document(corpus: &Corpus, number: u64) -> serde_json::Value {
        let mut lines = Vec::new();
        corpus.append(number, &mut lines);
        let text = String::from_utf8(lines).unwrap();
        let (action, rest) = text.split_once('\n').unwrap();
        assert_eq!(action, r#"{"index":{}}"#);
        let (document, end) = rest.split_once('\n').unwrap();
        assert_eq!(end, "");
        serde_json::from_str(document).unwrap()
    }

    #[test]
    fn documents_depend_on_seed_and_number_alone() {
        let (one, same, other) = (Corpus::new(1), Corpus::new(1), Corpus::new(2));
        assert_eq!(document(&one, 7), document(&same, 7));
        assert_ne!(document(&one, 7)["body"], document(&one, 8)["body"]);
        assert_ne!(document(&one, 7)["body"], document(&other, 7)["body"]);
        let found = document(&one, 12);
        assert_eq!((found["pmid"].as_u64(), found["accession"].as_str()), (Some(12), Some("PMC12")));
        let timestamp = found["timestamp"].as_str().unwrap();
        assert!(timestamp.len() == 19 && timestamp.ends_with("00:00:00"), "{timestamp}");
    }

    #[test]
    fn words_differ_and_are_none_of_the_planted_ones() {
        let corpus = Corpus::new(0);
        let words: HashSet<&[u8]> = (0..WORDS).map(|rank| corpus.word(rank)).collect();
        assert_eq!(words.len(), WORDS);
        assert_eq!(corpus.word(0), b"te");
        for planted in TERM.split(' ').chain(PHRASE.split(' ')) {
            assert!(!words.contains(planted.as_bytes()), "{planted}");
        }
    }

    #[test]
    fn words_follow_the_law_of_zipf() {
        let corpus = Corpus::new(3);
        let mut random = Random::new(9, 9);
        let mut counts: HashMap<&[u8], u32> = HashMap::new();
        for _ in 0..400_000 {
            *counts.entry(corpus.random_word(&mut random)).or_default() += 1;
        }
        let count = |rank: usize| f64::from(counts.get(corpus.word(rank)).copied().unwrap_or_default());
        for rank in [1, 9, 99] {
            let expected = ((rank + 1) as f64).powf(EXPONENT);
            let found = count(0) / count(rank);
            assert!((found / expected - 1.0).abs() < 0.15, "rank {rank}: {found} and not {expected}");
        }
        assert!(counts.len() > 20_000, "{} words", counts.len());
    }

    #[test]
    fn lengths_and_planted_words_are_as_many_as_they_should_be() {
        let corpus = Corpus::new(5);
        let (mut bytes, mut terms, mut phrases) = (0, 0, 0);
        for number in 0..300 {
            let found = document(&corpus, number);
            let body = found["body"].as_str().unwrap();
            bytes += body.len();
            terms += u64::from(body.split(' ').any(|word| word == TERM));
            phrases += u64::from(body.contains(PHRASE));
        }
        assert!((35_000..46_000).contains(&(bytes / 300)), "{} bytes on average", bytes / 300);
        assert_eq!((terms, phrases), planted(300));
        assert_eq!(planted(2_000), (60, 2));
    }
}
