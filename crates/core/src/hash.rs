use std::{fmt, str::FromStr};

/// The identity of a message: 32 bytes, ordered bytewise.
///
/// For Waku it is the deterministic message hash of `14/WAKU2-MESSAGE`. It is written as `0x` followed by 64 hex digits; parsing
/// accepts the digits with or without `0x`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageHash(pub [u8; 32]);

impl MessageHash {
    /// The smallest hash.
    pub const MIN: Self = Self([0; 32]);
    /// The largest hash.
    pub const MAX: Self = Self([0xff; 32]);

    /// The bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for MessageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for MessageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for a text that is no message hash.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a message hash: expected 64 hex digits, with or without 0x")]
pub struct ParseHashError;

impl FromStr for MessageHash {
    type Err = ParseHashError;

    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| ParseHashError)?;
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_reads_back() {
        let hash = MessageHash(std::array::from_fn(|i| i as u8));
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string().trim_start_matches("0x").parse(), Ok(hash));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "0x", "0x00", &"0".repeat(63), &"g".repeat(64), &"0".repeat(66)] {
            assert_eq!(text.parse::<MessageHash>(), Err(ParseHashError), "{text}");
        }
    }
}
