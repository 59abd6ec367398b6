//! Reading records and states.

use std::collections::{BTreeMap, HashMap};

use super::{
    Shared,
    schema::{corrupt, state_key},
    view::{KEYS, View, Views},
};
use crate::{
    AccountId, Body, Error, Get, Kind, Property, Record, RecordId, Revision, States, entries,
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

    /// [`crate::Records::get_with_state`] of what has been checked.
    pub(super) async fn get(
        &self,
        account: AccountId,
        get: &Get,
    ) -> Result<(Revision, Vec<Option<Record>>), Error> {
        let keys: Vec<Vec<u8>> = get.ids.iter().map(|id| state_key(get.kind, *id)).collect();
        let mut unique = keys.clone();
        unique.sort_unstable();
        unique.dedup();
        let views = self.views(account);
        // The version with which a body was not there.
        let mut missing = None;
        loop {
            let Some((view, states)) = self.read_states(&views, &unique).await? else { continue };
            let bodies = match get.with_body {
                true => self.bodies_of(account, states.values()).await?,
                false => BTreeMap::new(),
            };
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
                None => {
                    let head = view.head.row.after_restores(self.restores());
                    return Ok((head.kind(get.kind).state, records));
                }
                // Its body may have been replaced since its state was read.
                Some(error) if missing == Some(view.head.version) => return Err(error),
                Some(_) => missing = Some(view.head.version),
            }
        }
    }

    /// The rows of some records; `None` when the account has changed meanwhile.
    async fn read_states<'s>(
        &'s self,
        views: &Views<'s>,
        keys: &[Vec<u8>],
    ) -> Result<Option<(View<'s>, HashMap<Vec<u8>, Vec<u8>>)>, Error> {
        if keys.len() <= KEYS {
            // One statement reads them at one moment, the head among them.
            let (rows, head) = self.find(views.account(), keys).await?;
            if let Some(view) = views.of_confirmed(head) {
                return Ok(Some((view, rows.into_iter().collect())));
            }
        }
        let view = views.begin().await?;
        let rows = view.find(keys).await;
        let rows = views.accept(&view, rows).await?;
        Ok(rows.map(|rows| (view, rows.into_iter().collect())))
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
