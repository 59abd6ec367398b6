//! The tables, and every statement that is run repeatedly. `docs/formats/postgres.md` describes them.

use crate::Direction;

/// The layout that this version writes. Migrations upgrade each older one to it.
pub(super) const VERSION: i32 = 1;

/// The statements that migrate from version n to n + 1.
pub(super) const MIGRATIONS: [&str; VERSION as usize] = [FIRST];

/// Topics and channels are bytes, because a text of PostgreSQL can't contain a zero byte; they are found by their digests,
/// because an index row can't have 4 KiB. The topics' index has an expression for the time: with the plain column, the planner
/// could use the primary key for the order of one topic, and read all others on the way.
const FIRST: &str = "
CREATE TABLE state (
    is_only bool PRIMARY KEY DEFAULT true CHECK (is_only),
    sequence bigint NOT NULL DEFAULT 0,
    drops bigint NOT NULL DEFAULT 0,
    next_topic int NOT NULL DEFAULT 0
);
INSERT INTO state DEFAULT VALUES;

CREATE TABLE topics (
    id int PRIMARY KEY,
    channel bytea NOT NULL,
    topic bytea NOT NULL
);
CREATE UNIQUE INDEX topics_by_name ON topics (sha256(topic), sha256(channel));

CREATE TABLE windows (
    generation bigint PRIMARY KEY,
    first_ns bigint NOT NULL,
    end_ns bigint NOT NULL
);
CREATE UNIQUE INDEX windows_by_time ON windows (first_ns);

CREATE TABLE window_topics (
    generation bigint NOT NULL REFERENCES windows ON DELETE CASCADE,
    topic int NOT NULL REFERENCES topics,
    messages bigint NOT NULL DEFAULT 0,
    sequence bigint NOT NULL,
    PRIMARY KEY (generation, topic)
);
CREATE INDEX window_topics_by_sequence ON window_topics (sequence);
CREATE INDEX window_topics_by_topic ON window_topics (topic);

CREATE TABLE window_counts (
    generation bigint NOT NULL REFERENCES windows ON DELETE CASCADE,
    slot int NOT NULL,
    messages bigint NOT NULL,
    body_bytes bigint NOT NULL,
    PRIMARY KEY (generation, slot)
) WITH (fillfactor = 50);

CREATE TABLE messages (
    timestamp bigint NOT NULL,
    hash bytea NOT NULL,
    topic int NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (timestamp, hash)
) PARTITION BY RANGE (timestamp);
CREATE INDEX messages_by_topic ON messages (topic, (timestamp + 0));
CREATE INDEX messages_by_hash ON messages USING hash (hash);

CREATE VIEW readable AS
SELECT to_timestamp(m.timestamp / 1e9) AS at, m.timestamp, encode(m.hash, 'hex') AS hash,
       encode(t.channel, 'escape') AS channel, encode(t.topic, 'escape') AS topic, m.body
FROM messages m JOIN topics t ON t.id = m.topic;
";

/// The table of a window. Bodies are not compressed: encrypted ones don't shrink, and trying costs more than storing. The check
/// avoids a scan under a lock when the table becomes a partition.
pub(super) fn create_leaf(generation: i64, first_ns: i64, end_ns: i64) -> String {
    let leaf = leaf_name(generation);
    let (until, check) = if end_ns == i64::MAX {
        ("MAXVALUE".to_owned(), String::new())
    } else {
        (format!("('{end_ns}')"), format!(" AND timestamp < '{end_ns}'::bigint"))
    };
    let until = if end_ns == i64::MAX { format!("({until})") } else { until };
    format!(
        "CREATE TABLE {leaf} (timestamp bigint NOT NULL, hash bytea NOT NULL, topic int NOT NULL, body bytea NOT NULL, \
             PRIMARY KEY (timestamp, hash), \
             CONSTRAINT {leaf}_window CHECK (timestamp >= '{first_ns}'::bigint{check})) \
             WITH (toast_tuple_target = 8160);
         ALTER TABLE {leaf} ALTER body SET STORAGE EXTERNAL, ALTER hash SET STORAGE PLAIN;
         CREATE INDEX {leaf}_by_topic ON {leaf} (topic, (timestamp + 0));
         CREATE INDEX {leaf}_by_hash ON {leaf} USING hash (hash);
         ALTER TABLE messages ATTACH PARTITION {leaf} FOR VALUES FROM ('{first_ns}') TO {until};
         ALTER TABLE {leaf} DROP CONSTRAINT {leaf}_window;"
    )
}

/// The name of a window's table. A window that is created again has another one, so that no server writes into a table that is
/// about to be dropped.
pub(super) fn leaf_name(generation: i64) -> String {
    format!("messages_{generation}")
}

/// The key of a prepared statement: its window and its purpose.
pub(super) type SelectKey = (i64, Select);

/// A statement that reads rows of one window in the order of a query's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Select {
    pub(super) access: Access,
    pub(super) is_forward: bool,
    pub(super) bodies: bool,
    /// Whether a row of topic [`STATE_TOPIC`] with the state is added.
    pub(super) with_state: bool,
}

/// The topic of the row that has the state: no message has it. Its timestamp is the sequence, its hash the drops as eight bytes.
pub(super) const STATE_TOPIC: i32 = -1;

/// How a statement finds its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Access {
    /// All rows of a range. `$1..$4`: from (exclusive) and until (exclusive), each a timestamp and a hash; `$5`: the limit.
    All,
    /// The same, but only topics whose bit is set. `$6`: the bits as bytes, `$7`: how many bits there are.
    Scan,
    /// The rows of each topic separately, merged. `$6`: the topics' numbers.
    Merge,
    /// All rows of some topics in all windows of a range at once, sorted. `$6`: the topics' numbers.
    Gather,
    /// The rows of some hashes. `$6`: the hashes.
    Hashes,
    /// The rows of some hashes, of wanted topics only. `$6`: the hashes, `$7` and `$8` as `$6` and `$7` of a scan.
    HashesOfTopics,
    /// The timestamp of a hash (`$1`).
    FindHash,
    /// Inserts; see [`insert`].
    Insert,
    /// Reads the state; belongs to no window.
    State,
}

impl Select {
    pub(super) fn new(access: Access, direction: Direction, bodies: bool) -> Self {
        Self { access, is_forward: direction == Direction::Forward, bodies, with_state: false }
    }

    /// Every statement that reads messages.
    pub(super) fn all() -> Vec<Self> {
        let ways = [
            Access::All,
            Access::Scan,
            Access::Merge,
            Access::Gather,
            Access::Hashes,
            Access::HashesOfTopics,
        ];
        let mut all = vec![Self::new(Access::FindHash, Direction::Forward, false)];
        for access in ways {
            for direction in [Direction::Forward, Direction::Backward] {
                for bodies in [true, false] {
                    let select = Self::new(access, direction, bodies);
                    all.extend([select, Self { with_state: true, ..select }]);
                }
            }
        }
        all
    }

    /// The statement for one window's table.
    pub(super) fn sql(self, leaf: &str) -> String {
        let messages = self.messages_sql(leaf);
        if !self.with_state {
            return messages;
        }
        let no_body = if self.bodies { ", ''::bytea" } else { "" };
        format!("SELECT sequence, int8send(drops), {STATE_TOPIC}{no_body} FROM state UNION ALL ({messages})")
    }

    fn messages_sql(self, leaf: &str) -> String {
        let columns = if self.bodies { "timestamp, hash, topic, body" } else { "timestamp, hash, topic" };
        let range =
            "(timestamp, hash) > ($1::bigint, $2::bytea) AND (timestamp, hash) < ($3::bigint, $4::bytea)";
        let order = if self.is_forward { "timestamp, hash" } else { "timestamp DESC, hash DESC" };
        // The expression of the topics' index: the planner can't use another index for it.
        let own_order = if self.is_forward { "timestamp + 0, hash" } else { "timestamp + 0 DESC, hash DESC" };
        let end = format!("ORDER BY {order} LIMIT $5::bigint");
        match self.access {
            Access::All => format!("SELECT {columns} FROM {leaf} WHERE {range} {end}"),
            Access::Scan => {
                format!("SELECT {columns} FROM {leaf} WHERE {range} AND {} {end}", is_wanted(6, 7))
            }
            Access::Merge => format!(
                "SELECT found.* FROM unnest($6::int[]) AS wanted (number) CROSS JOIN LATERAL \
                 (SELECT {columns} FROM {leaf} WHERE topic = wanted.number AND {range} \
                  AND timestamp + 0 BETWEEN $1 AND $3 ORDER BY {own_order} LIMIT $5::bigint) AS found {end}"
            ),
            Access::Gather => format!(
                // With the conditions on the plain column the executor leaves out the tables of other times. Each has a second
                // half that implies the first, because no index serves it then: the planner could use the primary key for a plain
                // range, and read all other topics on the way.
                "SELECT {columns} FROM messages WHERE topic = ANY ($6::int[]) \
                 AND (timestamp >= $1::bigint OR timestamp > $3::bigint) AND (timestamp <= $3 OR timestamp < $1) \
                 AND (timestamp + 0, hash) > ($1, $2::bytea) AND (timestamp + 0, hash) < ($3, $4::bytea) \
                 ORDER BY {own_order} LIMIT $5::bigint"
            ),
            Access::Hashes => format!(
                "SELECT {columns} FROM unnest($6::bytea[]) AS asked (hash) JOIN {leaf} USING (hash) \
                 WHERE {range} {end}"
            ),
            Access::HashesOfTopics => format!(
                "SELECT {columns} FROM unnest($6::bytea[]) AS asked (hash) JOIN {leaf} USING (hash) \
                 WHERE {range} AND {} {end}",
                is_wanted(7, 8)
            ),
            Access::FindHash => format!("SELECT timestamp FROM {leaf} WHERE hash = $1::bytea LIMIT 1"),
            Access::Insert => insert(leaf),
            Access::State => STATE.to_owned(),
        }
    }
}

/// Whether a row's topic has its bit set. A topic that is newer than the bits has none.
fn is_wanted(bits: u32, len: u32) -> String {
    format!("CASE WHEN topic < ${len}::int THEN get_bit(${bits}::bytea, topic) = 1 ELSE false END")
}

/// Stores messages and counts them, in one statement: `$1` timestamps, `$2` hashes, `$3` topics, `$4` bodies, `$5` the window. It
/// returns the keys of the messages that were new. Connections count in separate slots, so that servers don't wait for each
/// other's counts.
fn insert(leaf: &str) -> String {
    format!(
        "WITH stored AS (
             INSERT INTO {leaf} (timestamp, hash, topic, body)
             SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::int[], $4::bytea[])
             ON CONFLICT DO NOTHING RETURNING timestamp, hash, length(body) AS len
         ), counted AS (
             INSERT INTO window_counts AS c (generation, slot, messages, body_bytes)
             SELECT $5::bigint, pg_backend_pid() % 64, count(*), sum(len) FROM stored HAVING count(*) > 0
             ON CONFLICT (generation, slot) DO UPDATE
             SET messages = c.messages + excluded.messages, body_bytes = c.body_bytes + excluded.body_bytes
         )
         SELECT timestamp, hash FROM stored"
    )
}

/// The current version of the catalogue of topics and windows.
pub(super) const STATE: &str = "SELECT sequence, drops FROM state";
/// Its key among the prepared statements.
pub(super) const STATE_KEY: SelectKey =
    (0, Select { access: Access::State, is_forward: true, bodies: false, with_state: false });
