use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    str::FromStr,
};

/// The identity of a store, chosen randomly when it is created, written as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(pub [u8; 16]);

impl Identity {
    /// A random identity.
    pub fn random() -> Self {
        // The standard library seeds its hashers from the system's random source, with 128 bits.
        let chance = RandomState::new();
        let mut bytes = [0; 16];
        for (half, place) in bytes.chunks_exact_mut(8).enumerate() {
            place.copy_from_slice(&chance.hash_one(half).to_be_bytes());
        }
        Self(bytes)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for a text that is no identity.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not an identity: expected 32 hex digits")]
pub struct ParseIdentityError;

impl FromStr for Identity {
    type Err = ParseIdentityError;

    fn from_str(text: &str) -> Result<Self, ParseIdentityError> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| ParseIdentityError)?;
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn text_reads_back_and_other_texts_are_refused() {
        let identity = Identity(std::array::from_fn(|i| 255 - i as u8));
        assert_eq!(identity.to_string().parse(), Ok(identity));
        for text in ["", "0x", &"0".repeat(31), &"g".repeat(32), &"0".repeat(33)] {
            assert_eq!(text.parse::<Identity>(), Err(ParseIdentityError), "{text}");
        }
    }

    #[test]
    fn no_identity_is_chosen_twice() {
        assert_eq!((0..1_000).map(|_| Identity::random()).collect::<BTreeSet<_>>().len(), 1_000);
    }
}
