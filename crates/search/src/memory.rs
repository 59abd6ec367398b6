//! The reference model: documents in maps, matched one by one. Every write is committed at once.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    AccountId, Batch, Begun, Document, Error, Hit, Index, Opened, Page, Query, RecordId, Report, Revision,
    Search, Series, Stats, Upkeep, matches, validate,
};

struct Model {
    state: Mutex<State>,
    /// The series that may write.
    series: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    accounts: BTreeMap<AccountId, Account>,
    checkpoint: Option<Bytes>,
    is_closed: bool,
}

#[derive(Default)]
struct Account {
    documents: BTreeMap<RecordId, Document>,
    revision: Revision,
}

pub(crate) fn open() -> Opened {
    let model = Arc::new(Model { state: Mutex::default(), series: watch::Sender::new(0) });
    Opened { search: model.clone(), index: model.clone(), upkeep: model }
}

impl Model {
    fn end_series(&self) {
        self.series.send_modify(|series| *series += 1);
    }

    /// Changes the state for a series that has not ended.
    fn change(&self, series: Series, change: impl FnOnce(&mut State)) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check_open()?;
        if *self.series.borrow() != series.0 {
            return Err(Error::conflict("the series of writes to the search index has ended: begin again"));
        }
        change(&mut state);
        Ok(())
    }
}

impl State {
    fn check_open(&self) -> Result<(), Error> {
        match self.is_closed {
            true => Err(Error::unavailable("the search index is closed")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Search for Model {
    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        validate::query(query)?;
        let state = self.state.lock();
        state.check_open()?;
        let Some(account) = state.accounts.get(&account) else { return Ok(Page::default()) };
        let mut hits = Vec::new();
        for document in account.documents.values() {
            let hit = Hit { id: document.id, received: document.received };
            let is_behind = query.after.is_none_or(|after| query.order.compare(&after, &hit).is_lt());
            if is_behind && matches(document, &query.filter) {
                hits.push(hit);
            }
        }
        hits.sort_by(|left, right| query.order.compare(left, right));
        let has_more = hits.len() > query.limit;
        hits.truncate(query.limit);
        Ok(Page { hits, has_more, revision: account.revision })
    }
}

#[async_trait]
impl Index for Model {
    async fn begin(&self) -> Result<Begun, Error> {
        let state = self.state.lock();
        state.check_open()?;
        self.end_series();
        Ok(Begun { series: Series(*self.series.borrow()), checkpoint: state.checkpoint.clone() })
    }

    async fn ended(&self, series: Series) {
        let mut now = self.series.subscribe();
        let _ = now.wait_for(|now| *now != series.0).await; // fails when the index was dropped
    }

    async fn write(&self, series: Series, account: AccountId, batch: Batch) -> Result<(), Error> {
        validate::batch(&batch)?;
        self.change(series, |state| {
            let account = state.accounts.entry(account).or_default();
            for id in &batch.removed {
                account.documents.remove(id);
            }
            for document in batch.documents {
                account.documents.insert(document.id, document);
            }
            account.revision = batch.revision.unwrap_or(account.revision);
        })
    }

    async fn erase(&self, series: Series, account: AccountId) -> Result<(), Error> {
        self.change(series, |state| drop(state.accounts.remove(&account)))
    }

    async fn save(&self, series: Series, checkpoint: Bytes) -> Result<(), Error> {
        validate::checkpoint(&checkpoint)?;
        self.change(series, |state| state.checkpoint = Some(checkpoint))
    }

    async fn revisions(&self, series: Series, accounts: &[AccountId]) -> Result<Vec<Revision>, Error> {
        let mut revisions = Vec::new();
        self.change(series, |state| {
            let revision =
                |account| state.accounts.get(account).map_or(Revision(0), |account| account.revision);
            revisions = accounts.iter().map(revision).collect();
        })?;
        Ok(revisions)
    }

    async fn commit(&self, series: Series) -> Result<(), Error> {
        self.change(series, |_| {})
    }
}

#[async_trait]
impl Upkeep for Model {
    fn health(&self) -> Result<(), Error> {
        self.state.lock().check_open()
    }

    async fn stats(&self) -> Result<Stats, Error> {
        let state = self.state.lock();
        state.check_open()?;
        let documents = state.accounts.values().map(|account| account.documents.len() as u64).sum();
        Ok(Stats { documents, segments: 1, ..Stats::default() })
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.state.lock().check_open()?;
        progress(0, 0); // there are no files
        Ok(Report::default())
    }

    async fn clear(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check_open()?;
        *state = State::default();
        self.end_series();
        Ok(())
    }

    async fn close(&self) -> Result<(), Error> {
        self.state.lock().is_closed = true;
        self.end_series();
        Ok(())
    }
}
