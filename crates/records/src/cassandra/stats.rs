//! Statistics.

use std::collections::BTreeMap;

use super::{Shared, accounts::ACCOUNTS, connect::text};
use crate::{Error, Kind, KindStats, Stats, rows::AccountRow};

impl Shared {
    /// What the store holds. Reads the head of each account.
    pub(super) async fn stats(&self) -> Result<Stats, Error> {
        let mut stats = Stats::default();
        let mut kinds: BTreeMap<Kind, KindStats> = BTreeMap::new();
        let mut after = None;
        loop {
            let accounts = self.next_accounts(after).await?;
            for (_, head) in self.heads(&accounts).await? {
                // The head of an account whose first commit was never applied may contain no commit.
                stats.accounts += u64::from(head.row.commits() > 0);
                stats.commits += head.row.commits();
                add(&mut kinds, &head.row);
            }
            after = accounts.last().copied();
            if accounts.len() < ACCOUNTS {
                break;
            }
        }
        stats.kinds = kinds.into_values().collect();
        let question = "SELECT mebibytes FROM system_views.disk_usage WHERE keyspace_name = ?";
        let tables = self.database.ask("measure its tables", question, vec![text(self.url.keyspace())]).await;
        if let Ok(tables) = tables {
            let mebibytes = tables.iter().filter_map(|row| super::connect::number(row, 0)).sum();
            stats.engine.push(("keyspace_mebibytes_on_one_node".to_owned(), mebibytes));
        }
        Ok(stats)
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
