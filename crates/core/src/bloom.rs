use std::{fmt, str::FromStr};

/// The bits that one topic sets in a [`Bloom`]: one to three of 512.
///
/// The protocol defines the bits; the function that computes them is passed when an archive is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopicBits([u16; 3]);

impl TopicBits {
    /// From one to three bit numbers below 512; bit `n` is bit `n % 8` of byte `n / 8`. Larger numbers wrap around.
    pub const fn new(bits: [u16; 3]) -> Self {
        Self([bits[0] % 512, bits[1] % 512, bits[2] % 512])
    }
}

/// A 512-bit filter over topics, as in the Status mailserver: with it a client queries a superset of its topics without
/// revealing which of them it needs.
///
/// Written as 128 hex digits, byte 0 first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bloom(pub [u8; 64]);

impl Bloom {
    /// The filter that matches nothing.
    pub const EMPTY: Self = Self([0; 64]);
    /// The filter that matches everything.
    pub const FULL: Self = Self([0xff; 64]);

    /// Adds a topic's bits.
    pub fn insert(&mut self, topic: TopicBits) {
        for bit in topic.0 {
            if let Some(byte) = self.0.get_mut(usize::from(bit / 8)) {
                *byte |= 1 << (bit % 8);
            }
        }
    }

    /// Whether the filter has every bit of the topic.
    pub fn contains(&self, topic: TopicBits) -> bool {
        // All three bits are tested without a branch: thousands of topics are matched in a row, and a mispredicted branch costs more
        // than the test.
        let bit = |bit: u16| self.0.get(usize::from(bit / 8)).copied().unwrap_or(0) >> (bit % 8);
        let [one, two, three] = topic.0;
        bit(one) & bit(two) & bit(three) & 1 != 0
    }
}

impl fmt::Display for Bloom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Bloom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for a text that is no bloom filter.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a bloom filter: expected 128 hex digits (64 bytes), with or without 0x")]
pub struct ParseBloomError;

impl FromStr for Bloom {
    type Err = ParseBloomError;

    fn from_str(text: &str) -> Result<Self, ParseBloomError> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let mut bytes = [0; 64];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| ParseBloomError)?;
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_contains_what_was_inserted() {
        let (one, other) = (TopicBits::new([0, 9, 511]), TopicBits::new([1, 9, 511]));
        let mut filter = Bloom::EMPTY;
        filter.insert(one);
        assert!(filter.contains(one));
        assert!(!filter.contains(other));
        assert!(Bloom::FULL.contains(other));
        assert_eq!(filter.to_string().parse(), Ok(filter));
    }

    #[test]
    fn a_filter_without_one_of_a_topics_three_bits_does_not_contain_it() {
        let topic = TopicBits::new([3, 70, 400]);
        for missing in [3, 70, 400] {
            let mut filter = Bloom::FULL;
            filter.0[missing / 8] &= !(1 << (missing % 8));
            assert!(!filter.contains(topic), "bit {missing} is missing");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        assert_eq!("ff".parse::<Bloom>(), Err(ParseBloomError));
        assert_eq!("x".repeat(128).parse::<Bloom>(), Err(ParseBloomError));
    }
}
