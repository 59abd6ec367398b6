//! The promises of the contracts: one named test for each engine and promise.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "conformance/blobs.rs"]
mod blobs;
#[path = "common/mod.rs"]
mod common;
#[path = "conformance/sweeping.rs"]
mod sweeping;
#[path = "conformance/upkeep.rs"]
mod upkeep;

use std::{future::Future, pin::Pin, sync::Arc};

use common::{Engine, TestStore, run, run_trials, trial};

/// The store that a promise is tested on.
pub(crate) type Subject = Arc<TestStore>;

type Run = fn(Subject) -> Pin<Box<dyn Future<Output = ()>>>;

/// A promise: its name, the engines that it is tested on, and the test.
pub(crate) struct Promise {
    name: &'static str,
    of: Of,
    run: Run,
}

/// Which engines make a promise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    Every,
    /// Those that lose nothing when they are closed.
    Durable,
    /// Those whose blobs are in files of their own.
    Files,
}

impl Of {
    fn includes(self, engine: Engine) -> bool {
        match self {
            Self::Every => true,
            Self::Durable => !engine.is_volatile(),
            Self::Files => engine.has_files(),
        }
    }
}

/// Lists test functions of a module as promises.
macro_rules! promises {
    (
        any: [$($any:ident),* $(,)?],
        durable: [$($durable:ident),* $(,)?],
        files: [$($files:ident),* $(,)?] $(,)?
    ) => {
        pub(crate) fn promises() -> Vec<crate::Promise> {
            use crate::{Of, Promise};
            vec![
                $(Promise { name: stringify!($any), of: Of::Every, run: |s| Box::pin($any(s)) },)*
                $(Promise { name: stringify!($durable), of: Of::Durable, run: |s| Box::pin($durable(s)) },)*
                $(Promise { name: stringify!($files), of: Of::Files, run: |s| Box::pin($files(s)) },)*
            ]
        }
    };
}
pub(crate) use promises;

fn main() {
    let mut trials = Vec::new();
    for engine in Engine::ALL {
        for promise in blobs::promises().into_iter().chain(upkeep::promises()).chain(sweeping::promises()) {
            let trial = trial(engine, promise.name, move || run(engine, promise.run));
            trials.push(trial.with_ignored_flag(!promise.of.includes(engine)));
        }
    }
    run_trials(trials)
}
