//! Signatures of a message by domains (RFC 6376).

mod key;
mod signature;

use restante_mail_wire::canonical::Canonical;

pub(super) use self::{
    key::{Keys, NoKey, look_up},
    signature::{Flaw, Seal, Signature},
};
use super::{
    DkimSignature, Outcome,
    message::{BodyHash, Message},
    names,
    tags::Tags,
};

/// The most signatures that are verified, from the top, where the last ones were added (RFC 6376 §6.1).
const SIGNATURES_MAX: usize = 10;
/// How much of `b=` is reported (RFC 6008 §3).
const REPORTED_BYTES: usize = 16;
const FIELD: &str = "dkim-signature";

/// The hashes of a body, one for each canonical form that is needed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BodyHashes {
    simple: Option<BodyHash>,
    relaxed: Option<BodyHash>,
}

impl BodyHashes {
    pub(super) fn get(&mut self, message: &Message, form: Canonical) -> BodyHash {
        let hash = match form {
            Canonical::Simple => &mut self.simple,
            Canonical::Relaxed => &mut self.relaxed,
        };
        *hash.get_or_insert_with(|| message.body_hash(form))
    }
}

/// A signature before its key is known.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    report: DkimSignature,
    /// `None` if its outcome is already known.
    signature: Option<Unverified>,
}

#[derive(Clone, Debug)]
struct Unverified {
    /// Its index among the fields of its name.
    number: usize,
    signature: Signature,
    /// Whether the domain of `i=` is that of `d=`, and not a subdomain.
    is_of_domain_itself: bool,
}

/// Parses the signatures of a message, and compares the body hashes. `now` is in seconds since 1970.
pub(super) fn read(message: &Message, hashes: &mut BodyHashes, now: u64) -> Vec<Candidate> {
    let fields = message.all(FIELD).take(SIGNATURES_MAX).enumerate();
    fields.map(|(number, field)| candidate(number, field.value, message, hashes, now)).collect()
}

fn candidate(number: usize, value: &[u8], message: &Message, hashes: &mut BodyHashes, now: u64) -> Candidate {
    let mut report = DkimSignature {
        domain: String::new(),
        selector: String::new(),
        signature: String::new(),
        outcome: Outcome::Neutral,
    };
    let tags = std::str::from_utf8(value).ok().and_then(Tags::parse);
    let Some(tags) = tags else {
        return Candidate { report, signature: None };
    };
    let name = |tag| tags.get(tag).and_then(names::ascii);
    report.domain = name("d").filter(|domain| names::is_domain(domain)).unwrap_or_default();
    report.selector = name("s").unwrap_or_default();
    let signature_bytes =
        tags.get("b").unwrap_or_default().chars().filter(|byte| !byte.is_ascii_whitespace());
    report.signature = signature_bytes.take(REPORTED_BYTES).collect();
    let signature = if tags.get("v") == Some("1") { Signature::read(&tags) } else { None };
    let Some(signature) = signature else {
        return Candidate { report, signature: None };
    };
    // RFC 6376 §3.5: the domain of `i=` is that of `d=` or a subdomain.
    let agent = match tags.get("i") {
        Some(agent) => agent.rsplit_once('@').and_then(|(_, domain)| names::ascii(domain)),
        None => Some(signature.seal.domain.clone()),
    };
    let Some(agent) = agent.filter(|agent| names::is_within(agent, &signature.seal.domain)) else {
        return Candidate { report, signature: None };
    };
    let is_of_domain_itself = agent == signature.seal.domain;
    match signature.flaw(&hashes.get(message, signature.body_form), now) {
        Some(Flaw::Broken) => report.outcome = Outcome::Fail,
        Some(Flaw::Partial) => report.outcome = Outcome::Neutral,
        None => {
            let signature = Some(Unverified { number, signature, is_of_domain_itself });
            return Candidate { report, signature };
        }
    }
    Candidate { report, signature: None }
}

impl Candidate {
    /// The name of the key that it needs.
    pub(super) fn key_name(&self) -> Option<String> {
        self.signature.as_ref().map(|unverified| unverified.signature.seal.key_name())
    }
}

/// Verifies signatures with their keys.
pub(super) fn verify(message: &Message, candidates: Vec<Candidate>, keys: &Keys) -> Vec<DkimSignature> {
    let mut reports = Vec::with_capacity(candidates.len());
    for Candidate { mut report, signature } in candidates {
        if let Some(unverified) = signature {
            report.outcome = outcome(message, &unverified, keys);
        }
        reports.push(report);
    }
    reports
}

fn outcome(message: &Message, unverified: &Unverified, keys: &Keys) -> Outcome {
    let Unverified { number, signature, is_of_domain_itself } = unverified;
    let key = match keys.get(&signature.seal.key_name()) {
        Some(Ok(key)) => key,
        Some(Err(NoKey::Permanent)) => return Outcome::PermError,
        Some(Err(NoKey::Temporary)) | None => return Outcome::TempError,
    };
    if key.is_test {
        return Outcome::Neutral; // RFC 6376 §3.6.1: not treated differently from unsigned mail
    }
    if key.is_strict && !is_of_domain_itself {
        return Outcome::PermError; // RFC 6376 §3.6.1
    }
    let Some(own) = message.all(FIELD).nth(*number) else {
        return Outcome::Neutral;
    };
    let data = message.signed_data(&signature.names, own, signature.header_form);
    let Seal { algorithm, signature, .. } = &signature.seal;
    if key.verifies(*algorithm, &data, signature) { Outcome::Pass } else { Outcome::Fail }
}
