//! The exchange of `AUTH` (RFC 4954).

/// The longest name of a mechanism (RFC 4422 §3.1).
const MECHANISM_BYTES_MAX: usize = 20;

/// A line of a client in an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthResponse {
    /// The decoded response.
    Bytes(Vec<u8>),
    /// `*`: the client gives up.
    Cancel,
}

impl AuthResponse {
    /// Parses the line that answers a challenge, without its line break. `None` if it is not base64.
    pub fn parse(line: &[u8]) -> Option<Self> {
        if line == b"*" {
            return Some(Self::Cancel);
        }
        base64_simd::STANDARD.decode_to_vec(line).ok().map(Self::Bytes)
    }

    /// Parses the response in the command itself: `=` is an empty one. `None` if it is not base64.
    pub fn parse_initial(text: &str) -> Option<Vec<u8>> {
        match text {
            "=" => Some(Vec::new()),
            "" => None,
            _ => base64_simd::STANDARD.decode_to_vec(text.as_bytes()).ok(),
        }
    }
}

/// A challenge as the text of a 334 reply.
pub fn challenge_text(challenge: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(challenge)
}

/// The name of a mechanism, and the response that the client sends with it.
pub(super) fn mechanism_and_response(text: &str) -> Option<(&str, Option<&str>)> {
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let (mechanism, response) = (words.next()?, words.next());
    let is_mechanism = mechanism.len() <= MECHANISM_BYTES_MAX
        && mechanism.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    (is_mechanism && words.next().is_none()).then_some((mechanism, response))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub1_responses_are_base64_with_two_exceptions() {
        assert_eq!(AuthResponse::parse(b"*"), Some(AuthResponse::Cancel));
        assert_eq!(AuthResponse::parse(b""), Some(AuthResponse::Bytes(Vec::new())));
        assert_eq!(AuthResponse::parse(b"AGEAYg=="), Some(AuthResponse::Bytes(b"\0a\0b".to_vec())));
        for wrong in [&b"="[..], b"**", b"AGEAYg", b"AGEA Yg==", b"a"] {
            assert_eq!(AuthResponse::parse(wrong), None, "{}", wrong.escape_ascii());
        }
        assert_eq!(AuthResponse::parse_initial("="), Some(Vec::new()));
        assert_eq!(AuthResponse::parse_initial("AGEAYg=="), Some(b"\0a\0b".to_vec()));
        assert_eq!(AuthResponse::parse_initial("*"), None);
        assert_eq!(challenge_text(b"Username:"), "VXNlcm5hbWU6");
    }
}
