//! Bodies: separate rows beside the account, written before the commit that refers to them and never changed.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use scylla::value::{CqlValue, Row};

use super::{
    Shared,
    connect::{Bound, bigint, blob, bytes, number, text},
    schema::{REFERENCE_BITS, account_number, body_bucket, gone_key},
};
use crate::{AccountId, Body, Error, map::blobs_of};

/// The most rows that one statement writes.
const BATCH_ROWS: usize = 100;
const BATCH_BYTES: usize = 1 << 20;
/// The most bodies that one statement reads: each has up to 256 KiB.
const READ_BODIES: usize = 32;
/// From this many bodies on, a range of rows is read instead of single numbers: that costs Cassandra less per body.
const RANGE_BODIES: usize = 8;
/// Statements of one request that run concurrently.
const AT_ONCE: usize = 8;
/// Body numbers are never reused, so deletions get a timestamp in the future: even a clock that is wrong by a day does not bring
/// a deleted body back.
const AHEAD_MICROS: i64 = 86_400_000_000;

const PUT: &str = "INSERT INTO body (store, account, bucket, number, blobs, bytes) VALUES (?, ?, ?, ?, ?, ?)";
const REFER: &str = "INSERT INTO reference (store, segment, number, account, blobs) VALUES (?, ?, ?, ?, ?)";
const GET: &str = "SELECT number, blobs, bytes FROM body \
     WHERE store = ? AND account = ? AND bucket = ? AND number IN ?";
const GET_RANGE: &str = "SELECT number, blobs, bytes FROM body \
     WHERE store = ? AND account = ? AND bucket = ? AND number >= ? AND number <= ? LIMIT ?";
const WHAT: &str = "read bodies of records";
const DELETE: &str =
    "DELETE FROM body USING TIMESTAMP ? WHERE store = ? AND account = ? AND bucket = ? AND number = ?";
const DELETE_REFERENCE: &str =
    "DELETE FROM reference USING TIMESTAMP ? WHERE store = ? AND segment = ? AND number = ?";
const DELETE_GONE: &str = "DELETE FROM account USING TIMESTAMP ? WHERE store = ? AND account = ? AND key = ?";

/// The timestamp of a permanent deletion: [`AHEAD_MICROS`] in the future.
pub(super) fn for_good() -> CqlValue {
    let now = restante_core::Clock::now(&restante_core::SystemClock);
    CqlValue::BigInt(now.nanos() / 1_000 + AHEAD_MICROS)
}

impl Shared {
    /// Writes bodies and the rows of their blob references. Idempotent.
    pub(super) async fn write_bodies(
        &self,
        account: AccountId,
        bodies: &BTreeMap<i64, (AccountId, Body)>,
    ) -> Result<(), Error> {
        let owner = CqlValue::BigInt(account_number(account));
        let mut batches = Batches::default();
        for (number, (_, body)) in bodies {
            let number = u64::try_from(*number).unwrap_or(0);
            let blobs: Vec<u8> = body.blobs.iter().flat_map(|id| id.0).collect();
            let bytes = body.bytes.len() + blobs.len();
            let values = vec![
                text(self.store()),
                owner.clone(),
                bigint(body_bucket(number)),
                bigint(number),
                blob(blobs.clone()),
                blob(body.bytes.to_vec()),
            ];
            batches.add((0, body_bucket(number)), (PUT, values), bytes);
            if !blobs.is_empty() {
                let segment = number >> REFERENCE_BITS;
                let bytes = blobs.len();
                let values =
                    vec![text(self.store()), bigint(segment), bigint(number), owner.clone(), blob(blobs)];
                batches.add((1, segment), (REFER, values), bytes);
            }
        }
        self.write_batches("write bodies of records", batches.finish()).await
    }

    pub(super) async fn write_batches(&self, what: &str, batches: Vec<Vec<Bound>>) -> Result<(), Error> {
        let mut writes = Vec::with_capacity(batches.len());
        for batch in batches {
            writes.push(self.database.write_all(what, batch));
        }
        stream::iter(writes).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
    }

    /// Removes bodies that no record refers to any more, and then the rows that mark them as such.
    pub(super) async fn remove_bodies(&self, account: AccountId, numbers: &[u64]) -> Result<(), Error> {
        if numbers.is_empty() {
            return Ok(());
        }
        let owner = CqlValue::BigInt(account_number(account));
        let (mut batches, mut marks) = (Batches::default(), Batches::default());
        for number in numbers {
            let segment = number >> REFERENCE_BITS;
            let values = vec![for_good(), text(self.store()), bigint(segment), bigint(*number)];
            batches.add((1, segment), (DELETE_REFERENCE, values), 0);
            let bucket = bigint(body_bucket(*number));
            let values = vec![for_good(), text(self.store()), owner.clone(), bucket, bigint(*number)];
            batches.add((0, body_bucket(*number)), (DELETE, values), 0);
            let values = vec![for_good(), text(self.store()), owner.clone(), blob(gone_key(*number))];
            marks.add((2, 0), (DELETE_GONE, values), 0);
        }
        self.write_batches("remove bodies of records", batches.finish()).await?;
        self.write_batches("remove bodies of records", marks.finish()).await
    }

    /// The bodies with these numbers; those that are missing or damaged are left out. `are_close` says that the numbers are
    /// likely close together, as those of records with neighbouring ids mostly are.
    pub(super) async fn read_bodies(
        &self,
        account: AccountId,
        mut numbers: Vec<u64>,
        are_close: bool,
    ) -> Result<BTreeMap<u64, Body>, Error> {
        numbers.sort_unstable();
        numbers.dedup();
        let mut reads = Vec::new();
        for bucket in numbers.chunk_by(|one, other| body_bucket(*one) == body_bucket(*other)) {
            for numbers in bucket.chunks(READ_BODIES) {
                reads.push(self.read_bucket(account, numbers, are_close));
            }
        }
        let mut bodies = BTreeMap::new();
        let mut pages = stream::iter(reads).buffer_unordered(AT_ONCE);
        while let Some(page) = pages.try_next().await? {
            bodies.extend(page);
        }
        Ok(bodies)
    }

    async fn read_bucket(
        &self,
        account: AccountId,
        numbers: &[u64],
        are_close: bool,
    ) -> Result<BTreeMap<u64, Body>, Error> {
        let Some((first, last)) = numbers.first().zip(numbers.last()) else { return Ok(BTreeMap::new()) };
        let mut place = self.account_values(account);
        place.push(bigint(body_bucket(*first)));
        let mut bodies = BTreeMap::new();
        if are_close && numbers.len() >= RANGE_BODIES {
            let limit = numbers.len() + numbers.len() / 4;
            let of_range = [bigint(*first), bigint(*last), CqlValue::Int(limit as i32)];
            let rows =
                self.database.read(WHAT, GET_RANGE, place.iter().cloned().chain(of_range).collect()).await?;
            bodies = decode(&rows);
            if rows.len() < limit {
                return Ok(bodies);
            }
        }
        let rest = numbers.iter().filter(|number| !bodies.contains_key(number)).map(|number| bigint(*number));
        let rest: Vec<CqlValue> = rest.collect();
        if !rest.is_empty() {
            place.push(CqlValue::List(rest));
            bodies.extend(decode(&self.database.read(WHAT, GET, place).await?));
        }
        Ok(bodies)
    }
}

/// Decodes rows of bodies; damaged ones are left out.
fn decode(rows: &[Row]) -> BTreeMap<u64, Body> {
    let body = |row| {
        let (number, blobs, bytes) = (number(row, 0)?, bytes(row, 1).and_then(blobs_of)?, bytes(row, 2)?);
        Some((number, Body { bytes: Bytes::copy_from_slice(bytes), blobs }))
    };
    rows.iter().filter_map(body).collect()
}

/// Statements grouped by partition.
#[derive(Default)]
pub(super) struct Batches {
    full: Vec<Vec<Bound>>,
    open: BTreeMap<(u8, u64), (Vec<Bound>, usize)>,
}

impl Batches {
    pub(super) fn add(&mut self, partition: (u8, u64), statement: Bound, bytes: usize) {
        let (batch, so_far) = self.open.entry(partition).or_default();
        if !batch.is_empty() && (batch.len() >= BATCH_ROWS || *so_far + bytes > BATCH_BYTES) {
            self.full.push(std::mem::take(batch));
            *so_far = 0;
        }
        batch.push(statement);
        *so_far += bytes;
    }

    pub(super) fn finish(mut self) -> Vec<Vec<Bound>> {
        self.full.extend(self.open.into_values().map(|(batch, _)| batch));
        self.full
    }
}
