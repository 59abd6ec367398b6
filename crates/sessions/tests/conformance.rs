//! The promises of the contract of sessions: one named test for each engine and promise.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "conformance/close.rs"]
mod close;
#[path = "common/mod.rs"]
mod common;
#[path = "conformance/counts.rs"]
mod counts;
#[path = "conformance/info.rs"]
mod info;
#[path = "conformance/look_up.rs"]
mod look_up;
#[path = "conformance/node_end.rs"]
mod node_end;
#[path = "conformance/open.rs"]
mod open;
#[path = "conformance/shared.rs"]
mod shared;

use std::{future::Future, pin::Pin, sync::Arc};

use common::engines::{Engine, TestTable, run, trial};
use libtest_mimic::Arguments;

/// The table that a promise is tested on.
pub(crate) type Subject = Arc<TestTable>;

type Run = fn(Subject) -> Pin<Box<dyn Future<Output = ()>>>;

/// A promise: its name, whether it needs an engine that several nodes can share, and the test.
pub(crate) struct Promise {
    name: &'static str,
    needs_nodes: bool,
    run: Run,
}

/// Lists test functions of a module as promises.
macro_rules! promises {
    (any: [$($any:ident),* $(,)?], shared: [$($shared:ident),* $(,)?]) => {
        pub(crate) fn promises() -> Vec<crate::Promise> {
            vec![
                $(crate::Promise { name: stringify!($any), needs_nodes: false, run: |s| Box::pin($any(s)) },)*
                $(crate::Promise { name: stringify!($shared), needs_nodes: true, run: |s| Box::pin($shared(s)) },)*
            ]
        }
    };
}
pub(crate) use promises;

fn all_promises() -> Vec<Promise> {
    let rooms = [
        open::promises(),
        close::promises(),
        info::promises(),
        look_up::promises(),
        counts::promises(),
        shared::promises(),
        node_end::promises(),
    ];
    rooms.into_iter().flatten().collect()
}

fn main() {
    let mut trials = Vec::new();
    for engine in Engine::ALL {
        for promise in all_promises() {
            let trial = trial(engine, promise.name, move || run(engine, promise.run));
            trials.push(trial.with_ignored_flag(promise.needs_nodes && !engine.is_shared()));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
