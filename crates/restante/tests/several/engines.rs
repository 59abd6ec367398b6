//! The engines that the servers of a test share.

use std::{
    env, fs,
    hash::{BuildHasher, RandomState},
    path::Path,
};

use tokio_postgres::NoTls;

/// Engines, separated by commas, whose tests must not be ignored.
const REQUIRE: &str = "RESTANTE_TEST_REQUIRE";

/// A set of engines. Variables that `dev/services/with` sets say where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engines {
    /// Records in PostgreSQL. Each server has blobs and an index of its own.
    Postgres,
    /// Records in Cassandra, blobs in S3, an index in OpenSearch for each server.
    Cassandra,
}

impl Engines {
    pub(crate) const ALL: [Self; 2] = [Self::Postgres, Self::Cassandra];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Cassandra => "cassandra",
        }
    }

    /// A variable that is not set.
    pub(crate) fn missing(self) -> Option<&'static str> {
        let needed: &[&str] = match self {
            Self::Postgres => &["RESTANTE_POSTGRES_URL"],
            Self::Cassandra => &["RESTANTE_CASSANDRA_URL", "RESTANTE_S3_URL", "RESTANTE_OPENSEARCH_URL"],
        };
        needed.iter().copied().find(|name| env::var_os(name).is_none())
    }

    /// Whether the tests must not be ignored.
    pub(crate) fn are_required(self) -> bool {
        is_required(self.name())
    }
}

/// Whether the tests of an engine must not be ignored.
pub(crate) fn is_required(engine: &str) -> bool {
    env::var(REQUIRE).is_ok_and(|names| names.split(',').any(|name| name.trim() == engine))
}

/// Stores that no other test has. Those in PostgreSQL are removed at the end; the servers of the others are for tests only.
pub(crate) struct Stores {
    engines: Engines,
    name: String,
}

impl Stores {
    pub(crate) fn new(engines: Engines) -> Self {
        Self { engines, name: format!("t_{:016x}", RandomState::new().hash_one(0)) }
    }

    /// The name that no other stores have.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Writes the settings of a server into its folder.
    pub(crate) fn configure(&self, folder: &Path, server: &str) {
        let settings = match self.engines {
            Engines::Postgres => {
                format!("[records]\nurl = \"{}\"\n", self.records())
            }
            Engines::Cassandra => {
                format!(
                    "[records]\nurl = \"{}\"\n\
                     [blobs]\nurl = \"{}\"\n{}\
                     [search]\nurl = \"{}\"\n\
                     [search.opensearch]\nprefix = \"{}-{server}\"\nshards = 1\nreplicas = 0\n",
                    self.records(),
                    self.blobs(),
                    configure_s3(folder),
                    variable("RESTANTE_OPENSEARCH_URL").replacen("http", "opensearch", 1),
                    self.name.replace('_', "-"),
                )
            }
        };
        fs::write(folder.join("restante.toml"), settings).unwrap();
    }

    /// The URL of records.
    pub(crate) fn records(&self) -> String {
        match self.engines {
            Engines::Postgres => self.postgres(&self.name),
            Engines::Cassandra => {
                format!("{}/restante_test?store={}", variable("RESTANTE_CASSANDRA_URL"), self.name)
            }
        }
    }

    /// The URL of an archive that servers share, as they share records.
    pub(crate) fn archive(&self) -> String {
        let name = format!("{}_archive", self.name);
        match self.engines {
            Engines::Postgres => self.postgres(&name),
            Engines::Cassandra => format!("{}/{name}", variable("RESTANTE_CASSANDRA_URL")),
        }
    }

    /// The URL of blobs in S3.
    pub(crate) fn blobs(&self) -> String {
        format!("s3://{}/{}", variable("RESTANTE_S3_BUCKET"), self.name)
    }

    fn postgres(&self, schema: &str) -> String {
        let url = variable("RESTANTE_POSTGRES_URL");
        let joint = if url.contains('?') { '&' } else { '?' };
        format!("{url}{joint}schema={schema}")
    }
}

/// Settings of blobs in S3, and the file that they name.
pub(crate) fn configure_s3(folder: &Path) -> String {
    fs::write(folder.join("s3-secret"), variable("RESTANTE_S3_SECRET_KEY")).unwrap();
    format!(
        "[blobs.s3]\nendpoint = \"{}\"\nregion = \"{}\"\naccess_key = \"{}\"\nsecret_key_file = \"s3-secret\"\n",
        variable("RESTANTE_S3_URL"),
        variable("RESTANTE_S3_REGION"),
        variable("RESTANTE_S3_ACCESS_KEY"),
    )
}

impl Drop for Stores {
    fn drop(&mut self) {
        if self.engines != Engines::Postgres {
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dropped = runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&variable("RESTANTE_POSTGRES_URL"), NoTls).await?;
            tokio::spawn(connection);
            client.batch_execute(&format!("DROP SCHEMA IF EXISTS {0}, {0}_archive CASCADE", self.name)).await
        });
        if let Err(error) = dropped {
            eprintln!("the schema {} stays in the database: {error}", self.name);
        }
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}
