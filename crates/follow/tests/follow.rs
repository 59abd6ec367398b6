//! Promises of followers, on the reference model, with a clock that jumps.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use common::{FOLDER, FailingFeed, FailurePlan, Mirror, Mirroring, NOTE, Store, create};
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use restante_core::{Clock, ErrorKind};
use restante_follow::{Follower, Handler, HandlerError, Metrics, Settings};
use restante_records::{
    AccountId, Change, Changes, Commit, Committed, Error, Get, Opened, Page, Position, Query, Record,
    Records, Revision, States, Watch,
};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
    time::sleep,
};

/// Runs of the random test, each with its own seed.
const SEEDS: u64 = 60;
const NAME: &str = "mirror";

/// A store, a mirror of it, and the failures injected between them.
struct Scene {
    store: Store,
    mirror: Arc<Mutex<Mirror>>,
    failures: Arc<FailurePlan>,
    metrics: Metrics,
    settings: Settings,
}

impl Scene {
    async fn new(seed: u64, probability: f64, batch: usize) -> Self {
        Self::on("memory:", seed, probability, batch).await
    }

    async fn on(url: &str, seed: u64, probability: f64, batch: usize) -> Self {
        Self {
            store: Store::new(url).await,
            mirror: Arc::default(),
            failures: FailurePlan::new(seed, probability),
            metrics: Metrics::default(),
            settings: Settings { batch, ..Settings::new(NAME) },
        }
    }

    fn opened(&self) -> Opened {
        let feed = FailingFeed {
            inner: self.store.opened.feed.clone(),
            failures: self.failures.clone(),
            mirror: self.mirror.clone(),
        };
        Opened { feed: Arc::new(feed), ..self.store.opened.clone() }
    }

    fn mirroring(&self) -> Mirroring {
        Mirroring {
            records: self.store.opened.records.clone(),
            mirror: self.mirror.clone(),
            failures: self.failures.clone(),
            batch: self.settings.batch,
        }
    }

    fn follower(&self) -> Follower<Mirroring> {
        let mirroring = self.mirroring();
        let mut mirror = self.mirror.lock();
        mirror.seen.clear(); // after a restart pages may be repeated
        mirror.unsaved = 0;
        Follower::new(self.settings, &self.opened(), mirroring, self.store.clock.clone(), &self.metrics)
            .unwrap()
    }

    fn start(&self) -> Running {
        Running::start(self.follower())
    }

    async fn caught_up(&self) {
        let feed = &self.store.opened.feed;
        wait_until("the follower has caught up", async || {
            let saved = feed.checkpoint(NAME, &[]).await.unwrap().position;
            feed.touched(saved, 1).await.unwrap().is_empty()
        })
        .await;
    }

    async fn assert_mirrored(&self) {
        let copied = self.store.copied().await;
        assert_eq!(self.mirror.lock().copied, copied);
    }
}

/// A running follower.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    fn start<H: Handler + 'static>(follower: Follower<H>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(follower.run(async {
            let _ = stopped.await;
        }));
        Self { stop, task }
    }

    async fn stop(self) -> Result<(), Error> {
        let _ = self.stop.send(());
        self.task.await.unwrap()
    }

    /// Ends it as a crash of the process would.
    async fn crash(self) {
        self.task.abort();
        let ended = self.task.await;
        assert!(ended.is_err_and(|error| error.is_cancelled()), "a panic, or it had ended by itself");
    }
}

/// Waits in the test's paused time, which advances when all tasks wait.
async fn wait_until(what: &str, is_so: impl AsyncFn() -> bool) {
    for _ in 0..10_000 {
        if is_so().await {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("not so after long: {what}");
}

async fn follow_through_troubles(seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let batch = [1, 2, 7, 50][rng.random_range(0..4)];
    let mut scene = Scene::new(seed, 0.05, batch).await;
    for _ in 0..rng.random_range(3..15) {
        let running = scene.start();
        for _ in 0..rng.random_range(0..40) {
            scene.store.commit_at_random(&mut rng, 5).await;
            if rng.random_bool(0.1) {
                scene.store.clean().await;
            }
            if rng.random_bool(0.3) {
                sleep(Duration::from_millis(rng.random_range(0..300))).await;
            }
        }
        let patience = Duration::from_millis(rng.random_range(0..5_000));
        let has_crashed = tokio::time::timeout(patience, scene.failures.crashed.notified()).await.is_ok();
        if has_crashed || rng.random_bool(0.5) {
            running.crash().await;
        } else {
            tokio::select! {
                _ = scene.failures.crashed.notified() => {}
                _ = running.stop() => {}
            }
        }
    }
    scene.failures.stop_failing();
    let running = scene.start();
    scene.caught_up().await;
    running.stop().await.unwrap();
    scene.assert_mirrored().await;
}

#[tokio::test(start_paused = true)]
async fn mirror_equals_store_after_failures_and_crashes() {
    for seed in 0..SEEDS {
        eprintln!("seed {seed}");
        follow_through_troubles(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pages_have_at_most_a_batch_but_for_a_large_revision() {
    let scene = Scene::new(0, 0.0, 10).await;
    for n in 0..25 {
        scene.store.commit(1, vec![create(NOTE, format!("single {n}"))]).await;
    }
    scene.store.commit(1, (0..30).map(|n| create(FOLDER, format!("together {n}"))).collect()).await;
    let running = scene.start();
    scene.caught_up().await;
    running.stop().await.unwrap();
    assert_eq!(scene.mirror.lock().pages, [10, 10, 5, 30]);
    scene.assert_mirrored().await;
}

#[tokio::test(start_paused = true)]
async fn no_more_than_a_batch_comes_again_after_a_crash() {
    let scene = Scene::new(0, 0.0, 8).await;
    for account in 1..=6 {
        for n in 0..7 {
            scene.store.commit(account, vec![create(NOTE, format!("{n}"))]).await;
        }
    }
    // The pages have 7 changes, then 1, then 6. The handler never returns from the fourth, which has 2.
    let handler = Stalling { pages: 3, stalled: Arc::default(), release: Arc::default() };
    let stalled = handler.stalled.clone();
    let running = Running::start(
        Follower::new(scene.settings, &scene.opened(), handler, scene.store.clock.clone(), &scene.metrics)
            .unwrap(),
    );
    stalled.notified().await;
    running.crash().await;
    let accounts: Vec<AccountId> = (1..=6).map(AccountId).collect();
    let saved = scene.store.opened.feed.checkpoint(NAME, &accounts).await.unwrap();
    let noted: u64 = saved.accounts.iter().map(|(_, revision)| revision.0).sum();
    assert_eq!(noted, 8, "the first two made a batch and were saved; the 8 changes after them come again");
}

/// Handles some pages and then waits until it is released.
struct Stalling {
    pages: usize,
    stalled: Arc<Notify>,
    release: Arc<Notify>,
}

#[async_trait]
impl Handler for Stalling {
    async fn handle(&mut self, _: AccountId, _: &Changes) -> Result<(), HandlerError> {
        if self.pages == 0 {
            self.stalled.notify_one();
            self.release.notified().await;
        } else {
            self.pages -= 1;
        }
        Ok(())
    }

    async fn reset(&mut self, _: AccountId) -> Result<(), HandlerError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn stop_finishes_the_current_page_and_saves_it() {
    let scene = Scene::new(0, 0.0, 2).await;
    for n in 0..9 {
        scene.store.commit(1, vec![create(NOTE, format!("{n}"))]).await;
    }
    let handler = Stalling { pages: 1, stalled: Arc::default(), release: Arc::default() };
    let (stalled, release) = (handler.stalled.clone(), handler.release.clone());
    let running = Running::start(
        Follower::new(scene.settings, &scene.opened(), handler, scene.store.clock.clone(), &scene.metrics)
            .unwrap(),
    );
    stalled.notified().await;
    let Running { stop, task } = running;
    stop.send(()).unwrap();
    release.notify_one();
    task.await.unwrap().unwrap();
    let saved = scene.store.opened.feed.checkpoint(NAME, &[AccountId(1)]).await.unwrap();
    assert_eq!(saved.accounts, [(AccountId(1), Revision(4))], "the second page of two");
    assert_eq!(saved.position, Position::default(), "the account is not at its end");
}

/// Fails for one account as long as that is set, and counts the attempts.
struct Picky {
    refused: Arc<Mutex<Option<AccountId>>>,
    attempts: Arc<Mutex<u32>>,
    inner: Mirroring,
}

#[async_trait]
impl Handler for Picky {
    async fn handle(&mut self, account: AccountId, changes: &Changes) -> Result<(), HandlerError> {
        if *self.refused.lock() == Some(account) {
            *self.attempts.lock() += 1;
            return Err(HandlerError::new("no"));
        }
        self.inner.handle(account, changes).await
    }

    async fn reset(&mut self, account: AccountId) -> Result<(), HandlerError> {
        self.inner.reset(account).await
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_that_fails_waits_while_others_continue() {
    let scene = Scene::new(0, 0.0, 4).await;
    let inner = scene.mirroring();
    let (refused, attempts) = (Arc::new(Mutex::new(Some(AccountId(1)))), Arc::new(Mutex::new(0)));
    let picky = Picky { refused: refused.clone(), attempts: attempts.clone(), inner };
    let opened = scene.opened();
    let running = Running::start(
        Follower::new(scene.settings, &opened, picky, scene.store.clock.clone(), &scene.metrics).unwrap(),
    );
    for n in 0..5 {
        for account in [1, 2, 3] {
            scene.store.commit(account, vec![create(NOTE, format!("{n}"))]).await;
        }
        sleep(Duration::from_millis(10)).await;
    }
    wait_until("the others are followed", async || scene.mirror.lock().copied.len() == 10).await;
    sleep(Duration::from_secs(3_600)).await;
    let tried = *attempts.lock();
    assert!((30..90).contains(&tried), "{tried} attempts in an hour: once a minute after the first");
    assert_eq!(
        opened.feed.checkpoint(NAME, &[]).await.unwrap().position,
        Position::default(),
        "it stays before the account"
    );

    *refused.lock() = None;
    scene.caught_up().await;
    running.stop().await.unwrap();
    scene.assert_mirrored().await;
}

/// Handles pages slowly.
struct Slow(Picky);

#[async_trait]
impl Handler for Slow {
    async fn handle(&mut self, account: AccountId, changes: &Changes) -> Result<(), HandlerError> {
        sleep(Duration::from_millis(10)).await;
        self.0.handle(account, changes).await
    }

    async fn reset(&mut self, account: AccountId) -> Result<(), HandlerError> {
        self.0.reset(account).await
    }
}

/// With steady commits there is always other work, which must not delay the retries.
#[tokio::test(start_paused = true)]
async fn an_account_that_fails_is_tried_again_under_steady_commits() {
    let scene = Scene::new(0, 0.0, 4).await;
    let inner = scene.mirroring();
    let (refused, attempts) = (Arc::new(Mutex::new(Some(AccountId(1)))), Arc::new(Mutex::new(0)));
    let picky = Picky { refused: refused.clone(), attempts: attempts.clone(), inner };
    scene.store.commit(1, vec![create(NOTE, "waits".into())]).await;
    let follower = Follower::new(
        scene.settings,
        &scene.opened(),
        Slow(picky),
        scene.store.clock.clone(),
        &scene.metrics,
    )
    .unwrap();
    let running = Running::start(follower);
    let commits = async {
        loop {
            scene.store.commit(2, vec![create(NOTE, "one more".into())]).await;
            sleep(Duration::from_millis(5)).await;
        }
    };
    let tried = wait_until("it is tried again", async || *attempts.lock() >= 3);
    tokio::select! {
        () = commits => {}
        () = tried => {}
    }
    *refused.lock() = None;
    scene.caught_up().await;
    running.stop().await.unwrap();
    scene.assert_mirrored().await;
}

/// While it handles a page of an account, it commits more to that account than the page has.
struct Feeding {
    account: AccountId,
    is_on: Arc<Mutex<bool>>,
    records: Arc<dyn Records>,
    inner: Picky,
}

#[async_trait]
impl Handler for Feeding {
    async fn handle(&mut self, account: AccountId, changes: &Changes) -> Result<(), HandlerError> {
        for n in 0..6 {
            if account == self.account && *self.is_on.lock() {
                self.records.commit(account, Commit::of([create(NOTE, format!("more {n}"))])).await.unwrap();
            }
        }
        sleep(Duration::from_millis(10)).await;
        self.inner.handle(account, changes).await
    }

    async fn reset(&mut self, account: AccountId) -> Result<(), HandlerError> {
        self.inner.reset(account).await
    }
}

/// The follower never reaches the end of this account; once, everything else waited for that: other commits,
/// and accounts to be tried again.
#[tokio::test(start_paused = true)]
async fn an_account_committed_to_faster_than_it_is_handled_delays_no_other() {
    let scene = Scene::new(0, 0.0, 4).await;
    let inner = scene.mirroring();
    let (refused, attempts) = (Arc::new(Mutex::new(Some(AccountId(3)))), Arc::new(Mutex::new(0)));
    let inner = Picky { refused: refused.clone(), attempts: attempts.clone(), inner };
    let is_on = Arc::new(Mutex::new(true));
    let records = scene.store.opened.records.clone();
    let feeding = Feeding { account: AccountId(1), is_on: is_on.clone(), records, inner };
    for account in [3, 1] {
        scene.store.commit(account, vec![create(NOTE, "first".into())]).await;
    }
    let opened = scene.opened();
    let running = Running::start(
        Follower::new(scene.settings, &opened, feeding, scene.store.clock.clone(), &scene.metrics).unwrap(),
    );
    let notes_of = |account| {
        let mirror = scene.mirror.lock();
        mirror.copied.keys().filter(|(of, ..)| *of == AccountId(account)).count()
    };
    wait_until("the one is under way", async || notes_of(1) > 100).await;
    for n in 0..3 {
        scene.store.commit(2, vec![create(NOTE, format!("{n}"))]).await;
        wait_until("another is followed", async || notes_of(2) == n + 1).await;
    }
    wait_until("the one that fails is tried again", async || *attempts.lock() >= 3).await;
    let seen = scene.mirror.lock().seen[&AccountId(1)].0 as i64;
    let revision = opened.records.states(AccountId(1)).await.unwrap().revision.0 as i64;
    assert!(revision - seen > 100, "it was not too fast");
    let begun = scene.store.clock.now();
    scene.store.clock.set(begun.plus_seconds(30));
    let has_risen = async || lag(&scene.metrics) == 30.0;
    wait_until("the lag is the age of the first commit of the one that fails", has_risen).await;
    for waiting in ["backoff", "lagging"] {
        let name = format!("restante_follow_{waiting}_accounts{{follower=\"mirror\"}}");
        assert_eq!(value(&scene.metrics, &name), 1, "{waiting}");
    }
    *refused.lock() = None;
    *is_on.lock() = false;
    scene.caught_up().await;
    running.stop().await.unwrap();
    scene.assert_mirrored().await;
    for waiting in ["backoff", "lagging"] {
        let name = format!("restante_follow_{waiting}_accounts{{follower=\"mirror\"}}");
        assert_eq!(value(&scene.metrics, &name), 0, "{waiting}");
    }
}

#[tokio::test(start_paused = true)]
async fn more_accounts_that_take_several_turns_than_wait_at_once_are_followed() {
    let scene = Scene::new(0, 0.0, 1).await;
    for account in 1..=150 {
        for n in 0..40 {
            scene.store.commit(account, vec![create(NOTE, format!("{n}"))]).await;
        }
    }
    let running = scene.start();
    wait_until("some are done", async || scene.mirror.lock().copied.len() > 1_000).await;
    running.crash().await; // accounts in progress continue where they were, or begin again
    let running = scene.start();
    scene.caught_up().await;
    running.stop().await.unwrap();
    scene.assert_mirrored().await;
}

/// Handles some pages, and refuses all later ones.
struct Tiring {
    pages: u32,
    refused: Arc<Mutex<u32>>,
}

#[async_trait]
impl Handler for Tiring {
    async fn handle(&mut self, _: AccountId, _: &Changes) -> Result<(), HandlerError> {
        if self.pages > 0 {
            self.pages -= 1;
            return Ok(());
        }
        *self.refused.lock() += 1;
        Err(HandlerError::new("refused"))
    }

    async fn reset(&mut self, _: AccountId) -> Result<(), HandlerError> {
        Ok(())
    }
}

/// Otherwise a hanging handler would be waited for once per lagging account.
#[tokio::test(start_paused = true)]
async fn all_that_are_behind_wait_when_everything_fails() {
    let scene = Scene::new(0, 0.0, 1).await;
    for account in 1..=64 {
        for n in 0..40 {
            scene.store.commit(account, vec![create(NOTE, format!("{n}"))]).await;
        }
    }
    let refused = Arc::new(Mutex::new(0));
    let tiring = Tiring { pages: 64 * 16, refused: refused.clone() };
    let running = Running::start(
        Follower::new(scene.settings, &scene.opened(), tiring, scene.store.clock.clone(), &scene.metrics)
            .unwrap(),
    );
    wait_until("it is tired", async || *refused.lock() > 0).await;
    assert_eq!(*refused.lock(), 16, "as many as wait for another attempt");
    for (waiting, count) in [("backoff", 16), ("lagging", 48)] {
        let name = format!("restante_follow_{waiting}_accounts{{follower=\"mirror\"}}");
        assert_eq!(value(&scene.metrics, &name), count, "{waiting}");
    }
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hanging_handler_is_cancelled_and_counted() {
    let scene = Scene::new(0, 0.0, 4).await;
    scene.store.commit(1, vec![create(NOTE, "one".into())]).await;
    let release = Arc::new(Notify::new());
    let handler = Stalling { pages: 0, stalled: Arc::default(), release: release.clone() };
    let running = Running::start(
        Follower::new(scene.settings, &scene.opened(), handler, scene.store.clock.clone(), &scene.metrics)
            .unwrap(),
    );
    let errors = r#"restante_follow_errors_total{follower="mirror",source="handler"}"#;
    wait_until("it is cancelled", async || value(&scene.metrics, errors) == 1).await;
    release.notify_one();
    scene.caught_up().await;
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn all_waits_when_everything_fails() {
    let mut scene = Scene::new(0, 0.0, 4).await;
    for account in 1..=100 {
        scene.store.commit(account, vec![create(NOTE, format!("{account}"))]).await;
    }
    let attempts = Arc::new(Mutex::new(0));
    struct Refusing(Arc<Mutex<u32>>);
    #[async_trait]
    impl Handler for Refusing {
        async fn handle(&mut self, _: AccountId, _: &Changes) -> Result<(), HandlerError> {
            *self.0.lock() += 1;
            Err(HandlerError::new("refused"))
        }

        async fn reset(&mut self, _: AccountId) -> Result<(), HandlerError> {
            Ok(())
        }
    }
    let refusing = Refusing(attempts.clone());
    let running = Running::start(
        Follower::new(scene.settings, &scene.opened(), refusing, scene.store.clock.clone(), &scene.metrics)
            .unwrap(),
    );
    sleep(Duration::from_millis(50)).await;
    assert_eq!(*attempts.lock(), 16, "so many are tried, and the others not at all");
    running.stop().await.unwrap();

    scene.metrics = Metrics::default();
    let running = scene.start();
    scene.caught_up().await;
    running.stop().await.unwrap();
    scene.assert_mirrored().await;
}

#[tokio::test(start_paused = true)]
async fn an_account_whose_history_is_removed_begins_from_zero_page_by_page() {
    let scene = Scene::new(0, 0.0, 3).await;
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.extend(scene.store.commit(1, vec![create(NOTE, format!("{n}"))]).await);
    }
    let running = scene.start();
    scene.caught_up().await;
    running.stop().await.unwrap();
    assert_eq!(scene.mirror.lock().resets, [AccountId(1)], "what was never followed begins from zero");

    scene.store.commit(1, vec![Change::Destroy { kind: NOTE, id: ids[4] }]).await;
    scene.store.clean().await;
    let running = scene.start();
    scene.caught_up().await;
    running.stop().await.unwrap();
    assert_eq!(scene.mirror.lock().resets, [AccountId(1); 2], "once, although the floor is above most pages");
    scene.assert_mirrored().await;
}

#[tokio::test(start_paused = true)]
async fn rebuild_resets_and_passes_everything() {
    let mut scene = Scene::new(0, 0.0, 5).await;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..60 {
        scene.store.commit_at_random(&mut rng, 3).await;
    }
    let running = scene.start();
    scene.caught_up().await;
    running.stop().await.unwrap();

    scene.mirror.lock().resets.clear();
    let lost = scene.mirror.lock().copied.pop_first();
    assert!(lost.is_some());
    let mut follower = scene.follower();
    follower.rebuild().await.unwrap();
    let running = Running::start(follower);
    scene.caught_up().await;
    running.stop().await.unwrap();
    let mut resets = scene.mirror.lock().resets.clone();
    resets.sort();
    assert_eq!(resets, [AccountId(1), AccountId(2), AccountId(3)]);
    scene.assert_mirrored().await;
}

/// Records whose commits are not announced.
struct Silent(Arc<dyn Records>, Arc<dyn Records>);

#[async_trait]
impl Records for Silent {
    async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        self.0.commit(account, commit).await
    }

    async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        self.0.get(account, get).await
    }

    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        self.0.query(account, query).await
    }

    async fn count(&self, account: AccountId, query: &Query) -> Result<restante_records::Count, Error> {
        self.0.count(account, query).await
    }

    async fn changes(
        &self,
        account: AccountId,
        since: &restante_records::ChangesSince,
    ) -> Result<Changes, Error> {
        self.0.changes(account, since).await
    }

    async fn states(&self, account: AccountId) -> Result<States, Error> {
        self.0.states(account).await
    }

    fn watch(&self) -> Watch {
        self.1.watch()
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_announced_is_found_by_looking() {
    let mut scene = Scene::new(0, 0.0, 5).await;
    let other = Store::new("memory:").await;
    let silent = Silent(scene.store.opened.records.clone(), other.opened.records.clone());
    scene.store.opened.records = Arc::new(silent);
    let running = scene.start();
    sleep(Duration::from_secs(1)).await;
    scene.store.commit(1, vec![create(NOTE, "unheard".into())]).await;
    scene.caught_up().await;
    drop(other); // and the watch ends: polling continues
    scene.store.commit(1, vec![create(NOTE, "unheard too".into())]).await;
    scene.caught_up().await;
    running.stop().await.unwrap();
    scene.assert_mirrored().await;
}

/// Waits less than the polling interval.
async fn soon(what: &str, is_so: impl Future<Output = ()>) {
    let in_time = tokio::time::timeout(Duration::from_secs(5), is_so).await;
    assert!(in_time.is_ok(), "not before it looked by itself: {what}");
}

#[tokio::test(start_paused = true)]
async fn a_commit_wakes_the_follower() {
    let scene = Scene::new(0, 0.0, 5).await;
    let running = scene.start();
    sleep(Duration::from_secs(1)).await;
    scene.store.commit(1, vec![create(NOTE, "heard".into())]).await;
    soon("the commit is followed", scene.caught_up()).await;
    for n in 0..3_000 {
        scene.store.commit(2, vec![create(NOTE, format!("{n}"))]).await; // more than the announcements that may wait
    }
    soon("all of them are followed", scene.caught_up()).await;
    running.stop().await.unwrap();
    scene.assert_mirrored().await;
}

/// In an earlier version each commit of a busy server cost a read of the feed, a page, and a save.
#[tokio::test(start_paused = true)]
async fn commits_within_the_time_of_gathering_are_handled_together() {
    let mut scene = Scene::new(0, 0.0, 100).await;
    scene.settings.gather = Duration::from_millis(50);
    let pages = Arc::new(Mutex::new(Vec::new()));
    let counting = Counting { pages: pages.clone(), inner: scene.mirroring() };
    let opened = scene.opened();
    let running = Running::start(
        Follower::new(scene.settings, &opened, counting, scene.store.clock.clone(), &scene.metrics).unwrap(),
    );
    sleep(Duration::from_secs(1)).await;
    for n in 0..100 {
        scene.store.commit(1, vec![create(NOTE, format!("{n}"))]).await;
        sleep(Duration::from_millis(5)).await;
    }
    soon("all of them are followed", scene.caught_up()).await;
    let sizes = std::mem::take(&mut *pages.lock());
    assert_eq!(sizes.iter().sum::<usize>(), 100);
    assert!(sizes.len() <= 12, "not one by one: {sizes:?}");
    // Commits that were announced while the follower worked don't cause another read without a new commit.
    for n in 0..3 {
        scene.store.commit(2, vec![create(NOTE, format!("{n}"))]).await;
        soon("it is followed", scene.caught_up()).await;
    }
    running.stop().await.unwrap();
    scene.assert_mirrored().await;
}

/// Counts the changes of each page.
struct Counting {
    pages: Arc<Mutex<Vec<usize>>>,
    inner: Mirroring,
}

#[async_trait]
impl Handler for Counting {
    async fn handle(&mut self, account: AccountId, changes: &Changes) -> Result<(), HandlerError> {
        self.pages.lock().push(changes.created.len() + changes.updated.len() + changes.destroyed.len());
        self.inner.handle(account, changes).await
    }

    async fn reset(&mut self, account: AccountId) -> Result<(), HandlerError> {
        self.inner.reset(account).await
    }
}

fn exported(metrics: &Metrics) -> String {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

fn value(metrics: &Metrics, name: &str) -> i64 {
    let text = exported(metrics);
    let line =
        text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn lag(metrics: &Metrics) -> f64 {
    let text = exported(metrics);
    let line = text.lines().find(|line| line.starts_with("restante_follow_lag_seconds{follower=\"mirror\"}"));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

/// New commits move an account to the end of the feed, but the change that it waits with is as old as before.
#[tokio::test(start_paused = true)]
async fn the_lag_of_an_account_that_fails_is_counted_from_its_first_commit() {
    let scene = Scene::new(0, 0.0, 4).await;
    let (refused, attempts) = (Arc::new(Mutex::new(Some(AccountId(1)))), Arc::new(Mutex::new(0)));
    let picky = Picky { refused: refused.clone(), attempts, inner: scene.mirroring() };
    let clock = scene.store.clock.clone();
    let follower = Follower::new(scene.settings, &scene.opened(), picky, clock.clone(), &scene.metrics);
    let running = Running::start(follower.unwrap());
    let begun = clock.now();
    for n in 0..6 {
        clock.set(begun.plus_seconds(10 * n));
        for account in [1, 2] {
            scene.store.commit(account, vec![create(NOTE, format!("{n}"))]).await;
        }
        let seconds = 10.0 * n as f64;
        wait_until("the others are followed", async || scene.mirror.lock().copied.len() == n as usize + 1)
            .await;
        wait_until("the lag has risen", async || lag(&scene.metrics) == seconds).await;
    }
    *refused.lock() = None;
    scene.caught_up().await;
    wait_until("the lag is gone", async || lag(&scene.metrics) == 0.0).await;
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_erased_account_is_reset() {
    let scene = Scene::new(0, 0.0, 3).await;
    for account in [1, 2] {
        scene.store.commit(account, (0..5).map(|n| create(NOTE, format!("{n}"))).collect()).await;
    }
    let running = scene.start();
    scene.caught_up().await;
    scene.mirror.lock().resets.clear();
    while scene.store.opened.upkeep.erase(AccountId(1), 2).await.unwrap().has_more {
        scene.caught_up().await;
    }
    scene.caught_up().await;
    running.stop().await.unwrap();
    assert_eq!(scene.mirror.lock().resets, [AccountId(1); 2], "when it begins and when it is done");
    scene.assert_mirrored().await;
    assert_eq!(scene.mirror.lock().copied.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn metrics_have_lag_changes_and_errors() {
    let scene = Scene::new(0, 0.0, 5).await;
    let begun = scene.store.clock.now();
    for account in 1..=3 {
        scene.store.commit(account, vec![create(NOTE, "one".into()), create(NOTE, "two".into())]).await;
        scene.store.clock.set(begun.plus_seconds(4 * i64::from(account)));
    }
    let stalled = Arc::new(Notify::new());
    let handler = Stalling { pages: 0, stalled: stalled.clone(), release: Arc::default() };
    let running = Running::start(
        Follower::new(scene.settings, &scene.opened(), handler, scene.store.clock.clone(), &scene.metrics)
            .unwrap(),
    );
    stalled.notified().await;
    let metrics = &scene.metrics;
    assert_eq!(lag(metrics), 12.0, "of the first account, which waits longest");
    assert_eq!(value(metrics, r#"restante_follow_changes_total{follower="mirror"}"#), 0);
    assert_eq!(value(metrics, r#"restante_follow_errors_total{follower="mirror",source="records"}"#), 0);
    assert_eq!(value(metrics, r#"restante_follow_errors_total{follower="mirror",source="handler"}"#), 0);
    running.crash().await;

    let running = scene.start();
    scene.caught_up().await;
    running.stop().await.unwrap();
    assert_eq!(lag(metrics), 0.0);
    assert_eq!(value(metrics, r#"restante_follow_changes_total{follower="mirror"}"#), 6);
    assert_eq!(
        value(metrics, r#"restante_follow_resets_total{follower="mirror"}"#),
        4,
        "one in the run that crashed"
    );
}

#[tokio::test(start_paused = true)]
async fn a_closed_store_is_tried_again_and_counted() {
    let scene = Scene::new(0, 0.0, 5).await;
    scene.store.commit(1, vec![create(NOTE, "one".into())]).await;
    scene.store.opened.upkeep.close().await.unwrap();
    let running = scene.start();
    sleep(Duration::from_secs(600)).await;
    let errors = value(&scene.metrics, r#"restante_follow_errors_total{follower="mirror",source="records"}"#);
    assert!((10..30).contains(&errors), "{errors} attempts in ten minutes: once a minute after the first");
    let error = running.stop().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "what was handed on could not be saved");
}

#[tokio::test]
async fn the_lmdb_engine_is_followed_while_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut scene = Scene::on(&format!("lmdb:{}", folder.path().display()), 0, 0.0, 7).await;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for _ in 0..3 {
        let running = scene.start();
        for commit in 0..50 {
            scene.store.commit_at_random(&mut rng, 4).await;
            if commit % 20 == 10 {
                scene.store.clean().await;
            }
        }
        running.stop().await.unwrap(); // somewhere in between
    }
    let running = scene.start();
    scene.caught_up().await;
    running.stop().await.unwrap();
    scene.assert_mirrored().await;
}

#[tokio::test]
async fn wrong_settings_are_refused() {
    let scene = Scene::new(0, 0.0, 5).await;
    for settings in [
        Settings { batch: 0, ..Settings::new(NAME) },
        Settings { batch: 4_097, ..Settings::new(NAME) },
        Settings::new(""),
        Settings::new("a name that is longer than any name of a follower should ever have to be"),
    ] {
        let handler = Stalling { pages: 0, stalled: Arc::default(), release: Arc::default() };
        let refused =
            Follower::new(settings, &scene.opened(), handler, scene.store.clock.clone(), &scene.metrics);
        assert!(refused.is_err_and(|error| error.kind() == ErrorKind::Invalid), "{settings:?}");
    }
}
