use std::{fmt, str::FromStr};

/// The identity of a blob: the SHA-256 of its bytes, written as 64 hex digits, as `sha256sum` prints it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(pub [u8; 32]);

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for a text that is no blob id.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a blob id: expected 64 hex digits")]
pub struct ParseBlobIdError;

impl FromStr for BlobId {
    type Err = ParseBlobIdError;

    fn from_str(text: &str) -> Result<Self, ParseBlobIdError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| ParseBlobIdError)?;
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_reads_back_and_other_texts_are_refused() {
        let id = BlobId(std::array::from_fn(|i| i as u8));
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "0x", &"0".repeat(63), &"g".repeat(64), &"0".repeat(65)] {
            assert_eq!(text.parse::<BlobId>(), Err(ParseBlobIdError), "{text}");
        }
    }
}
