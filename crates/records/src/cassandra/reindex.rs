//! Changes the indexes to those of the requested schema.
//!
//! Opening walks through all accounts while no other server has the records open. A server that was wrongly thought to be gone
//! may still have committed meanwhile. The heads of such accounts say that they have older indexes, and those are rebuilt when
//! the accounts are next used.

use restante_core::Identity;
use tracing::{info, warn};

use super::{
    Shared,
    accounts::ACCOUNTS,
    head::Head,
    schema::{
        INDEX, META_EPOCH, META_SCHEMA, after, after_prefix, decode_state_key, entry_keys, index_prefix,
        state_prefix,
    },
    transact::{Outcome, Rows},
    view::{View, ViewError},
};
use crate::{
    AccountId, Error, KindSchema,
    indexes::{Known, decode, encode, in_between, wanted},
    map::keys,
    rows::{StateRow, encode_number},
};

/// The error when indexes are to be changed while other servers have the records open.
const OTHER_INDEXES: &str = "other servers have these records open with other indexes: stop them before one of another version \
     starts, and wait for half a minute if one has crashed";
/// Entries that one batch writes.
const ENTRIES: usize = 5_000;

/// Makes the indexes match the schema.
///
/// # Errors
/// `Conflict` when other servers have the records open; `Invalid` when a record would have too many entries in a new index; those
/// of the database.
pub(super) async fn adapt(shared: &mut Shared, holder: Identity) -> Result<(), Error> {
    let before = match shared.meta(META_SCHEMA).await? {
        None => None,
        Some(row) => {
            let damaged =
                || Error::corrupt("the records don't say which indexes they have: restore a backup");
            Some(decode(&row).ok_or_else(damaged)?)
        }
    };
    let wanted = wanted(&shared.schema);
    if before.as_ref() == Some(&wanted) {
        return Ok(());
    }
    shared.be_alone(OTHER_INDEXES).await?;
    if let Some(before) = before {
        let kept: Vec<Known> = before.iter().filter(|index| wanted.contains(index)).cloned().collect();
        let gone: Vec<Known> = before.into_iter().filter(|index| !kept.contains(index)).collect();
        let new: Vec<Known> = wanted.iter().filter(|index| !kept.contains(index)).cloned().collect();
        let (removed, made) = (gone.len(), new.len());
        info!(removed, made, "the indexes of the records have changed: building the new ones");
        let touched: Vec<Known> = gone.iter().chain(&new).cloned().collect();
        shared.put_meta(META_SCHEMA, &encode(&in_between(&kept, &touched))).await?;
        // From here on a server that was wrongly thought to be gone can't commit in an account that has the new indexes.
        shared.epoch += 1;
        shared.put_meta(META_EPOCH, &encode_number(shared.epoch)).await?;
        let mut last = None;
        loop {
            let accounts = shared.next_accounts(last).await?;
            for account in &accounts {
                shared.renew_opening(holder).await?;
                index(shared, *account, &touched, &new).await?;
            }
            last = accounts.last().copied();
            if accounts.len() < ACCOUNTS {
                break;
            }
        }
    }
    shared.put_meta(META_SCHEMA, &encode(&wanted)).await
}

impl Shared {
    /// Rebuilds all indexes of an account that has older ones.
    pub(super) async fn adapt_account(&self, account: AccountId) -> Result<(), Error> {
        let all = wanted(&self.schema);
        index(self, account, &[], &all).await
    }
}

/// Removes an account's entries in the indexes `gone`, and builds the indexes `new`. If `gone` is empty, all entries are removed.
async fn index(shared: &Shared, account: AccountId, gone: &[Known], new: &[Known]) -> Result<(), Error> {
    let mut ranges: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for index in gone {
        let from = index_prefix(index.kind, index.index).into_vec();
        ranges.push((from.clone(), after_prefix(&from)));
    }
    if gone.is_empty() {
        ranges.push((vec![INDEX], after(INDEX)));
    }
    let deadline = shared.database.deadline() + shared.database.patience() * 10;
    loop {
        let Some(head) = shared.read_head_serial(account).await? else { return Ok(()) };
        if head.epoch >= shared.epoch {
            return shared.check_epoch(head.epoch);
        }
        match try_index(shared, account, head, &ranges, new).await {
            Ok(()) => return Ok(()),
            Err(ViewError::Failed(error)) => return Err(error),
            Err(ViewError::Moved) if tokio::time::Instant::now() < deadline => {}
            Err(ViewError::Moved) => {
                let what =
                    format!("account {} changes while its indexes are made: stop other servers", account.0);
                return Err(Error::unavailable(what));
            }
        }
    }
}

async fn try_index(
    shared: &Shared,
    account: AccountId,
    head: Head,
    ranges: &[(Vec<u8>, Vec<u8>)],
    new: &[Known],
) -> Result<(), ViewError> {
    let mut head = head;
    let mut rows = Rows { ranges: ranges.to_vec(), ..Rows::default() };
    for kind in shared.schema.kinds() {
        if !new.iter().any(|index| index.kind == kind.kind) {
            continue;
        }
        let from = state_prefix(kind.kind);
        let states = View::of(shared, account, head.clone()).whole(&from, &after_prefix(&from)).await?;
        for (key, value) in states {
            for entry in entries_of(kind, new, account, &key, &value)? {
                rows.rows.insert(entry, Some(Vec::new()));
            }
            if rows.rows.len() >= ENTRIES {
                head = write(shared, account, &head, &std::mem::take(&mut rows), head.epoch).await?;
            }
        }
    }
    write(shared, account, &head, &rows, shared.epoch).await.map(drop)
}

async fn write(
    shared: &Shared,
    account: AccountId,
    head: &Head,
    rows: &Rows,
    epoch: u64,
) -> Result<Head, ViewError> {
    let mut after = head.changed(shared.mark());
    after.epoch = epoch;
    let deadline = shared.database.deadline();
    match shared.change(account, Some(head), &after, rows, deadline).await? {
        Outcome::Made => Ok(after),
        Outcome::Refused => Err(ViewError::Moved),
    }
}

/// The keys of the entries that a record has in some indexes. A damaged row has none: the check reports it.
fn entries_of(
    kind: &KindSchema,
    new: &[Known],
    account: AccountId,
    key: &[u8],
    value: &[u8],
) -> Result<Vec<Vec<u8>>, Error> {
    let Some((_, id)) = decode_state_key(key) else { return Ok(Vec::new()) };
    let properties =
        StateRow::decode(value).and_then(|row| crate::entries::take_properties(&mut { row.properties }));
    let Some(properties) = properties else {
        warn!(
            account = account.0,
            kind = kind.kind.0,
            id = id.0,
            "a damaged record is left out of a new index"
        );
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for index in &kind.indexes {
        if new.iter().any(|known| (known.kind, known.index) == (kind.kind, index.index)) {
            found.extend(entry_keys(kind.kind, id, index, &properties)?);
        }
    }
    debug_assert!(found.iter().all(|key| key.first() == Some(&keys::INDEX)), "every key is an index entry");
    Ok(found)
}
