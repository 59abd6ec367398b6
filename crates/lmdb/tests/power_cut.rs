//! Power cuts: what was acknowledged exists, and each batch exists completely or not at all.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{collections::BTreeMap, ops::Bound, path::Path, thread};

use restante_lmdb::{
    Direction, Error, Options, Store, Table,
    key::{KeyBuf, Pack},
};
use restante_power_cut::{Child, Cut, child, cuts, record};

/// The rows of batches.
const ROWS: Table = Table::new(1, "rows");
/// How many batches each thread has written.
const COUNTS: Table = Table::new(2, "counts");

/// Enough that a group is being synced while the next one is staged.
const THREADS: u64 = 48;
/// How often the store is opened, and how many batches each thread writes each time.
const ROUNDS: u64 = 4;
const BATCHES: u64 = 6;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(folder: &Path, log_bytes: u64) -> Store {
    let options = Options { log_bytes, ..Options::default() };
    Store::open(&folder.join("store"), &[ROWS, COUNTS], options).unwrap()
}

fn key(numbers: &[u64]) -> KeyBuf {
    let mut key = KeyBuf::new();
    for number in numbers {
        key.put_number(*number);
    }
    key
}

/// The rows that a thread's batch puts. Every third batch is larger than a page, some are so large that they are written at once,
/// and many rows are put again by later batches.
fn puts(thread: u64, batch: u64) -> Vec<(KeyBuf, Vec<u8>)> {
    let len = match (thread % 16, batch % 3) {
        (7, 0) => 18_000,
        (_, 0) => 900,
        _ => 60,
    };
    let rows = 1 + (batch * 7 + thread) % 9;
    let row = |row: u64| (key(&[thread, batch % 50, row]), vec![(batch + row) as u8; len]);
    (0..rows).map(row).collect()
}

/// The rows that it deletes.
fn deletes(thread: u64, batch: u64) -> Vec<KeyBuf> {
    let earlier = batch.saturating_sub(5);
    (0..3).map(|row| key(&[thread, earlier % 50, row])).collect()
}

fn write(store: &Store, thread: u64, batch: u64) {
    let wrote = store.write_blocking(move |rows| {
        for key in deletes(thread, batch) {
            rows.delete(ROWS, &key);
        }
        for (key, value) in puts(thread, batch) {
            rows.put(ROWS, &key, &value);
        }
        rows.put(COUNTS, &key(&[thread]), &batch.to_be_bytes());
        Ok::<_, Error>(())
    });
    wrote.unwrap();
}

fn write_rounds(child: &Child, log_bytes: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for round in 0..ROUNDS {
        let store = open(child.folder(), log_bytes);
        thread::scope(|scope| {
            for thread in 1..=THREADS {
                let store = &store;
                scope.spawn(move || {
                    for batch in round * BATCHES + 1..=(round + 1) * BATCHES {
                        write(store, thread, batch);
                        child.acknowledge(&format!("{thread} {batch}")).unwrap();
                    }
                });
            }
            if round % 2 == 1 {
                runtime.block_on(store.settle()).unwrap();
            }
        });
        if round == 2 {
            runtime.block_on(store.close()).unwrap(); // in other rounds the next opening brings in the commit log
        }
    }
}

/// The rows that a thread has left after this many batches.
fn rows_after(thread: u64, batches: u64) -> Rows {
    let mut rows = Rows::new();
    for batch in 1..=batches {
        for key in deletes(thread, batch) {
            rows.remove(&key[..]);
        }
        rows.extend(puts(thread, batch).into_iter().map(|(key, value)| (key.to_vec(), value)));
    }
    rows
}

fn rows_of(store: &Store) -> Rows {
    store
        .read(|view| {
            let mut found = Rows::new();
            let mut rows = view.range(ROWS, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
            while let Some((key, value)) = rows.next()? {
                found.insert(key.to_vec(), value.to_vec());
            }
            Ok::<_, Error>(found)
        })
        .unwrap()
}

fn batches_of(store: &Store, thread: u64) -> u64 {
    let count =
        store.read(|view| Ok::<_, Error>(view.get(COUNTS, &key(&[thread]))?.map(|count| count.to_vec())));
    count.unwrap().map_or(0, |count| u64::from_be_bytes(count.try_into().unwrap()))
}

fn check(cut: &Cut<'_>, log_bytes: u64) {
    let mut acknowledged = BTreeMap::new();
    for text in cut.acknowledged() {
        let (thread, batch) = text.split_once(' ').unwrap();
        acknowledged.insert(thread.parse::<u64>().unwrap(), batch.parse::<u64>().unwrap());
    }
    let store = open(cut.folder(), log_bytes);
    assert_eq!(store.check().unwrap(), Vec::<String>::new());
    let mut expected = Rows::new();
    for thread in 1..=THREADS {
        let batches = batches_of(&store, thread);
        let least = acknowledged.get(&thread).copied().unwrap_or_default();
        assert!(batches >= least, "thread {thread}: {batches} batches of {least} that were acknowledged");
        assert!(
            batches <= least + 1,
            "thread {thread}: {batches} batches, more than were written after {least}"
        );
        expected.extend(rows_after(thread, batches));
    }
    assert!(rows_of(&store) == expected, "a batch is there in parts");

    // The store continues, and what it brings in is brought in for good.
    write(&store, THREADS + 1, 1);
    drop(store);
    expected.extend(rows_after(THREADS + 1, 1));
    let store = open(cut.folder(), log_bytes);
    assert!(rows_of(&store) == expected, "not the same after it was opened once more");
}

fn run(test: &str, log_bytes: u64) {
    if let Some(child) = child().unwrap() {
        return write_rounds(&child, log_bytes);
    }
    let log = record(test).unwrap();
    assert_eq!(log.acknowledged().count() as u64, THREADS * ROUNDS * BATCHES);
    for mapped in log.mapped() {
        // LMDB's table of readers does not matter after a cut.
        assert!(mapped.ends_with("/lock.mdb"), "{mapped} is written by memory, and nobody records that");
    }
    log.replay(cuts(60), 6, |cut| check(cut, log_bytes)).unwrap();
}

#[test]
fn acknowledged_batches_survive_power_cuts() {
    run("acknowledged_batches_survive_power_cuts", 64 << 10); // so small that the files are switched many times
}

#[test]
fn acknowledged_batches_survive_power_cuts_without_a_commit_log() {
    run("acknowledged_batches_survive_power_cuts_without_a_commit_log", 0);
}

/// LMDB writes the first pages of a new file without a sync, and finds no store in what a power cut may leave of them.
#[test]
fn a_store_whose_making_was_cut_off_is_made_again() {
    if let Some(child) = child().unwrap() {
        drop(open(child.folder(), 64 << 10));
        return child.acknowledge("made").unwrap();
    }
    let log = record("a_store_whose_making_was_cut_off_is_made_again").unwrap();
    log.replay(cuts(60), 6, |cut| {
        let store = open(cut.folder(), 64 << 10);
        write(&store, 1, 1);
        assert!(rows_of(&store) == rows_after(1, 1));
    })
    .unwrap();
}
