mod damage;
mod faults;
mod layer;
mod model;
mod pages;
mod readers;
mod redo;
mod store;

use std::path::Path;

use crate::{Error, Options, Store, Table};

const FIRST: Table = Table::new(1, "first");
const SECOND: Table = Table::new(2, "second");

/// A store with a commit log whose files have this many bytes each.
fn open(folder: &Path, log_bytes: u64) -> Store {
    try_open(folder, log_bytes).unwrap()
}

fn try_open(folder: &Path, log_bytes: u64) -> Result<Store, Error> {
    let options = Options { log_bytes, ..Options::default() };
    Store::open(folder, &[FIRST, SECOND], options)
}

fn put(store: &Store, table: Table, key: &[u8], value: &[u8]) -> Result<(), Error> {
    let (key, value) = (key.to_vec(), value.to_vec());
    store.write_blocking(move |batch| {
        batch.put(table, &key, &value);
        Ok(())
    })
}

fn get(store: &Store, table: Table, key: &[u8]) -> Option<Vec<u8>> {
    store.read(|view| Ok(view.get(table, key)?.map(|value| value.to_vec()))).unwrap()
}

/// Waits for an answer outside a runtime.
fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
