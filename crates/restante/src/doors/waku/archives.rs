//! Opens the archive that the settings name.

use std::{path::Path, sync::Arc};

use anyhow::{Context, bail};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use restante_archive::{EngineUrl, Metrics, Opened, Upkeep};
use restante_backup::{ArchiveFiles, Store};
use restante_waku_wire::bloom::content_topic_bits;

use crate::{
    backups, clock,
    commands::backup::is_used,
    config::{ArchiveSection, Config},
    secrets,
};

/// Shown in URLs instead of a password, and nowhere else: it is not valid in a name.
const HIDDEN_PASSWORD: &str = "***";

/// How a command uses an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads, possibly beside a running server.
    Read,
    /// Writes, and excludes all other users.
    Write,
    /// The same for a server: with the spool and the second archive of the settings. A tool beside the server has neither, because only
    /// one process can use a spool at a time.
    Serve,
}

/// Opens the archive of the settings.
pub(crate) async fn open(config: &Config, access: Access, metrics: Metrics) -> anyhow::Result<Opened> {
    if access != Access::Read {
        backups::check_not_halfway(config)?;
    }
    let archive = &config.archive;
    let url = with_password(config.archive_url(), archive)?;
    let (mut spool, mut tandem) = (None, None);
    if access == Access::Serve {
        spool = config.spool();
        tandem = config.tandem();
        if let Some(tandem) = &mut tandem {
            tandem.url = with_password(tandem.url.clone(), archive)?;
        }
    }
    open_with(restante_archive::Config {
        read_only: access == Access::Read,
        retention: archive.retention,
        log: archive.log,
        sqlite: archive.sqlite,
        postgres: archive.postgres.engine,
        cassandra: archive.cassandra.engine,
        spool,
        tandem,
        metrics,
        ..restante_archive::Config::new(url)
    })
    .await
}

/// Opens an archive for reading, without any settings.
pub(crate) async fn open_for_reading(url: EngineUrl, metrics: Metrics) -> anyhow::Result<Opened> {
    open_with(restante_archive::Config { read_only: true, metrics, ..restante_archive::Config::new(url) })
        .await
}

/// The archive of the settings for a backup, with its backup implementation if it is open.
pub(crate) fn store(config: &Config, upkeep: Option<Arc<dyn Upkeep>>) -> Store {
    let files = ArchiveFiles {
        url: config.archive_url(),
        spool: config.spool_in("archive").folder,
        second: config.archive.tandem.clone(),
        second_spool: config.spool_in("tandem").folder,
    };
    Store::archive(files, upkeep)
}

/// Whether there is an archive to back up. One that is elsewhere reports itself that it is not in the backup.
///
/// # Errors
/// When messages wait for a missing archive, or the second archive of a tandem is missing.
pub(crate) fn is_there(config: &Config) -> anyhow::Result<bool> {
    let spool = config.spool_in("archive").folder;
    let has_own = has_files(&config.archive_url())?;
    if !has_own && is_used(&spool)? {
        bail!(
            "messages may wait in {} for the archive {}, which is not there: name its place, or start the server once",
            spool.display(),
            config.archive_url()
        );
    }
    if has_own {
        check_second(config)?;
    }
    Ok(has_own)
}

/// Fails when the second archive of a tandem is missing: opening it would create an empty one.
fn check_second(config: &Config) -> anyhow::Result<()> {
    match &config.archive.tandem {
        Some(url) if !has_files(url)? => {
            bail!("the second archive {url} is not there: name its place, or back up without archive.tandem")
        }
        _ => Ok(()),
    }
}

/// Whether an archive on this machine was ever used; one that is elsewhere checks that itself.
fn has_files(url: &EngineUrl) -> anyhow::Result<bool> {
    match url {
        EngineUrl::Log(folder) => is_used(folder),
        EngineUrl::Sqlite(file) => Ok(file.exists()),
        EngineUrl::Postgres(_) | EngineUrl::Cassandra(_) | EngineUrl::Memory => Ok(true),
    }
}

/// The URL of a database with the password from the file of its engine, unless the URL has its own.
fn with_password(url: EngineUrl, settings: &ArchiveSection) -> anyhow::Result<EngineUrl> {
    match url {
        EngineUrl::Cassandra(place) => {
            let file = &settings.cassandra.password_file;
            let is_beside = !file.as_os_str().is_empty();
            let place = if is_beside { place.with_password(secrets::read("password", file)?) } else { place };
            Ok(EngineUrl::Cassandra(place))
        }
        url => with_postgres_password(url, &settings.postgres.password_file),
    }
}

/// Without a password in either, the engine uses the environment.
fn with_postgres_password(url: EngineUrl, file: &Path) -> anyhow::Result<EngineUrl> {
    let EngineUrl::Postgres(place) = &url else { return Ok(url) };
    let has_own = place.to_string().contains(HIDDEN_PASSWORD);
    if has_own || file.as_os_str().is_empty() {
        return Ok(url);
    }
    let password = secrets::read("password", file)?;
    let connection = place.connection();
    let joint = if connection.contains('?') { '&' } else { '?' };
    let password = utf8_percent_encode(&password, NON_ALPHANUMERIC);
    let schema = place.schema();
    Ok(format!("{connection}{joint}password={password}&schema={schema}").parse()?)
}

async fn open_with(config: restante_archive::Config) -> anyhow::Result<Opened> {
    let url = config.url.clone();
    let config =
        restante_archive::Config { topic_bits: content_topic_bits, clock: clock::system(), ..config };
    restante_archive::open(config).await.with_context(|| format!("can't open the archive {url}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(url: &str, file: &Path) -> String {
        match with_postgres_password(url.parse().unwrap(), file).unwrap() {
            EngineUrl::Postgres(place) => place.connection().to_owned(),
            other => panic!("{other} is no database"),
        }
    }

    #[test]
    fn a_password_comes_from_its_file_unless_the_url_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "a&b c\n").unwrap();
        assert_eq!(connection("postgres://me@db/x", &file), "postgres://me@db/x?password=a%26b%20c");
        let url = "postgres://me@db/x?sslmode=require&schema=other";
        assert_eq!(connection(url, &file), "postgres://me@db/x?sslmode=require&password=a%26b%20c");
        let own = "postgres://me:own@db/x";
        assert_eq!(connection(own, &file), own);
        assert_eq!(connection("postgres://me@db/x", Path::new("")), "postgres://me@db/x");

        let url: EngineUrl = url.parse().unwrap();
        let shown = with_postgres_password(url, &file).unwrap().to_string();
        assert!(!shown.contains("%26") && shown.contains("schema=other"), "{shown}");
        let memory = with_postgres_password(EngineUrl::Memory, &file).unwrap();
        assert_eq!(memory, EngineUrl::Memory);
    }

    #[test]
    fn a_password_file_that_has_none_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let url = || "postgres://me@db/x".parse().unwrap();
        let missing = with_postgres_password(url(), &file).unwrap_err().to_string();
        assert!(missing.starts_with("can't read the password in"), "{missing}");
        std::fs::write(&file, "\n").unwrap();
        assert!(with_postgres_password(url(), &file).unwrap_err().to_string().ends_with("it is empty"));
    }
}
