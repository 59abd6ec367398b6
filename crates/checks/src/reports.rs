//! The input of DMARC aggregate reports (RFC 7489 §7.2).

mod config;

use std::net::IpAddr;

pub use self::config::ReportsConfig;
use crate::Authentication;

/// How a message was treated by its sender's policy (RFC 7489 appendix C, `DispositionType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// Nothing.
    None,
    /// It went to Junk or into the quarantine.
    Quarantine,
    /// It was refused.
    Reject,
}

/// Why a message was not treated as its sender's policy requests (RFC 7489 appendix C, `PolicyOverrideType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyOverride {
    /// A forwarder that the operator trusts vouches for it: `trusted_forwarder`.
    TrustedForwarder,
    /// This server has another policy for such mail: `local_policy`.
    LocalPolicy,
}

/// The result of DMARC for a message whose `From` domain has a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmarcSeen {
    /// Where it came from.
    pub address: IpAddr,
    /// The envelope sender, empty for `<>`.
    pub sender: String,
    /// When it was received, in seconds since 1970.
    pub received: u64,
    /// The results; `from`, `dmarc_domain` and `dmarc_record` are set.
    pub authentication: Authentication,
    /// How it was treated by the policy.
    pub disposition: Disposition,
    /// Why it was not treated as the policy requests, if it was not.
    pub overridden: Option<PolicyOverride>,
}

/// Collects the input of aggregate reports.
pub trait ReportSink: Send + Sync + 'static {
    /// Notes a message without waiting: what can't be noted now is left out of reports, and counted.
    fn note(&self, seen: DmarcSeen);
}
