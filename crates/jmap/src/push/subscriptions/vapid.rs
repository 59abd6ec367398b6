//! The identification of the server to push services (RFC 8292).

use restante_core::Error;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Map, Value};

/// How long a signed token is valid; a day is the maximum (RFC 8292 §2).
const VALID_SECONDS: i64 = 12 * 3_600;

/// The key of the server.
pub(super) struct Vapid {
    pair: EcdsaKeyPair,
    public_key: String,
}

impl Vapid {
    /// A new private key.
    pub(super) fn new_key() -> Result<Vec<u8>, Error> {
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        key.map(|key| key.as_ref().to_vec()).map_err(|_| Error::internal("the system has no random numbers"))
    }

    /// With a key of [`Vapid::new_key`].
    pub(super) fn of_key(key: &[u8]) -> Result<Self, Error> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key, &SystemRandom::new());
        let pair = pair.map_err(|_| Error::corrupt("the VAPID key of the server can't be read"))?;
        let public_key = encode(pair.public_key().as_ref());
        Ok(Self { pair, public_key })
    }

    pub(super) fn public_key(&self) -> &str {
        &self.public_key
    }

    /// The value of `Authorization` for a push service. `contact` is a URL of the operator of the server.
    pub(super) fn authorization(
        &self,
        origin: &str,
        contact: Option<&str>,
        now_seconds: i64,
    ) -> Result<String, Error> {
        let mut claims = Map::new();
        claims.insert("aud".to_owned(), origin.into());
        claims.insert("exp".to_owned(), now_seconds.saturating_add(VALID_SECONDS).into());
        if let Some(contact) = contact {
            claims.insert("sub".to_owned(), contact.into());
        }
        let header = encode(br#"{"typ":"JWT","alg":"ES256"}"#);
        let signed = format!("{header}.{}", encode(Value::Object(claims).to_string().as_bytes()));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = signature.map_err(|_| Error::internal("the system has no random numbers"))?;
        Ok(format!("vapid t={signed}.{}, k={}", encode(signature.as_ref()), self.public_key))
    }
}

fn encode(bytes: &[u8]) -> String {
    base64_simd::URL_SAFE_NO_PAD.encode_to_string(bytes)
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
    use serde_json::json;

    use super::*;

    fn decode(text: &str) -> Vec<u8> {
        base64_simd::URL_SAFE_NO_PAD.decode_to_vec(text).unwrap()
    }

    #[test]
    fn p5_the_server_signs_who_it_is_for_each_push_service() {
        let key = Vapid::new_key().unwrap();
        let vapid = Vapid::of_key(&key).unwrap();
        assert_eq!(vapid.public_key(), Vapid::of_key(&key).unwrap().public_key());
        let header = vapid.authorization("https://push.example", Some("mailto:a@b.example"), 1_000).unwrap();
        let (token, key) = header.strip_prefix("vapid t=").unwrap().split_once(", k=").unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, decode(key));
        key.verify(signed.as_bytes(), &decode(signature)).unwrap();
        let claims: Value = serde_json::from_slice(&decode(signed.split_once('.').unwrap().1)).unwrap();
        let expected = json!({"aud": "https://push.example", "exp": 44_200, "sub": "mailto:a@b.example"});
        assert_eq!(claims, expected);
        assert!(Vapid::of_key(b"x").is_err());
    }
}
