//! The stores of the bench: on which engines, and where.

use std::{
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use restante_blobs::{S3Config, S3Keys};
use restante_records::{CassandraUrl, EngineUrl, PostgresUrl, Schema};

use super::fill::disk_bytes;
use crate::{engines::fresh_name, http::Connection};

/// On which engines records, blobs and the search index are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// LMDB, files and Tantivy, in one folder
    #[default]
    Embedded,
    /// Records in the PostgreSQL of RESTANTE_POSTGRES_URL; files and Tantivy
    Postgres,
    /// Cassandra, S3 and OpenSearch: those of RESTANTE_CASSANDRA_URL, RESTANTE_S3_URL (with _REGION, _BUCKET, _ACCESS_KEY and _SECRET_KEY) and
    /// RESTANTE_OPENSEARCH_URL
    Distributed,
}

/// Stores that no other run has.
pub(super) struct Stores {
    profile: Profile,
    name: String,
    folder: PathBuf,
    records: EngineUrl,
    blobs: restante_blobs::EngineUrl,
    search: String,
    /// Where and by which keys S3 is used.
    s3: Option<(S3Config, S3Keys)>,
}

impl Stores {
    pub(super) fn new(profile: Profile, folder: &Path) -> anyhow::Result<Self> {
        let name = fresh_name();
        let folder = folder.to_owned();
        let blobs = restante_blobs::EngineUrl::Files(folder.join("blobs"));
        let search = format!("tantivy:{}", folder.join("search").display());
        let records = match profile {
            Profile::Embedded => EngineUrl::Lmdb(folder.join("records")),
            Profile::Postgres => {
                let url: PostgresUrl = variable("RESTANTE_POSTGRES_URL")?.parse()?;
                EngineUrl::Postgres(url.with_schema(&name)?)
            }
            Profile::Distributed => {
                let url = format!("{}/{name}", variable("RESTANTE_CASSANDRA_URL")?);
                EngineUrl::Cassandra(url.parse::<CassandraUrl>()?)
            }
        };
        let mut stores = Self { profile, name, folder, records, blobs, search, s3: None };
        if profile == Profile::Distributed {
            stores.use_servers()?;
        }
        Ok(stores)
    }

    fn use_servers(&mut self) -> anyhow::Result<()> {
        self.blobs = format!("s3://{}/{}", variable("RESTANTE_S3_BUCKET")?, self.name).parse()?;
        let s3 = S3Config {
            endpoint: variable("RESTANTE_S3_URL")?,
            region: variable("RESTANTE_S3_REGION")?,
            ..S3Config::default()
        };
        let keys = S3Keys {
            access_key: variable("RESTANTE_S3_ACCESS_KEY")?,
            secret_key: variable("RESTANTE_S3_SECRET_KEY")?,
        };
        self.s3 = Some((s3, keys));
        self.search = variable("RESTANTE_OPENSEARCH_URL")?.replacen("http", "opensearch", 1);
        Ok(())
    }

    /// The engines, for the title of the report.
    pub(super) fn engines(&self) -> String {
        let search = self.search.split(':').next().unwrap_or_default();
        format!(
            "records of the engine {}, blobs of the engine {} and an index of the engine {search}",
            self.records.engine(),
            self.blobs.engine()
        )
    }

    pub(super) async fn open_records(&self) -> anyhow::Result<restante_records::Opened> {
        let kinds = restante_mail::kinds().into_iter().chain(restante_directory::kinds());
        let config = restante_records::Config::new(self.records.clone(), Schema::new(kinds.collect())?);
        restante_records::open(config)
            .await
            .with_context(|| format!("can't open the records {}", self.records))
    }

    pub(super) async fn open_blobs(&self) -> anyhow::Result<restante_blobs::Opened> {
        let mut config = restante_blobs::Config::new(self.blobs.clone());
        if let Some((s3, keys)) = &self.s3 {
            config.s3 = s3.clone();
            config.s3_keys = Some(keys.clone());
            config.s3_folder = Some(self.folder.join("s3-of-bench"));
        }
        restante_blobs::open(config).await.with_context(|| format!("can't open the blobs {}", self.blobs))
    }

    /// The settings of the server, as variables: a URL may contain a password, and every user can read a command line.
    pub(super) fn variables(&self) -> Vec<(&'static str, String)> {
        let records = match &self.records {
            EngineUrl::Postgres(url) => {
                let joint = if url.connection().contains('?') { '&' } else { '?' };
                format!("{}{joint}schema={}", url.connection(), url.schema())
            }
            other => other.to_string(),
        };
        let mut variables = vec![
            ("RESTANTE_RECORDS__URL", records),
            ("RESTANTE_BLOBS__URL", self.blobs.to_string()),
            ("RESTANTE_SEARCH__URL", self.search.clone()),
        ];
        if let Some((s3, keys)) = &self.s3 {
            variables.extend([
                ("RESTANTE_BLOBS__S3__ENDPOINT", s3.endpoint.clone()),
                ("RESTANTE_BLOBS__S3__REGION", s3.region.clone()),
                ("RESTANTE_BLOBS__S3__FOLDER", self.folder.join("s3").display().to_string()),
                ("AWS_ACCESS_KEY_ID", keys.access_key.clone()),
                ("AWS_SECRET_ACCESS_KEY", keys.secret_key.clone()),
                ("RESTANTE_SEARCH__OPENSEARCH__PREFIX", self.index()),
                ("RESTANTE_SEARCH__OPENSEARCH__REPLICAS", "0".to_owned()),
            ]);
        }
        variables
    }

    /// The prefix of the indexes in OpenSearch.
    fn index(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The bytes that records and blobs occupy on disk; `None` if servers store them.
    pub(super) fn mail_bytes(&self) -> anyhow::Result<Option<u64>> {
        match (&self.records, &self.blobs) {
            (EngineUrl::Lmdb(records), restante_blobs::EngineUrl::Files(blobs)) => {
                Ok(Some(disk_bytes(records)? + disk_bytes(blobs)?))
            }
            _ => Ok(None),
        }
    }

    /// The bytes that the index occupies on disk; `None` if a server stores it.
    pub(super) fn search_bytes(&self) -> anyhow::Result<Option<u64>> {
        match self.search.strip_prefix("tantivy:") {
            Some(folder) => Ok(Some(disk_bytes(Path::new(folder))?)),
            None => Ok(None),
        }
    }

    /// Removes what this run has left in servers; returns what remains there.
    pub(super) async fn clean_up(&self) -> anyhow::Result<Option<String>> {
        match &self.records {
            EngineUrl::Postgres(url) => drop_schema(url).await?,
            EngineUrl::Cassandra(url) => drop_keyspace(url).await?,
            EngineUrl::Lmdb(_) | EngineUrl::Memory => {}
        }
        if self.profile != Profile::Distributed {
            return Ok(None);
        }
        self.delete_indexes().await?;
        Ok(Some(format!("the objects of this run stay in {}: remove them", self.blobs)))
    }

    async fn delete_indexes(&self) -> anyhow::Result<()> {
        let Some(address) = self.search.strip_prefix("opensearch://") else {
            bail!("an index in an OpenSearch with TLS or passwords is not removed: delete {}*", self.index());
        };
        let Some(address) = tokio::net::lookup_host(address).await?.next() else {
            bail!("{address} has no address")
        };
        delete(address, &format!("/{}*", self.index())).await
    }
}

async fn delete(address: SocketAddr, path: &str) -> anyhow::Result<()> {
    let request = format!("DELETE {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\n\r\n");
    let status = Connection::open(address).await?.ask(request.as_bytes(), |_| {}).await?;
    anyhow::ensure!(status < 300, "DELETE {path} was answered with status {status}");
    Ok(())
}

fn variable(name: &str) -> anyhow::Result<String> {
    let value = env::var(name).ok().filter(|value| !value.is_empty());
    value.with_context(|| {
        format!("{name} is not set: run it below `dev/services/with cassandra s3 opensearch --` (or postgres), which sets it")
    })
}

#[cfg(feature = "postgres")]
async fn drop_schema(url: &PostgresUrl) -> anyhow::Result<()> {
    let (client, connection) = tokio_postgres::connect(url.connection(), tokio_postgres::NoTls).await?;
    let connection = tokio::spawn(connection);
    client.batch_execute(&format!("DROP SCHEMA IF EXISTS {} CASCADE", url.schema())).await?;
    drop(client);
    Ok(connection.await??)
}

#[cfg(not(feature = "postgres"))]
async fn drop_schema(_: &PostgresUrl) -> anyhow::Result<()> {
    Ok(()) // records could not be opened
}

#[cfg(feature = "cassandra")]
async fn drop_keyspace(url: &CassandraUrl) -> anyhow::Result<()> {
    use scylla::{client::session_builder::SessionBuilder, statement::Statement};
    let session = SessionBuilder::new().known_nodes(url.nodes()).build().await?;
    let mut drop = Statement::new(format!("DROP KEYSPACE IF EXISTS {}", url.keyspace()));
    drop.set_request_timeout(Some(std::time::Duration::from_secs(60)));
    session.query_unpaged(drop, ()).await?;
    Ok(())
}

#[cfg(not(feature = "cassandra"))]
async fn drop_keyspace(_: &CassandraUrl) -> anyhow::Result<()> {
    Ok(()) // records could not be opened
}
