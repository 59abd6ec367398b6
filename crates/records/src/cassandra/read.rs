//! Reading records and states.

use std::collections::{BTreeMap, HashMap};

use super::{
    Shared,
    schema::{corrupt, state_key},
    view::{View, ViewError},
};
use crate::{
    AccountId, Body, Error, Get, Kind, Property, Record, RecordId, States, entries,
    rows::{BodyNumber, StateRow},
};

impl Shared {
    /// [`crate::Records::states`].
    pub(super) async fn states(&self, account: AccountId) -> Result<States, Error> {
        let view = self.views(account).begin().await?;
        let head = view.head.row.after_restores(self.restores());
        let kinds = head.kinds.iter().map(|share| (share.kind, share.state)).collect();
        Ok(States { revision: head.revision, kinds })
    }

    /// [`crate::Records::get`] of what has been checked.
    pub(super) async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        let keys: Vec<Vec<u8>> = get.ids.iter().map(|id| state_key(get.kind, *id)).collect();
        let mut unique = keys.clone();
        unique.sort_unstable();
        unique.dedup();
        let views = self.views(account);
        // The version with which a body was not there.
        let mut missing = None;
        loop {
            let view = views.begin().await?;
            let read = self.read_states(&view, &unique, get.with_body).await;
            let Some((states, bodies)) = views.accept(&view, read).await? else { continue };
            let behind = self.restores().saturating_sub(view.head.row.restores);
            let mut records = Vec::with_capacity(keys.len());
            let mut is_damaged = None;
            for (id, key) in get.ids.iter().zip(&keys) {
                let record = states.get(key).map(|value| {
                    self.record(account, (get.kind, *id), value, get.with_body.then_some(&bodies), behind)
                });
                match record.transpose() {
                    Ok(record) => records.push(record),
                    Err(error) => is_damaged = Some(error),
                }
            }
            match is_damaged {
                None => return Ok(records),
                // Its body may have been replaced since its state was read.
                Some(error) if missing == Some(view.head.version) => return Err(error),
                Some(_) => missing = Some(view.head.version),
            }
        }
    }

    /// The rows of some records, and their bodies when they are wanted.
    async fn read_states(
        &self,
        view: &View<'_>,
        keys: &[Vec<u8>],
        with_body: bool,
    ) -> Result<(HashMap<Vec<u8>, Vec<u8>>, BTreeMap<u64, Body>), ViewError> {
        let states: HashMap<Vec<u8>, Vec<u8>> = view.find(keys).await?.into_iter().collect();
        let bodies = match with_body {
            true => self.bodies_of(view.account(), states.values()).await?,
            false => BTreeMap::new(),
        };
        Ok((states, bodies))
    }

    /// The bodies that rows of records name.
    pub(super) async fn bodies_of<'r>(
        &self,
        account: AccountId,
        states: impl Iterator<Item = &'r Vec<u8>>,
    ) -> Result<BTreeMap<u64, Body>, Error> {
        let numbers = states.filter_map(|value| StateRow::decode(value)).map(|state| state.body);
        let numbers = numbers.filter(|body| *body != BodyNumber::EMPTY).map(|body| body.0).collect();
        self.read_bodies(account, numbers).await
    }

    /// The record of a row; without `bodies` its body is left out.
    pub(super) fn record(
        &self,
        account: AccountId,
        (kind, id): (Kind, RecordId),
        value: &[u8],
        bodies: Option<&BTreeMap<u64, Body>>,
        behind: u64,
    ) -> Result<Record, Error> {
        let damaged = || corrupt(account, &state_key(kind, id));
        let state = StateRow::decode(value).ok_or_else(damaged)?;
        let mut packed = state.properties;
        let mut properties = entries::take_properties(&mut packed).ok_or_else(damaged)?;
        if behind > 0 {
            properties = properties.raised(self.counters(kind), behind);
        }
        let body = match bodies {
            Some(bodies) if state.body != BodyNumber::EMPTY => {
                bodies.get(&state.body.0).cloned().ok_or_else(damaged)?
            }
            _ => Body::default(),
        };
        Ok(Record { kind, id, revision: state.revision, created: state.created, body, properties })
    }

    /// The properties of a kind that jump after a restore.
    fn counters(&self, kind: Kind) -> &[Property] {
        self.schema.kind(kind).map_or(&[][..], |kind| &kind.counters[..])
    }
}
