//! ARC sets on forwarded mail (RFC 8617): the results of this server's checks before it forwarded the message.

use std::collections::BTreeMap;

use restante_core::Error;
use restante_directory::Domain;
use restante_mail_wire::header::{Field, Header};

use super::{
    canonical,
    signature::{self, SAME_NAME_MAX, SigningKey},
};

/// The most sets of a message (RFC 8617 §4.2.1).
const SETS_MAX: u32 = 50;
const RESULTS: &str = "ARC-Authentication-Results";
const SIGNATURE: &str = "ARC-Message-Signature";
const SEAL: &str = "ARC-Seal";
/// The fields of a set, in the order in which they are sealed (RFC 8617 §5.1.1).
const NAMES: [&str; 3] = [RESULTS, SIGNATURE, SEAL];

/// The domain of the alias that a forwarded message came to: its first field is the `Delivered-To` of this server.
pub(super) fn alias_domain(message: &[u8]) -> Option<Domain> {
    let first = Header::parse(message).fields().next().filter(|field| field.is("Delivered-To"))?;
    let address = std::str::from_utf8(first.value).ok()?;
    let (_, domain) = address.trim().rsplit_once('@')?;
    domain.parse().ok()
}

/// Seals a message with a new set.
pub(super) struct Sealer<'s> {
    pub(super) key: &'s SigningKey,
    pub(super) domain: &'s str,
    /// The name of this server in `Authentication-Results`.
    pub(super) hostname: &'s str,
    /// In seconds since 1970.
    pub(super) now: i64,
}

/// `cv=`: the validation status of the earlier sets (RFC 8617 §4.4).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Validation {
    None,
    Pass,
    Fail,
}

impl Validation {
    fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pass => "pass",
            Self::Fail => "fail",
        }
    }
}

impl Sealer<'_> {
    /// The fields of a new set in their order in the message, each ended by CRLF. Empty for a message whose chain has failed
    /// before, is full, or was not validated by this server.
    pub(super) fn set(&self, header: &Header<'_>, body_hash: &[u8]) -> Result<Vec<u8>, Error> {
        let found = own_results(header, self.hostname);
        let chain = Chain::read(header);
        let Some(validation) = chain.validation(found.and_then(arc_result).as_deref()) else {
            return Ok(Vec::new());
        };
        let instance = chain.highest + 1;
        if instance > SETS_MAX {
            return Ok(Vec::new());
        }
        let results = match found {
            Some(found) => String::from_utf8_lossy(found).trim().to_owned(),
            None => format!("{}; none", self.hostname),
        };
        let results = format!(" i={instance};\r\n\t{results}");
        let (value, signature) = self.signature(instance, header, body_hash)?;
        let signature = signature::with_signature(SIGNATURE, &value, &signature);
        let seal = self.seal(instance, validation, &chain, &results, &signature)?;
        Ok([seal, signature, format!("{RESULTS}:{results}\r\n").into_bytes()].concat())
    }

    /// The value of the `ARC-Message-Signature` up to an empty `b=`, and the signature.
    fn signature(
        &self,
        instance: u32,
        header: &Header<'_>,
        body_hash: &[u8],
    ) -> Result<(String, Vec<u8>), Error> {
        let mut names = signature::signed_names(header);
        // RFC 8617 §4.1.2: signatures of others may be covered, but other ARC fields may not.
        let signatures = header.all("DKIM-Signature").take(SAME_NAME_MAX).count();
        names.extend(std::iter::repeat_n("DKIM-Signature", signatures));
        let first_tag = format!("i={instance}");
        let value = signature::unsigned_value(&first_tag, self.key, self.domain, &names, body_hash, self.now);
        let signed = self.key.pair.sign(&signature::signed_data(header, &names, SIGNATURE, &value))?;
        Ok((value, signed))
    }

    /// The `ARC-Seal`, which covers all sets, or only the new one if the chain has failed (RFC 8617 §5.1.2).
    fn seal(
        &self,
        instance: u32,
        validation: Validation,
        chain: &Chain<'_>,
        results: &str,
        signature: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let Self { key, domain, now, .. } = self;
        let (algorithm, selector, cv) = (key.pair.algorithm().name(), &key.selector, validation.as_str());
        let value = format!(
            " i={instance}; a={algorithm}; t={now}; cv={cv};\r\n\td={domain};\r\n\ts={selector};\r\n\tb="
        );
        let mut data = Vec::with_capacity(4_096);
        let mut add = |name: &str, value: &[u8]| {
            canonical::field(name, value, &mut data);
            data.extend_from_slice(b"\r\n");
        };
        if validation == Validation::Pass {
            for (name, field) in chain.sets.values().flat_map(|set| NAMES.iter().zip(set)) {
                add(name, field.map(|field| field.value).unwrap_or_default());
            }
        }
        add(RESULTS, results.as_bytes());
        add(SIGNATURE, signature.get(SIGNATURE.len() + 1..).unwrap_or_default());
        canonical::field(SEAL, value.as_bytes(), &mut data);
        Ok(signature::with_signature(SEAL, &value, &key.pair.sign(&data)?))
    }
}

/// The sets that a message arrived with.
#[derive(Default)]
struct Chain<'m> {
    /// The fields of each instance, in the order of [`NAMES`].
    sets: BTreeMap<u32, [Option<Field<'m>>; 3]>,
    highest: u32,
    /// Whether a field has no instance, or the same one as another.
    is_malformed: bool,
}

impl<'m> Chain<'m> {
    fn read(header: &Header<'m>) -> Self {
        let mut chain = Self::default();
        for field in header.fields() {
            let Some(at) = NAMES.iter().position(|name| field.is(name)) else { continue };
            let Some(instance) = instance(&field) else {
                chain.is_malformed = true;
                continue;
            };
            chain.highest = chain.highest.max(instance);
            let known = chain.sets.entry(instance).or_default().get_mut(at);
            chain.is_malformed |= known.is_some_and(|known| known.replace(field).is_some());
        }
        chain
    }

    /// Whether all fields of all sets exist, from the first set to the highest.
    fn is_whole(&self) -> bool {
        let is_each_there = self.sets.keys().copied().eq(1..=self.highest);
        is_each_there && !self.is_malformed && self.sets.values().flatten().all(Option::is_some)
    }

    /// The status of this chain, by the result that this server has found. `None` when no set may be added: this server has not
    /// validated the chain, or the chain has failed before (RFC 8617 §5.1.2).
    fn validation(&self, found: Option<&str>) -> Option<Validation> {
        if self.sets.is_empty() && !self.is_malformed {
            return Some(Validation::None);
        }
        let last = self.sets.values().next_back().and_then(|[_, _, seal]| seal.as_ref());
        let has_failed_before = last.is_some_and(|seal| tag(seal.value, "cv").as_deref() == Some("fail"));
        match found {
            _ if has_failed_before => None,
            Some("pass") => self.is_whole().then_some(Validation::Pass),
            // A permanent failure to verify has no result of its own in RFC 8617 §4.4.
            Some("fail" | "neutral" | "permerror" | "policy") => Some(Validation::Fail),
            _ => None,
        }
    }
}

/// `i=`: from 1 to 50. In `ARC-Authentication-Results` it comes first.
fn instance(field: &Field<'_>) -> Option<u32> {
    let first = match field.is(RESULTS) {
        true => field.value.split(|byte| *byte == b';').next()?,
        false => field.value,
    };
    let number: u32 = tag(first, "i")?.parse().ok()?;
    (1..=SETS_MAX).contains(&number).then_some(number)
}

/// The content of a tag (RFC 6376 §3.2), in lowercase.
fn tag(value: &[u8], name: &str) -> Option<String> {
    let value = String::from_utf8_lossy(value);
    let tags = value.split(';').filter_map(|tag| tag.split_once('='));
    let mut found = tags.filter(|(known, _)| known.trim() == name);
    found.next().map(|(_, content)| content.trim().to_ascii_lowercase())
}

/// The value of the `Authentication-Results` field that this server has added to the message, above the `Received` fields of others.
fn own_results<'m>(header: &Header<'m>, hostname: &str) -> Option<&'m [u8]> {
    let mut received = 0;
    for field in header.fields() {
        received += usize::from(field.is("Received"));
        if received > 1 {
            return None;
        }
        if field.is("Authentication-Results") && is_of(field.value, hostname) {
            return Some(field.value);
        }
    }
    None
}

/// Whether results come from a server: their first word is its name (RFC 8601 §2.2).
fn is_of(value: &[u8], hostname: &str) -> bool {
    let value = value.trim_ascii_start();
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b';' | b'(');
    let end = value.iter().position(is_end).unwrap_or(value.len());
    value.get(..end).is_some_and(|name| name.eq_ignore_ascii_case(hostname.as_bytes()))
}

/// The result of `arc` in `Authentication-Results`.
fn arc_result(value: &[u8]) -> Option<String> {
    let found = results(value).into_iter().find_map(|result| {
        let (method, rest) = result.split_once('=')?;
        method.trim().eq_ignore_ascii_case("arc").then(|| rest.trim_start().to_owned())
    })?;
    let word: String = found.chars().take_while(char::is_ascii_alphabetic).collect();
    Some(word.to_ascii_lowercase())
}

/// The parts of `Authentication-Results` between semicolons, without comments and quoted strings, since senders choose the content
/// of some of these.
fn results(value: &[u8]) -> Vec<String> {
    let (mut parts, mut part) = (Vec::new(), String::new());
    let (mut depth, mut is_quoted, mut is_escaped) = (0_usize, false, false);
    for character in String::from_utf8_lossy(value).chars() {
        let is_inside = depth > 0 || is_quoted;
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_inside => is_escaped = true,
            '"' if depth == 0 => is_quoted = !is_quoted,
            '(' if !is_quoted => depth += 1,
            ')' if depth > 0 => depth -= 1,
            _ if is_inside => {}
            ';' => parts.push(std::mem::take(&mut part)),
            other => part.push(other),
        }
    }
    parts.push(part);
    parts
}
