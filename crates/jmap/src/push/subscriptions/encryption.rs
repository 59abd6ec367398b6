//! Encryption of a push for its client (RFC 8291), as one record of `aes128gcm` (RFC 8188).

use restante_core::Error;
use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral},
    hkdf::{HKDF_SHA256, KeyType, Salt},
    rand::{SecureRandom, SystemRandom},
};

use super::Keys;

/// The length of an uncompressed point of P-256.
const POINT_BYTES: usize = 65;
const AUTH_BYTES: usize = 16;
const SALT_BYTES: usize = 16;
const KEY_BYTES: usize = 16;
/// The record size in the header; there is only one record, which is shorter (RFC 8291 §4).
const RECORD_BYTES: u32 = 4_096;
/// The delimiter of the last record (RFC 8188 §2).
const DELIMITER: u8 = 2;
/// The most bytes that can be encrypted: push services need not accept more than 4,096 (RFC 8030 §7.2), including header and tag.
pub(super) const PLAIN_BYTES_MAX: usize = RECORD_BYTES as usize - (SALT_BYTES + 4 + 1 + POINT_BYTES) - 1 - 16;

/// The keys of a client, decoded.
struct Receiver {
    point: [u8; POINT_BYTES],
    auth: [u8; AUTH_BYTES],
}

impl Keys {
    fn decode(&self) -> Option<Receiver> {
        // Clients may add padding or not (RFC 4648 §5).
        let decode = |text: &str| base64_simd::URL_SAFE_NO_PAD.decode_to_vec(text.trim_end_matches('=')).ok();
        Some(Receiver {
            point: decode(&self.p256dh)?.try_into().ok()?,
            auth: decode(&self.auth)?.try_into().ok()?,
        })
    }
}

/// Encrypts a message for a client.
///
/// # Errors
/// `Invalid` when the keys are invalid; `Internal` when the system provides no random numbers, or the message is too long.
pub(super) fn encrypt(keys: &Keys, message: &[u8]) -> Result<Vec<u8>, Error> {
    let receiver = keys.decode().ok_or_else(bad_keys)?;
    let failed = |_| Error::internal("the system has no random numbers");
    let random = SystemRandom::new();
    let mut salt = [0; SALT_BYTES];
    random.fill(&mut salt).map_err(failed)?;
    let private = EphemeralPrivateKey::generate(&ECDH_P256, &random).map_err(failed)?;
    let public = private.compute_public_key().map_err(failed)?;
    let public: [u8; POINT_BYTES] =
        public.as_ref().try_into().map_err(|_| Error::internal("a public key has another length"))?;
    let theirs = UnparsedPublicKey::new(&ECDH_P256, receiver.point);
    agree_ephemeral(private, &theirs, |shared| seal(&receiver, &public, shared, salt, message))
        .map_err(|_| bad_keys())?
}

/// Encrypts with a secret that both sides have.
fn seal(
    receiver: &Receiver,
    public: &[u8; POINT_BYTES],
    shared: &[u8],
    salt: [u8; SALT_BYTES],
    message: &[u8],
) -> Result<Vec<u8>, Error> {
    if message.len() > PLAIN_BYTES_MAX {
        return Err(Error::internal(format!(
            "a push of {} bytes is too long to be encrypted",
            message.len()
        )));
    }
    // RFC 8291 §3.4.
    let info: [&[u8]; 3] = [b"WebPush: info\0", &receiver.point, public];
    let input: [u8; 32] = derive(&receiver.auth, shared, &info)?;
    let key: [u8; KEY_BYTES] = derive(&salt, &input, &[b"Content-Encoding: aes128gcm\0"])?;
    let nonce: [u8; NONCE_LEN] = derive(&salt, &input, &[b"Content-Encoding: nonce\0"])?;
    let key = UnboundKey::new(&AES_128_GCM, &key).map_err(|_| failed())?;

    let mut sealed = Vec::with_capacity(RECORD_BYTES as usize);
    sealed.extend_from_slice(&salt);
    sealed.extend_from_slice(&RECORD_BYTES.to_be_bytes());
    sealed.push(POINT_BYTES as u8);
    sealed.extend_from_slice(public);
    let mut record = message.to_vec();
    record.push(DELIMITER);
    let nonce = Nonce::assume_unique_for_key(nonce); // the key is used for this message only
    LessSafeKey::new(key).seal_in_place_append_tag(nonce, Aad::empty(), &mut record).map_err(|_| failed())?;
    sealed.extend_from_slice(&record);
    Ok(sealed)
}

/// HKDF (RFC 5869): extracts with a salt, expands with the parts of an info.
fn derive<const BYTES: usize>(salt: &[u8], input: &[u8], info: &[&[u8]]) -> Result<[u8; BYTES], Error> {
    struct Length(usize);
    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut derived = [0; BYTES];
    let extracted = Salt::new(HKDF_SHA256, salt).extract(input);
    let expanded = extracted.expand(info, Length(BYTES)).map_err(|_| failed())?;
    expanded.fill(&mut derived).map_err(|_| failed())?;
    Ok(derived)
}

fn bad_keys() -> Error {
    Error::invalid("p256dh and auth of a push subscription are no keys")
}

fn failed() -> Error {
    Error::internal("a push can't be encrypted")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode<const BYTES: usize>(text: &str) -> [u8; BYTES] {
        base64_simd::URL_SAFE_NO_PAD.decode_to_vec(text).unwrap().try_into().unwrap()
    }

    fn keys() -> Keys {
        Keys {
            p256dh: "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
                .to_owned(),
            auth: "BTBZMqHH6r4Tts7J_aSIgg".to_owned(),
        }
    }

    #[test]
    fn p5_the_example_of_rfc_8291_is_encrypted_as_there() {
        let receiver = keys().decode().unwrap();
        let public =
            decode("BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8");
        let shared: [u8; 32] = decode("kyrL1jIIOHEzg3sM2ZWRHDRB62YACZhhSlknJ672kSs");
        let salt = decode("DGv6ra1nlYgDCS1FRnbzlw");
        let sealed =
            seal(&receiver, &public, &shared, salt, b"When I grow up, I want to be a watermelon").unwrap();
        let expected = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6\
            PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN";
        assert_eq!(base64_simd::URL_SAFE_NO_PAD.encode_to_string(sealed), expected);
    }

    #[test]
    fn p5_only_a_point_of_the_curve_and_16_bytes_are_keys() {
        assert!(encrypt(&keys(), b"").is_ok());
        let padded = Keys { p256dh: format!("{}=", keys().p256dh), auth: format!("{}==", keys().auth) };
        assert!(encrypt(&padded, b"").is_ok());
        let zero = base64_simd::URL_SAFE_NO_PAD.encode_to_string([0_u8; POINT_BYTES]);
        for p256dh in ["", "x", "BCVx", &zero, &keys().auth] {
            assert!(encrypt(&Keys { p256dh: p256dh.to_owned(), ..keys() }, b"").is_err(), "{p256dh}");
        }
        for auth in ["", "x", "BTBZMqHH6r4Tts7J", &keys().p256dh] {
            assert!(encrypt(&Keys { auth: auth.to_owned(), ..keys() }, b"").is_err(), "{auth}");
        }
    }

    #[test]
    fn p5_an_encrypted_push_has_at_most_4096_bytes() {
        assert_eq!(encrypt(&keys(), &vec![b'x'; PLAIN_BYTES_MAX]).unwrap().len(), 4_096);
        assert!(encrypt(&keys(), &vec![b'x'; PLAIN_BYTES_MAX + 1]).is_err());
        let (one, other) = (encrypt(&keys(), b"x").unwrap(), encrypt(&keys(), b"x").unwrap());
        assert_ne!(one, other, "each push has a salt and a key of its own");
    }
}
