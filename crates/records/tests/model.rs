//! Random operations on each engine, compared with the `memory` model after each.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;
#[path = "model/history.rs"]
mod history;
#[path = "model/operations.rs"]
mod operations;
#[path = "model/pair.rs"]
mod pair;

use common::engines::{self, Engine};
use operations::{Operation, operations};
use pair::Pair;
use proptest::{
    prelude::*,
    test_runner::{FileFailurePersistence, TestRunner},
};

/// `RESTANTE_TEST_CASES=2000` for a long run.
fn cases() -> u32 {
    std::env::var("RESTANTE_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40)
}

/// A failure prints its operations, reduced to the fewest that fail, and is kept in `model.regressions` for later runs.
fn agrees_with_the_model(engine: Engine) {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: cases(),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        source_file: Some(file!()),
        test_name: Some(engine.name()),
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&prop::collection::vec(operations(), 1..80), |operations: Vec<Operation>| {
        engines::run(engine, async |place| {
            let mut pair = Pair::open(place).await;
            for operation in operations {
                pair.run(operation).await;
            }
            pair.finish().await;
        });
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn main() {
    let engines = Engine::ALL.into_iter().filter(|engine| !engine.is_volatile());
    let trials = engines
        .map(|engine| engines::trial(engine, "agrees_with_the_model", move || agrees_with_the_model(engine)));
    libtest_mimic::run(&engines::arguments(), trials.collect()).exit();
}
