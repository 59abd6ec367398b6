//! Reading records and states.

use restante_lmdb::View;

use crate::{AccountId, Body, Error, Get, Id, Kind, Record, States, entries};

use super::{
    Engine,
    schema::{AccountRow, BODY, BodyNumber, STATE, StateRow, body_key, corrupt, state_key},
};

impl Engine {
    /// [`crate::Records::get`] of what has been checked.
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
        id: Id,
        with_body: bool,
    ) -> Result<Option<Record>, Error> {
        let key = state_key(account, kind, id);
        let Some(value) = view.get(STATE, &key)? else { return Ok(None) };
        let row = StateRow::decode(&value).ok_or_else(|| corrupt(STATE, &key))?;
        let mut packed = row.properties;
        let properties = entries::take_properties(&mut packed).ok_or_else(|| corrupt(STATE, &key))?;
        let body = if with_body { self.read_body(view, row.body)? } else { Body::default() };
        Ok(Some(Record { kind, id, revision: row.revision, created: row.created, body, properties }))
    }

    /// A body of a record that `view` sees.
    fn read_body(&self, view: &View<'_>, number: BodyNumber) -> Result<Body, Error> {
        if number == BodyNumber::EMPTY {
            return Ok(Body::default());
        }
        let key = body_key(number);
        let row = view.get(BODY, &key)?.ok_or_else(|| corrupt(BODY, &key))?;
        self.bodies.decode(&row)
    }

    /// [`crate::Records::states`].
    pub(super) fn states(&self, account: AccountId) -> Result<States, Error> {
        let row = self.store.read(|view| AccountRow::read(view, account))?;
        let kinds = row.kinds.iter().map(|share| (share.kind, share.state)).collect();
        Ok(States { revision: row.revision, kinds })
    }
}
