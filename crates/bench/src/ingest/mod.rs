//! Durable appends: in batches of 1 to 1,000, by 1 to 64 appenders, compared with the disk alone.

mod cell;
pub(crate) mod disk;
mod present;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use restante_archive::EngineUrl;
use serde::Serialize;

use crate::{
    args::{CommonArgs, EngineChoice},
    dataset::{DAYS, Dataset, day_start},
    machine::Machine,
    measure::{Latencies, ratio, rounded},
    progress,
    report::Report,
    store::{Store, work_folder},
    supply::Supply,
};
use cell::{Cell, Outcome};
use disk::Disk;

const BATCHES: [usize; 4] = [1, 10, 100, 1_000];
const APPENDERS: [usize; 3] = [1, 8, 64];

/// Flags of `bench ingest`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  restante bench ingest --data /var/lib/restante --html ingest.html     (measures the disk below that folder)
  restante bench ingest --quick --json ingest.json")]
pub struct IngestArgs {
    /// Flags of every bench; `--messages` bounds the messages of each cell
    #[command(flatten)]
    pub common: CommonArgs,
}

/// A row of JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct IngestRow {
    engine: &'static str,
    /// Messages of one append.
    batch: usize,
    /// Concurrent appends.
    appenders: usize,
    /// Messages that were stored.
    messages: u64,
    messages_per_s: f64,
    /// Bytes of bodies, in 10^6 a second.
    payload_mb_s: f64,
    /// From the call of an append to its return.
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// Bytes passed to write calls, index included, divided by bytes of bodies.
    write_amplification: Option<f64>,
    /// The same from the counter of the device below the folder, which counts all processes.
    device_write_amplification: Option<f64>,
    /// Bytes on disk divided by bytes of bodies, when everything is sealed.
    disk_per_payload: Option<f64>,
    /// The disk alone: median of syncing after an append of 700 bytes.
    sync_ms: f64,
    /// The disk alone: appends of 700 bytes, each synced, in a second.
    syncs_per_s: f64,
    /// The disk alone: one long write in calls of 1 MiB and one sync, in 10^6 bytes a second.
    disk_write_mb_s: f64,
    /// Appends a second divided by `syncs_per_s`.
    ratio_to_syncs: Option<f64>,
    /// `payload_mb_s` divided by `disk_write_mb_s`.
    ratio_to_disk: Option<f64>,
    /// `messages_per_s` divided by that of one appender with the same batch.
    ratio_to_one: Option<f64>,
}

/// A row and its times.
struct Measured {
    row: IngestRow,
    appends: Latencies,
}

/// Runs the bench and delivers its report.
pub(crate) async fn run(args: &IngestArgs) -> anyhow::Result<()> {
    measure(args).await?.deliver(&args.common)
}

/// Runs the bench.
pub(crate) async fn measure(args: &IngestArgs) -> anyhow::Result<Report> {
    let common = &args.common;
    let folder = work_folder(common)?;
    let title =
        "Durable appends of messages of about 700 bytes: every append returns when it is on the disk.";
    let mut report = Report::new("ingest", title, Machine::look(folder.path()));
    let supply = Arc::new(Supply::of(&Dataset::new(common.seed, common.messages()), day_start(DAYS - 1)));
    let mut measured = Vec::new();
    for choice in &common.engines {
        measured.extend(measure_engine(choice, folder.path(), &supply, common).await?);
    }
    for cell in &measured {
        report.add_rows(&[&cell.row])?;
    }
    present::present(&measured, &mut report);
    report.note_size(common.messages());
    report.note_quick(common.quick);
    Ok(report)
}

/// Each cell has an archive of its own, within the named folder or database if there is one.
async fn measure_engine(
    choice: &EngineChoice,
    parent: &Path,
    supply: &Arc<Supply>,
    common: &CommonArgs,
) -> anyhow::Result<Vec<Measured>> {
    let bar = progress::bar("appending", (BATCHES.len() * APPENDERS.len()) as u64);
    let mut measured: Vec<Measured> = Vec::new();
    let mut before: Option<Disk> = None;
    for batch in BATCHES {
        let mut one_appender = None;
        for appenders in APPENDERS {
            let store = Store::open_fresh(choice, parent, common.messages()).await?;
            let parent = probed_folder(&store, parent);
            let disk_before = match before {
                Some(probed) => probed,
                None => disk::probe(&parent, common).await?,
            };
            let engine = store.engine();
            let cell = Cell { batch, appenders };
            let outcome = cell.measure(&store, supply, common).await?;
            drop(store);
            let after = disk::probe(&parent, common).await?;
            let row = row(engine, cell, &outcome, Disk::between(&disk_before, &after), &mut one_appender);
            measured.push(Measured { row, appends: outcome.appends });
            before = Some(after);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(measured)
}

/// The folder whose disk is probed: the parent of the engine's own folder, which remains when the engine's is removed.
fn probed_folder(store: &Store, parent: &Path) -> PathBuf {
    match &store.location.url {
        EngineUrl::Log(_) | EngineUrl::Sqlite(_) => {
            store.location.folder.parent().unwrap_or(parent).to_owned()
        }
        EngineUrl::Postgres(_) | EngineUrl::Cassandra(_) | EngineUrl::Memory => parent.to_owned(),
    }
}

fn row(
    engine: &'static str,
    cell: Cell,
    outcome: &Outcome,
    disk: Disk,
    one_appender: &mut Option<f64>,
) -> IngestRow {
    let seconds = outcome.duration.as_secs_f64();
    let messages_per_s = outcome.messages as f64 / seconds;
    let payload_mb_s = outcome.body_bytes as f64 / 1e6 / seconds;
    let one_appender = *one_appender.get_or_insert(messages_per_s);
    let by_payload = |bytes: Option<u64>| ratio(bytes? as f64, outcome.body_bytes as f64);
    IngestRow {
        engine,
        batch: cell.batch,
        appenders: cell.appenders,
        messages: outcome.messages,
        messages_per_s: rounded(messages_per_s),
        payload_mb_s: rounded(payload_mb_s),
        p50_ms: rounded(outcome.appends.median_ms()),
        p99_ms: rounded(outcome.appends.p99_ms()),
        max_ms: rounded(outcome.appends.max_ms()),
        write_amplification: by_payload(outcome.written_bytes),
        device_write_amplification: by_payload(outcome.device_bytes),
        disk_per_payload: by_payload(Some(outcome.disk_bytes)),
        sync_ms: rounded(disk.sync_ms),
        syncs_per_s: rounded(disk.syncs_per_s),
        disk_write_mb_s: rounded(disk.write_mb_s),
        ratio_to_syncs: ratio(outcome.appends.len() as f64 / seconds, disk.syncs_per_s),
        ratio_to_disk: ratio(payload_mb_s, disk.write_mb_s),
        ratio_to_one: ratio(messages_per_s, one_appender),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::assert_explained, tests::quick};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_small_run_has_every_cell() {
        let report = measure(&IngestArgs { common: quick("memory:") }).await.unwrap();
        assert_eq!(report.rows.len(), 4 * 3);
        for row in &report.rows {
            for key in [
                "engine",
                "batch",
                "appenders",
                "messages_per_s",
                "p50_ms",
                "p99_ms",
                "sync_ms",
                "disk_write_mb_s",
            ] {
                assert!(!row[key].is_null(), "{key} is missing in {row}");
            }
            assert!(row.get("write_amplification").is_some() && row.get("disk_per_payload").is_some());
            let (messages, batch) = (row["messages"].as_u64().unwrap(), row["batch"].as_u64().unwrap());
            assert!(messages > 0 && messages.is_multiple_of(batch), "{row}");
        }
        assert_explained(&report.tables);
        assert_eq!(report.plots.len(), 2);
        assert!(report.goals.is_empty(), "goals are the embedded engine's");
    }
}
