//! Opens the blobs that the settings name.

use std::{env, path::Path};

use anyhow::{Context, bail};
use restante_blobs::{EngineUrl, Metrics, Opened, S3Keys};

use crate::{clock, commands::backup::is_used, config::Config, doors::mail::records::check_is_used, secrets};

/// The environment variables with the keys of an S3 storage, used when the settings have none, as by other programs.
const ACCESS_KEY: &str = "AWS_ACCESS_KEY_ID";
const SECRET_KEY: &str = "AWS_SECRET_ACCESS_KEY";

/// Opens the blobs of the settings; creates their storage if it does not exist.
pub(crate) async fn open(config: &Config, metrics: Metrics) -> anyhow::Result<Opened> {
    open_at(config, config.blobs_url(), metrics).await
}

/// Opens blobs at another location, with the other settings unchanged.
pub(crate) async fn open_at(config: &Config, url: EngineUrl, metrics: Metrics) -> anyhow::Result<Opened> {
    let s3 = &config.blobs.s3;
    let s3_keys = match url {
        EngineUrl::S3(_) => Some(s3_keys(&s3.access_key, &s3.secret_key_file)?),
        EngineUrl::Files(_) | EngineUrl::Memory => None,
    };
    let is_below_data = s3.folder.as_os_str().is_empty();
    let s3_folder = if is_below_data { config.server.data_dir.join("blobs-s3") } else { s3.folder.clone() };
    let opened = restante_blobs::open(restante_blobs::Config {
        blob_bytes_max: config.blobs.blob_bytes_max,
        files: config.blobs.files,
        s3: s3.engine.clone(),
        s3_keys,
        s3_folder: Some(s3_folder),
        clock: clock::system(),
        metrics,
        ..restante_blobs::Config::new(url.clone())
    })
    .await;
    opened.with_context(|| format!("can't open the blobs {url}"))
}

/// The keys that sign requests to an S3 storage: from the settings, or from the environment.
fn s3_keys(access_key: &str, secret_key_file: &Path) -> anyhow::Result<S3Keys> {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let access_key = match access_key {
        "" => variable(ACCESS_KEY),
        set => Some(set.to_owned()),
    };
    let Some(access_key) = access_key else {
        bail!(
            "the S3 storage needs an access key: set blobs.s3.access_key, or {ACCESS_KEY} in the environment"
        )
    };
    let secret_key = match secret_key_file.as_os_str().is_empty() {
        true => variable(SECRET_KEY),
        false => Some(secrets::read("secret key", secret_key_file)?),
    };
    let Some(secret_key) = secret_key else {
        bail!(
            "the S3 storage needs a secret key: name a file in blobs.s3.secret_key_file, or set {SECRET_KEY} in the environment"
        )
    };
    Ok(S3Keys { access_key, secret_key })
}

/// Whether there are blobs to back up. Blobs that are elsewhere report themselves that they are not in the backup.
pub(crate) fn are_there(config: &Config) -> anyhow::Result<bool> {
    match config.blobs_url() {
        EngineUrl::Files(folder) => is_used(&folder),
        EngineUrl::S3(_) => Ok(true),
        EngineUrl::Memory => Ok(false),
    }
}

/// The same for a command, which creates nothing: if the blobs do not exist, their location was mistyped.
pub(crate) async fn open_existing(config: &Config) -> anyhow::Result<Opened> {
    open_existing_at(config, config.blobs_url()).await
}

/// The same for blobs at another location.
pub(crate) async fn open_existing_at(config: &Config, url: EngineUrl) -> anyhow::Result<Opened> {
    if let EngineUrl::Files(folder) = &url {
        check_is_used("blobs", &url.to_string(), folder)?;
    }
    open_at(config, url, Metrics::default()).await
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
            error.ends_with("blobs: there are none: name their folder with --data or --blobs"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

        config.blobs.url = Some(EngineUrl::Memory);
        open_existing(&config).await.unwrap();
    }
}
