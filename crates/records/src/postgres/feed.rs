//! The feed of all accounts, and the checkpoints of followers.

use std::collections::BTreeMap;

use restante_core::Timestamp;
use tokio_postgres::{Row, types::ToSql};

use super::{
    Shared,
    connect::Connection,
    error::{AttemptError, column},
    schema::{account_from_sql, account_to_sql, from_sql, to_sql},
};
use crate::{
    AccountId, Checkpoint, Error, Position, Revision, Touched,
    rows::{decode_number, encode_number},
    validate::{check_checkpoint, check_follower_name, check_touched},
};

const NANOS_PER_MILLI: i64 = 1_000_000;
/// The value of `account` in the row that holds a follower's position. It sorts before all accounts.
const OF_POSITION: i64 = -1;
/// Rows of a follower that one statement deletes.
const FORGOTTEN_ROWS_MAX: i64 = 4_096;

const TOUCHED: &str = "SELECT account, position, revision, committed_ms FROM feed WHERE position > $1 \
     ORDER BY position LIMIT $2";
const CHECKPOINT: &str =
    "SELECT account, number FROM follower WHERE name = $1 AND account = ANY ($2::bigint[])";
const SAVE: &str = "INSERT INTO follower SELECT $1, * FROM unnest($2::bigint[], $3::bytea[]) \
     ON CONFLICT (name, account) DO UPDATE SET number = excluded.number";
const FORGET: &str = "DELETE FROM follower WHERE name = $1 AND account = ANY (ARRAY( \
     SELECT account FROM follower WHERE name = $1 ORDER BY account LIMIT $2))";
const FOLLOWERS: &str = "SELECT name, number FROM follower WHERE account = $1 ORDER BY name";

/// The accounts whose last commit is after a position, in the order of those commits.
pub(super) async fn read_touched(
    connection: &Connection,
    after: Position,
    limit: usize,
) -> Result<Vec<Touched>, AttemptError> {
    let parameters: [&(dyn ToSql + Sync); 2] = [&to_sql(after.0), &to_sql(limit as u64)];
    let mut touched = Vec::new();
    for row in connection.query("read the feed", TOUCHED, &parameters).await? {
        touched.push(decode_touched(&row)?);
    }
    Ok(touched)
}

/// Decodes a row of the feed.
pub(super) fn decode_touched(row: &Row) -> Result<Touched, AttemptError> {
    let committed_ms: i64 = column(row, 3)?;
    Ok(Touched {
        position: Position(from_sql(column(row, 1)?)),
        account: account_from_sql(column(row, 0)?)?,
        revision: Revision(from_sql(column(row, 2)?)),
        committed_at: Timestamp(committed_ms.saturating_mul(NANOS_PER_MILLI)),
    })
}

impl Shared {
    /// The current time in milliseconds since 1970; earlier times count as 0.
    pub(super) fn now_ms(&self) -> i64 {
        self.now().0.max(0) / NANOS_PER_MILLI
    }

    /// [`crate::Feed::touched`].
    pub(super) async fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error> {
        check_touched(limit)?;
        let lease = self.reader().await?;
        let connection = lease.connection.clone();
        Ok(lease.drive("read the feed", read_touched(&connection, after, limit)).await?)
    }

    /// [`crate::Feed::checkpoint`].
    pub(super) async fn checkpoint(
        &self,
        follower: &str,
        accounts: &[AccountId],
    ) -> Result<Checkpoint, Error> {
        check_checkpoint(follower, accounts.len())?;
        let name = follower.as_bytes();
        let mut numbers = vec![OF_POSITION];
        numbers.extend(accounts.iter().copied().map(account_to_sql));
        let lease = self.reader().await?;
        let connection = lease.connection.clone();
        let work = async { connection.query("read a checkpoint", CHECKPOINT, &[&name, &numbers]).await };
        let rows = lease.drive("read a checkpoint", work).await?;
        let mut saved = BTreeMap::new();
        for row in &rows {
            let account: i64 = super::error::value(row, 0)?;
            let number = decode_number(super::error::value(row, 1)?);
            let damaged =
                || Error::corrupt(format!("the checkpoint of the follower {follower} is damaged: forget it"));
            saved.insert(account, number.ok_or_else(damaged)?);
        }
        let of = |account: i64| saved.get(&account).copied().unwrap_or_default();
        let revision = |account: &AccountId| (*account, Revision(of(account_to_sql(*account))));
        Ok(Checkpoint {
            position: Position(of(OF_POSITION)),
            accounts: accounts.iter().map(revision).collect(),
        })
    }

    /// [`crate::Feed::save`].
    pub(super) async fn save(&self, follower: &str, checkpoint: &Checkpoint) -> Result<(), Error> {
        check_checkpoint(follower, checkpoint.accounts.len())?;
        let mut numbers = BTreeMap::from([(OF_POSITION, checkpoint.position.0)]);
        for (account, revision) in &checkpoint.accounts {
            numbers.insert(account_to_sql(*account), revision.0);
        }
        let accounts: Vec<i64> = numbers.keys().copied().collect();
        let values: Vec<Vec<u8>> = numbers.values().map(|number| encode_number(*number).into_vec()).collect();
        let name = follower.as_bytes();
        let lease = self.caretaker().await?;
        let connection = lease.connection.clone();
        let work = async { connection.query("save a checkpoint", SAVE, &[&name, &accounts, &values]).await };
        lease.drive("save a checkpoint", work).await?;
        Ok(())
    }

    /// [`crate::Feed::forget`].
    pub(super) async fn forget(&self, follower: &str) -> Result<(), Error> {
        check_follower_name(follower)?;
        let name = follower.as_bytes();
        loop {
            let lease = self.caretaker().await?;
            let connection = lease.connection.clone();
            let work = async {
                let statement = connection.prepared(FORGET).await?;
                let removed = connection.client.execute(&statement, &[&name, &FORGOTTEN_ROWS_MAX]).await;
                super::error::Doing::doing(removed, "forget a follower")
            };
            if lease.drive("forget a follower", work).await? < FORGOTTEN_ROWS_MAX as u64 {
                return Ok(());
            }
        }
    }

    /// [`crate::Feed::followers`].
    pub(super) async fn followers(&self) -> Result<Vec<(String, Position)>, Error> {
        let lease = self.reader().await?;
        let connection = lease.connection.clone();
        let work = async { connection.query("list followers", FOLLOWERS, &[&OF_POSITION]).await };
        let rows = lease.drive("list followers", work).await?;
        let mut followers = Vec::new();
        for row in &rows {
            let name = String::from_utf8(super::error::value(row, 0)?).ok();
            let number = decode_number(super::error::value(row, 1)?);
            let found = name.zip(number);
            let (name, number) = found.ok_or_else(|| Error::corrupt("the row of a follower is damaged"))?;
            followers.push((name, Position(number)));
        }
        Ok(followers)
    }
}
