//! Transactions that are reused.

use std::{path::Path, thread};

use tempfile::tempdir;

use super::FIRST;
use crate::{
    env::{Environment, Progress, RedoRows},
    layer::Layer,
};

fn open(folder: &Path) -> Environment {
    Environment::open(folder, &[FIRST], 1 << 30).unwrap()
}

/// Commits a transaction, and returns its number.
fn commit(environment: &Environment) -> usize {
    environment.apply(&Layer::new(), Progress::default(), RedoRows::Keep).unwrap()
}

#[test]
fn a_transaction_is_reused_until_something_is_committed() {
    let folder = tempdir().unwrap();
    let environment = open(folder.path());
    let begun = commit(&environment);
    assert_eq!(environment.reused_transactions(), 0);
    for _ in 0..3 {
        assert_eq!(environment.read().unwrap().id(), begun);
        assert_eq!(environment.reused_transactions(), 1);
    }
    assert_eq!(commit(&environment), begun + 1);
    assert_eq!(environment.reused_transactions(), 0, "it would keep pages from being used again");
    assert_eq!(environment.read().unwrap().id(), begun + 1);
}

#[test]
fn a_transaction_in_use_sees_no_commit_and_is_not_reused_after_one() {
    let folder = tempdir().unwrap();
    let environment = open(folder.path());
    let begun = commit(&environment);
    let reading = environment.read().unwrap();
    commit(&environment);
    assert_eq!(reading.id(), begun);
    assert_eq!(environment.reused_transactions(), 1);
    drop(reading);
    assert_eq!(environment.reused_transactions(), 0);
}

#[test]
fn a_second_reader_of_a_thread_has_a_transaction_of_its_own() {
    let folder = tempdir().unwrap();
    let environment = open(folder.path());
    let begun = commit(&environment);
    let first = environment.read().unwrap();
    commit(&environment);
    let second = environment.read().unwrap();
    assert_eq!((first.id(), second.id()), (begun, begun + 1));
    drop(second);
    assert_eq!(environment.reused_transactions(), 1, "that of the first");
}

#[test]
fn more_threads_than_slots_read_at_the_same_time() {
    let folder = tempdir().unwrap();
    let environment = open(folder.path());
    let begun = commit(&environment);
    let threads = 100;
    let all_read = std::sync::Barrier::new(threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let reading = environment.read().unwrap();
                all_read.wait();
                assert_eq!(reading.id(), begun);
            });
        }
    });
    assert!(environment.reused_transactions() > 0);
}
