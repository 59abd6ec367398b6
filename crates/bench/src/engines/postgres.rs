//! PostgreSQL, with what a store of records needs: small durable commits, grouped ones, slices of an account, NOTIFY.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use async_trait::async_trait;
use futures_util::{StreamExt, future::poll_fn, stream::FuturesUnordered};
use parking_lot::Mutex;
use restante_archive::{EngineUrl, PostgresOptions};
use tokio::{sync::mpsc, time::timeout};
use tokio_postgres::{AsyncMessage, Client, config::Host};

use super::{
    Engine, EnginesArgs,
    floors::{self, Floors},
    load::{Done, Measured, closed_loop, round_trip_ms},
    results::{References, Results},
    setting::EngineSetting,
    target,
};
use crate::progress;

const NAME: &str = "postgres";
/// The variable that dev/services sets.
const VARIABLE: &str = "RESTANTE_POSTGRES_URL";
const CONNECT_MAX: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(60);
/// About a record: a listing row of a mail.
const VALUE_BYTES: usize = 600;
const ACCOUNTS: u64 = 64;
/// Rows of a slice, as of a page of a mailbox.
const SLICE_ROWS: i64 = 100;
/// Commits that one transaction carries when a server groups them.
const GROUP_ROWS: usize = 64;
/// Notifications that wait to be read: one is in flight at a time.
const NOTIFICATIONS_MAX: usize = 16;
/// Connections of the measurements with many clients.
const CONNECTIONS: usize = 64;

/// Connects to the PostgreSQL that is named.
pub(super) async fn connect(args: &EnginesArgs) -> anyhow::Result<Option<Box<dyn Engine>>> {
    let Some(url) = target::named(args.postgres.as_ref(), VARIABLE) else { return Ok(None) };
    let url = with_authority(url, args.ca_file.as_deref());
    let EngineUrl::Postgres(url) = url.parse()? else {
        bail!("--postgres takes postgres://<user>@<host>/<database>");
    };
    let mut options = PostgresOptions::new(&url)?;
    if let Some(file) = &args.postgres_password_file {
        options.config.password(target::secret(file)?);
    }
    options.config.connect_timeout(CONNECT_MAX);
    let (client, _) = open(&options).await?;
    let schema = target::fresh_name();
    Ok(Some(Box::new(Postgres { options: Arc::new(options), client, schema })))
}

/// The URL with the certificate authority of `--ca-file`, unless it names one itself.
fn with_authority(url: String, ca_file: Option<&Path>) -> String {
    let Some(file) = ca_file.filter(|_| !url.contains("sslrootcert=")) else { return url };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let encoded: String = file
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(|&byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}sslrootcert={encoded}")
}

/// Opens a connection; notifications arrive at the receiver.
async fn open(options: &PostgresOptions) -> anyhow::Result<(Client, mpsc::Receiver<()>)> {
    let advice = "can't connect: look at --postgres, --postgres-password-file and the URL's sslmode";
    let (client, mut connection) = options.config.connect(options.connector()?).await.context(advice)?;
    let (notified, notifications) = mpsc::channel(NOTIFICATIONS_MAX);
    tokio::spawn(async move {
        // The loop ends with the client; errors are returned by the requests themselves.
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if matches!(message, AsyncMessage::Notification(_)) {
                let _ = notified.try_send(()); // most connections have no reader
            }
        }
    });
    Ok((client, notifications))
}

struct Postgres {
    options: Arc<PostgresOptions>,
    client: Client,
    /// The schema of this run.
    schema: String,
}

#[async_trait]
impl Engine for Postgres {
    fn name(&self) -> &'static str {
        NAME
    }

    fn created(&self) -> String {
        format!("DROP SCHEMA {} CASCADE", self.schema)
    }

    async fn settings(&self) -> anyhow::Result<Vec<EngineSetting>> {
        let mut settings = Vec::new();
        for name in ["fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_connections"] {
            let row = self.client.query_one("SELECT current_setting($1)", &[&name]).await?;
            settings.push(judge_setting(name, row.try_get(0)?));
        }
        Ok(settings)
    }

    async fn measure(&self, args: &EnginesArgs, results: &Mutex<Results>) -> anyhow::Result<()> {
        let floors = self.floors(args).await?;
        {
            let mut results = results.lock();
            let mut table = results.table(NAME, "floors");
            table.shown("round trip p50", "ms", floors.round_trip_ms);
            if let Some(syncs) = floors.syncs_per_s {
                table.shown("synced appends of the disk", "1/s", syncs);
            }
        }
        let schema = &self.schema;
        let make = format!(
            "CREATE SCHEMA {schema}; CREATE TABLE {schema}.map \
             (account bigint, key bigint, value bytea NOT NULL, PRIMARY KEY (account, key))"
        );
        self.client
            .batch_execute(&make)
            .await
            .context("can't make a schema: the user needs CREATE on the database")?;
        self.measure_commits(args, &floors, results).await?;
        self.measure_slices(args, &floors, results).await?;
        self.measure_notifications(args, &floors, results).await
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        let drop = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
        if self.client.is_closed() {
            let (client, _notifications) = open(&self.options).await?;
            return client.batch_execute(&drop).await.map_err(Into::into);
        }
        self.client.batch_execute(&drop).await.map_err(Into::into)
    }
}

impl Postgres {
    async fn floors(&self, args: &EnginesArgs) -> anyhow::Result<Floors> {
        let ping = async || self.client.simple_query("").await.map(drop).map_err(anyhow::Error::from);
        let round_trip_ms = round_trip_ms(args.pick(1_000, 200), ping).await?;
        let is_local = self.options.config.get_hosts().iter().all(|host| match host {
            Host::Tcp(host) => floors::is_local(host),
            #[cfg(unix)]
            Host::Unix(_) => true,
        });
        // Only superusers may read the folder.
        let folder = self.client.query_one("SELECT current_setting('data_directory')", &[]).await;
        let folder: Option<String> = folder.ok().and_then(|row| row.try_get(0).ok());
        let disk = match folder.filter(|_| is_local) {
            Some(folder) => floors::disk_below(Path::new(&folder), args).await?,
            None => None,
        };
        let syncs_per_s = disk.as_ref().map(|disk| disk.syncs_per_s);
        Ok(Floors { syncs_per_s, round_trip_ms })
    }

    /// Durable inserts: by one client, by many at once, and many in one transaction.
    async fn measure_commits(
        &self,
        args: &EnginesArgs,
        floors: &Floors,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let durable = floors.durable_ms();
        for (clients, operations) in [(1, args.pick(5_000, 1_000)), (CONNECTIONS, args.pick(50_000, 5_000))] {
            let measured = self.commits(clients, operations, 1).await?;
            let mut results = results.lock();
            let mut table = results.table(NAME, format!("commits, {clients} at once"));
            let run = measured.circumstances("commit");
            let times = measured.times("commit").service;
            let references = |floor: Option<f64>| References { seed: None, floor };
            // PostgreSQL syncs once for all commits that wait, so many clients are not bounded by the rate of syncs.
            let rate = durable.map(|ms| clients as f64 * 1e3 / ms).filter(|_| clients == 1);
            table.rate("commits of a row", "1/s", measured.per_second(), references(rate), &run);
            table.time("commit p50", times.median_ms(), references(durable.filter(|_| clients == 1)), &run);
            table.time("commit p99", times.p99_ms(), References::NONE, &run);
            table.curve("postgres: commits", format!("{clients} at once"), &times);
        }
        let grouped = self.commits(1, args.pick(2_000, 300), GROUP_ROWS).await?;
        let mut results = results.lock();
        let mut table = results.table(NAME, format!("commits of {GROUP_ROWS} rows"));
        let run = grouped.circumstances("commit");
        let rows = grouped.per_second() * GROUP_ROWS as f64;
        table.rate("rows", "1/s", rows, References::NONE, &run);
        // The rows themselves take most of the time, which no floor measures; commits of one row show whether syncs are slow.
        table.time("commit p50", grouped.times("commit").service.median_ms(), References::NONE, &run);
        table.curve("postgres: commits", format!("of {GROUP_ROWS} rows"), &grouped.times("commit").service);
        Ok(())
    }

    async fn commits(&self, clients: usize, operations: u64, rows: usize) -> anyhow::Result<Measured> {
        let connections = Arc::new(self.connections(clients).await?);
        let statement = Arc::new(format!(
            "INSERT INTO {}.map SELECT $1, unnest($2::bigint[]), unnest($3::bytea[]) \
             ON CONFLICT (account, key) DO UPDATE SET value = excluded.value",
            self.schema
        ));
        let bar = progress::bar(&format!("postgres: commits of {rows} by {clients}"), operations);
        let value = Arc::new(vec![0x5a_u8; VALUE_BYTES]);
        let operation = move |client: usize, number: u64| {
            let (connections, statement, value) = (connections.clone(), statement.clone(), value.clone());
            async move {
                let connection = connections.get(client).context("a client without a connection")?;
                let statement = connection.prepared(&statement).await?;
                let first = number as i64 * rows as i64;
                let keys: Vec<i64> = (first..first + rows as i64).collect();
                let values = vec![value.as_slice(); rows];
                let account = (number % ACCOUNTS) as i64;
                connection.client.execute(&statement, &[&account, &keys, &values]).await?;
                Ok(Done::new("commit", rows * VALUE_BYTES))
            }
        };
        let measured = closed_loop(clients, operations, LIMIT, &bar, operation).await;
        bar.finish_and_clear();
        measured
    }

    async fn connections(&self, count: usize) -> anyhow::Result<Vec<Connection>> {
        let opening: FuturesUnordered<_> = (0..count).map(|_| open(&self.options)).collect();
        let opened: Vec<_> = opening.collect().await;
        let connections = opened.into_iter().map(|opened| {
            let (client, _notifications) = opened?;
            Ok(Connection { client, statement: tokio::sync::OnceCell::new() })
        });
        connections.collect()
    }

    /// Pages of an account's rows, by key.
    async fn measure_slices(
        &self,
        args: &EnginesArgs,
        floors: &Floors,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let rows = args.pick(100_000, 10_000) as i64;
        let schema = &self.schema;
        let fill = format!(
            "INSERT INTO {schema}.map SELECT -1, key, decode(repeat('5a', {VALUE_BYTES}), 'hex') \
             FROM generate_series(1, {rows}) key"
        );
        self.client.batch_execute(&fill).await?;
        let statement = Arc::new(format!(
            "SELECT key, value FROM {schema}.map WHERE account = -1 AND key >= $1 ORDER BY key LIMIT {SLICE_ROWS}"
        ));
        let clients = 8;
        let operations = args.pick(20_000, 2_000);
        let connections = Arc::new(self.connections(clients).await?);
        let bar = progress::bar("postgres: slices", operations);
        let operation = move |client: usize, number: u64| {
            let (connections, statement) = (connections.clone(), statement.clone());
            async move {
                let connection = connections.get(client).context("a client without a connection")?;
                let statement = connection.prepared(&statement).await?;
                let first = (number.wrapping_mul(0x9e37_79b9) % (rows - SLICE_ROWS) as u64) as i64 + 1;
                let found = connection.client.query(&statement, &[&first]).await?;
                anyhow::ensure!(found.len() == SLICE_ROWS as usize, "a slice has {} rows", found.len());
                Ok(Done::new("slice", found.len() * VALUE_BYTES))
            }
        };
        let measured = closed_loop(clients, operations, LIMIT, &bar, operation).await;
        bar.finish_and_clear();
        let measured = measured?;
        let mut results = results.lock();
        let mut table = results.table(NAME, format!("slices of {SLICE_ROWS} rows, {clients} at once"));
        let run = measured.circumstances("slice");
        let times = measured.times("slice").service;
        table.rate("slices", "1/s", measured.per_second(), References::NONE, &run);
        table.rate("bytes", "MB/s", measured.mb_per_second(), References::NONE, &run);
        table.time(
            "slice p50",
            times.median_ms(),
            References::floor(clients as f64 * floors.round_trip_ms),
            &run,
        );
        table.time("slice p99", times.p99_ms(), References::NONE, &run);
        table.curve("postgres: slices", format!("{clients} at once"), &times);
        Ok(())
    }

    /// From NOTIFY on one connection to its arrival on another.
    async fn measure_notifications(
        &self,
        args: &EnginesArgs,
        floors: &Floors,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let (listener, notifications) = open(&self.options).await?;
        listener.batch_execute(&format!("LISTEN {}", self.schema)).await?;
        let (sender, _) = open(&self.options).await?;
        let (sender, notify) = (Arc::new(sender), Arc::new(format!("NOTIFY {}, 'x'", self.schema)));
        let notifications = Arc::new(tokio::sync::Mutex::new(notifications));
        let operations = args.pick(2_000, 300);
        let bar = progress::bar("postgres: NOTIFY", operations);
        let operation = move |_, _| {
            let (sender, notify, notifications) = (sender.clone(), notify.clone(), notifications.clone());
            async move {
                sender.batch_execute(&notify).await?;
                let arrived = timeout(CONNECT_MAX, async { notifications.lock().await.recv().await }).await;
                anyhow::ensure!(matches!(arrived, Ok(Some(()))), "a notification did not arrive");
                Ok(Done::new("notify", 1))
            }
        };
        let measured = closed_loop(1, operations, LIMIT, &bar, operation).await;
        bar.finish_and_clear();
        let measured = measured?;
        drop(listener);
        let mut results = results.lock();
        let mut table = results.table(NAME, "notifications");
        let run = measured.circumstances("notify");
        let times = measured.times("notify").service;
        table.time(
            "NOTIFY to arrival p50",
            times.median_ms(),
            References::floor(2.0 * floors.round_trip_ms),
            &run,
        );
        table.time("NOTIFY to arrival p99", times.p99_ms(), References::NONE, &run);
        Ok(())
    }
}

/// A connection with the one statement that it runs.
struct Connection {
    client: Client,
    statement: tokio::sync::OnceCell<tokio_postgres::Statement>,
}

impl Connection {
    async fn prepared(&self, text: &str) -> anyhow::Result<tokio_postgres::Statement> {
        let prepared = self.statement.get_or_try_init(|| self.client.prepare(text)).await?;
        Ok(prepared.clone())
    }
}

fn judge_setting(name: &str, value: String) -> EngineSetting {
    let off = value == "off";
    let setting = EngineSetting::safe(NAME, name, value.clone());
    match name {
        "fsync" if off => setting.into_unsafe(
            "a power cut loses acknowledged mail and can damage the whole database",
            "set fsync = on and restore from a backup if the machine has crashed since",
        ),
        "synchronous_commit" if off => setting.into_unsafe(
            "a crash loses the commits of the last half second, which were acknowledged",
            "set synchronous_commit = on",
        ),
        "full_page_writes" if off => setting.into_unsafe(
            "a power cut can leave half-written pages that nothing repairs",
            "set full_page_writes = on",
        ),
        "max_connections" if value.parse().is_ok_and(|max: u32| max < 2 * CONNECTIONS as u32) => setting
            .into_costly("few connections are left beside those of one server", "set max_connections = 200"),
        _ => setting,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::setting::Judgement, *};

    #[test]
    fn settings_that_lose_commits_are_unsafe() {
        for name in ["fsync", "synchronous_commit", "full_page_writes"] {
            let of = |value: &str| judge_setting(name, value.to_owned()).judgement;
            assert!(matches!(of("off"), Judgement::Unsafe { .. }), "{name}");
            assert_eq!(of("on"), Judgement::Safe, "{name}");
        }
        assert!(matches!(judge_setting("max_connections", "100".into()).judgement, Judgement::Costly { .. }));
    }

    #[test]
    fn the_authority_of_the_flag_is_that_of_the_url() {
        let with = |url: &str| with_authority(url.to_owned(), Some(Path::new("/etc/my ca.pem")));
        assert_eq!(with("postgres://h/d"), "postgres://h/d?sslrootcert=/etc/my%20ca.pem");
        assert_eq!(with("postgres://h/d?a=b"), "postgres://h/d?a=b&sslrootcert=/etc/my%20ca.pem");
        assert_eq!(with("postgres://h/d?sslrootcert=x"), "postgres://h/d?sslrootcert=x");
        assert_eq!(with_authority("postgres://h/d".to_owned(), None), "postgres://h/d");
    }
}
