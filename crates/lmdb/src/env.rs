//! LMDB itself.

use std::path::Path;

use heed::{Database, Env, EnvOpenOptions, RoTxn, WithTls, types::Bytes};

use crate::{Error, Table};

/// An open environment and its tables.
pub(crate) struct Environment {
    env: Env<WithTls>,
    tables: Vec<(Table, Database<Bytes, Bytes>)>,
}

/// Threads that may read at the same time.
const READERS_MAX: u32 = 1_024;

impl Environment {
    pub(crate) fn open(folder: &Path, tables: &[Table], map_bytes: u64) -> Result<Self, Error> {
        std::fs::create_dir_all(folder).map_err(|error| Error::io("create", &folder.display().to_string(), error))?;
        let mut options = EnvOpenOptions::new();
        options.map_size(map_bytes as usize).max_dbs(tables.len() as u32).max_readers(READERS_MAX);
        let env = open_env(&options, folder).map_err(|error| Error::lmdb("open", error))?;
        let mut transaction = env.write_txn().map_err(|error| Error::lmdb("write", error))?;
        let mut opened = Vec::new();
        for table in tables {
            let database = env.create_database(&mut transaction, Some(table.name()));
            opened.push((*table, database.map_err(|error| Error::lmdb("create a table of", error))?));
        }
        transaction.commit().map_err(|error| Error::lmdb("write", error))?;
        Ok(Self { env, tables: opened })
    }

    pub(crate) fn read(&self) -> Result<RoTxn<'_, WithTls>, Error> {
        self.env.read_txn().map_err(|error| Error::lmdb("read", error))
    }

    pub(crate) fn table(&self, table: Table) -> Result<Database<Bytes, Bytes>, Error> {
        let found = self.tables.iter().find(|(known, _)| *known == table);
        found.map(|(_, database)| *database).ok_or_else(|| Error::no_table(table))
    }

    pub(crate) fn apply<'r>(
        &self,
        rows: impl Iterator<Item = (Table, &'r [u8], Option<&'r [u8]>)>,
    ) -> Result<(), Error> {
        let mut transaction = self.env.write_txn().map_err(|error| Error::lmdb("write", error))?;
        for (table, key, value) in rows {
            let database = self.table(table)?;
            let done = match value {
                Some(value) => database.put(&mut transaction, key, value),
                None => database.delete(&mut transaction, key).map(|_| ()),
            };
            done.map_err(|error| Error::lmdb("write", error))?;
        }
        transaction.commit().map_err(|error| Error::lmdb("write", error))
    }
}

#[expect(unsafe_code, reason = "the file is mapped: what else has it open must not cut it; the lock of the folder sees to that")]
fn open_env(options: &EnvOpenOptions, folder: &Path) -> heed::Result<Env<WithTls>> {
    unsafe { options.open(folder) }
}
