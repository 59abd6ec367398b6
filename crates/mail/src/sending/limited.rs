//! The accounts that have reached a limit, for operators.

use std::collections::HashMap;

use restante_records::AccountId;
use serde::Serialize;

use super::SendingLimit;

/// The most accounts that are listed; when there are more, the one with the oldest refusal is removed.
const ACCOUNTS_MAX: usize = 1_000;
/// How long after its last refusal an account is listed.
const LISTED_SECONDS: u64 = 24 * 3_600;

/// An account that has reached a limit of what it may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitedAccount {
    /// Its number.
    #[serde(serialize_with = "number")]
    pub account: AccountId,
    /// The limit that refused it last.
    pub limit: SendingLimit,
    /// When it was refused for the first time, in seconds since 1970.
    pub since: u64,
    /// When it was refused last.
    pub last: u64,
    /// When what was refused last could be sent.
    pub until: u64,
    /// How many messages were refused.
    pub refused: u64,
}

fn number<S: serde::Serializer>(account: &AccountId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(account.0)
}

#[derive(Debug, Default)]
pub(super) struct Limited(HashMap<AccountId, LimitedAccount>);

impl Limited {
    /// Notes that a message was refused. Returns whether the account was not listed, or its last limit had ended.
    pub(super) fn note(&mut self, account: AccountId, limit: SendingLimit, now: u64, until: u64) -> bool {
        self.forget(now);
        if let Some(known) = self.0.get_mut(&account) {
            let is_new = known.until <= now;
            *known = LimitedAccount { limit, last: now, until, refused: known.refused + 1, ..*known };
            return is_new;
        }
        if self.0.len() >= ACCOUNTS_MAX
            && let Some(oldest) = self.0.values().min_by_key(|known| known.last).map(|known| known.account)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(account, LimitedAccount { account, limit, since: now, last: now, until, refused: 1 });
        true
    }

    pub(super) fn reached(&self, account: AccountId, now: u64) -> Option<(SendingLimit, u64)> {
        let known = self.0.get(&account).filter(|known| known.limit == SendingLimit::Messages)?;
        (known.until > now).then_some((known.limit, known.until))
    }

    pub(super) fn list(&mut self, now: u64) -> Vec<LimitedAccount> {
        self.forget(now);
        let mut list: Vec<LimitedAccount> = self.0.values().copied().collect();
        list.sort_unstable_by_key(|known| (std::cmp::Reverse(known.last), known.account));
        list
    }

    fn forget(&mut self, now: u64) {
        self.0.retain(|_, known| known.last.saturating_add(LISTED_SECONDS) > now);
    }
}
