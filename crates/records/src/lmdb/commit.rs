//! Commits.
//!
//! One writer thread applies the commits of all accounts one after the other, so it does only what depends on existing rows: the
//! committing task compresses bodies and packs properties beforehand.

use std::{ops::Bound, sync::Arc};

use restante_lmdb::{
    Batch, Direction, View,
    key::{KeyBuf, after_prefix, take_byte},
};

use crate::{
    AccountId, Announcement, Body, Change, Commit, Committed, Error, Gate, IndexSchema, Kind, KindSchema,
    Position, Properties, Property, RecordId, Revision, Touched, UnsyncedBlob, entries,
    validate::{check_commit, check_state, check_synced, is_erasing, no_such_record},
};

use super::{
    Engine, Ledger, blocking,
    schema::{
        ACCOUNT, AccountRow, BLOB, BODY, BodyNumber, FEED, HISTORY, INDEX, LiveRow, STATE, StateRow,
        TombstoneRow, account_key, body_key, corrupt, decode_body_key, encode_feed, feed_key, index_key,
        kind_prefix, live_key, second, skip_value, state_key, tombstone_key,
    },
};

/// Up to this many bytes of bodies are compressed on the calling thread: a kilobyte takes some microseconds.
const BODIES_INLINE_BYTES_MAX: usize = 64 << 10;

/// Up to this many changes are checked and packed on the calling thread: each takes less than half a microsecond.
const CHANGES_INLINE_MAX: usize = 1_024;

/// The number of the last existing body.
pub(super) fn last_body(view: &View<'_>) -> Result<BodyNumber, Error> {
    let mut bodies = view.range(BODY, Bound::Unbounded, Bound::Unbounded, Direction::Descending)?;
    match bodies.next()? {
        Some((key, _)) => decode_body_key(key).ok_or_else(|| corrupt(BODY, key)),
        None => Ok(BodyNumber::EMPTY),
    }
}

/// Applies a commit, and announces it.
pub(super) async fn commit(
    engine: &Arc<Engine>,
    account: AccountId,
    commit: Commit,
) -> Result<Committed, Error> {
    commit_after(engine, &[], account, commit).await
}

/// The same, once all gates are open.
pub(super) async fn commit_after(
    engine: &Arc<Engine>,
    gates: &[Gate],
    account: AccountId,
    commit: Commit,
) -> Result<Committed, Error> {
    if !engine.makes_blobs_durable() {
        check_synced(gates)?;
    }
    let bodies_bytes: usize = commit.changes.iter().filter_map(body_of).map(|body| body.bytes.len()).sum();
    let is_long = bodies_bytes > BODIES_INLINE_BYTES_MAX || commit.changes.len() > CHANGES_INLINE_MAX;
    let plan = if is_long {
        let engine = engine.clone();
        blocking(move || Plan::make(&engine, account, commit)).await?
    } else {
        Plan::make(engine, account, commit)?
    };
    write(engine, gates, plan).await
}

fn body_of(change: &Change) -> Option<&Body> {
    match change {
        Change::Create { body, .. } => Some(body),
        Change::Update { body, .. } => body.as_ref(),
        Change::Destroy { .. } => None,
    }
}

async fn write(engine: &Arc<Engine>, gates: &[Gate], plan: Plan) -> Result<Committed, Error> {
    let creates = plan.creates;
    let (account, ledger, announcer) = (plan.account, engine.ledger.clone(), engine.announcer.clone());
    let unsynced: Vec<UnsyncedBlob> = gates.iter().filter_map(Gate::unsynced).cloned().collect();
    let work = move |batch: &mut Batch<'_>| {
        let made = plan.carry_out(batch, &ledger)?;
        unsynced.iter().for_each(|blob| batch.put(BLOB, &blob.id.0, &blob.bytes));
        if made.position.is_some() {
            let announcement = Announcement { account, revision: made.revision };
            let waking = announcer.clone();
            batch.on_durable(move || announcer.send(announcement));
            batch.on_answered(move || waking.wake());
        }
        Ok(made)
    };
    let made = engine.store.write_after(gates, work).await?;
    if made.position.is_some() {
        engine.bodies.wrote(engine.ledger.last_body());
    }
    Ok(Committed { revision: made.revision, created: (made.first.0..).take(creates).map(RecordId).collect() })
}

/// The result of a commit.
struct Made {
    /// The account's new revision.
    revision: Revision,
    /// The id of its first create.
    first: RecordId,
    /// Its position in the feed; `None` when it had no changes.
    position: Option<Position>,
}

/// A commit that is ready for the writer thread.
struct Plan {
    account: AccountId,
    expect: Vec<(Kind, Revision)>,
    changes: Vec<Planned>,
    creates: usize,
}

/// A change with everything prepared that doesn't depend on existing rows.
enum Planned {
    Create { kind: Kind, body: Vec<u8>, properties: PlannedProperties, entries: Vec<PackedEntry> },
    Update { kind: Kind, id: RecordId, body: Option<Vec<u8>>, properties: Option<PlannedProperties> },
    Destroy { kind: Kind, id: RecordId },
}

enum PlannedProperties {
    /// As stored in the record's row.
    Packed(KeyBuf),
    /// With ids or the revision of the commit, which the writer thread fills in.
    Unresolved(Properties),
}

/// An entry of the n-th index of a kind: its packed values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PackedEntry {
    index: usize,
    values: KeyBuf,
}

impl Plan {
    fn make(engine: &Engine, account: AccountId, commit: Commit) -> Result<Self, Error> {
        check_commit(&engine.ledger.schema, &commit)?;
        let creates = commit.changes.iter().filter(|change| matches!(change, Change::Create { .. })).count();
        let mut changes = Vec::with_capacity(commit.changes.len());
        for change in commit.changes {
            changes.push(plan(engine, change)?);
        }
        Ok(Self { account, expect: commit.expect, changes, creates })
    }

    /// Writes the rows of the commit.
    fn carry_out(self, batch: &mut Batch<'_>, ledger: &Ledger) -> Result<Made, Error> {
        let stored = AccountRow::read(batch.view(), self.account)?;
        let restores = ledger.restores - stored.restores.min(ledger.restores);
        let row = stored.after_restores(ledger.restores);
        if row.is_erasing {
            return Err(is_erasing(self.account));
        }
        for (kind, expected) in &self.expect {
            check_state(*kind, *expected, row.kind(*kind).state)?;
        }
        if self.changes.is_empty() {
            return Ok(Made { revision: row.revision, first: row.next_id, position: None });
        }
        let mut writer = Writer::new(batch, ledger, self.account, row);
        let (first, revision) = (writer.first, writer.revision);
        writer.restores = restores;
        writer.raise_counters()?;
        for change in self.changes {
            writer.change(change)?;
        }
        let position = writer.finish();
        Ok(Made { revision, first, position: Some(position) })
    }
}

/// Writes the row of an account whose revision has risen, and moves it to the end of the feed; returns its position there.
pub(super) fn put_account(
    batch: &mut Batch<'_>,
    ledger: &Ledger,
    account: AccountId,
    row: &mut AccountRow,
) -> Position {
    if row.position > Position::default() {
        batch.delete(FEED, &feed_key(row.position));
    }
    row.position = ledger.next_position();
    let touched =
        Touched { position: row.position, account, revision: row.revision, committed_at: ledger.clock.now() };
    batch.put(FEED, &feed_key(row.position), &encode_feed(&touched));
    batch.put(ACCOUNT, &account_key(account), &row.encode());
    row.position
}

fn plan(engine: &Engine, change: Change) -> Result<Planned, Error> {
    Ok(match change {
        Change::Create { kind, body, properties } => {
            let kind_schema = engine.ledger.schema.kind(kind)?;
            let entries = if properties.are_resolved() {
                pack_entries(kind_schema, &properties, |_| true)?
            } else {
                Vec::new()
            };
            let properties = PlannedProperties::of(properties);
            Planned::Create { kind, body: pack_body(engine, &body), properties, entries }
        }
        Change::Update { kind, id, body, properties } => Planned::Update {
            kind,
            id,
            body: body.map(|body| pack_body(engine, &body)),
            properties: properties.map(PlannedProperties::of),
        },
        Change::Destroy { kind, id } => Planned::Destroy { kind, id },
    })
}

/// The row of a body; empty for the empty body, which has no row.
pub(super) fn pack_body(engine: &Engine, body: &Body) -> Vec<u8> {
    let is_empty = body.bytes.is_empty() && body.blobs.is_empty();
    if is_empty { Vec::new() } else { engine.bodies.encode(body) }
}

impl PlannedProperties {
    fn of(properties: Properties) -> Self {
        if properties.are_resolved() { Self::Packed(pack(&properties)) } else { Self::Unresolved(properties) }
    }

    /// The properties as stored in the row, with the revision of the commit and the ids that it assigns, which start at `first`.
    fn resolve(self, first: RecordId, revision: Revision) -> KeyBuf {
        match self {
            Self::Packed(row) => row,
            Self::Unresolved(properties) => {
                let resolved = properties.resolved(|n| Some(RecordId(first.0 + u64::from(n))), revision);
                pack(&resolved.expect("every place of a create was given an id"))
            }
        }
    }
}

pub(super) fn pack(properties: &Properties) -> KeyBuf {
    let mut row = KeyBuf::new();
    entries::pack_properties(&mut row, properties);
    row
}

/// The entries of a record in the selected indexes of its kind, ascending.
fn pack_entries(
    kind: &KindSchema,
    properties: &Properties,
    is_wanted: impl Fn(&IndexSchema) -> bool,
) -> Result<Vec<PackedEntry>, Error> {
    let mut packed = Vec::new();
    for (place, index) in kind.indexes.iter().enumerate() {
        if !is_wanted(index) {
            continue;
        }
        for values in entries::entries(index, properties)? {
            let mut entry = PackedEntry { index: place, values: KeyBuf::new() };
            entries::pack_values(&mut entry.values, &values);
            packed.push(entry);
        }
    }
    Ok(packed)
}

/// Writes the rows of a commit.
pub(super) struct Writer<'w, 's> {
    pub(super) batch: &'w mut Batch<'s>,
    ledger: &'w Ledger,
    account: AccountId,
    pub(super) row: AccountRow,
    /// The id of the first create.
    first: RecordId,
    revision: Revision,
    /// For how many restores this commit raises the account's numbers.
    restores: u64,
}

impl<'w, 's> Writer<'w, 's> {
    /// Begins the commit that follows the given account row.
    pub(super) fn new(
        batch: &'w mut Batch<'s>,
        ledger: &'w Ledger,
        account: AccountId,
        row: AccountRow,
    ) -> Self {
        let (first, revision) = (row.next_id, Revision(row.revision.0 + 1));
        Self { batch, ledger, account, row, first, revision, restores: 0 }
    }

    fn change(&mut self, change: Planned) -> Result<(), Error> {
        match change {
            Planned::Create { kind, body, properties, entries } => {
                self.create(kind, &body, properties, entries)
            }
            Planned::Update { kind, id, body, properties } => {
                self.update(kind, id, body.as_deref(), properties)
            }
            Planned::Destroy { kind, id } => self.destroy(kind, id),
        }
    }

    fn create(
        &mut self,
        kind: Kind,
        body: &[u8],
        properties: PlannedProperties,
        mut entries: Vec<PackedEntry>,
    ) -> Result<(), Error> {
        let id = self.row.next_id;
        self.row.next_id = RecordId(id.0 + 1);
        let is_packed = matches!(properties, PlannedProperties::Packed(_));
        let properties = properties.resolve(self.first, self.revision);
        if !is_packed {
            entries = self.entries_of_row(kind, id, &properties, |_| true)?;
        }
        for entry in &entries {
            let key = self.entry_key(kind, id, entry)?;
            self.batch.put(INDEX, &key, &[]);
        }
        let (revision, created) = (self.revision, self.revision);
        let state = StateRow { revision, created, body: self.put_body(body), properties: &properties };
        self.batch.put(STATE, &state_key(self.account, kind, id), &state.encode());
        self.put_live(kind, id, LiveRow::Creation);
        let share = self.row.kind_mut(kind);
        share.state = revision;
        share.records += 1;
        Ok(())
    }

    /// Writes the body, the properties and the index entries only where they change.
    fn update(
        &mut self,
        kind: Kind,
        id: RecordId,
        body: Option<&[u8]>,
        properties: Option<PlannedProperties>,
    ) -> Result<(), Error> {
        let key = state_key(self.account, kind, id);
        let value = self.read_state(&key, kind, id)?;
        let old = StateRow::decode(&value).ok_or_else(|| corrupt(STATE, &key))?;
        let properties = properties.map(|properties| properties.resolve(self.first, self.revision));
        if let Some(new) = &properties {
            self.move_entries(kind, id, old.properties, new)?;
        }
        let body = match body {
            Some(body) => {
                self.delete_body(old.body);
                self.put_body(body)
            }
            None => old.body,
        };
        let properties = match properties {
            Some(properties) => properties,
            None => {
                let kind = self.ledger.schema.kind(kind)?;
                self.with_counters_raised(kind, old.properties).ok_or_else(|| corrupt(STATE, &key))?
            }
        };
        let state = StateRow { revision: self.revision, created: old.created, body, properties: &properties };
        self.batch.put(STATE, &key, &state.encode());
        if old.revision != old.created {
            self.delete_live(kind, id, old.revision);
        }
        self.put_live(kind, id, LiveRow::Change { created: old.created });
        self.row.kind_mut(kind).state = self.revision;
        Ok(())
    }

    fn destroy(&mut self, kind: Kind, id: RecordId) -> Result<(), Error> {
        let created = self.remove(kind, id)?;
        let tombstone = TombstoneRow { created, second: second(self.ledger.clock.now()) };
        self.batch.put(HISTORY, &tombstone_key(self.account, kind, self.revision, id), &tombstone.encode());
        let share = self.row.kind_mut(kind);
        share.state = self.revision;
        share.tombstones += 1;
        Ok(())
    }

    /// Removes a record without leaving a tombstone; returns the revision that created it.
    pub(super) fn remove(&mut self, kind: Kind, id: RecordId) -> Result<Revision, Error> {
        let key = state_key(self.account, kind, id);
        let value = self.read_state(&key, kind, id)?;
        let old = StateRow::decode(&value).ok_or_else(|| corrupt(STATE, &key))?;
        for entry in self.entries_of_row(kind, id, old.properties, |_| true)? {
            let key = self.entry_key(kind, id, &entry)?;
            self.batch.delete(INDEX, &key);
        }
        self.delete_body(old.body);
        self.batch.delete(STATE, &key);
        self.delete_live(kind, id, old.created);
        if old.revision != old.created {
            self.delete_live(kind, id, old.revision);
        }
        let share = self.row.kind_mut(kind);
        share.records = share.records.saturating_sub(1);
        Ok(old.created)
    }

    /// Raises the counters of the account's records, as its ids are raised, if the store was restored since the account's last
    /// commit. The records don't count as changed: readers have seen the higher values since the restore.
    fn raise_counters(&mut self) -> Result<(), Error> {
        if self.restores == 0 {
            return Ok(());
        }
        let kinds = self.ledger.schema.kinds().iter().filter(|kind| !kind.counters.is_empty());
        for kind in kinds {
            let prefix = kind_prefix(self.account, kind.kind);
            let mut raised = Vec::new();
            let (from, end) = (Bound::Included(&prefix[..]), after_prefix(&prefix));
            let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let mut rows = self.batch.view().range(STATE, from, to, Direction::Ascending)?;
            while let Some((key, value)) = rows.next()? {
                let row = StateRow::decode(value).ok_or_else(|| corrupt(STATE, key))?;
                let properties = self.with_counters_raised(kind, row.properties);
                let properties = properties.ok_or_else(|| corrupt(STATE, key))?;
                raised.push((KeyBuf::from_slice(key), StateRow { properties: &properties, ..row }.encode()));
            }
            drop(rows);
            for (key, value) in raised {
                self.batch.put(STATE, &key, &value);
            }
        }
        Ok(())
    }

    /// Packed properties as they are after the restores; `None` when they are damaged.
    fn with_counters_raised(&self, kind: &KindSchema, mut packed: &[u8]) -> Option<KeyBuf> {
        if self.restores == 0 || kind.counters.is_empty() {
            return Some(KeyBuf::from_slice(packed));
        }
        let properties = entries::take_properties(&mut packed)?;
        Some(pack(&properties.raised(&kind.counters, self.restores)))
    }

    /// Writes the account's row and its feed row; returns its position.
    fn finish(mut self) -> Position {
        self.row.revision = self.revision;
        put_account(self.batch, self.ledger, self.account, &mut self.row)
    }

    /// A copy of a record's row, which is some dozens of bytes: the batch can't be written to while one of its rows is borrowed.
    fn read_state(&self, key: &[u8], kind: Kind, id: RecordId) -> Result<KeyBuf, Error> {
        let value = self.batch.view().get(STATE, key)?;
        value.map(KeyBuf::from_slice).ok_or_else(|| no_such_record(kind, id))
    }

    fn put_body(&mut self, row: &[u8]) -> BodyNumber {
        if row.is_empty() {
            return BodyNumber::EMPTY;
        }
        let number = self.ledger.next_body();
        self.batch.put(BODY, &body_key(number), row);
        number
    }

    fn delete_body(&mut self, number: BodyNumber) {
        if number != BodyNumber::EMPTY {
            self.batch.delete(BODY, &body_key(number));
        }
    }

    fn put_live(&mut self, kind: Kind, id: RecordId, row: LiveRow) {
        self.batch.put(HISTORY, &live_key(self.account, kind, self.revision, id), &row.encode());
    }

    fn delete_live(&mut self, kind: Kind, id: RecordId, revision: Revision) {
        self.batch.delete(HISTORY, &live_key(self.account, kind, revision, id));
    }

    fn move_entries(&mut self, kind: Kind, id: RecordId, old: &[u8], new: &[u8]) -> Result<(), Error> {
        let changed =
            ChangedProperties::between(old, new).ok_or_else(|| self.damaged_properties(kind, id))?;
        let is_changed = |index: &IndexSchema| index.parts.iter().any(|part| changed.has(*part));
        let old = self.entries_of_row(kind, id, old, is_changed)?;
        let new = self.entries_of_row(kind, id, new, is_changed)?;
        for gone in old.iter().filter(|entry| new.binary_search(entry).is_err()) {
            let key = self.entry_key(kind, id, gone)?;
            self.batch.delete(INDEX, &key);
        }
        for added in new.iter().filter(|entry| old.binary_search(entry).is_err()) {
            let key = self.entry_key(kind, id, added)?;
            self.batch.put(INDEX, &key, &[]);
        }
        Ok(())
    }

    /// The entries that the properties in a row give in the selected indexes, ascending.
    fn entries_of_row(
        &self,
        kind: Kind,
        id: RecordId,
        mut row: &[u8],
        is_wanted: impl Fn(&IndexSchema) -> bool,
    ) -> Result<Vec<PackedEntry>, Error> {
        // Records of a kind that is not in the schema can only be erased, and have no indexes.
        let Ok(kind_schema) = self.ledger.schema.kind(kind) else { return Ok(Vec::new()) };
        if !kind_schema.indexes.iter().any(&is_wanted) {
            return Ok(Vec::new());
        }
        let properties =
            entries::take_properties(&mut row).ok_or_else(|| self.damaged_properties(kind, id))?;
        pack_entries(kind_schema, &properties, is_wanted)
    }

    fn entry_key(&self, kind: Kind, id: RecordId, entry: &PackedEntry) -> Result<KeyBuf, Error> {
        let indexes = &self.ledger.schema.kind(kind)?.indexes;
        let index = indexes.get(entry.index).expect("entries are made by walking over these indexes");
        Ok(index_key(self.account, kind, index, &entry.values, id))
    }

    fn damaged_properties(&self, kind: Kind, id: RecordId) -> Error {
        corrupt(STATE, &state_key(self.account, kind, id))
    }
}

/// Which properties have other values than before.
struct ChangedProperties([bool; 256]);

impl ChangedProperties {
    /// Compares packed properties; `None` when they are malformed.
    fn between(mut old: &[u8], mut new: &[u8]) -> Option<Self> {
        let mut changed = Self([false; 256]);
        let (mut left, mut right) = (take_pair(&mut old)?, take_pair(&mut new)?);
        loop {
            // Pairs are ascending on both sides, and so are their bytes: the smaller of two has no counterpart on the other side.
            let order = match (left, right) {
                (None, None) => return Some(changed),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(left), Some(right)) => left.cmp(right),
            };
            if order.is_lt() {
                changed.add(left);
            }
            if order.is_gt() {
                changed.add(right);
            }
            if order.is_le() {
                left = take_pair(&mut old)?;
            }
            if order.is_ge() {
                right = take_pair(&mut new)?;
            }
        }
    }

    fn add(&mut self, pair: Option<&[u8]>) {
        let property = pair.and_then(|pair| pair.first());
        if let Some(place) = property.and_then(|property| self.0.get_mut(usize::from(*property))) {
            *place = true;
        }
    }

    fn has(&self, property: Property) -> bool {
        self.0.get(usize::from(property.0)).is_some_and(|is_changed| *is_changed)
    }
}

/// Takes a property and one of its values from the front: `Some(None)` at the end, `None` when the bytes are malformed.
fn take_pair<'a>(row: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let begin = *row;
    if begin.is_empty() {
        return Some(None);
    }
    take_byte(row)?;
    skip_value(row)?;
    let (pair, _) = begin.split_at_checked(begin.len() - row.len())?;
    Some(Some(pair))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use restante_core::ErrorKind;

    use super::super::testing::{
        ACCOUNT as OURS, BY_MESSAGE_ID, EMAIL, KEYWORD, MAILBOX, MAILBOX_KIND, MESSAGE_ID, RECEIVED, create,
        destroy, difference, email, engine, make, open, rows, update, written,
    };
    use super::*;
    use crate::{ChangesSince, Get, Value};

    #[tokio::test]
    async fn a_create_writes_its_body_its_state_its_history_and_its_entries() {
        let (_folder, engine) = engine();
        make(&engine, [create(email(1, 100))]).await;
        // Moving the account in the feed deletes one row and writes another.
        let expected = ["account", "body", "feed", "feed", "history", "index", "index", "state"];
        assert_eq!(written(&engine, [create(email(1, 101))]).await, expected);
    }

    #[tokio::test]
    async fn an_empty_body_has_no_row() {
        let (_folder, engine) = engine();
        let change =
            Change::Create { kind: MAILBOX_KIND, body: Body::default(), properties: Properties::default() };
        assert_eq!(written(&engine, [change]).await, ["account", "feed", "history", "state"]);
        let found = engine.get(OURS, &Get::whole(MAILBOX_KIND, vec![RecordId(1)])).unwrap();
        assert_eq!(found[0].as_ref().unwrap().body, Body::default());
    }

    #[tokio::test]
    async fn a_changed_keyword_touches_neither_body_nor_index() {
        let (_folder, engine) = engine();
        let ids = make(&engine, [create(email(1, 100))]).await;
        let seen = update(ids[0], email(1, 100).with(KEYWORD, "$seen"));
        assert_eq!(written(&engine, [seen]).await, ["account", "feed", "feed", "history", "state"]);
        // The history row of the change moves; that of the creation stays.
        let unseen = update(ids[0], email(1, 100));
        assert_eq!(
            written(&engine, [unseen]).await,
            ["account", "feed", "feed", "history", "history", "state"]
        );
    }

    #[tokio::test]
    async fn a_changed_value_moves_the_entries_of_its_index_alone() {
        let (_folder, engine) = engine();
        let ids = make(&engine, [create(email(1, 100).with(MAILBOX, 2))]).await;
        let moved = update(ids[0], email(2, 100).with(MAILBOX, 3));
        // It was in mailboxes 1 and 2, and is now in 2 and 3.
        assert_eq!(
            written(&engine, [moved]).await,
            ["account", "feed", "feed", "history", "index", "index", "state"]
        );
    }

    #[tokio::test]
    async fn a_changed_body_touches_no_index() {
        let (_folder, engine) = engine();
        let ids = make(&engine, [create(email(1, 100))]).await;
        let body = Some(Body::new("another"));
        let changed = Change::Update { kind: EMAIL, id: ids[0], body, properties: None };
        let expected = ["account", "body", "body", "feed", "feed", "history", "state"];
        assert_eq!(written(&engine, [changed]).await, expected);
    }

    #[tokio::test]
    async fn what_is_destroyed_leaves_a_tombstone_and_nothing_else() {
        let (_folder, engine) = engine();
        make(&engine, [create(email(1, 99))]).await;
        let before = rows(&engine);
        let ids = make(&engine, [create(email(1, 100))]).await;
        make(&engine, [update(ids[0], email(2, 100))]).await;
        make(&engine, [destroy(ids[0])]).await;
        assert_eq!(difference(&before, &rows(&engine)), ["account", "feed", "feed", "history"]);
    }

    #[tokio::test]
    async fn a_commit_that_fails_uses_up_neither_a_revision_nor_an_id() {
        let (_folder, engine) = engine();
        let first = make(&engine, [create(email(1, 100))]).await[0];
        let before = rows(&engine);
        let failing = Commit::of([create(email(1, 101)), destroy(RecordId(99))]);
        let error = commit(&engine, OURS, failing).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(rows(&engine), before);
        let committed = commit(&engine, OURS, Commit::of([create(email(1, 102))])).await.unwrap();
        assert_eq!((committed.revision, committed.created), (Revision(2), vec![RecordId(first.0 + 1)]));
    }

    #[tokio::test]
    async fn ids_of_the_commit_stand_in_properties_and_indexes() {
        let (_folder, engine) = engine();
        let changes = [
            create(
                Properties::default().with(MESSAGE_ID, Value::Created(1)).with(RECEIVED, Value::Created(0)),
            ),
            create(Properties::default()),
        ];
        let ids = make(&engine, changes).await;
        let found = engine.get(OURS, &Get::small(EMAIL, ids.clone())).unwrap();
        let expected = Properties::default().with(MESSAGE_ID, ids[1]).with(RECEIVED, ids[0]);
        assert_eq!(found[0].as_ref().unwrap().properties, expected);
        let query = crate::Query::new(EMAIL, BY_MESSAGE_ID).equals(ids[1]);
        assert_eq!(engine.query(OURS, &query).unwrap().ids, [ids[0]]);
    }

    #[tokio::test]
    async fn numbers_of_bodies_and_commits_go_on_after_a_restart() {
        let (folder, engine) = engine();
        make(&engine, [create(email(1, 100)), create(email(1, 101))]).await;
        engine.bodies.close();
        engine.store.close().await.unwrap();
        drop(engine);
        let engine = Arc::new(open(folder.path()).unwrap());
        assert_eq!(engine.ledger.last_body(), BodyNumber(2));
        make(&engine, [create(email(1, 102))]).await;
        assert_eq!(engine.ledger.last_body(), BodyNumber(3));
        let since = ChangesSince { kind: None, since: Revision(0), limit: 10 };
        assert_eq!(engine.changes(OURS, &since).unwrap().created.len(), 3);
        assert_eq!(engine.store.read(super::super::feed::position).unwrap().0, 2);
    }

    fn properties() -> impl Strategy<Value = Properties> {
        let value = prop_oneof![
            (0_u64..4).prop_map(Value::Number),
            prop::collection::vec(prop_oneof![Just(0_u8), Just(255), Just(7)], 0..3)
                .prop_map(|text| Value::Text(text.into())),
        ];
        prop::collection::vec(((0_u8..4).prop_map(Property), value), 0..8).prop_map(Properties::from_iter)
    }

    proptest! {
        #[test]
        fn changed_properties_are_those_with_other_values(old in properties(), new in properties()) {
            let changed = ChangedProperties::between(&pack(&old), &pack(&new)).unwrap();
            for property in (0..=255).map(Property) {
                let values = |of: &Properties| of.values(property).cloned().collect::<BTreeSet<_>>();
                prop_assert_eq!(changed.has(property), values(&old) != values(&new), "{:?}", property);
            }
        }

        #[test]
        fn damaged_properties_are_never_compared(
            old in prop::collection::vec(0_u8..12, 0..12), new in prop::collection::vec(any::<u8>(), 0..12),
        ) {
            let _ = ChangedProperties::between(&old, &new); // must return without a panic
        }
    }
}
