//! Opens the blobs that the settings name.

use anyhow::Context;
use restante_blobs::{EngineUrl, Metrics, Opened};

use crate::{clock, commands::backup::is_used, config::Config, doors::mail::records::check_is_used};

/// Opens the blobs of the settings, and makes their place when it is not there.
pub(crate) async fn open(config: &Config, metrics: Metrics) -> anyhow::Result<Opened> {
    let url = config.blobs_url();
    let opened = restante_blobs::open(restante_blobs::Config {
        blob_bytes_max: config.blobs.blob_bytes_max,
        files: config.blobs.files,
        clock: clock::system(),
        metrics,
        ..restante_blobs::Config::new(url.clone())
    })
    .await;
    opened.with_context(|| format!("can't open the blobs {url}"))
}

/// Whether there are blobs to back up.
pub(crate) fn are_there(config: &Config) -> anyhow::Result<bool> {
    match config.blobs_url() {
        EngineUrl::Files(folder) => is_used(&folder),
        EngineUrl::Memory => Ok(false),
    }
}

/// The same for a command, which makes nothing: blobs that are not there are a place that was mistyped.
pub(crate) async fn open_existing(config: &Config) -> anyhow::Result<Opened> {
    let url = config.blobs_url();
    if let EngineUrl::Files(folder) = &url {
        check_is_used("blobs", &url.to_string(), folder)?;
    }
    open(config, Metrics::default()).await
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
