//! PostgreSQL: commits, compared with grouped inserts of the same rows.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, anyhow, bail, ensure};
use async_trait::async_trait;
use futures_util::future::join4;
use restante_archive::PostgresOptions;
use restante_records::{EngineUrl, Opened, PostgresUrl};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::{Client, Statement};

use super::{
    Bench, RAW, Server, Subject,
    pairs::Bound,
    records::{self, SAMPLE},
};
use crate::engines::{fresh_name, target};

const NAME: &str = "postgres";
/// The variable that dev/services sets.
const VARIABLE: &str = "RESTANTE_POSTGRES_URL";
const COMMITTERS: usize = 64;
/// Connections that commit, and the most commits of a transaction: those of restante's engine.
const WRITERS: usize = 2;
const GROUP: usize = 256;
const WAITING_MAX: usize = 1_024;

/// Connects to the PostgreSQL that is named.
pub(super) async fn connect() -> anyhow::Result<Option<Box<dyn Server>>> {
    let Some(url) = target::named(None, VARIABLE) else { return Ok(None) };
    let restante_archive::EngineUrl::Postgres(of_archive) = url.parse()? else {
        bail!("{VARIABLE} should be postgres://<user>@<host>/<database>");
    };
    let options = PostgresOptions::new(&of_archive)?;
    let name = fresh_name();
    let records = url.parse::<PostgresUrl>()?.with_schema(&name)?;
    open(&options).await?;
    Ok(Some(Box::new(Postgres { options, records, name })))
}

async fn open(options: &PostgresOptions) -> anyhow::Result<Client> {
    let connecting = options.config.connect(options.connector()?).await;
    let (client, connection) = connecting.with_context(|| format!("can't connect: look at {VARIABLE}"))?;
    tokio::spawn(connection); // it ends with the client; an error reaches the requests themselves
    Ok(client)
}

struct Postgres {
    options: PostgresOptions,
    records: PostgresUrl,
    /// The schema of the engine; that of the raw client has one more word.
    name: String,
}

#[async_trait(?Send)]
impl Server for Postgres {
    fn name(&self) -> &'static str {
        NAME
    }

    fn created(&self) -> String {
        self.drop()
    }

    async fn measure(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let url = EngineUrl::Postgres(self.records.clone());
        let opened = records::open(url).await.context("can't open the records")?;
        let measured = self.measure_commits(bench, &opened).await;
        opened.upkeep.close().await?;
        measured
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        open(&self.options).await?.batch_execute(&self.drop()).await.map_err(Into::into)
    }
}

impl Postgres {
    fn raw(&self) -> String {
        format!("{}_raw", self.name)
    }

    fn drop(&self) -> String {
        format!("DROP SCHEMA IF EXISTS {} CASCADE; DROP SCHEMA IF EXISTS {} CASCADE", self.name, self.raw())
    }

    async fn measure_commits(&self, bench: &mut Bench<'_>, opened: &Opened) -> anyhow::Result<()> {
        let raw = Arc::new(self.raw_commits(opened).await?);
        let next = Arc::new(AtomicU64::new(2));
        for (what, clients, bound) in [
            ("commit by one committer", 1, Bound::Time(1.5)),
            ("commits by 64 committers", COMMITTERS, Bound::Rate(0.7)),
        ] {
            let raw = raw.clone();
            let commit = move |client| {
                let raw = raw.clone();
                async move { raw.commit(client).await }
            };
            records::compare_commits(
                bench,
                (Subject { what, beside: RAW }, &[bound][..]),
                clients,
                opened,
                &next,
                commit,
            )
            .await?;
        }
        Ok(())
    }

    async fn raw_commits(&self, opened: &Opened) -> anyhow::Result<RawCommits> {
        let rows = Arc::new(self.sample(opened).await?);
        let client = open(&self.options).await?;
        let raw = self.raw();
        let make = format!(
            "CREATE SCHEMA {raw};
             CREATE TABLE {raw}.entry
               (account bigint, key bytea, value bytea NOT NULL, body bigint, PRIMARY KEY (account, key));
             CREATE TABLE {raw}.body (id bigint PRIMARY KEY, account bigint NOT NULL, bytes bytea NOT NULL);
             ALTER TABLE {raw}.body ALTER COLUMN bytes SET STORAGE EXTERNAL"
        );
        client
            .batch_execute(&make)
            .await
            .context("can't make a schema: the user needs CREATE on the database")?;
        let mut writers = Vec::new();
        for _ in 0..WRITERS {
            let (sender, receiver) = mpsc::channel(WAITING_MAX);
            let writer = Writer::new(open(&self.options).await?, &raw, rows.clone()).await?;
            tokio::spawn(writer.run(receiver)); // it ends with the sender
            writers.push(sender);
        }
        Ok(RawCommits { writers, next: AtomicU64::new(1) })
    }

    /// The keys and values that a commit of the engine writes.
    async fn sample(&self, opened: &Opened) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        opened.records.commit(SAMPLE, records::commit(0)).await?;
        let before = self.rows_of_sample().await?;
        opened.records.commit(SAMPLE, records::commit(1)).await?;
        let mut rows = self.rows_of_sample().await?;
        rows.retain(|(key, _)| !before.iter().any(|(known, _)| known == key));
        ensure!(!rows.is_empty(), "a commit has written no rows");
        Ok(rows)
    }

    async fn rows_of_sample(&self) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let read = format!("SELECT key, value FROM {}.entry WHERE account = $1", self.name);
        let rows = open(&self.options).await?.query(&read, &[&i64::from(SAMPLE.0)]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }
}

/// A commit that waits for its transaction.
struct Waiting {
    account: i64,
    number: u64,
    reply: oneshot::Sender<Result<(), String>>,
}

/// The raw client: all commits that wait for a connection go into one transaction.
struct RawCommits {
    writers: Vec<mpsc::Sender<Waiting>>,
    next: AtomicU64,
}

impl RawCommits {
    async fn commit(&self, client: usize) -> anyhow::Result<()> {
        let writer = self.writers.get(client % WRITERS).context("a client without a writer")?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let account = i64::from(records::committer(client).0);
        let ended = || anyhow!("a writer has ended");
        writer.send(Waiting { account, number, reply }).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?.map_err(anyhow::Error::msg)
    }
}

/// A connection that commits.
struct Writer {
    client: Client,
    put_bodies: Statement,
    put_rows: Statement,
    /// Keys and values of one commit.
    rows: Arc<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl Writer {
    async fn new(client: Client, schema: &str, rows: Arc<Vec<(Vec<u8>, Vec<u8>)>>) -> anyhow::Result<Self> {
        let put_bodies = format!(
            "INSERT INTO {schema}.body SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])"
        );
        let put_rows = format!(
            "INSERT INTO {schema}.entry SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bigint[])"
        );
        let (put_bodies, put_rows) = (client.prepare(&put_bodies).await?, client.prepare(&put_rows).await?);
        Ok(Self { client, put_bodies, put_rows, rows })
    }

    async fn run(self, mut waiting: mpsc::Receiver<Waiting>) {
        let mut group = Vec::with_capacity(GROUP);
        while waiting.recv_many(&mut group, GROUP).await > 0 {
            let written = self.write(&group).await.map_err(|error| format!("{error:#}"));
            for one in group.drain(..) {
                let _ = one.reply.send(written.clone()); // a client that has ended does not wait
            }
        }
    }

    /// One transaction in one round trip: statements are sent in the order in which they are polled first.
    async fn write(&self, group: &[Waiting]) -> anyhow::Result<()> {
        let (mut ids, mut owners, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        let (mut accounts, mut keys, mut values, mut names) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for one in group {
            let id = i64::try_from(one.number)?;
            ids.push(id);
            owners.push(one.account);
            bodies.push(records::body(one.number));
            for (row, (key, value)) in self.rows.iter().enumerate() {
                accounts.push(one.account);
                keys.push(key_of(row, one.number, key.len()));
                values.push(value.as_slice());
                names.push(Some(id));
            }
        }
        let client = &self.client;
        let (begun, bodies, rows, ended) = join4(
            client.batch_execute("BEGIN"),
            client.execute(&self.put_bodies, &[&ids, &owners, &bodies]),
            client.execute(&self.put_rows, &[&accounts, &keys, &values, &names]),
            client.batch_execute("COMMIT"),
        )
        .await;
        begun?;
        bodies?;
        rows?;
        Ok(ended?)
    }
}

/// The key of a row of a commit, as long as the engine's own.
fn key_of(row: usize, commit: u64, bytes: usize) -> Vec<u8> {
    let mut key = vec![row as u8 + 1];
    key.extend((commit as u32).to_be_bytes());
    key.resize(bytes.max(key.len()), b'k');
    key
}
