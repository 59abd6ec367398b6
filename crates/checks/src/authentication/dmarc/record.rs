//! The policy that the owner of a domain requests (RFC 7489 §6.3, RFC 9989 §4.7).

use crate::authentication::{DmarcPolicy, tags::Tags};

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// For the domain itself; `None` if the requested policy is unknown.
    policy: Option<DmarcPolicy>,
    /// For domains below it.
    subdomain_policy: Option<DmarcPolicy>,
    /// For domains below it that do not exist.
    missing_policy: Option<DmarcPolicy>,
    pub(super) is_spf_strict: bool,
    pub(super) is_dkim_strict: bool,
    /// To how many of a hundred messages the policy applies.
    pub(super) percent: u8,
    /// The policy is in test mode: one level less is requested.
    pub(super) is_test: bool,
    /// Whether the domain is a public suffix; `None` if the record doesn't say.
    pub(super) is_public_suffix: Option<bool>,
    has_reports: bool,
    /// As it is in the DNS.
    pub(super) text: String,
}

/// For which kind of domain a policy is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Domain,
    Subdomain,
    MissingSubdomain,
}

impl Record {
    /// Parses a record. `None` if the text is not one, which counts as missing (RFC 7489 §6.6.3).
    pub(super) fn parse(text: &str) -> Option<Self> {
        let tags = Tags::parse(text)?;
        if tags.first() != Some(("v", "DMARC1")) {
            return None;
        }
        let policy = |tag| match tags.get(tag).map(str::to_ascii_lowercase).as_deref() {
            Some("none") => Some(DmarcPolicy::None),
            Some("quarantine") => Some(DmarcPolicy::Quarantine),
            Some("reject") => Some(DmarcPolicy::Reject),
            _ => None,
        };
        let is = |tag, value: &str| tags.get(tag).is_some_and(|found| found.eq_ignore_ascii_case(value));
        let percent = tags.number("pct").ok().flatten().unwrap_or(100).min(100);
        let is_public_suffix = match () {
            () if is("psd", "y") => Some(true),
            () if is("psd", "n") => Some(false),
            () => None,
        };
        Some(Self {
            policy: policy("p"),
            subdomain_policy: policy("sp"),
            missing_policy: policy("np"),
            is_spf_strict: is("aspf", "s"),
            is_dkim_strict: is("adkim", "s"),
            percent: u8::try_from(percent).unwrap_or(100),
            is_test: is("t", "y"),
            is_public_suffix,
            has_reports: tags.get("rua").is_some_and(|addresses| !addresses.is_empty()),
            text: text.to_owned(),
        })
    }

    /// The requested policy. `None` if the record contains nothing that can be used (RFC 7489 §6.6.3).
    pub(super) fn policy(&self, whose: Whose) -> Option<DmarcPolicy> {
        let chosen = match whose {
            Whose::Domain => self.policy,
            Whose::Subdomain => self.subdomain_policy.or(self.policy),
            Whose::MissingSubdomain => self.missing_policy.or(self.subdomain_policy).or(self.policy),
        };
        chosen.or(self.has_reports.then_some(DmarcPolicy::None))
    }

    /// Whether the policy for a subdomain depends on whether the subdomain exists.
    pub(super) fn has_missing_policy(&self) -> bool {
        self.missing_policy.is_some() && self.missing_policy != self.subdomain_policy.or(self.policy)
    }
}
