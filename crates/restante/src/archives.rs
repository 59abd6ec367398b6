//! Opens the archive that the settings name.

use std::sync::Arc;

use anyhow::Context;
use restante_archive::{EngineUrl, Metrics, Opened};
use restante_core::{Clock, SystemClock};
use restante_waku_wire::bloom::content_topic_bits;

use crate::config::Config;

/// What a command wants of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads beside a server that may be running.
    Read,
    /// Changes it, and keeps all others out.
    Write,
}

/// The machine's clock: the door by which time comes into the binary.
pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

/// Opens the archive of the settings.
pub(crate) async fn open(config: &Config, access: Access, metrics: Metrics) -> anyhow::Result<Opened> {
    open_with(restante_archive::Config {
        read_only: access == Access::Read,
        retention: config.archive.retention,
        log: (&config.archive.log).into(),
        metrics,
        ..restante_archive::Config::new(config.archive_url())
    })
    .await
}

/// Opens an archive for reading, without any settings.
pub(crate) async fn open_for_reading(url: EngineUrl) -> anyhow::Result<Opened> {
    open_with(restante_archive::Config { read_only: true, ..restante_archive::Config::new(url) }).await
}

async fn open_with(config: restante_archive::Config) -> anyhow::Result<Opened> {
    let url = config.url.clone();
    let config = restante_archive::Config { topic_bits: content_topic_bits, clock: clock(), ..config };
    restante_archive::open(config).await.with_context(|| format!("can't open the archive {url}"))
}
