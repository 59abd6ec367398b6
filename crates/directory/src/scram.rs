//! The server's side of a SCRAM exchange (RFC 5802, RFC 7677): messages and states, no I/O.
//!
//! [`ClientFirst::parse`] reads the first message; with the user's keys it becomes a [`Challenge`], whose message
//! is sent; [`Challenge::verify`] reads the proof and returns the last message.

use std::num::NonZero;

use crate::keys::{Mechanism, StoredKeys, is_same};

/// The longest message of a client.
pub const MESSAGE_BYTES_MAX: usize = 4_096;
/// The longest nonce of a client.
const NONCE_BYTES_MAX: usize = 256;

/// Why an exchange ended (RFC 5802 §7, `server-error-value`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// A message that the grammar does not allow.
    #[error("other-error")]
    Malformed,
    /// A mandatory extension: none is known.
    #[error("extensions-not-supported")]
    Extension,
    /// The proof matches none of the user's keys, or the user is unknown.
    #[error("invalid-proof")]
    Proof,
    /// The client's channel binding is not the one of this connection.
    #[error("channel-bindings-dont-match")]
    BindingDiffers,
    /// The client saw no channel binding offered, though it was: somebody in the middle has removed it (RFC 5802 §6).
    #[error("server-does-support-channel-binding")]
    BindingRemoved,
    /// The client uses a binding that is not offered.
    #[error("unsupported-channel-binding-type")]
    BindingUnknown,
}

impl ScramError {
    /// The last message to the client: `e=` and the error.
    pub fn message(self) -> String {
        format!("e={self}")
    }
}

/// What an exchange can be bound to: the TLS connection below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelBinding {
    /// `tls-exporter` (RFC 9266) or `tls-server-end-point` (RFC 5929).
    pub name: &'static str,
    /// The binding's data.
    pub data: Vec<u8>,
}

/// The client's first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFirst {
    /// The user who logs in.
    pub username: String,
    /// The identity to act as, if it is not the user.
    pub authorization: Option<String>,
    /// The required value of `c=` in the client's last message: the header with the binding's data.
    binding: Vec<u8>,
    bare: String,
    nonce: String,
}

impl ClientFirst {
    /// Reads the first message. `offered` are the bindings of this connection, none when no `-PLUS` mechanism was offered;
    /// `is_plus` says whether the client has chosen the `-PLUS` mechanism.
    ///
    /// # Errors
    /// [`ScramError`].
    pub fn parse(message: &[u8], offered: &[ChannelBinding], is_plus: bool) -> Result<Self, ScramError> {
        let text = text_of(message)?;
        let (flag, rest) = text.split_once(',').ok_or(ScramError::Malformed)?;
        let (authorization, bare) = rest.split_once(',').ok_or(ScramError::Malformed)?;
        let mut binding = format!("{flag},{authorization},").into_bytes();
        match flag.split_once('=') {
            Some(("p", name)) if is_plus => {
                let bound =
                    offered.iter().find(|offer| offer.name == name).ok_or(ScramError::BindingUnknown)?;
                binding.extend_from_slice(&bound.data);
            }
            None if flag == "n" && !is_plus => {}
            None if flag == "y" && !is_plus && offered.is_empty() => {}
            None if flag == "y" && !is_plus => return Err(ScramError::BindingRemoved),
            _ => return Err(ScramError::Malformed),
        }
        let authorization = match authorization {
            "" => None,
            text => Some(unescape(text.strip_prefix("a=").ok_or(ScramError::Malformed)?)?),
        };
        if bare.starts_with("m=") {
            return Err(ScramError::Extension);
        }
        let mut fields = bare.split(',');
        let username = unescape(field(fields.next(), "n=")?)?;
        let nonce = field(fields.next(), "r=")?;
        let is_printable = |byte: u8| byte.is_ascii_graphic();
        if username.is_empty()
            || nonce.is_empty()
            || nonce.len() > NONCE_BYTES_MAX
            || !nonce.bytes().all(is_printable)
        {
            return Err(ScramError::Malformed);
        }
        let (bare, nonce) = (bare.to_owned(), nonce.to_owned());
        Ok(Self { username, authorization, binding, bare, nonce })
    }

    /// The server's answer, with the keys of the user that the client may prove to know; `server_nonce` is printable,
    /// without a comma, and never used twice.
    pub fn challenge(self, mechanism: Mechanism, server_nonce: &str, keys: UserKeys) -> Challenge {
        let nonce = format!("{}{server_nonce}", self.nonce);
        let salt = base64_simd::STANDARD.encode_to_string(&keys.salt);
        let message = format!("r={nonce},s={salt},i={}", keys.rounds);
        Challenge { mechanism, first: self, nonce, keys: keys.keys, message }
    }
}

/// The keys of a user: several passwords with one salt.
#[derive(Clone, Debug)]
pub struct UserKeys {
    /// The salt.
    pub salt: Vec<u8>,
    /// The rounds of the derivation.
    pub rounds: NonZero<u32>,
    /// The keys of each password; none for a user who does not exist.
    pub keys: Vec<StoredKeys>,
}

/// An exchange that waits for the client's proof.
#[derive(Clone, Debug)]
pub struct Challenge {
    mechanism: Mechanism,
    first: ClientFirst,
    nonce: String,
    keys: Vec<StoredKeys>,
    message: String,
}

/// A correct proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The index of the user's key that it matches.
    pub key: usize,
    /// The server's last message, which proves its identity.
    pub message: String,
}

impl Challenge {
    /// The message for the client.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The client's first message.
    pub fn first(&self) -> &ClientFirst {
        &self.first
    }

    /// Checks the client's last message.
    ///
    /// # Errors
    /// [`ScramError`].
    pub fn verify(&self, message: &[u8]) -> Result<Verified, ScramError> {
        let text = text_of(message)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(ScramError::Malformed)?;
        let mut fields = without_proof.split(',');
        let binding = decode(field(fields.next(), "c=")?)?;
        let nonce = field(fields.next(), "r=")?;
        if binding != self.first.binding {
            return Err(ScramError::BindingDiffers);
        }
        if nonce != self.nonce {
            return Err(ScramError::Malformed);
        }
        let proof = decode(proof)?;
        let signed = format!("{},{},{without_proof}", self.first.bare, self.message);
        // All keys are tried, so that the time does not reveal which of them it was.
        let mut verified = None;
        for (key, keys) in self.keys.iter().enumerate() {
            let signature = self.mechanism.sign(&keys.stored, signed.as_bytes());
            if signature.len() != proof.len() {
                return Err(ScramError::Malformed);
            }
            let client: Vec<u8> =
                proof.iter().zip(&signature).map(|(proof, signature)| proof ^ signature).collect();
            if is_same(&self.mechanism.hash(&client), &keys.stored) {
                verified = Some((key, keys));
            }
        }
        let (key, keys) = verified.ok_or(ScramError::Proof)?;
        let signature = self.mechanism.sign(&keys.server, signed.as_bytes());
        Ok(Verified { key, message: format!("v={}", base64_simd::STANDARD.encode_to_string(signature)) })
    }
}

fn text_of(message: &[u8]) -> Result<&str, ScramError> {
    if message.len() > MESSAGE_BYTES_MAX || message.contains(&0) {
        return Err(ScramError::Malformed);
    }
    std::str::from_utf8(message).map_err(|_| ScramError::Malformed)
}

fn field<'t>(part: Option<&'t str>, name: &str) -> Result<&'t str, ScramError> {
    part.and_then(|part| part.strip_prefix(name)).ok_or(ScramError::Malformed)
}

/// RFC 5802 §5.1: `=2C` is a comma and `=3D` an equals sign; any other `=` is an error.
fn unescape(text: &str) -> Result<String, ScramError> {
    let mut parts = text.split('=');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (c, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            _ => return Err(ScramError::Malformed),
        };
        out.push(c);
        out.push_str(rest);
    }
    Ok(out)
}

fn decode(text: &str) -> Result<Vec<u8>, ScramError> {
    base64_simd::STANDARD.decode_to_vec(text).map_err(|_| ScramError::Malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A server for the user of the RFCs, whose password is "pencil".
    fn challenge(mechanism: Mechanism, first: &str, nonce: &str, salt: &str) -> Challenge {
        let salt = base64_simd::STANDARD.decode_to_vec(salt).unwrap();
        let rounds = NonZero::new(4_096).unwrap();
        let keys = ["other", "pencil"].map(|password| StoredKeys::derive(mechanism, password, &salt, rounds));
        let first = ClientFirst::parse(first.as_bytes(), &[], false).unwrap();
        assert_eq!(first.username, "user");
        first.challenge(mechanism, nonce, UserKeys { salt, rounds, keys: keys.to_vec() })
    }

    #[test]
    fn the_exchange_of_rfc_5802() {
        let challenge = challenge(
            Mechanism::ScramSha1,
            "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
            "3rfcNHYJY1ZVvWVs7j",
            "QSXCR+Q6sek8bf92",
        );
        assert_eq!(
            challenge.message(),
            "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
        );
        let last = b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=";
        let verified = challenge.verify(last).unwrap();
        assert_eq!((verified.key, verified.message.as_str()), (1, "v=rmF9pqV8S7suAoZWja4dJRkFsKQ="));
    }

    const SHA256_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const SHA256_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const SHA256_LAST: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                               p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";

    fn sha256() -> Challenge {
        challenge(Mechanism::ScramSha256, SHA256_FIRST, SHA256_NONCE, "W22ZaJ0SNY7soEsUEjb6gQ==")
    }

    #[test]
    fn the_exchange_of_rfc_7677() {
        let challenge = sha256();
        assert_eq!(
            challenge.message(),
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let verified = challenge.verify(SHA256_LAST.as_bytes()).unwrap();
        assert_eq!(verified.message, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    #[test]
    fn a_last_message_that_differs_is_refused() {
        let challenge = sha256();
        for (from, to, error) in [
            ("p=dHzb", "p=eHzb", ScramError::Proof),
            ("rOprNGfw", "xOprNGfw", ScramError::Malformed),
            ("NlF$k0", "NlF$k", ScramError::Malformed),
            ("biws", "eSws", ScramError::BindingDiffers),
            ("biws", "!", ScramError::Malformed),
            (",p=", ",q=", ScramError::Malformed),
            ("c=biws,", "", ScramError::Malformed),
            ("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", "AAAA", ScramError::Malformed),
            (",p=", ",x=1,p=", ScramError::Proof), // an extension is part of what is signed
        ] {
            let message = SHA256_LAST.replacen(from, to, 1);
            assert_eq!(challenge.verify(message.as_bytes()), Err(error), "{message}");
        }
        let nobody = ClientFirst::parse(SHA256_FIRST.as_bytes(), &[], false).unwrap();
        let keys = UserKeys { salt: vec![0; 16], rounds: NonZero::new(4_096).unwrap(), keys: Vec::new() };
        let nobody = nobody.challenge(Mechanism::ScramSha256, SHA256_NONCE, keys);
        assert_eq!(nobody.verify(SHA256_LAST.as_bytes()), Err(ScramError::Proof));
    }

    #[test]
    fn a_first_message_is_read_strictly() {
        let read = |text: &str| ClientFirst::parse(text.as_bytes(), &[], false);
        let first = read("y,a=boss=2C=3D,n=a=3Db=2Cc,r=x,ext=1").unwrap();
        assert_eq!((first.username.as_str(), first.authorization.as_deref()), ("a=b,c", Some("boss,=")));
        for (text, error) in [
            ("", ScramError::Malformed),
            ("n", ScramError::Malformed),
            ("n,,", ScramError::Malformed),
            ("n,,r=x,n=a", ScramError::Malformed),
            ("n,,n=a", ScramError::Malformed),
            ("n,,n=,r=x", ScramError::Malformed),
            ("n,,n=a,r=", ScramError::Malformed),
            ("n,,n=a=2c,r=x", ScramError::Malformed),
            ("n,b=x,n=a,r=x", ScramError::Malformed),
            ("n,,n=a,r=x y", ScramError::Malformed),
            ("n,,n=a\0,r=x", ScramError::Malformed),
            ("n,,m=1,n=a,r=x", ScramError::Extension),
            ("p=tls-exporter,,n=a,r=x", ScramError::Malformed),
            ("z,,n=a,r=x", ScramError::Malformed),
        ] {
            assert_eq!(read(text), Err(error), "{text}");
        }
        let long = format!("n,,n=a,r={}", "x".repeat(NONCE_BYTES_MAX + 1));
        assert_eq!(read(&long), Err(ScramError::Malformed));
    }

    #[test]
    fn an_exchange_is_bound_to_its_connection() {
        let binding = |data: &[u8]| ChannelBinding { name: "tls-exporter", data: data.to_vec() };
        let offered = [binding(b"this one")];
        let read = |text: &str, is_plus| ClientFirst::parse(text.as_bytes(), &offered, is_plus);
        assert_eq!(read("y,,n=user,r=x", false), Err(ScramError::BindingRemoved));
        assert_eq!(read("n,,n=user,r=x", true), Err(ScramError::Malformed));
        assert_eq!(read("p=tls-unique,,n=user,r=x", true), Err(ScramError::BindingUnknown));
        let rounds = NonZero::new(16).unwrap();
        let (mechanism, salt) = (Mechanism::ScramSha256, b"salt".to_vec());
        let keys = StoredKeys::derive(mechanism, "pencil", &salt, rounds);
        let keys = UserKeys { salt, rounds, keys: vec![keys] };
        let challenge = read("p=tls-exporter,,n=user,r=x", true).unwrap().challenge(mechanism, "y", keys);
        let last = |data: &[u8]| {
            let header = [b"p=tls-exporter,,", data].concat();
            format!("c={},r=xy,p={}", base64_simd::STANDARD.encode_to_string(header), "A".repeat(43) + "=")
        };
        assert_eq!(challenge.verify(last(b"another").as_bytes()), Err(ScramError::BindingDiffers));
        assert_eq!(challenge.verify(last(b"this one").as_bytes()), Err(ScramError::Proof));
    }

    proptest! {
        #[test]
        fn no_message_panics(first in any::<Vec<u8>>(), last in any::<Vec<u8>>()) {
            let _ = ClientFirst::parse(&first, &[], false);
            let _ = sha256_of_few_rounds().verify(&last);
        }

        #[test]
        fn messages_near_the_grammar_do_not_panic(first in "[nyp]=?[a-z-]{0,4},(a=[a-z=2C]{0,4})?,[nrm]=.{0,5},r=.{0,5}(,.{0,5})?",
                                                  last in "c=[a-zA-Z=]{0,8},r=xy?,p=[a-zA-Z=]{0,44}") {
            let _ = ClientFirst::parse(first.as_bytes(), &[], false);
            prop_assert!(sha256_of_few_rounds().verify(last.as_bytes()).is_err());
        }

        #[test]
        fn every_username_reads_back(name in "\\PC{1,40}") {
            let escaped = name.replace('=', "=3D").replace(',', "=2C");
            let first = ClientFirst::parse(format!("n,,n={escaped},r=x").as_bytes(), &[], false).unwrap();
            prop_assert_eq!(first.username, name);
        }
    }

    fn sha256_of_few_rounds() -> Challenge {
        let rounds = NonZero::new(1).unwrap();
        let keys = StoredKeys::derive(Mechanism::ScramSha256, "pencil", b"salt", rounds);
        let first = ClientFirst::parse(b"n,,n=user,r=x", &[], false).unwrap();
        first.challenge(
            Mechanism::ScramSha256,
            "y",
            UserKeys { salt: b"salt".to_vec(), rounds, keys: vec![keys] },
        )
    }
}
