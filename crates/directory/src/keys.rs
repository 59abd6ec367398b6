//! Keys that are derived from passwords (RFC 5802 §3), and their comparison.

use std::{fmt, num::NonZero};

use ring::{digest, hmac, pbkdf2};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::{Error, base64_serde};

/// The longest password: all its bytes are hashed before anything is known about the client.
pub const PASSWORD_BYTES_MAX: usize = 1_024;
/// Bytes of a salt.
pub(crate) const SALT_BYTES: usize = 16;

/// A SCRAM mechanism, without `-PLUS`, which only concerns channel binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// RFC 5802. SHA-1's weaknesses don't matter in HMAC; XMPP clients need it.
    ScramSha1,
    /// RFC 7677.
    ScramSha256,
}

impl Mechanism {
    /// The name of the mechanism in SASL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ScramSha1 => "SCRAM-SHA-1",
            Self::ScramSha256 => "SCRAM-SHA-256",
        }
    }

    fn pbkdf2(self) -> pbkdf2::Algorithm {
        match self {
            Self::ScramSha1 => pbkdf2::PBKDF2_HMAC_SHA1,
            Self::ScramSha256 => pbkdf2::PBKDF2_HMAC_SHA256,
        }
    }

    fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::ScramSha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Self::ScramSha256 => hmac::HMAC_SHA256,
        }
    }

    fn digest(self) -> &'static digest::Algorithm {
        match self {
            Self::ScramSha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            Self::ScramSha256 => &digest::SHA256,
        }
    }

    pub(crate) fn hash(self, bytes: &[u8]) -> Vec<u8> {
        digest::digest(self.digest(), bytes).as_ref().to_vec()
    }

    pub(crate) fn sign(self, key: &[u8], text: &[u8]) -> Vec<u8> {
        hmac::sign(&hmac::Key::new(self.hmac(), key), text).as_ref().to_vec()
    }
}

/// What a server stores of a password: enough to check it, but not to log in with it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredKeys {
    /// H(ClientKey).
    #[serde(with = "base64_serde")]
    pub(crate) stored: Vec<u8>,
    /// HMAC(SaltedPassword, "Server Key").
    #[serde(with = "base64_serde")]
    pub(crate) server: Vec<u8>,
}

impl fmt::Debug for StoredKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoredKeys(..)")
    }
}

impl StoredKeys {
    /// The keys of a prepared password. The time is proportional to `rounds`: don't call it on a worker of an async runtime.
    pub fn derive(mechanism: Mechanism, prepared: &str, salt: &[u8], rounds: NonZero<u32>) -> Self {
        let mut salted = vec![0; mechanism.digest().output_len()];
        pbkdf2::derive(mechanism.pbkdf2(), rounds, salt, prepared.as_bytes(), &mut salted);
        let client = mechanism.sign(&salted, b"Client Key");
        Self { stored: mechanism.hash(&client), server: mechanism.sign(&salted, b"Server Key") }
    }

    /// Whether both are of the same password; the time does not depend on how many bytes agree.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        is_same(&self.stored, &other.stored)
    }
}

/// Compares in a time that does not depend on the differences.
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

/// A password as RFC 4013 prepares it, so that it has the same bytes regardless of the keyboard.
///
/// # Errors
/// `Invalid` when it is empty, too long or has characters that are prohibited in passwords.
pub(crate) fn prepare(password: &str) -> Result<String, Error> {
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        return Err(Error::invalid(format!("a password has 1 to {PASSWORD_BYTES_MAX} bytes")));
    }
    match stringprep::saslprep(password) {
        Ok(prepared) if !prepared.is_empty() => Ok(prepared.into_owned()),
        _ => {
            Err(Error::invalid("the password has characters that SASLprep (RFC 4013) prohibits: use others"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_prepared() {
        // RFC 4013 §3.
        for (password, prepared) in
            [("I\u{ad}X", "IX"), ("user", "user"), ("\u{aa}", "a"), ("\u{2168}", "IX")]
        {
            assert_eq!(prepare(password).unwrap(), prepared);
        }
        for password in ["", "\u{7}", "\u{627}1", "\u{ad}", &"x".repeat(PASSWORD_BYTES_MAX + 1)] {
            assert!(prepare(password).is_err(), "{password:?}");
        }
    }

    #[test]
    fn keys_match_those_of_the_same_password_only() {
        let rounds = NonZero::new(16).unwrap();
        let keys = |password, salt| StoredKeys::derive(Mechanism::ScramSha256, password, salt, rounds);
        assert!(keys("secret", b"salt").matches(&keys("secret", b"salt")));
        assert!(!keys("secret", b"salt").matches(&keys("Secret", b"salt")));
        assert!(!keys("secret", b"salt").matches(&keys("secret", b"other")));
    }
}
