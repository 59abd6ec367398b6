//! Statistics.

use std::collections::BTreeMap;

use super::{
    Shared,
    connect::Connection,
    error::{AttemptError, column},
    schema::{account_to_sql, from_sql},
    transact::decode_head,
};
use crate::{AccountId, Error, Kind, KindStats, Stats, rows::AccountRow};

/// Accounts that one statement reads.
pub(super) const ACCOUNTS: i64 = 1_000;

const HEADS: &str =
    "SELECT account, head FROM account WHERE account > $1 AND head <> '' ORDER BY account LIMIT $2";
const SIZES: &str = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint, \
     coalesce(sum(pg_total_relation_size(c.oid)) FILTER (WHERE relname LIKE 'entry%'), 0)::bigint, \
     coalesce(sum(pg_total_relation_size(c.oid)) FILTER (WHERE relname = 'body'), 0)::bigint \
     FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'";

/// The accounts that follow one, with their heads.
pub(super) async fn heads(
    connection: &Connection,
    after: Option<AccountId>,
) -> Result<Vec<(AccountId, AccountRow)>, AttemptError> {
    let after = after.map_or(-1, account_to_sql);
    let mut heads = Vec::new();
    for row in connection.query("read accounts", HEADS, &[&after, &ACCOUNTS]).await? {
        heads.push(decode_head(&row)?);
    }
    Ok(heads)
}

impl Shared {
    /// What the store holds and costs. Reads the head of each account.
    pub(super) async fn stats(&self) -> Result<Stats, Error> {
        self.read("count its records", async |connection| {
            let mut stats = Stats::default();
            let mut kinds: BTreeMap<Kind, KindStats> = BTreeMap::new();
            let mut after = None;
            loop {
                let heads = heads(connection, after).await?;
                for (account, head) in &heads {
                    stats.accounts += 1;
                    stats.commits += head.commits();
                    add(&mut kinds, head);
                    after = Some(*account);
                }
                if heads.len() < ACCOUNTS as usize {
                    break;
                }
            }
            stats.kinds = kinds.into_values().collect();
            let rows = connection.query("measure its tables", SIZES, &[]).await?;
            if let Some(row) = rows.first() {
                stats.disk_bytes = from_sql(column(row, 0)?);
                stats.engine.push(("entry_bytes".to_owned(), from_sql(column(row, 1)?)));
                stats.engine.push(("body_bytes".to_owned(), from_sql(column(row, 2)?)));
            }
            Ok(stats)
        })
        .await
    }
}

fn add(kinds: &mut BTreeMap<Kind, KindStats>, head: &AccountRow) {
    for share in &head.kinds {
        let stats = kinds.entry(share.kind).or_default();
        stats.kind = share.kind;
        stats.records += share.records;
        stats.tombstones += share.tombstones;
    }
}
