//! Reading records and states.

use std::collections::{BTreeMap, HashMap};

use super::{
    Shared,
    schema::{corrupt, state_key},
    view::{KEYS, Range, Row, SLICE_ROWS, View, Views, behind},
};
use crate::{
    AccountId, Body, Error, Get, Kind, Property, Record, RecordId, Revision, States, entries,
    rows::{BodyNumber, StateRow},
};

/// From this many records on, a range of rows is read instead of single keys: that costs Cassandra less per record.
const IDS_OF_RANGE: usize = 8;
/// The most rows of such a range per requested record.
const ROWS_PER_ID: usize = 2;

impl Shared {
    /// [`crate::Records::states`].
    pub(super) async fn states(&self, account: AccountId) -> Result<States, Error> {
        let view = self.views(account).begin().await?;
        let head = view.head.row.after_restores(self.restores());
        let kinds = head.kinds.iter().map(|share| (share.kind, share.state)).collect();
        Ok(States { revision: head.revision, kinds })
    }

    /// [`crate::Records::get_with_state`] for a checked request.
    pub(super) async fn get(
        &self,
        account: AccountId,
        get: &Get,
    ) -> Result<(Revision, Vec<Option<Record>>), Error> {
        let mut ids = get.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        let views = self.views(account);
        // The version of the account at which a body was missing.
        let mut missing = None;
        loop {
            let Some((view, states)) = self.read_states(&views, get.kind, &ids).await? else { continue };
            let bodies = match get.with_body {
                true => self.bodies_of(account, states.values(), rows_of_range(&ids).is_some()).await?,
                false => BTreeMap::new(),
            };
            let behind = self.restores().saturating_sub(view.head.row.restores);
            let mut records = Vec::with_capacity(get.ids.len());
            let mut is_damaged = None;
            for id in &get.ids {
                let record = states.get(&state_key(get.kind, *id)).map(|value| {
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
                // The body may have been replaced after the state of its record was read.
                Some(error) if missing == Some(view.head.version) => return Err(error),
                Some(_) => missing = Some(view.head.version),
            }
        }
    }

    /// The rows of some records, whose ids are ascending; `None` when the account has changed meanwhile.
    async fn read_states<'s>(
        &'s self,
        views: &Views<'s>,
        kind: Kind,
        ids: &[RecordId],
    ) -> Result<Option<(View<'s>, HashMap<Vec<u8>, Vec<u8>>)>, Error> {
        let keys: Vec<Vec<u8>> = ids.iter().map(|id| state_key(kind, *id)).collect();
        if let Some(limit) = rows_of_range(ids)
            && let [from, .., last] = &keys[..]
        {
            let to = behind(last);
            let (view, found) = views.begin_with(Range { from, to: &to, limit, is_down: false }).await?;
            // The range has at most `limit` keys, so nothing is cut.
            let rows = views.accept(&view, view.rows(&found, usize::MAX)).await?;
            let is_asked_for = |(key, _): &Row| keys.binary_search(key).is_ok();
            return Ok(rows.map(|rows| (view, rows.into_iter().filter(is_asked_for).collect())));
        }
        if keys.len() <= KEYS {
            // One statement reads them together with the head, so all are of one moment.
            let (rows, head) = self.find(views.account(), &keys).await?;
            if let Some(view) = views.of_confirmed(head) {
                return Ok(Some((view, rows.into_iter().collect())));
            }
        }
        let view = views.begin().await?;
        let rows = view.find(&keys).await;
        let rows = views.accept(&view, rows).await?;
        Ok(rows.map(|rows| (view, rows.into_iter().collect())))
    }

    /// The bodies that rows of records refer to. `are_close`: see `read_bodies`.
    pub(super) async fn bodies_of<'r>(
        &self,
        account: AccountId,
        states: impl Iterator<Item = &'r Vec<u8>>,
        are_close: bool,
    ) -> Result<BTreeMap<u64, Body>, Error> {
        let numbers = states.filter_map(|value| StateRow::decode(value)).map(|state| state.body);
        let numbers = numbers.filter(|body| *body != BodyNumber::EMPTY).map(|body| body.0).collect();
        self.read_bodies(account, numbers, are_close).await
    }

    /// Decodes a record; without `bodies` its body is left empty.
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

    /// The properties of a kind that are raised after a restore.
    fn counters(&self, kind: Kind) -> &[Property] {
        self.schema.kind(kind).map_or(&[][..], |kind| &kind.counters[..])
    }
}

/// The most rows of the range that covers these ascending ids; `None` when reading them one by one is better.
fn rows_of_range(ids: &[RecordId]) -> Option<usize> {
    let (first, last) = ids.first().zip(ids.last())?;
    let rows = usize::try_from(last.0.checked_sub(first.0)?).ok()?.checked_add(1)?;
    (ids.len() >= IDS_OF_RANGE && rows <= (ids.len() * ROWS_PER_ID).min(SLICE_ROWS)).then_some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_close_together_are_one_range() {
        let of = |ids: &[u64]| rows_of_range(&ids.iter().copied().map(RecordId).collect::<Vec<_>>());
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, 8]), Some(8));
        assert_eq!(of(&[1, 3, 5, 7, 9, 11, 13, 15]), Some(15));
        assert_eq!(of(&[1, 3, 5, 7, 9, 11, 13, 17]), None, "too many others are between them");
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7]), None);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, u64::MAX]), None);
    }
}
