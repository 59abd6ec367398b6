//! A row of an aggregate report, and its record.

use std::net::IpAddr;

use restante_core::Error;
use restante_records::{Body, Record};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What was done with messages by the policy of their domain (RFC 7489 appendix C, `DispositionType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Disposition {
    /// They were delivered.
    None,
    /// They were put into Junk or quarantine.
    Quarantine,
    /// They were refused.
    Reject,
}

impl Disposition {
    /// Its word in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Quarantine => "quarantine",
            Self::Reject => "reject",
        }
    }
}

/// A DKIM signature that was checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DkimSeen {
    /// `d=`.
    pub domain: String,
    /// `s=`.
    pub selector: String,
    /// A result word of RFC 8601 §2.7.1, such as `pass`.
    pub result: String,
}

/// Which name of the sender SPF was checked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpfScope {
    /// The name that the client gave in HELO or EHLO.
    Helo,
    /// The domain of the envelope sender.
    Mfrom,
}

impl SpfScope {
    /// Its word in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Helo => "helo",
            Self::Mfrom => "mfrom",
        }
    }
}

/// The result of SPF.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SpfSeen {
    /// The domain that was checked.
    pub domain: String,
    /// Where that domain comes from.
    pub scope: SpfScope,
    /// A result word of RFC 8601 §2.7.2, such as `softfail`.
    pub result: String,
}

/// What the messages of a row have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The domain whose DMARC record was applied; empty in the row of all others.
    pub domain: String,
    /// Where they came from; `None` in the row of all others.
    pub source: Option<IpAddr>,
    /// What was done with them.
    pub disposition: Disposition,
    /// Whether a signature of an aligned domain holds.
    pub dkim_aligned: bool,
    /// Whether SPF passed for an aligned domain.
    pub spf_aligned: bool,
    /// Why the disposition is not what the policy asks for: a word of `PolicyOverrideType`, such as `local_policy`.
    pub reason: Option<String>,
    /// The domain of `From`.
    pub header_from: String,
    /// The domain of the envelope sender; empty for `<>`.
    pub envelope_from: String,
    /// The signatures.
    pub dkim: Vec<DkimSeen>,
    /// The result of SPF.
    pub spf: Option<SpfSeen>,
}

impl Row {
    /// The row for the messages of a day for which no other row is left.
    pub fn others() -> Self {
        Self {
            domain: String::new(),
            source: None,
            disposition: Disposition::None,
            dkim_aligned: false,
            spf_aligned: false,
            reason: None,
            header_from: String::new(),
            envelope_from: String::new(),
            dkim: Vec::new(),
            spf: None,
        }
    }

    /// Whether this is [`Row::others`].
    pub fn is_others(&self) -> bool {
        self.domain.is_empty()
    }

    /// Whether DMARC passed (RFC 7489 §3.1).
    pub fn is_pass(&self) -> bool {
        self.dkim_aligned || self.spf_aligned
    }
}

/// The body of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) row: Row,
    pub(super) record: Option<String>,
}

impl Stored {
    pub(super) fn read(record: &Record) -> Result<Self, Error> {
        serde_json::from_slice(&record.body.bytes)
            .map_err(|error| Error::corrupt("a row of DMARC can't be read").with_source(error))
    }

    pub(super) fn body(&self) -> Result<Body, Error> {
        Ok(Body::new(json(self)?))
    }
}

/// The body of a note that a report was sent, or that none will be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    sent: bool,
}

/// The body of such a note.
pub(super) fn note(was_sent: bool) -> Result<Body, Error> {
    Ok(Body::new(json(&Note { sent: was_sent })?))
}

/// Whether a note says that a report was sent. Notes of earlier versions have no body.
pub(super) fn was_sent(record: &Record) -> bool {
    serde_json::from_slice(&record.body.bytes).is_ok_and(|note: Note| note.sent)
}

/// The 64-bit hash by which a row is found.
pub(super) fn key_hash(day: u64, row: &Row) -> Result<u64, Error> {
    let mut hash = Sha256::new();
    hash.update(day.to_be_bytes());
    hash.update(json(row)?);
    let digest = hash.finalize();
    let eight = digest.get(..8).and_then(|eight| eight.try_into().ok());
    Ok(u64::from_be_bytes(eight.unwrap_or_default()))
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value)
        .map_err(|error| Error::internal("a row of DMARC can't be written").with_source(error))
}
