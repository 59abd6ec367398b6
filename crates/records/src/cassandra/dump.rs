//! Pages over the whole store: of all records, and of the blobs that they refer to.

use scylla::value::CqlValue;

use super::{
    Shared,
    accounts::ACCOUNTS,
    connect::{bigint, bytes, number, text},
    schema::{REFERENCE_BITS, RESTORE_BITS, STATE, after, corrupt, decode_state_key, state_key},
    view::{Range, View, ViewError, behind},
};
use crate::{AccountId, Damage, Dumped, Error, RecordKey, Referenced, map::blobs_of, validate};

/// Bodies per page of references: each refers to up to 256 blobs.
const REFERENCED_BODIES: usize = 1_024;
/// Partitions that are searched for one page of references.
const SEGMENTS: usize = 256;

const REFERENCED: &str = "SELECT number, blobs FROM reference \
     WHERE store = ? AND segment = ? AND number > ? LIMIT ?";

impl Shared {
    /// A page of all records, from the record that follows `after`. Each account is read as of its own moment.
    pub(super) async fn dump(&self, after: Option<RecordKey>, limit: usize) -> Result<Vec<Dumped>, Error> {
        validate::check_dump(limit)?;
        let mut page = Vec::new();
        let mut last = None;
        if let Some(place) = after {
            let key = state_key(place.kind, place.id);
            self.dump_account(place.account, behind(&key), limit, &mut page).await?;
            last = Some(place.account);
        }
        while page.len() < limit {
            let accounts = self.next_accounts(last).await?;
            for account in &accounts {
                if page.len() < limit {
                    self.dump_account(*account, vec![STATE], limit, &mut page).await?;
                }
            }
            last = accounts.last().copied();
            if accounts.len() < ACCOUNTS {
                break;
            }
        }
        Ok(page)
    }

    /// Adds the records of an account from a key on until the page is full.
    async fn dump_account(
        &self,
        account: AccountId,
        from: Vec<u8>,
        limit: usize,
        page: &mut Vec<Dumped>,
    ) -> Result<(), Error> {
        let room = limit.saturating_sub(page.len());
        let views = self.views(account);
        let mut missing = None;
        loop {
            let view = views.begin().await?;
            if view.head.row.kinds.iter().all(|share| share.records == 0) {
                return Ok(());
            }
            let read = self.dump_view(&view, &from, room).await;
            match read {
                // A body that is missing may have been replaced since its state was read.
                Ok(records) if has_damage(&records) && missing != Some(view.head.version) => {
                    missing = Some(view.head.version);
                }
                read => {
                    if let Some(records) = views.accept(&view, read).await? {
                        page.extend(records);
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn dump_view(&self, view: &View<'_>, from: &[u8], room: usize) -> Result<Vec<Dumped>, ViewError> {
        let behind = self.restores().saturating_sub(view.head.row.restores);
        self.view_records(view, from, room, behind).await
    }

    /// The records of an account from a key on, at most `limit`. Their counters are raised for `behind` restores.
    pub(super) async fn view_records(
        &self,
        view: &View<'_>,
        from: &[u8],
        limit: usize,
        behind: u64,
    ) -> Result<Vec<Dumped>, ViewError> {
        let account = view.account();
        let to = after(STATE);
        let rows = view.slice(Range { from, to: &to, limit, is_down: false }).await?;
        let bodies = self.bodies_of(account, rows.iter().map(|(_, value)| value), true).await?;
        let mut records = Vec::with_capacity(rows.len());
        for (key, value) in &rows {
            let (kind, id) = decode_state_key(key).ok_or_else(|| corrupt(account, key))?;
            let read = self.record(account, (kind, id), value, Some(&bodies), behind);
            let key = RecordKey { account, kind, id };
            records.push(Dumped { key, record: Damage::separate(read)? });
        }
        Ok(records)
    }

    /// A page of the blobs that bodies refer to, from the body that follows `after`. The number of a new body is higher than that
    /// of the body whose references it takes over, because it is assigned when its commit begins. So a walk that misses one of
    /// the two sees the other.
    pub(super) async fn referenced(&self, after: Option<u64>) -> Result<Referenced, Error> {
        // First let the finisher remove what commits of this server no longer refer to.
        drop(self.finishing.write().await);
        let mut last = after.unwrap_or_default();
        let mut restores = last >> RESTORE_BITS;
        let mut end = 0; // read in the first iteration
        let mut page = Referenced::default();
        let mut bodies = 0;
        for _ in 0..SEGMENTS {
            if last >= end {
                // Read it again at the end: a commit may have moved a reference into the next segment meanwhile.
                end = self.last_body(restores).await?;
            }
            if last >= end {
                if restores >= self.restores() {
                    return Ok(page);
                }
                // Continue with the numbers assigned since the next restore.
                restores += 1;
                last = (restores << RESTORE_BITS) - 1;
                continue;
            }
            let segment = (last + 1) >> REFERENCE_BITS;
            let limit = CqlValue::Int((REFERENCED_BODIES - bodies) as i32);
            let values = vec![text(self.store()), bigint(segment), bigint(last), limit];
            let rows = self.database.read("list blobs", REFERENCED, values).await?;
            for row in &rows {
                let found = number(row, 0).zip(bytes(row, 1).and_then(blobs_of));
                let damaged =
                    || Error::corrupt(format!("a row of segment {segment} of reference is damaged"));
                let (number, blobs) = found.ok_or_else(damaged)?;
                page.blobs.extend(blobs);
                last = number;
            }
            bodies += rows.len();
            if bodies >= REFERENCED_BODIES {
                break;
            }
            last = (((segment + 1) << REFERENCE_BITS) - 1).max(last);
        }
        page.next = Some(last);
        Ok(page)
    }

    /// The last body number that was assigned after this many restores, or one below the first.
    async fn last_body(&self, restores: u64) -> Result<u64, Error> {
        let before = (restores << RESTORE_BITS).saturating_sub(1);
        Ok(self.last_counter(restores).await?.map_or(before, |counter| counter.last_body()))
    }
}

fn has_damage(records: &[Dumped]) -> bool {
    records.iter().any(|dumped| dumped.record.is_err())
}
