//! On opening: changes the indexes to those of the requested schema.
//!
//! The row of the schema says which indexes the store has, and whether each is complete. Before any entry is touched, all indexes
//! that will change are marked as incomplete; when everything is done, those of the new schema are marked as complete. If that
//! was interrupted, the next opening removes the incomplete indexes and builds them again.

use std::ops::{Bound, ControlFlow};

use restante_lmdb::{
    Direction, Store, View,
    key::{KeyBuf, after_prefix, take_byte},
};
use tracing::{info, warn};

use super::{
    schema::{
        INDEX, META, META_SCHEMA, STATE, StateRow, corrupt, decode_state_key, index_key, index_prefix,
        take_account,
    },
    walk::{VIEW_ROWS_MAX, walk},
};
use crate::{
    AccountId, Error, Index, IndexSchema, Kind, Properties, RecordId, Schema, entries,
    indexes::{Known, decode, encode, in_between, wanted},
};

/// Entries that one commit writes or removes; the entries of one record are not split.
const WRITE_ENTRIES: usize = 1_000;

/// Makes the indexes of a store match `schema`.
///
/// # Errors
/// `Invalid` when a record would have too many entries in a new index; those of the store.
pub(super) fn adapt(store: &Store, schema: &Schema) -> Result<(), Error> {
    let before = store.read(read_known)?;
    let wanted = wanted(schema);
    if before.as_ref() == Some(&wanted) {
        return Ok(());
    }
    let is_new = before.is_none();
    let before = before.unwrap_or_default();
    let kept: Vec<Known> = before.iter().filter(|index| wanted.contains(index)).cloned().collect();
    let gone: Vec<Known> = before.into_iter().filter(|index| !kept.contains(index)).collect();
    let new: Vec<Known> = wanted.iter().filter(|index| !kept.contains(index)).cloned().collect();
    let touched: Vec<Known> = gone.iter().chain(&new).cloned().collect();
    if !is_new {
        info!(
            removed = gone.len(),
            new = new.len(),
            "the indexes of the records have changed: building the new ones"
        );
    }
    write_known(store, in_between(&kept, &touched))?;
    remove(store, &touched)?;
    if !new.is_empty() {
        build(store, schema, &new)?;
    }
    write_known(store, wanted)
}

/// Whether the row of the schema says that the store has the indexes of `schema`, all of them complete.
pub(super) fn is_whole(row: &[u8], schema: &Schema) -> bool {
    decode(row).is_some_and(|known| known == wanted(schema))
}

/// The indexes that a store has; `None` when it is new.
fn read_known(view: &View<'_>) -> Result<Option<Vec<Known>>, Error> {
    match view.get(META, META_SCHEMA)? {
        Some(row) => decode(row).map(Some).ok_or_else(|| corrupt(META, META_SCHEMA)),
        None => Ok(None),
    }
}

fn write_known(store: &Store, indexes: Vec<Known>) -> Result<(), Error> {
    store.write_blocking(move |batch| {
        batch.put(META, META_SCHEMA, &encode(&indexes));
        Ok(())
    })
}

/// Removes all entries of some indexes.
fn remove(store: &Store, indexes: &[Known]) -> Result<(), Error> {
    let mut from = KeyBuf::from_slice(&[0]);
    loop {
        let found = store.read(|view| find_entries(view, &from, indexes))?;
        delete(store, found.keys)?;
        match found.next {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

fn delete(store: &Store, keys: Vec<KeyBuf>) -> Result<(), Error> {
    if keys.is_empty() {
        return Ok(());
    }
    store.write_blocking(move |batch| {
        for key in &keys {
            batch.delete(INDEX, key);
        }
        Ok(())
    })
}

/// Entries to be removed.
struct Found {
    keys: Vec<KeyBuf>,
    /// Where to continue; `None` at the end of the table.
    next: Option<KeyBuf>,
}

/// The entries of some indexes from a key on, as many as one view allows. Other indexes are skipped as a whole.
fn find_entries(view: &View<'_>, from: &[u8], indexes: &[Known]) -> Result<Found, Error> {
    let mut keys = Vec::new();
    let mut next = Some(KeyBuf::from_slice(from));
    for _ in 0..VIEW_ROWS_MAX {
        let Some(from) = next.take() else { break };
        let mut rows = view.range(INDEX, Bound::Included(&from), Bound::Unbounded, Direction::Ascending)?;
        let Some((key, _)) = rows.next()? else { break };
        let Some(stretch) = Stretch::of(key) else {
            next = Some(behind(key)); // not a key of an entry: the check reports it
            continue;
        };
        next = after_prefix(&stretch.prefix);
        if !stretch.is_of(indexes) {
            continue;
        }
        keys.push(KeyBuf::from_slice(key));
        while let Some((key, _)) = rows.next()? {
            if !key.starts_with(&stretch.prefix) {
                break;
            }
            if keys.len() >= WRITE_ENTRIES {
                return Ok(Found { keys, next: Some(KeyBuf::from_slice(key)) });
            }
            keys.push(KeyBuf::from_slice(key));
        }
    }
    Ok(Found { keys, next })
}

/// All entries of an account in one index.
struct Stretch {
    kind: Kind,
    index: Index,
    prefix: KeyBuf,
}

impl Stretch {
    /// The stretch that a key belongs to; `None` when it can't be the key of an entry.
    fn of(mut key: &[u8]) -> Option<Self> {
        let account = take_account(&mut key)?;
        let kind = Kind(take_byte(&mut key)?);
        let index = Index(take_byte(&mut key)?);
        Some(Self { kind, index, prefix: index_prefix(account, kind, index) })
    }

    fn is_of(&self, indexes: &[Known]) -> bool {
        indexes.iter().any(|known| (known.kind, known.index) == (self.kind, self.index))
    }
}

/// The smallest key greater than `key`.
fn behind(key: &[u8]) -> KeyBuf {
    let mut next = KeyBuf::from_slice(key);
    next.push(0);
    next
}

/// Builds the entries of some indexes from the records.
fn build(store: &Store, schema: &Schema, indexes: &[Known]) -> Result<(), Error> {
    let mut from = Bound::Unbounded;
    loop {
        let mut made: Vec<KeyBuf> = Vec::new();
        let mut last = None;
        walk(store, STATE, from.as_ref().map(|key: &KeyBuf| &key[..]), &mut |_, key, value| {
            add_entries(schema, indexes, key, value, &mut made)?;
            if made.len() < WRITE_ENTRIES {
                return Ok(ControlFlow::Continue(()));
            }
            last = Some(KeyBuf::from_slice(key));
            Ok(ControlFlow::Break(()))
        })?;
        put(store, made)?;
        match last {
            Some(last) => from = Bound::Excluded(last),
            None => return Ok(()),
        }
    }
}

fn put(store: &Store, keys: Vec<KeyBuf>) -> Result<(), Error> {
    if keys.is_empty() {
        return Ok(());
    }
    store.write_blocking(move |batch| {
        for key in &keys {
            batch.put(INDEX, key, &[]);
        }
        Ok(())
    })
}

/// Adds the entries that the record of a row has in some indexes. A damaged row has none: the check reports it.
fn add_entries(
    schema: &Schema,
    indexes: &[Known],
    key: &[u8],
    value: &[u8],
    made: &mut Vec<KeyBuf>,
) -> Result<(), Error> {
    let Some((account, kind, id)) = decode_state_key(key) else { return Ok(()) };
    if !indexes.iter().any(|known| known.kind == kind) {
        return Ok(());
    }
    let properties =
        StateRow::decode(value).and_then(|row| entries::take_properties(&mut { row.properties }));
    let Some(properties) = properties else {
        warn!(account = account.0, kind = kind.0, id = id.0, "a damaged record is left out of a new index");
        return Ok(());
    };
    let is_new =
        |index: &IndexSchema| indexes.iter().any(|known| (known.kind, known.index) == (kind, index.index));
    for index in schema.kind(kind)?.indexes.iter().filter(|index| is_new(index)) {
        made.extend(entry_keys(account, kind, id, index, &properties)?);
    }
    Ok(())
}

/// The keys of the entries that a record has in an index.
pub(super) fn entry_keys(
    account: AccountId,
    kind: Kind,
    id: RecordId,
    index: &IndexSchema,
    properties: &Properties,
) -> Result<Vec<KeyBuf>, Error> {
    let mut keys = Vec::new();
    for entry in entries::entries(index, properties)? {
        let mut values = KeyBuf::new();
        entries::pack_values(&mut values, &entry);
        keys.push(index_key(account, kind, index, &values, id));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use restante_core::{ErrorKind, ManualClock};
    use restante_lmdb::Options;

    use super::*;
    use crate::{
        Commit, Config, EngineUrl, KindSchema, Property, Query,
        lmdb::{
            Engine,
            commit::commit,
            schema::TABLES,
            testing::{
                BY_MAILBOX, BY_MESSAGE_ID, EMAIL, IDENTITY, KEYWORD, MAILBOX, MAILBOX_KIND, MESSAGE_ID,
                RECEIVED, Rows, create, destroy, difference, email, rows, update,
            },
        },
    };

    const RECORDS: u64 = 700;
    /// A short commit log, since many stores are opened here.
    const LOG_BYTES: u64 = 1 << 20;

    /// Emails with these indexes, and mailboxes.
    fn schema(indexes: &[IndexSchema]) -> Schema {
        let mut kind = KindSchema::new(EMAIL, "email");
        for (property, name) in [(MAILBOX, "mailbox"), (RECEIVED, "received"), (MESSAGE_ID, "message_id")] {
            kind = kind.property(property, name);
        }
        kind.indexes = indexes.to_vec();
        Schema::new(vec![kind, KindSchema::new(MAILBOX_KIND, "mailbox")]).unwrap()
    }

    fn by_mailbox() -> IndexSchema {
        IndexSchema::ordered(BY_MAILBOX, "mailbox", &[MAILBOX, RECEIVED])
    }

    fn by_message_id() -> IndexSchema {
        IndexSchema::scattered(BY_MESSAGE_ID, "message_id", &[MESSAGE_ID])
    }

    fn try_open(folder: &Path, schema: Schema) -> Result<Arc<Engine>, Error> {
        let mut config = Config::new(EngineUrl::Lmdb(folder.to_owned()), schema);
        config.identity = IDENTITY;
        config.clock = Arc::new(ManualClock::default());
        config.lmdb.log_bytes = LOG_BYTES;
        config.lmdb.is_compressed = false; // a dictionary may be ready at any time, and rows could then not be compared
        Engine::open(folder, &config, crate::open::Purpose::Serve).map(Arc::new)
    }

    /// Runs something that may block, such as opening a store, on the blocking pool.
    async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        tokio::task::spawn_blocking(work).await.unwrap()
    }

    async fn open(folder: &Path, schema: Schema) -> Arc<Engine> {
        let folder = folder.to_owned();
        blocking(move || try_open(&folder, schema)).await.unwrap()
    }

    async fn close(engine: Arc<Engine>) {
        engine.bodies.close();
        engine.store.close().await.unwrap();
    }

    /// Some hundred emails in each of two accounts, some of them changed and some destroyed.
    async fn filled(folder: &Path, indexes: &[IndexSchema]) {
        let engine = open(folder, schema(indexes)).await;
        for account in [AccountId(1), AccountId(300)] {
            let creates = (0..RECORDS).map(|n| create(email(n % 7, n).with(MAILBOX, 3)));
            let ids = commit(&engine, account, Commit::of(creates)).await.unwrap().created;
            let gone = ids.iter().step_by(10).copied().map(destroy);
            commit(&engine, account, Commit::of(gone)).await.unwrap();
            let changed = ids.iter().skip(1).step_by(10).map(|id| update(*id, email(9, id.0)));
            commit(&engine, account, Commit::of(changed)).await.unwrap();
        }
        close(engine).await;
    }

    /// Opens the store with these indexes; everything must be as if they had existed from the beginning.
    async fn assert_adapts(folder: &Path, schema: Schema) -> Rows {
        let engine = open(folder, schema).await;
        assert_eq!(engine.check(&|_, _| {}).unwrap().findings, []);
        let rows = rows(&engine);
        close(engine).await;
        rows
    }

    fn assert_same(one: &Rows, other: &Rows) {
        assert_eq!(difference(one, other), Vec::<&str>::new());
    }

    fn entries(rows: &Rows) -> usize {
        rows.keys().filter(|(table, _)| *table == INDEX.name()).count()
    }

    #[tokio::test]
    async fn new_indexes_are_made_of_the_records_and_gone_ones_removed() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), &[]).await;
        assert_eq!(entries(&assert_adapts(folder.path(), schema(&[])).await), 0);
        let both = assert_adapts(folder.path(), schema(&[by_mailbox(), by_message_id()])).await;
        assert!(entries(&both) > 2 * WRITE_ENTRIES, "more than one write each");
        let one = assert_adapts(folder.path(), schema(&[by_message_id()])).await;
        assert_eq!(entries(&one), 2 * (RECORDS as usize - RECORDS as usize / 10));
        assert_eq!(entries(&assert_adapts(folder.path(), schema(&[])).await), 0);
    }

    #[tokio::test]
    async fn a_new_index_answers_and_goes_on_with_new_commits() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), &[]).await;
        let engine = open(folder.path(), schema(&[by_mailbox()])).await;
        let account = AccountId(300);
        let query = Query::new(EMAIL, BY_MAILBOX).equals(9).limit(4_096);
        assert_eq!(engine.query(account, &query).unwrap().ids.len(), 70);
        commit(&engine, account, Commit::of([create(email(9, 1))])).await.unwrap();
        assert_eq!(engine.query(account, &query).unwrap().ids.len(), 71);
        assert_eq!(engine.check(&|_, _| {}).unwrap().findings, []);
    }

    #[tokio::test]
    async fn another_order_or_other_parts_under_the_same_number_are_another_index() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), &[by_mailbox(), by_message_id()]).await;
        for changed in [
            IndexSchema::ordered(BY_MAILBOX, "mailbox", &[RECEIVED, MAILBOX]),
            IndexSchema::scattered(BY_MAILBOX, "mailbox", &[RECEIVED, MAILBOX]),
            IndexSchema::ordered(BY_MAILBOX, "mailbox", &[RECEIVED]),
            by_mailbox(),
        ] {
            assert_adapts(folder.path(), schema(&[changed, by_message_id()])).await;
        }
    }

    #[tokio::test]
    async fn names_and_new_kinds_and_properties_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), &[by_mailbox()]).await;
        let before = assert_adapts(folder.path(), schema(&[by_mailbox()])).await;
        let mut kinds = schema(&[by_mailbox()]).kinds().to_vec();
        kinds[0].name = "letter";
        kinds[0].indexes[0].name = "folder";
        kinds[0].properties.push((KEYWORD, "keyword"));
        kinds.push(KindSchema::new(Kind(77), "thread").property(Property(1), "subject"));
        assert_same(&assert_adapts(folder.path(), Schema::new(kinds).unwrap()).await, &before);
    }

    #[tokio::test]
    async fn a_kind_that_the_schema_lacks_keeps_its_records_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), &[by_mailbox(), by_message_id()]).await;
        let before = assert_adapts(folder.path(), schema(&[by_mailbox(), by_message_id()])).await;
        let mailboxes = Schema::new(vec![KindSchema::new(MAILBOX_KIND, "mailbox")]).unwrap();
        assert_eq!(entries(&assert_adapts(folder.path(), mailboxes).await), 0);
        assert_same(&assert_adapts(folder.path(), schema(&[by_mailbox(), by_message_id()])).await, &before);
    }

    #[tokio::test]
    async fn a_property_that_the_schema_lacks_stays_with_the_records_that_have_it() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), &[by_mailbox(), by_message_id()]).await;
        let mut kinds = schema(&[by_message_id()]).kinds().to_vec();
        kinds[0].properties.retain(|(property, _)| *property != MAILBOX);
        let rows = assert_adapts(folder.path(), Schema::new(kinds).unwrap()).await;
        assert_eq!(entries(&rows), 2 * (RECORDS as usize - RECORDS as usize / 10));
        assert_adapts(folder.path(), schema(&[by_mailbox()])).await;
    }

    #[tokio::test]
    async fn a_record_with_too_many_entries_for_a_new_index_refuses_the_schema_and_does_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path(), &[by_message_id()]).await;
        let engine = open(folder.path(), schema(&[by_message_id()])).await;
        let mut many = Properties::default();
        for n in 0..20 {
            many = many.with(MAILBOX, n).with(RECEIVED, n);
        }
        let last = AccountId(1_000); // its entries would come last
        commit(&engine, last, Commit::of([create(many)])).await.unwrap();
        close(engine).await;
        let before = assert_adapts(folder.path(), schema(&[by_message_id()])).await;
        let path = folder.path().to_owned();
        let error = blocking(move || try_open(&path, schema(&[by_mailbox()]))).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        // At that point, entries of both indexes had been touched.
        assert_same(&assert_adapts(folder.path(), schema(&[by_message_id()])).await, &before);
    }

    /// Only the first steps of a change from one index to another.
    fn begin_to_change(folder: &Path, steps: usize) {
        let store =
            Store::open(folder, &TABLES, Options { log_bytes: LOG_BYTES, ..Options::default() }).unwrap();
        let (gone, new) = (wanted(&schema(&[by_mailbox()])), wanted(&schema(&[by_message_id()])));
        let touched = [gone.clone(), new.clone()].concat();
        let found = store.read(|view| find_entries(view, &[0], &gone)).unwrap();
        for step in 0..steps {
            match step {
                0 => write_known(&store, in_between(&[], &touched)).unwrap(),
                1 => delete(&store, found.keys.clone()).unwrap(),
                2 => remove(&store, &touched).unwrap(),
                3 => {
                    build(&store, &schema(&[by_message_id()]), &new).unwrap();
                    let made = store.read(|view| find_entries(view, &[0], &new)).unwrap();
                    delete(&store, made.keys).unwrap(); // as if they had not been written yet
                }
                _ => build(&store, &schema(&[by_message_id()]), &new).unwrap(),
            }
        }
    }

    #[tokio::test]
    async fn a_change_that_broke_off_anywhere_is_finished_whatever_schema_comes_next() {
        for next in [vec![by_mailbox()], vec![by_message_id()], vec![by_mailbox(), by_message_id()], vec![]] {
            let fresh = tempfile::tempdir().unwrap();
            filled(fresh.path(), &next).await;
            let expected = assert_adapts(fresh.path(), schema(&next)).await;
            for steps in 1..=5 {
                let folder = tempfile::tempdir().unwrap();
                filled(folder.path(), &[by_mailbox()]).await;
                let path = folder.path().to_owned();
                blocking(move || begin_to_change(&path, steps)).await;
                assert_same(&assert_adapts(folder.path(), schema(&next)).await, &expected);
            }
        }
    }

    #[test]
    fn the_row_of_a_schema_reads_back_and_damaged_ones_do_not() {
        let known = in_between(&wanted(&schema(&[by_mailbox()])), &wanted(&schema(&[by_message_id()])));
        let row = encode(&known);
        assert_eq!(decode(&row), Some(known));
        for len in 1..row.len() {
            let cut_between_two = decode(&row[..len]).is_none_or(|known| known.len() == 1);
            assert!(cut_between_two, "{len}");
        }
        assert_eq!(decode(&[1, 1, 2, 1, 0]), None, "no such order");
        assert_eq!(decode(&[1, 1, 0, 2, 0]), None, "neither whole nor not");
    }
}
