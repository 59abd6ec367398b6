//! Computes in memory what transactions write, from what they have read and locked.
//!
//! One transaction contains several commits of several accounts. Each is computed separately, on top of the previous ones, and
//! leaves nothing behind when it fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use restante_core::Timestamp;

use super::keys::{corrupt, entry_keys, live_key, state_key, to_sql, tombstone_key};
use crate::{
    AccountId, Body, Change, Commit, Committed, Error, Kind, Properties, RecordId, Revision, Schema, entries,
    rows::{AccountRow, BodyNumber, LiveRow, StateRow, TombstoneRow, second},
    validate::{check_state, is_erasing, no_such_record},
};

/// A row of the ordered map: its account and its key.
pub(crate) type Key = (AccountId, Vec<u8>);

/// The value of a row of the ordered map, and the body that it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) body: Option<i64>,
    /// Whether this transaction creates the record of the key, so that no row can have it yet.
    pub(crate) is_new: bool,
}

impl Value {
    /// The value of a row that may exist already.
    pub(crate) fn new(bytes: Vec<u8>, body: Option<i64>) -> Self {
        Self { bytes, body, is_new: false }
    }
}

/// What a transaction writes.
#[derive(Default)]
pub(crate) struct Writes {
    /// `None` deletes the row.
    pub(crate) rows: BTreeMap<Key, Option<Value>>,
    pub(crate) heads: BTreeMap<AccountId, AccountRow>,
    pub(crate) bodies: BTreeMap<i64, (AccountId, Body)>,
    pub(crate) gone_bodies: BTreeSet<i64>,
    /// The accounts that move to the end of the feed, in this order, with their new revisions.
    pub(crate) touched: Vec<(AccountId, Revision)>,
}

impl Writes {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.heads.is_empty()
    }

    fn add(&mut self, account: AccountId, step: StepWrites, head: AccountRow) {
        for (key, value) in step.rows {
            self.rows.insert((account, key), value);
        }
        for gone in step.gone_bodies {
            // A body of the same transaction is never written.
            if self.bodies.remove(&gone).is_none() {
                self.gone_bodies.insert(gone);
            }
        }
        self.bodies.extend(step.bodies.into_iter().map(|(id, body)| (id, (account, body))));
        self.heads.insert(account, head);
    }

    /// Moves an account to the end of the feed.
    pub(crate) fn touch(&mut self, account: AccountId, revision: Revision) {
        self.touched.retain(|(known, _)| *known != account);
        self.touched.push((account, revision));
    }
}

/// What a transaction has read, and what it will write.
pub(crate) struct Work<'s> {
    schema: &'s Schema,
    now: Timestamp,
    restores: u64,
    heads: BTreeMap<AccountId, AccountRow>,
    stored: BTreeMap<Key, Vec<u8>>,
    /// Records with counters, of accounts that had no commit since a restore.
    counters: Vec<(Key, Vec<u8>)>,
    body_ids: VecDeque<i64>,
    pub(crate) writes: Writes,
}

/// What a transaction has locked and read.
#[derive(Clone, Default)]
pub(crate) struct Read {
    /// Heads as they are stored.
    pub(crate) heads: BTreeMap<AccountId, AccountRow>,
    pub(crate) rows: BTreeMap<Key, Vec<u8>>,
    pub(crate) counters: Vec<(Key, Vec<u8>)>,
    pub(crate) body_ids: Vec<i64>,
    pub(crate) restores: u64,
}

impl<'s> Work<'s> {
    pub(crate) fn new(schema: &'s Schema, now: Timestamp, read: Read) -> Self {
        Self {
            schema,
            now,
            restores: read.restores,
            heads: read.heads,
            stored: read.rows,
            counters: read.counters,
            body_ids: read.body_ids.into(),
            writes: Writes::default(),
        }
    }

    /// The head of an account after everything that was computed so far.
    pub(crate) fn head(&self, account: AccountId) -> AccountRow {
        let head = self.writes.heads.get(&account).or_else(|| self.heads.get(&account));
        head.cloned().unwrap_or_default()
    }

    /// Computes a commit.
    pub(crate) fn commit(&mut self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        let stored = self.head(account);
        let is_restored = stored.restores < self.restores;
        let head = stored.after_restores(self.restores);
        if head.is_erasing {
            return Err(is_erasing(account));
        }
        for (kind, expected) in &commit.expect {
            check_state(*kind, *expected, head.kind(*kind).state)?;
        }
        if commit.changes.is_empty() {
            return Ok(Committed { revision: head.revision, created: Vec::new() });
        }
        // Before any change, since records created by the same commit do not exist yet.
        for change in &commit.changes {
            if let Change::Update { kind, id, .. } | Change::Destroy { kind, id } = change
                && self.read(&(account, state_key(*kind, *id))).is_none()
            {
                return Err(no_such_record(*kind, *id));
            }
        }
        let mut step = Step::new(self, account, head);
        if is_restored {
            step.raise_counters()?;
        }
        let (first, revision) = (step.first, step.revision);
        for change in commit.changes {
            step.change(change)?;
        }
        let next = step.head.next_id;
        step.head.revision = revision;
        let (writes, head) = step.end();
        self.writes.add(account, writes, head);
        self.writes.touch(account, revision);
        Ok(Committed { revision, created: (first.0..next.0).map(RecordId).collect() })
    }

    /// Removes records without leaving tombstones, and writes the head after `finish` has changed it.
    pub(crate) fn erase(
        &mut self,
        account: AccountId,
        head: AccountRow,
        records: &[(Kind, RecordId)],
        gone: &[(Kind, Vec<u8>)],
        finish: impl FnOnce(&mut AccountRow),
    ) -> Result<(), Error> {
        let mut step = Step::new(self, account, head);
        for (kind, id) in records {
            step.remove(*kind, *id)?;
        }
        for (kind, key) in gone {
            step.writes.rows.insert(key.clone(), None);
            let share = step.head.kind_mut(*kind);
            share.tombstones = share.tombstones.saturating_sub(1);
        }
        finish(&mut step.head);
        let (writes, head) = step.end();
        self.writes.add(account, writes, head);
        Ok(())
    }

    fn read(&self, key: &Key) -> Option<&[u8]> {
        match self.writes.rows.get(key) {
            Some(written) => written.as_ref().map(|value| &value.bytes[..]),
            None => self.stored.get(key).map(Vec::as_slice),
        }
    }
}

/// What one commit writes.
#[derive(Default)]
struct StepWrites {
    rows: BTreeMap<Vec<u8>, Option<Value>>,
    bodies: BTreeMap<i64, Body>,
    gone_bodies: BTreeSet<i64>,
}

/// A commit being computed.
struct Step<'w, 's> {
    work: &'w mut Work<'s>,
    account: AccountId,
    head: AccountRow,
    /// The id of the first create.
    first: RecordId,
    revision: Revision,
    writes: StepWrites,
}

impl<'w, 's> Step<'w, 's> {
    fn new(work: &'w mut Work<'s>, account: AccountId, head: AccountRow) -> Self {
        let (first, revision) = (head.next_id, Revision(head.revision.0 + 1));
        Self { work, account, head, first, revision, writes: StepWrites::default() }
    }

    fn end(self) -> (StepWrites, AccountRow) {
        (self.writes, self.head)
    }

    fn change(&mut self, change: Change) -> Result<(), Error> {
        match change {
            Change::Create { kind, body, properties } => self.create(kind, body, &properties),
            Change::Update { kind, id, body, properties } => self.update(kind, id, body, properties.as_ref()),
            Change::Destroy { kind, id } => self.destroy(kind, id),
        }
    }

    fn create(&mut self, kind: Kind, body: Body, properties: &Properties) -> Result<(), Error> {
        let id = self.head.next_id;
        self.head.next_id = RecordId(id.0 + 1);
        let properties = self.resolved(properties)?;
        for key in self.entries(kind, id, &properties)? {
            self.put_new(key, Vec::new(), None);
        }
        let body = self.put_body(body)?;
        let revision = self.revision;
        let state = StateRow { revision, created: revision, body, properties: &pack(&properties) };
        self.put_new(state_key(kind, id), state.encode().into_vec(), sql_body(body));
        self.put_new(live_key(kind, revision, id), LiveRow::Creation.encode().into_vec(), None);
        let share = self.head.kind_mut(kind);
        share.state = revision;
        share.records += 1;
        Ok(())
    }

    /// Writes the body and the index entries only if they change.
    fn update(
        &mut self,
        kind: Kind,
        id: RecordId,
        body: Option<Body>,
        properties: Option<&Properties>,
    ) -> Result<(), Error> {
        let key = state_key(kind, id);
        let value = self.read(&key).ok_or_else(|| no_such_record(kind, id))?;
        let damaged = || corrupt(self.account, &key);
        let old = StateRow::decode(&value).ok_or_else(damaged)?;
        let packed = match properties {
            None => old.properties.to_vec(),
            Some(new) => {
                let mut packed = old.properties;
                let before = entries::take_properties(&mut packed).ok_or_else(damaged)?;
                let new = self.resolved(new)?;
                self.move_entries(kind, id, &before, &new)?;
                pack(&new)
            }
        };
        let body = match body {
            Some(body) => {
                self.delete_body(old.body);
                self.put_body(body)?
            }
            None => old.body,
        };
        let state = StateRow { revision: self.revision, created: old.created, body, properties: &packed };
        self.put_state(kind, id, &state);
        if old.revision != old.created {
            self.delete(live_key(kind, old.revision, id));
        }
        let live = LiveRow::Change { created: old.created };
        self.put(live_key(kind, self.revision, id), live.encode().into_vec(), None);
        self.head.kind_mut(kind).state = self.revision;
        Ok(())
    }

    fn destroy(&mut self, kind: Kind, id: RecordId) -> Result<(), Error> {
        let created = self.remove(kind, id)?;
        let tombstone = TombstoneRow { created, second: second(self.work.now) };
        self.put(tombstone_key(kind, self.revision, id), tombstone.encode().into_vec(), None);
        let share = self.head.kind_mut(kind);
        share.state = self.revision;
        share.tombstones += 1;
        Ok(())
    }

    /// Removes a record without leaving a tombstone; returns the revision that created it.
    fn remove(&mut self, kind: Kind, id: RecordId) -> Result<Revision, Error> {
        let key = state_key(kind, id);
        let value = self.read(&key).ok_or_else(|| no_such_record(kind, id))?;
        let damaged = || corrupt(self.account, &key);
        let old = StateRow::decode(&value).ok_or_else(damaged)?;
        let mut packed = old.properties;
        let properties = entries::take_properties(&mut packed).ok_or_else(damaged)?;
        for entry in self.entries(kind, id, &properties)? {
            self.delete(entry);
        }
        self.delete_body(old.body);
        self.delete(live_key(kind, old.created, id));
        if old.revision != old.created {
            self.delete(live_key(kind, old.revision, id));
        }
        self.delete(key);
        let share = self.head.kind_mut(kind);
        share.records = share.records.saturating_sub(1);
        Ok(old.created)
    }

    /// Raises the counters of the account's records, as its ids are raised, if the store was restored since the account's last
    /// commit. The records don't count as changed: readers have seen the higher values since the restore.
    fn raise_counters(&mut self) -> Result<(), Error> {
        let stored = self.work.heads.get(&self.account).map_or(0, |head| head.restores);
        let behind = self.work.restores.saturating_sub(stored);
        let mut raised = Vec::new();
        for ((account, key), value) in &self.work.counters {
            if *account != self.account {
                continue;
            }
            let damaged = || corrupt(*account, key);
            let (kind, id) = super::keys::decode_state_key(key).ok_or_else(damaged)?;
            let row = StateRow::decode(value).ok_or_else(damaged)?;
            let mut packed = row.properties;
            let properties = entries::take_properties(&mut packed).ok_or_else(damaged)?;
            let counters = &self.work.schema.kind(kind)?.counters;
            let packed = pack(&properties.raised(counters, behind));
            raised.push((kind, id, StateRow { properties: &packed, ..row }.encode(), row.body));
        }
        for (kind, id, value, body) in raised {
            self.put(state_key(kind, id), value.into_vec(), sql_body(body));
        }
        Ok(())
    }

    fn resolved(&self, properties: &Properties) -> Result<Properties, Error> {
        let id = |n: u16| Some(RecordId(self.first.0 + u64::from(n)));
        let resolved = properties.resolved(id, self.revision);
        resolved.ok_or_else(|| Error::invalid("a property is the id of a create that there is not"))
    }

    /// The keys of a record's entries in all indexes of its kind.
    fn entries(&self, kind: Kind, id: RecordId, properties: &Properties) -> Result<BTreeSet<Vec<u8>>, Error> {
        let mut keys = BTreeSet::new();
        // Records of a kind that is not in the schema can only be erased, and have no indexes.
        let Ok(kind_schema) = self.work.schema.kind(kind) else { return Ok(keys) };
        for index in &kind_schema.indexes {
            keys.extend(entry_keys(kind, id, index, properties)?);
        }
        Ok(keys)
    }

    fn move_entries(
        &mut self,
        kind: Kind,
        id: RecordId,
        before: &Properties,
        after: &Properties,
    ) -> Result<(), Error> {
        let (before, after) = (self.entries(kind, id, before)?, self.entries(kind, id, after)?);
        for gone in before.difference(&after) {
            self.delete(gone.clone());
        }
        for new in after.difference(&before) {
            self.put(new.clone(), Vec::new(), None);
        }
        Ok(())
    }

    fn read(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.writes.rows.get(key) {
            Some(written) => written.as_ref().map(|value| value.bytes.clone()),
            None => self.work.read(&(self.account, key.to_vec())).map(<[u8]>::to_vec),
        }
    }

    fn put(&mut self, key: Vec<u8>, bytes: Vec<u8>, body: Option<i64>) {
        self.writes.rows.insert(key, Some(Value::new(bytes, body)));
    }

    fn put_new(&mut self, key: Vec<u8>, bytes: Vec<u8>, body: Option<i64>) {
        self.writes.rows.insert(key, Some(Value { bytes, body, is_new: true }));
    }

    fn delete(&mut self, key: Vec<u8>) {
        self.writes.rows.insert(key, None);
    }

    fn put_state(&mut self, kind: Kind, id: RecordId, row: &StateRow<'_>) {
        self.put(state_key(kind, id), row.encode().into_vec(), sql_body(row.body));
    }

    /// An empty body that refers to no blob has no row.
    fn put_body(&mut self, body: Body) -> Result<BodyNumber, Error> {
        if body.bytes.is_empty() && body.blobs.is_empty() {
            return Ok(BodyNumber::EMPTY);
        }
        let id = self.work.body_ids.pop_front();
        let id = id.ok_or_else(|| Error::internal("a commit has more bodies than were counted"))?;
        self.writes.bodies.insert(id, body);
        Ok(BodyNumber(super::keys::from_sql(id)))
    }

    fn delete_body(&mut self, body: BodyNumber) {
        if let Some(id) = sql_body(body) {
            self.writes.gone_bodies.insert(id);
        }
    }
}

/// The column `body` of a row.
pub(crate) fn sql_body(body: BodyNumber) -> Option<i64> {
    (body != BodyNumber::EMPTY).then(|| to_sql(body.0))
}

pub(crate) fn pack(properties: &Properties) -> Vec<u8> {
    let mut packed = Vec::new();
    entries::pack_properties(&mut packed, properties);
    packed
}

/// The most rows of bodies that a commit may need.
pub(crate) fn bodies_of(commit: &Commit) -> usize {
    let has_body = |change: &&Change| match change {
        Change::Create { body, .. } | Change::Update { body: Some(body), .. } => {
            !body.bytes.is_empty() || !body.blobs.is_empty()
        }
        Change::Update { body: None, .. } | Change::Destroy { .. } => false,
    };
    commit.changes.iter().filter(has_body).count()
}
