//! A store that is written at random, and a handler that mirrors it.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use restante_core::{Clock, ManualClock, Timestamp};
use restante_follow::{Handler, HandlerError};
use restante_records::{
    AccountId, Body, Change, Changed, Changes, Checkpoint, Commit, Config, Error, Feed, FeedRequest, Get,
    Kind, KindSchema, Opened, Position, Properties, RecordId, Records, Revision, Schema, Touched, open,
};
use tokio::sync::Notify;

pub(crate) const NOTE: Kind = Kind(1);
pub(crate) const FOLDER: Kind = Kind(2);

/// A record and its body, as a mirror keeps it.
pub(crate) type Copied = BTreeMap<(AccountId, Kind, RecordId), Bytes>;

pub(crate) fn create(kind: Kind, text: String) -> Change {
    Change::Create { kind, body: Body::new(text), properties: Properties::default() }
}

/// An open store, and its writer.
pub(crate) struct Store {
    pub(crate) opened: Opened,
    pub(crate) clock: Arc<ManualClock>,
    live: BTreeMap<AccountId, Vec<(Kind, RecordId)>>,
    commits: u64,
}

impl Store {
    pub(crate) async fn new(url: &str) -> Self {
        let schema = Schema::new(vec![KindSchema::new(NOTE, "note"), KindSchema::new(FOLDER, "folder")]);
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_000)));
        let mut config = Config::new(url.parse().unwrap(), schema.unwrap());
        config.clock = clock.clone();
        let opened = open(config).await.unwrap();
        Self { opened, clock, live: BTreeMap::new(), commits: 0 }
    }

    pub(crate) async fn commit(&self, account: u32, changes: Vec<Change>) -> Vec<RecordId> {
        self.opened.records.commit(AccountId(account), Commit::of(changes)).await.unwrap().created
    }

    /// One commit with a few creates, updates and destroys.
    pub(crate) async fn commit_at_random(&mut self, rng: &mut ChaCha8Rng, accounts: u32) {
        let account = AccountId(rng.random_range(1..=accounts));
        self.commits += 1;
        let live = self.live.entry(account).or_default();
        let (mut changes, mut creates, mut changed) = (Vec::new(), Vec::new(), BTreeSet::new());
        for n in 0..rng.random_range(1..=4) {
            let kind = if rng.random_bool(0.5) { NOTE } else { FOLDER };
            let body = Body::new(format!("body {} {n}", self.commits));
            let chosen = (!live.is_empty()).then(|| live[rng.random_range(0..live.len())]);
            match chosen.filter(|_| rng.random_bool(0.6)) {
                Some((kind, id)) if changed.insert(id) => {
                    if rng.random_bool(0.5) {
                        live.retain(|(_, known)| *known != id);
                        changes.push(Change::Destroy { kind, id });
                    } else {
                        changes.push(Change::Update { kind, id, body: Some(body), properties: None });
                    }
                }
                _ => {
                    creates.push(kind);
                    changes.push(Change::Create { kind, body, properties: Properties::default() });
                }
            }
        }
        let committed = self.opened.records.commit(account, Commit::of(changes)).await.unwrap();
        self.live.entry(account).or_default().extend(creates.into_iter().zip(committed.created));
    }

    /// Removes the tombstones of everything that is destroyed by now.
    pub(crate) async fn clean(&self) {
        let now = Timestamp(self.clock.now().0 + 10 * restante_core::NANOS_PER_SECOND);
        self.clock.set(now);
        self.opened.upkeep.clean(now, 10_000).await.unwrap();
    }

    /// All records of the store.
    pub(crate) async fn copied(&self) -> Copied {
        let (mut copied, mut after) = (Copied::new(), None);
        loop {
            let page = self.opened.upkeep.dump(after, 100).await.unwrap();
            let Some(last) = page.last() else { return copied };
            after = Some(last.key);
            for dumped in page {
                let record = dumped.record.unwrap();
                copied.insert((dumped.key.account, record.kind, record.id), record.body.bytes);
            }
        }
    }
}

/// The outcome of a call between a follower and its store or handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFailure {
    Goes,
    Fails,
    FailsAfterwards,
    /// The process ends here: the call never returns.
    Crashes,
    CrashesAfterwards,
}

/// Draws failures at random, and notifies when one is a crash.
pub(crate) struct FailurePlan {
    rng: Mutex<ChaCha8Rng>,
    probability: Mutex<f64>,
    pub(crate) crashed: Notify,
}

impl FailurePlan {
    pub(crate) fn new(seed: u64, probability: f64) -> Arc<Self> {
        let rng = Mutex::new(ChaCha8Rng::seed_from_u64(seed));
        Arc::new(Self { rng, probability: Mutex::new(probability), crashed: Notify::new() })
    }

    pub(crate) fn stop_failing(&self) {
        *self.probability.lock() = 0.0;
    }

    fn draw(&self) -> InjectedFailure {
        let mut rng = self.rng.lock();
        if !rng.random_bool(*self.probability.lock()) {
            return InjectedFailure::Goes;
        }
        let others = [
            InjectedFailure::Fails,
            InjectedFailure::FailsAfterwards,
            InjectedFailure::Crashes,
            InjectedFailure::CrashesAfterwards,
        ];
        others[rng.random_range(0..others.len())]
    }

    async fn crash(&self) -> ! {
        self.crashed.notify_one();
        pending().await
    }

    /// Makes a call, with a failure that is drawn.
    async fn call<T, E>(
        &self,
        call: impl Future<Output = Result<T, E>>,
        error: impl Fn() -> E,
    ) -> Result<T, E> {
        let failure = self.draw();
        match failure {
            InjectedFailure::Fails => return Err(error()),
            InjectedFailure::Crashes => self.crash().await,
            InjectedFailure::Goes | InjectedFailure::FailsAfterwards | InjectedFailure::CrashesAfterwards => {
            }
        }
        let answer = call.await;
        match failure {
            InjectedFailure::FailsAfterwards => Err(error()),
            InjectedFailure::CrashesAfterwards => self.crash().await,
            _ => answer,
        }
    }
}

/// A feed that fails and crashes now and then.
pub(crate) struct FailingFeed {
    pub(crate) inner: Arc<dyn Feed>,
    pub(crate) failures: Arc<FailurePlan>,
    pub(crate) mirror: Arc<Mutex<Mirror>>,
}

fn unavailable() -> Error {
    Error::unavailable("the store is away")
}

#[async_trait]
impl Feed for FailingFeed {
    async fn touched(&self, after: Position, limit: usize) -> Result<Vec<Touched>, Error> {
        self.failures.call(self.inner.touched(after, limit), unavailable).await
    }

    async fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        self.failures.call(self.inner.follow(account, request), unavailable).await
    }

    async fn checkpoint(&self, follower: &str, accounts: &[AccountId]) -> Result<Checkpoint, Error> {
        self.failures.call(self.inner.checkpoint(follower, accounts), unavailable).await
    }

    async fn save(&self, follower: &str, checkpoint: &Checkpoint) -> Result<(), Error> {
        let saving = async {
            self.inner.save(follower, checkpoint).await?;
            self.mirror.lock().unsaved = 0;
            Ok(())
        };
        self.failures.call(saving, unavailable).await
    }

    async fn forget(&self, follower: &str) -> Result<(), Error> {
        self.inner.forget(follower).await
    }

    async fn followers(&self) -> Result<Vec<(String, Position)>, Error> {
        self.inner.followers().await
    }
}

/// The mirror that a handler has built from the changes.
#[derive(Default)]
pub(crate) struct Mirror {
    pub(crate) copied: Copied,
    /// The revision of the last page of each account in this run.
    pub(crate) seen: BTreeMap<AccountId, Revision>,
    /// How many changes each page had, in order.
    pub(crate) pages: Vec<usize>,
    /// Accounts that were reset, in order.
    pub(crate) resets: Vec<AccountId>,
    /// The number of changes that were handled since the last save.
    pub(crate) unsaved: usize,
}

/// Mirrors the store by its changes.
pub(crate) struct Mirroring {
    pub(crate) records: Arc<dyn Records>,
    pub(crate) mirror: Arc<Mutex<Mirror>>,
    pub(crate) failures: Arc<FailurePlan>,
    pub(crate) batch: usize,
}

impl Mirroring {
    async fn copy(&self, account: AccountId, changed: &[Changed]) {
        for Changed { kind, id } in changed {
            let found = self.records.get(account, &Get::whole(*kind, vec![*id])).await.unwrap();
            if let Some(record) = &found[0] {
                self.mirror.lock().copied.insert((account, *kind, *id), record.body.bytes.clone());
            }
        }
    }

    fn note(&self, changes: &Changes) {
        let count = changes.created.len() + changes.updated.len() + changes.destroyed.len();
        assert!(count > 0, "an empty page");
        let mut mirror = self.mirror.lock();
        mirror.pages.push(count);
        let is_one_revision = count > self.batch;
        assert!(is_one_revision || mirror.unsaved + count <= self.batch, "more than a batch is not saved");
    }
}

#[async_trait]
impl Handler for Mirroring {
    async fn handle(&mut self, account: AccountId, changes: &Changes) -> Result<(), HandlerError> {
        self.note(changes);
        let seen = self.mirror.lock().seen.get(&account).copied();
        assert!(seen < Some(changes.revision), "{account:?} was at {seen:?} before {:?}", changes.revision);
        let work = async {
            self.copy(account, &changes.created).await;
            self.copy(account, &changes.updated).await;
            let mut mirror = self.mirror.lock();
            for Changed { kind, id } in &changes.destroyed {
                mirror.copied.remove(&(account, *kind, *id));
            }
            Ok(())
        };
        self.failures.call(work, || HandlerError::new("the mirror fails")).await?;
        let mut mirror = self.mirror.lock();
        mirror.seen.insert(account, changes.revision);
        mirror.unsaved += changes.created.len() + changes.updated.len() + changes.destroyed.len();
        Ok(())
    }

    async fn reset(&mut self, account: AccountId) -> Result<(), HandlerError> {
        let work = async {
            let mut mirror = self.mirror.lock();
            mirror.copied.retain(|(known, _, _), _| *known != account);
            mirror.seen.remove(&account);
            mirror.resets.push(account);
            Ok(())
        };
        self.failures.call(work, || HandlerError::new("the mirror fails")).await
    }
}
