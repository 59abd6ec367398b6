//! Shared by the unit tests of this engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    path::Path,
    sync::Arc,
    thread,
};

use restante_core::{Clock, Identity, ManualClock, NANOS_PER_SECOND, Timestamp};
use restante_lmdb::Direction;
use tempfile::TempDir;

use crate::{
    AccountId, Body, Change, Commit, Config, EngineUrl, Error, Index, IndexSchema, Kind, KindSchema,
    Properties, Property, RecordId, Schema,
};

use super::{Engine, commit::commit, schema::TABLES};

pub(super) const ACCOUNT: AccountId = AccountId(7);
pub(super) const EMAIL: Kind = Kind(1);
pub(super) const MAILBOX_KIND: Kind = Kind(2);
pub(super) const MAILBOX: Property = Property(1);
pub(super) const RECEIVED: Property = Property(2);
pub(super) const KEYWORD: Property = Property(3);
pub(super) const MESSAGE_ID: Property = Property(4);
pub(super) const BY_MAILBOX: Index = Index(1);
pub(super) const BY_MESSAGE_ID: Index = Index(2);

/// The same for every store of these tests, so that stores with the same content are equal.
pub(super) const IDENTITY: Identity = Identity([7; 16]);

/// The time at which everything in these tests happens.
pub(super) const SECOND: u64 = 1_700_000_000;

/// Emails with an index of each order, and mailboxes with none.
pub(super) fn schema() -> Schema {
    let email = KindSchema::new(EMAIL, "email")
        .property(MAILBOX, "mailbox")
        .property(RECEIVED, "received")
        .property(KEYWORD, "keyword")
        .property(MESSAGE_ID, "message_id")
        .index(IndexSchema::ordered(BY_MAILBOX, "mailbox", &[MAILBOX, RECEIVED]))
        .index(IndexSchema::scattered(BY_MESSAGE_ID, "message_id", &[MESSAGE_ID]));
    let mailbox = KindSchema::new(MAILBOX_KIND, "mailbox").property(RECEIVED, "received");
    Schema::new(vec![email, mailbox]).unwrap()
}

/// An engine in a folder of its own.
pub(super) fn engine() -> (TempDir, Arc<Engine>) {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path()).unwrap();
    (folder, Arc::new(engine))
}

/// Opens the engine of a folder, on a thread that may block.
pub(super) fn open(folder: &Path) -> Result<Engine, Error> {
    let mut config = Config::new(EngineUrl::Lmdb(folder.to_owned()), schema());
    config.identity = IDENTITY;
    config.clock = Arc::new(ManualClock::new(Timestamp(SECOND as i64 * NANOS_PER_SECOND))) as Arc<dyn Clock>;
    thread::scope(|scope| {
        scope.spawn(|| Engine::open(folder, &config, crate::open::Purpose::Serve)).join().unwrap()
    })
}

pub(super) fn email(mailbox: u64, received: u64) -> Properties {
    let message_id = format!("<{received}@example.org>");
    Properties::default()
        .with(MAILBOX, mailbox)
        .with(RECEIVED, received)
        .with(MESSAGE_ID, bytes::Bytes::from(message_id))
}

pub(super) fn create(properties: Properties) -> Change {
    Change::Create { kind: EMAIL, body: Body::new("a body"), properties }
}

pub(super) fn update(id: RecordId, properties: Properties) -> Change {
    Change::Update { kind: EMAIL, id, body: None, properties: Some(properties) }
}

pub(super) fn destroy(id: RecordId) -> Change {
    Change::Destroy { kind: EMAIL, id }
}

/// Commits changes of the account; returns the ids of the creates.
pub(super) async fn make(engine: &Arc<Engine>, changes: impl IntoIterator<Item = Change>) -> Vec<RecordId> {
    commit(engine, ACCOUNT, Commit::of(changes)).await.unwrap().created
}

/// Commits changes of the account; returns the tables of the rows that differ afterwards, one for each row. Asserts that no other
/// row is written.
pub(super) async fn written(
    engine: &Arc<Engine>,
    changes: impl IntoIterator<Item = Change>,
) -> Vec<&'static str> {
    let (before, waiting_before) = (rows(engine), engine.store.stats().unwrap().waiting_rows);
    make(engine, changes).await;
    let (after, waiting_after) = (rows(engine), engine.store.stats().unwrap().waiting_rows);
    let tables = difference(&before, &after);
    assert_eq!(
        waiting_after - waiting_before,
        tables.len() as u64,
        "a row was written as it was: {tables:?}"
    );
    tables
}

/// All rows: table and key, and the value.
pub(super) type Rows = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

pub(super) fn rows(engine: &Engine) -> Rows {
    let read = engine.store.read(|view| {
        let mut all = Rows::new();
        for table in TABLES {
            let mut rows = view.range(table, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
            while let Some((key, value)) = rows.next()? {
                all.insert((table.name(), key.to_vec()), value.to_vec());
            }
        }
        Ok(all)
    });
    read.unwrap()
}

/// The tables of the rows that are different, one for each row.
pub(super) fn difference(before: &Rows, after: &Rows) -> Vec<&'static str> {
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    keys.into_iter().filter(|key| before.get(*key) != after.get(*key)).map(|(table, _)| *table).collect()
}
