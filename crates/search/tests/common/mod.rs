//! The engines under test, where their indexes are during a test, and helpers to write and to query.
#![allow(dead_code, reason = "not every test uses all of it")]

pub(crate) mod server;

use std::{env, future::Future, path::PathBuf, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use libtest_mimic::{Arguments, Trial};
use restante_core::{ErrorKind, Identity, nonzero};
use restante_disk::testing::run_or_ignore;
use restante_search::{
    AccountId, Batch, Config, Document, EngineUrl, Field, Filter, HeaderName, Opened, OpensearchConfig, Page,
    Query, RecordId, Revision, SearchText, Series, open,
};
use tokio::time::sleep;

pub(crate) const A: AccountId = AccountId(7);
pub(crate) const B: AccountId = AccountId(8);

/// The variable with the URL of OpenSearch, as `dev/services/with opensearch` sets it.
const OPENSEARCH_URL: &str = "RESTANTE_OPENSEARCH_URL";

/// Each trial writes and syncs: more of them at once would only wait for the disk.
const TRIALS_AT_ONCE_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Memory,
    Tantivy,
    /// It commits after each write.
    TantivyEager,
    Opensearch,
    /// It commits after each write.
    OpensearchEager,
}

impl Engine {
    pub(crate) const ALL: [Self; 5] =
        [Self::Memory, Self::Tantivy, Self::TantivyEager, Self::Opensearch, Self::OpensearchEager];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Tantivy => "tantivy",
            Self::TantivyEager => "tantivy-eager",
            Self::Opensearch => "opensearch",
            Self::OpensearchEager => "opensearch-eager",
        }
    }

    /// Whether its index is on a server.
    pub(crate) fn has_server(self) -> bool {
        matches!(self, Self::Opensearch | Self::OpensearchEager)
    }

    fn is_eager(self) -> bool {
        matches!(self, Self::TantivyEager | Self::OpensearchEager)
    }

    /// Why it isn't available here.
    pub(crate) fn missing(self) -> Option<String> {
        if !self.has_server() {
            return None;
        }
        if !cfg!(feature = "opensearch") {
            return Some("this build is without the engine".to_owned());
        }
        opensearch_url().is_none().then(|| format!("{OPENSEARCH_URL} is not set"))
    }

    pub(crate) fn is_volatile(self) -> bool {
        self == Self::Memory
    }
}

/// The URL of the OpenSearch for tests.
pub(crate) fn opensearch_url() -> Option<String> {
    env::var(OPENSEARCH_URL).ok().filter(|url| !url.is_empty())
}

pub(crate) fn arguments() -> Arguments {
    let mut arguments = Arguments::from_args();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(cores.min(TRIALS_AT_ONCE_MAX));
    arguments
}

/// A test named after an engine and the promise that it tests. Where the engine isn't available the test is ignored; where the
/// engine
/// is required but not available, it fails.
pub(crate) fn trial(engine: Engine, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    // One name requires all variants of an engine.
    let needed = engine.name().trim_end_matches("-eager");
    Trial::ignorable_test(format!("{}::{name}", engine.name()), move || {
        run_or_ignore(needed, engine.missing(), test)
    })
}

/// Runs an asynchronous test with a new location for an index.
pub(crate) fn run<F: Future<Output = ()>>(engine: Engine, test: impl FnOnce(Arc<TestIndex>) -> F) {
    let place = Arc::new(TestIndex::new(engine));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test(place.clone()));
}

/// The location of the index of one test. It is removed when this is dropped.
pub(crate) struct TestIndex {
    pub(crate) engine: Engine,
    pub(crate) config: Config,
    folder: tempfile::TempDir,
}

impl TestIndex {
    pub(crate) fn new(engine: Engine) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let url = match engine {
            Engine::Memory => EngineUrl::Memory,
            Engine::Tantivy | Engine::TantivyEager => EngineUrl::Tantivy(folder.path().join("search")),
            Engine::Opensearch | Engine::OpensearchEager => opensearch_url().unwrap().parse().unwrap(),
        };
        let mut config = Config::new(url);
        // Tests commit explicitly.
        config.tantivy.commit_ms = 3_600_000;
        config.tantivy.memory_bytes = 15_000_000;
        config.opensearch = OpensearchConfig {
            prefix: format!("t-{}", Identity::random()),
            shards: nonzero!(2),
            replicas: 0,
            commit_ms: 3_600_000,
            ..OpensearchConfig::default()
        };
        // The server shares its processors with the tests.
        config.opensearch.timeout_ms = nonzero!(30_000);
        if engine.is_eager() {
            config.tantivy.commit_documents = nonzero!(1);
            config.opensearch.commit_documents = nonzero!(1);
        }
        Self { engine, config, folder }
    }

    /// The same, with commits after this many milliseconds, and at once only after a thousand documents.
    pub(crate) fn config_with(&self, commit_ms: u64) -> Config {
        let mut config = self.config.clone();
        (config.tantivy.commit_ms, config.opensearch.commit_ms) = (commit_ms, commit_ms);
        config.tantivy.commit_documents = nonzero!(1_000);
        config.opensearch.commit_documents = nonzero!(1_000);
        config
    }

    /// The prefix of the engine's indexes.
    pub(crate) fn prefix(&self) -> &str {
        &self.config.opensearch.prefix
    }

    /// The folder of the engine.
    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().join("search")
    }

    pub(crate) async fn open(&self) -> Opened {
        open(self.config.clone()).await.unwrap()
    }

    /// Opens an index again that was dropped without a close, as soon as its tasks have ended.
    pub(crate) async fn open_again(&self) -> Opened {
        loop {
            match open(self.config.clone()).await {
                Err(error) if error.kind() == ErrorKind::Conflict => sleep(Duration::from_millis(2)).await,
                opened => return opened.unwrap(),
            }
        }
    }

    pub(crate) async fn reopen(&self, opened: Opened) -> Opened {
        opened.upkeep.close().await.unwrap();
        drop(opened);
        self.open().await
    }
}

impl Drop for TestIndex {
    fn drop(&mut self) {
        if self.engine.has_server() {
            server::remove(self.prefix());
        }
    }
}

pub(crate) fn id(number: u64) -> RecordId {
    RecordId(number)
}

/// An email with a body and nothing else.
pub(crate) fn email(number: u64, body: &str) -> Document {
    Document {
        id: id(number),
        received: number as i64 * 10,
        body: vec![body.to_owned()],
        ..Document::default()
    }
}

pub(crate) fn batch(documents: impl IntoIterator<Item = Document>, revision: u64) -> Batch {
    let documents = documents.into_iter().collect();
    Batch { removed: Vec::new(), documents, revision: Some(Revision(revision)) }
}

pub(crate) fn removal(removed: impl IntoIterator<Item = u64>, revision: u64) -> Batch {
    let removed = removed.into_iter().map(RecordId).collect();
    Batch { removed, documents: Vec::new(), revision: Some(Revision(revision)) }
}

pub(crate) fn text(text: &str) -> SearchText {
    SearchText::parse(text).unwrap()
}

pub(crate) fn anywhere(words: &str) -> Filter {
    Filter::Text(text(words))
}

pub(crate) fn in_field(field: Field, words: &str) -> Filter {
    Filter::In(field, text(words))
}

pub(crate) fn header(name: &str, words: Option<&str>) -> Filter {
    Filter::Header(HeaderName::new(name).unwrap(), words.map(text))
}

pub(crate) fn checkpoint(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

pub(crate) async fn begin(opened: &Opened) -> Series {
    opened.index.begin().await.unwrap().series
}

/// Writes documents of an account in a series of their own, and commits.
pub(crate) async fn index(
    opened: &Opened,
    account: AccountId,
    documents: impl IntoIterator<Item = Document>,
) {
    let series = begin(opened).await;
    opened.index.write(series, account, batch(documents, 1)).await.unwrap();
    opened.index.commit(series).await.unwrap();
}

pub(crate) async fn page(opened: &Opened, account: AccountId, filter: Filter) -> Page {
    opened.search.query(account, &Query::new(filter)).await.unwrap()
}

/// The numbers of the emails that match.
pub(crate) async fn found(opened: &Opened, account: AccountId, filter: Filter) -> Vec<u64> {
    page(opened, account, filter).await.hits.iter().map(|hit| hit.id.0).collect()
}
