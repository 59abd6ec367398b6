//! nwaku's and go-waku's SQLite files, also while a server writes to them.

use std::path::{Path, PathBuf};

use restante_core::ErrorKind;
use rusqlite::{Connection, OpenFlags, Row, config::DbConfig, limits::Limit, types::ValueRef};
use tokio::sync::mpsc;

use super::{Columns, Dialect, Shape, TABLES, message_of, name_of, parse_after, stored_at};
use crate::{
    Error, Extent, Options, Owner, Source,
    convert::Refusal,
    source::{Gather, Read},
};

/// How long to wait while a server locks the file.
const BUSY_MS_MAX: u64 = 10_000;
/// Memory for pages: rows are stored by hash and read by time.
const CACHE_KIB: i64 = 64 << 10;
/// The longest value or row: four times a body with its topics.
const VALUE_BYTES_MAX: i32 = 64 << 20;
/// The longest statement, ours or one of the file's schema.
const STATEMENT_BYTES_MAX: i32 = 64 << 10;
/// The most columns of a table.
const COLUMNS_MAX: i32 = 100;
/// Steps of SQLite's virtual machine allowed for any file, and for each of its bytes. Reading and sorting a row takes about
/// two hundred, and every row has at least fifty bytes.
const STEPS_MIN: u64 = 10_000_000;
const STEPS_PER_BYTE: u64 = 16;
/// Steps between two checks of the limit.
const STEPS_AT_ONCE: u32 = 10_000;
/// The offset of a file's write version: 2 for WAL.
const WRITE_VERSION_AT: usize = 18;
const DIALECT: Dialect = Dialect { length: "length", factor: 1, none: "NULL, NULL" };

/// Opens the archive in a file.
pub(crate) async fn open(file: PathBuf, options: Options) -> Result<Source, Error> {
    let opening = tokio::task::spawn_blocking(move || Opened::new(file, &options));
    let opened = opening.await.map_err(|error| Error::invalid("the reader failed").with_source(error))??;
    let (source, put) = Source::new(Owner::Nwaku, Some(Extent::Rows(opened.rows)));
    // It waits for the disk and for the consumer, so not on one of the runtime's own threads.
    std::thread::spawn(move || {
        let end = opened.read(&put).map(|()| None);
        let _ = put.blocking_send(end); // fails when the source was dropped
    });
    Ok(source)
}

/// A file with a known table.
struct Opened {
    file: PathBuf,
    connection: Connection,
    select: String,
    rows: u64,
    after: Option<i64>,
    rehash: bool,
}

impl Opened {
    fn new(file: PathBuf, options: &Options) -> Result<Self, Error> {
        let after = parse_after(options.after.as_ref())?;
        let failed = |error| failed(&file, error);
        let connection = connect(&file)?;
        let table = find_table(&connection).map_err(failed)?;
        let Some((table, columns)) = table else {
            return Err(Error::invalid(format!(
                "{} has no archive of nwaku or go-waku: there is no table of messages",
                file.display()
            )));
        };
        let shape = Shape::of_columns(columns.iter().map(String::as_str))?;
        let later = after.map(|after| format!("WHERE {} >= {after}", shape.stored_at)).unwrap_or_default();
        let count = format!("SELECT count(*) FROM {table} {later}");
        let rows: i64 = connection.query_row(&count, [], |row| row.get(0)).map_err(failed)?;
        let select = shape.select(table, after, DIALECT);
        let rows = u64::try_from(rows).unwrap_or(0);
        Ok(Self { connection, select, rows, after, rehash: options.rehash, file })
    }

    /// Reads everything, or until the source is dropped. A single statement, which sees the file as of its start.
    fn read(&self, put: &mpsc::Sender<Read>) -> Result<(), Error> {
        let failed = |error| failed(&self.file, error);
        let mut gather = Gather::default();
        let (mut after, mut done) = (self.after, 0);
        let mut statement = self.connection.prepare(&self.select).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            gather.add(message_of(row, self.rehash), || name_of(row));
            after = stored_at(row).or(after);
            done += 1;
            if gather.is_full() {
                let batch = gather.take(after.map(|after| after.to_string()), done);
                if put.blocking_send(Ok(Some(batch))).is_err() {
                    return Ok(());
                }
            }
        }
        let last = gather.take(after.map(|after| after.to_string()), done);
        let _ = put.blocking_send(Ok(Some(last))); // fails when the source was dropped
        Ok(())
    }
}

/// Opens the file without ever writing to it.
///
/// A file with a WAL beside it is opened read-only: a server may be running, and SQLite needs the WAL's index `-shm`, which
/// it creates if it is missing. Without a WAL no server is running (one that opens such a file creates it), so the file is
/// opened as immutable, and nothing is created beside it.
fn connect(file: &Path) -> Result<Connection, Error> {
    let is_unchanging = is_wal(file)? && !beside(file, "-wal").exists() && !beside(file, "-shm").exists();
    let uri = uri_of(file, is_unchanging)?;
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error| failed(file, error);
    let mut connection = Connection::open_with_flags(uri, flags).map_err(failed)?;
    connection.busy_timeout(std::time::Duration::from_millis(BUSY_MS_MAX)).map_err(failed)?;
    // Only the server may checkpoint the WAL, even if this is the last connection to close.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    // The file may be damaged or malicious: nothing that it defines is run.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(failed)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(failed)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false).map_err(failed)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).map_err(failed)?;
    for (limit, most) in [
        (Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX),
        (Limit::SQLITE_LIMIT_SQL_LENGTH, STATEMENT_BYTES_MAX),
        (Limit::SQLITE_LIMIT_COLUMN, COLUMNS_MAX),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
    ] {
        connection.set_limit(limit, most).map_err(failed)?;
    }
    bound_steps(&mut connection, file)?;
    connection.execute_batch("PRAGMA query_only = ON; PRAGMA cell_size_check = ON;").map_err(failed)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB).map_err(failed)?;
    Ok(connection)
}

/// Ends a statement that takes more steps than a file of this length can need. In a damaged tree a page may be linked several
/// times, so that there are more rows than bytes.
fn bound_steps(connection: &mut Connection, file: &Path) -> Result<(), Error> {
    let len = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    let bytes = len(file) + len(&beside(file, "-wal"));
    let mut steps_left = STEPS_MIN.saturating_add(bytes.saturating_mul(STEPS_PER_BYTE));
    let is_too_much = move || {
        steps_left = steps_left.saturating_sub(u64::from(STEPS_AT_ONCE));
        steps_left == 0
    };
    let bounded = connection.progress_handler(STEPS_AT_ONCE as i32, Some(is_too_much));
    bounded.map_err(|error| failed(file, error))
}

fn is_wal(file: &Path) -> Result<bool, Error> {
    use std::io::Read;
    let failed = |error| Error::io("read", file.display(), error);
    let mut head = Vec::new();
    let opened = std::fs::File::open(file).map_err(failed)?;
    opened.take(WRITE_VERSION_AT as u64 + 1).read_to_end(&mut head).map_err(failed)?;
    Ok(head.get(WRITE_VERSION_AT) == Some(&2))
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The file as a URI, RFC 3986: reserved characters are escaped.
fn uri_of(file: &Path, is_unchanging: bool) -> Result<String, Error> {
    let path = std::path::absolute(file).map_err(|error| Error::io("find", file.display(), error))?;
    let path = path.to_str().ok_or_else(|| Error::invalid("the file's path is not UTF-8"))?;
    let path = path.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    Ok(format!("file:{path}?{}", if is_unchanging { "immutable=1" } else { "mode=ro" }))
}

fn failed(file: &Path, error: rusqlite::Error) -> Error {
    if error.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted) {
        let what = "reading takes more steps than its length explains, so it is damaged or malicious";
        return Error::corrupt(format!("can't read {}: {what}", file.display())).with_source(error);
    }
    let kind = match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => ErrorKind::Corrupt,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("can't read {}: {error}", file.display())).with_source(error)
}

/// The table of messages and its columns without generated ones. Views and virtual tables are ignored.
fn find_table(connection: &Connection) -> rusqlite::Result<Option<(&'static str, Vec<String>)>> {
    for table in TABLES {
        let is_table = "SELECT count(*) FROM pragma_table_list WHERE schema = 'main' AND type = 'table' \
                        AND name = ?1 COLLATE NOCASE";
        if connection.query_row(is_table, [table], |row| row.get::<_, i64>(0))? == 0 {
            continue;
        }
        let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?1, 'main')")?;
        let columns = statement.query_map([table], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
        if !columns.is_empty() {
            return Ok(Some((table, columns)));
        }
    }
    Ok(None)
}

impl Columns for Row<'_> {
    fn bytes(&self, column: usize, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
        let refusal = |_| Refusal(format!("{name} can't be read"));
        match self.get_ref(column).map_err(refusal)? {
            ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Ok(Some(bytes.to_vec())),
            ValueRef::Integer(_) | ValueRef::Real(_) => Err(Refusal(format!("{name} is a number"))),
            ValueRef::Null => match self.get_ref(column + 1).map_err(refusal)? {
                ValueRef::Integer(len) => Err(Refusal(format!("{name} of {len} bytes is too long"))),
                _ => Ok(None),
            },
        }
    }

    fn number(&self, column: usize, name: &str) -> Result<i64, Refusal> {
        match self.get_ref(column) {
            Ok(ValueRef::Integer(number)) => Ok(number),
            _ => Err(Refusal(format!("{name} is not an integer"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A damaged tree may have more rows than the file has bytes. A recursive query simulates one.
    #[test]
    fn a_file_is_not_read_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.db");
        Connection::open(&file).unwrap().execute_batch("CREATE TABLE message (a)").unwrap();
        let connection = connect(&file).unwrap();
        let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";
        let error = connection.query_row(endless, [], |row| row.get::<_, i64>(0)).unwrap_err();
        let error = failed(&file, error);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("more steps"), "{error}");
    }

    #[test]
    fn a_uri_names_any_file() {
        let uri = uri_of("/a b/50%?#.db".as_ref(), true).unwrap();
        assert_eq!(uri, "file:/a b/50%25%3f%23.db?immutable=1");
        assert!(uri_of("x.db".as_ref(), false).unwrap().ends_with("/x.db?mode=ro"));
    }
}
