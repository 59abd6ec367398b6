//! Cassandra: commits and reads of records, appends and pages of an archive.

mod archive;
mod commits;
mod reads;

use std::{collections::BTreeMap, num::NonZero, sync::Arc, time::Duration};

use anyhow::Context;
use async_trait::async_trait;
use restante_records::{CassandraUrl, EngineUrl, Opened};
use scylla::{
    client::{
        PoolSize, execution_profile::ExecutionProfile, session::Session, session_builder::SessionBuilder,
    },
    statement::{Consistency, SerialConsistency, Statement, prepared::PreparedStatement},
};

use super::{Bench, RAW, Server, Subject, records};
use crate::engines::{fresh_name, target};

const NAME: &str = "cassandra";
/// The variable that dev/services sets: `cassandra://[user[:password]@]host[:port],...`, without a keyspace.
const VARIABLE: &str = "RESTANTE_CASSANDRA_URL";
const CONNECT_MAX: Duration = Duration::from_secs(10);
const REQUEST_MAX: Duration = Duration::from_secs(15);
const SCHEMA_CHANGE_MAX: Duration = Duration::from_secs(60);
/// The defaults of restante's engines.
const CONNECTIONS: NonZero<usize> = NonZero::new(2).expect("it is not 0");
/// The options of the engine's tables.
const OPTIONS: &str = "read_repair = 'NONE' AND speculative_retry = '50ms' AND allow_auto_snapshot = false";

/// Connects to the Cassandra that is named. The raw client speaks no TLS.
pub(super) async fn connect() -> anyhow::Result<Option<Box<dyn Server>>> {
    let Some(url) = target::named(None, VARIABLE) else { return Ok(None) };
    let url = url.trim_end_matches('/').to_owned();
    let session = Arc::new(open_session(&url).await?);
    Ok(Some(Box::new(Cassandra { url, name: fresh_name(), session })))
}

async fn open_session(url: &str) -> anyhow::Result<Session> {
    // A keyspace is needed to read the URL, and is not used.
    let nodes: CassandraUrl = format!("{url}/none").parse()?;
    let profile = ExecutionProfile::builder()
        .consistency(Consistency::LocalQuorum)
        .serial_consistency(Some(SerialConsistency::LocalSerial))
        .request_timeout(Some(REQUEST_MAX))
        .build();
    let mut builder = SessionBuilder::new()
        .known_nodes(nodes.nodes())
        .connection_timeout(CONNECT_MAX)
        .schema_agreement_timeout(SCHEMA_CHANGE_MAX)
        .pool_size(PoolSize::PerHost(CONNECTIONS))
        .default_execution_profile_handle(profile.into_handle());
    let user = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).map(|(user, _)| user);
    if let Some((user, password)) = user.and_then(|user| user.split_once(':')) {
        builder = builder.user(user, password);
    }
    builder.build().await.context("can't connect: look at RESTANTE_CASSANDRA_URL")
}

struct Cassandra {
    url: String,
    /// The prefix of the names of all keyspaces of this run.
    name: String,
    session: Arc<Session>,
}

/// The keyspaces of a run.
#[derive(Clone, Copy, Debug)]
enum Keyspace {
    Records,
    SmallArchive,
    LargeArchive,
    Raw,
}

impl Keyspace {
    const ALL: [Self; 4] = [Self::Records, Self::SmallArchive, Self::LargeArchive, Self::Raw];

    fn suffix(self) -> &'static str {
        match self {
            Self::Records => "records",
            Self::SmallArchive => "small",
            Self::LargeArchive => "large",
            Self::Raw => "raw",
        }
    }
}

#[async_trait(?Send)]
impl Server for Cassandra {
    fn name(&self) -> &'static str {
        NAME
    }

    fn created(&self) -> String {
        let drop = |keyspace| format!("cqlsh -e 'DROP KEYSPACE IF EXISTS {}'", self.keyspace(keyspace));
        Keyspace::ALL.map(drop).join("; ")
    }

    async fn measure(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let url: CassandraUrl = format!("{}/{}", self.url, self.keyspace(Keyspace::Records)).parse()?;
        let opened = records::open(EngineUrl::Cassandra(url)).await.context("can't open the records")?;
        self.make_raw_keyspace().await?;
        let measured = self.measure_records(bench, &opened).await;
        opened.upkeep.close().await?;
        measured?;
        Box::pin(self.measure_archive(bench)).await
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        // The connections of this run may have died.
        let session = open_session(&self.url).await?;
        for keyspace in Keyspace::ALL {
            let drop = format!("DROP KEYSPACE IF EXISTS {}", self.keyspace(keyspace));
            change_schema(&session, &drop).await?;
        }
        Ok(())
    }
}

impl Cassandra {
    fn keyspace(&self, keyspace: Keyspace) -> String {
        format!("{}_{}", self.name, keyspace.suffix())
    }

    async fn measure_records(&self, bench: &mut Bench<'_>, opened: &Opened) -> anyhow::Result<()> {
        self.measure_commits(bench, opened).await?;
        self.measure_reads(bench, opened).await
    }

    /// A keyspace with as many replicas as the engine's own.
    async fn make_raw_keyspace(&self) -> anyhow::Result<()> {
        let ask = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
        let answer = self.session.query_unpaged(ask, (self.keyspace(Keyspace::Records),)).await?;
        let (replication,) = answer.into_rows_result()?.single_row::<(BTreeMap<String, String>,)>()?;
        let options: Vec<String> =
            replication.iter().map(|(name, value)| format!("'{name}': '{value}'")).collect();
        let raw = self.keyspace(Keyspace::Raw);
        let make = format!("CREATE KEYSPACE {raw} WITH replication = {{{}}}", options.join(", "));
        change_schema(&self.session, &make).await.context("can't make a keyspace")
    }

    /// Makes a table of the raw client; returns its name with that of its keyspace.
    async fn make_raw_table(&self, name: &str, columns: &str) -> anyhow::Result<String> {
        let table = format!("{}.{name}", self.keyspace(Keyspace::Raw));
        let make = format!("CREATE TABLE {table} ({columns}) WITH {OPTIONS}");
        change_schema(&self.session, &make).await.context("can't make a table")?;
        Ok(table)
    }

    async fn prepare(&self, statement: &str) -> anyhow::Result<PreparedStatement> {
        self.session.prepare(statement).await.with_context(|| format!("can't prepare {statement}"))
    }
}

/// What is compared with the raw client.
fn beside_raw(what: &str) -> Subject<'_> {
    Subject { what, beside: RAW }
}

async fn change_schema(session: &Session, statement: &str) -> anyhow::Result<()> {
    let mut statement = Statement::new(statement);
    statement.set_request_timeout(Some(SCHEMA_CHANGE_MAX));
    session.query_unpaged(statement, ()).await?;
    Ok(())
}
