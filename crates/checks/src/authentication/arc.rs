//! The chain of servers that passed a message on (RFC 8617).

use restante_mail_wire::canonical::Canonical;

use super::{
    Outcome,
    dkim::{BodyHashes, Keys, NoKey, Seal, Signature},
    message::{Field, Message},
    tags::Tags,
};

/// The most sets of a chain (RFC 8617 §4.2.1).
const SETS_MAX: usize = 50;
const RESULTS: &str = "arc-authentication-results";
const SIGNATURE: &str = "arc-message-signature";
const SEAL: &str = "arc-seal";

/// A chain before its keys are known.
#[derive(Clone, Debug)]
pub(super) enum Chain {
    /// There is none.
    None,
    /// It is invalid, whatever its keys are. With the domain of the last seal, if it can be parsed.
    Broken(Option<String>),
    /// Its sets in order: each seal, the signature of the last set, and the fields that they come from.
    Whole(Vec<Set>),
}

/// The fields with one `i=`: their indexes, and their parsed content.
#[derive(Clone, Debug)]
pub(super) struct Set {
    results: usize,
    signature: usize,
    seal: usize,
    sealed: Seal,
    /// Only for the last set.
    signed: Option<Signature>,
}

/// A field of a set: its index among the fields of its name, and its `i=`.
struct Instance<'m> {
    number: usize,
    instance: usize,
    tags: Option<Tags<'m>>,
}

/// Parses the chain of a message, and compares the body hash. `now` is in seconds since 1970.
pub(super) fn read(message: &Message, hashes: &mut BodyHashes, now: u64) -> Chain {
    let count = message.all(SEAL).len();
    let counts = [message.all(RESULTS).len(), message.all(SIGNATURE).len(), count];
    if counts == [0, 0, 0] {
        return Chain::None;
    }
    let is_complete = counts.iter().all(|other| *other == count);
    if !is_complete || count > SETS_MAX {
        return Chain::Broken(None);
    }
    let sets = sets(message, count, hashes, now);
    match sets {
        Ok(sets) => Chain::Whole(sets),
        Err(domain) => Chain::Broken(domain),
    }
}

fn sets(
    message: &Message,
    count: usize,
    hashes: &mut BodyHashes,
    now: u64,
) -> Result<Vec<Set>, Option<String>> {
    let seals = instances(message, SEAL, count, true).ok_or(None)?;
    let signatures = instances(message, SIGNATURE, count, true).ok_or(None)?;
    let results = instances(message, RESULTS, count, false).ok_or(None)?;
    let last = seals.last().and_then(|last| last.tags.as_ref()).and_then(Seal::read);
    let domain = last.map(|seal| seal.domain);
    let broken = || domain.clone();
    let mut sets = Vec::with_capacity(count);
    for ((results, signature), seal) in results.iter().zip(&signatures).zip(&seals) {
        let tags = seal.tags.as_ref().ok_or_else(broken)?;
        // RFC 8617 §5.2: the first seal saw no chain, all others a valid one.
        let expected = if seal.instance == 1 { "none" } else { "pass" };
        if tags.get("cv") != Some(expected) || tags.get("h").is_some() {
            return Err(broken());
        }
        let sealed = Seal::read(tags).ok_or_else(broken)?;
        let signed = if seal.instance == count {
            let signed = signature.tags.as_ref().and_then(Signature::read).ok_or_else(broken)?;
            // RFC 8617 §4.1.2: this signature doesn't cover the seals.
            let signs_seals = signed.names.iter().any(|name| name == SEAL);
            let has_flaw = signed.flaw(&hashes.get(message, signed.body_form), now).is_some();
            if signs_seals || has_flaw {
                return Err(broken());
            }
            Some(signed)
        } else {
            None
        };
        let (results, signature, seal) = (results.number, signature.number, seal.number);
        sets.push(Set { results, signature, seal, sealed, signed });
    }
    Ok(sets)
}

/// The fields of a name in the order of their `i=`, which must be 1 to `count`.
fn instances<'m>(
    message: &'m Message,
    name: &str,
    count: usize,
    has_tags: bool,
) -> Option<Vec<Instance<'m>>> {
    let mut found = Vec::with_capacity(count);
    for (number, field) in message.all(name).enumerate() {
        let text = std::str::from_utf8(field.value).ok()?;
        // In ARC-Authentication-Results, what follows the `i=` tag is not a list of tags.
        let tags = if has_tags { Some(Tags::parse(text)?) } else { None };
        let instance = match &tags {
            Some(tags) => tags.get("i")?,
            None => {
                let (name, value) = text.split(';').next()?.split_once('=')?;
                if name.trim_ascii() != "i" {
                    return None;
                }
                value.trim_ascii()
            }
        };
        let is_number = instance.len() <= 2 && instance.bytes().all(|byte| byte.is_ascii_digit());
        let instance = if is_number { instance.parse().ok()? } else { return None };
        found.push(Instance { number, instance, tags });
    }
    found.sort_by_key(|field| field.instance);
    let is_sequence = found.iter().enumerate().all(|(at, field)| field.instance == at + 1);
    is_sequence.then_some(found)
}

impl Chain {
    /// The names of the keys that it needs.
    pub(super) fn key_names(&self) -> Vec<String> {
        let Self::Whole(sets) = self else {
            return Vec::new();
        };
        let signed = sets.iter().filter_map(|set| set.signed.as_ref()).map(|signed| signed.seal.key_name());
        sets.iter().map(|set| set.sealed.key_name()).chain(signed).collect()
    }
}

/// Verifies a chain with its keys: the outcome, and the domain that sealed it last.
pub(super) fn verify(message: &Message, chain: Chain, keys: &Keys) -> (Outcome, Option<String>) {
    let sets = match chain {
        Chain::None => return (Outcome::None, None),
        Chain::Broken(domain) => return (Outcome::Fail, domain),
        Chain::Whole(sets) => sets,
    };
    let domain = sets.last().map(|set| set.sealed.domain.clone());
    let mut outcome = Outcome::Pass;
    for (at, set) in sets.iter().enumerate().rev() {
        let earlier = sets.get(..at).unwrap_or_default();
        match verify_set(message, earlier, set, keys) {
            Outcome::Pass => {}
            // A set that is known to be wrong outweighs one that is not known now.
            Outcome::TempError => outcome = Outcome::TempError,
            _ => return (Outcome::Fail, domain),
        }
    }
    (outcome, domain)
}

fn verify_set(message: &Message, earlier: &[Set], set: &Set, keys: &Keys) -> Outcome {
    let field = |name: &str, number: usize| message.all(name).nth(number);
    if let Some(signed) = &set.signed {
        let Some(own) = field(SIGNATURE, set.signature) else {
            return Outcome::Fail;
        };
        let data = message.signed_data(&signed.names, own, signed.header_form);
        let outcome = verify_seal(&signed.seal, &data, keys);
        if outcome != Outcome::Pass {
            return outcome;
        }
    }
    // RFC 8617 §5.1.1: all sets up to this one, the last seal with an empty `b=`.
    let mut data = Vec::with_capacity(2_048);
    let append = |field: Option<Field<'_>>, data: &mut Vec<u8>| {
        if let Some(field) = field {
            field.append(Canonical::Relaxed, data);
            data.extend_from_slice(b"\r\n");
        }
    };
    for earlier in earlier {
        append(field(RESULTS, earlier.results), &mut data);
        append(field(SIGNATURE, earlier.signature), &mut data);
        append(field(SEAL, earlier.seal), &mut data);
    }
    append(field(RESULTS, set.results), &mut data);
    append(field(SIGNATURE, set.signature), &mut data);
    if let Some(own) = field(SEAL, set.seal) {
        own.append_unsigned(Canonical::Relaxed, &mut data);
    }
    verify_seal(&set.sealed, &data, keys)
}

fn verify_seal(seal: &Seal, data: &[u8], keys: &Keys) -> Outcome {
    match keys.get(&seal.key_name()) {
        Some(Ok(key)) if key.verifies(seal.algorithm, data, &seal.signature) => Outcome::Pass,
        Some(Ok(_) | Err(NoKey::Permanent)) => Outcome::Fail,
        Some(Err(NoKey::Temporary)) | None => Outcome::TempError,
    }
}
