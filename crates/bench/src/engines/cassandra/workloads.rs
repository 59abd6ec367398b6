//! The loads on Cassandra and the rows of figures that they produce.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use parking_lot::Mutex;
use scylla::{
    client::session::Session,
    response::query_result::QueryResult,
    statement::{
        Consistency,
        batch::{Batch, BatchType},
        prepared::PreparedStatement,
    },
    value::{CqlTimeuuid, CqlValue, Row},
};

use super::{
    super::{
        EnginesArgs,
        load::{Done, Measured, closed_loop},
        results::{Figures, References, Results},
        verdict::Circumstances,
    },
    Cassandra, Limits, NAME,
};
use crate::{measure::Latencies, progress, random::Random};

/// As in seed 004: clients without a pause, and the largest sizes of both columns.
const SEED_CLIENTS: usize = 8;
const A_BYTES_MAX: u64 = 10_000;
const B_BYTES_MAX: u64 = 100_000;
/// Random bytes that values are cut from. Pieces of two rows hardly overlap within what Cassandra compresses at once.
const POOL_BYTES: u64 = 1 << 22;
const LIMIT: Duration = Duration::from_secs(600);
/// Rows of a commit, and the bytes of each: about what a mail adds to an account.
const COMMIT_ROWS: u64 = 20;
const VALUE_BYTES: usize = 200;
/// How many accounts get commits at once, one each.
pub(super) const ACCOUNTS: [usize; 3] = [1, 8, 64];
/// Rows of a page of a mailbox.
const SLICE_ROWS: i32 = 100;
const SLICE_CLIENTS: usize = 8;
/// Accounts of the loads, apart from each other. Those with commits are `COMMIT_ACCOUNTS` x their number + 0, 1, 2...
const SLICE_ACCOUNT: i32 = -1;
const COMMIT_ACCOUNTS: usize = 1_000;
const ABSENT_ACCOUNTS: i32 = 1_000_000;

/// The key of a row: a random one of version 4.
fn row_key(number: u64) -> CqlValue {
    let mut random = Random::new(number, 1);
    let bits = (u128::from(random.bits()) << 64) | u128::from(random.bits());
    let version = (bits & !(0xf << 76)) | (4 << 76);
    let key = (version & !(0x3 << 62)) | (0x2 << 62);
    CqlValue::Uuid(CqlTimeuuid::from_u128(key).into())
}

/// The table of the seed.
struct SeedLoad {
    session: Arc<Session>,
    insert: PreparedStatement,
    read: PreparedStatement,
    pool: Vec<u8>,
}

impl SeedLoad {
    async fn insert(&self, row: u64, number: u64) -> anyhow::Result<Done> {
        let mut random = Random::new(number, 2);
        let (a, b) = (self.piece(&mut random, A_BYTES_MAX), self.piece(&mut random, B_BYTES_MAX));
        self.session.execute_unpaged(&self.insert, (row_key(row), a, b)).await?;
        Ok(Done::new("insert", a.len() + b.len()))
    }

    /// Reads a row; a missing one is an error unless it `may_miss`.
    async fn read(&self, row: u64, may_miss: bool) -> anyhow::Result<Done> {
        let answer = self.session.execute_unpaged(&self.read, (row_key(row),)).await?.into_rows_result()?;
        match answer.maybe_first_row::<(&[u8], &[u8])>()? {
            Some((a, b)) => Ok(Done::new("read", a.len() + b.len())),
            None if may_miss => Ok(Done::new("read", 0)),
            None => bail!("a row that was acknowledged is not there"),
        }
    }

    /// 1 to `max` random bytes.
    fn piece(&self, random: &mut Random, max: u64) -> &[u8] {
        let length = 1 + random.below(max);
        let begin = random.below(POOL_BYTES - length);
        self.pool.get(begin as usize..(begin + length) as usize).unwrap_or_default()
    }
}

impl Cassandra {
    /// Inserts, then inserts and reads of existing rows, 1:4.
    pub(super) async fn measure_seed(
        &self,
        consistency: Consistency,
        args: &EnginesArgs,
        limits: &Limits,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let keyspace = &self.keyspace;
        let insert = format!("INSERT INTO {keyspace}.seed (key, a, b) VALUES (?, ?, ?)");
        let read = format!("SELECT a, b FROM {keyspace}.seed WHERE key = ?");
        let mut pool = vec![0; POOL_BYTES as usize];
        Random::new(0, 3).fill(&mut pool);
        let load = Arc::new(SeedLoad {
            session: self.session.clone(),
            insert: self.prepare(&insert, consistency).await?,
            read: self.prepare(&read, consistency).await?,
            pool,
        });
        let operations = args.pick(100_000, 10_000);
        let bar = progress::bar(&format!("cassandra: inserts, {consistency}"), operations);
        let inserting = load.clone();
        let operation = move |_, number| {
            let load = inserting.clone();
            async move { load.insert(number, number).await }
        };
        let inserts = closed_loop(SEED_CLIENTS, operations, LIMIT, &bar, operation).await;
        bar.finish_and_clear();
        let inserts = inserts.inspect_err(|error| show_end("insert only", consistency, error, results))?;
        show_seed(&inserts, "insert only", consistency, limits, results);
        let tried = inserts.operations + inserts.errors;
        // The replica that answers may not have the row yet.
        let is_one_of_many = consistency == Consistency::One && self.datacenter.replicas() > 1;
        let may_miss = is_one_of_many || inserts.errors > 0;

        let bar = progress::bar(&format!("cassandra: reads and inserts, {consistency}"), operations);
        let operation = move |_, number| {
            let load = load.clone();
            async move {
                let row = Random::new(number, 4).below(tried);
                match number % 5 {
                    0 => load.insert(row, tried + number).await,
                    _ => load.read(row, may_miss).await,
                }
            }
        };
        let mixed = closed_loop(SEED_CLIENTS, operations, LIMIT, &bar, operation).await;
        bar.finish_and_clear();
        let mixed = mixed.inspect_err(|error| show_end("insert:read 1:4", consistency, error, results))?;
        show_seed(&mixed, "insert:read 1:4", consistency, limits, results);
        Ok(())
    }

    /// Inserts with IF NOT EXISTS, one after the other.
    pub(super) async fn measure_inserts_if_absent(
        &self,
        args: &EnginesArgs,
        limits: &Limits,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let insert =
            format!("INSERT INTO {}.map (account, key, value) VALUES (?, ?, ?) IF NOT EXISTS", self.keyspace);
        let insert = Arc::new(self.prepare(&insert, Consistency::LocalQuorum).await?);
        let session = self.session.clone();
        let operations = args.pick(2_000, 500);
        let bar = progress::bar("cassandra: conditional inserts", operations);
        let operation = move |_, number: u64| {
            let (session, insert) = (session.clone(), insert.clone());
            async move {
                let values =
                    (ABSENT_ACCOUNTS + number as i32, [1_u8].as_slice(), [b'v'; VALUE_BYTES].as_slice());
                let answer = session.execute_unpaged(&insert, values).await?;
                ensure!(is_applied(answer)?, "an insert of a new row was refused: another client wrote it");
                Ok(Done::new("insert", VALUE_BYTES))
            }
        };
        let measured = closed_loop(1, operations, LIMIT, &bar, operation).await;
        bar.finish_and_clear();
        let measured = measured?;
        let mut results = results.lock();
        let mut table = results.table(NAME, "INSERT IF NOT EXISTS, 1 at once");
        let run = measured.circumstances("insert");
        let floor = limits.conditional_ms();
        table.rate("inserts", "1/s", measured.per_second(), References::floor(1e3 / floor), &run);
        add_times(&mut table, "insert", &measured.times("insert").service, floor, &run);
        table.curve(
            "cassandra: conditional commits",
            "INSERT IF NOT EXISTS",
            &measured.times("insert").service,
        );
        Ok(())
    }

    /// Commits of 20 rows in one partition, on the condition that its head is the expected one; one at a time in each account.
    pub(super) async fn measure_commits(
        &self,
        accounts: usize,
        args: &EnginesArgs,
        limits: &Limits,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let operations = match accounts {
            1 => args.pick(2_000, 400),
            _ => args.pick(20_000, 2_000),
        };
        let load = Arc::new(self.commit_load(accounts).await?);
        let bar = progress::bar(&format!("cassandra: commits on {accounts}"), operations);
        let operation = move |account, number| {
            let load = load.clone();
            async move { load.commit(account, number).await }
        };
        let measured = closed_loop(accounts, operations, LIMIT, &bar, operation).await;
        bar.finish_and_clear();
        let measured = measured?;
        let mut results = results.lock();
        let mut table = results.table(
            NAME,
            format!("conditional commits of {COMMIT_ROWS} rows, on {accounts} accounts at once"),
        );
        let run = measured.circumstances("commit");
        let one = limits.conditional_ms();
        // More accounts must not be slower than one.
        table.rate("commits", "1/s", measured.per_second(), References::floor(1e3 / one), &run);
        let times = measured.times("commit").service;
        add_times(&mut table, "commit", &times, one * accounts as f64, &run);
        table.curve("cassandra: conditional commits", format!("{accounts} accounts"), &times);
        Ok(())
    }

    async fn commit_load(&self, accounts: usize) -> anyhow::Result<CommitLoad> {
        let table = format!("{}.map", self.keyspace);
        let quorum = Consistency::LocalQuorum;
        let move_head = format!("UPDATE {table} SET value = ? WHERE account = ? AND key = 0x00 IF value = ?");
        let put = format!("INSERT INTO {table} (account, key, value) VALUES (?, ?, ?)");
        let move_head = self.prepare(&move_head, quorum).await?;
        let put = self.prepare(&put, quorum).await?;
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_consistency(quorum);
        batch.append_statement(move_head);
        for _ in 0..COMMIT_ROWS {
            batch.append_statement(put.clone());
        }
        let read_head = format!("SELECT value FROM {table} WHERE account = ? AND key = 0x00");
        // A commit whose outcome is unknown is decided by a read at serial consistency.
        let read_head = self.prepare(&read_head, Consistency::LocalSerial).await?;
        let make_head =
            format!("INSERT INTO {table} (account, key, value) VALUES (?, 0x00, ?) IF NOT EXISTS");
        let make_head = self.prepare(&make_head, quorum).await?;
        for account in 0..accounts {
            let values = (account_number(accounts, account), 0_u64.to_be_bytes().to_vec());
            self.session.execute_unpaged(&make_head, values).await?;
        }
        let heads = (0..accounts).map(|_| AtomicU64::new(0)).collect();
        Ok(CommitLoad { session: self.session.clone(), batch, read_head, heads })
    }

    /// Pages of an account, by key.
    pub(super) async fn measure_slices(
        &self,
        args: &EnginesArgs,
        limits: &Limits,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let rows = args.pick(50_000, 5_000).next_multiple_of(SLICE_ROWS as u64);
        self.fill_slices(rows).await?;
        let read = format!(
            "SELECT key, value FROM {}.map WHERE account = {SLICE_ACCOUNT} AND key >= ? LIMIT {SLICE_ROWS}",
            self.keyspace
        );
        let read = Arc::new(self.prepare(&read, Consistency::LocalQuorum).await?);
        let session = self.session.clone();
        let operations = args.pick(20_000, 2_000);
        let bar = progress::bar("cassandra: slices", operations);
        let operation = move |_, number: u64| {
            let (session, read) = (session.clone(), read.clone());
            async move {
                let first = Random::new(number, 5).below(rows - SLICE_ROWS as u64 + 1);
                let from = (first.to_be_bytes().to_vec(),);
                let answer = session.execute_unpaged(&read, from).await?.into_rows_result()?;
                let found = answer.rows_num();
                ensure!(found == SLICE_ROWS as usize, "a slice has {found} rows of {SLICE_ROWS}");
                Ok(Done::new("slice", found * VALUE_BYTES))
            }
        };
        let measured = closed_loop(SLICE_CLIENTS, operations, LIMIT, &bar, operation).await;
        bar.finish_and_clear();
        let measured = measured?;
        let mut results = results.lock();
        let mut table = results
            .table(NAME, format!("slices of {SLICE_ROWS} rows, LOCAL_QUORUM, {SLICE_CLIENTS} at once"));
        let run = measured.circumstances("slice");
        let one = limits.round_trip_ms;
        table.rate("slices", "1/s", measured.per_second(), References::floor(1e3 / one), &run);
        let times = measured.times("slice").service;
        add_times(&mut table, "slice", &times, one * SLICE_CLIENTS as f64, &run);
        table.curve("cassandra: slices", format!("{SLICE_ROWS} rows"), &times);
        Ok(())
    }

    async fn fill_slices(&self, rows: u64) -> anyhow::Result<()> {
        let put =
            format!("INSERT INTO {}.map (account, key, value) VALUES ({SLICE_ACCOUNT}, ?, ?)", self.keyspace);
        let put = self.prepare(&put, Consistency::LocalQuorum).await?;
        let mut batch = Batch::new(BatchType::Unlogged);
        for _ in 0..SLICE_ROWS {
            batch.append_statement(put.clone());
        }
        for first in (0..rows).step_by(SLICE_ROWS as usize) {
            let row = |number: u64| (number.to_be_bytes().to_vec(), vec![b'v'; VALUE_BYTES]);
            let values: Vec<_> = (first..first + SLICE_ROWS as u64).map(row).collect();
            self.session.batch(&batch, values).await.context("can't insert the rows of slices")?;
        }
        Ok(())
    }
}

/// Accounts with a head that counts their commits.
struct CommitLoad {
    session: Arc<Session>,
    /// The update of the head, then the rows.
    batch: Batch,
    read_head: PreparedStatement,
    heads: Vec<AtomicU64>,
}

impl CommitLoad {
    async fn commit(&self, account: usize, number: u64) -> anyhow::Result<Done> {
        let head = self.heads.get(account).context("a client without an account")?;
        let before = head.load(Ordering::Relaxed);
        let answer = self.session.batch(&self.batch, self.values(account, before, number)).await;
        let outcome = match answer.map(is_applied) {
            Ok(Ok(true)) => {
                head.store(before + 1, Ordering::Relaxed);
                return Ok(Done::new("commit", COMMIT_ROWS as usize * VALUE_BYTES));
            }
            Ok(Ok(false)) => "a commit was refused though nobody else commits".to_owned(),
            Ok(Err(error)) => format!("the answer to a commit can't be read: {error:#}"),
            Err(error) => format!("a commit failed: {error}"),
        };
        if let Ok(found) = self.find_head(account).await {
            head.store(found, Ordering::Relaxed);
        }
        bail!(outcome)
    }

    fn values(&self, account: usize, before: u64, number: u64) -> Vec<Vec<CqlValue>> {
        let blob = |number: u64| CqlValue::Blob(number.to_be_bytes().to_vec());
        let account = CqlValue::Int(account_number(self.heads.len(), account));
        let mut values = vec![vec![blob(before + 1), account.clone(), blob(before)]];
        for row in 0..COMMIT_ROWS {
            // Greater than the key of the head.
            let key = blob((1 << 56) | (number * COMMIT_ROWS + row));
            values.push(vec![account.clone(), key, CqlValue::Blob(vec![b'v'; VALUE_BYTES])]);
        }
        values
    }

    async fn find_head(&self, account: usize) -> anyhow::Result<u64> {
        let values = (account_number(self.heads.len(), account),);
        let answer = self.session.execute_unpaged(&self.read_head, values).await?.into_rows_result()?;
        let (head,) = answer.first_row::<(&[u8],)>()?;
        Ok(u64::from_be_bytes(head.try_into()?))
    }
}

fn account_number(accounts: usize, account: usize) -> i32 {
    (COMMIT_ACCOUNTS * accounts + account) as i32
}

/// Whether the condition of a statement or batch held.
fn is_applied(answer: QueryResult) -> anyhow::Result<bool> {
    let rows = answer.into_rows_result()?;
    let row = rows.first_row::<Row>()?;
    match row.columns.first() {
        Some(Some(CqlValue::Boolean(is_applied))) => Ok(*is_applied),
        other => bail!("an answer to a condition begins with {other:?}"),
    }
}

fn seed_table(load: &str, consistency: Consistency) -> String {
    format!("{load}, random rows of 55 kB, {consistency}, {SEED_CLIENTS} at once")
}

/// Shows a load that Cassandra did not survive.
fn show_end(load: &str, consistency: Consistency, error: &anyhow::Error, results: &Mutex<Results>) {
    let run =
        Circumstances { errors: 1, first_error: Some(format!("{error:#}")), ..Circumstances::default() };
    let mut results = results.lock();
    results.table(NAME, seed_table(load, consistency)).rate("operations", "1/s", 0.0, References::NONE, &run);
}

fn show_seed(
    measured: &Measured,
    load: &str,
    consistency: Consistency,
    limits: &Limits,
    results: &Mutex<Results>,
) {
    let mut results = results.lock();
    let mut table = results.table(NAME, seed_table(load, consistency));
    // Clients together must reach at least the rate of one client with the smallest request.
    let one = limits.round_trip_ms + limits.sync_ms;
    let all = measured.circumstances("all");
    table.rate("operations", "1/s", measured.per_second(), References::floor(1e3 / one), &all);
    let bytes = measured.bytes as f64 / 1e6 / measured.operations.max(1) as f64;
    // Each byte is written to the commit log, and to the table.
    let of_disk = limits.write_mb_s.map_or(f64::MAX, |rate| rate / 2.0);
    let floor = (bytes * 1e3 / one).min(of_disk);
    table.rate("bytes", "MB/s", measured.mb_per_second(), References::floor(floor), &all);
    for (kind, times) in &measured.times {
        let run = measured.circumstances(kind);
        add_times(&mut table, kind, &times.service, one * SEED_CLIENTS as f64, &run);
        table.curve(format!("cassandra: {load}"), format!("{kind}, {consistency}"), &times.service);
    }
}

/// Adds the percentiles of one kind of operation; `floor` is that of the median.
fn add_times(table: &mut Figures<'_>, kind: &str, times: &Latencies, floor: f64, run: &Circumstances) {
    table.time(format!("{kind} p50"), times.median_ms(), References::floor(floor), run);
    for (percentile, value) in [
        ("p95", times.p95_ms()),
        ("p99", times.p99_ms()),
        ("p99.9", times.percentile_ms(99.9)),
        ("max", times.max_ms()),
    ] {
        table.time(format!("{kind} {percentile}"), value, References::NONE, run);
    }
}
