//! The engines under test: whether each is available, and the table of a test.

use std::{
    env,
    future::Future,
    hash::{BuildHasher, RandomState},
    num::NonZero,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use libtest_mimic::Trial;
use restante_core::nonzero;
use restante_disk::testing::run_or_ignore;
use restante_sessions::{Config, EngineUrl, RedisConfig};

use super::node::{MortalNode, Node};

/// The URL of the Redis server, as `dev/services/with redis` sets it.
const REDIS_URL: &str = "RESTANTE_REDIS_URL";
/// How long a hanging node may delay the end of its failed test.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// The lease of a node that is to die: long enough to survive under load until then, short enough for a test to wait until it expires.
const SHORT_LEASE_MS: NonZero<u64> = nonzero!(1_500);
/// The timeout of a request on a machine that runs many tests.
const TIMEOUT_MS: NonZero<u64> = nonzero!(20_000);
/// The lease of other nodes: none of them is considered dead because the machine is busy.
const LONG_LEASE_MS: NonZero<u64> = nonzero!(120_000);

/// An engine under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Memory,
    Redis,
}

impl Engine {
    pub const ALL: [Self; 2] = [Self::Memory, Self::Redis];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
        }
    }

    /// Whether several nodes can share a table.
    pub fn is_shared(self) -> bool {
        self == Self::Redis
    }

    /// Why it is not available here.
    fn missing(self) -> Option<String> {
        match self {
            Self::Memory => None,
            Self::Redis if !cfg!(feature = "redis") => Some("this build is without the engine".to_owned()),
            Self::Redis => redis_url().is_none().then(|| format!("{REDIS_URL} is not set")),
        }
    }
}

fn redis_url() -> Option<String> {
    env::var(REDIS_URL).ok().filter(|url| !url.is_empty())
}

/// A test named after an engine and the promise that it tests. It is ignored if the engine is not available, or fails if
/// the engine is required.
pub fn trial(engine: Engine, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    trial_with(engine, None, name, test)
}

/// The same for a test that also needs a variable of `dev/services`.
pub fn trial_with(
    engine: Engine,
    variable: Option<&'static str>,
    name: &str,
    test: impl FnOnce() + Send + 'static,
) -> Trial {
    let unset =
        move || variable.filter(|name| env::var_os(name).is_none()).map(|name| format!("{name} is not set"));
    Trial::ignorable_test(format!("{}::{name}", engine.name()), move || {
        run_or_ignore(engine.name(), engine.missing().or_else(unset), test)
    })
}

/// Runs an asynchronous test with a new table. It does not wait for a thread that hangs after a failure, so that the failure
/// is reported.
pub fn run<F: Future<Output = ()>>(engine: Engine, test: impl FnOnce(Arc<TestTable>) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let table = Arc::new(TestTable::new(engine));
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(test(table))));
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    if let Err(panic) = outcome {
        panic::resume_unwind(panic);
    }
}

/// The table of one test.
pub struct TestTable {
    pub engine: Engine,
    prefix: String,
}

impl TestTable {
    pub fn new(engine: Engine) -> Self {
        Self { engine, prefix: format!("t{:016x}", RandomState::new().hash_one("prefix")) }
    }

    /// The configuration of a node of the table.
    pub fn config(&self) -> Config {
        let url = match self.engine {
            Engine::Memory => EngineUrl::Memory,
            Engine::Redis => redis_url().expect("asked before").parse().unwrap(),
        };
        let mut config = Config::new(url);
        config.redis = RedisConfig {
            prefix: self.prefix.clone(),
            lease_ms: LONG_LEASE_MS,
            timeout_ms: TIMEOUT_MS,
            ..RedisConfig::default()
        };
        config
    }

    /// A node of the table.
    pub async fn node(&self) -> Node {
        Node::new(self.config()).await
    }

    /// A node of the table with a limit of sessions per user.
    pub async fn node_with_limit(&self, sessions_per_user_max: usize) -> Node {
        let sessions_per_user_max = sessions_per_user_max.try_into().unwrap();
        Node::new(Config { sessions_per_user_max, ..self.config() }).await
    }

    /// Two nodes of the table.
    pub async fn two_nodes(&self) -> (Node, Node) {
        (self.node().await, self.node().await)
    }

    /// A node that can die, with a short lease.
    pub async fn mortal_node(&self) -> MortalNode {
        let mut config = self.config();
        config.redis.lease_ms = SHORT_LEASE_MS;
        MortalNode::new(config).await
    }
}
