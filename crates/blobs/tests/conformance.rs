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

use common::{Engine, TestStore, run, trial};
use libtest_mimic::Arguments;

/// The store that a promise is tested on.
pub(crate) type Subject = Arc<TestStore>;

type Run = fn(Subject) -> Pin<Box<dyn Future<Output = ()>>>;

/// A promise: its name, whether it needs a durable engine, and the test.
pub(crate) struct Promise {
    name: &'static str,
    needs_disk: bool,
    run: Run,
}

/// Lists test functions of a module as promises.
macro_rules! promises {
    (any: [$($any:ident),* $(,)?], disk: [$($disk:ident),* $(,)?] $(,)?) => {
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
    for engine in Engine::ALL {
        for promise in blobs::promises().into_iter().chain(upkeep::promises()).chain(sweeping::promises()) {
            let trial = trial(engine, promise.name, move || run(engine, promise.run));
            trials.push(trial.with_ignored_flag(engine.is_volatile() && promise.needs_disk));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
