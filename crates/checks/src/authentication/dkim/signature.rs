//! A signature of a message (RFC 6376 §3.5).

use restante_mail_wire::canonical::Canonical;

use crate::authentication::{
    message::BodyHash,
    names,
    tags::{Tags, base64, items},
};

/// The most names in `h=` that are used. Real mail has some dozens, including those that are signed twice so that nothing can be added.
const SIGNED_NAMES_MAX: usize = 300;
/// An RSA signature is as long as its key: shorter ones belong to keys that anyone can break (RFC 8301 §3.2).
const RSA_BYTES_MIN: usize = 128;

/// How it was made. SHA-1 is not accepted (RFC 8301 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::authentication) enum Algorithm {
    RsaSha256,
    Ed25519Sha256,
}

/// What signatures of DKIM and ARC have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::authentication) struct Seal {
    pub(in crate::authentication) algorithm: Algorithm,
    pub(in crate::authentication) domain: String,
    pub(in crate::authentication) selector: String,
    pub(in crate::authentication) signature: Vec<u8>,
}

impl Seal {
    /// `None` if it can't be verified.
    pub(in crate::authentication) fn read(tags: &Tags<'_>) -> Option<Self> {
        let algorithm = match tags.get("a")? {
            "rsa-sha256" => Algorithm::RsaSha256,
            "ed25519-sha256" => Algorithm::Ed25519Sha256,
            _ => return None,
        };
        let domain = names::ascii(tags.get("d")?)?;
        let selector = names::ascii(tags.get("s")?)?;
        let signature = base64(tags.get("b")?)?;
        let is_weak = algorithm == Algorithm::RsaSha256 && signature.len() < RSA_BYTES_MIN;
        let seal = Self { algorithm, domain, selector, signature };
        let is_whole = names::is_domain(&seal.domain) && names::is_name(&seal.key_name());
        (is_whole && !is_weak).then_some(seal)
    }

    /// The name of the key's record.
    pub(in crate::authentication) fn key_name(&self) -> String {
        format!("{}._domainkey.{}", self.selector, self.domain)
    }
}

/// A signature of header and body: DKIM-Signature, or ARC-Message-Signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::authentication) struct Signature {
    pub(in crate::authentication) seal: Seal,
    pub(in crate::authentication) header_form: Canonical,
    pub(in crate::authentication) body_form: Canonical,
    body_hash: Vec<u8>,
    body_bytes: Option<u64>,
    /// Names of fields, in lower case.
    pub(in crate::authentication) names: Vec<String>,
    expires: Option<u64>,
}

/// What is wrong with a signature before its key is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::authentication) enum Flaw {
    /// It is invalid.
    Broken,
    /// It may be valid, but doesn't cover the whole message: anyone could have added to the body (RFC 6376 §8.2).
    Partial,
}

impl Signature {
    /// Parses the tags that DKIM and ARC have in common. `None` if it can't be verified.
    pub(in crate::authentication) fn read(tags: &Tags<'_>) -> Option<Self> {
        let seal = Seal::read(tags)?;
        let (header_form, body_form) = match tags.get("c") {
            None => (Canonical::Simple, Canonical::Simple),
            Some(forms) => match forms.split_once('/') {
                Some((header, body)) => (form(header)?, form(body)?),
                None => (form(forms)?, Canonical::Simple),
            },
        };
        let names: Vec<String> =
            items(tags.get("h")?).map(str::to_ascii_lowercase).take(SIGNED_NAMES_MAX + 1).collect();
        let signs_from = names.iter().any(|name| name == "from");
        if names.len() > SIGNED_NAMES_MAX || !signs_from {
            return None;
        }
        let by_dns = tags.get("q").is_none_or(|methods| items(methods).any(|method| method == "dns/txt"));
        let (made, expires) = (tags.number("t").ok()?, tags.number("x").ok()?);
        let is_never_valid = expires.is_some_and(|expires| made.is_some_and(|made| expires <= made));
        if !by_dns || is_never_valid {
            return None;
        }
        let body_hash = base64(tags.get("bh")?)?;
        let body_bytes = tags.number("l").ok()?;
        Some(Self { seal, header_form, body_form, body_hash, body_bytes, names, expires })
    }

    /// Compares the body hash and the length, and checks the time in seconds since 1970.
    pub(in crate::authentication) fn flaw(&self, body: &BodyHash, now: u64) -> Option<Flaw> {
        if self.expires.is_some_and(|expires| expires < now) {
            return Some(Flaw::Broken);
        }
        match self.body_bytes {
            Some(signed) if signed < body.bytes => return Some(Flaw::Partial),
            Some(signed) if signed > body.bytes => return Some(Flaw::Broken), // RFC 6376 §3.5
            _ => {}
        }
        (self.body_hash != body.digest.as_ref()).then_some(Flaw::Broken)
    }
}

fn form(name: &str) -> Option<Canonical> {
    match name.trim_ascii() {
        "simple" => Some(Canonical::Simple),
        "relaxed" => Some(Canonical::Relaxed),
        _ => None,
    }
}
