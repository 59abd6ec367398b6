//! Random bytes from the system.

use ring::rand::{SecureRandom, SystemRandom};

use crate::Error;

/// Bytes that nobody can guess.
pub(crate) fn bytes<const COUNT: usize>() -> Result<[u8; COUNT], Error> {
    let mut bytes = [0; COUNT];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::internal("the system has no random numbers"))?;
    Ok(bytes)
}

/// 256 random bits as 64 hex digits, for a secret that programs send.
///
/// # Errors
/// `Internal` when the system has no random numbers.
pub fn random_secret() -> Result<String, Error> {
    bytes::<32>().map(hex::encode)
}

/// Letters and digits that are not easily confused; 32, so that each encodes five bits.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// A password of 100 random bits, in groups that can be read aloud.
pub(crate) fn password() -> Result<String, Error> {
    let bytes: [u8; 20] = bytes()?;
    let mut password = String::with_capacity(24);
    for (at, byte) in bytes.iter().enumerate() {
        if at > 0 && at % 5 == 0 {
            password.push('-');
        }
        let letter = ALPHABET.get(usize::from(byte % 32)).copied().unwrap_or(b'x');
        password.push(char::from(letter));
    }
    Ok(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_readable_and_differ() {
        let (one, other) = (password().unwrap(), password().unwrap());
        assert_eq!((one.len(), one.matches('-').count()), (23, 3), "{one}");
        assert_ne!(one, other);
    }
}
