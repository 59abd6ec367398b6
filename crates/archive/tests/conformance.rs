//! Every promise of the archive's contract, on every engine: one named test for each (engine, promise).
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "conformance/append.rs"]
mod append;
#[path = "common/mod.rs"]
mod common;
#[path = "conformance/query.rs"]
mod query;
#[path = "conformance/upkeep.rs"]
mod upkeep;

use std::{future::Future, pin::Pin};

use libtest_mimic::{Arguments, Trial};
use restante_archive::{Config, LogConfig, Opened, open};

/// An engine under test.
pub(crate) struct Subject {
    config: Config,
    _folder: tempfile::TempDir,
}

impl Subject {
    fn new(engine: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = match engine {
            "memory" => "memory:".to_owned(),
            _ => format!("log:{}", folder.path().join("archive").display()),
        };
        let mut config = Config::new(url.parse().unwrap());
        config.topic_bits = common::topic_bits;
        if engine == "log-small" {
            config.log = LogConfig {
                window_seconds: 1,
                segment_messages: 3,
                open_segments: 2,
                ..LogConfig::default()
            };
        }
        Self { config, _folder: folder }
    }

    pub(crate) async fn open(&self) -> Opened {
        open(self.config.clone()).await.unwrap()
    }

    pub(crate) async fn reopen(&self, opened: Opened) -> Opened {
        opened.upkeep.close().await.unwrap();
        drop(opened);
        self.open().await
    }

    pub(crate) async fn open_read_only(&self) -> Opened {
        open(Config { read_only: true, ..self.config.clone() }).await.unwrap()
    }
}

type Run = fn(Subject) -> Pin<Box<dyn Future<Output = ()>>>;

/// A promise: its name, whether it takes an engine that keeps what it has when it is closed, and the test.
pub(crate) struct Promise {
    name: &'static str,
    needs_disk: bool,
    run: Run,
}

/// Lists test functions of a module as promises.
macro_rules! promises {
    (any: [$($any:ident),* $(,)?], disk: [$($disk:ident),* $(,)?]) => {
        pub(crate) fn promises() -> Vec<crate::Promise> {
            vec![
                $(crate::Promise { name: stringify!($any), needs_disk: false, run: |s| Box::pin($any(s)) },)*
                $(crate::Promise { name: stringify!($disk), needs_disk: true, run: |s| Box::pin($disk(s)) },)*
            ]
        }
    };
}
pub(crate) use promises;

fn main() {
    let mut trials = Vec::new();
    // log-small has windows of a second and segments of three messages, so that every query crosses many.
    for engine in ["memory", "log", "log-small"] {
        for promise in append::promises().into_iter().chain(query::promises()).chain(upkeep::promises()) {
            let is_volatile = engine == "memory";
            let run = move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on((promise.run)(Subject::new(engine)));
                Ok(())
            };
            trials.push(
                Trial::test(format!("{engine}::{}", promise.name), run)
                    .with_ignored_flag(is_volatile && promise.needs_disk),
            );
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
