//! Verifies all tables against each other.
//!
//! Rows that belong together are compared within one view, so that concurrent commits don't look like damage. Every relation is
//! checked from one end only, so that each error is found once.

mod accounts;
#[cfg(test)]
mod tests;
mod window;

use std::{
    collections::BTreeSet,
    fmt,
    ops::{Bound, ControlFlow},
};

use restante_lmdb::{
    Direction, Table, View,
    key::{take_byte, take_number},
};

use super::{
    Engine, dictionary, feed, reindex,
    schema::{
        ACCOUNT, AccountRow, BODY, BodyNumber, FEED, FOLLOWER, FORMAT, HISTORY, INDEX, LiveRow, META,
        META_DICTIONARY, META_FORMAT, META_IDENTITY, META_RESTORES, META_SCHEMA, STATE, StateRow,
        TombstoneRow, account_key, body_key, decode_body_key, decode_feed, decode_follower_key,
        decode_history_key, decode_number, decode_state_key, dictionary_key, feed_key, generation, live_key,
        live_prefix, state_key, take_account, tombstone_prefix,
    },
    training::META_EPOCHS,
    walk::{VIEW_ROWS_MAX, walk},
};
use window::{BodyWindow, WINDOW_BODIES};

use crate::{
    AccountId, Error, Index, IndexOrder, IndexSchema, Kind, Properties, RecordId, Report, Revision, Touched,
    Value, entries,
};

type Progress<'c> = &'c (dyn Fn(u64, u64) + Send + Sync);
/// Verifies one row.
type Visit<C> = fn(&mut C, &View<'_>, &[u8], &[u8]) -> Result<(), Error>;

impl Engine {
    /// Verifies that every record can be read, and that all other tables agree with the records.
    pub(super) fn check(&self, progress: Progress<'_>) -> Result<Report, Error> {
        self.check_with(progress, WINDOW_BODIES)
    }

    /// The same with windows of this many bodies.
    fn check_with(&self, progress: Progress<'_>, window_bodies: u64) -> Result<Report, Error> {
        if let Some(damage) = self.store.damaged_page()? {
            let mut report = Report::default();
            report.note("data.mdb", damage);
            return Ok(report);
        }
        let total = self.store.stats()?.tables.iter().map(|table| table.rows).sum();
        let nameless = BTreeSet::new();
        let mut check = Check { engine: self, progress, done: 0, total, nameless, report: Report::default() };
        check.records_and_bodies(window_bodies)?;
        check.walk(HISTORY, Check::history_row)?;
        check.walk(INDEX, Check::index_row)?;
        check.accounts()?;
        check.walk(FEED, Check::feed_row)?;
        check.walk(FOLLOWER, Check::follower_row)?;
        check.walk(META, Check::meta_row)?;
        check.what_must_be_there()?;
        progress(check.done, check.done);
        Ok(check.report)
    }
}

struct Check<'c> {
    engine: &'c Engine,
    progress: Progress<'c>,
    done: u64,
    total: u64,
    /// Accounts that have rows in other tables but no row of their own. Each is reported once; there are at most as many as
    /// reported findings.
    nameless: BTreeSet<AccountId>,
    report: Report,
}

/// The state of an account's row.
enum Account {
    Missing,
    Damaged,
    Row(Box<AccountRow>),
}

impl Account {
    fn read(view: &View<'_>, account: AccountId) -> Result<Self, Error> {
        Ok(match view.get(ACCOUNT, &account_key(account))? {
            Some(value) => AccountRow::decode(value).map_or(Self::Damaged, |row| Self::Row(Box::new(row))),
            None => Self::Missing,
        })
    }
}

/// A record, formatted for messages.
#[derive(Clone, Copy)]
struct At {
    account: AccountId,
    kind: Kind,
    id: RecordId,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "account {} kind {} record {}", self.account.0, self.kind.0, self.id.0)
    }
}

/// A row, formatted for messages: its table and its key.
fn row_name(table: Table, key: &[u8]) -> String {
    let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("table {} key {key}", table.name())
}

impl<'c> Check<'c> {
    fn note(&mut self, place: impl fmt::Display, what: impl Into<String>) {
        self.report.note(place.to_string(), what);
    }

    fn walk(&mut self, table: Table, visit: Visit<Self>) -> Result<(), Error> {
        walk(&self.engine.store, table, Bound::Unbounded, &mut |view, key, value| {
            visit(self, view, key, value)?;
            self.step();
            Ok(ControlFlow::Continue(()))
        })
    }

    fn step(&mut self) {
        self.done += 1;
        if self.done.is_multiple_of(VIEW_ROWS_MAX as u64) {
            (self.progress)(self.done, self.total.max(self.done));
        }
    }

    /// Checks the records, and the bodies that they refer to. Which bodies records refer to is tracked in a window of bounded
    /// size; in a store with more bodies, the records are walked again for each further window.
    fn records_and_bodies(&mut self, window_bodies: u64) -> Result<(), Error> {
        let ends = self.engine.store.read(body_ends)?;
        let mut window = BodyWindow::new(ends.first, ends.last, window_bodies);
        self.records(&mut window)?;
        let mut next = self.bodies(Bound::Unbounded, &window, ends.last)?;
        while let Some(first) = next {
            window = BodyWindow::new(first, ends.last, window_bodies);
            mark_bodies(self.engine, &mut window)?;
            next = self.bodies(Bound::Included(&body_key(first)), &window, ends.last)?;
        }
        Ok(())
    }

    fn records(&mut self, window: &mut BodyWindow) -> Result<(), Error> {
        walk(&self.engine.store, STATE, Bound::Unbounded, &mut |view, key, value| {
            self.state_row(view, key, value, window)?;
            self.step();
            Ok(ControlFlow::Continue(()))
        })
    }

    fn state_row(
        &mut self,
        view: &View<'_>,
        key: &[u8],
        value: &[u8],
        window: &mut BodyWindow,
    ) -> Result<(), Error> {
        let Some((account, kind, id)) = decode_state_key(key) else {
            self.note(row_name(STATE, key), "it is no key of a record");
            return Ok(());
        };
        let at = At { account, kind, id };
        self.report.records += 1;
        self.owner(view, account)?;
        let Some(row) = StateRow::decode(value) else {
            self.note(at, "its row is damaged");
            return Ok(());
        };
        self.body_of(view, at, row.body, window)?;
        self.history_of(view, at, &row)?;
        self.entries_of(view, at, &row)
    }

    /// Checks that the account of a row has a row itself.
    fn owner(&mut self, view: &View<'_>, account: AccountId) -> Result<(), Error> {
        let is_missing = view.get(ACCOUNT, &account_key(account))?.is_none();
        if is_missing && self.nameless.len() < Report::FINDINGS_MAX && self.nameless.insert(account) {
            self.note(
                format_args!("account {}", account.0),
                "other tables have rows of it, and it has no row of its own",
            );
        }
        Ok(())
    }

    fn body_of(
        &mut self,
        view: &View<'_>,
        at: At,
        body: BodyNumber,
        window: &mut BodyWindow,
    ) -> Result<(), Error> {
        if body == BodyNumber::EMPTY {
            return Ok(());
        }
        match view.get(BODY, &body_key(body))? {
            None => self.note(at, format!("its body {} is not there", body.0)),
            Some(row) => {
                if let Err(error) = self.engine.bodies.decode(row) {
                    self.note(at, format!("its body {} can't be read: {error}", body.0));
                }
            }
        }
        if !window.mark(body) {
            self.note(at, format!("its body {} belongs to another record too", body.0));
        }
        Ok(())
    }

    /// Checks the history row of the creation, and that of the last change if there was one.
    fn history_of(&mut self, view: &View<'_>, at: At, row: &StateRow<'_>) -> Result<(), Error> {
        if row.created == Revision(0) || row.created > row.revision {
            self.note(
                at,
                format!("it was created by {} and last changed by {}", row.created.0, row.revision.0),
            );
            return Ok(());
        }
        self.live_row(view, at, row.created, LiveRow::Creation)?;
        if row.revision == row.created {
            return Ok(());
        }
        self.live_row(view, at, row.revision, LiveRow::Change { created: row.created })
    }

    fn live_row(
        &mut self,
        view: &View<'_>,
        at: At,
        revision: Revision,
        expected: LiveRow,
    ) -> Result<(), Error> {
        let event = if expected == LiveRow::Creation { "creation" } else { "last change" };
        match view.get(HISTORY, &live_key(at.account, at.kind, revision, at.id))? {
            None => self.note(at, format!("its {event} is not in the history")),
            Some(value) if LiveRow::decode(value) != Some(expected) => {
                self.note(at, format!("the row of its {event} in the history is wrong"));
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn entries_of(&mut self, view: &View<'_>, at: At, row: &StateRow<'_>) -> Result<(), Error> {
        let Some(properties) = properties_of(row) else {
            self.note(at, "its properties are damaged");
            return Ok(());
        };
        // The records of a kind that is no longer in the schema stay, without indexes.
        let Ok(kind) = self.engine.ledger.schema.kind(at.kind) else { return Ok(()) };
        for index in &kind.indexes {
            let Ok(keys) = reindex::entry_keys(at.account, at.kind, at.id, index, &properties) else {
                self.note(
                    at,
                    format!("it has more or longer entries in the index {} than are possible", index.name),
                );
                continue;
            };
            for key in keys {
                if view.get(INDEX, &key)?.is_none() {
                    self.note(at, format!("an entry of it in the index {} is missing", index.name));
                }
            }
        }
        Ok(())
    }

    /// Checks that the bodies of a window belong to records; returns the first body after the window.
    fn bodies(
        &mut self,
        from: Bound<&[u8]>,
        window: &BodyWindow,
        last: BodyNumber,
    ) -> Result<Option<BodyNumber>, Error> {
        let mut next = None;
        walk(&self.engine.store, BODY, from, &mut |_, key, _| {
            let Some(number) = decode_body_key(key) else {
                self.note(row_name(BODY, key), "it is no key of a body");
                return Ok(ControlFlow::Continue(()));
            };
            if number > last {
                return Ok(ControlFlow::Break(())); // written since the check began
            }
            if !window.covers(number) {
                next = Some(number);
                return Ok(ControlFlow::Break(()));
            }
            if !window.is_marked(number) {
                self.note(format_args!("body {}", number.0), "it belongs to no record that can be read");
            }
            self.step();
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(next)
    }

    /// Checks that a history row belongs to something. The contents of rows of existing records were checked with the records.
    fn history_row(&mut self, view: &View<'_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let Some((account, kind, revision, id, is_live)) = take_history_key(key) else {
            self.note(row_name(HISTORY, key), "it is no key of the history");
            return Ok(());
        };
        let at = At { account, kind, id };
        let state = view.get(STATE, &state_key(account, kind, id))?;
        if !is_live {
            self.owner(view, account)?;
            return self.tombstone(view, at, revision, value, state.is_some());
        }
        let Some(state) = state else {
            self.note(at, format!("the history has it at revision {}, and it is not there", revision.0));
            return Ok(());
        };
        let Some(row) = StateRow::decode(state) else { return Ok(()) };
        if revision != row.created && revision != row.revision {
            self.note(
                at,
                format!("the history has it at revision {}, which is not its last change", revision.0),
            );
        }
        Ok(())
    }

    fn tombstone(
        &mut self,
        view: &View<'_>,
        at: At,
        revision: Revision,
        value: &[u8],
        is_there: bool,
    ) -> Result<(), Error> {
        let row = TombstoneRow::decode(value);
        let is_sound = row.is_some_and(|row| row.created > Revision(0) && row.created < revision);
        if is_there {
            self.note(at, format!("it was destroyed by {}, and is there", revision.0));
        } else if !is_sound {
            self.note(at, format!("its tombstone of revision {} is damaged", revision.0));
        } else if let Account::Row(account) = Account::read(view, at.account)?
            && !account.kinds.iter().any(|share| share.kind == at.kind)
        {
            self.note(at, "it has a tombstone, and its account nothing of this kind");
        }
        Ok(())
    }

    /// Checks that the properties of the record give this entry.
    fn index_row(&mut self, view: &View<'_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let Some((at, index, rest)) = take_index_key(key) else {
            self.note(row_name(INDEX, key), "it is no key of an entry");
            return Ok(());
        };
        let schema = &self.engine.ledger.schema;
        let known = schema.kind(at.kind).ok().and_then(|kind| kind.find_index(index));
        let Some(index) = known else {
            self.note(row_name(INDEX, key), "its index is not in the schema");
            return Ok(());
        };
        let Some(entry) = Entry::take(rest, index) else {
            self.note(row_name(INDEX, key), format!("it is no key of an entry of the index {}", index.name));
            return Ok(());
        };
        let at = At { id: entry.id, ..at };
        if !value.is_empty() {
            self.note(at, format!("its entry in the index {} is not empty", index.name));
        }
        let Some(state) = view.get(STATE, &state_key(at.account, at.kind, at.id))? else {
            self.note(at, format!("the index {} has an entry of it, and it is not there", index.name));
            return Ok(());
        };
        let Some(properties) = StateRow::decode(state).as_ref().and_then(properties_of) else {
            return Ok(());
        };
        if !entry.is_of(index, &properties) {
            self.note(
                at,
                format!("the index {} has an entry of it that its properties don't give", index.name),
            );
        }
        Ok(())
    }

    /// Checks that a feed row is the one that its account refers to. An account without a feed row has been reported already.
    fn feed_row(&mut self, view: &View<'_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let Some(Touched { position, account, .. }) = decode_feed(key, value) else {
            self.note(row_name(FEED, key), "it is no row of the feed");
            return Ok(());
        };
        let row = match Account::read(view, account)? {
            Account::Row(row) if row.position != position => row,
            Account::Row(_) | Account::Damaged => return Ok(()),
            Account::Missing => return self.owner(view, account),
        };
        let key = feed_key(row.position);
        let named = view.get(FEED, &key)?.and_then(|value| decode_feed(&key, value));
        if named.is_some_and(|named| named.account == account) {
            let what = format!("its account {} has its last commit elsewhere", account.0);
            self.note(format_args!("feed position {}", position.0), what);
        }
        Ok(())
    }

    /// Checks that a follower is not ahead of the accounts that it follows.
    fn follower_row(&mut self, view: &View<'_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let Some(((name, account), number)) = decode_follower_key(key).zip(decode_number(value)) else {
            self.note(row_name(FOLLOWER, key), "it is no row of a follower");
            return Ok(());
        };
        let Some(account) = account else {
            let is_ahead = feed::position(view).is_ok_and(|last| number > last.0);
            if is_ahead {
                self.note(
                    format_args!("follower {name}"),
                    format!("it is at {number}, ahead of the last commit"),
                );
            }
            return Ok(());
        };
        let restores = self.engine.ledger.restores;
        match Account::read(view, account)? {
            Account::Row(row) if number > row.clone().after_restores(restores).revision.0 => {
                let what =
                    format!("it is at revision {number} of account {}, ahead of the last one", account.0);
                self.note(format_args!("follower {name}"), what);
            }
            Account::Missing if number > 0 => self.owner(view, account)?,
            Account::Row(_) | Account::Damaged | Account::Missing => {}
        }
        Ok(())
    }

    fn meta_row(&mut self, _: &View<'_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let is_sound = match key {
            META_FORMAT => decode_number(value) == Some(FORMAT),
            META_IDENTITY => value == self.engine.identity.0,
            META_SCHEMA => reindex::is_whole(value, &self.engine.ledger.schema),
            META_EPOCHS | META_RESTORES => decode_number(value).is_some(),
            _ => key.starts_with(META_DICTIONARY) && dictionary::decode(key, value).is_ok(),
        };
        if !is_sound {
            self.note(row_name(META, key), format!("the row {} is damaged", key.escape_ascii()));
        }
        Ok(())
    }

    /// Checks that no row of the store as a whole is missing.
    fn what_must_be_there(&mut self) -> Result<(), Error> {
        let mut keys = [META_FORMAT, META_IDENTITY, META_SCHEMA].map(<[u8]>::to_vec).to_vec();
        keys.extend(self.engine.bodies.dictionary_numbers().map(|number| dictionary_key(number).to_vec()));
        for key in keys {
            let is_there = self.engine.store.read(|view| Ok(view.get(META, &key)?.is_some()))?;
            if !is_there {
                self.note(row_name(META, &key), format!("the row {} is not there", key.escape_ascii()));
            }
        }
        Ok(())
    }
}

/// The first and the last body; bodies that are written during a check are ignored.
struct BodyEnds {
    first: BodyNumber,
    last: BodyNumber,
}

fn body_ends(view: &View<'_>) -> Result<BodyEnds, Error> {
    let end = |direction| -> Result<BodyNumber, Error> {
        let mut rows = view.range(BODY, Bound::Unbounded, Bound::Unbounded, direction)?;
        while let Some((key, _)) = rows.next()? {
            if let Some(number) = decode_body_key(key) {
                return Ok(number);
            }
        }
        Ok(BodyNumber::EMPTY)
    };
    Ok(BodyEnds { first: end(Direction::Ascending)?, last: end(Direction::Descending)? })
}

/// Marks the bodies of a window that records refer to.
fn mark_bodies(engine: &Engine, window: &mut BodyWindow) -> Result<(), Error> {
    walk(&engine.store, STATE, Bound::Unbounded, &mut |_, _, value| {
        if let Some(row) = StateRow::decode(value) {
            window.mark(row.body);
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn properties_of(row: &StateRow<'_>) -> Option<Properties> {
    entries::take_properties(&mut { row.properties })
}

/// Decodes a key of the history: account, kind, revision and id, and whether the record exists.
fn take_history_key(key: &[u8]) -> Option<(AccountId, Kind, Revision, RecordId, bool)> {
    let mut rest = key;
    let account = take_account(&mut rest)?;
    let kind = Kind(take_byte(&mut rest)?);
    let live = live_prefix(account, kind);
    let is_live = key.starts_with(&live);
    if !is_live && !key.starts_with(&tombstone_prefix(account, kind)) {
        return None;
    }
    let (revision, id) = decode_history_key(key, live.len())?;
    Some((account, kind, revision, id, is_live))
}

/// Decodes the beginning of an entry's key (the record has no id yet), and returns it with the rest of the key.
fn take_index_key(mut key: &[u8]) -> Option<(At, Index, &[u8])> {
    let account = take_account(&mut key)?;
    let kind = Kind(take_byte(&mut key)?);
    let index = Index(take_byte(&mut key)?);
    Some((At { account, kind, id: RecordId(0) }, index, key))
}

/// The rest of an entry's key, decoded.
struct Entry {
    values: Vec<Value>,
    id: RecordId,
}

impl Entry {
    /// Decodes the rest of a key; `None` when no entry of this index can have it.
    fn take(mut rest: &[u8], index: &IndexSchema) -> Option<Self> {
        let of_key = match index.order {
            IndexOrder::Ordered => None,
            IndexOrder::Scattered => Some(take_number(&mut rest)?),
        };
        let mut values = Vec::new();
        for _ in &index.parts {
            values.push(entries::take_value(&mut rest)?);
        }
        let id = RecordId(take_number(&mut rest)?);
        let is_sound = rest.is_empty() && of_key.is_none_or(|of_key| of_key == generation(id));
        is_sound.then_some(Self { values, id })
    }

    /// Whether a record with these properties has this entry: each part's value is one of its values.
    fn is_of(&self, index: &IndexSchema, properties: &Properties) -> bool {
        let mut pairs = index.parts.iter().zip(&self.values);
        pairs.all(|(part, value)| properties.values(*part).any(|there| there == value))
    }
}
