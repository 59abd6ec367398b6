//! The tables, and every statement that is run on them. `docs/formats/sqlite.md` describes them for people.

use std::{path::Path, time::Duration};

use restante_core::Timestamp;
use rusqlite::{Connection, OpenFlags, config::DbConfig};

/// Marks a SQLite file as an archive of this program: `Rstn`.
pub(super) const APPLICATION_ID: i32 = 0x5273_746e;
/// The version of the tables.
pub(super) const VERSION: i32 = 1;
/// Large enough for about ten messages, small enough that a commit of one message writes little. With 4 and 16 KiB the size of
/// the file and the speed of queries were the same within about a percent.
pub(super) const PAGE_BYTES: u32 = 8192;
/// Messages are searched for by hash in one generation after the other: this many in order of arrival.
pub(super) const GENERATION_BITS: u32 = 16;
/// How long a statement waits for another process that holds a lock: only an operator with a shell should.
pub(super) const BUSY: Duration = Duration::from_secs(5);
/// Statements that a connection keeps prepared: more than there are.
const STATEMENTS_MAX: usize = 64;
/// Bytes that the write-ahead log's file keeps when it starts over.
const WAL_KEPT_BYTES: u64 = 16 << 20;
/// How much of the file a reading connection maps, which avoids copies: pages at random places took 0.11 instead of 0.2 ms.
/// SQLite maps at most 2 GiB; the rest is read.
const MAPPED_BYTES_MAX: u64 = 2 << 30;

/// The tables of version 1.
pub(super) const TABLES: &str = "
CREATE TABLE meta (
  name TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('next_topic', 1);

CREATE TABLE topic (
  id INTEGER PRIMARY KEY,
  channel TEXT NOT NULL,
  topic TEXT NOT NULL,
  messages INTEGER NOT NULL,
  UNIQUE (channel, topic)
) STRICT;

CREATE TABLE generation (
  number INTEGER PRIMARY KEY,
  messages INTEGER NOT NULL,
  body_bytes INTEGER NOT NULL,
  oldest INTEGER NOT NULL,
  newest INTEGER NOT NULL
) STRICT;

CREATE TABLE message (
  id INTEGER PRIMARY KEY,
  timestamp INTEGER NOT NULL,
  hash BLOB NOT NULL,
  topic INTEGER NOT NULL,
  body BLOB NOT NULL
) STRICT;
CREATE INDEX message_time ON message (timestamp, hash, topic);
CREATE INDEX message_topic ON message (topic, timestamp, hash);
CREATE INDEX message_hash ON message (id >> 16, substr(hash, 1, 8));

CREATE VIEW messages AS
SELECT m.id,
       m.timestamp,
       strftime('%Y-%m-%dT%H:%M:%S', (m.timestamp - (m.timestamp % 1000000000 + 1000000000) % 1000000000) / 1000000000,
                'unixepoch')
         || printf('.%09dZ', (m.timestamp % 1000000000 + 1000000000) % 1000000000) AS time,
       '0x' || lower(hex(m.hash)) AS message_hash,
       t.channel,
       t.topic,
       length(m.body) AS body_bytes,
       m.body
FROM message m JOIN topic t ON t.id = m.topic;
";

/// Statements that read messages in the archive's order, after (?1, ?2) and before (?3, ?4): (timestamp, hash).
pub(super) const SCAN_FORWARD: &str = "SELECT timestamp, hash, topic, id FROM message INDEXED BY message_time \
    WHERE (timestamp, hash) > (?1, ?2) AND (timestamp, hash) < (?3, ?4) ORDER BY timestamp, hash";
pub(super) const SCAN_BACKWARD: &str = "SELECT timestamp, hash, topic, id FROM message INDEXED BY message_time \
    WHERE (timestamp, hash) > (?1, ?2) AND (timestamp, hash) < (?3, ?4) ORDER BY timestamp DESC, hash DESC";
/// The same of topic ?5.
pub(super) const TOPIC_FORWARD: &str = "SELECT timestamp, hash, topic, id FROM message INDEXED BY message_topic \
    WHERE topic = ?5 AND (timestamp, hash) > (?1, ?2) AND (timestamp, hash) < (?3, ?4) ORDER BY timestamp, hash";
pub(super) const TOPIC_BACKWARD: &str = "SELECT timestamp, hash, topic, id FROM message INDEXED BY message_topic \
    WHERE topic = ?5 AND (timestamp, hash) > (?1, ?2) AND (timestamp, hash) < (?3, ?4) \
    ORDER BY timestamp DESC, hash DESC";
/// Messages with hash ?1 in generations that have some between ?2 and ?3, newest arrivals first. The plus removes the number's
/// type, without which the index is not used.
pub(super) const BY_HASH: &str = "SELECT m.timestamp, m.hash, m.topic, m.id \
    FROM generation g CROSS JOIN message m INDEXED BY message_hash \
    WHERE m.id >> 16 = +g.number AND substr(m.hash, 1, 8) = substr(?1, 1, 8) AND m.hash = ?1 \
    AND g.newest >= ?2 AND g.oldest <= ?3 ORDER BY g.number DESC";
pub(super) const BODIES: &str = "SELECT id, body FROM message WHERE id BETWEEN ?1 AND ?2 ORDER BY id";

pub(super) const NEXT_TOPIC: &str = "SELECT value FROM meta WHERE name = 'next_topic'";
pub(super) const TOPICS_FROM: &str =
    "SELECT id, channel, topic, messages FROM topic WHERE id >= ?1 ORDER BY id";
pub(super) const TOPIC_NAME: &str = "SELECT channel, topic FROM topic WHERE id = ?1";
pub(super) const TOPIC_COUNT: &str = "SELECT count(*) FROM topic";
pub(super) const TOTALS: &str =
    "SELECT coalesce(sum(messages), 0), coalesce(sum(body_bytes), 0) FROM generation";
pub(super) const GENERATIONS: &str = "SELECT number, messages, body_bytes, oldest, newest FROM generation \
    WHERE messages > 0";
pub(super) const OLDEST: &str =
    "SELECT timestamp FROM message INDEXED BY message_time ORDER BY timestamp LIMIT 1";
pub(super) const NEWEST: &str =
    "SELECT timestamp FROM message INDEXED BY message_time ORDER BY timestamp DESC LIMIT 1";

pub(super) const FIND_MESSAGE: &str =
    "SELECT 1 FROM message INDEXED BY message_time WHERE timestamp = ?1 AND hash = ?2";
pub(super) const ADD_MESSAGE: &str =
    "INSERT INTO message (timestamp, hash, topic, body) VALUES (?1, ?2, ?3, ?4)";
pub(super) const ADD_TOPIC: &str = "INSERT INTO topic (id, channel, topic, messages) VALUES (?1, ?2, ?3, 0)";
pub(super) const SET_NEXT_TOPIC: &str = "UPDATE meta SET value = ?1 WHERE name = 'next_topic'";
pub(super) const COUNT_TOPIC: &str = "UPDATE topic SET messages = messages + ?2 WHERE id = ?1";
pub(super) const COUNT_GENERATION: &str = "INSERT INTO generation VALUES (?1, ?2, ?3, ?4, ?5) \
    ON CONFLICT (number) DO UPDATE SET messages = messages + excluded.messages, \
    body_bytes = body_bytes + excluded.body_bytes, \
    oldest = min(oldest, excluded.oldest), newest = max(newest, excluded.newest)";

pub(super) const OLDEST_MESSAGES: &str = "SELECT id, timestamp, topic, length(body) \
    FROM message INDEXED BY message_time ORDER BY timestamp, hash LIMIT ?1";
pub(super) const REMOVE_MESSAGE: &str = "DELETE FROM message WHERE id = ?1";
pub(super) const DISCOUNT_TOPIC: &str = "UPDATE topic SET messages = messages - ?2 WHERE id = ?1";
pub(super) const REMOVE_TOPIC: &str = "DELETE FROM topic WHERE id = ?1 AND messages <= 0";
/// The rest of a generation is not older than ?4, since messages are removed in the order of time.
pub(super) const DISCOUNT_GENERATION: &str = "UPDATE generation SET messages = messages - ?2, \
    body_bytes = body_bytes - ?3, oldest = max(oldest, ?4) WHERE number = ?1";
pub(super) const REMOVE_GENERATION: &str = "DELETE FROM generation WHERE number = ?1 AND messages <= 0";

/// Every statement that clients or the writer wait for.
pub(super) const STATEMENTS: [&str; 26] = [
    SCAN_FORWARD,
    SCAN_BACKWARD,
    TOPIC_FORWARD,
    TOPIC_BACKWARD,
    BY_HASH,
    BODIES,
    NEXT_TOPIC,
    TOPICS_FROM,
    TOPIC_NAME,
    TOPIC_COUNT,
    TOTALS,
    GENERATIONS,
    OLDEST,
    NEWEST,
    FIND_MESSAGE,
    ADD_MESSAGE,
    ADD_TOPIC,
    SET_NEXT_TOPIC,
    COUNT_TOPIC,
    COUNT_GENERATION,
    OLDEST_MESSAGES,
    REMOVE_MESSAGE,
    DISCOUNT_TOPIC,
    REMOVE_TOPIC,
    DISCOUNT_GENERATION,
    REMOVE_GENERATION,
];

/// The generation that a message belongs to.
pub(super) fn generation_of(id: i64) -> i64 {
    id >> GENERATION_BITS
}

/// Messages and the bytes of their bodies.
pub(super) fn totals(connection: &Connection) -> rusqlite::Result<(u64, u64)> {
    let totals = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let (messages, body_bytes) = connection.prepare_cached(TOTALS)?.query_row([], totals)?;
    Ok((messages.max(0).unsigned_abs(), body_bytes.max(0).unsigned_abs()))
}

/// A generation that has messages.
pub(super) struct Generation {
    pub(super) number: i64,
    pub(super) messages: u64,
    pub(super) body_bytes: u64,
    /// No message of it is older.
    pub(super) oldest: Timestamp,
    /// No message of it is newer.
    pub(super) newest: Timestamp,
}

/// All generations that have messages, about one for each 65,536 of the archive, oldest first.
pub(super) fn generations(connection: &Connection) -> rusqlite::Result<Vec<Generation>> {
    let mut statement = connection.prepare_cached(GENERATIONS)?;
    let rows = statement.query_map([], |row| {
        let number = |column: usize| row.get::<_, i64>(column);
        Ok(Generation {
            number: number(0)?,
            messages: number(1)?.max(0).unsigned_abs(),
            body_bytes: number(2)?.max(0).unsigned_abs(),
            oldest: Timestamp(number(3)?),
            newest: Timestamp(number(4)?),
        })
    })?;
    let mut generations = rows.collect::<rusqlite::Result<Vec<Generation>>>()?;
    generations.sort_unstable_by_key(|generation| (generation.oldest, generation.number));
    Ok(generations)
}

/// How many topics have messages.
pub(super) fn topics(connection: &Connection) -> rusqlite::Result<u64> {
    let topics: i64 = connection.prepare_cached(TOPIC_COUNT)?.query_row([], |row| row.get(0))?;
    Ok(topics.max(0).unsigned_abs())
}

/// The timestamp that a statement finds, if any.
pub(super) fn timestamp(connection: &Connection, sql: &str) -> rusqlite::Result<Option<Timestamp>> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    rows.next()?.map(|row| row.get(0).map(Timestamp)).transpose()
}

/// The pages of the file after all of the log is moved into it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    pub(super) in_all: u64,
    pub(super) free: u64,
    /// Of each.
    pub(super) bytes: u64,
}

pub(super) fn pages(connection: &Connection) -> rusqlite::Result<Pages> {
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let in_all = number("page_count")?.max(0).unsigned_abs();
    let free = number("freelist_count")?.max(0).unsigned_abs().min(in_all);
    Ok(Pages { in_all, free, bytes: number("page_size")?.max(0).unsigned_abs() })
}

/// Creates the tables in an empty file.
pub(super) fn create(file: &Path) -> rusqlite::Result<()> {
    let connection = connect(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.execute_batch("BEGIN")?;
    connection.execute_batch(TABLES)?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", VERSION)?;
    connection.execute_batch("COMMIT")?;
    // Closing moves the log into the file as well, and reports no error when the disk is full. Nothing else reads the log.
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    connection.close().map_err(|(_, error)| error)
}

/// A connection that writes. It never checkpoints by itself: the checkpointer does that.
pub(super) fn connect_to_write(file: &Path, cache_bytes: usize) -> rusqlite::Result<Connection> {
    let connection = connect(file, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?; // an operator may have changed it
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", WAL_KEPT_BYTES as i64)?;
    // Nor when it is closed: after a failed sync the log must stay as it is.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    set_cache(&connection, cache_bytes)?;
    Ok(connection)
}

/// A connection that reads.
pub(super) fn connect_to_read(file: &Path, cache_bytes: usize) -> rusqlite::Result<Connection> {
    let connection = connect(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.pragma_update(None, "mmap_size", MAPPED_BYTES_MAX as i64)?;
    set_cache(&connection, cache_bytes)?;
    Ok(connection)
}

fn connect(file: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    // A connection has one user at a time, so it needs no lock of its own. The path is absolute, so that it never looks like a
    // URI.
    let connection = Connection::open_with_flags(file, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // The file is data: it may be damaged, and must not cause anything to be executed.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    Ok(connection)
}

fn set_cache(connection: &Connection, bytes: usize) -> rusqlite::Result<()> {
    let kib = i64::try_from(bytes / 1024).unwrap_or(i64::MAX).max(64);
    connection.pragma_update(None, "cache_size", -kib) // negative: KiB instead of pages
}
