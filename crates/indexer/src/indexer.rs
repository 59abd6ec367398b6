//! The loop: one series of writes after another, each with a follower.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use restante_blobs::Blobs;
use restante_core::{Clock, Identity};
use restante_follow::{Follower, Settings};
use restante_records::{Error, Opened as RecordStore, Position};
use restante_search::{Begun, Opened as SearchIndex, Series};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use crate::{
    Metrics,
    emails::Emails,
    feed::{IndexCheckpoint, IndexFeed, Progress},
};

/// The name of the follower, and the beginning of the name of its position with the records.
pub(crate) const NAME: &str = "indexer";

/// How long commits are gathered before they are indexed. They are in the index some seconds after that, and until then the newest
/// emails are matched directly. Otherwise a busy server would read the feed for each email, which costs as much as the email.
const GATHER: Duration = Duration::from_millis(500);

/// The wait after a failure. It doubles with each further one.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);
/// The longest wait. A series that lasted longer than this has worked: a failure after it counts as a first one.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// Keeps a search index up to date with records.
///
/// - *Complete*: every email that exists is found in the index when all commits are followed, regardless of what happened to the
///   process or to the index.
/// - *By itself*: an index without a checkpoint (new, damaged, cleared), one of other records, and one that is newer than the
///   records (these were restored from a backup) begins from zero. A failed write is tried again after 100 ms, doubling to a minute.
/// - *Bounded*: one message and some megabytes of documents are in memory at a time.
pub struct Indexer {
    records: RecordStore,
    blobs: Arc<dyn Blobs>,
    search: SearchIndex,
    clock: Arc<dyn Clock>,
    follow_metrics: restante_follow::Metrics,
    metrics: Metrics,
    /// The id for an index that has none. It is the same for all indexes that this process begins, so that an index that fails
    /// repeatedly does not leave a position with the records for each attempt.
    new_index: Identity,
}

impl Indexer {
    /// An indexer. It does nothing until [`Indexer::run`].
    pub fn new(
        records: RecordStore,
        blobs: Arc<dyn Blobs>,
        search: SearchIndex,
        clock: Arc<dyn Clock>,
        follow_metrics: restante_follow::Metrics,
        metrics: Metrics,
    ) -> Self {
        Self { records, blobs, search, clock, follow_metrics, metrics, new_index: Identity::random() }
    }

    /// Indexes until `stop` is ready. Then it commits what was written.
    ///
    /// # Errors
    /// When the last commit failed: the next run writes its contents again.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) -> Result<(), Error> {
        let mut stop = pin!(stop);
        let mut failures = 0;
        loop {
            let begun_at = Instant::now();
            let begun = tokio::select! {
                () = &mut stop => return Ok(()),
                begun = self.begin() => begun,
            };
            match begun {
                Ok((progress, start)) => {
                    let feed = self.feed(&progress, start);
                    if self.follow(&progress, &feed, stop.as_mut()).await {
                        feed.save_position().await?;
                        return self.search.index.commit(progress.series()).await;
                    }
                    failures = self.failures_after(failures, begun_at.elapsed());
                }
                Err(error) => {
                    failures += 1;
                    warn!(failures, %error, "the search index can't be written; trying again");
                }
            }
            tokio::select! {
                () = &mut stop => return Ok(()),
                () = sleep(retry_delay(failures)) => {}
            }
        }
    }

    /// The number of consecutive failures when a series ended after `lasted`; it also logs that it ended. What the series
    /// wrote does not count as success: it may have reached memory only.
    fn failures_after(&self, failures: u32, lasted: Duration) -> u32 {
        let Err(error) = self.search.upkeep.health() else {
            info!("writing to the search index begins again");
            return 0;
        };
        let failures = if lasted > RETRY_DELAY_MAX { 1 } else { failures + 1 };
        warn!(failures, %error, "writing to the search index failed and begins again");
        failures
    }

    /// Begins a series of writes, with an empty index if the existing one belongs to other records.
    async fn begin(&self) -> Result<(Arc<Progress>, IndexCheckpoint), Error> {
        let mut begun = self.search.index.begin().await?;
        let mut start = self.start(&begun).await?;
        if start.is_none() && begun.checkpoint.is_some() {
            warn!("the search index belongs to other records, or to records before a restore: it is cleared");
            self.search.upkeep.clear().await?;
            begun = self.search.index.begin().await?;
            start = self.start(&begun).await?;
        }
        self.metrics.series.inc();
        let start = match start {
            Some(start) if start.index.is_some() => start,
            Some(without_id) => self.give_id(begun.series, without_id.position).await?,
            None => self.give_id(begun.series, Position::default()).await?,
        };
        Ok((Arc::new(Progress::new(begun.series)), start))
    }

    /// Assigns an id to an index that is at a position, and returns its checkpoint.
    async fn give_id(&self, series: Series, position: Position) -> Result<IndexCheckpoint, Error> {
        let identity = self.records.upkeep.identity();
        let checkpoint = IndexCheckpoint { identity, index: Some(self.new_index), position };
        if position > Position::default() {
            // Before the index has the id: without this position the records would seem older than the index.
            checkpoint.save_position(self.records.feed.as_ref()).await?;
        }
        // In one commit with the first documents: so they are never mistaken for those of other records.
        self.search.index.save(series, checkpoint.to_bytes()).await?;
        Ok(checkpoint)
    }

    /// The checkpoint of the index; `None` when it has to begin from zero.
    async fn start(&self, begun: &Begun) -> Result<Option<IndexCheckpoint>, Error> {
        let known = begun.checkpoint.as_ref().and_then(|bytes| IndexCheckpoint::from_bytes(bytes));
        let Some(checkpoint) = known else { return Ok(None) };
        let of_records = self.records.feed.checkpoint(&checkpoint.follower(), &[]).await?.position;
        let is_same = checkpoint.identity == self.records.upkeep.identity();
        Ok((is_same && checkpoint.position <= of_records).then_some(checkpoint))
    }

    fn feed(&self, progress: &Arc<Progress>, start: IndexCheckpoint) -> Arc<IndexFeed> {
        let (records, feed) = (self.records.records.clone(), self.records.feed.clone());
        Arc::new(IndexFeed::new(records, feed, self.search.index.clone(), progress.clone(), start))
    }

    /// Follows until the series ends or `stop` is ready. Returns whether it was the latter.
    async fn follow(
        &self,
        progress: &Arc<Progress>,
        feed: &Arc<IndexFeed>,
        stop: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> bool {
        let emails = Emails {
            records: self.records.records.clone(),
            blobs: self.blobs.clone(),
            index: self.search.index.clone(),
            progress: progress.clone(),
            metrics: self.metrics.clone(),
        };
        let records = RecordStore { feed: feed.clone(), ..self.records.clone() };
        let settings = Settings { gather: GATHER, ..Settings::new(NAME) };
        let follower = Follower::new(settings, &records, emails, self.clock.clone(), &self.follow_metrics)
            .expect("the name and the default batch are within their bounds");
        let is_stopped = AtomicBool::new(false);
        let until = async {
            tokio::select! {
                () = stop => is_stopped.store(true, Ordering::Relaxed),
                () = self.search.index.ended(progress.series()) => {}
            }
        };
        if let Err(error) = follower.run(until).await {
            // The series has ended, which the caller logs, or the stop will: the commit fails as well.
            debug!(%error, "the last emails could not be written to the search index and will be written again");
        }
        is_stopped.load(Ordering::Relaxed)
    }
}

fn retry_delay(failures: u32) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    (RETRY_DELAY_MIN * (1 << (failures - 1).min(16))).min(RETRY_DELAY_MAX)
}
