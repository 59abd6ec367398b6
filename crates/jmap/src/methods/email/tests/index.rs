//! An index with the documents that a test puts into it: in memory, or in the OpenSearch of `dev/services/with`, when
//! `RESTANTE_TEST_SEARCH` is `opensearch`.

use std::{
    env,
    hash::{BuildHasher, RandomState},
    sync::Mutex,
};

use async_trait::async_trait;
use restante_core::{AccountId, Error, Revision, nonzero};
use restante_search::{Batch, Config, Document, Hit, Opened, Page, Query, Search, matches};

/// Hits per page of the index in memory.
const HITS: usize = 50;

pub(super) enum Index {
    Memory(Mutex<(Vec<Document>, Revision)>),
    Opensearch(Opened),
}

impl Index {
    /// An empty index that is not shared with other tests.
    pub(super) async fn new() -> Self {
        match env::var("RESTANTE_TEST_SEARCH").as_deref() {
            Err(_) | Ok("" | "memory") => Self::Memory(Mutex::default()),
            Ok("opensearch") => {
                let url = env::var("RESTANTE_OPENSEARCH_URL").expect("use dev/services/with opensearch");
                let mut config = Config::new(url.parse().unwrap());
                config.opensearch.prefix = format!("t-{:016x}", RandomState::new().hash_one("index"));
                config.opensearch.replicas = 0; // there is only one node
                config.opensearch.shards = nonzero!(2);
                config.opensearch.timeout_ms = nonzero!(30_000); // it shares its processors with the tests
                Self::Opensearch(restante_search::open(config).await.unwrap())
            }
            Ok(other) => panic!("RESTANTE_TEST_SEARCH is {other:?}: use memory or opensearch"),
        }
    }

    /// Puts emails of an account into the index, which is complete up to a revision then.
    pub(super) async fn put(&self, account: AccountId, documents: Vec<Document>, revision: Revision) {
        match self {
            Self::Memory(known) => *known.lock().unwrap() = (documents, revision),
            Self::Opensearch(opened) => {
                let series = opened.index.begin().await.unwrap().series;
                let batch = Batch { removed: Vec::new(), documents, revision: Some(revision) };
                opened.index.write(series, account, batch).await.unwrap();
                opened.index.commit(series).await.unwrap();
            }
        }
    }
}

#[async_trait]
impl Search for Index {
    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        let known = match self {
            Self::Memory(known) => known.lock().unwrap(),
            Self::Opensearch(opened) => return opened.search.query(account, query).await,
        };
        let is_behind = |hit: &Hit| query.after.is_none_or(|after| query.order.compare(&after, hit).is_lt());
        let found = known.0.iter().filter(|document| matches(document, &query.filter));
        let hits = found.map(|document| Hit { id: document.id, received: document.received });
        let mut hits: Vec<Hit> = hits.filter(is_behind).collect();
        hits.sort_by(|left, right| query.order.compare(left, right));
        let has_more = hits.len() > HITS;
        hits.truncate(HITS);
        Ok(Page { hits, has_more, revision: known.1 })
    }
}
