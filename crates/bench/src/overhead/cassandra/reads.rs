//! Reads of records, compared with slices of the same rows by the raw client, from the engine's own tables.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use restante_records::{AccountId, ChangesSince, Get, Opened, Records, Revision};
use scylla::{client::session::Session, statement::prepared::PreparedStatement, value::CqlValue};

use super::{
    super::{
        Bench, Subject,
        pairs::{Bound, Load, load},
        records::{self, BY_MAILBOX, EMAIL, Filled, PAGE},
    },
    Cassandra, Keyspace, beside_raw,
    commits::STORE,
};
use crate::{random::Random, report::number as count};

const SMALL: AccountId = AccountId(2);
const LARGE: AccountId = AccountId(3);
/// Emails of the small account, and how many of them a commit has: a page of changes has whole commits.
const SMALL_EMAILS: u64 = 1_000;
const SMALL_IN_COMMIT: u64 = 10;
const LARGE_IN_COMMIT: u64 = 1_000;
/// The prefixes of an account's keys: `docs/formats/records-cassandra.md`.
const STATE: u8 = 1;
const HISTORY: u8 = 2;
const INDEX: u8 = 3;
/// Of records that exist.
const LIVE: u8 = 0;
/// Bodies of a partition.
const BUCKET: i64 = 16_384;
/// Keys of one request while all of them are listed.
const KEYS: i32 = 5_000;

impl Cassandra {
    pub(super) async fn measure_reads(&self, bench: &mut Bench<'_>, opened: &Opened) -> anyhow::Result<()> {
        let emails = bench.args.stored(bench.args.records);
        let small = records::fill(opened, SMALL, SMALL_EMAILS, SMALL_IN_COMMIT).await?;
        let large = records::fill(opened, LARGE, emails, LARGE_IN_COMMIT).await?;
        let small = Arc::new(Partition::new(self, small).await?);
        let large = Arc::new(Partition::new(self, large).await?);
        let most = &[Bound::Time(1.2)];

        let (one, other) = (large.clone(), (opened.records.clone(), large.clone()));
        let base = reads(move |number| one.clone().raw_get(number));
        let ours = reads(move |number| get(other.0.clone(), other.1.clone(), number));
        bench.compare(beside_raw("get 50 records with their bodies"), most, base, ours).await?;

        let (one, other) = (large.clone(), (opened.records.clone(), large.clone()));
        let base = reads(move |number| one.clone().raw_page(number));
        let ours = reads(move |number| query(other.0.clone(), other.1.clone(), number));
        bench.compare(beside_raw("query a page of 50"), most, base, ours).await?;

        let (one, other) = (small.clone(), (opened.records.clone(), small.clone()));
        let base = reads(move |number| one.clone().raw_changes(number));
        let ours = reads(move |number| changes(other.0.clone(), other.1.clone(), number));
        bench.compare(beside_raw("changes, a page of 50"), most, base, ours).await?;

        let (one, other) = ((opened.records.clone(), small), (opened.records.clone(), large));
        let what = format!("query a page of 50 among {} records", count(emails as f64));
        let subject = Subject { what: &what, beside: "restante among 1,000" };
        let base = reads(move |number| query(one.0.clone(), one.1.clone(), number));
        let ours = reads(move |number| query(other.0.clone(), other.1.clone(), number));
        bench.compare(subject, &[Bound::Time(2.0)], base, ours).await
    }
}

/// A side with one client. Both sides of a pair read the same rows, chosen by the number of the read.
fn reads<F, W>(read: F) -> impl AsyncFnMut(Duration) -> anyhow::Result<Load>
where
    F: Fn(u64) -> W + Clone + Send + Sync + 'static,
    W: Future<Output = anyhow::Result<()>> + Send,
{
    async move |span| {
        let read = read.clone();
        load(1, span, move |_, number| read(number)).await
    }
}

async fn get(records: Arc<dyn Records>, of: Arc<Partition>, number: u64) -> anyhow::Result<()> {
    let (from, to) = of.emails(number);
    let ids = of.filled.ids.get(from..to).unwrap_or_default().to_vec();
    let found = records.get(of.filled.account, &Get::whole(EMAIL, ids)).await?;
    let found = found.iter().flatten().filter(|record| !record.body.bytes.is_empty()).count();
    ensure!(found == PAGE, "{found} of {PAGE} records were found");
    Ok(())
}

async fn query(records: Arc<dyn Records>, of: Arc<Partition>, number: u64) -> anyhow::Result<()> {
    let page = records.query(of.filled.account, &records::page(of.first_of_page(number) as u64)).await?;
    ensure!(page.ids.len() == PAGE, "a page has {} records", page.ids.len());
    Ok(())
}

async fn changes(records: Arc<dyn Records>, of: Arc<Partition>, number: u64) -> anyhow::Result<()> {
    let commits = (of.first_of_page(number) as u64) / SMALL_IN_COMMIT;
    let since = Revision(of.filled.before.0 + commits);
    let since = ChangesSince { kind: Some(EMAIL), since, limit: PAGE };
    let found = records.changes(of.filled.account, &since).await?.created.len();
    ensure!(found == PAGE, "a page has {found} changes");
    Ok(())
}

/// The rows of an account that was filled, as the raw client finds them.
struct Partition {
    session: Arc<Session>,
    filled: Filled,
    /// Keys by the number of an email.
    states: Vec<Vec<u8>>,
    entries: Vec<Vec<u8>>,
    history: Vec<Vec<u8>>,
    bodies: Vec<i64>,
    read: PreparedStatement,
    read_bodies: PreparedStatement,
}

impl Partition {
    async fn new(cassandra: &Cassandra, filled: Filled) -> anyhow::Result<Self> {
        let keyspace = cassandra.keyspace(Keyspace::Records);
        let account = i64::from(filled.account.0);
        let kind = EMAIL.0;
        let read = format!(
            "SELECT key, value, version FROM {keyspace}.account \
             WHERE store = ? AND account = ? AND key >= ? AND key < ? ORDER BY key ASC LIMIT ?"
        );
        let read_bodies = format!(
            "SELECT number, blobs, bytes FROM {keyspace}.body \
             WHERE store = ? AND account = ? AND bucket = ? AND number >= ? AND number < ?"
        );
        let keys = async |prefix: Vec<u8>| cassandra.keys_of(account, prefix).await;
        let partition = Self {
            states: keys(vec![STATE, kind]).await?,
            entries: keys(vec![INDEX, kind, BY_MAILBOX.0]).await?,
            history: keys(vec![HISTORY, kind, LIVE]).await?,
            bodies: cassandra.bodies_of(account).await?,
            read: cassandra.prepare(&read).await?,
            read_bodies: cassandra.prepare(&read_bodies).await?,
            session: cassandra.session.clone(),
            filled,
        };
        let emails = partition.filled.ids.len();
        for (what, found) in [
            ("records", partition.states.len()),
            ("index entries", partition.entries.len()),
            ("changes", partition.history.len()),
            ("bodies", partition.bodies.len()),
        ] {
            ensure!(found == emails, "an account with {emails} records has {found} {what} in Cassandra");
        }
        Ok(partition)
    }

    /// The first email of a page, anywhere in the account.
    fn first_of_page(&self, number: u64) -> usize {
        let pages = self.filled.ids.len() - PAGE;
        (Random::new(number, 3).below(pages as u64) / SMALL_IN_COMMIT * SMALL_IN_COMMIT) as usize
    }

    /// The emails of a page whose bodies are in one partition.
    fn emails(&self, number: u64) -> (usize, usize) {
        let first = self.first_of_page(number);
        let bucket = |email: usize| self.bodies.get(email).map(|body| body / BUCKET);
        let is_in_one =
            |first: &usize| bucket(*first).is_some() && bucket(*first) == bucket(*first + PAGE - 1);
        // A bucket has more than two pages, so if this page is split, one next to it is whole.
        let near = [Some(first), first.checked_sub(PAGE), Some(first + PAGE)];
        let first = near.into_iter().flatten().find(is_in_one).unwrap_or(first);
        (first, first + PAGE)
    }

    async fn slice(&self, from: Option<&Vec<u8>>, limit: usize) -> anyhow::Result<()> {
        let from = from.context("a page after the last email")?;
        let behind = from.first().map_or(0, |table| table + 1);
        let values =
            (STORE, i64::from(self.filled.account.0), from.as_slice(), vec![behind], i32::try_from(limit)?);
        let rows = self.session.execute_unpaged(&self.read, values).await?.into_rows_result()?;
        let mut found = 0;
        for row in rows.rows::<(&[u8], &[u8], i64)>()? {
            let (_, _, version) = row?;
            ensure!(version > 0, "a row has no version");
            found += 1;
        }
        ensure!(found >= PAGE, "a slice has {found} rows");
        Ok(())
    }

    async fn raw_page(self: Arc<Self>, number: u64) -> anyhow::Result<()> {
        // One row more than the page shows whether more follow, as the engine reads.
        self.slice(self.entries.get(self.first_of_page(number)), PAGE + 1).await
    }

    async fn raw_changes(self: Arc<Self>, number: u64) -> anyhow::Result<()> {
        self.slice(self.history.get(self.first_of_page(number)), PAGE + 1).await
    }

    async fn raw_get(self: Arc<Self>, number: u64) -> anyhow::Result<()> {
        let (from, to) = self.emails(number);
        self.slice(self.states.get(from), PAGE).await?;
        let (first, last) =
            self.bodies.get(from).zip(self.bodies.get(to - 1)).context("a page without bodies")?;
        let values = (STORE, i64::from(self.filled.account.0), first / BUCKET, *first, last + 1);
        let rows = self.session.execute_unpaged(&self.read_bodies, values).await?.into_rows_result()?;
        let mut found = 0;
        for row in rows.rows::<(i64, &[u8], &[u8])>()? {
            let (_, _, bytes) = row?;
            found += usize::from(!bytes.is_empty());
        }
        ensure!(found == PAGE, "{found} of {PAGE} bodies were found");
        Ok(())
    }
}

impl Cassandra {
    /// The keys of an account with a prefix, ascending.
    async fn keys_of(&self, account: i64, prefix: Vec<u8>) -> anyhow::Result<Vec<Vec<u8>>> {
        let table = format!("{}.account", self.keyspace(Keyspace::Records));
        let list = format!(
            "SELECT key FROM {table} WHERE store = ? AND account = ? AND key > ? AND key < ? LIMIT {KEYS}"
        );
        let list = self.prepare(&list).await?;
        let mut behind = prefix.clone();
        if let Some(last) = behind.last_mut() {
            *last += 1;
        }
        let mut keys: Vec<Vec<u8>> = Vec::new();
        loop {
            let after = keys.last().unwrap_or(&prefix).clone();
            let values = (STORE, account, after, behind.clone());
            let rows = self.session.execute_unpaged(&list, values).await?.into_rows_result()?;
            let found: Vec<(Vec<u8>,)> = rows.rows::<(Vec<u8>,)>()?.collect::<Result<_, _>>()?;
            if found.is_empty() {
                return Ok(keys);
            }
            keys.extend(found.into_iter().map(|(key,)| key));
        }
    }

    /// The numbers of an account's bodies, ascending.
    async fn bodies_of(&self, account: i64) -> anyhow::Result<Vec<i64>> {
        let table = format!("{}.body", self.keyspace(Keyspace::Records));
        let buckets = format!("SELECT DISTINCT store, account, bucket FROM {table}");
        let rows = self.session.query_unpaged(buckets, ()).await?.into_rows_result()?;
        let mut buckets = Vec::new();
        for row in rows.rows::<(&str, i64, i64)>()? {
            let (_, owner, bucket) = row?;
            buckets.extend((owner == account).then_some(bucket));
        }
        let list = format!("SELECT number FROM {table} WHERE store = ? AND account = ? AND bucket = ?");
        let list = self.prepare(&list).await?;
        let mut numbers = Vec::new();
        for bucket in buckets {
            let values =
                [CqlValue::Text(STORE.to_owned()), CqlValue::BigInt(account), CqlValue::BigInt(bucket)];
            let rows = self.session.execute_unpaged(&list, &values[..]).await?.into_rows_result()?;
            for row in rows.rows::<(i64,)>()? {
                numbers.push(row?.0);
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}
