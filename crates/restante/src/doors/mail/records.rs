//! Opens the records that the settings name.

use std::{os::unix::fs::MetadataExt, path::Path, sync::Arc};

use anyhow::{Context, bail};
use restante_core::{ErrorKind, Identity};
use restante_records::{EngineUrl, Kind, Metrics, Moving, Opened, RecordKey, Schema, UnsyncedBlobs};

use crate::{clock, commands::backup::is_used, config::Config, exit, secrets};

/// All kinds of records that this server has.
pub(crate) fn schema() -> Schema {
    let kinds = restante_mail::kinds().into_iter().chain(restante_directory::kinds());
    Schema::new(kinds.collect()).expect("kinds have numbers of their own, and their indexes have parts")
}

/// The name of a kind or a property that is missing in the schema: it belongs to a newer server.
pub(crate) fn unnamed(number: u8) -> String {
    format!("#{number}")
}

/// The name of a kind.
fn kind_name(kind: Kind) -> String {
    schema().kind(kind).map_or_else(|_| unnamed(kind.0), |kind| kind.name.to_owned())
}

/// A record as findings name it.
pub(crate) fn place(key: RecordKey) -> String {
    format!("account {}, {} {}", key.account.0, kind_name(key.kind), key.id.0)
}

/// Opens the records of the settings, and creates them if they do not exist.
pub(crate) async fn open(config: &Config, metrics: Metrics) -> anyhow::Result<Opened> {
    warn_of_owner(config);
    open_with(config, metrics, false, None).await
}

/// The same for a server, with the blobs that they should refer to: if they do, call [`put_blobs_again`] next.
pub(crate) async fn open_with_blobs(
    config: &Config,
    metrics: Metrics,
    blobs: &restante_blobs::Opened,
) -> anyhow::Result<Opened> {
    // Other engines have no sync that could be avoided, or are read by other servers.
    let are_files = matches!(config.blobs_url(), restante_blobs::EngineUrl::Files(_));
    let unsynced_blobs = are_files.then(|| restante_blobs::unsynced(blobs.blobs.clone()));
    open_with(config, metrics, false, unsynced_blobs).await
}

/// Stores blobs again whose only copy may be in the records after a crash of the server. A caller that opens both stores does this
/// before anything is read. Blobs that belong to other records are not written to: a folder below the mount point of an unmounted disk
/// would have the only copy.
pub(crate) async fn put_blobs_again(records: &Opened, blobs: &restante_blobs::Opened) -> anyhow::Result<()> {
    const FAILED: &str = "can't put blobs again that only the records have";
    let owner = match blobs.upkeep.owner().await {
        Err(_) if !records.upkeep.has_blobs_to_put().await? => return Ok(()),
        owner => owner.context(FAILED)?,
    };
    if owner == Some(records.upkeep.identity()) {
        let unsynced = restante_blobs::unsynced(blobs.blobs.clone());
        records.upkeep.put_blobs_again(unsynced).await.context(FAILED)?;
    }
    Ok(())
}

async fn open_with(
    config: &Config,
    metrics: Metrics,
    must_exist: bool,
    unsynced_blobs: Option<Arc<dyn UnsyncedBlobs>>,
) -> anyhow::Result<Opened> {
    let url = config.records_url();
    let opened = restante_records::open(restante_records::Config {
        unsynced_blobs,
        must_exist,
        metrics,
        ..engine_config(config, url.clone())?
    })
    .await;
    opened.with_context(|| format!("can't open the records {url}"))
}

fn engine_config(config: &Config, url: EngineUrl) -> anyhow::Result<restante_records::Config> {
    let url = with_password(url, config)?;
    Ok(restante_records::Config {
        lmdb: config.records.lmdb,
        postgres: config.records.postgres.engine,
        cassandra: config.records.cassandra.engine,
        clock: clock::system(),
        ..restante_records::Config::new(url, schema())
    })
}

/// Opens records for this process alone, to move them. With an identity they are created if they do not exist.
pub(crate) async fn open_moving(
    config: &Config,
    url: &EngineUrl,
    new: Option<Identity>,
) -> anyhow::Result<Moving> {
    let opened = restante_records::open_moving(restante_records::Config {
        must_exist: new.is_none(),
        identity: new.unwrap_or_else(Identity::random),
        ..engine_config(config, url.clone())?
    })
    .await;
    opened.with_context(|| format!("can't open the records {url}"))
}

/// The URL of a database with the password from a file, unless the URL has its own. Without either, the engine uses the environment.
fn with_password(url: EngineUrl, config: &Config) -> anyhow::Result<EngineUrl> {
    let Some((_, file)) = password_file(&url, config) else { return Ok(url) };
    let password = secrets::read("password", file)?;
    match url {
        EngineUrl::Postgres(place) => Ok(EngineUrl::Postgres(place.with_password(password))),
        EngineUrl::Cassandra(place) => Ok(EngineUrl::Cassandra(place.with_password(password))),
        other => Ok(other),
    }
}

/// The password file of a database, if there is one, and its key among the settings.
pub(crate) fn password_file<'c>(url: &EngineUrl, config: &'c Config) -> Option<(&'static str, &'c Path)> {
    let (key, file) = match url {
        EngineUrl::Postgres(_) => ("records.postgres.password_file", &config.records.postgres.password_file),
        EngineUrl::Cassandra(_) => {
            ("records.cassandra.password_file", &config.records.cassandra.password_file)
        }
        EngineUrl::Lmdb(_) | EngineUrl::Memory => return None,
    };
    (!file.as_os_str().is_empty()).then_some((key, file.as_path()))
}

/// Whether there are records to back up. Records that are elsewhere report themselves that they are not in the backup.
pub(crate) fn are_there(config: &Config) -> anyhow::Result<bool> {
    match config.records_url() {
        EngineUrl::Lmdb(folder) => is_used(&folder),
        EngineUrl::Postgres(_) | EngineUrl::Cassandra(_) => Ok(true),
        EngineUrl::Memory => Ok(false),
    }
}

/// The same for a command, which creates nothing: if the records do not exist, their location was mistyped.
pub(crate) async fn open_existing(config: &Config) -> anyhow::Result<Opened> {
    let url = config.records_url();
    if let EngineUrl::Lmdb(folder) = &url {
        check_is_used("records", &url.to_string(), folder)?;
    }
    warn_of_owner(config);
    open_with(config, Metrics::default(), true, None).await.map_err(advise)
}

/// Warns when a command runs as root on a data folder of another user: a server that runs as that user can't read what the command
/// creates, which are files of the stores and keys.
fn warn_of_owner(config: &Config) {
    let folder = &config.server.data_dir;
    let Ok(owner) = folder.metadata().map(|metadata| metadata.uid()) else { return };
    if owner != 0 && rustix::process::geteuid().is_root() {
        eprintln!(
            "restante: warning: this runs as root, and {0} belongs to the user {owner}: run it as that user, or give the folder back by \
             `chown -R {owner} {0}` before a server starts",
            folder.display()
        );
    }
}

/// Adds how to use a server that has the records open.
fn advise(error: anyhow::Error) -> anyhow::Error {
    if exit::kind(&error) != Some(ErrorKind::Conflict) {
        return error;
    }
    let advice = "`restante records stats --rest URL` shows the statistics of a running server";
    restante_records::Error::conflict(format!("{error:#}; {advice}")).into()
}

/// Fails when a folder was never used.
pub(crate) fn check_is_used(what: &str, url: &str, folder: &Path) -> anyhow::Result<()> {
    let failed = || format!("can't open the {what} {url}");
    let is_empty = match folder.read_dir() {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(error).with_context(failed),
    };
    if is_empty {
        bail!("{}: there are none: name their folder with --data or --{what}", failed());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_makes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.server.data_dir = folder.path().to_owned();
        let error = open_existing(&config).await.err().unwrap().to_string();
        assert!(
            error.ends_with("records: there are none: name their folder with --data or --records"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

        config.records.url = Some(EngineUrl::Memory);
        open_existing(&config).await.unwrap();
    }

    /// Regression test: this error was mistaken for records that a running server has open, so commands looked for that server.
    #[tokio::test]
    async fn an_incomplete_copy_is_named_as_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.server.data_dir = folder.path().to_owned();
        let moving = open_moving(&config, &config.records_url(), Some(Identity::random())).await.unwrap();
        moving.transfer.begin(0).await.unwrap();
        moving.opened.upkeep.close().await.unwrap();
        drop(moving);
        let error = open_existing(&config).await.err().unwrap();
        assert_ne!(exit::kind(&error), Some(ErrorKind::Conflict));
        let said = format!("{error:#}");
        assert!(said.contains("`restante records copy` again") && !said.contains("stats"), "{said}");
    }
}
