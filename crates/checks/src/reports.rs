//! What aggregate reports of DMARC are made of (RFC 7489 §7.2).

mod config;

use std::net::IpAddr;

pub use self::config::ReportsConfig;
use crate::Authentication;

/// What became of a message by its sender's policy (RFC 7489 appendix C, `DispositionType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// Nothing.
    None,
    /// It went to Junk or into the quarantine.
    Quarantine,
    /// It was refused.
    Reject,
}

/// Why a message was not treated as its sender's policy asks (RFC 7489 appendix C, `PolicyOverrideType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyOverride {
    /// A forwarder that the operator trusts vouches for it: `trusted_forwarder`.
    TrustedForwarder,
    /// This server treats such mail otherwise: `local_policy`.
    LocalPolicy,
}

/// What DMARC found of a message whose `From` domain has a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmarcSeen {
    /// Where it came from.
    pub address: IpAddr,
    /// The envelope sender, empty for `<>`.
    pub sender: String,
    /// When it was received, in seconds since 1970.
    pub received: u64,
    /// What was found; `from`, `dmarc_domain` and `dmarc_record` are there.
    pub authentication: Authentication,
    /// What became of it by the policy.
    pub disposition: Disposition,
    /// Why it is not what the policy asks for, if it is not.
    pub overridden: Option<PolicyOverride>,
}

/// Takes what aggregate reports are made of.
pub trait ReportSink: Send + Sync + 'static {
    /// Notes a message. It does not wait: what can't be noted now is left out of reports, and counted.
    fn note(&self, seen: DmarcSeen);
}
