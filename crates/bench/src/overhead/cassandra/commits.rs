//! Commits, compared with one conditional batch on one partition with the same rows.

use std::sync::{Arc, atomic::AtomicU64};

use anyhow::{Context, ensure};
use restante_records::{AccountId, Opened};
use scylla::{
    client::session::Session,
    statement::{
        batch::{Batch, BatchType},
        prepared::PreparedStatement,
    },
    value::{CqlValue, Row},
};
use tokio::sync::Mutex;

use super::{
    super::{
        Bench,
        pairs::Bound,
        records::{self, SAMPLE},
    },
    Cassandra, Keyspace, beside_raw,
};

/// Accounts that get commits at once.
const ACCOUNTS: usize = 64;
/// The head of an account has its full length after this many commits.
const SAMPLES: u64 = 17;
/// The first byte of the body's key, which sorts after all others.
const BODY_KEY: u8 = 5;
/// The store's name in the keys of partitions, as in the engine.
pub(super) const STORE: &str = "records";

impl Cassandra {
    pub(super) async fn measure_commits(&self, bench: &mut Bench<'_>, opened: &Opened) -> anyhow::Result<()> {
        let raw = Arc::new(RawCommits::new(self, opened).await?);
        let next = Arc::new(AtomicU64::new(SAMPLES));
        let measured = [
            ("commit to one account", 1, &[Bound::Time(1.3)][..]),
            ("commits to 64 accounts at once", ACCOUNTS, &[Bound::Rate(0.8)][..]),
        ];
        for (what, clients, bounds) in measured {
            let raw = raw.clone();
            let commit = move |client| {
                let raw = raw.clone();
                async move { raw.commit(client).await }
            };
            records::compare_commits(bench, (beside_raw(what), bounds), clients, opened, &next, commit)
                .await?;
        }
        Ok(())
    }

    /// The rows of an account as the engine stores them.
    async fn rows_of(&self, account: AccountId) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let table = format!("{}.account", self.keyspace(Keyspace::Records));
        let read = format!("SELECT key, value FROM {table} WHERE store = ? AND account = ?");
        let values = (STORE, i64::from(account.0));
        let answer = self.session.query_unpaged(read, values).await?.into_rows_result()?;
        Ok(answer.rows::<(Vec<u8>, Vec<u8>)>()?.collect::<Result<_, _>>()?)
    }
}

/// Accounts to which the raw client commits.
struct RawCommits {
    session: Arc<Session>,
    /// The update of the head, then the rows.
    batch: Batch,
    /// Keys and values of one commit, except its head.
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    head_bytes: usize,
    /// How many commits each account has had.
    heads: Vec<Mutex<u64>>,
}

impl RawCommits {
    async fn new(cassandra: &Cassandra, opened: &Opened) -> anyhow::Result<Self> {
        let (rows, head_bytes) = sample(cassandra, opened).await?;
        let columns = "store text, account bigint, key blob, value blob, version bigint static, \
                       PRIMARY KEY ((store, account), key)";
        let table = cassandra.make_raw_table("account", columns).await?;
        let move_head = format!(
            "UPDATE {table} SET value = ?, version = ? WHERE store = ? AND account = ? AND key = 0x00 IF value = ?"
        );
        let put = format!("INSERT INTO {table} (store, account, key, value) VALUES (?, ?, ?, ?)");
        let (move_head, put) = (cassandra.prepare(&move_head).await?, cassandra.prepare(&put).await?);
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.append_statement(move_head);
        for _ in &rows {
            batch.append_statement(put.clone());
        }
        let begin = format!(
            "INSERT INTO {table} (store, account, key, value, version) VALUES (?, ?, 0x00, ?, 0) IF NOT EXISTS"
        );
        let begin: PreparedStatement = cassandra.prepare(&begin).await?;
        let heads = (0..ACCOUNTS).map(|_| Mutex::new(0)).collect();
        let raw = Self { session: cassandra.session.clone(), batch, rows, head_bytes, heads };
        for client in 0..ACCOUNTS {
            let values = (STORE, account_number(client), raw.head(0));
            raw.session.execute_unpaged(&begin, values).await?;
        }
        Ok(raw)
    }

    /// A head: the number of commits, padded to the length of the engine's head.
    fn head(&self, commits: u64) -> Vec<u8> {
        let mut head = commits.to_be_bytes().to_vec();
        head.resize(self.head_bytes.max(head.len()), b'h');
        head
    }

    async fn commit(&self, client: usize) -> anyhow::Result<()> {
        let account = CqlValue::BigInt(account_number(client));
        let store = CqlValue::Text(STORE.to_owned());
        let mut commits = self.heads.get(client).context("a client without an account")?.lock().await;
        let next = *commits + 1;
        let mut values = vec![vec![
            CqlValue::Blob(self.head(next)),
            CqlValue::BigInt(i64::try_from(next)?),
            store.clone(),
            account.clone(),
            CqlValue::Blob(self.head(*commits)),
        ]];
        for (row, (key, value)) in self.rows.iter().enumerate() {
            let key = CqlValue::Blob(key_of(row, next, key.len()));
            values.push(vec![store.clone(), account.clone(), key, CqlValue::Blob(value.clone())]);
        }
        let answer = self.session.batch(&self.batch, values).await?.into_rows_result()?;
        let is_applied = answer.first_row::<Row>()?.columns.first().cloned().flatten();
        ensure!(
            is_applied == Some(CqlValue::Boolean(true)),
            "a commit was refused though nobody else commits"
        );
        *commits = next;
        Ok(())
    }
}

/// The keys and values that a commit of the engine writes, including its body, and the bytes of a head.
async fn sample(cassandra: &Cassandra, opened: &Opened) -> anyhow::Result<(Vec<(Vec<u8>, Vec<u8>)>, usize)> {
    let mut before = Vec::new();
    for number in 0..SAMPLES {
        if number + 1 == SAMPLES {
            before = cassandra.rows_of(SAMPLE).await?;
        }
        opened.records.commit(SAMPLE, records::commit(number)).await?;
    }
    let after = cassandra.rows_of(SAMPLE).await?;
    let head = after.iter().find(|(key, _)| key == &[0]).context("an account has no head")?;
    let is_new = |key: &Vec<u8>| !before.iter().any(|(known, _)| known == key);
    let mut rows: Vec<_> = after.iter().filter(|(key, _)| is_new(key)).cloned().collect();
    ensure!(!rows.is_empty(), "a commit has written no rows");
    rows.push((vec![BODY_KEY, 0, 0, 0, 0], records::body(SAMPLES)));
    Ok((rows, head.1.len()))
}

/// The key of a row of a commit, as long as the engine's own.
fn key_of(row: usize, commit: u64, bytes: usize) -> Vec<u8> {
    let mut key = vec![row as u8 + 1];
    key.extend((commit as u32).to_be_bytes());
    key.resize(bytes.max(key.len()), b'k');
    key
}

fn account_number(client: usize) -> i64 {
    i64::from(records::committer(client).0)
}
