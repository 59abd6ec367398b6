//! Tokens: random bytes that replace a name and a password and are shown once; only a hash of them is stored.

use restante_core::Timestamp;
use restante_records::Query;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::{
    Actor, Directory, EmailAddress, Error, Role, Scope,
    accounts::check_name,
    entry::{AccountEntry, AddressEntry, TokenEntry},
    keys::is_same,
    random,
    schema::{ADDRESS, ADDRESS_BY_TOKEN, Shard, hash64},
    store::{Entry, Found},
};

/// The most tokens that one account has.
const TOKENS_MAX: usize = 64;
/// 100 years: timestamps end in 2262.
const EXPIRES_SECONDS_MAX: u64 = 36_525 * 86_400;
/// The prefix of a token, so that people and secret scanners recognise it.
const PREFIX: &str = "rst_";
/// The number of the account's shard, and the random bytes.
const TOKEN_BYTES: usize = 1 + 32;
/// Bytes of a token's id, which identifies it for revocation.
const ID_BYTES: usize = 4;

/// A token to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Its purpose.
    pub name: String,
    /// What it permits.
    pub scopes: Vec<Scope>,
    /// The seconds until it expires; `None` for never.
    pub expires_in: Option<u64>,
}

/// A token, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenInfo {
    /// The id by which it is revoked.
    pub id: String,
    /// Its purpose.
    pub name: String,
    /// What it permits.
    pub scopes: Vec<Scope>,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// When it expires, in seconds since 1970; `None` for never.
    pub expires: Option<i64>,
}

impl From<&TokenEntry> for TokenInfo {
    fn from(token: &TokenEntry) -> Self {
        let TokenEntry { id, name, created, expires, scopes, .. } = token.clone();
        Self { id, name, scopes, created, expires }
    }
}

impl TokenEntry {
    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now.seconds())
    }
}

impl Directory {
    /// Whether a text looks like a token of a directory. Any other text need not be checked.
    pub fn is_token(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// Creates a token and returns it: it can't be shown again.
    pub(crate) async fn create_token(
        &self,
        actor: &Actor,
        address: &EmailAddress,
        new: &NewToken,
    ) -> Result<(String, TokenInfo), Error> {
        check_name(Some(&new.name))?;
        if new.scopes.is_empty() {
            return Err(Error::invalid("a token without a scope is good for nothing: name one"));
        }
        if new.expires_in.is_some_and(|seconds| seconds > EXPIRES_SECONDS_MAX) {
            return Err(Error::invalid("a token expires within 100 years, or never"));
        }
        let random: [u8; TOKEN_BYTES - 1] = random::bytes()?;
        let bytes = [&[AddressEntry::shard(address).number()][..], &random].concat();
        let id: [u8; ID_BYTES] = random::bytes()?;
        let now = self.store().now().seconds();
        let expires = |seconds| now.saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX));
        let mut scopes = new.scopes.clone();
        scopes.sort_unstable();
        scopes.dedup();
        let token = TokenEntry {
            id: hex::encode(id),
            name: new.name.clone(),
            created: now,
            expires: new.expires_in.map(expires),
            scopes,
            hash: digest(&SHA256, &bytes).as_ref().to_vec(),
        };
        self.change_account(actor, address, |entry| {
            if token.scopes.contains(&Scope::Operate) && entry.head.role != Role::Operator {
                let what = "is no operator, so a token can't have the scope operate";
                return Err(Error::invalid(format!("{address} {what}: `restante account role` makes one")));
            }
            entry.body.tokens.retain(|known| !known.is_expired(Timestamp::from_seconds(now)));
            if entry.body.tokens.len() >= TOKENS_MAX {
                return Err(Error::conflict(format!("{address} has {TOKENS_MAX} tokens: revoke one first")));
            }
            entry.body.tokens.push(token.clone());
            Ok((format!("made token {} ({}) of {address}", token.id, token.name), ()))
        })
        .await?;
        let text = format!("{PREFIX}{}", base64_simd::URL_SAFE_NO_PAD.encode_to_string(bytes));
        Ok((text, TokenInfo::from(&token)))
    }

    pub(crate) async fn revoke_token(
        &self,
        actor: &Actor,
        address: &EmailAddress,
        id: &str,
    ) -> Result<(), Error> {
        self.change_account(actor, address, |entry| {
            let Some(at) = entry.body.tokens.iter().position(|token| token.id == id) else {
                let list = format!("`restante token list {address}` shows those there are");
                return Err(Error::not_found(format!(
                    "{address} has no token '{}': {list}",
                    id.escape_debug()
                )));
            };
            let token = entry.body.tokens.remove(at);
            Ok((format!("revoked token {id} ({}) of {address}", token.name), ()))
        })
        .await
    }

    /// The account of a token; `None` for an unknown or expired token.
    pub(crate) async fn find_token(
        &self,
        text: &str,
    ) -> Result<Option<(Found<AccountEntry>, TokenEntry)>, Error> {
        let Some(bytes) = token_bytes(text) else { return Ok(None) };
        let Some(shard) = bytes.first().copied().and_then(Shard::numbered) else { return Ok(None) };
        let hash = digest(&SHA256, &bytes);
        let query = Query::new(ADDRESS, ADDRESS_BY_TOKEN).equals(hash64(hash.as_ref()));
        let (record, _) = self.store().first(shard.account(), query, true).await?;
        let Some(record) = record else { return Ok(None) };
        let AddressEntry::Account(entry) = AddressEntry::read(&record)? else { return Ok(None) };
        let now = self.store().now();
        let is_it = |token: &&TokenEntry| is_same(&token.hash, hash.as_ref()) && !token.is_expired(now);
        let token = entry.body.tokens.iter().find(is_it).cloned();
        Ok(token.map(|token| (Found { shard, id: record.id, revision: record.revision, entry }, token)))
    }
}

fn token_bytes(text: &str) -> Option<Vec<u8>> {
    let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(text.strip_prefix(PREFIX)?).ok()?;
    (bytes.len() == TOKEN_BYTES).then_some(bytes)
}
