//! Operations for operators on the reference model.

use std::{collections::BTreeMap, path::Path};

use async_trait::async_trait;
use restante_core::{BlobId, Identity, Timestamp};

use crate::{
    AccountId, Announcement, Cleaned, Dumped, Erased, Error, Kind, KindStats, Position, RecordKey,
    Referenced, Report, Stats, Upkeep,
    memory::{Model, State, account::Account},
    validate,
};

/// A page of references ends with the body that brings it to this many blobs.
const REFERENCED_BLOBS: usize = 1_024;

#[async_trait]
impl Upkeep for Model {
    async fn stats(&self) -> Result<Stats, Error> {
        let state = self.state.lock();
        let mut kinds: BTreeMap<Kind, KindStats> = BTreeMap::new();
        for account in state.accounts.values() {
            count_kinds(account, &mut kinds);
        }
        Ok(Stats {
            accounts: state.accounts.len() as u64,
            kinds: kinds.into_values().collect(),
            commits: state.accounts.values().map(|account| account.revision.0).sum(),
            disk_bytes: 0,
            engine: Vec::new(),
        })
    }

    fn health(&self) -> Result<(), Error> {
        self.state.lock().check_open()
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        // Everything is computed from the records, so nothing can contradict them.
        let records: usize = self.state.lock().accounts.values().map(|account| account.records.len()).sum();
        progress(records as u64, records as u64);
        Ok(Report { records: records as u64, ..Report::default() })
    }

    async fn clean(&self, before: Timestamp, limit: usize) -> Result<Cleaned, Error> {
        let mut state = self.state.lock();
        state.check_open()?;
        let mut cleaned = Cleaned::default();
        for account in state.accounts.values_mut() {
            clean_account(account, before, limit, &mut cleaned);
        }
        Ok(cleaned)
    }

    async fn erase(&self, account: AccountId, limit: usize) -> Result<Erased, Error> {
        let mut state = self.state.lock();
        state.check_open()?;
        let position = Position(state.position.0 + 1);
        let Some(known) = state.accounts.get_mut(&account) else { return Ok(Erased::default()) };
        let before = known.revision;
        let erased = known.erase(limit);
        let revision = known.revision;
        if revision > before {
            known.moved_to(position, self.clock.now());
            state.position = position;
            self.announcer.announce(Announcement { account, revision });
        }
        Ok(erased)
    }

    async fn dump(&self, after: Option<RecordKey>, limit: usize) -> Result<Vec<Dumped>, Error> {
        validate::check_dump(limit)?;
        let state = self.state.lock();
        let mut page = Vec::new();
        for (account, known) in &state.accounts {
            for ((kind, id), stored) in &known.records {
                let place = RecordKey { account: *account, kind: *kind, id: *id };
                let is_behind = after.is_none_or(|after| place > after);
                if is_behind && page.len() < limit {
                    page.push(Dumped { key: place, record: Ok(stored.record.clone()) });
                }
            }
        }
        Ok(page)
    }

    async fn referenced(&self, after: Option<u64>) -> Result<Referenced, Error> {
        let references = references(&self.state.lock());
        let mut page = Referenced::default();
        for (body, blobs) in references {
            if after.is_some_and(|after| body <= after) {
                continue;
            }
            if page.blobs.len() >= REFERENCED_BLOBS {
                return Ok(page); // there are more, after the last one
            }
            page.blobs.extend(blobs);
            page.next = Some(body);
        }
        Ok(Referenced { next: None, ..page })
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn restores(&self) -> u64 {
        0
    }

    async fn backup(&self, _folder: &Path) -> Result<(), Error> {
        Err(Error::invalid("the memory engine keeps nothing on disk: there is nothing to back up"))
    }

    async fn close(&self) -> Result<(), Error> {
        self.state.lock().is_closed = true;
        Ok(())
    }
}

fn count_kinds(account: &Account, kinds: &mut BTreeMap<Kind, KindStats>) {
    for kind in account.kinds.keys() {
        let stats = kinds.entry(*kind).or_default();
        stats.kind = *kind;
        stats.records += account.records.keys().filter(|(of, _)| of == kind).count() as u64;
        stats.tombstones += account.tombstones.keys().filter(|(of, ..)| of == kind).count() as u64;
    }
}

/// Removes tombstones from before a time, up to `limit`.
fn clean_account(account: &mut Account, before: Timestamp, limit: usize, cleaned: &mut Cleaned) {
    let old = account.tombstones.iter().filter(|(_, tombstone)| tombstone.destroyed_at < before);
    let old: Vec<_> = old.map(|(place, _)| *place).collect();
    let mut has_risen = false;
    for place in old {
        if cleaned.tombstones == limit as u64 {
            cleaned.has_more = true;
            break;
        }
        account.tombstones.remove(&place);
        cleaned.tombstones += 1;
        let (kind, revision, _) = place;
        let floor = &mut account.kinds.entry(kind).or_default().floor;
        has_risen |= revision > *floor;
        *floor = revision.max(*floor);
    }
    cleaned.accounts += u64::from(has_risen);
}

/// The blobs of each body, by the number of the body.
fn references(state: &State) -> BTreeMap<u64, Vec<BlobId>> {
    let mut references = BTreeMap::new();
    for account in state.accounts.values() {
        for stored in account.records.values() {
            if !stored.record.body.blobs.is_empty() {
                references.insert(stored.body, stored.record.body.blobs.clone());
            }
        }
    }
    references
}
