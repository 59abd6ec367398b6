//! Opens, fills and seals the measured archives.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use restante_archive::{Appended, Archive, Config, EngineUrl, Message, Opened, Stats, open};
use restante_waku_wire::bloom::content_topic_bits;
use tempfile::TempDir;
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    args::{CommonArgs, EngineChoice},
    dataset::Dataset,
    location::Location,
    progress,
};

/// Messages of one append while filling.
const FILL_BATCH: usize = 2_500;
/// Appenders while filling: few, so that messages arrive roughly in time order, as in production.
const FILL_APPENDERS: usize = 4;
/// Batches that wait for each appender.
const FILL_WAITING: usize = 2;
/// The time limit for sealing all segments.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// The folder of a bench's files; removed when it goes out of scope.
pub(crate) fn work_folder(common: &CommonArgs) -> anyhow::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("restante-bench-");
    if let Some(folder) = &common.data {
        std::fs::create_dir_all(folder).with_context(|| format!("can't make folder {}", folder.display()))?;
        return builder.tempdir_in(folder).with_context(|| format!("can't write in {}", folder.display()));
    }
    builder
        .tempdir_in(".")
        .or_else(|_| builder.tempdir())
        .context("can't make a folder: name one with --data")
}

/// An archive under measurement.
pub(crate) struct Store {
    pub(crate) opened: Opened,
    pub(crate) config: Config,
    /// Its location. After the archive, so that a fresh one is removed after the archive is closed.
    pub(crate) location: Location,
}

impl Store {
    /// Opens the chosen engine; a fresh one below `parent`, if there is space for this many messages.
    pub(crate) async fn open(choice: &EngineChoice, parent: &Path, messages: u64) -> anyhow::Result<Self> {
        let location = Location::of(choice, parent)?;
        location.check_space(messages)?;
        Self::open_at(location).await
    }

    /// Opens a fresh archive of the chosen engine: within a named folder or database, or below `parent`.
    pub(crate) async fn open_fresh(
        choice: &EngineChoice,
        parent: &Path,
        messages: u64,
    ) -> anyhow::Result<Self> {
        let location = Location::fresh(choice, parent)?;
        location.check_space(messages)?;
        Self::open_at(location).await
    }

    async fn open_at(location: Location) -> anyhow::Result<Self> {
        let config = config(location.url.clone());
        let opened = open(config.clone()).await.with_context(|| format!("can't open {}", config.url))?;
        Ok(Self { opened, config, location })
    }

    /// Opens a closed archive again; returns how long that took.
    pub(crate) async fn reopen(&mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.opened = open(self.config.clone())
            .await
            .with_context(|| format!("can't open {} again", self.config.url))?;
        Ok(begun.elapsed())
    }

    pub(crate) fn archive(&self) -> &Arc<dyn Archive> {
        &self.opened.archive
    }

    pub(crate) fn engine(&self) -> &'static str {
        self.config.url.engine()
    }

    /// Fills an empty archive with the data set; one that holds it already is used unchanged.
    pub(crate) async fn fill(&self, dataset: &Arc<Dataset>) -> anyhow::Result<()> {
        let held = self.opened.upkeep.stats().await?.messages;
        if held == 0 {
            fill(self.archive(), dataset).await?;
        } else if held != dataset.len() {
            let expected = dataset.len();
            bail!("{} holds {held} messages instead of {expected}: name an empty folder", self.config.url);
        }
        self.settle().await?;
        Ok(())
    }

    /// Waits until the `log` engine has sealed all segments. The tables of other engines
    /// are not sealed.
    pub(crate) async fn settle(&self) -> anyhow::Result<Stats> {
        let begun = Instant::now();
        loop {
            let stats = self.opened.upkeep.stats().await?;
            let is_sealing = matches!(self.config.url, EngineUrl::Log(_));
            let is_settled = !is_sealing || !stats.parts.iter().any(|part| part.is_open && part.messages > 0);
            if is_settled || begun.elapsed() > SETTLE_MAX {
                return Ok(stats);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The configuration of archives in benches: the defaults, but segments are sealed after a second without appends instead of
/// a minute.
pub(crate) fn config(url: EngineUrl) -> Config {
    let mut config = Config::new(url);
    config.topic_bits = content_topic_bits;
    config.log.quiet_seconds = 1;
    config
}

/// Appends the whole data set. One thread generates messages, a few tasks append them.
async fn fill(archive: &Arc<dyn Archive>, dataset: &Arc<Dataset>) -> anyhow::Result<()> {
    let bar = progress::bar("filling the archive", dataset.len());
    let mut tasks = JoinSet::new();
    let mut senders = Vec::new();
    for _ in 0..FILL_APPENDERS {
        let (sender, receiver) = mpsc::channel(FILL_WAITING);
        senders.push(sender);
        tasks.spawn(append_all(archive.clone(), receiver, bar.clone()));
    }
    let producer = tokio::task::spawn_blocking({
        let dataset = dataset.clone();
        move || produce(&dataset, &senders)
    });
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    producer.await?;
    bar.finish_and_clear();
    Ok(())
}

/// Generates all messages and sends them to the appenders in turn; ends early when an appender has ended.
fn produce(dataset: &Dataset, appenders: &[mpsc::Sender<Vec<Message>>]) {
    for (batch, appender) in dataset.batches(FILL_BATCH).zip(appenders.iter().cycle()) {
        let is_taken = appender.blocking_send(batch).is_ok();
        if !is_taken {
            return;
        }
    }
}

async fn append_all(
    archive: Arc<dyn Archive>,
    mut batches: mpsc::Receiver<Vec<Message>>,
    bar: indicatif::ProgressBar,
) -> anyhow::Result<()> {
    while let Some(batch) = batches.recv().await {
        let len = batch.len() as u64;
        append_new(&*archive, batch).await?;
        bar.inc(len);
    }
    Ok(())
}

/// Appends new messages; a duplicate or a message that was not stored is an error.
pub(crate) async fn append_new(archive: &dyn Archive, messages: Vec<Message>) -> anyhow::Result<()> {
    let answers = archive.append(messages).await?;
    let count = |expected: Appended| answers.iter().filter(|answer| **answer == expected).count();
    let (duplicates, spooled) = (count(Appended::Duplicate), count(Appended::Spooled));
    if duplicates > 0 {
        bail!("{duplicates} of {} messages were duplicates: the archive was not fresh", answers.len());
    }
    if spooled > 0 {
        bail!("{spooled} of {} messages went to the spool: the engine did not answer", answers.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn filling_twice_changes_nothing_and_another_size_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&"memory:".parse().unwrap(), folder.path(), 3_000).await.unwrap();
        let dataset = Arc::new(Dataset::new(0, 3_000));
        store.fill(&dataset).await.unwrap();
        store.fill(&dataset).await.unwrap();
        assert_eq!(store.opened.upkeep.stats().await.unwrap().messages, 3_000);
        let error = store.fill(&Arc::new(Dataset::new(0, 10))).await.unwrap_err();
        assert!(error.to_string().contains("holds 3000"), "{error}");
    }
}
