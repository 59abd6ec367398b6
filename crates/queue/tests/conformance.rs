//! The promises of the contracts of the queue: one named test for each engine and promise.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "conformance/announcements.rs"]
mod announcements;
#[path = "common/mod.rs"]
mod common;
#[path = "conformance/dead.rs"]
mod dead;
#[path = "conformance/work.rs"]
mod work;

use std::{future::Future, pin::Pin, sync::Arc};

use common::{Engine, TestQueue, run, trial};
use libtest_mimic::Arguments;

/// The queues that a promise is tested on.
pub(crate) type Subject = Arc<TestQueue>;

type Run = fn(Subject) -> Pin<Box<dyn Future<Output = ()>>>;

/// A promise: its name, and the test.
pub(crate) struct Promise {
    name: &'static str,
    run: Run,
}

/// Lists test functions of a module as promises.
macro_rules! promises {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn promises() -> Vec<crate::Promise> {
            vec![$(crate::Promise { name: stringify!($name), run: |subject| Box::pin($name(subject)) },)*]
        }
    };
}
pub(crate) use promises;

fn main() {
    let mut trials = Vec::new();
    for engine in Engine::ALL {
        let mut promises = announcements::promises();
        if engine.has_work() {
            promises.extend(work::promises());
            promises.extend(dead::promises());
        }
        for promise in promises {
            trials.push(trial(engine, promise.name, move || run(engine, promise.run)));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
