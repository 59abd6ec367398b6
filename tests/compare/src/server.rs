//! The PostgreSQL server of the comparison: sessions, schemas of our own, sizes.

use anyhow::{Context, ensure};
use restante_archive::{EngineUrl, PostgresUrl};
use tokio_postgres::{Client, NoTls};

/// The schema of restante's engine.
pub(crate) const OURS: &str = "restante_compare_ours";
/// The schema of the mailserver's table.
pub(crate) const RIVAL: &str = "restante_compare_rival";
/// An advisory lock during a comparison, so that two of them can't drop each other's schemas. The number is arbitrary: the
/// letters of "compare".
const LOCK: i64 = 0x0063_6f6d_7061_7265;

/// A server, and an administrative session.
pub(crate) struct Server {
    url: PostgresUrl,
    admin: Client,
}

impl Server {
    /// Connects, takes the lock and drops the remains of an interrupted run.
    pub(crate) async fn open(url: &str) -> anyhow::Result<Self> {
        let url: PostgresUrl = url.parse().context("--postgres is not a PostgreSQL URL")?;
        let admin = connect(&url, "").await?;
        let is_alone: bool = admin.query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK]).await?.get(0);
        ensure!(is_alone, "another comparison is using this database: wait for it or name another database");
        let server = Self { url, admin };
        server.drop_schemas().await?;
        Ok(server)
    }

    /// The URL of restante's engine.
    pub(crate) fn engine_url(&self) -> anyhow::Result<EngineUrl> {
        Ok(EngineUrl::Postgres(self.url.with_schema(OURS)?))
    }

    /// Another session, with initial statements.
    pub(crate) async fn session(&self, settings: &str) -> anyhow::Result<Client> {
        connect(&self.url, settings).await
    }

    pub(crate) async fn drop_schemas(&self) -> anyhow::Result<()> {
        let drop = format!("DROP SCHEMA IF EXISTS {OURS} CASCADE; DROP SCHEMA IF EXISTS {RIVAL} CASCADE");
        self.admin.batch_execute(&drop).await.context("can't drop the schemas of the comparison")
    }

    /// Vacuums and analyses the tables of a schema and writes everything out, as a running server does in the
    /// background.
    pub(crate) async fn tidy(&self, schema: &str) -> anyhow::Result<()> {
        let tables = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = $1";
        for row in self.admin.query(tables, &[&schema]).await? {
            let table: &str = row.get(0);
            self.admin.batch_execute(&format!("VACUUM (FREEZE, ANALYZE) {table}")).await?;
        }
        let is_written = self.admin.batch_execute("CHECKPOINT").await;
        if let Err(error) = is_written {
            eprintln!("the server may still be writing while questions are asked: {error}");
        }
        Ok(())
    }

    /// Bytes on disk of all tables of a schema with their indexes.
    pub(crate) async fn disk_bytes(&self, schema: &str) -> anyhow::Result<u64> {
        let sum = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c \
                   JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind IN ('r', 'm')";
        let bytes: i64 = self.admin.query_one(sum, &[&schema]).await?.get(0);
        Ok(bytes.unsigned_abs())
    }

    /// Bytes on disk of one table or index.
    pub(crate) async fn relation_bytes(&self, name: &str) -> anyhow::Result<u64> {
        let size = "SELECT pg_relation_size(to_regclass($1))";
        let bytes: Option<i64> = self.admin.query_one(size, &[&name]).await?.get(0);
        Ok(bytes.with_context(|| format!("there is no relation {name}"))?.unsigned_abs())
    }

    /// The settings that matter for the figures.
    pub(crate) async fn description(&self) -> anyhow::Result<String> {
        let mut settings = Vec::new();
        let names = "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY($1) ORDER BY name";
        let shown = ["server_version", "shared_buffers", "fsync", "max_parallel_workers_per_gather"];
        for row in self.admin.query(names, &[&&shown[..]]).await? {
            let (name, value): (&str, &str) = (row.get(0), row.get(1));
            settings.push(format!("{name} {value}"));
        }
        Ok(settings.join(", "))
    }
}

async fn connect(url: &PostgresUrl, settings: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url.connection(), NoTls)
        .await
        .with_context(|| format!("can't connect to {url}"))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("a session with the PostgreSQL server ended: {error}");
        }
    });
    client.batch_execute(settings).await?;
    Ok(client)
}
