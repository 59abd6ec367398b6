//! nwaku's PostgreSQL, where payload, meta and hash are lower-case hex text, and go-waku's, where they are bytes.

use tokio_postgres::Row;

use super::{Columns, Dialect, Shape, message_of, name_of, parse_after, stored_at};
use crate::{
    Error, Options,
    convert::{Converted, Refusal},
    postgres::Rows,
};

const BYTES: Dialect = Dialect { length: "octet_length", factor: 1, none: "NULL::bytea, NULL::int" };
const TEXT: Dialect = Dialect { length: "octet_length", factor: 2, none: "NULL::text, NULL::int" };

/// The rows of the table, in the order in which they were stored.
pub(crate) struct Messages {
    table: &'static str,
    shape: Shape,
    /// Whether the columns hold bytes; otherwise topics are text, and the others hex.
    is_bytes: bool,
    after: Option<i64>,
    rehash: bool,
}

impl Messages {
    /// `columns`: each column's name and whether it holds bytes.
    pub(crate) fn new(
        table: &'static str,
        columns: &[(String, bool)],
        options: Options,
    ) -> Result<Self, Error> {
        let shape = Shape::of_columns(columns.iter().map(|(name, _)| name.as_str()))?;
        let is_bytes =
            columns.iter().any(|(name, is_bytes)| name.eq_ignore_ascii_case("payload") && *is_bytes);
        let after = parse_after(options.after.as_ref())?;
        Ok(Self { table, shape, is_bytes, after, rehash: options.rehash })
    }
}

impl Rows for Messages {
    fn table(&self) -> &'static str {
        self.table
    }

    fn select(&self) -> String {
        self.shape.select(self.table, self.after, if self.is_bytes { BYTES } else { TEXT })
    }

    fn convert(&mut self, row: &Row) -> Result<Converted, Refusal> {
        let row = OfMessage { row, is_bytes: self.is_bytes };
        self.after = stored_at(&row).or(self.after);
        message_of(&row, self.rehash)
    }

    fn name(&self, row: &Row) -> String {
        name_of(&OfMessage { row, is_bytes: self.is_bytes })
    }

    fn after(&self) -> Option<String> {
        self.after.map(|after| after.to_string())
    }
}

struct OfMessage<'a> {
    row: &'a Row,
    is_bytes: bool,
}

impl Columns for OfMessage<'_> {
    fn bytes(&self, column: usize, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
        let refusal = |_| Refusal(format!("{name} has an unexpected type"));
        let bytes = if self.is_bytes {
            self.row.try_get::<_, Option<Vec<u8>>>(column).map_err(refusal)?
        } else {
            let text: Option<&str> = self.row.try_get(column).map_err(refusal)?;
            let is_plain = name.ends_with("Topic");
            match text {
                Some(text) if is_plain => Some(text.as_bytes().to_vec()),
                Some(text) => Some(hex::decode(text).map_err(|_| Refusal(format!("{name} is not hex")))?),
                None => None,
            }
        };
        let len: Option<i32> = self.row.try_get(column + 1).map_err(refusal)?;
        match (bytes, len) {
            (None, Some(len)) => Err(Refusal(format!("{name} of {len} bytes is too long"))),
            (bytes, _) => Ok(bytes),
        }
    }

    fn number(&self, column: usize, name: &str) -> Result<i64, Refusal> {
        let wide: Result<Option<i64>, _> = self.row.try_get(column);
        let number = match wide {
            Ok(number) => number,
            // nwaku's version is an integer, all other numbers are bigint.
            Err(_) => self.row.try_get::<_, Option<i32>>(column).ok().flatten().map(i64::from),
        };
        number.ok_or_else(|| Refusal(format!("{name} is not an integer")))
    }
}
