//! The rows of the ordered map for an account that is being moved.

use super::{
    keys::{entry_keys, from_sql, live_key, state_key, tombstone_key},
    work::{Value, Writes, pack, sql_body},
};
use crate::{
    AccountId, Body, Error, Record, Row, Schema,
    rows::{BodyNumber, LiveRow, StateRow, TombstoneRow},
    transfer::damaged,
};

fn is_stored(body: &Body) -> bool {
    !body.bytes.is_empty() || !body.blobs.is_empty()
}

/// How many of these rows have a body, which needs a number.
pub(crate) fn count_bodies(rows: &[Row]) -> usize {
    let mut count = 0;
    for row in rows {
        if let Row::Record(record) = row {
            count += usize::from(is_stored(&record.body));
        }
    }
    count
}

/// Computes the rows of the ordered map for rows of an account. `numbers` are for their bodies.
pub(crate) fn plan(
    schema: &Schema,
    account: AccountId,
    rows: Vec<Row>,
    numbers: &mut impl Iterator<Item = i64>,
) -> Result<Writes, Error> {
    let mut writes = Writes::default();
    for row in rows {
        match row {
            Row::Record(record) => plan_record(schema, account, record, numbers, &mut writes)?,
            Row::Damaged(key, damage) => return Err(damaged(account, key, &damage)),
            Row::Tombstone(gone) => {
                let row = TombstoneRow { created: gone.created, second: gone.destroyed_seconds };
                let value = Value::new(row.encode().into_vec(), None);
                let key = tombstone_key(gone.kind, gone.revision, gone.id);
                writes.rows.insert((account, key), Some(value));
            }
        }
    }
    Ok(writes)
}

fn plan_record(
    schema: &Schema,
    account: AccountId,
    record: Record,
    numbers: &mut impl Iterator<Item = i64>,
    writes: &mut Writes,
) -> Result<(), Error> {
    let Record { kind, id, revision, created, body, properties } = record;
    let mut put = |key: Vec<u8>, bytes: Vec<u8>, body: Option<i64>| {
        writes.rows.insert((account, key), Some(Value::new(bytes, body)));
    };
    put(live_key(kind, created, id), LiveRow::Creation.encode().into_vec(), None);
    if revision != created {
        put(live_key(kind, revision, id), LiveRow::Change { created }.encode().into_vec(), None);
    }
    // A kind that is not in the schema has no indexes.
    for index in schema.kind(kind).map_or(&[][..], |kind| &kind.indexes[..]) {
        for key in entry_keys(kind, id, index, &properties)? {
            put(key, Vec::new(), None);
        }
    }
    let mut number = BodyNumber::EMPTY;
    if is_stored(&body) {
        let next = numbers.next().ok_or_else(|| Error::internal("more bodies than were counted"))?;
        number = BodyNumber(from_sql(next));
    }
    let state = StateRow { revision, created, body: number, properties: &pack(&properties) };
    put(state_key(kind, id), state.encode().into_vec(), sql_body(number));
    if let Some(number) = sql_body(number) {
        writes.bodies.insert(number, (account, body));
    }
    Ok(())
}
