//! Which accounts there are, in the order of their numbers.

use futures_util::{StreamExt, stream};
use scylla::value::CqlValue;

use super::{
    Shared,
    connect::{number, text},
    head::Head,
    schema::{BUCKETS, account_number, accounts_bucket},
};
use crate::{AccountId, Error};

/// Accounts per page.
pub(super) const ACCOUNTS: usize = 1_000;
/// Heads that are read concurrently.
const AT_ONCE: usize = 32;

const LIST: &str = "INSERT INTO accounts (store, bucket, account) VALUES (?, ?, ?)";
const NEXT: &str = "SELECT account FROM accounts WHERE store = ? AND bucket = ? AND account > ? LIMIT ?";
const WHAT: &str = "list accounts";

impl Shared {
    /// Adds an account to the list of accounts, before its first commit.
    pub(super) async fn list_account(&self, account: AccountId) -> Result<(), Error> {
        let bucket = accounts_bucket(account);
        let row = |bucket: i32, account: i64| {
            vec![text(self.store()), CqlValue::Int(bucket), CqlValue::BigInt(account)]
        };
        self.database.write(WHAT, LIST, row(BUCKETS, i64::from(bucket))).await?;
        self.database.write(WHAT, LIST, row(bucket, account_number(account))).await
    }

    /// The accounts that follow `after`: [`ACCOUNTS`] of them, or fewer at the end of the list.
    pub(super) async fn next_accounts(&self, after: Option<AccountId>) -> Result<Vec<AccountId>, Error> {
        let mut accounts = Vec::new();
        let mut bucket = after.map_or(-1, |account| i64::from(accounts_bucket(account)) - 1);
        let mut after = after.map_or(-1, account_number);
        loop {
            let Some(next) = self.next_listed(BUCKETS, bucket, 1).await?.first().copied() else {
                return Ok(accounts);
            };
            bucket = next;
            let room = ACCOUNTS - accounts.len();
            for account in self.next_listed(i32::try_from(bucket).unwrap_or(i32::MAX), after, room).await? {
                after = account;
                let number = u32::try_from(account);
                let number =
                    number.map_err(|_| Error::corrupt("an account has a number that none can have"))?;
                accounts.push(AccountId(number));
            }
            if accounts.len() >= ACCOUNTS {
                return Ok(accounts);
            }
        }
    }

    async fn next_listed(&self, bucket: i32, after: i64, limit: usize) -> Result<Vec<i64>, Error> {
        let values = vec![
            text(self.store()),
            CqlValue::Int(bucket),
            CqlValue::BigInt(after),
            CqlValue::Int(i32::try_from(limit).unwrap_or(i32::MAX)),
        ];
        let rows = self.database.read(WHAT, NEXT, values).await?;
        Ok(rows.iter().filter_map(|row| number(row, 0)).filter_map(|n| i64::try_from(n).ok()).collect())
    }

    /// The heads of these accounts. Accounts without a head are left out.
    pub(super) async fn heads(&self, accounts: &[AccountId]) -> Result<Vec<(AccountId, Head)>, Error> {
        let heads = self.heads_or_errors(accounts).await;
        let heads = heads.into_iter().filter_map(|(account, head)| Some((account, head.transpose()?)));
        heads.map(|(account, head)| Ok((account, head?))).collect()
    }

    /// The heads of these accounts, with an error for each one that can't be read.
    pub(super) async fn heads_or_errors(
        &self,
        accounts: &[AccountId],
    ) -> Vec<(AccountId, Result<Option<Head>, Error>)> {
        let mut reads = Vec::with_capacity(accounts.len());
        for account in accounts {
            reads.push(self.read_head(*account));
        }
        let heads: Vec<_> = stream::iter(reads).buffered(AT_ONCE).collect().await;
        accounts.iter().copied().zip(heads).collect()
    }
}
