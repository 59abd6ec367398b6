//! Power cuts during commits, clean-up and backup: every commit that was acknowledged exists as a whole, also in every backup
//! that was finished.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::Path,
    sync::Arc,
    time::Duration,
};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use restante_core::{BlobId, Clock, ErrorKind, ManualClock, Timestamp};
use restante_power_cut::{Child, Cut, child, cuts, record};
use restante_records::{
    AccountId, Body, CHANGES_MAX, Change, ChangesSince, Checkpoint, Commit, Config, DUMP_RECORDS_MAX, Dumped,
    Index, IndexSchema, Kind, KindSchema, LmdbConfig, Opened, Position, Properties, Property, RESTORE_JUMP,
    RecordId, Revision, Schema, TOUCHED_MAX, open,
};
use tokio::{
    runtime::Runtime,
    time::{sleep, timeout},
};

const EMAIL: Kind = Kind(1);
const MAILBOX: Kind = Kind(2);
const IN: Property = Property(1);
const RECEIVED: Property = Property(2);
const HASH: Property = Property(3);

const ACCOUNTS: u32 = 3;
/// Commits of each account. The first two rounds have more than 512 bodies, so that a dictionary is made on the way.
const COMMITS: u64 = 96;
/// How often the store is opened while they are made.
const ROUNDS: u64 = 3;
/// The weight of creating a record against changing one of the existing: with this one each account has some hundred. A training
/// that begins late gets only those bodies that still exist, and makes no dictionary of a handful.
const NEW_WEIGHT: usize = 60;
/// What was destroyed more than this many commits of all accounts ago is forgotten.
const KEPT_COMMITS: i64 = 40;
const FOLLOWER: &str = "follower";
/// An account that is filled and erased again and again.
const ERASED: AccountId = AccountId(9);

fn schema() -> Schema {
    let email = KindSchema::new(EMAIL, "email")
        .property(IN, "mailbox")
        .property(RECEIVED, "received")
        .property(HASH, "hash")
        .index(IndexSchema::ordered(Index(1), "mailbox", &[IN, RECEIVED]))
        .index(IndexSchema::scattered(Index(2), "hash", &[HASH]));
    Schema::new(vec![email, KindSchema::new(MAILBOX, "mailbox")]).unwrap()
}

/// Small log files, so that they are switched and applied to LMDB many times.
async fn open_store(folder: &Path, log_bytes: u64, clock: Arc<dyn Clock>) -> Opened {
    let url = format!("lmdb:{}", folder.display()).parse().unwrap();
    let lmdb = LmdbConfig { log_bytes, ..LmdbConfig::default() };
    open(Config { lmdb, clock, ..Config::new(url, schema()) }).await.unwrap()
}

/// Writes an account: the same commits in the same order each time.
struct Author {
    account: AccountId,
    rng: ChaCha8Rng,
    live: Vec<(Kind, RecordId)>,
}

impl Author {
    fn new(account: u32) -> Self {
        Self { account: AccountId(account), rng: ChaCha8Rng::seed_from_u64(account.into()), live: Vec::new() }
    }

    async fn commit(&mut self, store: &Opened) -> Revision {
        let mut changes = Vec::new();
        let mut created = Vec::new();
        let mut changed = BTreeSet::new();
        for _ in 0..self.rng.random_range(1..20) {
            let chosen = self.rng.random_range(0..self.live.len() + NEW_WEIGHT);
            match self.live.get(chosen).copied() {
                Some((_, id)) if !changed.insert(id) => {}
                Some((kind, id)) if self.rng.random_bool(0.3) => {
                    self.live.retain(|(_, known)| *known != id);
                    changes.push(Change::Destroy { kind, id });
                }
                Some((kind, id)) => {
                    let body = self.rng.random_bool(0.5).then(|| self.body());
                    let properties = (kind == EMAIL).then(|| self.properties());
                    changes.push(Change::Update { kind, id, body, properties });
                }
                None => {
                    let kind = if self.rng.random_bool(0.9) { EMAIL } else { MAILBOX };
                    let properties = if kind == EMAIL { self.properties() } else { Properties::default() };
                    created.push(kind);
                    changes.push(Change::Create { kind, body: self.body(), properties });
                }
            }
        }
        if changes.is_empty() {
            created.push(MAILBOX);
            changes.push(Change::Create {
                kind: MAILBOX,
                body: self.body(),
                properties: Properties::default(),
            });
        }
        let committed = store.records.commit(self.account, Commit::of(changes)).await.unwrap();
        self.live.extend(created.into_iter().zip(committed.created));
        committed.revision
    }

    fn body(&mut self) -> Body {
        let words = ["restante", "subject", "from", "mailbox", "meeting", "\r\n", "received", "tomorrow"];
        let count = self.rng.random_range(5..60);
        let text: Vec<&str> = (0..count).map(|_| words[self.rng.random_range(0..words.len())]).collect();
        let blobs = if self.rng.random_bool(0.2) { vec![BlobId(self.rng.random())] } else { Vec::new() };
        Body { bytes: text.join(" ").into(), blobs }
    }

    fn properties(&mut self) -> Properties {
        let mut properties = Properties::default().with(RECEIVED, self.rng.random_range(0..1_000_u64));
        for _ in 0..self.rng.random_range(0..3) {
            properties = properties.with(IN, self.rng.random_range(1..5_u64));
        }
        properties.with(HASH, self.rng.random::<u64>())
    }
}

fn sync_folder(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// What is done while the recorder runs. It acknowledges
///
/// - `commit <account> <revision>`,
/// - `followed <position>`: a follower has saved this position,
/// - `gave <id>`: an account that will be erased has records up to this one, `erased <id>`: they are erased,
/// - `copying <n>` before a backup begins, `copied <n>` when it is finished.
async fn write(child: Arc<Child>, log_bytes: u64) {
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_000)));
    let backups = child.folder().join("backups");
    fs::create_dir(&backups).unwrap();
    sync_folder(child.folder());
    let mut authors: Vec<Author> = (1..=ACCOUNTS).map(Author::new).collect();
    for round in 0..ROUNDS {
        let store = open_store(&child.folder().join("records"), log_bytes, clock.clone()).await;
        let mut tasks = Vec::new();
        for mut author in authors.drain(..) {
            let (store, child, clock) = (store.clone(), child.clone(), clock.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..COMMITS / ROUNDS {
                    let revision = author.commit(&store).await;
                    child.acknowledge(&format!("commit {} {}", author.account.0, revision.0)).unwrap();
                    clock.set(Timestamp(clock.now().0 + restante_core::NANOS_PER_SECOND));
                }
                author
            }));
        }
        let upkeep = tokio::spawn(keep_up(store.clone(), child.clone(), clock.clone(), round));
        for task in tasks {
            authors.push(task.await.unwrap());
        }
        upkeep.await.unwrap();
        if round == 1 {
            wait_for_dictionary(&store).await;
            store.upkeep.close().await.unwrap(); // the other rounds end without it
        }
    }
}

/// Forgets, follows and copies while others commit.
async fn keep_up(store: Opened, child: Arc<Child>, clock: Arc<ManualClock>, round: u64) {
    for turn in 0..3 {
        let number = round * 10 + turn;
        let before = Timestamp(clock.now().0 - KEPT_COMMITS * restante_core::NANOS_PER_SECOND);
        store.upkeep.clean(before, 10_000).await.unwrap();

        let position = last_position(&store).await;
        let first = store.records.states(AccountId(1)).await.unwrap().revision;
        let second = store.records.states(AccountId(2)).await.unwrap().revision;
        let both = first.min(second); // the same in two rows, so that half a save would show
        let accounts = vec![(AccountId(1), both), (AccountId(2), both)];
        store.feed.save(FOLLOWER, &Checkpoint { position, accounts }).await.unwrap();
        child.acknowledge(&format!("followed {}", u64::from_be_bytes(position.to_bytes()))).unwrap();

        let creates = (0..20).map(|_| Change::Create {
            kind: MAILBOX,
            body: Body::new("to be erased"),
            properties: Properties::default(),
        });
        let given = store.records.commit(ERASED, Commit::of(creates)).await.unwrap().created;
        child.acknowledge(&format!("gave {}", given[19].0)).unwrap();
        assert!(!store.upkeep.erase(ERASED, usize::MAX).await.unwrap().has_more);
        child.acknowledge(&format!("erased {}", given[19].0)).unwrap();

        let folder = child.folder().join("backups").join(number.to_string());
        fs::create_dir(&folder).unwrap();
        sync_folder(&child.folder().join("backups"));
        child.acknowledge(&format!("copying {number}")).unwrap();
        store.upkeep.backup(&folder).await.unwrap();
        child.acknowledge(&format!("copied {number}")).unwrap();
    }
}

/// What must exist.
#[derive(Clone, Debug, Default)]
struct Acknowledged {
    revisions: BTreeMap<AccountId, Revision>,
    followed: Position,
    gave: u32,
    erased: u32,
    /// What was acknowledged when each backup began.
    copying: BTreeMap<u32, BTreeMap<AccountId, Revision>>,
    copied: Vec<u32>,
}

impl Acknowledged {
    fn before(cut: &Cut<'_>) -> Self {
        let mut all = Self::default();
        for text in cut.acknowledged() {
            let words: Vec<&str> = text.split(' ').collect();
            let number: u32 = words[1].parse().unwrap();
            match words[0] {
                "commit" => {
                    all.revisions.insert(AccountId(number), Revision(words[2].parse().unwrap()));
                }
                "gave" => all.gave = number,
                "erased" => all.erased = number,
                "followed" => all.followed = Position::from_bytes(u64::from(number).to_be_bytes()),
                "copying" => {
                    all.copying.insert(number, all.revisions.clone());
                }
                "copied" => all.copied.push(number),
                other => panic!("{other} was acknowledged"),
            }
        }
        all
    }
}

/// What was checked, so that a test that checks nothing fails.
#[derive(Debug, Default)]
struct Seen {
    commits: u64,
    changes: u64,
    forgotten: u64,
    copies: u64,
    /// Stores that had made a dictionary of their own.
    dictionaries: u64,
}

/// The reference model with the first commits of each account.
async fn model(revisions: &BTreeMap<AccountId, Revision>) -> Opened {
    let model = open(Config::new("memory:".parse().unwrap(), schema())).await.unwrap();
    for (account, revision) in revisions {
        let mut author = Author::new(account.0);
        for _ in 0..revision.0 {
            author.commit(&model).await;
        }
    }
    model
}

async fn has_dictionary(store: &Opened) -> bool {
    let figures = store.upkeep.stats().await.unwrap().engine;
    figures.iter().any(|(name, figure)| name == "dictionary_bytes" && *figure > 0)
}

/// A close does not wait for a training, so this does.
async fn wait_for_dictionary(store: &Opened) {
    let made = async {
        while !has_dictionary(store).await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), made).await.expect("a dictionary is made");
}

async fn last_position(store: &Opened) -> Position {
    let touched = store.feed.touched(Position::default(), TOUCHED_MAX).await.unwrap();
    touched.last().map(|touched| touched.position).unwrap_or_default()
}

async fn dump(store: &Opened) -> Vec<Dumped> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.upkeep.dump(after, DUMP_RECORDS_MAX).await.unwrap();
        let Some(last) = page.last() else { return all };
        after = Some(last.key);
        all.extend(page);
    }
}

/// A store is sound, and has at least these revisions, and at most `spare` commits that were never acknowledged.
async fn check_store(
    folder: &Path,
    log_bytes: u64,
    least: &BTreeMap<AccountId, Revision>,
    spare: u64,
    restores: u64,
    seen: &mut Seen,
) -> Opened {
    let store =
        open_store(folder, log_bytes, Arc::new(ManualClock::new(Timestamp::from_seconds(5_000)))).await;
    let report = store.upkeep.check(&|_, _| {}).await.unwrap();
    assert_eq!(report.findings, []);
    seen.dictionaries += u64::from(has_dictionary(&store).await);

    let mut revisions = BTreeMap::new();
    for account in (1..=ACCOUNTS).map(AccountId) {
        let revision = store.records.states(account).await.unwrap().revision;
        let revision = Revision(revision.0 - restores * RESTORE_JUMP);
        let least = least.get(&account).copied().unwrap_or_default();
        assert!(revision >= least, "{account:?} has {revision:?}, and {least:?} was acknowledged");
        assert!(
            revision.0 <= least.0 + spare,
            "{account:?} has {revision:?}, more than was written after {least:?}"
        );
        revisions.insert(account, revision);
        seen.commits += revision.0;
    }
    let model = model(&revisions).await;
    let (mut there, expected) = (dump(&store).await, dump(&model).await);
    there.retain(|dumped| dumped.key.account != ERASED);
    assert!(
        there == expected,
        "a commit is there in parts: {} records instead of {}",
        there.len(),
        expected.len()
    );
    let touched = store.feed.touched(Position::default(), TOUCHED_MAX).await.unwrap();
    let touched = touched.iter().filter(|touched| touched.account != ERASED);
    assert_eq!(touched.count(), revisions.values().filter(|revision| revision.0 > 0).count(), "each once");
    for (account, revision) in revisions {
        check_changes(&store, &model, account, revision, restores, seen).await;
    }
    store
}

/// The history returns what the model's returns, down to its floor.
async fn check_changes(
    store: &Opened,
    model: &Opened,
    account: AccountId,
    revision: Revision,
    restores: u64,
    seen: &mut Seen,
) {
    let mut is_forgotten = false;
    for since in (0..=revision.0).rev().step_by(3).map(Revision) {
        let asked = ChangesSince { kind: None, since, limit: CHANGES_MAX };
        let mut expected = model.records.changes(account, &asked).await.unwrap();
        expected.revision.0 += restores * RESTORE_JUMP;
        match store.records.changes(account, &asked).await {
            Ok(changes) => {
                assert!(!is_forgotten, "changes since {since:?} are known and later ones were forgotten");
                assert_eq!(changes, expected, "{account:?} since {since:?}");
                seen.changes += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                assert!(since < revision, "changes since now are none");
                is_forgotten = true;
            }
        }
    }
    seen.forgotten += u64::from(is_forgotten);
}

async fn check(cut: &Cut<'_>, log_bytes: u64, seen: &mut Seen) {
    let acknowledged = Acknowledged::before(cut);
    let folder = cut.folder().join("records");
    let store = check_store(&folder, log_bytes, &acknowledged.revisions, 1, 0, seen).await;
    let followed = store.feed.checkpoint(FOLLOWER, &[AccountId(1), AccountId(2)]).await.unwrap();
    assert!(followed.position >= acknowledged.followed, "what a follower has saved");
    assert_eq!(followed.accounts[0].1, followed.accounts[1].1, "both are saved together");

    let left: Vec<RecordId> = dump(&store)
        .await
        .iter()
        .filter(|dumped| dumped.key.account == ERASED)
        .map(|dumped| dumped.key.id)
        .collect();
    assert!(left.iter().all(|id| id.0 > acknowledged.erased.into()), "what was erased is back: {left:?}");
    store.upkeep.erase(ERASED, usize::MAX).await.unwrap();
    let create = Change::Create { kind: MAILBOX, body: Body::default(), properties: Properties::default() };
    let next = store.records.commit(ERASED, Commit::of([create])).await.unwrap().created[0];
    assert!(next.0 > acknowledged.gave.into(), "{next:?} was given before");
    assert_eq!(store.upkeep.check(&|_, _| {}).await.unwrap().findings, []);

    // It continues where it was, and what it stores stays.
    let before = store.records.states(AccountId(1)).await.unwrap().revision;
    let create =
        Change::Create { kind: MAILBOX, body: Body::new("after the cut"), properties: Properties::default() };
    let after = store.records.commit(AccountId(1), Commit::of([create])).await.unwrap().revision;
    assert_eq!(after, Revision(before.0 + 1));
    store.upkeep.close().await.unwrap();
    drop(store);
    let store = open_store(&folder, log_bytes, Arc::new(ManualClock::default())).await;
    assert_eq!(store.records.states(AccountId(1)).await.unwrap().revision, after);

    // One backup is enough, and the last is the least likely to be whole.
    if let Some(number) = acknowledged.copied.last() {
        let copy = cut.folder().join("backups").join(number.to_string());
        check_store(&copy, log_bytes, &acknowledged.copying[number], COMMITS, 1, seen).await;
        seen.copies += 1;
    }
}

fn run(test: &str, log_bytes: u64) {
    let runtime = Runtime::new().unwrap();
    if let Some(child) = child().unwrap() {
        return runtime.block_on(write(Arc::new(child), log_bytes));
    }
    let log = record(test).unwrap();
    let commits = log.acknowledged().filter(|text| text.starts_with("commit")).count() as u64;
    assert_eq!(commits, u64::from(ACCOUNTS) * COMMITS);
    for mapped in log.mapped() {
        assert!(mapped.ends_with("/lock.mdb"), "{mapped} is written by memory, and nobody records that");
    }
    let (cuts, mut seen) = (cuts(60), Seen::default());
    log.replay(cuts, 6, |cut| runtime.block_on(check(cut, log_bytes, &mut seen))).unwrap();
    if cuts < 30 {
        return; // too few to show what is tested
    }
    let cuts = cuts as u64;
    assert!(seen.commits > 20 * cuts && seen.changes > 5 * cuts, "too little was looked at: {seen:?}");
    assert!(
        seen.copies > cuts / 4 && seen.forgotten > 0 && seen.dictionaries > 0,
        "too little was looked at: {seen:?}"
    );
}

#[test]
fn commits_clean_up_and_backups_survive_power_cuts() {
    run("commits_clean_up_and_backups_survive_power_cuts", 32 << 10);
}

#[test]
fn commits_clean_up_and_backups_survive_power_cuts_without_a_commit_log() {
    run("commits_clean_up_and_backups_survive_power_cuts_without_a_commit_log", 0);
}

#[test]
fn a_store_whose_making_was_cut_off_is_made_again() {
    let runtime = Runtime::new().unwrap();
    let open_in = |folder: &Path| {
        let clock = Arc::new(ManualClock::default());
        runtime.block_on(open_store(&folder.join("records"), 32 << 10, clock))
    };
    if let Some(child) = child().unwrap() {
        drop(open_in(child.folder()));
        return child.acknowledge("made").unwrap();
    }
    let log = record("a_store_whose_making_was_cut_off_is_made_again").unwrap();
    log.replay(cuts(60), 6, |cut| {
        let store = open_in(cut.folder());
        let revision = runtime.block_on(Author::new(1).commit(&store));
        assert_eq!(revision, Revision(1));
    })
    .unwrap();
}
