//! Random operations on each engine, compared with a plain model of the contract.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "common/mod.rs"]
mod common;
#[path = "model/growth.rs"]
mod growth;
#[path = "model/operations.rs"]
mod operations;
#[path = "model/table.rs"]
mod table;
#[path = "model/threads.rs"]
mod threads;

use common::engines::{self, Engine};
use libtest_mimic::{Arguments, Trial};

/// A test of an engine.
type Test = fn(Engine);

fn main() {
    let tests: [(Engine, &str, Test); 7] = [
        (Engine::Memory, "agrees_with_the_model", operations::agrees_with_the_model),
        (Engine::Memory, "agrees_while_it_grows_and_shrinks", growth::agrees_while_it_grows_and_shrinks),
        (Engine::Memory, "keeps_what_each_thread_has_opened", threads::keeps_what_each_thread_has_opened),
        (Engine::Memory, "always_finds_sessions_that_stay", threads::always_finds_sessions_that_stay),
        (Engine::Memory, "keeps_sums_that_threads_change", threads::keeps_sums_that_threads_change),
        (Engine::Redis, "agrees_with_the_model", operations::agrees_with_the_model),
        (Engine::Redis, "agrees_while_it_grows_and_shrinks", growth::agrees_while_it_grows_and_shrinks),
    ];
    let trials: Vec<Trial> = tests
        .into_iter()
        .map(|(engine, name, test)| engines::trial(engine, name, move || test(engine)))
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
