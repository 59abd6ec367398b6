//! Key pairs.

use aws_lc_rs::{
    digest::{SHA256, digest},
    encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der},
    rand::SystemRandom,
    rsa::KeySize,
    signature::{Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair},
};
use restante_core::Error;
use serde::{Deserialize, Serialize};

/// The algorithm that a key signs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// RSA with 2,048 bits and SHA-256 (RFC 6376 §3.3.1, RFC 8301 §3.2), which all servers verify.
    Rsa,
    /// Ed25519 with SHA-256 (RFC 8463), whose keys are short.
    Ed25519,
}

impl Algorithm {
    /// Its name in a key record: `k=`.
    pub(super) fn key_type(self) -> &'static str {
        match self {
            Self::Rsa => "rsa",
            Self::Ed25519 => "ed25519",
        }
    }

    /// Its name in a signature: `a=`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rsa => "rsa-sha256",
            Self::Ed25519 => "ed25519-sha256",
        }
    }
}

/// A private key, with its public one.
pub(super) enum Pair {
    Rsa(RsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Pair {
    /// A new pair. Generating an RSA key takes up to a second, so don't call this on a worker of the runtime.
    pub(super) fn generate(algorithm: Algorithm) -> Result<Self, Error> {
        let failed = |_| Error::internal(format!("can't make a key of {}", algorithm.key_type()));
        match algorithm {
            Algorithm::Rsa => RsaKeyPair::generate(KeySize::Rsa2048).map(Self::Rsa).map_err(failed),
            Algorithm::Ed25519 => Ed25519KeyPair::generate().map(Self::Ed25519).map_err(failed),
        }
    }

    /// The pair of a private key that [`Pair::private`] has written.
    pub(super) fn read(algorithm: Algorithm, private: &[u8]) -> Result<Self, Error> {
        let damaged =
            |error| Error::corrupt(format!("a private key of {} is damaged: {error}", algorithm.key_type()));
        match algorithm {
            Algorithm::Rsa => RsaKeyPair::from_pkcs8(private).map(Self::Rsa).map_err(damaged),
            Algorithm::Ed25519 => Ed25519KeyPair::from_pkcs8(private).map(Self::Ed25519).map_err(damaged),
        }
    }

    /// The private key in PKCS #8.
    pub(super) fn private(&self) -> Result<Vec<u8>, Error> {
        let der: Result<Pkcs8V1Der<'static>, _> = match self {
            Self::Rsa(pair) => pair.as_der(),
            Self::Ed25519(pair) => pair.as_der(),
        };
        let der = der.map_err(|_| Error::internal("can't write a private key"))?;
        Ok(der.as_ref().to_vec())
    }

    /// The public key in the form of `p=` in a key record, before base64: for RSA the SubjectPublicKeyInfo, which all verifiers
    /// read, though RFC 6376 §3.6.1 names RSAPublicKey; for Ed25519 the 32 bytes (RFC 8463 §4.2).
    pub(super) fn public(&self) -> Result<Vec<u8>, Error> {
        match self {
            Self::Rsa(pair) => {
                let der: Result<PublicKeyX509Der<'_>, _> = pair.public_key().as_der();
                let der = der.map_err(|_| Error::internal("can't write a public key"))?;
                Ok(der.as_ref().to_vec())
            }
            Self::Ed25519(pair) => Ok(pair.public_key().as_ref().to_vec()),
        }
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        match self {
            Self::Rsa(_) => Algorithm::Rsa,
            Self::Ed25519(_) => Algorithm::Ed25519,
        }
    }

    /// The signature of canonical header fields.
    pub(super) fn sign(&self, data: &[u8]) -> Result<Vec<u8>, Error> {
        match self {
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), data, &mut signature)
                    .map_err(|_| Error::internal("can't sign with a key of rsa"))?;
                Ok(signature)
            }
            // RFC 8463 §3: Ed25519 signs the hash.
            Self::Ed25519(pair) => Ok(pair.sign(digest(&SHA256, data).as_ref()).as_ref().to_vec()),
        }
    }
}
