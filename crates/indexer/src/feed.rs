//! The feed of records, with a checkpoint that is stored in the index.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use restante_core::Identity;
use restante_mail::email;
use restante_records::{
    AccountId, Changes, Checkpoint, Error, Feed, FeedRequest, Get, Position, Records, Revision, Touched,
    Value, get_each,
};
use restante_search::{Batch, Index, Series};
use tokio::time::Instant;

use crate::{emails::emails_of, indexer::NAME};

/// The version of the checkpoint.
const VERSION: u8 = 2;
/// The previous version, which has no id of the index.
const VERSION_WITHOUT_ID: u8 = 1;

/// How often the position is saved. After a crash, accounts that changed since then are checked again, which costs little: their
/// revisions are in the index.
const POSITION_INTERVAL: Duration = Duration::from_secs(5);

/// The most bytes of the messages of a page, unless a single revision has more. The time of the handler is bounded, and other accounts
/// wait while a round of pages is handled.
const PAGE_BYTES_MAX: u64 = 64 << 20;

/// The position up to which an index contains the records of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexCheckpoint {
    /// The id of the record store.
    pub(crate) identity: Identity,
    /// The id of the index: several may follow the same records. `None` in a checkpoint of version 1.
    pub(crate) index: Option<Identity>,
    pub(crate) position: Position,
}

impl IndexCheckpoint {
    pub(crate) fn to_bytes(self) -> Bytes {
        let (version, index) = match &self.index {
            Some(index) => (VERSION, &index.0[..]),
            None => (VERSION_WITHOUT_ID, &[][..]),
        };
        [&[version][..], &self.identity.0, index, &self.position.to_bytes()].concat().into()
    }

    /// `None` for bytes of another version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (identity, rest) = rest.split_first_chunk::<16>()?;
        let (index, position) = match *version {
            VERSION => rest.split_first_chunk::<16>().map(|(index, rest)| (Some(Identity(*index)), rest))?,
            VERSION_WITHOUT_ID => (None, rest),
            _ => return None,
        };
        let position = Position::from_bytes(position.try_into().ok()?);
        Some(Self { identity: Identity(*identity), index, position })
    }

    /// The name under which the position is saved with the records.
    pub(crate) fn follower(&self) -> String {
        match self.index {
            Some(index) => format!("{NAME}-{index}"),
            None => NAME.to_owned(),
        }
    }

    /// Saves the position with the records.
    pub(crate) async fn save_position(&self, feed: &dyn Feed) -> Result<(), Error> {
        feed.save(&self.follower(), &Checkpoint { position: self.position, accounts: Vec::new() }).await
    }
}

/// The state that the parts of one series of writes share.
pub(crate) struct Progress {
    series: Series,
    /// Whether something was removed since the position was saved.
    is_removal_unsaved: AtomicBool,
}

impl Progress {
    pub(crate) fn new(series: Series) -> Self {
        Self { series, is_removal_unsaved: AtomicBool::new(false) }
    }

    pub(crate) fn series(&self) -> Series {
        self.series
    }

    pub(crate) fn note_removal(&self) {
        self.is_removal_unsaved.store(true, Ordering::Relaxed);
    }
}

/// The feed of records for the follower of one series. Its checkpoint is that of the index, and its pages are bounded in bytes.
///
/// The position is also saved with the records, before it is saved in the index. So a restore of the records from a backup is
/// noticed: their position is then before that of the index.
pub(crate) struct IndexFeed {
    records: Arc<dyn Records>,
    feed: Arc<dyn Feed>,
    index: Arc<dyn Index>,
    progress: Arc<Progress>,
    start: IndexCheckpoint,
    saved: Mutex<Saved>,
}

#[derive(Clone, Copy, Debug)]
struct Saved {
    /// The position that the follower saved last.
    position: Position,
    /// The position that is saved with the records and in the index.
    durable: Position,
    at: Instant,
}

impl IndexFeed {
    pub(crate) fn new(
        records: Arc<dyn Records>,
        feed: Arc<dyn Feed>,
        index: Arc<dyn Index>,
        progress: Arc<Progress>,
        start: IndexCheckpoint,
    ) -> Self {
        let saved = Saved { position: start.position, durable: start.position, at: Instant::now() };
        Self { records, feed, index, progress, start, saved: Mutex::new(saved) }
    }

    /// Saves the position that the follower reached.
    pub(crate) async fn save_position(&self) -> Result<(), Error> {
        let Saved { position, durable, .. } = *self.saved.lock();
        if position == durable {
            return Ok(());
        }
        let checkpoint = IndexCheckpoint { position, ..self.start };
        checkpoint.save_position(self.feed.as_ref()).await?;
        self.index.save(self.progress.series, checkpoint.to_bytes()).await?;
        self.progress.is_removal_unsaved.store(false, Ordering::Relaxed);
        let mut saved = self.saved.lock();
        (saved.durable, saved.at) = (position, Instant::now());
        Ok(())
    }

    async fn save_revisions(&self, wanted: &[(AccountId, Revision)]) -> Result<(), Error> {
        let accounts: Vec<AccountId> = wanted.iter().map(|(account, _)| *account).collect();
        let known = self.index.revisions(self.progress.series, &accounts).await?;
        for ((account, revision), known) in wanted.iter().zip(known) {
            // The handler didn't write accounts without new emails. An account that was reset is erased already.
            if *revision > known {
                let batch = Batch { revision: Some(*revision), ..Batch::default() };
                self.index.write(self.progress.series, *account, batch).await?;
            }
        }
        Ok(())
    }

    /// The total bytes of the messages of new emails. Damaged or missing ones are not counted: they are not read either.
    async fn bytes_of_new(&self, account: AccountId, page: &Changes) -> Result<u64, Error> {
        let get = Get::small(email::KIND, emails_of(&page.created));
        if get.ids.is_empty() {
            return Ok(0);
        }
        let records = get_each(self.records.as_ref(), account, &get).await?;
        let sizes = records.iter().flatten().flatten().filter_map(|record| {
            record.properties.values(email::SIZE).find_map(|value| match value {
                Value::Number(size) => Some(*size),
                _ => None,
            })
        });
        Ok(sizes.fold(0, u64::saturating_add))
    }
}

#[async_trait]
impl Feed for IndexFeed {
    async fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error> {
        self.feed.touched(after, limit).await
    }

    async fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        let mut request = *request;
        loop {
            let page = self.feed.follow(account, &request).await?;
            let changes = page.created.len() + page.updated.len() + page.destroyed.len();
            // A page has whole revisions: one revision alone may exceed the limit.
            if page.created.len() <= 1 || changes > request.limit {
                return Ok(page);
            }
            let bytes = self.bytes_of_new(account, &page).await?;
            if bytes <= PAGE_BYTES_MAX {
                return Ok(page);
            }
            let share = (changes as u64).saturating_mul(PAGE_BYTES_MAX) / bytes;
            request.limit = usize::try_from(share).unwrap_or(changes).clamp(1, changes / 2);
        }
    }

    async fn checkpoint(&self, _: &str, accounts: &[AccountId]) -> Result<Checkpoint, Error> {
        let position = self.saved.lock().position;
        let revisions = self.index.revisions(self.progress.series, accounts).await?;
        Ok(Checkpoint { position, accounts: accounts.iter().copied().zip(revisions).collect() })
    }

    /// Not durable: what is lost with the process is in no commit of the index either, and is handled again.
    async fn save(&self, _: &str, checkpoint: &Checkpoint) -> Result<(), Error> {
        self.save_revisions(&checkpoint.accounts).await?;
        let is_due = {
            let mut saved = self.saved.lock();
            saved.position = checkpoint.position;
            saved.at.elapsed() >= POSITION_INTERVAL
        };
        // If a restore brings a removed email back, that email is found again only if the restore is noticed.
        if is_due || self.progress.is_removal_unsaved.load(Ordering::Relaxed) {
            self.save_position().await?;
        }
        Ok(())
    }

    async fn forget(&self, follower: &str) -> Result<(), Error> {
        Err(Error::invalid(format!("the checkpoint of {follower} is in the search index: clear that")))
    }

    async fn followers(&self) -> Result<Vec<(String, Position)>, Error> {
        self.feed.followers().await
    }
}

#[cfg(test)]
mod tests {
    use restante_mail::kinds;
    use restante_records::{Body, Change, Commit, Config, Opened, Properties, Schema};

    use super::*;

    const ACCOUNT: AccountId = AccountId(1_001);

    #[test]
    fn checkpoints_read_back_and_others_are_none() {
        let with_id = IndexCheckpoint {
            identity: Identity(std::array::from_fn(|n| n as u8)),
            index: Some(Identity([7; 16])),
            position: Position::from_bytes([0, 0, 0, 0, 0, 1, 2, 3]),
        };
        for checkpoint in [with_id, IndexCheckpoint { index: None, ..with_id }] {
            let bytes = checkpoint.to_bytes();
            assert_eq!(IndexCheckpoint::from_bytes(&bytes), Some(checkpoint));
            let mut other = bytes.to_vec();
            other[0] = 9;
            assert_eq!(IndexCheckpoint::from_bytes(&other), None);
            for end in 0..bytes.len() {
                assert_eq!(IndexCheckpoint::from_bytes(&bytes[..end]), None);
            }
            assert_eq!(IndexCheckpoint::from_bytes(&[&bytes[..], b"x"].concat()), None);
        }
    }

    async fn open_records() -> Opened {
        let config = Config::new("memory:".parse().unwrap(), Schema::new(kinds()).unwrap());
        restante_records::open(config).await.unwrap()
    }

    async fn feed_of(records: &Opened) -> IndexFeed {
        let search = restante_search::Config::new(restante_search::EngineUrl::Memory);
        let index = restante_search::open(search).await.unwrap().index;
        let progress = Arc::new(Progress::new(index.begin().await.unwrap().series));
        let identity = records.upkeep.identity();
        let start = IndexCheckpoint { identity, index: Some(identity), position: Position::default() };
        IndexFeed::new(records.records.clone(), records.feed.clone(), index, progress, start)
    }

    fn email_of(size: u64) -> Change {
        let properties = Properties::default().with(email::RECEIVED, 1).with(email::SIZE, size);
        Change::Create { kind: email::KIND, body: Body::new("row"), properties }
    }

    /// The numbers of emails of the pages of an account.
    async fn pages(feed: &IndexFeed) -> Vec<usize> {
        let mut request = FeedRequest { since: Revision(0), began: Revision(0), limit: 256 };
        let mut pages = Vec::new();
        loop {
            let page = feed.follow(ACCOUNT, &request).await.unwrap();
            pages.push(page.created.len());
            if !page.has_more {
                return pages;
            }
            request.since = page.revision;
        }
    }

    #[tokio::test]
    async fn a_page_ends_where_its_messages_have_the_most_bytes() {
        let records = open_records().await;
        for size in [[1; 10], [PAGE_BYTES_MAX / 4; 10], [PAGE_BYTES_MAX + 1; 10]].concat() {
            records.records.commit(ACCOUNT, Commit::of([email_of(size)])).await.unwrap();
        }
        let pages = pages(&feed_of(&records).await).await;
        assert_eq!(pages.iter().sum::<usize>(), 30);
        assert!(pages.iter().all(|emails| *emails <= 14), "{pages:?}");
        assert!(pages.ends_with(&[1; 9]), "{pages:?}");
    }

    #[tokio::test]
    async fn a_revision_is_not_cut_in_two_however_many_bytes_it_has() {
        let records = open_records().await;
        records.records.commit(ACCOUNT, Commit::of([email_of(1)])).await.unwrap();
        let large = (0..10).map(|_| email_of(PAGE_BYTES_MAX));
        records.records.commit(ACCOUNT, Commit::of(large)).await.unwrap();
        assert_eq!(pages(&feed_of(&records).await).await, [1, 10]);
    }
}
