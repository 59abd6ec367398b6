//! The engines under test, where their indexes lie during a test, and short ways to write and to ask.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::{future::Future, path::PathBuf, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use libtest_mimic::{Arguments, Completion, Trial};
use restante_core::ErrorKind;
use restante_search::{
    AccountId, Batch, Config, Document, EngineUrl, Field, Filter, HeaderName, Opened, Page, Query, RecordId,
    Revision, SearchText, Series, open,
};
use tokio::time::sleep;

pub(crate) const A: AccountId = AccountId(7);
pub(crate) const B: AccountId = AccountId(8);

/// Each trial writes and syncs: more at once than this only wait for the disk.
const TRIALS_AT_ONCE_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Memory,
    Tantivy,
    /// It commits after each write.
    TantivyEager,
}

impl Engine {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Tantivy, Self::TantivyEager];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Tantivy => "tantivy",
            Self::TantivyEager => "tantivy-eager",
        }
    }

    pub(crate) fn is_volatile(self) -> bool {
        self == Self::Memory
    }
}

pub(crate) fn arguments() -> Arguments {
    let mut arguments = Arguments::from_args();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(cores.min(TRIALS_AT_ONCE_MAX));
    arguments
}

/// A test named for an engine and for what holds on it.
pub(crate) fn trial(engine: Engine, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(format!("{}::{name}", engine.name()), move || {
        test();
        Ok(Completion::Completed)
    })
}

/// Runs an asynchronous test with a new place for an index.
pub(crate) fn run<F: Future<Output = ()>>(engine: Engine, test: impl FnOnce(Arc<TestIndex>) -> F) {
    let place = Arc::new(TestIndex::new(engine));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test(place.clone()));
}

/// Where the index of one test lies. It goes with it.
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
        };
        let mut config = Config::new(url);
        // Tests commit when they want to.
        config.tantivy.commit_ms = 3_600_000;
        config.tantivy.memory_bytes = 15_000_000;
        if engine == Engine::TantivyEager {
            config.tantivy.commit_documents = 1.try_into().unwrap();
        }
        Self { engine, config, folder }
    }

    /// The folder of the engine.
    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().join("search")
    }

    pub(crate) async fn open(&self) -> Opened {
        open(self.config.clone()).await.unwrap()
    }

    /// Opens an index that was dropped without a close, as soon as its tasks have ended.
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
