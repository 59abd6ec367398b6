//! Whatever happens to the process or to the index: when all commits are followed, searches find every email that exists
//! and no other.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fs::{self, OpenOptions},
    future::Future,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use libtest_mimic::{Arguments, Trial};
use prometheus_client::{encoding::text::encode, registry::Registry};
use restante_blobs::Blobs;
use restante_core::{BlobId, ErrorKind, Identity, SystemClock, nonzero};
use restante_disk::testing::run_or_ignore;
use restante_indexer::{Difference, Indexer, Metrics, compare};
use restante_mail::{email, kinds, mailbox, message};
use restante_records::{
    AccountId, Body, Change, Checkpoint, Commit, Config as RecordsConfig, Get, Opened as RecordStore,
    Position, Properties, RecordId, Revision, Schema,
};
use restante_search::{
    Batch, Begun, Config, Document, EngineUrl, Filter, Index, Opened as SearchIndex, Query, Report,
    SearchText, Series, Stats, Upkeep,
};
use tokio::{sync::oneshot, task::JoinHandle, time::sleep};

/// The metric that counts how often the index was begun.
const SERIES: &str = "restante_indexer_series_total ";

const A: AccountId = AccountId(1_001);
const B: AccountId = AccountId(1_002);

/// The variable with the URL of OpenSearch, as `dev/services/with opensearch` sets it.
const OPENSEARCH_URL: &str = "RESTANTE_OPENSEARCH_URL";

/// Each trial starts threads of its own: more of them at once would only wait for each other.
const TRIALS_AT_ONCE_MAX: usize = 4;

/// The engines of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Tantivy,
    Opensearch,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Self::Tantivy => "tantivy",
            Self::Opensearch => "opensearch",
        }
    }

    /// Why it isn't available here.
    fn missing(self) -> Option<String> {
        let is_missing = self == Self::Opensearch && opensearch_url().is_none();
        is_missing.then(|| format!("{OPENSEARCH_URL} is not set"))
    }
}

fn opensearch_url() -> Option<String> {
    env::var(OPENSEARCH_URL).ok().filter(|url| !url.is_empty())
}

/// The body of an answer of the OpenSearch.
fn ask_opensearch(method: &str, path: &str) -> String {
    let url = opensearch_url().unwrap();
    let address = url.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Records, blobs, and the existing emails by a word that is in no other email.
struct World {
    engine: Engine,
    /// The prefix of the indexes in OpenSearch.
    prefix: String,
    folder: tempfile::TempDir,
    records: RecordStore,
    blobs: Arc<dyn Blobs>,
    emails: BTreeMap<String, (AccountId, RecordId)>,
    /// The words of emails that were destroyed.
    gone: BTreeMap<String, AccountId>,
    delivered: u64,
    metrics: Metrics,
}

impl World {
    async fn new(engine: Engine) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let records = open_records("memory:").await;
        let blobs = restante_blobs::Config::new("memory:".parse().unwrap());
        let blobs = restante_blobs::open(blobs).await.unwrap().blobs;
        let (emails, gone) = (BTreeMap::new(), BTreeMap::new());
        let prefix = format!("t-{}", Identity::random());
        Self {
            engine,
            prefix,
            folder,
            records,
            blobs,
            emails,
            gone,
            delivered: 0,
            metrics: Metrics::default(),
        }
    }

    /// Stores an email with a unique word.
    async fn deliver(&mut self, account: AccountId) -> String {
        self.delivered += 1;
        let word = format!("word{}", self.delivered);
        let raw =
            format!("From: a@example.org\r\nSubject: number {}\r\n\r\nIt says {word}.\r\n", self.delivered);
        self.deliver_raw(account, &word, raw).await;
        word
    }

    /// Stores an email with this raw message, which contains this word.
    async fn deliver_raw(&mut self, account: AccountId, word: &str, raw: String) {
        let blob = self.blobs.put(&mut Bytes::from(raw.clone())).await.unwrap().id;
        let id = self.commit_email(account, &raw, blob).await;
        self.emails.insert(word.to_owned(), (account, id));
    }

    async fn commit_email(&self, account: AccountId, raw: &str, blob: BlobId) -> RecordId {
        let body = Body { bytes: message::read(raw.as_bytes()).row(), blobs: vec![blob] };
        let properties = Properties::default().with(email::RECEIVED, 1_000 + self.delivered);
        let create = Change::Create { kind: email::KIND, body, properties };
        self.records.records.commit(account, Commit::of([create])).await.unwrap().created[0]
    }

    async fn destroy(&mut self, word: &str) {
        let (account, id) = self.emails.remove(word).unwrap();
        let destroy = Change::Destroy { kind: email::KIND, id };
        self.records.records.commit(account, Commit::of([destroy])).await.unwrap();
        self.gone.insert(word.to_owned(), account);
    }

    /// Changes a keyword, as reading an email does.
    async fn update(&self, word: &str) {
        let (account, id) = self.emails[word];
        let properties = Properties::default().with(email::RECEIVED, 1_000).with(email::UNSEEN, 1);
        let update = Change::Update { kind: email::KIND, id, body: None, properties: Some(properties) };
        self.records.records.commit(account, Commit::of([update])).await.unwrap();
    }

    fn search_folder(&self) -> PathBuf {
        self.folder.path().join("search")
    }

    /// Opens the index, even if the tasks of an index that was dropped have not ended yet.
    async fn open_search(&self) -> SearchIndex {
        self.open_search_in(self.search_folder()).await
    }

    /// As [`World::open_search`], with the folder of an index in Tantivy.
    async fn open_search_in(&self, folder: PathBuf) -> SearchIndex {
        let mut config = Config::new(match self.engine {
            Engine::Tantivy => EngineUrl::Tantivy(folder),
            Engine::Opensearch => opensearch_url().unwrap().parse().unwrap(),
        });
        config.opensearch.prefix.clone_from(&self.prefix);
        config.opensearch.commit_ms = 15;
        config.opensearch.commit_documents = nonzero!(20);
        (config.opensearch.shards, config.opensearch.replicas) = (nonzero!(2), 0);
        config.opensearch.timeout_ms = nonzero!(30_000); // the server shares its processors with the tests
        config.tantivy.commit_ms = 15;
        config.tantivy.memory_bytes = 15_000_000;
        config.tantivy.commit_documents = 20.try_into().unwrap();
        loop {
            match restante_search::open(config.clone()).await {
                Err(error) if error.kind() == ErrorKind::Conflict => sleep(Duration::from_millis(2)).await,
                opened => return opened.unwrap(),
            }
        }
    }

    fn run(&self, search: &SearchIndex) -> Running {
        let indexer = Indexer::new(
            self.records.clone(),
            self.blobs.clone(),
            search.clone(),
            Arc::new(SystemClock),
            restante_follow::Metrics::default(),
            self.metrics.clone(),
        );
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(indexer.run(async { drop(stopped.await) }));
        Running { stop, task }
    }

    /// Waits until an account is followed to its end.
    async fn caught_up(&self, search: &SearchIndex, account: AccountId) {
        let revision = self.records.records.states(account).await.unwrap().revision;
        while query(search, account, Filter::And(vec![])).await.1 != revision.0 {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Expects that searches find every email that exists, and no other.
    async fn check(&self, search: &SearchIndex) {
        for account in [A, B] {
            self.caught_up(search, account).await;
        }
        for (word, (account, id)) in &self.emails {
            assert_eq!(find(search, *account, word).await, [id.0], "{word}");
        }
        for (word, account) in &self.gone {
            assert_eq!(find(search, *account, word).await, [0; 0], "{word}");
        }
        for account in [A, B] {
            let existing = self.emails.values().filter(|(of, _)| *of == account).count();
            assert_eq!(query(search, account, Filter::And(vec![])).await.0.len(), existing);
        }
    }

    /// Compares the emails of [`A`] with the index.
    async fn compare(&self, search: &SearchIndex) -> Difference {
        let ids: Vec<RecordId> =
            self.emails.values().filter(|(account, _)| *account == A).map(|(_, id)| *id).collect();
        let records = self.records.records.as_ref();
        let found = records.get(A, &Get::small(email::KIND, ids)).await.unwrap();
        let emails = found.into_iter().flatten().map(|record| (record.id, record.created)).collect();
        compare(records, search.search.as_ref(), A, &emails).await.unwrap()
    }

    /// Runs an indexer on an index until all emails are found in it, and stops it.
    async fn index(&self, search: &SearchIndex) {
        let running = self.run(search);
        self.check(search).await;
        running.stop().await;
    }

    /// How many emails were written to an index so far.
    fn indexed(&self) -> u64 {
        self.metric("restante_indexer_emails_total{outcome=\"indexed\"} ")
    }

    /// The names under which positions are saved with the records.
    async fn followers(&self) -> BTreeSet<String> {
        let followers = self.records.feed.followers().await.unwrap();
        followers.into_iter().map(|(name, _)| name).collect()
    }

    async fn save_position(&self, follower: &str, position: Position) {
        let checkpoint = Checkpoint { position, accounts: Vec::new() };
        self.records.feed.save(follower, &checkpoint).await.unwrap();
    }

    fn metric(&self, line: &str) -> u64 {
        let mut registry = Registry::default();
        self.metrics.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let found = text.lines().find_map(|known| known.strip_prefix(line)).unwrap();
        found.trim().parse().unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.engine != Engine::Opensearch {
            return;
        }
        let found = ask_opensearch("GET", &format!("/_cat/indices/{}*?h=index", self.prefix));
        for index in found.split_whitespace() {
            ask_opensearch("DELETE", &format!("/{index}"));
        }
    }
}

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), restante_records::Error>>,
}

impl Running {
    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }

    /// Ends it as the end of the process would.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

async fn open_records(url: &str) -> RecordStore {
    let config = RecordsConfig::new(url.parse().unwrap(), Schema::new(kinds()).unwrap());
    restante_records::open(config).await.unwrap()
}

/// The ids that match, and the revision.
async fn query(search: &SearchIndex, account: AccountId, filter: Filter) -> (Vec<u64>, u64) {
    loop {
        match search.search.query(account, &Query::new(filter.clone())).await {
            Ok(page) => return (page.hits.iter().map(|hit| hit.id.0).collect(), page.revision.0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        sleep(Duration::from_millis(5)).await;
    }
}

async fn find(search: &SearchIndex, account: AccountId, word: &str) -> Vec<u64> {
    query(search, account, Filter::Text(SearchText::parse(word).unwrap())).await.0
}

async fn eq5_what_was_imported_is_found_when_the_follower_caught_up(mut world: World) {
    for n in 0..150 {
        world.deliver(if n % 3 == 0 { B } else { A }).await;
    }
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    for _ in 0..30 {
        let word = world.deliver(A).await;
        while find(&search, A, &word).await.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
    }
    running.stop().await;
    world.check(&search).await;
    assert_eq!(world.metric(SERIES), 1);
    let page = search.search.query(A, &Query::new(Filter::And(vec![]))).await.unwrap();
    assert!(page.hits.iter().all(|hit| hit.received > 1_000), "receivedAt");
}

async fn an_index_is_compared_with_the_emails(mut world: World) {
    for _ in 0..30 {
        world.deliver(A).await;
    }
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    world.destroy("word1").await;
    world.check(&search).await;
    running.stop().await;
    assert_eq!(world.compare(&search).await, Difference::default());
    // The index lags behind: emails created or destroyed since are not differences.
    world.destroy("word2").await;
    world.deliver(A).await;
    assert_eq!(world.compare(&search).await, Difference::default());
    // An index that claims a later revision than it has, and that contains an email that doesn't exist.
    let state = world.records.records.states(A).await.unwrap().revision;
    let Begun { series, .. } = search.index.begin().await.unwrap();
    let document = Document { id: RecordId(999), ..Document::default() };
    let removed = vec![world.emails["word3"].1];
    let batch = Batch { removed: removed.clone(), documents: vec![document], revision: Some(state) };
    search.index.write(series, A, batch).await.unwrap();
    search.index.commit(series).await.unwrap();
    let missing = vec![removed[0], world.emails["word31"].1];
    let surplus = vec![RecordId(2), RecordId(999)];
    assert_eq!(world.compare(&search).await, Difference { missing, surplus });
}

async fn eq5_the_memory_engine_is_followed_as_well(mut world: World) {
    let search = restante_search::open(Config::new(EngineUrl::Memory)).await.unwrap();
    let running = world.run(&search);
    for _ in 0..20 {
        world.deliver(A).await;
    }
    world.deliver(B).await;
    world.destroy("word3").await;
    world.check(&search).await;
    running.stop().await;
}

async fn destroyed_emails_are_removed_and_updated_ones_are_not_read_again(mut world: World) {
    for _ in 0..30 {
        world.deliver(A).await;
    }
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    let bytes = world.metric("restante_indexer_bytes_total ");
    for number in 1..=30 {
        world.update(&format!("word{number}")).await;
    }
    for number in 1..=10 {
        world.destroy(&format!("word{number}")).await;
    }
    world.check(&search).await;
    assert_eq!(world.metric("restante_indexer_bytes_total "), bytes);
    running.stop().await;
}

async fn eq5_nothing_is_lost_when_the_process_ends_in_the_middle_of_commits(mut world: World) {
    for round in 0..10_u64 {
        let search = world.open_search().await;
        let running = world.run(&search);
        for n in 0..25 {
            let word = world.deliver(if n % 2 == 0 { A } else { B }).await;
            if n % 4 == 0 {
                world.destroy(&word).await;
            }
        }
        // Somewhere between the first and the last commit of the index.
        for _ in 0..round * 40 {
            tokio::task::yield_now().await;
        }
        running.kill().await;
        drop(search);
    }
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    running.stop().await;
    assert_eq!(world.metric("restante_indexer_emails_total{outcome=\"unreadable\"} "), 0);
}

async fn an_index_that_is_complete_is_not_written_again(mut world: World) {
    for _ in 0..40 {
        world.deliver(A).await;
    }
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    running.stop().await;
    search.upkeep.close().await.unwrap();
    drop(search);
    let indexed = world.metric("restante_indexer_emails_total{outcome=\"indexed\"} ");
    let search = world.open_search().await;
    let running = world.run(&search);
    world.deliver(B).await;
    world.check(&search).await;
    running.stop().await;
    assert_eq!(world.metric("restante_indexer_emails_total{outcome=\"indexed\"} "), indexed + 1);
}

/// An index that was complete, closed, and damaged.
async fn after(mut world: World, damage: impl Fn(&World)) {
    for n in 0..40 {
        let word = world.deliver(if n % 2 == 0 { A } else { B }).await;
        if n % 5 == 0 {
            world.destroy(&word).await;
        }
    }
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    running.stop().await;
    search.upkeep.close().await.unwrap();
    drop(search);
    damage(&world);
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    running.stop().await;
}

async fn eq5_everything_is_found_after_the_index_was_deleted(world: World) {
    after(world, |world| fs::remove_dir_all(world.search_folder()).unwrap()).await;
}

async fn eq5_everything_is_found_after_the_index_was_damaged(world: World) {
    after(world, |world| {
        for entry in fs::read_dir(world.search_folder().join("index")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "idx") {
                let mut bytes = fs::read(&path).unwrap();
                bytes[0] ^= 1;
                fs::write(&path, bytes).unwrap();
            }
        }
    })
    .await;
}

async fn eq5_everything_is_found_after_the_index_was_cut(world: World) {
    after(world, |world| {
        let meta = world.search_folder().join("index/meta.json");
        let length = fs::metadata(&meta).unwrap().len();
        OpenOptions::new().write(true).open(&meta).unwrap().set_len(length / 2).unwrap();
    })
    .await;
}

async fn eq5_everything_is_found_after_the_index_was_deleted_while_it_was_written(mut world: World) {
    let search = world.open_search().await;
    let running = world.run(&search);
    for _ in 0..30 {
        world.deliver(A).await;
    }
    world.check(&search).await;
    fs::remove_dir_all(world.search_folder().join("index")).unwrap();
    for _ in 0..30 {
        world.deliver(B).await;
    }
    world.check(&search).await;
    assert!(world.metric(SERIES) > 1);
    running.stop().await;
}

async fn eq5_everything_is_found_again_after_the_index_was_cleared(mut world: World) {
    let search = world.open_search().await;
    let running = world.run(&search);
    for _ in 0..30 {
        world.deliver(A).await;
    }
    for _ in 0..3 {
        world.check(&search).await;
        search.upkeep.clear().await.unwrap();
    }
    world.check(&search).await;
    running.stop().await;
}

async fn emails_that_come_back_by_a_restore_are_found(mut world: World) {
    let original = world.folder.path().join("records");
    world.records = open_records(&format!("lmdb:{}", original.display())).await;
    for _ in 0..5 {
        world.deliver(A).await;
    }
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    let backup = world.folder.path().join("backup");
    fs::create_dir(&backup).unwrap();
    world.records.upkeep.backup(&backup).await.unwrap();
    let before = world.emails.clone();
    world.destroy("word2").await;
    world.deliver(A).await;
    world.check(&search).await;
    running.stop().await;
    world.records.upkeep.close().await.unwrap();

    world.records = open_records(&format!("lmdb:{}", backup.display())).await;
    (world.emails, world.gone) = (before, BTreeMap::from([("word6".to_owned(), A)]));
    let running = world.run(&search);
    world.deliver(B).await;
    world.check(&search).await;
    running.stop().await;
}

async fn two_indexes_of_the_same_records_do_not_share_a_position(mut world: World) {
    for _ in 0..20 {
        world.deliver(A).await;
    }
    let one = world.open_search().await;
    world.index(&one).await;
    let of_one = world.followers().await;
    let other = world.open_search_in(world.folder.path().join("other")).await;
    world.index(&other).await;
    let all = world.followers().await;
    let of_other: Vec<&String> = all.difference(&of_one).collect();
    assert_eq!((of_one.len(), of_other.len()), (1, 1));

    // The other index lags behind, as while it is being built.
    world.save_position(of_other[0], Position::from_bytes([0, 0, 0, 0, 0, 0, 0, 1])).await;
    let indexed = world.indexed();
    world.index(&one).await;
    assert_eq!(world.indexed(), indexed);
}

async fn a_restore_is_noticed_by_each_index_of_the_same_records(mut world: World) {
    let original = world.folder.path().join("records");
    world.records = open_records(&format!("lmdb:{}", original.display())).await;
    for _ in 0..5 {
        world.deliver(A).await;
    }
    let one = world.open_search().await;
    let other = world.open_search_in(world.folder.path().join("other")).await;
    world.index(&one).await;
    world.index(&other).await;
    let backup = world.folder.path().join("backup");
    fs::create_dir(&backup).unwrap();
    world.records.upkeep.backup(&backup).await.unwrap();
    let before = world.emails.clone();
    world.destroy("word2").await;
    world.index(&one).await;
    world.index(&other).await;
    world.records.upkeep.close().await.unwrap();

    world.records = open_records(&format!("lmdb:{}", backup.display())).await;
    (world.emails, world.gone) = (before, BTreeMap::new());
    for _ in 0..5 {
        world.deliver(B).await;
    }
    world.index(&other).await; // its position is now beyond the one that the first index has
    let running = world.run(&one);
    world.caught_up(&one, B).await;
    assert_eq!(find(&one, A, "word2").await, [world.emails["word2"].1.0]);
    world.check(&one).await;
    running.stop().await;
}

/// Begins with a checkpoint that has no id of the index, and whose position with the records is named `indexer`.
async fn an_index_of_the_version_before_goes_on(mut world: World) {
    for _ in 0..20 {
        world.deliver(A).await;
    }
    let search = world.open_search().await;
    world.index(&search).await;
    let begun = search.index.begin().await.unwrap();
    let checkpoint = begun.checkpoint.unwrap();
    let (identity, position) = (&checkpoint[1..17], &checkpoint[checkpoint.len() - 8..]);
    let of_before = [&[1], identity, position].concat();
    search.index.save(begun.series, of_before.into()).await.unwrap();
    search.index.commit(begun.series).await.unwrap();
    for name in world.followers().await {
        world.records.feed.forget(&name).await.unwrap();
    }
    world.save_position("indexer", Position::from_bytes(position.try_into().unwrap())).await;

    let indexed = world.indexed();
    world.index(&search).await;
    assert_eq!(world.indexed(), indexed);
    // It has a name of its own now: an index that still saves its position under the old name does not affect it.
    world.save_position("indexer", Position::from_bytes([0, 0, 0, 0, 0, 0, 0, 1])).await;
    world.deliver(B).await;
    world.index(&search).await;
    assert_eq!(world.indexed(), indexed + 1);
}

async fn attachments_behind_the_last_text_are_not_read(mut world: World) {
    let part = |head: &str, body: &str| format!("--x\r\nContent-Type: {head}\r\n\r\n{body}\r\n");
    let pdf = part("application/pdf; name=\"drawing.pdf\"", &"JVBERi0xLjcK\r\n".repeat(100_000));
    let (first, last) = (part("text/plain", "It says early."), part("text/plain", "It says late."));
    let head = "Subject: parts\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n";
    world.deliver_raw(A, "early", format!("{head}{first}{pdf}--x--\r\n")).await;
    let search = world.open_search().await;
    world.index(&search).await;
    let id = world.emails["early"].1.0;
    assert_eq!(find(&search, A, "drawing").await, [id]);
    let bytes = world.metric("restante_indexer_bytes_total ");
    assert!(bytes < 1_000, "{bytes} bytes were read");

    world.deliver_raw(A, "late", format!("{head}{pdf}{last}--x--\r\n")).await;
    world.index(&search).await;
}

async fn the_index_of_other_records_is_replaced(mut world: World) {
    world.deliver(A).await;
    world.deliver(B).await;
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    running.stop().await;
    world.records = open_records("memory:").await;
    (world.emails, world.gone) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..3 {
        world.deliver(A).await; // so that its revision is not that of the other records
    }
    let running = world.run(&search);
    world.caught_up(&search, A).await;
    world.check(&search).await;
    running.stop().await;
}

async fn an_email_without_its_message_does_not_keep_others_from_being_found(mut world: World) {
    world.deliver(A).await;
    let missing = world.commit_email(A, "Subject: lost\r\n\r\nwords\r\n", BlobId([7; 32])).await;
    world.deliver(A).await;
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    assert!(!query(&search, A, Filter::And(vec![])).await.0.contains(&missing.0));
    assert_eq!(world.metric("restante_indexer_emails_total{outcome=\"unreadable\"} "), 1);
    running.stop().await;
}

async fn an_erased_account_leaves_the_index(mut world: World) {
    for _ in 0..10 {
        world.deliver(A).await;
    }
    world.deliver(B).await;
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    while world.records.upkeep.erase(A, 4).await.unwrap().has_more {}
    while !query(&search, A, Filter::And(vec![])).await.0.is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(query(&search, B, Filter::And(vec![])).await.0.len(), 1);
    running.stop().await;
}

async fn changes_of_other_kinds_bring_the_revision_forward(mut world: World) {
    world.deliver(A).await;
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    let body = Body::new("Inbox");
    let properties = Properties::default().with(mailbox::PARENT, 0);
    let create = Change::Create { kind: mailbox::KIND, body, properties };
    world.records.records.commit(A, Commit::of([create])).await.unwrap();
    world.check(&search).await;
    running.stop().await;
}

async fn an_index_is_built_beside_the_other_when_an_operator_asks_for_it(mut world: World) {
    let search = world.open_search().await;
    let running = world.run(&search);
    for n in 0..30 {
        world.deliver(if n % 3 == 0 { B } else { A }).await;
    }
    world.destroy("word2").await;
    for _ in 0..2 {
        world.check(&search).await;
        search.upkeep.rebuild().await.unwrap();
        world.deliver(A).await;
    }
    world.check(&search).await;
    running.stop().await;
    assert!(world.metric(SERIES) >= 3);
}

/// Searches for emails that were in the index before, again and again; no query may fail. Each email is found as long as the answer is
/// complete up to its revision; with an engine that builds an index beside the old one, every time. Returns how often one was found.
async fn find_until(
    engine: Engine,
    search: SearchIndex,
    emails: Vec<(String, AccountId, RecordId, Revision)>,
    stop: Arc<AtomicBool>,
) -> u64 {
    let mut found = 0;
    for (word, account, id, created) in emails.iter().cycle() {
        let filter = Filter::Text(SearchText::parse(word).unwrap());
        let page = search.search.query(*account, &Query::new(filter)).await.unwrap();
        let hits: Vec<RecordId> = page.hits.iter().map(|hit| hit.id).collect();
        if hits == [*id] {
            found += 1;
        } else {
            assert_eq!((engine, hits), (Engine::Tantivy, vec![]), "{word}");
            assert!(page.revision < *created, "{word} is of {created:?}: {:?}", page.revision);
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    found
}

async fn queries_are_answered_while_an_index_is_built_anew_under_writes(mut world: World) {
    let search = world.open_search().await;
    let running = world.run(&search);
    for n in 0..200 {
        world.deliver(if n % 3 == 0 { B } else { A }).await;
    }
    world.check(&search).await;
    let mut there = Vec::new();
    for (word, (account, id)) in &world.emails {
        let found = world.records.records.get(*account, &Get::small(email::KIND, vec![*id])).await.unwrap();
        there.push((word.clone(), *account, *id, found[0].as_ref().unwrap().created));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let finding = tokio::spawn(find_until(world.engine, search.clone(), there, stop.clone()));
    for _ in 0..3 {
        let series = world.metric(SERIES);
        let upkeep = search.upkeep.clone();
        let rebuild = tokio::spawn(async move { upkeep.rebuild().await });
        let mut written = 0;
        while written < 60 || !rebuild.is_finished() || world.metric(SERIES) == series {
            let word = world.deliver(if written % 4 == 0 { B } else { A }).await;
            if written % 5 == 0 {
                world.destroy(&word).await;
            } else {
                world.update(&word).await;
            }
            written += 1;
            sleep(Duration::from_millis(2)).await;
        }
        rebuild.await.unwrap().unwrap();
    }
    world.check(&search).await;
    stop.store(true, Ordering::Relaxed);
    assert!(finding.await.unwrap() > 100);
    running.stop().await;
}

/// Documents that OpenSearch has written and removed.
fn writes(prefix: &str) -> u64 {
    let stats = ask_opensearch("GET", &format!("/{prefix}/_stats/indexing?filter_path=_all.primaries"));
    let number = |field: &str| -> u64 {
        let (_, rest) = stats.split_once(&format!("\"{field}\":")).unwrap();
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    number("index_total") + number("delete_total")
}

async fn changes_of_keywords_write_nothing_to_the_index(mut world: World) {
    for _ in 0..10 {
        world.deliver(A).await;
    }
    let search = world.open_search().await;
    let running = world.run(&search);
    world.check(&search).await;
    let before = writes(&world.prefix);
    assert!(before >= 10);
    for _ in 0..3 {
        for number in 1..=10 {
            world.update(&format!("word{number}")).await;
        }
        world.check(&search).await; // which waits until the follower has seen them
    }
    assert_eq!(writes(&world.prefix), before);
    running.stop().await;
    search.upkeep.close().await.unwrap();
}

type Run = fn(World) -> Pin<Box<dyn Future<Output = ()>>>;

/// An index on a full disk: it accepts writes, and each commit fails, which ends the series.
struct Full {
    inner: SearchIndex,
    series: AtomicU64,
}

impl Full {
    fn error() -> restante_search::Error {
        restante_search::Error::new(ErrorKind::Full, "no space left")
    }
}

#[async_trait]
impl Index for Full {
    async fn begin(&self) -> Result<Begun, restante_search::Error> {
        self.series.fetch_add(1, Ordering::Relaxed);
        self.inner.index.begin().await
    }

    async fn ended(&self, series: Series) {
        self.inner.index.ended(series).await;
    }

    async fn write(
        &self,
        series: Series,
        account: AccountId,
        batch: Batch,
    ) -> Result<(), restante_search::Error> {
        self.inner.index.write(series, account, batch).await?;
        self.inner.index.begin().await.map(drop)
    }

    async fn erase(&self, series: Series, account: AccountId) -> Result<(), restante_search::Error> {
        self.inner.index.erase(series, account).await
    }

    async fn save(&self, series: Series, checkpoint: Bytes) -> Result<(), restante_search::Error> {
        self.inner.index.save(series, checkpoint).await
    }

    async fn revisions(
        &self,
        series: Series,
        accounts: &[AccountId],
    ) -> Result<Vec<Revision>, restante_search::Error> {
        self.inner.index.revisions(series, accounts).await
    }

    async fn commit(&self, _: Series) -> Result<(), restante_search::Error> {
        Err(Self::error())
    }
}

#[async_trait]
impl Upkeep for Full {
    fn health(&self) -> Result<(), restante_search::Error> {
        Err(Self::error())
    }

    async fn stats(&self) -> Result<Stats, restante_search::Error> {
        self.inner.upkeep.stats().await
    }

    async fn check(
        &self,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<Report, restante_search::Error> {
        self.inner.upkeep.check(progress).await
    }

    async fn clear(&self) -> Result<(), restante_search::Error> {
        self.inner.upkeep.clear().await
    }

    async fn close(&self) -> Result<(), restante_search::Error> {
        self.inner.upkeep.close().await
    }
}

/// Once, a write to memory counted as success: the indexer began again at once, and used a whole core.
async fn an_index_on_a_full_disk_is_tried_less_and_less_often(mut world: World) {
    world.deliver(A).await;
    let inner = restante_search::open(Config::new(EngineUrl::Memory)).await.unwrap();
    let full = Arc::new(Full { inner: inner.clone(), series: AtomicU64::new(0) });
    let search = SearchIndex { search: inner.search, index: full.clone(), upkeep: full.clone() };
    let running = world.run(&search);
    sleep(Duration::from_secs(2)).await;
    running.kill().await;
    let series = full.series.load(Ordering::Relaxed);
    // 0, 0.1, 0.3, 0.7 and 1.5 s after the start, later on a slow machine.
    assert!((2..=5).contains(&series), "{series} attempts within two seconds");
}

macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), (|world| Box::pin($name(world))) as Run)),*]
    };
}

fn trial(engine: Engine, name: &str, run: Run) -> Trial {
    Trial::ignorable_test(format!("{}::{name}", engine.name()), move || {
        run_or_ignore(engine.name(), engine.missing(), || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async { run(World::new(engine).await).await });
        })
    })
}

fn main() {
    let of_any = tests![
        eq5_what_was_imported_is_found_when_the_follower_caught_up,
        destroyed_emails_are_removed_and_updated_ones_are_not_read_again,
        eq5_nothing_is_lost_when_the_process_ends_in_the_middle_of_commits,
        an_index_that_is_complete_is_not_written_again,
        eq5_everything_is_found_again_after_the_index_was_cleared,
        emails_that_come_back_by_a_restore_are_found,
        an_index_of_the_version_before_goes_on,
        attachments_behind_the_last_text_are_not_read,
        the_index_of_other_records_is_replaced,
        an_email_without_its_message_does_not_keep_others_from_being_found,
        an_erased_account_leaves_the_index,
        changes_of_other_kinds_bring_the_revision_forward,
        an_index_is_compared_with_the_emails,
        an_index_is_built_beside_the_other_when_an_operator_asks_for_it,
        queries_are_answered_while_an_index_is_built_anew_under_writes,
    ];
    let of_tantivy = tests![
        eq5_the_memory_engine_is_followed_as_well,
        two_indexes_of_the_same_records_do_not_share_a_position,
        a_restore_is_noticed_by_each_index_of_the_same_records,
        an_index_on_a_full_disk_is_tried_less_and_less_often,
        eq5_everything_is_found_after_the_index_was_deleted,
        eq5_everything_is_found_after_the_index_was_damaged,
        eq5_everything_is_found_after_the_index_was_cut,
        eq5_everything_is_found_after_the_index_was_deleted_while_it_was_written,
    ];
    let of_opensearch = tests![changes_of_keywords_write_nothing_to_the_index];
    let mut trials = Vec::new();
    for engine in [Engine::Tantivy, Engine::Opensearch] {
        let own = match engine {
            Engine::Tantivy => of_tantivy.as_slice(),
            Engine::Opensearch => of_opensearch.as_slice(),
        };
        trials.extend(of_any.iter().chain(own).map(|(name, run)| trial(engine, name, *run)));
    }
    let mut arguments = Arguments::from_args();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(cores.min(TRIALS_AT_ONCE_MAX));
    libtest_mimic::run(&arguments, trials).exit();
}
