//! restante's own engines, used as by a door.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use async_trait::async_trait;
use restante_archive::{Appended, Archive, Config, EngineUrl, Message, Opened, Page, Walk, open};
use restante_bench::{dataset::Dataset, touch_all};
use restante_waku_wire::bloom::content_topic_bits;
use tokio::task::JoinSet;

use crate::{
    contender::{Store, Tally, feed},
    question::{Access, Question},
};

/// Concurrent appends while filling, as in `restante bench`: few, so that messages arrive roughly in time order.
const APPENDS: usize = 4;
/// The time limit for sealing all segments.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// An archive.
pub(crate) struct Ours {
    opened: Opened,
}

/// The figures of filling.
pub(crate) struct Filled {
    pub(crate) time: Duration,
    pub(crate) payload_bytes: u64,
}

impl Ours {
    /// Opens an engine at its defaults, except that the `log` engine seals segments after a second without appends instead of
    /// a minute.
    pub(crate) async fn open(url: EngineUrl) -> anyhow::Result<Self> {
        let mut config = Config::new(url);
        config.topic_bits = content_topic_bits;
        config.log.quiet_seconds = 1;
        let name = config.url.to_string();
        let opened = open(config).await.with_context(|| format!("can't open {name}"))?;
        Ok(Self { opened })
    }

    /// Appends the whole data set, durably.
    pub(crate) async fn fill(&self, dataset: &Arc<Dataset>) -> anyhow::Result<Filled> {
        let begun = Instant::now();
        let mut payload_bytes = 0;
        let mut batches = feed(dataset);
        let mut appends = JoinSet::new();
        while let Some(batch) = batches.recv().await {
            payload_bytes += batch.iter().map(|message| message.body.len() as u64).sum::<u64>();
            if appends.len() == APPENDS
                && let Some(done) = appends.join_next().await
            {
                done??;
            }
            appends.spawn(append(self.opened.archive.clone(), batch));
        }
        while let Some(done) = appends.join_next().await {
            done??;
        }
        let time = begun.elapsed();
        self.settle(dataset).await?;
        Ok(Filled { time, payload_bytes })
    }

    /// Waits until all segments are sealed, and checks that no message is missing.
    async fn settle(&self, dataset: &Dataset) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let stats = self.opened.upkeep.stats().await?;
            let is_log = stats.engine == "log"; // parts of other engines are never sealed
            let is_open = stats.parts.iter().any(|part| part.is_open && part.messages > 0);
            if !is_log || !is_open || begun.elapsed() > SETTLE_MAX {
                let (held, expected) = (stats.messages, dataset.len());
                ensure!(held == expected, "{} holds {held} messages instead of {expected}", stats.engine);
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn close(&self) -> anyhow::Result<()> {
        Ok(self.opened.upkeep.close().await?)
    }
}

async fn append(archive: Arc<dyn Archive>, batch: Vec<Message>) -> anyhow::Result<()> {
    let answers = archive.append(batch).await?;
    let is_new = answers.iter().all(|answer| *answer == Appended::Stored);
    ensure!(is_new, "some messages were duplicates: the archive was not fresh");
    Ok(())
}

impl Tally {
    /// Counts the messages of a page and reads their bodies.
    fn add_page(&mut self, page: &Page) {
        let bytes = &mut self.bytes;
        touch_all(page.bodies().inspect(|body| *bytes += body.len() as u64));
        self.rows += page.len() as u64;
    }
}

#[async_trait]
impl Store for Ours {
    async fn ask(&self, question: &Question, _lane: usize) -> anyhow::Result<Tally> {
        let archive = &*self.opened.archive;
        let mut tally = Tally::default();
        if question.access != Access::Full {
            tally.add_page(&archive.query(&question.query).await?);
            return Ok(tally);
        }
        let mut walk = Walk::new(question.query.clone());
        while let Some(page) = walk.next(archive).await? {
            tally.add_page(&page);
        }
        Ok(tally)
    }

    async fn warm_up(&self, question: &Question) -> anyhow::Result<Tally> {
        self.ask(question, 0).await
    }
}
