//! Reading records and states.

use std::hint::black_box;

use restante_lmdb::View;

use crate::{AccountId, Body, Error, Get, Kind, Properties, Record, RecordId, States, entries};

use super::{
    Engine,
    schema::{AccountRow, BODY, BodyNumber, STATE, StateRow, body_key, corrupt, state_key},
};

impl Engine {
    /// [`crate::Records::get`] for a checked request.
    pub(super) fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        self.store.read(|view| {
            let mut records = Vec::with_capacity(get.ids.len());
            for id in &get.ids {
                records.push(self.read_record(view, account, get.kind, *id, get.with_body)?);
            }
            Ok(records)
        })
    }

    /// A record that `view` sees.
    pub(super) fn read_record(
        &self,
        view: &View<'_>,
        account: AccountId,
        kind: Kind,
        id: RecordId,
        with_body: bool,
    ) -> Result<Option<Record>, Error> {
        let Some(record) = self.read_stored(view, account, kind, id, with_body)? else { return Ok(None) };
        let properties = self.with_counters_raised(view, account, kind, record.properties)?;
        Ok(Some(Record { properties, ..record }))
    }

    /// The record as stored: its counters may have been raised by a restore since.
    pub(super) fn read_stored(
        &self,
        view: &View<'_>,
        account: AccountId,
        kind: Kind,
        id: RecordId,
        with_body: bool,
    ) -> Result<Option<Record>, Error> {
        let key = state_key(account, kind, id);
        let Some(value) = view.get(STATE, &key)? else { return Ok(None) };
        let row = StateRow::decode(value).ok_or_else(|| corrupt(STATE, &key))?;
        let mut packed = row.properties;
        let properties = entries::take_properties(&mut packed).ok_or_else(|| corrupt(STATE, &key))?;
        let body = if with_body { self.read_body(view, row.body)? } else { Body::default() };
        Ok(Some(Record { kind, id, revision: row.revision, created: row.created, body, properties }))
    }

    /// Raises counters after a restore, until the first commit after it writes the raised values.
    fn with_counters_raised(
        &self,
        view: &View<'_>,
        account: AccountId,
        kind: Kind,
        properties: Properties,
    ) -> Result<Properties, Error> {
        let restores = self.ledger.restores;
        let counters = self.ledger.schema.kind(kind).map_or(&[][..], |kind| &kind.counters[..]);
        if restores == 0 || counters.is_empty() {
            return Ok(properties);
        }
        let behind = restores.saturating_sub(AccountRow::read(view, account)?.restores);
        Ok(if behind == 0 { properties } else { properties.raised(counters, behind) })
    }

    /// A body of a record that `view` sees.
    fn read_body(&self, view: &View<'_>, number: BodyNumber) -> Result<Body, Error> {
        if number == BodyNumber::EMPTY {
            return Ok(Body::default());
        }
        let key = body_key(number);
        let row = view.get(BODY, &key)?.ok_or_else(|| corrupt(BODY, &key))?;
        fetch(row);
        self.bodies.decode(row)
    }

    /// [`crate::Records::states`].
    pub(super) fn states(&self, account: AccountId) -> Result<States, Error> {
        let row = self.store.read(|view| AccountRow::read(view, account))?;
        let row = row.after_restores(self.ledger.restores);
        let kinds = row.kinds.iter().map(|share| (share.kind, share.state)).collect();
        Ok(States { revision: row.revision, kinds })
    }
}

/// Touches each cache line of a row, so that they are loaded from memory in parallel. Decoding would wait for each of them in
/// turn, because what one line contains decides where it reads next.
fn fetch(row: &[u8]) {
    const LINE_BYTES: usize = 64;
    const FETCH_BYTES_MAX: usize = 1 << 10; // after that, the processor prefetches the rest
    let row = row.get(..FETCH_BYTES_MAX).unwrap_or(row);
    let first = |line: &[u8]| line.first().copied().unwrap_or_default();
    black_box(row.chunks(LINE_BYTES).fold(0, |all, line| all ^ first(line)));
}
