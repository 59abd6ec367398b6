//! The location of blobs in an S3 storage, and its keys.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::Error;

/// The location of blobs in an S3 storage: `s3://<bucket>` or `s3://<bucket>/<prefix>`. Endpoint, region and keys are settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Url {
    bucket: String,
    /// Empty if there is none; otherwise it neither begins nor ends with a slash.
    prefix: String,
}

/// The longest prefix.
const PREFIX_BYTES_MAX: usize = 512;

impl S3Url {
    /// The bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The prefix of all keys: empty, or with a slash at the end.
    pub fn key_prefix(&self) -> String {
        if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) }
    }
}

impl FromStr for S3Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let form =
            "use s3://<bucket>/<prefix>; the endpoint, the region and the keys are settings (blobs.s3)";
        // The text may contain keys, as other programs accept them in such URLs.
        let rest = text
            .strip_prefix("s3://")
            .ok_or_else(|| Error::invalid(format!("a blobs URL of S3 is not understood: {form}")))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_bucket = (3..=63).contains(&bucket.len())
            && bucket.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'));
        if !is_bucket {
            return Err(Error::invalid(format!("the bucket in a blobs URL of S3 is no name of one: {form}")));
        }
        let prefix = prefix.trim_end_matches('/');
        let is_part = |part: &str| {
            let is_plain = part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
            is_plain && !matches!(part, "" | "." | "..")
        };
        if !prefix.is_empty() && (prefix.len() > PREFIX_BYTES_MAX || !prefix.split('/').all(is_part)) {
            return Err(Error::invalid(format!(
                "the prefix in a blobs URL of S3 may have letters, digits, '-', '_', '.' and single slashes: {form}"
            )));
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for S3Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

/// The keys with which requests are signed. The secret key is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Keys {
    /// The access key.
    pub access_key: String,
    /// The secret key.
    pub secret_key: String,
}

impl fmt::Debug for S3Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Keys").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// How the storage encrypts objects: `""` for its own default, `aes256` for keys that it manages, `kms:<key id>` for a key of
/// its key management service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum S3Encryption {
    /// The default of the bucket.
    #[default]
    BucketDefault,
    /// SSE-S3.
    Aes256,
    /// SSE-KMS with this key.
    Kms(String),
}

impl FromStr for S3Encryption {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("", "") => Ok(Self::BucketDefault),
            ("aes256", "") => Ok(Self::Aes256),
            ("kms", key) if !key.is_empty() => Ok(Self::Kms(key.to_owned())),
            _ => Err(Error::invalid(format!(
                "encryption '{text}' is not understood: use \"\", \"aes256\" or \"kms:<key id>\""
            ))),
        }
    }
}

impl fmt::Display for S3Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BucketDefault => Ok(()),
            Self::Aes256 => f.write_str("aes256"),
            Self::Kms(key) => write!(f, "kms:{key}"),
        }
    }
}

impl Serialize for S3Encryption {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for S3Encryption {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_read_back() {
        for text in ["s3://mail", "s3://mail.example.org/restante", "s3://mail/a/b-c/d_e.f"] {
            assert_eq!(text.parse::<S3Url>().unwrap().to_string(), text);
        }
        let url: S3Url = "s3://mail/a/b/".parse().unwrap();
        assert_eq!((url.bucket(), url.key_prefix().as_str()), ("mail", "a/b/"));
        assert_eq!("s3://mail/".parse::<S3Url>().unwrap().key_prefix(), "");
    }

    #[test]
    fn a_wrong_url_is_refused_and_not_repeated() {
        for text in [
            "s3:mail",
            "s3://",
            "s3://ab",
            "s3://Mail",
            "s3://key:secret@mail",
            "s3://mail//a",
            "s3://mail/../a",
            "s3://mail/a b",
            "s3://mail?secret=1",
        ] {
            let error = text.parse::<S3Url>().unwrap_err().to_string();
            assert!(error.contains("s3://<bucket>/<prefix>") && !error.contains("secret@"), "{error}");
        }
    }

    #[test]
    fn a_secret_key_is_never_shown() {
        let keys = S3Keys { access_key: "me".into(), secret_key: "hidden".into() };
        let shown = format!("{keys:?}");
        assert!(shown.contains("me") && !shown.contains("hidden"), "{shown}");
    }

    #[test]
    fn encryption_reads_back() {
        for text in ["", "aes256", "kms:arn:aws:kms:eu:1:key/x"] {
            assert_eq!(text.parse::<S3Encryption>().unwrap().to_string(), text);
        }
        assert!("kms:".parse::<S3Encryption>().is_err() && "des".parse::<S3Encryption>().is_err());
    }
}
