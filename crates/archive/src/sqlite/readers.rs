//! Reading connections, each used by one query at a time.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::schema;
use crate::Config;

/// Connections are created when needed, and kept.
pub(super) struct Readers {
    file: PathBuf,
    cache_bytes: usize,
    idle: Mutex<Vec<Connection>>,
    /// One permit for each connection that may be in use.
    pub(super) permits: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(file: &Path, config: &Config) -> Self {
        Self {
            file: file.to_owned(),
            cache_bytes: config.sqlite.cache_bytes.get(),
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(config.sqlite.readers.get().min(Semaphore::MAX_PERMITS))),
        }
    }

    /// Runs work with a connection, which must not be left in a transaction. Queries of clients hold a permit.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => schema::connect_to_read(&self.file, self.cache_bytes)?,
        };
        let result = work(&mut connection);
        self.idle.lock().push(connection);
        result
    }

    /// Closes idle connections.
    pub(super) fn disconnect(&self) {
        self.idle.lock().clear();
    }
}
