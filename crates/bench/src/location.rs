//! The archives that are measured: folders, files, schemas and keyspaces, fresh ones and existing ones.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use restante_archive::{CassandraUrl, EngineUrl, PostgresUrl};
use tempfile::TempDir;

use crate::args::{EngineChoice, FreshEngine};

/// The variable with the database in which `postgres:` creates fresh archives; dev/services sets it.
const POSTGRES_VARIABLE: &str = "RESTANTE_POSTGRES_URL";

/// The location of an archive. A fresh one is removed when this goes out of scope, also when a bench fails or is interrupted.
pub(crate) struct Location {
    pub(crate) url: EngineUrl,
    /// The folder of its files; the bench's folder for engines without files.
    pub(crate) folder: PathBuf,
    fresh: Option<Fresh>,
}

/// What is removed on drop.
enum Fresh {
    /// Removed by its own destructor.
    Folder { _folder: TempDir },
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "nothing is created in a database"))]
    Schema(PostgresUrl),
    #[cfg_attr(not(feature = "cassandra"), expect(dead_code, reason = "nothing is created in a cluster"))]
    Keyspace(CassandraUrl),
}

impl Location {
    /// The chosen location, or a fresh one below `parent`.
    pub(crate) fn of(choice: &EngineChoice, parent: &Path) -> anyhow::Result<Self> {
        match choice {
            EngineChoice::Fresh(FreshEngine::Log) => Self::fresh_log(parent),
            EngineChoice::Fresh(FreshEngine::Sqlite) => Self::fresh_sqlite(parent),
            EngineChoice::Fresh(FreshEngine::Postgres) => Self::fresh_schema(&database()?, parent),
            EngineChoice::At(url) => Self::existing(url, parent),
        }
    }

    /// A fresh location for the same engine, as close as possible to the chosen one: below its folder, in its database.
    pub(crate) fn fresh(choice: &EngineChoice, parent: &Path) -> anyhow::Result<Self> {
        match choice {
            EngineChoice::At(EngineUrl::Log(folder)) => Self::fresh_log(folder),
            EngineChoice::At(EngineUrl::Sqlite(file)) => Self::fresh_sqlite(&folder_of(file)),
            EngineChoice::At(EngineUrl::Postgres(url)) => Self::fresh_schema(url, parent),
            EngineChoice::At(EngineUrl::Cassandra(url)) => Self::fresh_keyspace(url, parent),
            EngineChoice::At(EngineUrl::Memory) | EngineChoice::Fresh(_) => Self::of(choice, parent),
        }
    }

    /// A location that is not removed. Its path is absolute, so that a server in another folder finds it.
    fn existing(url: &EngineUrl, parent: &Path) -> anyhow::Result<Self> {
        let (url, folder) = match url {
            EngineUrl::Log(folder) => {
                let folder = std::path::absolute(folder)?;
                (EngineUrl::Log(folder.clone()), folder)
            }
            EngineUrl::Sqlite(file) => {
                let file = std::path::absolute(file)?;
                (EngineUrl::Sqlite(file.clone()), folder_of(&file))
            }
            EngineUrl::Postgres(_) | EngineUrl::Cassandra(_) | EngineUrl::Memory => {
                (url.clone(), parent.to_owned())
            }
        };
        Ok(Self { url, folder, fresh: None })
    }

    fn fresh_log(parent: &Path) -> anyhow::Result<Self> {
        let (folder, path) = fresh_folder("log-", parent)?;
        Ok(Self { url: EngineUrl::Log(path.clone()), folder: path, fresh: Some(folder) })
    }

    fn fresh_sqlite(parent: &Path) -> anyhow::Result<Self> {
        let (folder, path) = fresh_folder("sqlite-", parent)?;
        Ok(Self { url: EngineUrl::Sqlite(path.join("archive.db")), folder: path, fresh: Some(folder) })
    }

    fn fresh_schema(database: &PostgresUrl, parent: &Path) -> anyhow::Result<Self> {
        if cfg!(not(feature = "postgres")) {
            bail!("this build is without the postgres engine: build it with --features postgres");
        }
        let url = database.with_schema(&schema_name(parent))?;
        let fresh = Some(Fresh::Schema(url.clone()));
        Ok(Self { url: EngineUrl::Postgres(url), folder: parent.to_owned(), fresh })
    }

    fn fresh_keyspace(cluster: &CassandraUrl, parent: &Path) -> anyhow::Result<Self> {
        if cfg!(not(feature = "cassandra")) {
            bail!("this build is without the cassandra engine: build it with --features cassandra");
        }
        let url = cluster.with_keyspace(&schema_name(parent))?;
        let fresh = Some(Fresh::Keyspace(url.clone()));
        Ok(Self { url: EngineUrl::Cassandra(url), folder: parent.to_owned(), fresh })
    }

    /// Fails when the disk lacks space for `messages` messages. An existing archive may hold them already, and a database's disk
    /// is not checked.
    pub(crate) fn check_space(&self, messages: u64) -> anyhow::Result<()> {
        let bytes_per_message = match &self.url {
            EngineUrl::Log(_) => 840, // about 720 of body, 85 of header and index, and a margin
            EngineUrl::Sqlite(_) => 1_400, // half-full pages, two more indexes, and the write-ahead log
            EngineUrl::Postgres(_) | EngineUrl::Cassandra(_) | EngineUrl::Memory => return Ok(()),
        };
        if self.fresh.is_none() {
            return Ok(());
        }
        let needed = messages * bytes_per_message;
        let disk = rustix::fs::statvfs(&self.folder)
            .with_context(|| format!("can't read the free space of {}", self.folder.display()))?;
        let free = disk.f_bavail * disk.f_frsize;
        if free < needed {
            let (needed, free) = (needed as f64 / 1e9, free as f64 / 1e9);
            bail!(
                "{messages} messages take about {needed:.1} GB and {} has {free:.1} GB free: \
                 choose another folder with --data, or fewer messages",
                self.folder.display()
            );
        }
        Ok(())
    }
}

/// An archive's URL with its password, for the environment of another process of ours, not for display.
pub(crate) fn secret_url(url: &EngineUrl) -> String {
    let postgres = match url {
        EngineUrl::Postgres(postgres) => postgres,
        EngineUrl::Cassandra(cassandra) => return cassandra.connection(),
        other => return other.to_string(),
    };
    let connection = postgres.connection();
    let joint = if connection.contains('?') { '&' } else { '?' };
    format!("{connection}{joint}schema={}", postgres.schema())
}

fn fresh_folder(prefix: &str, parent: &Path) -> anyhow::Result<(Fresh, PathBuf)> {
    std::fs::create_dir_all(parent).with_context(|| format!("can't make folder {}", parent.display()))?;
    let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
    let path = folder.path().canonicalize()?;
    Ok((Fresh::Folder { _folder: folder }, path))
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The database of the environment.
fn database() -> anyhow::Result<PostgresUrl> {
    let url = std::env::var(POSTGRES_VARIABLE).with_context(|| {
        format!("postgres: needs a database: set {POSTGRES_VARIABLE}, or name one as postgres://user@host/database")
    })?;
    url.parse().with_context(|| format!("{POSTGRES_VARIABLE} is not a database URL"))
}

/// A unique name: the process, a number within it, and the random part of its work folder's name.
fn schema_name(parent: &Path) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    const CHANCE_LETTERS: usize = 12;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = parent.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let chance: String =
        folder.chars().rev().filter(char::is_ascii_alphanumeric).take(CHANCE_LETTERS).collect();
    format!("restante_bench_{}_{number}_{chance}", std::process::id())
}

impl Drop for Fresh {
    fn drop(&mut self) {
        match self {
            Self::Folder { .. } => {}
            #[cfg(feature = "postgres")]
            Self::Schema(url) => {
                removal::remove("schema", url.schema(), async || removal::drop_schema(url).await);
            }
            #[cfg(not(feature = "postgres"))]
            Self::Schema(_) => {}
            #[cfg(feature = "cassandra")]
            Self::Keyspace(url) => removal::remove("keyspace", url.keyspace(), async || {
                Ok(restante_archive::drop_cassandra_keyspace(url).await?)
            }),
            #[cfg(not(feature = "cassandra"))]
            Self::Keyspace(_) => {}
        }
    }
}

#[cfg(any(feature = "postgres", feature = "cassandra"))]
mod removal {
    //! Dropping a schema or a keyspace: the only statement that a bench sends to a database without the archive.

    use std::{thread, time::Duration};

    use anyhow::Context;
    #[cfg(feature = "postgres")]
    use restante_archive::{PostgresOptions, PostgresUrl};
    use tokio::time::timeout;

    /// The time limit of dropping; a lock that is held longer belongs to no bench.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Drops something and all in it. Runs in a destructor, so it has a thread and a runtime of its
    /// own, and can only print a failure.
    pub(super) fn remove<F>(what: &str, name: &str, drop: impl FnOnce() -> F + Send)
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        let remove_now = || -> anyhow::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async { timeout(PATIENCE, drop()).await.context("it took too long")? })
        };
        let removed = thread::scope(|scope| scope.spawn(remove_now).join());
        let error = match removed {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "the thread panicked".to_owned(),
        };
        eprintln!("warning: {what} {name} was not removed from the database: {error}");
    }

    #[cfg(feature = "postgres")]
    pub(super) async fn drop_schema(url: &PostgresUrl) -> anyhow::Result<()> {
        let options = PostgresOptions::new(url)?;
        let (client, connection) = options.config.connect(options.connector()?).await?;
        let connection = tokio::spawn(connection);
        // A schema's name consists of letters, digits and underscores, so it needs no escaping.
        client.batch_execute(&format!("drop schema if exists {} cascade", url.schema())).await?;
        connection.abort();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_folder_is_removed_and_an_existing_one_is_not() {
        let parent = tempfile::tempdir().unwrap();
        for text in ["log:", "sqlite:"] {
            let location = Location::of(&text.parse().unwrap(), parent.path()).unwrap();
            let folder = location.folder.clone();
            assert!(folder.is_dir() && location.url.to_string().starts_with(text), "{}", location.url);
            drop(location);
            assert!(!folder.exists(), "{text}");
        }
        let existing = parent.path().join("existing");
        let choice = format!("log:{}", existing.display()).parse().unwrap();
        let below = Location::fresh(&choice, parent.path()).unwrap();
        assert!(below.folder.starts_with(existing.canonicalize().unwrap()));
        drop(below);
        assert!(existing.is_dir());
    }

    #[test]
    fn a_disk_that_is_too_small_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        let location = Location::of(&"log:".parse().unwrap(), parent.path()).unwrap();
        location.check_space(1).unwrap();
        let error = location.check_space(1_000_000_000_000).unwrap_err().to_string();
        assert!(error.contains("--data"), "{error}");
        let existing = format!("log:{}", parent.path().display()).parse().unwrap();
        Location::of(&existing, parent.path()).unwrap().check_space(1_000_000_000_000).unwrap();
    }

    #[test]
    fn only_other_processes_get_the_password() {
        let choice: EngineChoice =
            "postgres://me:secret@host/db?sslmode=disable&schema=mine".parse().unwrap();
        let location = Location::of(&choice, Path::new(".")).unwrap();
        assert_eq!(secret_url(&location.url), "postgres://me:secret@host/db?sslmode=disable&schema=mine");
        let url = "cassandra://me:secret@host/archive?sslmode=disable";
        assert_eq!(secret_url(&url.parse().unwrap()), url);
        assert!(!location.url.to_string().contains("secret"));
    }

    #[test]
    fn schemas_have_unique_names_that_the_archive_accepts() {
        let database: PostgresUrl = "postgres://host/db".parse().unwrap();
        let folder = Path::new("restante-bench-aB_cD1-a-very-long-name-of-a-folder");
        let (one, other) = (schema_name(folder), schema_name(folder));
        assert_ne!(one, other);
        assert!(database.with_schema(&one).is_ok(), "{one}");
    }
}
