//! Cassandra: the table of seed 004 (random rows of about 55 kB), and what a store of records needs: conditional commits on one
//! partition, and slices of one.

mod process;
mod settings;
mod workloads;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use async_trait::async_trait;
use parking_lot::Mutex;
use restante_net::tls::{self, ClientTls, Roots, Verify};
use scylla::{
    client::{execution_profile::ExecutionProfile, session::Session, session_builder::SessionBuilder},
    cluster::ClusterState,
    statement::{Consistency, Statement, prepared::PreparedStatement},
};
use tokio::time::timeout;

use super::{
    Engine, EnginesArgs, floors, load::round_trip_ms, results::Results, setting::EngineSetting, target,
};
use settings::{Facts, Keyspace};

const NAME: &str = "cassandra";
/// The variables that dev/services sets.
const HOST_VARIABLE: &str = "RESTANTE_CASSANDRA_HOST";
const PORT_VARIABLE: &str = "RESTANTE_CASSANDRA_PORT";
const DATACENTER_VARIABLE: &str = "RESTANTE_CASSANDRA_DATACENTER";
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Time to find all nodes and open their connections.
const SESSION_MAX: Duration = Duration::from_secs(40);
/// A node itself gives up after 2 to 10 seconds.
const REQUEST_MAX: Duration = Duration::from_secs(15);
/// Changes of the schema take seconds, on a busy cluster more.
const SCHEMA_CHANGE_MAX: Duration = Duration::from_secs(50);
/// The round trip is the lowest median of this many measurements.
const ROUND_TRIP_ROUNDS: u64 = 10;
/// Copies of each row, if there are that many nodes.
const REPLICAS: usize = 3;

/// Flags for Cassandra.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct CassandraArgs {
    /// Measure this Cassandra; without it that of RESTANTE_CASSANDRA_HOST and RESTANTE_CASSANDRA_PORT
    #[arg(long, value_name = "HOST[:PORT],...")]
    pub cassandra: Option<String>,
    /// A file with user and password for the Cassandra: user:password
    #[arg(long, value_name = "FILE")]
    pub cassandra_credentials: Option<PathBuf>,
    /// The data center of the Cassandra, when it has several
    #[arg(long, value_name = "NAME")]
    pub cassandra_datacenter: Option<String>,
    /// Connect to the Cassandra over TLS. The names in its certificates are not checked, only who signed them
    #[arg(long)]
    pub cassandra_tls: bool,
}

/// Connects to the Cassandra that is named.
pub(super) async fn connect(args: &EnginesArgs) -> anyhow::Result<Option<Box<dyn Engine>>> {
    let Some(access) = Access::of(args)? else { return Ok(None) };
    let keyspace = target::fresh_name();
    let session = access.open(&keyspace).await?;
    let datacenter = Datacenter::of(&session.get_cluster_state(), access.datacenter.as_deref())?;
    let facts = Facts::ask(&session, access.is_local(), access.credentials.is_some()).await?;
    Ok(Some(Box::new(Cassandra { access, session: Arc::new(session), keyspace, datacenter, facts })))
}

/// How the cluster is reached.
struct Access {
    /// Each is a host, or a host and a port.
    nodes: Vec<String>,
    datacenter: Option<String>,
    credentials: Option<(String, String)>,
    tls: Option<ClientTls>,
}

impl Access {
    fn of(args: &EnginesArgs) -> anyhow::Result<Option<Self>> {
        let own = &args.cassandra;
        let Some(named) = target::named(own.cassandra.as_ref(), HOST_VARIABLE) else { return Ok(None) };
        let nodes = match (&own.cassandra, target::named(None, PORT_VARIABLE)) {
            (None, Some(port)) => vec![format!("{named}:{port}")],
            _ => {
                named.split(',').map(|node| node.trim().to_owned()).filter(|node| !node.is_empty()).collect()
            }
        };
        let credentials = own.cassandra_credentials.as_deref().map(target::credentials).transpose()?;
        let roots = args.ca_file.clone().map_or(Roots::System, Roots::File);
        // Nodes are reached by their addresses, which hardly any certificate names.
        let tls = ClientTls { verify: Verify::Chain, roots, identity: None };
        Ok(Some(Self {
            nodes,
            datacenter: target::named(own.cassandra_datacenter.as_ref(), DATACENTER_VARIABLE),
            credentials,
            tls: own.cassandra_tls.then_some(tls),
        }))
    }

    fn is_local(&self) -> bool {
        self.nodes.iter().all(|node| floors::is_local(host(node)))
    }

    /// Opens connections to all nodes. The driver reads only the schema of `keyspace`.
    async fn open(&self, keyspace: &str) -> anyhow::Result<Session> {
        let profile = ExecutionProfile::builder()
            .consistency(Consistency::LocalQuorum)
            .request_timeout(Some(REQUEST_MAX))
            .build();
        let mut builder = SessionBuilder::new()
            .known_nodes(&self.nodes)
            .connection_timeout(CONNECT_MAX)
            .schema_agreement_timeout(SCHEMA_CHANGE_MAX)
            .keyspaces_to_fetch([keyspace])
            .default_execution_profile_handle(profile.into_handle());
        if let Some((user, password)) = &self.credentials {
            builder = builder.user(user, password);
        }
        if let Some(datacenter) = &self.datacenter {
            builder = builder.prefer_datacenter(datacenter.clone());
        }
        if let Some(tls) = &self.tls {
            tls::install_provider();
            builder = builder.tls_context(Some(Arc::new(tls.config()?)));
        }
        timeout(SESSION_MAX, builder.build())
            .await
            .map_err(|_| anyhow!("no answer within {} s", SESSION_MAX.as_secs()))
            .and_then(|opened| opened.map_err(anyhow::Error::from))
            .context(
                "can't connect: look at --cassandra, --cassandra-credentials, --cassandra-tls and --ca-file",
            )
    }
}

/// The host of "host", "host:port", "::1" or "[::1]:port".
fn host(node: &str) -> &str {
    if let Some((address, _)) = node.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match node.split_once(':') {
        Some((host, port)) if !port.contains(':') => host,
        _ => node,
    }
}

/// The data center that is measured.
#[derive(Debug, PartialEq)]
struct Datacenter {
    name: String,
    nodes: usize,
    /// Nodes to which a connection is open.
    reachable: usize,
}

impl Datacenter {
    fn of(cluster: &ClusterState, named: Option<&str>) -> anyhow::Result<Self> {
        let nodes = cluster.get_nodes_info();
        let found = nodes.iter().filter_map(|node| Some((node.datacenter.clone()?, node.is_connected())));
        Self::choose(&found.collect::<Vec<_>>(), named)
    }

    /// The data center of that name, or the only one. A node is the name of its data center, and whether it is connected.
    fn choose(nodes: &[(String, bool)], named: Option<&str>) -> anyhow::Result<Self> {
        let names: BTreeSet<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
        let all = names.iter().copied().collect::<Vec<_>>().join(", ");
        let datacenter = match named {
            Some(name) if names.contains(name) => name,
            Some(name) => bail!("the Cassandra has no data center {name}: it has {all}"),
            None if names.len() == 1 => all.as_str(),
            None => {
                bail!("the Cassandra has several data centers: name one with --cassandra-datacenter: {all}")
            }
        };
        let here = nodes.iter().filter(|(name, _)| name == datacenter);
        Ok(Self {
            name: datacenter.to_owned(),
            nodes: here.clone().count(),
            reachable: here.filter(|(_, is_connected)| *is_connected).count(),
        })
    }

    fn replicas(&self) -> usize {
        self.nodes.min(REPLICAS)
    }
}

struct Cassandra {
    access: Access,
    session: Arc<Session>,
    /// The keyspace of this run.
    keyspace: String,
    datacenter: Datacenter,
    facts: Facts,
}

#[async_trait]
impl Engine for Cassandra {
    fn name(&self) -> &'static str {
        NAME
    }

    fn created(&self) -> String {
        format!("cqlsh -e 'DROP KEYSPACE IF EXISTS {}'", self.keyspace)
    }

    async fn settings(&self) -> anyhow::Result<Vec<EngineSetting>> {
        let mut settings = vec![
            settings::judge_nodes(self.datacenter.reachable, self.datacenter.nodes),
            settings::judge_replicas(self.datacenter.replicas()),
        ];
        settings.extend(self.facts.judge());
        let asks_for_passwords = self.facts.asks_for_passwords();
        for keyspace in self.keyspaces().await? {
            settings.extend(keyspace.judge(&self.datacenter.name, self.datacenter.nodes, asks_for_passwords));
        }
        Ok(settings)
    }

    async fn measure(&self, args: &EnginesArgs, results: &Mutex<Results>) -> anyhow::Result<()> {
        let limits = self.limits(args).await?;
        limits.show(results);
        self.make_tables().await?;
        self.measure_seed(Consistency::One, args, &limits, results).await?;
        self.measure_seed(Consistency::LocalQuorum, args, &limits, results).await?;
        self.measure_inserts_if_absent(args, &limits, results).await?;
        for accounts in workloads::ACCOUNTS {
            self.measure_commits(accounts, args, &limits, results).await?;
        }
        self.measure_slices(args, &limits, results).await
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        let drop = format!("DROP KEYSPACE IF EXISTS {}", self.keyspace);
        match change_schema(&self.session, &drop).await {
            Ok(()) => Ok(()),
            // The connections may have died.
            Err(_) => change_schema(&self.access.open(&self.keyspace).await?, &drop).await,
        }
    }
}

/// What bounds Cassandra here.
#[derive(Clone, Copy, Debug)]
struct Limits {
    round_trip_ms: f64,
    syncs_per_s: Option<f64>,
    write_mb_s: Option<f64>,
    /// Milliseconds of the sync for which a write waits; 0 if it doesn't wait, or if the disk isn't known.
    sync_ms: f64,
    conditional_round_trips: f64,
}

impl Limits {
    fn show(&self, results: &Mutex<Results>) {
        let mut results = results.lock();
        let mut table = results.table(NAME, "floors");
        table.shown("round trip p50", "ms", self.round_trip_ms);
        if let Some(syncs) = self.syncs_per_s {
            table.shown("synced appends of the disk", "1/s", syncs);
        }
        if let Some(rate) = self.write_mb_s {
            table.shown("writing to the disk", "MB/s", rate);
        }
    }

    /// Milliseconds of a conditional commit: Paxos stores a promise, a proposal and the commit, each synced if writes are.
    fn conditional_ms(&self) -> f64 {
        self.round_trip_ms * self.conditional_round_trips + 3.0 * self.sync_ms
    }
}

impl Cassandra {
    async fn limits(&self, args: &EnginesArgs) -> anyhow::Result<Limits> {
        let smallest =
            self.prepare("SELECT key FROM system.local WHERE key = 'local'", Consistency::One).await?;
        let ping = async || self.session.execute_unpaged(&smallest, ()).await.map(drop).map_err(Into::into);
        // Other work on this machine makes some of them slow, and so does the node's JIT compiler.
        let mut medians = Vec::new();
        for _ in 0..ROUND_TRIP_ROUNDS {
            medians.push(round_trip_ms(args.pick(1_000, 500) / ROUND_TRIP_ROUNDS, ping).await?);
        }
        let round_trip_ms = medians.into_iter().fold(f64::MAX, f64::min);
        let disk = match self.facts.commit_log_folder().filter(|_| self.access.is_local()) {
            Some(folder) => floors::disk_below(Path::new(folder), args).await?,
            None => None,
        };
        let syncs_per_s = disk.as_ref().map(|disk| disk.syncs_per_s);
        let sync_ms =
            syncs_per_s.filter(|_| self.facts.writes_wait_for_sync()).map_or(0.0, |syncs| 1e3 / syncs);
        Ok(Limits {
            round_trip_ms,
            syncs_per_s,
            write_mb_s: disk.map(|disk| disk.write_mb_s),
            sync_ms,
            conditional_round_trips: self.facts.conditional_round_trips(),
        })
    }

    async fn make_tables(&self) -> anyhow::Result<()> {
        let (keyspace, replicas) = (&self.keyspace, self.datacenter.replicas());
        let datacenter = self.datacenter.name.replace('\'', "''");
        let make = format!(
            "CREATE KEYSPACE {keyspace} WITH replication = \
             {{'class': 'NetworkTopologyStrategy', '{datacenter}': {replicas}}}"
        );
        change_schema(&self.session, &make)
            .await
            .context("can't make a keyspace: the user needs CREATE on all keyspaces")?;
        for columns in [
            "seed (key uuid PRIMARY KEY, a blob, b blob)",
            "map (account int, key blob, value blob, PRIMARY KEY (account, key))",
        ] {
            let make = format!("CREATE TABLE {keyspace}.{columns}");
            // Otherwise the rows stay on disk as a snapshot when the table is dropped. Unknown before Cassandra 4.1.
            let without_snapshot = format!("{make} WITH allow_auto_snapshot = false");
            if change_schema(&self.session, &without_snapshot).await.is_err() {
                change_schema(&self.session, &make).await.context("can't make a table")?;
            }
        }
        Ok(())
    }

    async fn prepare(&self, statement: &str, consistency: Consistency) -> anyhow::Result<PreparedStatement> {
        let mut prepared = self.session.prepare(statement).await?;
        prepared.set_consistency(consistency);
        Ok(prepared)
    }

    /// All keyspaces of the operator.
    async fn keyspaces(&self) -> anyhow::Result<Vec<Keyspace>> {
        let query = "SELECT keyspace_name, durable_writes, replication FROM system_schema.keyspaces";
        let answer = self.session.query_unpaged(query, ()).await?.into_rows_result()?;
        let rows = answer.rows::<(String, bool, BTreeMap<String, String>)>()?;
        let keyspaces = rows.map(|row| {
            row.map(|(name, durable_writes, replication)| Keyspace { name, durable_writes, replication })
        });
        keyspaces.collect::<Result<_, _>>().map_err(Into::into)
    }
}

async fn change_schema(session: &Session, statement: &str) -> anyhow::Result<()> {
    let mut statement = Statement::new(statement);
    statement.set_request_timeout(Some(SCHEMA_CHANGE_MAX));
    session.query_unpaged(statement, ()).await?;
    Ok(())
}

#[cfg(test)]
mod tests;
