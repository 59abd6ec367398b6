//! The engines under test: whether each is available, and the queue of a test.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

pub mod blocking;

use std::{
    collections::HashSet,
    env,
    future::Future,
    hash::{BuildHasher, RandomState},
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use libtest_mimic::Trial;
use restante_core::nonzero;
use restante_disk::testing::run_or_ignore;
use restante_queue::{
    Config, EngineUrl, OpenedAnnouncements, OpenedWork, QueueConfig, Received, local_announcements,
    local_work, open_announcements, open_work,
};
use tokio::time::{sleep, timeout};

/// The URLs of the servers, as `dev/services/with` sets them.
const RABBITMQ_URL: &str = "RESTANTE_RABBITMQ_URL";
const REDIS_URL: &str = "RESTANTE_REDIS_URL";
/// How long a hanging engine may delay the end of its failed test.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a test waits for what must happen, on a machine that runs many tests.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a test waits for what must not happen.
const SILENCE: Duration = Duration::from_millis(300);

/// An engine under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Local,
    Redis,
    Rabbitmq,
}

impl Engine {
    pub const ALL: [Self; 3] = [Self::Local, Self::Redis, Self::Rabbitmq];

    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Redis => "redis",
            Self::Rabbitmq => "rabbitmq",
        }
    }

    /// Whether it distributes work.
    pub fn has_work(self) -> bool {
        self != Self::Redis
    }

    pub fn url(self) -> Option<String> {
        let of = |name| env::var(name).ok().filter(|url: &String| !url.is_empty());
        match self {
            Self::Local => Some("local:".to_owned()),
            Self::Redis => of(REDIS_URL),
            Self::Rabbitmq => of(RABBITMQ_URL),
        }
    }

    /// Why it is not available here.
    fn missing(self) -> Option<String> {
        match self {
            Self::Redis if !cfg!(feature = "redis") => Some("this build is without the engine".to_owned()),
            Self::Rabbitmq if !cfg!(feature = "rabbitmq") => {
                Some("this build is without the engine".to_owned())
            }
            _ => self.url().is_none().then(|| "its URL is not set".to_owned()),
        }
    }
}

/// A test named after an engine and the promise that it tests. It is ignored if the engine is not available, or fails if the engine
/// is required.
pub fn trial(engine: Engine, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(format!("{}::{name}", engine.name()), move || {
        run_or_ignore(engine.name(), engine.missing(), test)
    })
}

/// Runs an asynchronous test with new queues.
pub fn run<F: Future<Output = ()>>(engine: Engine, test: impl FnOnce(Arc<TestQueue>) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let queue = Arc::new(TestQueue::new(engine));
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            test(queue.clone()).await;
            queue.remove().await;
        })
    }));
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    if let Err(panic) = outcome {
        panic::resume_unwind(panic);
    }
}

/// The queues of one test.
pub struct TestQueue {
    pub engine: Engine,
    pub prefix: String,
}

impl TestQueue {
    pub fn new(engine: Engine) -> Self {
        Self { engine, prefix: format!("t{:016x}", RandomState::new().hash_one("prefix")) }
    }

    /// The configuration of a server of the queue.
    pub fn config(&self) -> Config {
        let url: EngineUrl = self.engine.url().expect("asked before").parse().unwrap();
        let shared = QueueConfig {
            prefix: self.prefix.clone(),
            prefetch: nonzero!(10),
            timeout_ms: nonzero!(20_000),
            ..QueueConfig::default()
        };
        Config { shared, ..Config::new(url) }
    }

    /// This many servers that share the queue of work.
    pub async fn work(&self, servers: usize) -> Vec<OpenedWork> {
        let config = self.config();
        if self.engine == Engine::Local {
            return local_work(servers, config.shared.prefetch.get().into());
        }
        let mut opened = Vec::new();
        for _ in 0..servers {
            let one = open_work(config.clone()).await.unwrap();
            one.upkeep.health().unwrap();
            opened.push(one);
        }
        opened
    }

    /// Announcements between this many servers.
    pub async fn announcements(&self, servers: usize) -> Vec<OpenedAnnouncements> {
        if self.engine == Engine::Local {
            return local_announcements(servers);
        }
        let mut opened = Vec::new();
        for _ in 0..servers {
            let one = open_announcements(self.config()).await.unwrap();
            assert_eq!((one.problem)(), None);
            opened.push(one);
        }
        opened
    }

    /// Removes what the test has left in the broker.
    pub async fn remove(&self) {
        if self.engine != Engine::Rabbitmq {
            return;
        }
        let names = ["work", "work-dead", "dealer"].map(|name| format!("{}-{name}", self.prefix));
        wipe(&self.engine.url().unwrap(), &names).await;
        let channel = channel(&self.engine.url().unwrap()).await;
        let exchange = format!("{}-announcements", self.prefix);
        channel.1.exchange_delete(exchange.into(), Default::default()).await.unwrap();
    }
}

/// A connection of the test's own, and its channel.
pub async fn channel(url: &str) -> (lapin::Connection, lapin::Channel) {
    let connection = lapin::Connection::connect(url, Default::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

/// Deletes queues with everything in them.
pub async fn wipe(url: &str, queues: &[String]) {
    let (_connection, channel) = channel(url).await;
    for queue in queues {
        channel.queue_delete(queue.as_str().into(), Default::default()).await.unwrap();
    }
}

/// Waits for what must happen.
pub async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"))
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !holds().await {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// The next item of a server.
pub async fn next(server: &OpenedWork) -> Received {
    soon("an item", server.work.next()).await
}

/// Whether no item arrives.
pub async fn is_quiet(server: &OpenedWork) -> bool {
    timeout(SILENCE, server.work.next()).await.is_err()
}

/// Items with the numbers of a range.
pub fn items(numbers: std::ops::Range<u32>) -> Vec<Bytes> {
    numbers.map(|number| Bytes::from(format!("item {number}"))).collect()
}

/// Receives this many different items, and finishes them.
pub async fn finish(server: &OpenedWork, count: usize) -> HashSet<Bytes> {
    let mut seen = HashSet::new();
    while seen.len() < count {
        let Received { item, ticket } = next(server).await;
        seen.insert(item);
        ticket.done();
    }
    seen
}
