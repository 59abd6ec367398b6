//! The outcome of backups, for the metrics: the last one is noted in the data folder, so that its age is known after a
//! restart, too.

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
    sync::atomic::AtomicU64,
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use restante_core::{Error, NANOS_PER_SECOND, Timestamp};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::disk;

/// The file in the data folder that describes the last finished backup. No backup contains it, and a restore does not touch it:
/// it is about the backups of this machine, not about the stored data.
pub(super) const NOTE: &str = "last-backup.json";
/// A longer file is not ours.
const NOTE_BYTES_MAX: u64 = 4_096;

/// A finished backup.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Last {
    /// When it was begun: it contains everything that was acknowledged before.
    taken_at_seconds: f64,
    duration_seconds: f64,
    bytes: u64,
}

impl Last {
    pub(super) fn new(taken_at: Timestamp, duration: Duration, bytes: u64) -> Self {
        let taken_at_seconds = taken_at.nanos() as f64 / NANOS_PER_SECOND as f64;
        Self { taken_at_seconds, duration_seconds: duration.as_secs_f64(), bytes }
    }

    /// Reads the note of a data folder; `None` when no backup was ever finished, or the note can't be read.
    fn read(data: &Path) -> Option<Self> {
        let file = File::open(data.join(NOTE)).ok()?;
        serde_json::from_reader(file.take(NOTE_BYTES_MAX)).ok()
    }

    /// Writes the note, durably and atomically.
    pub(super) fn write(&self, data: &Path) -> Result<(), Error> {
        let (file, new) = (data.join(NOTE), data.join(format!("{NOTE}.new")));
        let text = serde_json::to_string(self).map_err(|error| Error::internal(error.to_string()))?;
        let written = fs::write(&new, text + "\n").and_then(|()| File::open(&new)?.sync_all());
        written.map_err(|error| Error::io("write", new.display(), error))?;
        disk::rename(&new, &file)
    }
}

/// The outcome of backups. Clones share the values.
#[derive(Clone, Debug, Default)]
pub struct BackupMetrics {
    backups: Family<ResultLabel, Counter>,
    last_taken_at: Gauge<f64, AtomicU64>,
    last_duration: Gauge<f64, AtomicU64>,
    last_bytes: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

const DONE: ResultLabel = ResultLabel { result: "done" };
const FAILED: ResultLabel = ResultLabel { result: "failed" };

impl BackupMetrics {
    /// The metrics of a server with a data folder.
    pub fn of(data: &Path) -> Self {
        let metrics = Self::default();
        if let Some(last) = Last::read(data) {
            metrics.show(&last);
        }
        metrics
    }

    fn show(&self, last: &Last) {
        self.last_taken_at.set(last.taken_at_seconds);
        self.last_duration.set(last.duration_seconds);
        self.last_bytes.set(i64::try_from(last.bytes).unwrap_or(i64::MAX));
    }

    /// Counts a finished backup, and notes it in the data folder.
    pub(super) fn done(&self, last: &Last, data: &Path) {
        self.backups.get_or_create(&DONE).inc();
        self.show(last);
        if let Err(error) = last.write(data) {
            warn!(%error, "the backup is complete, but the metrics will not show it after a restart");
        }
    }

    /// Counts a requested backup that failed.
    pub(super) fn failed(&self) {
        self.backups.get_or_create(&FAILED).inc();
    }

    /// Makes the metrics visible in `registry` as `restante_backup_...`.
    pub fn register(&self, registry: &mut Registry) {
        for label in [DONE, FAILED] {
            drop(self.backups.get_or_create(&label)); // a family without labels is not exported, and a rate needs its zero
        }
        let registry = registry.sub_registry_with_prefix("restante_backup");
        registry.register("runs", "Backups that were asked for", self.backups.clone());
        let help = "When the last finished backup was begun, Unix time, or 0";
        registry.register("last_success_timestamp_seconds", help, self.last_taken_at.clone());
        let help = "How long the last finished backup took";
        registry.register("last_duration_seconds", help, self.last_duration.clone());
        registry.register("last_bytes", "Bytes of the last finished backup's files", self.last_bytes.clone());
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> [u64; 2] {
        [&DONE, &FAILED].map(|label| self.backups.get_or_create(label).get())
    }

    #[cfg(test)]
    pub(super) fn last(&self) -> (f64, i64) {
        (self.last_taken_at.get(), self.last_bytes.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_backup_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (data, metrics) = (folder.path(), BackupMetrics::of(folder.path()));
        assert_eq!(metrics.last(), (0.0, 0), "there was none");
        metrics.done(&Last::new(Timestamp(1_554_076_800_500_000_000), Duration::from_millis(1_500), 7), data);
        metrics.failed();
        assert_eq!((metrics.last(), metrics.counts()), ((1_554_076_800.5, 7), [1, 1]));
        let restarted = BackupMetrics::of(data);
        assert_eq!((restarted.last(), restarted.counts()), ((1_554_076_800.5, 7), [0, 0]));
        assert_eq!(restarted.last_duration.get(), 1.5);
        assert_eq!(disk::names(data).unwrap(), [NOTE]);
        for text in ["", "{}", "{\"takenAtSeconds\":"] {
            fs::write(data.join(NOTE), text).unwrap();
            assert_eq!(BackupMetrics::of(data).last(), (0.0, 0), "{text}");
        }
    }
}
