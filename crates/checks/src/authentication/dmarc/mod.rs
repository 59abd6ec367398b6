//! Whether the domain in `From` is authenticated, and which policy its owner requests (RFC 7489; records are found by the tree
//! walk of RFC 9989 §4.10, which needs no list of public suffixes).

mod record;

use aws_lc_rs::digest::{SHA256, digest};
use restante_net::dns::{Answer, Resolver};

use self::record::{Record, Whose};
use super::{Authentication, DmarcPolicy, Outcome, names};

/// Parent domains with more labels are not queried for a record (RFC 9989 §4.10).
const LABELS_MAX: usize = 7;
/// How much of a message determines whether it is sampled, that is, whether the requested policy applies to it.
const SAMPLE_BYTES: usize = 64 << 10;

/// The records found on the way from a domain to the root.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    domain: String,
    /// With their domains, the longest first.
    records: Vec<(String, Record)>,
    /// Whether a name could not be looked up: there may be more records.
    is_incomplete: bool,
}

/// Looks for the records of a domain and of those above it.
pub(super) async fn walk(resolver: &dyn Resolver, domain: &str) -> Walk {
    let mut walk = Walk { domain: domain.to_owned(), records: Vec::new(), is_incomplete: false };
    let mut rest = Some(domain);
    while let Some(name) = rest {
        let texts = match resolver.txt(&format!("_dmarc.{name}")).await {
            Answer::Found(texts) => texts,
            Answer::NoSuchName | Answer::NoRecords => Vec::new(),
            Answer::Temporary(_) => {
                walk.is_incomplete = true;
                Vec::new()
            }
        };
        let mut records = texts.iter().filter_map(|text| Record::parse(text));
        // RFC 7489 §6.6.3: several records count as none.
        if let (Some(record), None) = (records.next(), records.next()) {
            let ends = record.is_public_suffix.is_some();
            walk.records.push((name.to_owned(), record));
            if ends {
                break;
            }
        }
        rest = parent(name);
        let labels = |name: &str| name.split('.').count();
        while let Some(longer) = rest.filter(|name| labels(name) > LABELS_MAX) {
            rest = parent(longer);
        }
    }
    walk
}

fn parent(name: &str) -> Option<&str> {
    name.split_once('.').map(|(_, parent)| parent)
}

impl Walk {
    /// The domain of the organization (RFC 9989 §4.10.2).
    fn organization(&self) -> &str {
        for (name, record) in &self.records {
            match record.is_public_suffix {
                Some(false) => return name,
                Some(true) if *name != self.domain => return below(name, &self.domain),
                _ => {}
            }
        }
        self.records.last().map_or(&self.domain, |(name, _)| name)
    }

    /// The record that is used, its domain, and whether that is the domain of the walk (RFC 9989 §4.10.1).
    fn record(&self) -> Option<(&str, &Record, bool)> {
        let organization = self.organization();
        let of = |domain: &str| self.records.iter().find(|(name, _)| name == domain);
        let found = of(&self.domain).or_else(|| of(organization)).or_else(|| self.records.last())?;
        Some((&found.0, &found.1, found.0 == self.domain))
    }
}

/// The domain one label below a public suffix, on the way to `domain`.
fn below<'d>(suffix: &str, domain: &'d str) -> &'d str {
    let mut name = domain;
    while let Some(shorter) = parent(name) {
        if shorter == suffix {
            break;
        }
        name = shorter;
    }
    name
}

/// Evaluates DMARC from the other results: fills in its fields in `found`. `walk` is that of the domain in `From`.
pub(super) async fn judge(resolver: &dyn Resolver, walk: &Walk, raw: &[u8], found: &mut Authentication) {
    let Some((domain, record, is_own)) = walk.record() else {
        found.dmarc = if walk.is_incomplete { Outcome::TempError } else { Outcome::None };
        return;
    };
    // A record that could not be looked up may be the domain's own, with another policy.
    if walk.is_incomplete && !is_own {
        found.dmarc = Outcome::TempError;
        return;
    }
    let whose = match is_own {
        true => Whose::Domain,
        false if record.has_missing_policy() && is_missing(resolver, &walk.domain).await => {
            Whose::MissingSubdomain
        }
        false => Whose::Subdomain,
    };
    let Some(policy) = record.policy(whose) else {
        found.dmarc = Outcome::None;
        return;
    };
    found.dmarc_domain = Some(domain.to_owned());
    found.dmarc_record = Some(record.text.clone());
    found.policy = sampled(policy, record, raw);

    let mut spf = Outcome::None;
    if matches!(found.spf, Outcome::Pass | Outcome::TempError) {
        let aligned = alignment(resolver, walk, &found.spf_domain, record.is_spf_strict).await;
        spf = both(aligned, found.spf);
    }
    let mut dkim = Outcome::None;
    for signature in &found.dkim {
        if dkim != Outcome::Pass && matches!(signature.outcome, Outcome::Pass | Outcome::TempError) {
            let aligned = alignment(resolver, walk, &signature.domain, record.is_dkim_strict).await;
            let outcome = both(aligned, signature.outcome);
            if outcome != Outcome::None {
                dkim = outcome;
            }
        }
    }
    found.is_spf_aligned = spf == Outcome::Pass;
    found.is_dkim_aligned = dkim == Outcome::Pass;
    found.dmarc = match (spf, dkim) {
        (Outcome::Pass, _) | (_, Outcome::Pass) => Outcome::Pass,
        // RFC 7489 §6.6.2: a check that may pass later is not a failure.
        (Outcome::TempError, _) | (_, Outcome::TempError) => Outcome::TempError,
        _ => Outcome::Fail,
    };
}

/// The outcome for an identifier: `None` if it is not aligned.
fn both(aligned: Option<bool>, outcome: Outcome) -> Outcome {
    match aligned {
        Some(true) => outcome,
        Some(false) => Outcome::None,
        None => Outcome::TempError,
    }
}

/// Whether a domain is aligned with that of `From` (RFC 9989 §4.10.2); `None` if that is not known now.
async fn alignment(resolver: &dyn Resolver, from: &Walk, domain: &str, is_strict: bool) -> Option<bool> {
    if domain == from.domain {
        return Some(true);
    }
    if is_strict {
        return Some(false);
    }
    // The organizational domain may be one whose record could not be looked up.
    if from.is_incomplete {
        return None;
    }
    let organization = from.organization();
    // Nothing is looked up for a domain that can't have the same organizational domain: senders choose it freely.
    if !names::is_within(domain, organization) {
        return Some(false);
    }
    // Each of the domains on the way from `From` up to its organizational domain also has that one.
    if names::is_within(&from.domain, domain) {
        return Some(true);
    }
    let other = walk(resolver, domain).await;
    if other.is_incomplete { None } else { Some(other.organization() == organization) }
}

/// Whether a domain does not exist at all.
async fn is_missing(resolver: &dyn Resolver, domain: &str) -> bool {
    matches!(resolver.ipv4_addresses(domain).await, Answer::NoSuchName)
}

/// The policy for this message: one level less if it is not sampled (RFC 7489 §6.6.4), or if the policy is in test mode.
fn sampled(policy: DmarcPolicy, record: &Record, raw: &[u8]) -> DmarcPolicy {
    let is_sampled = record.percent >= 100 || {
        // The sample depends on the content, so that the message gets the same policy when it is sent again.
        let sample = digest(&SHA256, raw.get(..SAMPLE_BYTES).unwrap_or(raw));
        let number =
            sample.as_ref().iter().take(4).fold(0_u32, |number, byte| (number << 8) | u32::from(*byte));
        number % 100 < u32::from(record.percent)
    };
    if is_sampled && !record.is_test {
        return policy;
    }
    match policy {
        DmarcPolicy::Reject => DmarcPolicy::Quarantine,
        DmarcPolicy::Quarantine | DmarcPolicy::None => DmarcPolicy::None,
    }
}
