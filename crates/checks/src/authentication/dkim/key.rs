//! Public keys in the DNS (RFC 6376 §3.6, RFC 8463).

use std::collections::HashMap;

use aws_lc_rs::{
    digest::{SHA256, digest},
    signature::{ED25519, RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, UnparsedPublicKey},
};
use futures_util::{StreamExt, stream};
use restante_net::dns::{Answer, Resolver};

use super::signature::Algorithm;
use crate::authentication::tags::{Tags, base64, items};

/// How many keys are looked up at a time.
const LOOKUPS_AT_ONCE: usize = 8;

/// A key that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::authentication) struct Key {
    algorithm: Algorithm,
    public: Vec<u8>,
    /// `t=s`: the domain of `i=` must be that of `d=`.
    pub(in crate::authentication) is_strict: bool,
    /// `t=y`: its domain tests DKIM.
    pub(in crate::authentication) is_test: bool,
}

/// Why a signature has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::authentication) enum NoKey {
    /// The look-up failed: a key may exist.
    Temporary,
    /// There is no usable record.
    Permanent,
}

/// The keys of a message, by the names of their records.
pub(in crate::authentication) type Keys = HashMap<String, Result<Key, NoKey>>;

/// Looks keys up, each once.
pub(in crate::authentication) async fn look_up(resolver: &dyn Resolver, names: Vec<String>) -> Keys {
    let look_up = |name: String| async move {
        let key = match resolver.txt(&name).await {
            // RFC 6376 §3.6.2.2: more than one record is undefined; the first that is a key is used.
            Answer::Found(texts) => texts.iter().find_map(|text| Key::parse(text)).ok_or(NoKey::Permanent),
            Answer::NoSuchName | Answer::NoRecords => Err(NoKey::Permanent),
            Answer::Temporary(_) => Err(NoKey::Temporary),
        };
        (name, key)
    };
    stream::iter(names).map(look_up).buffer_unordered(LOOKUPS_AT_ONCE).collect().await
}

impl Key {
    /// Parses a record. `None` if it can't be used for mail: it is malformed, revoked, or for something else.
    fn parse(text: &str) -> Option<Self> {
        let tags = Tags::parse(text)?;
        if let Some(version) = tags.get("v") {
            let is_first = tags.first() == Some(("v", version));
            if version != "DKIM1" || !is_first {
                return None;
            }
        }
        let algorithm = match tags.get("k") {
            None | Some("rsa") => Algorithm::RsaSha256,
            Some("ed25519") => Algorithm::Ed25519Sha256,
            Some(_) => return None,
        };
        let has = |tag: &str, allowed: &[&str]| {
            tags.get(tag).is_none_or(|list| items(list).any(|item| allowed.contains(&item)))
        };
        if !has("h", &["sha256"]) || !has("s", &["email", "*"]) {
            return None;
        }
        let public = base64(tags.get("p")?)?;
        let is_revoked = public.is_empty();
        let has_flag =
            |wanted: &str| tags.get("t").is_some_and(|flags| items(flags).any(|flag| flag == wanted));
        let (is_strict, is_test) = (has_flag("s"), has_flag("y"));
        (!is_revoked).then_some(Self { algorithm, public, is_strict, is_test })
    }

    /// Whether this key made the signature of `data`. RSA keys have 1,024 to 8,192 bits (RFC 8301 §3.2).
    pub(in crate::authentication) fn verifies(
        &self,
        algorithm: Algorithm,
        data: &[u8],
        signature: &[u8],
    ) -> bool {
        if self.algorithm != algorithm {
            return false;
        }
        match algorithm {
            Algorithm::RsaSha256 => {
                let key =
                    UnparsedPublicKey::new(&RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, &self.public);
                key.verify(data, signature).is_ok()
            }
            // RFC 8463 §3: what Ed25519 signs is the hash.
            Algorithm::Ed25519Sha256 => {
                let key = UnparsedPublicKey::new(&ED25519, &self.public);
                key.verify(digest(&SHA256, data).as_ref(), signature).is_ok()
            }
        }
    }
}
