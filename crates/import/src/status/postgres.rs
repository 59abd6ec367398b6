//! A Status mailserver's PostgreSQL: `envelopes(id, data, topic, bloom)`, where the id is the key of its LevelDB.

use tokio_postgres::Row;

use super::message_of;
use crate::{
    Error, Options,
    convert::{Converted, Refusal},
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
        let after = after
            .map_err(|error| Error::invalid("the position to continue at is not a key").with_source(error))?;
        Ok(Self { options, after })
    }
}

impl Rows for Envelopes {
    fn select(&self) -> String {
        let later = self.after.as_ref().map(|key| format!("WHERE id > '\\x{}'::bytea", hex::encode(key)));
        format!("SELECT id, data FROM {TABLE} {} ORDER BY id", later.unwrap_or_default())
    }

    fn table(&self) -> &'static str {
        TABLE
    }

    fn convert(&mut self, row: &Row) -> Result<Converted, Refusal> {
        let key: Option<&[u8]> = row.try_get(0).map_err(|_| Refusal("id is not bytea".into()))?;
        let key = key.ok_or_else(|| Refusal("id is missing".into()))?;
        self.after = Some(key.to_vec());
        let data: Option<&[u8]> = row.try_get(1).map_err(|_| Refusal("data is not bytea".into()))?;
        message_of(key, data.unwrap_or_default(), &self.options)
    }

    fn name(&self, _row: &Row) -> String {
        format!("envelope {}", hex::encode(self.after.as_deref().unwrap_or_default()))
    }

    fn after(&self) -> Option<String> {
        self.after.as_ref().map(hex::encode)
    }
}
