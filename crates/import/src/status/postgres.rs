//! A Status mailserver's PostgreSQL: `envelopes(id, data, topic, bloom)`, where the id is the key of its LevelDB.

use tokio_postgres::Row;

use super::message_of;
use crate::{
    Error, Options,
    convert::{Taken, Unfit},
    postgres::Rows,
};

/// The mailserver's table.
pub(crate) const TABLE: &str = "envelopes";

/// The rows of the table, by id.
pub(crate) struct Envelopes {
    options: Options,
    after: Option<Vec<u8>>,
}

impl Envelopes {
    pub(crate) fn new(options: Options) -> Result<Self, Error> {
        let after = options.after.as_ref().map(hex::decode).transpose();
        let after =
            after.map_err(|error| Error::invalid("the place to go on at is no key").with_source(error))?;
        Ok(Self { options, after })
    }
}

impl Rows for Envelopes {
    fn select(&self) -> String {
        let behind = self.after.as_ref().map(|key| format!("WHERE id > '\\x{}'::bytea", hex::encode(key)));
        format!("SELECT id, data FROM {TABLE} {} ORDER BY id", behind.unwrap_or_default())
    }

    fn table(&self) -> &'static str {
        TABLE
    }

    fn take(&mut self, row: &Row) -> Result<Taken, Unfit> {
        let key: Option<&[u8]> = row.try_get(0).map_err(|_| Unfit("id is no bytea".into()))?;
        let key = key.ok_or_else(|| Unfit("id is missing".into()))?;
        self.after = Some(key.to_vec());
        let data: Option<&[u8]> = row.try_get(1).map_err(|_| Unfit("data is no bytea".into()))?;
        message_of(key, data.unwrap_or_default(), &self.options)
    }

    fn name(&self, _row: &Row) -> String {
        format!("envelope {}", hex::encode(self.after.as_deref().unwrap_or_default()))
    }

    fn after(&self) -> Option<String> {
        self.after.as_ref().map(hex::encode)
    }
}
