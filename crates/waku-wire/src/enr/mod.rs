//! Node records of EIP-778 with the keys of `31/WAKU2-ENR`: addresses and services of a node, signed by its key.
//!
//! ```
//! use restante_waku_wire::enr::{Capabilities, Contents, Enr};
//!
//! let contents = Contents {
//!     ip: Some("192.0.2.7".parse().unwrap()),
//!     tcp: Some(60_000),
//!     capabilities: Some(Capabilities::RELAY | Capabilities::STORE),
//!     ..Contents::default()
//! };
//! let record = Enr::sign(1, &contents, &[7; 32]).unwrap();
//! let read: Enr = record.to_string().parse().unwrap();
//! assert_eq!((read.seq(), read.contents()), (1, contents));
//! ```

mod contents;

use std::{fmt, str::FromStr};

use alloy_rlp::{Decodable, Encodable, Header};
use base64_simd::URL_SAFE_NO_PAD;
use bytes::Bytes;
use k256::ecdsa::{
    Signature, SigningKey, VerifyingKey,
    signature::hazmat::{PrehashSigner, PrehashVerifier},
};
use sha3::{Digest, Keccak256};

pub use contents::{Capabilities, Contents, RELAY_SHARDS_MAX, RelayShards};

/// The longest record, from EIP-778.
pub const ENR_BYTES_MAX: usize = 300;
/// The longest text of a record: `enr:` and four letters for three bytes.
pub const ENR_TEXT_BYTES_MAX: usize = PREFIX.len() + ENR_BYTES_MAX.div_ceil(3) * 4;

const PREFIX: &str = "enr:";
/// The only identity scheme: secp256k1 signatures over Keccak-256.
const SCHEME: &[u8] = b"v4";
const KEY_ID: &[u8] = b"id";
const KEY_PUBLIC_KEY: &[u8] = b"secp256k1";

/// A node record with a verified signature.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Enr {
    wire: Bytes,
    seq: u64,
    public_key: [u8; 33],
}

/// Why bytes or a text are not a node record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnrError {
    /// It is longer than EIP-778 allows.
    #[error("node record is longer than {ENR_BYTES_MAX} bytes")]
    TooLong,
    /// It does not begin with `enr:`, or what follows is not base64.
    #[error("not a node record: expected enr: and base64 without padding")]
    Text,
    /// It is not a list of a signature, a number, and ordered pairs of keys and values.
    #[error("not a node record: its list is malformed")]
    Malformed,
    /// It is not signed in the scheme `v4`.
    #[error("node record is not of the identity scheme v4")]
    Scheme,
    /// Its public key is invalid, or did not sign it.
    #[error("node record has a wrong signature")]
    Signature,
    /// The key can't sign.
    #[error("not a secp256k1 secret key")]
    SecretKey,
}

/// The parts of a record whose signature was not verified.
struct Parsed<'a> {
    signature: &'a [u8],
    /// The signed bytes: the list's items without the signature.
    signed: &'a [u8],
    seq: u64,
    pairs: &'a [u8],
}

impl<'a> Parsed<'a> {
    fn parse(wire: &'a [u8]) -> Option<Self> {
        let mut rest = wire;
        let mut items = Header::decode_bytes(&mut rest, true).ok().filter(|_| rest.is_empty())?;
        let signature = string(&mut items)?;
        let signed = items;
        let seq = u64::decode(&mut items).ok()?;
        Pairs(items).are_in_order().then_some(Self { signature, signed, seq, pairs: items })
    }
}

/// Takes a string of RLP from the front.
fn string<'a>(items: &mut &'a [u8]) -> Option<&'a [u8]> {
    Header::decode_bytes(items, false).ok()
}

/// A list of RLP.
fn list(items: &[u8]) -> Vec<u8> {
    let mut list = Vec::new();
    Header { list: true, payload_length: items.len() }.encode(&mut list);
    list.extend_from_slice(items);
    list
}

/// The keys and values of a record.
#[derive(Clone, Copy)]
struct Pairs<'a>(&'a [u8]);

/// A value: the bytes of a string, `None` for a list.
type Value<'a> = Option<&'a [u8]>;

impl<'a> Iterator for Pairs<'a> {
    /// The inner `None` is a key without a value or a malformed item; it is the last one.
    type Item = Option<(&'a [u8], Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let pair = self.take();
        if pair.is_none() {
            self.0 = &[];
        }
        Some(pair)
    }
}

impl<'a> Pairs<'a> {
    fn take(&mut self) -> Option<(&'a [u8], Value<'a>)> {
        let key = string(&mut self.0)?;
        let header = Header::decode(&mut self.0).ok()?;
        let (payload, rest) = self.0.split_at_checked(header.payload_length)?;
        self.0 = rest;
        Some((key, (!header.list).then_some(payload)))
    }

    /// Whether all pairs are well-formed, and each key is greater than the one before it.
    fn are_in_order(self) -> bool {
        let mut last: Option<&[u8]> = None;
        for pair in self {
            let Some((key, _)) = pair else { return false };
            if last.is_some_and(|last| last >= key) {
                return false;
            }
            last = Some(key);
        }
        true
    }

    fn get(self, key: &[u8]) -> Option<&'a [u8]> {
        let (_, value) = self.flatten().find(|(known, _)| *known == key)?;
        value
    }
}

impl Enr {
    /// Decodes a record and verifies its signature.
    ///
    /// # Errors
    /// See [`EnrError`].
    pub fn decode(wire: &[u8]) -> Result<Self, EnrError> {
        if wire.len() > ENR_BYTES_MAX {
            return Err(EnrError::TooLong);
        }
        let parsed = Parsed::parse(wire).ok_or(EnrError::Malformed)?;
        let pairs = Pairs(parsed.pairs);
        if pairs.get(KEY_ID) != Some(SCHEME) {
            return Err(EnrError::Scheme);
        }
        let public_key = pairs.get(KEY_PUBLIC_KEY).and_then(|key| key.try_into().ok());
        let public_key: [u8; 33] = public_key.ok_or(EnrError::Signature)?;
        verify(&public_key, &digest(parsed.signed), parsed.signature).ok_or(EnrError::Signature)?;
        Ok(Self { wire: Bytes::copy_from_slice(wire), seq: parsed.seq, public_key })
    }

    /// Creates a record and signs it with a secp256k1 secret key.
    ///
    /// # Errors
    /// When it would be too long, or the key is invalid.
    pub fn sign(seq: u64, contents: &Contents, secret: &[u8; 32]) -> Result<Self, EnrError> {
        let key = SigningKey::from_slice(secret).map_err(|_| EnrError::SecretKey)?;
        let public_key = key.verifying_key().to_sec1_point(true);
        let public_key: [u8; 33] = public_key.as_bytes().try_into().map_err(|_| EnrError::SecretKey)?;
        let mut pairs = contents.to_pairs();
        pairs.insert(KEY_ID, SCHEME.to_vec());
        pairs.insert(KEY_PUBLIC_KEY, public_key.to_vec());

        let mut signed = Vec::new();
        seq.encode(&mut signed);
        for (key, value) in &pairs {
            key.encode(&mut signed);
            value.as_slice().encode(&mut signed);
        }
        let signature: Signature = key.sign_prehash(&digest(&signed)).map_err(|_| EnrError::SecretKey)?;
        let mut items = Vec::new();
        signature.to_bytes().as_slice().encode(&mut items);
        items.extend_from_slice(&signed);
        let wire = list(&items);
        if wire.len() > ENR_BYTES_MAX {
            return Err(EnrError::TooLong);
        }
        Ok(Self { wire: wire.into(), seq, public_key })
    }

    /// The record as on the wire.
    pub fn wire(&self) -> &Bytes {
        &self.wire
    }

    /// The sequence number: newer records of a node have higher ones.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The node's compressed secp256k1 public key.
    pub fn public_key(&self) -> &[u8; 33] {
        &self.public_key
    }

    /// The entries of the record. Invalid ones are left out.
    pub fn contents(&self) -> Contents {
        let pairs = Parsed::parse(&self.wire).map_or(Pairs(&[]), |parsed| Pairs(parsed.pairs));
        Contents::from_pairs(|key| pairs.get(key))
    }
}

/// The signed digest: Keccak-256 over the list without the signature.
fn digest(signed: &[u8]) -> [u8; 32] {
    Keccak256::digest(list(signed)).into()
}

fn verify(public_key: &[u8; 33], digest: &[u8; 32], signature: &[u8]) -> Option<()> {
    let key = VerifyingKey::from_sec1_bytes(public_key).ok()?;
    let signature = Signature::from_slice(signature).ok()?;
    key.verify_prehash(digest, &signature).ok()
}

/// Decodes a record without verifying its signature, for the fuzzer, which never finds a valid one.
pub(crate) fn contents_unverified(wire: &[u8]) -> Option<(u64, Contents)> {
    let parsed = Parsed::parse(wire)?;
    let pairs = Pairs(parsed.pairs);
    Some((parsed.seq, Contents::from_pairs(|key| pairs.get(key))))
}

impl FromStr for Enr {
    type Err = EnrError;

    fn from_str(text: &str) -> Result<Self, EnrError> {
        if text.len() > ENR_TEXT_BYTES_MAX {
            return Err(EnrError::TooLong);
        }
        let base64 = text.strip_prefix(PREFIX).ok_or(EnrError::Text)?;
        let wire = URL_SAFE_NO_PAD.decode_to_vec(base64).map_err(|_| EnrError::Text)?;
        Self::decode(&wire)
    }
}

impl fmt::Display for Enr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode_to_string(&self.wire))
    }
}

impl fmt::Debug for Enr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
