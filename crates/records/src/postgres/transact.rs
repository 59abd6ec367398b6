//! The statements of a transaction that writes: one round trip that locks and reads, and one that writes and commits. The first
//! commit of an account needs two more, which create its head.
//!
//! Heads of accounts are locked in ascending order, so there are no deadlocks. The head of the feed is locked last and until the
//! commit, so positions rise in the order in which commits become visible.

use std::collections::BTreeMap;

use futures_util::future::{join, join_all};
use restante_core::Identity;
use tokio_postgres::{Row, types::ToSql};

use super::{
    Shared,
    connect::Connection,
    error::{AttemptError, Doing, column},
    feed::decode_touched,
    schema::{account_from_sql, account_to_sql, after_prefix, corrupt, from_sql, state_prefix, to_sql},
};
use crate::{
    AccountHead, AccountId, Error, Position, Touched,
    map::work::{Key, Read, Value, Writes},
    rows::AccountRow,
};

const NANOS_PER_MILLI: i64 = 1_000_000;

/// What was to be done, for error messages.
const WHAT: &str = "commit records";

/// Waits while another server changes the indexes.
const LOCK: &str = "SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 0))";
const MAKE_HEADS: &str = "INSERT INTO account SELECT a, '', '' FROM unnest($1::bigint[]) AS a \
     WHERE NOT EXISTS (SELECT FROM account WHERE account = a) ORDER BY a ON CONFLICT DO NOTHING";
const LOCK_HEADS: &str = "SELECT account, head, made_by FROM account WHERE account = ANY ($1::bigint[]) ORDER BY account FOR UPDATE";
const STATE: &str = "SELECT epoch, restores FROM feed_head";
const READ: &str = "SELECT wanted.account, wanted.key, e.value \
     FROM unnest($1::bigint[], $2::bytea[]) AS wanted (account, key) CROSS JOIN LATERAL \
     (SELECT value FROM entry WHERE account = wanted.account AND key = wanted.key LIMIT 1) e";
const BODY_IDS: &str = "SELECT nextval('body_id') FROM generate_series(1, $1::bigint)";
const READ_RANGE: &str =
    "SELECT account, key, value FROM entry WHERE account = $1 AND key >= $2 AND key < $3";

const FEED_OF: &str =
    "SELECT account, position, revision, committed_ms FROM feed WHERE account = ANY ($1::bigint[])";

const PUT_HEAD: &str = "INSERT INTO account VALUES ($1, $2, $3)";
const PUT_FEED: &str = "INSERT INTO feed (account, position, revision, committed_ms) VALUES ($1, $2, $3, $4)";
pub(super) const DELETE_BODIES: &str = "DELETE FROM body WHERE id = ANY ($1::bigint[])";
const PUT_BODIES: &str =
    "INSERT INTO body SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[])";
const DELETE_ROWS: &str = "DELETE FROM entry e USING unnest($1::bigint[], $2::bytea[]) AS gone (account, key) \
     WHERE e.account = gone.account AND e.key = gone.key";
const PUT_ROWS: &str = "INSERT INTO entry SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bigint[]) \
     ON CONFLICT (account, key) DO UPDATE SET value = excluded.value, body = excluded.body";
/// Does not look for an older row, as [`PUT_ROWS`] does, and refuses to replace one.
const CREATE_ROWS: &str =
    "INSERT INTO entry SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bigint[])";
const PUT_HEADS: &str = "UPDATE account a SET head = new.head, made_by = $3 \
     FROM unnest($1::bigint[], $2::bytea[]) AS new (account, head) WHERE a.account = new.account";
const DELETE_HEADS: &str = "DELETE FROM account WHERE account = ANY ($1::bigint[]) AND head = ''";
/// The notification contains the position before the group, and what the group has touched.
const MOVE: &str = "WITH head AS (
       UPDATE feed_head SET position = position + cardinality($1::bigint[])
       RETURNING position - cardinality($1::bigint[]) AS base
     ), moved AS (
       INSERT INTO feed (account, position, revision, committed_ms)
       SELECT t.account, head.base + t.n, t.revision, $3::bigint
       FROM head, unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS t (account, revision, n)
       ON CONFLICT (account) DO UPDATE
       SET position = excluded.position, revision = excluded.revision, committed_ms = excluded.committed_ms
     )
     SELECT head.base, pg_notify($4, head.base || $5) FROM head";

/// What a transaction locks and reads.
#[derive(Default)]
pub(super) struct Wanted {
    /// Ascending, without duplicates.
    pub(super) accounts: Vec<AccountId>,
    pub(super) rows: Vec<Key>,
    pub(super) bodies: usize,
}

/// Begins a transaction: locks the heads of accounts, creating those that don't exist, and reads rows.
pub(super) async fn begin(
    shared: &Shared,
    connection: &Connection,
    wanted: &Wanted,
) -> Result<Read, AttemptError> {
    let mut read = lock_and_read(shared, connection, wanted, Missing::Left).await?;
    if read.heads.len() < wanted.accounts.len() {
        // New accounts are rare. Their heads must not be locked after those of later accounts, so the transaction starts over.
        connection.run(WHAT, "ROLLBACK").await?;
        read = lock_and_read(shared, connection, wanted, Missing::Made).await?;
    }
    if read.heads.len() < wanted.accounts.len() {
        return Err(Error::unavailable("the head of an account is being made by another server").into());
    }
    read_counters(shared, connection, &mut read).await?;
    Ok(read)
}

/// What to do about heads that don't exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Made,
    Left,
}

async fn lock_and_read(
    shared: &Shared,
    connection: &Connection,
    wanted: &Wanted,
    missing: Missing,
) -> Result<Read, AttemptError> {
    let accounts: Vec<i64> = wanted.accounts.iter().copied().map(account_to_sql).collect();
    let row_accounts: Vec<i64> = wanted.rows.iter().map(|(account, _)| account_to_sql(*account)).collect();
    let row_keys: Vec<&[u8]> = wanted.rows.iter().map(|(_, key)| &key[..]).collect();
    let bodies = to_sql(wanted.bodies as u64);
    let lock_parameters = [&shared.lock_name as &(dyn ToSql + Sync)];
    let head_parameters = [&accounts as &(dyn ToSql + Sync)];
    let row_parameters = [&row_accounts as &(dyn ToSql + Sync), &row_keys];
    let body_parameters = [&bodies as &(dyn ToSql + Sync)];
    let mut statements: Vec<(&'static str, &[&(dyn ToSql + Sync)])> = vec![(LOCK, &lock_parameters)];
    if missing == Missing::Made {
        statements.push((MAKE_HEADS, &head_parameters));
    }
    let heads_at = statements.len();
    statements.push((LOCK_HEADS, &head_parameters));
    statements.push((STATE, &[]));
    if !wanted.rows.is_empty() {
        statements.push((READ, &row_parameters));
    }
    if wanted.bodies > 0 {
        statements.push((BODY_IDS, &body_parameters));
    }
    let answers = pipelined_all(connection, Some("BEGIN"), &statements, None).await?;
    let mut answers = answers.into_iter().skip(heads_at);
    let (heads, state) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
    let rows = if wanted.rows.is_empty() { Vec::new() } else { answers.next().unwrap_or_default() };
    let ids = answers.next().unwrap_or_default();
    let state = state.first().ok_or_else(|| Error::corrupt("the feed of the records has no head"))?;
    shared.check_epoch(column(state, 0)?)?;
    let mut read = Read { restores: from_sql(column(state, 1)?), ..Read::default() };
    for row in &heads {
        let (account, head) = decode_head(row)?;
        read.heads.insert(account, head);
    }
    for row in &rows {
        read.rows.insert((account_from_sql(column(row, 0)?)?, column(row, 1)?), column(row, 2)?);
    }
    for row in &ids {
        read.body_ids.push(column(row, 0)?);
    }
    Ok(read)
}

/// Reads the records with counters, of accounts that had no commit since a restore.
async fn read_counters(
    shared: &Shared,
    connection: &Connection,
    read: &mut Read,
) -> Result<(), AttemptError> {
    let behind: Vec<AccountId> = read
        .heads
        .iter()
        .filter(|(_, head)| head.restores < read.restores)
        .map(|(account, _)| *account)
        .collect();
    for account in behind {
        for kind in shared.schema.kinds().iter().filter(|kind| !kind.counters.is_empty()) {
            let from = state_prefix(kind.kind);
            let parameters: [&(dyn ToSql + Sync); 3] =
                [&account_to_sql(account), &from, &after_prefix(&from)];
            for row in connection.query(WHAT, READ_RANGE, &parameters).await? {
                read.counters.push(((account, column(&row, 1)?), column(&row, 2)?));
            }
        }
    }
    Ok(())
}

/// Decodes an account and its head from a row of `account`; the head of a new one is empty.
pub(super) fn decode_head(row: &Row) -> Result<(AccountId, AccountRow), AttemptError> {
    let account = account_from_sql(column(row, 0)?)?;
    let head: &[u8] = column(row, 1)?;
    if head.is_empty() {
        return Ok((account, AccountRow::default()));
    }
    let head = AccountRow::decode(head).ok_or_else(|| corrupt(account, b"head"))?;
    Ok((account, head))
}

/// The mark that a transaction leaves, by which a commit whose outcome is unknown is found again.
pub(super) type MadeBy = [u8; 16];

/// Writes and commits; returns the position before the first of the accounts that were touched.
///
/// After an error it is unknown whether the transaction was committed, unless [`AttemptError::is_refusal`].
pub(super) async fn end(
    shared: &Shared,
    connection: &Connection,
    locked: &[AccountId],
    writes: &Writes,
    made_by: &MadeBy,
) -> Result<u64, AttemptError> {
    let is_unused = |account: &&AccountId| !writes.heads.contains_key(account);
    let unused: Vec<i64> = locked.iter().filter(is_unused).copied().map(account_to_sql).collect();
    let gone: Vec<i64> = writes.gone_bodies.iter().copied().collect();
    let bodies = BodyColumns::of(writes);
    let rows = RowColumns::of(writes);
    let accounts: Vec<i64> = writes.heads.keys().copied().map(account_to_sql).collect();
    let heads: Vec<Vec<u8>> = writes.heads.values().map(|head| head.encode().into_vec()).collect();
    let touched: Vec<i64> = writes.touched.iter().map(|(account, _)| account_to_sql(*account)).collect();
    let revisions: Vec<i64> = writes.touched.iter().map(|(_, revision)| to_sql(revision.0)).collect();
    let made_by = &made_by[..];
    let now_ms = shared.now_ms();
    let payload = shared.payload(&writes.touched);
    let mut statements: Vec<(&'static str, &[&(dyn ToSql + Sync)])> = Vec::new();
    let (gone_parameters, body_parameters) = ([&gone as &(dyn ToSql + Sync)], bodies.parameters());
    let unused_parameters = [&unused as &(dyn ToSql + Sync)];
    let delete_parameters = rows.gone_parameters();
    let (put_parameters, create_parameters) = (rows.put.parameters(), rows.created.parameters());
    let head_parameters: [&(dyn ToSql + Sync); 3] = [&accounts, &heads, &made_by];
    let move_parameters: [&(dyn ToSql + Sync); 5] =
        [&touched, &revisions, &now_ms, &shared.channel, &payload];
    if !gone.is_empty() {
        statements.push((DELETE_BODIES, &gone_parameters));
    }
    if !bodies.ids.is_empty() {
        statements.push((PUT_BODIES, &body_parameters));
    }
    if !rows.gone_keys.is_empty() {
        statements.push((DELETE_ROWS, &delete_parameters));
    }
    if !rows.put.keys.is_empty() {
        statements.push((PUT_ROWS, &put_parameters));
    }
    if !rows.created.keys.is_empty() {
        statements.push((CREATE_ROWS, &create_parameters));
    }
    statements.push((PUT_HEADS, &head_parameters));
    if !unused.is_empty() {
        statements.push((DELETE_HEADS, &unused_parameters));
    }
    if !touched.is_empty() {
        statements.push((MOVE, &move_parameters));
    }
    let answers = pipelined_all(connection, None, &statements, Some("COMMIT")).await?;
    match answers.last().and_then(|rows| rows.first()) {
        Some(row) if !touched.is_empty() => Ok(from_sql(column(row, 0)?)),
        _ => Ok(0),
    }
}

/// Writes bodies and rows of a store that is being moved and, with a head, completes the account.
pub(super) async fn put(
    connection: &Connection,
    writes: &Writes,
    head: Option<&AccountHead>,
) -> Result<(), AttemptError> {
    let bodies = BodyColumns::of(writes);
    let rows = RowColumns::of(writes);
    let (body_parameters, row_parameters) = (bodies.parameters(), rows.put.parameters());
    let mut statements: Vec<(&'static str, &[&(dyn ToSql + Sync)])> =
        vec![(PUT_BODIES, &body_parameters), (PUT_ROWS, &row_parameters)];
    let row = head.map(|head| AccountRow { position: Position(0), ..AccountRow::of_head(head) });
    let encoded = row.map(|row| row.encode().into_vec()).unwrap_or_default();
    let made_by = Identity::random().0.to_vec();
    let account = head.map(|head| account_to_sql(head.account));
    let position = head.map(|head| to_sql(head.position.0));
    let revision = head.map(|head| to_sql(head.revision.0));
    let committed_ms = head.map(|head| head.committed_at.0 / NANOS_PER_MILLI);
    let head_parameters: [&(dyn ToSql + Sync); 3] = [&account, &encoded, &made_by];
    let feed_parameters: [&(dyn ToSql + Sync); 4] = [&account, &position, &revision, &committed_ms];
    if head.is_some() {
        statements.push((PUT_HEAD, &head_parameters));
        statements.push((PUT_FEED, &feed_parameters));
    }
    pipelined_all(connection, Some("BEGIN"), &statements, Some("COMMIT")).await.map(|_| ())
}

/// Assigns the numbers of new bodies.
pub(super) async fn body_ids(connection: &Connection, count: usize) -> Result<Vec<i64>, AttemptError> {
    let rows = connection.query(WHAT, BODY_IDS, &[&to_sql(count as u64)]).await?;
    rows.iter().map(|row| column(row, 0)).collect()
}

/// The columns of new bodies.
struct BodyColumns<'w> {
    ids: Vec<i64>,
    accounts: Vec<i64>,
    blobs: Vec<Option<Vec<u8>>>,
    bytes: Vec<&'w [u8]>,
}

impl<'w> BodyColumns<'w> {
    fn of(writes: &'w Writes) -> Self {
        let mut columns =
            Self { ids: Vec::new(), accounts: Vec::new(), blobs: Vec::new(), bytes: Vec::new() };
        for (id, (account, body)) in &writes.bodies {
            columns.ids.push(*id);
            columns.accounts.push(account_to_sql(*account));
            let blobs = body.blobs.iter().flat_map(|blob| blob.0).collect::<Vec<u8>>();
            columns.blobs.push((!blobs.is_empty()).then_some(blobs));
            columns.bytes.push(&body.bytes);
        }
        columns
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.ids, &self.accounts, &self.blobs, &self.bytes]
    }
}

/// The columns of rows of the ordered map.
#[derive(Default)]
struct RowColumns<'w> {
    gone_accounts: Vec<i64>,
    gone_keys: Vec<&'w [u8]>,
    put: PutColumns<'w>,
    /// Of records that are being created.
    created: PutColumns<'w>,
}

impl<'w> RowColumns<'w> {
    fn of(writes: &'w Writes) -> Self {
        let mut columns = Self::default();
        for ((account, key), value) in &writes.rows {
            let account = account_to_sql(*account);
            match value {
                Some(value) if value.is_new => columns.created.add(account, key, value),
                Some(value) => columns.put.add(account, key, value),
                None => {
                    columns.gone_accounts.push(account);
                    columns.gone_keys.push(key);
                }
            }
        }
        columns
    }

    fn gone_parameters(&self) -> [&(dyn ToSql + Sync); 2] {
        [&self.gone_accounts, &self.gone_keys]
    }
}

/// The columns of rows that are written.
#[derive(Default)]
struct PutColumns<'w> {
    accounts: Vec<i64>,
    keys: Vec<&'w [u8]>,
    values: Vec<&'w [u8]>,
    bodies: Vec<Option<i64>>,
}

impl<'w> PutColumns<'w> {
    fn add(&mut self, account: i64, key: &'w [u8], value: &'w Value) {
        self.accounts.push(account);
        self.keys.push(key);
        self.values.push(&value.bytes);
        self.bodies.push(value.body);
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.accounts, &self.keys, &self.values, &self.bodies]
    }
}

/// Sends statements without waiting for the answer to each. When one fails, the following ones fail too, and its error is returned.
async fn pipelined_all(
    connection: &Connection,
    first: Option<&str>,
    statements: &[(&'static str, &[&(dyn ToSql + Sync)])],
    last: Option<&str>,
) -> Result<Vec<Vec<Row>>, AttemptError> {
    let mut prepared = Vec::with_capacity(statements.len());
    for (sql, _) in statements {
        prepared.push(connection.prepared(sql).await?);
    }
    let client = &connection.client;
    let run = |sql: Option<String>| async move {
        match sql {
            Some(sql) => client.batch_execute(&sql).await,
            None => Ok(()),
        }
    };
    let queries =
        prepared.iter().zip(statements).map(|(statement, (_, values))| client.query(statement, values));
    // They are sent in the order in which they are first polled.
    let (began, (answers, ended)) =
        join(run(first.map(str::to_owned)), join(join_all(queries), run(last.map(str::to_owned)))).await;
    began.doing(WHAT)?;
    let mut rows = Vec::with_capacity(answers.len());
    for answer in answers {
        rows.push(answer.doing(WHAT)?);
    }
    ended.doing(WHAT)?;
    Ok(rows)
}

/// The same for a known number of statements.
async fn pipelined<const N: usize>(
    connection: &Connection,
    first: Option<&str>,
    statements: [(&'static str, &[&(dyn ToSql + Sync)]); N],
    last: Option<&str>,
) -> Result<[Vec<Row>; N], AttemptError> {
    let rows = pipelined_all(connection, first, &statements, last).await?;
    let rows = rows.try_into();
    rows.map_err(|_| Error::internal("statements and answers differ in number").into())
}

/// The heads of accounts with the marks of their last transactions, and the feed rows of the accounts.
pub(super) struct Found {
    pub(super) heads: BTreeMap<AccountId, (AccountRow, Vec<u8>)>,
    pub(super) feed: Vec<Touched>,
}

/// Reads which transactions last committed to accounts. Waits for running transactions.
pub(super) async fn find_out(connection: &Connection, accounts: &[AccountId]) -> Result<Found, AttemptError> {
    let accounts: Vec<i64> = accounts.iter().copied().map(account_to_sql).collect();
    let statements: [(&'static str, &[&(dyn ToSql + Sync)]); 3] =
        [(MAKE_HEADS, &[&accounts]), (LOCK_HEADS, &[&accounts]), (FEED_OF, &[&accounts])];
    let [_, heads, feed] = pipelined(connection, Some("BEGIN"), statements, Some("ROLLBACK")).await?;
    let mut found = Found { heads: BTreeMap::new(), feed: Vec::new() };
    for row in &heads {
        let (account, head) = decode_head(row)?;
        found.heads.insert(account, (head, column(row, 2)?));
    }
    for row in &feed {
        found.feed.push(decode_touched(row)?);
    }
    Ok(found)
}
