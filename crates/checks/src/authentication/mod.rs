//! Which domains authenticate a message: SPF (RFC 7208), DKIM (RFC 6376), ARC (RFC 8617) and DMARC (RFC 7489).
//!
//! All names are looked up through [`restante_net::dns::Resolver`], which distinguishes between a name that certainly does not
//! exist and one that is not known now. A name server that is slow, unreachable or lying makes an outcome `TempError`, never one
//! by which a message is refused.

mod arc;
mod authenticator;
mod claim;
mod dkim;
mod dmarc;
mod message;
mod names;
mod results;
mod spf;
mod tags;

pub use self::{authenticator::Authenticator, claim::claims_to_be_ours, results::results_field};

/// The outcome of a check, with the terms of RFC 8601 §2.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The domain publishes nothing about this.
    None,
    /// The domain authenticates the message.
    Pass,
    /// The domain states that the message is not from it.
    Fail,
    /// The domain states that the message is probably not from it.
    SoftFail,
    /// The domain makes no statement about it, or one that can't be used.
    Neutral,
    /// Not known now.
    TempError,
    /// The domain's records can't be understood.
    PermError,
}

/// What the owner of a domain requests for mail that fails DMARC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DmarcPolicy {
    /// Nothing.
    None,
    /// Mail is to be treated as suspicious.
    Quarantine,
    /// Mail is to be refused.
    Reject,
}

/// A DKIM signature of a message and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DkimSignature {
    /// `d=`, empty if it can't be parsed.
    pub domain: String,
    /// `s=`, empty if it can't be parsed.
    pub selector: String,
    /// The beginning of `b=`, which distinguishes signatures of one domain and selector (RFC 6008).
    pub signature: String,
    /// Whether it is valid. `Neutral` if it can't be verified, or covers only a part of the body.
    pub outcome: Outcome,
}

/// The results about the sender of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// SPF of the envelope sender, or of the client's greeting for `<>`.
    pub spf: Outcome,
    /// The domain that SPF checked.
    pub spf_domain: String,
    /// Each signature that was examined.
    pub dkim: Vec<DkimSignature>,
    /// The chain of ARC.
    pub arc: Outcome,
    /// The domain that sealed it last.
    pub arc_domain: Option<String>,
    /// DMARC.
    pub dmarc: Outcome,
    /// Whether SPF passed for a domain that is aligned with that of `From`.
    pub is_spf_aligned: bool,
    /// Whether a signature of such a domain is valid.
    pub is_dkim_aligned: bool,
    /// What the domain requests for mail that fails DMARC, with `pct` (RFC 7489 §6.3) applied.
    pub policy: DmarcPolicy,
    /// The domain in the `From` field; `None` unless there is exactly one such field with one domain.
    pub from: Option<String>,
    /// How many `From` fields the message has.
    pub from_fields: usize,
    /// The domain whose DMARC record was found.
    pub dmarc_domain: Option<String>,
    /// That record as it is in the DNS, for reports.
    pub dmarc_record: Option<String>,
}

impl Authentication {
    /// The results for a message that was not examined.
    pub const UNKNOWN: Self = Self {
        spf: Outcome::None,
        spf_domain: String::new(),
        dkim: Vec::new(),
        arc: Outcome::None,
        arc_domain: None,
        dmarc: Outcome::None,
        is_spf_aligned: false,
        is_dkim_aligned: false,
        policy: DmarcPolicy::None,
        from: None,
        from_fields: 0,
        dmarc_domain: None,
        dmarc_record: None,
    };
}

impl Outcome {
    /// The keyword in `Authentication-Results`, and a label of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::SoftFail => "softfail",
            Self::Neutral => "neutral",
            Self::TempError => "temperror",
            Self::PermError => "permerror",
        }
    }
}

impl DmarcPolicy {
    /// The keyword in records and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Quarantine => "quarantine",
            Self::Reject => "reject",
        }
    }
}

#[cfg(test)]
mod tests;
