//! Every promise of the archive's contract, on every engine: one named test for each (engine, promise).
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "conformance/append.rs"]
mod append;
#[path = "conformance/backup.rs"]
mod backup;
#[path = "common/mod.rs"]
mod common;
#[path = "conformance/query.rs"]
mod query;
#[path = "conformance/upkeep.rs"]
mod upkeep;

use std::{future::Future, pin::Pin, sync::Arc};

use common::engines::{Engine, TestArchive, arguments, run, trial};

/// What a promise is tested on: the location of an archive on some engine.
pub(crate) type Subject = Arc<TestArchive>;

type Run = fn(Subject) -> Pin<Box<dyn Future<Output = ()>>>;

/// A promise: its name, whether it needs an engine that keeps its contents when it is closed, and the test.
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
    for engine in Engine::ALL {
        let promises = [append::promises(), backup::promises(), query::promises(), upkeep::promises()];
        for promise in promises.into_iter().flatten() {
            let trial = trial(engine, promise.name, move || run(engine, promise.run));
            trials.push(trial.with_ignored_flag(engine.is_volatile() && promise.needs_disk));
        }
    }
    common::engines::conclude(&libtest_mimic::run(&arguments(), trials))
}
