//! Short-lived tokens for the URLs of browsers, whose event streams, WebSockets and download links can't send `Authorization`.
//!
//! A token contains the account, the credential that created it and the time when it expires, with an authentication code by a key
//! of the process. So nothing is stored, a restart invalidates all of them, and a token is invalid once its credential was revoked.

use std::{net::IpAddr, sync::Arc};

use ring::hmac;

use restante_records::AccountId;

use crate::{
    Directory, Error, Login, LoginError,
    metrics::{LoginResult, Means},
    random,
};

/// The prefix of a token, so that people and secret scanners recognise it.
const PREFIX: &str = "rsu_";
/// The number of the account, the credential and the time.
const CLAIMS_BYTES: usize = 4 + 8 + 8;
const CODE_BYTES: usize = 32;

/// The key of the process.
pub(crate) struct UrlTokens(hmac::Key);

impl UrlTokens {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &random::bytes::<32>()?)))
    }

    fn write(&self, account: AccountId, credential: u64, expires: i64) -> String {
        let mut bytes = Vec::with_capacity(CLAIMS_BYTES + CODE_BYTES);
        bytes.extend_from_slice(&account.0.to_be_bytes());
        bytes.extend_from_slice(&credential.to_be_bytes());
        bytes.extend_from_slice(&expires.to_be_bytes());
        let code = hmac::sign(&self.0, &bytes);
        bytes.extend_from_slice(code.as_ref());
        format!("{PREFIX}{}", base64_simd::URL_SAFE_NO_PAD.encode_to_string(bytes))
    }

    /// The account, the credential and the time in a token that this process has created.
    fn read(&self, text: &str) -> Option<(AccountId, u64, i64)> {
        let text = text.strip_prefix(PREFIX)?;
        // Checked first: long texts are not decoded.
        if text.len() > (CLAIMS_BYTES + CODE_BYTES) * 2 {
            return None;
        }
        let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(text).ok()?;
        let (claims, code) = bytes.split_first_chunk::<CLAIMS_BYTES>()?;
        hmac::verify(&self.0, claims, code).ok()?;
        let (account, rest) = claims.split_first_chunk::<4>()?;
        let (credential, expires) = rest.split_first_chunk::<8>()?;
        let account = AccountId(u32::from_be_bytes(*account));
        Some((account, u64::from_be_bytes(*credential), i64::from_be_bytes(*expires.first_chunk()?)))
    }
}

impl Directory {
    /// A token that represents a log-in in URLs of this server, and when it expires, in seconds since 1970.
    pub fn make_url_token(&self, login: &Login, seconds: u64) -> (String, i64) {
        let now = self.store().now().seconds();
        let expires = now.saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX));
        let expires = login.expires.map_or(expires, |login| login.min(expires));
        (self.0.url_tokens.write(login.account, login.credential, expires), expires)
    }

    /// Logs a user in by a token of [`Directory::make_url_token`]. The log-in is the one that created the token: what was begun in
    /// time continues after the token has expired.
    ///
    /// # Errors
    /// [`LoginError`].
    pub async fn check_url_token(&self, ip: IpAddr, token: &str) -> Result<Arc<Login>, LoginError> {
        let checked = self.check_url_token_uncounted(ip, token).await;
        let result = checked.as_ref().map_or_else(LoginError::result, |_| LoginResult::Accepted);
        self.0.metrics.count(Means::Token, result);
        checked
    }

    async fn check_url_token_uncounted(&self, ip: IpAddr, token: &str) -> Result<Arc<Login>, LoginError> {
        let now = self.store().now();
        let attempt = self.0.failures.attempt(ip, None);
        self.0.failures.check(attempt, now)?;
        // A token that has expired, or that a restart has invalidated, comes from an honest client: it does not count
        // as a failed log-in.
        let Some((account, credential, expires)) = self.0.url_tokens.read(token) else {
            return Err(LoginError::Refused);
        };
        if expires <= now.seconds() {
            return Err(LoginError::Refused);
        }
        self.login_by_credential(account, credential).await?.ok_or(LoginError::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_by_the_process_that_made_it_alone() {
        let (own, other) = (UrlTokens::new().unwrap(), UrlTokens::new().unwrap());
        let claims = (AccountId(1_024), u64::MAX, 1_800_000_000);
        let token = own.write(claims.0, claims.1, claims.2);
        assert_eq!((own.read(&token), other.read(&token)), (Some(claims), None));
        for wrong in ["", "rsu_", "rst_AAAA", &token[4..], &token[..token.len() - 1], &format!("{token}A")] {
            assert_eq!(own.read(wrong), None, "{wrong}");
        }
        for at in PREFIX.len()..token.len() - 1 {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(own.read(&String::from_utf8(changed).unwrap()), None, "character {at}");
        }
    }
}
