//! Opens the journal of deliveries that the settings describe.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use restante_core::{Clock, ErrorKind};
use restante_records::EngineUrl;
use restante_smtp::{DeliveryJournal, JournalMetrics};
use tokio::time::timeout;

use crate::{clock, config::Config, exit};

/// Opens the journal of a server, and creates it if it does not exist. `None` if the settings disable it, or if the accounts do not
/// survive the process: entries would then name accounts of others.
pub(super) async fn open(
    config: &Config,
    clock: Arc<dyn Clock>,
    metrics: JournalMetrics,
) -> anyhow::Result<Option<DeliveryJournal>> {
    let folder = config.journal_folder();
    if config.records_url() == EngineUrl::Memory || (config.mail.journal.days == 0 && !folder.is_dir()) {
        return Ok(None);
    }
    let failed = || format!("can't open the journal of deliveries in {}", folder.display());
    let journal = DeliveryJournal::open(&folder, config.mail.journal.clone(), clock, metrics);
    let journal = journal.with_context(failed)?;
    if config.mail.journal.days > 0 {
        return Ok(Some(journal));
    }
    journal.close().await.with_context(failed)?; // removes the entries: all of them are too old
    Ok(None)
}

/// Opens the journal of a stopped server, if there is one.
pub(crate) fn open_existing(config: &Config) -> anyhow::Result<Option<DeliveryJournal>> {
    let folder = config.journal_folder();
    if config.records_url() == EngineUrl::Memory || config.mail.journal.days == 0 || !folder.is_dir() {
        return Ok(None);
    }
    let (settings, metrics) = (config.mail.journal.clone(), JournalMetrics::default());
    let journal = DeliveryJournal::open(&folder, settings, clock::system(), metrics);
    Ok(Some(
        journal.with_context(|| format!("can't open the journal of deliveries in {}", folder.display()))?,
    ))
}

/// The same for a command that can work without it: also `None` when a running server has it open.
pub(crate) fn open_unless_held(config: &Config) -> anyhow::Result<Option<DeliveryJournal>> {
    match open_existing(config) {
        Err(error) if exit::kind(&error) == Some(ErrorKind::Conflict) => Ok(None),
        opened => opened,
    }
}

/// Writes the last entries.
pub(super) async fn close(journal: &DeliveryJournal, limit: Duration) -> anyhow::Result<()> {
    let closed = timeout(limit, journal.close()).await;
    closed
        .with_context(|| {
            format!("the journal of deliveries was not written within {} s", limit.as_secs_f64())
        })?
        .context("can't write the journal of deliveries")
}
