//! Whose domain answers for a message: SPF (RFC 7208), DKIM (RFC 6376), ARC (RFC 8617) and DMARC (RFC 7489).
//!
//! All names are looked up through [`restante_net::dns::Resolver`], which says for certain that something is not there, or that nothing is known now. A name server that is
//! slow, away or lies makes an outcome `TempError`, never one by which a message is refused.

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

/// The outcome of a check, with the words of RFC 8601 §2.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The domain did not say anything.
    None,
    /// The domain answers for the message.
    Pass,
    /// The domain says that it does not.
    Fail,
    /// The domain says that it probably does not.
    SoftFail,
    /// The domain says nothing about it, or what it says can't be used.
    Neutral,
    /// Not known now.
    TempError,
    /// The domain's records can't be understood.
    PermError,
}

/// What the owner of a domain asks for when DMARC fails.
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
    /// `d=`, empty when it can't be read.
    pub domain: String,
    /// `s=`, empty when it can't be read.
    pub selector: String,
    /// The beginning of `b=`, which tells signatures of one domain and selector apart (RFC 6008).
    pub signature: String,
    /// Whether it holds. `Neutral` when it can't be verified, or holds for a part of the body alone.
    pub outcome: Outcome,
}

/// What was found of the sender of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// SPF of the envelope sender, or of the name of the client for `<>`.
    pub spf: Outcome,
    /// The domain that SPF was asked for.
    pub spf_domain: String,
    /// Each signature that was looked at.
    pub dkim: Vec<DkimSignature>,
    /// The chain of ARC.
    pub arc: Outcome,
    /// The domain that sealed it last.
    pub arc_domain: Option<String>,
    /// DMARC.
    pub dmarc: Outcome,
    /// Whether SPF passed for a domain that belongs to that of `From`.
    pub is_spf_aligned: bool,
    /// Whether a signature of such a domain holds.
    pub is_dkim_aligned: bool,
    /// What the domain asks for when DMARC fails, with `pct` (RFC 7489 §6.3) applied.
    pub policy: DmarcPolicy,
    /// The domain in the `From` field; none when there is not exactly one such field with one domain.
    pub from: Option<String>,
    /// How many `From` fields the message has.
    pub from_fields: usize,
    /// The domain whose DMARC record was found.
    pub dmarc_domain: Option<String>,
    /// That record as it is in the DNS, for reports.
    pub dmarc_record: Option<String>,
}

impl Authentication {
    /// Of a message that was not looked at.
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
    /// Its word in `Authentication-Results`, and a label of metrics.
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
    /// Its word in records and reports.
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
