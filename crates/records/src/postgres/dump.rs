//! Pages over the whole store: of all records, and of the blobs that they refer to.

use tokio_postgres::types::ToSql;

use super::{
    Shared,
    error::value,
    schema::{STATE, account_to_sql, after, corrupt, decode_state_key, from_sql, state_key, to_sql},
    stats::{ACCOUNTS, heads},
};
use crate::{AccountId, Damage, Dumped, Error, RecordKey, Referenced, map::blobs_of, validate};

/// Bodies per page of references: each refers to up to 256 blobs.
const REFERENCED_BODIES: i64 = 1_024;

const RECORDS: &str = "SELECT e.key, e.value, e.body, b.blobs, b.bytes FROM \
     (SELECT key, value, body FROM entry WHERE account = $1 AND key > $2 AND key < $3 ORDER BY key LIMIT $4) e \
     LEFT JOIN body b ON b.id = e.body";
const REFERENCED: &str =
    "SELECT id, blobs FROM body WHERE id > $1 AND blobs IS NOT NULL ORDER BY id LIMIT $2";

impl Shared {
    /// A page of all records, from the record that follows `after`. Each account is read as of its own moment.
    pub(super) async fn dump(&self, after: Option<RecordKey>, limit: usize) -> Result<Vec<Dumped>, Error> {
        validate::check_dump(limit)?;
        let mut page = Vec::new();
        let mut behind = None;
        if let Some(place) = after {
            let key = state_key(place.kind, place.id);
            let restores = self.restores_of(place.account).await?;
            self.dump_account(place.account, restores, key, limit, &mut page).await?;
            behind = Some(place.account);
        }
        while page.len() < limit {
            let accounts =
                self.read("list accounts", async |connection| heads(connection, behind).await).await?;
            for (account, head) in &accounts {
                if page.len() < limit && head.kinds.iter().any(|share| share.records > 0) {
                    self.dump_account(*account, head.restores, vec![STATE], limit, &mut page).await?;
                }
                behind = Some(*account);
            }
            if accounts.len() < ACCOUNTS as usize {
                break;
            }
        }
        Ok(page)
    }

    pub(super) async fn restores_of(&self, account: AccountId) -> Result<u64, Error> {
        let head =
            async |connection: &super::connect::Connection| super::read::head(connection, account).await;
        Ok(self.read("read an account", head).await?.restores)
    }

    /// Adds the records of an account that follow the key `behind`, until the page is full.
    pub(super) async fn dump_account(
        &self,
        account: AccountId,
        restores: u64,
        behind: Vec<u8>,
        limit: usize,
        page: &mut Vec<Dumped>,
    ) -> Result<(), Error> {
        let room = to_sql(limit.saturating_sub(page.len()) as u64);
        let (number, to) = (account_to_sql(account), after(STATE));
        let parameters: [&(dyn ToSql + Sync); 4] = [&number, &behind, &to, &room];
        let rows = self
            .read("read records", async |connection| {
                connection.query("read records", RECORDS, &parameters).await
            })
            .await?;
        let is_behind = self.restores().saturating_sub(restores);
        let mut records = Vec::with_capacity(rows.len());
        for row in &rows {
            let key: &[u8] = value(row, 0)?;
            let (kind, id) = decode_state_key(key).ok_or_else(|| corrupt(account, key))?;
            let read = self.record(account, kind, id, row, 1, true, is_behind);
            let key = RecordKey { account, kind, id };
            records.push(Dumped { key, record: Damage::separate(read)? });
        }
        records.sort_by_key(|dumped| dumped.key);
        page.extend(records);
        Ok(())
    }

    /// A page of the blobs that bodies refer to, from the body that follows `after`. The number of a new body is higher than that
    /// of the body whose references it takes over, because it is assigned when its commit begins. So a walk that misses one of
    /// the two sees the other.
    pub(super) async fn referenced(&self, after: Option<u64>) -> Result<Referenced, Error> {
        let after = to_sql(after.unwrap_or_default());
        let parameters: [&(dyn ToSql + Sync); 2] = [&after, &REFERENCED_BODIES];
        let rows = self
            .read("list blobs", async |connection| {
                connection.query("list blobs", REFERENCED, &parameters).await
            })
            .await?;
        let mut page = Referenced::default();
        for row in &rows {
            let number = from_sql(value(row, 0)?);
            let blobs = blobs_of(value(row, 1)?);
            let damaged =
                || Error::corrupt(format!("the body {number} is damaged: run `restante records check`"));
            page.blobs.extend(blobs.ok_or_else(damaged)?);
            page.next = Some(number);
        }
        if rows.len() < REFERENCED_BODIES as usize {
            page.next = None;
        }
        Ok(page)
    }
}
