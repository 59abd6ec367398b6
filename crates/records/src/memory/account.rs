//! One account of the reference model.

use std::{collections::BTreeMap, ops::Bound};

use restante_core::Timestamp;

use crate::{
    AccountHead, AccountId, Body, Change, Changed, Changes, ChangesSince, Commit, Committed, Count,
    Direction, Erased, Error, FeedRequest, Get, IndexOrder, IndexSchema, Kind, KindHead, Page, Position,
    Properties, Query, Record, RecordId, Revision, Row, States, Value,
    entries::{self, EntryKey},
    rows::second,
    validate::{self, CheckedQuery},
};

const NANOS_PER_MILLI: i64 = 1_000_000;

/// The state of an account.
pub(super) struct Account {
    /// The revision of its last commit.
    pub(super) revision: Revision,
    /// The position of its last commit among those of all accounts.
    pub(super) position: Position,
    /// When that commit was made.
    pub(super) committed_at: Timestamp,
    next_id: RecordId,
    /// Whether it is being erased.
    is_erasing: bool,
    pub(super) kinds: BTreeMap<Kind, KindState>,
    pub(super) records: BTreeMap<(Kind, RecordId), Stored>,
    /// What was destroyed, sorted by the revision that destroyed it.
    pub(super) tombstones: BTreeMap<(Kind, Revision, RecordId), Tombstone>,
}

/// The progress of a kind.
#[derive(Default)]
pub(super) struct KindState {
    /// The revision that last touched it.
    pub(super) state: Revision,
    /// The last revision whose tombstones are forgotten.
    pub(super) floor: Revision,
}

/// A record, and the number of its body in the order of all bodies.
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) body: u64,
}

/// What remains of a destroyed record.
pub(super) struct Tombstone {
    created: Revision,
    pub(super) destroyed_at: Timestamp,
}

/// When a commit is made, and its numbers.
pub(super) struct Moment {
    /// Its position among the commits of all accounts.
    pub(super) position: Position,
    /// The number of the body of its first change; the other changes get the following numbers.
    pub(super) first_body: u64,
    pub(super) now: Timestamp,
}

/// What happened to a record, for a page of changes.
enum Happened {
    Created,
    Updated,
    Destroyed,
}

/// An account in which nothing was ever committed.
pub(super) static NEW: Account = Account::new();

/// Whether destroyed records are returned even if they were created after `since`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unseen {
    LeftOut,
    Returned,
}

impl Account {
    pub(super) const fn new() -> Self {
        Self {
            revision: Revision(0),
            position: Position(0),
            committed_at: Timestamp(0),
            is_erasing: false,
            next_id: validate::FIRST_ID,
            kinds: BTreeMap::new(),
            records: BTreeMap::new(),
            tombstones: BTreeMap::new(),
        }
    }

    /// Checks that the records and states that a commit needs exist.
    pub(super) fn check(&self, account: AccountId, commit: &Commit) -> Result<(), Error> {
        if self.is_erasing {
            return Err(validate::is_erasing(account));
        }
        for (kind, expected) in &commit.expect {
            validate::check_state(*kind, *expected, self.states().of(*kind))?;
        }
        for change in &commit.changes {
            if let Change::Update { kind, id, .. } | Change::Destroy { kind, id } = change
                && !self.records.contains_key(&(*kind, *id))
            {
                return Err(validate::no_such_record(*kind, *id));
            }
        }
        Ok(())
    }

    /// Applies the changes of a commit that was checked.
    pub(super) fn apply(&mut self, commit: Commit, moment: &Moment) -> Result<Committed, Error> {
        let creates =
            commit.changes.iter().filter(|change| matches!(change, Change::Create { .. })).count() as u64;
        let created: Vec<RecordId> = (self.next_id.0..self.next_id.0 + creates).map(RecordId).collect();
        self.next_id.0 += creates;
        self.revision.0 += 1;
        self.moved_to(moment.position, moment.now);
        let mut ids_of_creates = created.iter();
        for (change, body_number) in commit.changes.into_iter().zip(moment.first_body..) {
            self.kinds.entry(change.kind()).or_default().state = self.revision;
            match change {
                Change::Create { kind, body, properties } => {
                    let Some(id) = ids_of_creates.next() else { break }; // there are as many ids as creates
                    let properties = resolved(&properties, &created, self.revision)?;
                    self.create(kind, *id, body, properties, body_number);
                }
                Change::Update { kind, id, body, properties } => {
                    let properties = properties
                        .map(|properties| resolved(&properties, &created, self.revision))
                        .transpose()?;
                    self.update(kind, id, body, properties, body_number);
                }
                Change::Destroy { kind, id } => self.destroy(kind, id, moment.now),
            }
        }
        Ok(Committed { revision: self.revision, created })
    }

    /// Moves the account to a new position in the feed.
    pub(super) fn moved_to(&mut self, position: Position, now: Timestamp) {
        self.position = position;
        self.committed_at = Timestamp(now.0.max(0) / NANOS_PER_MILLI * NANOS_PER_MILLI);
    }

    /// Erases some of the records and tombstones.
    pub(super) fn erase(&mut self, limit: usize) -> Erased {
        let is_empty = |account: &Self| account.records.is_empty() && account.tombstones.is_empty();
        let mut erased = Erased::default();
        if !self.is_erasing {
            if is_empty(self) {
                return erased;
            }
            self.is_erasing = true;
            self.cut_history();
        }
        for _ in 0..limit {
            if self.records.pop_first().is_some() {
                erased.records += 1;
            } else if self.tombstones.pop_first().is_some() {
                erased.tombstones += 1;
            } else {
                break;
            }
        }
        erased.has_more = !is_empty(self);
        if !erased.has_more {
            self.is_erasing = false;
            self.cut_history();
        }
        erased
    }

    /// Takes a new revision; changes since earlier ones can't be calculated.
    fn cut_history(&mut self) {
        self.revision.0 += 1;
        for kind in self.kinds.values_mut() {
            (kind.state, kind.floor) = (self.revision, self.revision);
        }
    }

    /// What a move needs besides the rows.
    pub(super) fn head(&self, account: AccountId) -> AccountHead {
        let kind = |(kind, known): (&Kind, &KindState)| KindHead {
            kind: *kind,
            state: known.state,
            floor: known.floor,
            records: self.records.keys().filter(|(of, _)| of == kind).count() as u64,
            tombstones: self.tombstones.keys().filter(|(of, ..)| of == kind).count() as u64,
        };
        AccountHead {
            account,
            revision: self.revision,
            next_id: self.next_id,
            position: self.position,
            committed_at: self.committed_at,
            restores: 0,
            is_erasing: self.is_erasing,
            gaps: Vec::new(),
            kinds: self.kinds.iter().map(kind).collect(),
        }
    }

    /// All rows, in the order of their keys.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        let records = self.records.values().map(|stored| Row::Record(stored.record.clone()));
        let tombstones = self.tombstones.iter().map(|((kind, revision, id), gone)| {
            Row::Tombstone(crate::Tombstone {
                kind: *kind,
                id: *id,
                created: gone.created,
                revision: *revision,
                destroyed_seconds: second(gone.destroyed_at),
            })
        });
        records.chain(tombstones)
    }

    /// Stores a row of an account that is being moved.
    pub(super) fn put(&mut self, row: Row, body: u64) {
        match row {
            Row::Record(record) => {
                self.records.insert((record.kind, record.id), Stored { record, body });
            }
            Row::Tombstone(gone) => {
                let seconds = i64::try_from(gone.destroyed_seconds).unwrap_or(i64::MAX);
                let destroyed_at = Timestamp::from_seconds(seconds);
                let tombstone = Tombstone { created: gone.created, destroyed_at };
                self.tombstones.insert((gone.kind, gone.revision, gone.id), tombstone);
            }
            Row::Damaged(..) => {} // refused before
        }
    }

    /// Sets the rest of the state of an account that is being moved.
    pub(super) fn end(&mut self, head: &AccountHead) {
        self.revision = head.revision;
        self.next_id = head.next_id;
        self.position = head.position;
        self.committed_at = head.committed_at;
        self.is_erasing = head.is_erasing;
        for kind in &head.kinds {
            self.kinds.insert(kind.kind, KindState { state: kind.state, floor: kind.floor });
        }
    }

    fn create(&mut self, kind: Kind, id: RecordId, body: Body, properties: Properties, body_number: u64) {
        let record = Record { kind, id, revision: self.revision, created: self.revision, body, properties };
        self.records.insert((kind, id), Stored { record, body: body_number });
    }

    fn update(
        &mut self,
        kind: Kind,
        id: RecordId,
        body: Option<Body>,
        properties: Option<Properties>,
        body_number: u64,
    ) {
        let Some(stored) = self.records.get_mut(&(kind, id)) else { return }; // it was checked
        stored.record.revision = self.revision;
        if let Some(body) = body {
            stored.record.body = body;
            stored.body = body_number;
        }
        if let Some(properties) = properties {
            stored.record.properties = properties;
        }
    }

    fn destroy(&mut self, kind: Kind, id: RecordId, now: Timestamp) {
        let Some(stored) = self.records.remove(&(kind, id)) else { return }; // it was checked
        let tombstone = Tombstone { created: stored.record.created, destroyed_at: now };
        self.tombstones.insert((kind, self.revision, id), tombstone);
    }

    pub(super) fn get(&self, get: &Get) -> Vec<Option<Record>> {
        let mut records = Vec::with_capacity(get.ids.len());
        for id in &get.ids {
            let mut record = self.records.get(&(get.kind, *id)).map(|stored| stored.record.clone());
            if let Some(record) = &mut record
                && !get.with_body
            {
                record.body = Body::default();
            }
            records.push(record);
        }
        records
    }

    pub(super) fn query(&self, query: &Query, checked: &CheckedQuery<'_>) -> Result<Page, Error> {
        let mut places = self.places(query, checked)?;
        places.drain(..usize::try_from(query.skip).unwrap_or(usize::MAX).min(places.len()));
        let has_more = places.len() > query.limit;
        places.truncate(query.limit);
        let next = match places.last() {
            Some(last) if has_more => Some(entries::cursor(query.kind, checked.index, &last.values, last.id)),
            _ => None,
        };
        let last = |place: &EntryKey| place.values.last().cloned();
        let values = if query.with_values { places.iter().filter_map(last).collect() } else { Vec::new() };
        let ids = places.into_iter().map(|place| place.id).collect();
        Ok(Page { ids, values, next, state: self.states().of(query.kind) })
    }

    pub(super) fn count(&self, query: &Query, checked: &CheckedQuery<'_>) -> Result<Count, Error> {
        let entries = self.places(query, checked)?.len() as u64;
        Ok(Count { entries, state: self.states().of(query.kind) })
    }

    /// All entries of a query after its cursor, in the order of the query.
    fn places(&self, query: &Query, checked: &CheckedQuery<'_>) -> Result<Vec<EntryKey>, Error> {
        let mut places = Vec::new();
        for ((kind, id), stored) in &self.records {
            if *kind != query.kind {
                continue;
            }
            for values in entries::entries(checked.index, &stored.record.properties)? {
                places.push(EntryKey { values, id: *id });
            }
        }
        places.retain(|place| is_match(&place.values, query));
        sort(&mut places, checked.index, query.direction);
        if let Some(after) = &checked.after {
            places.retain(|place| is_behind(place, after, checked.index, query.direction));
        }
        Ok(places)
    }

    pub(super) fn changes(&self, account: AccountId, asked: &ChangesSince) -> Result<Changes, Error> {
        let is_asked = |kind: Kind| asked.kind.is_none_or(|wanted| wanted == kind);
        validate::check_since(account, asked.since, self.revision, self.floor(is_asked))?;
        let mut all = self.changes_since(asked.since, Unseen::LeftOut);
        all.retain(|(_, changed), _| is_asked(changed.kind));
        Ok(page(all, asked.since, asked.limit, self.revision))
    }

    pub(super) fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        validate::check_feed_since(account, request, self.revision, self.floor(|_| true))?;
        let all = self.changes_since(request.since, Unseen::Returned);
        Ok(page(all, request.since, request.limit, self.revision))
    }

    /// The highest floor of some kinds.
    fn floor(&self, is_asked: impl Fn(Kind) -> bool) -> Revision {
        let floors = self.kinds.iter().filter(|(kind, _)| is_asked(**kind)).map(|(_, kind)| kind.floor);
        floors.max().unwrap_or_default()
    }

    /// What happened to each record, by the revision with which it is returned; for a new record, that of its creation.
    fn changes_since(&self, since: Revision, unseen: Unseen) -> BTreeMap<(Revision, Changed), Happened> {
        let mut all = BTreeMap::new();
        for ((kind, id), stored) in &self.records {
            let changed = Changed { kind: *kind, id: *id };
            if stored.record.created > since {
                all.insert((stored.record.created, changed), Happened::Created);
            } else if stored.record.revision > since {
                all.insert((stored.record.revision, changed), Happened::Updated);
            }
        }
        for ((kind, revision, id), tombstone) in &self.tombstones {
            let is_returned = tombstone.created <= since || unseen == Unseen::Returned;
            if is_returned && *revision > since {
                all.insert((*revision, Changed { kind: *kind, id: *id }), Happened::Destroyed);
            }
        }
        all
    }

    pub(super) fn states(&self) -> States {
        let kinds = self.kinds.iter().map(|(kind, known)| (*kind, known.state)).collect();
        States { revision: self.revision, kinds }
    }
}

fn resolved(properties: &Properties, created: &[RecordId], revision: Revision) -> Result<Properties, Error> {
    let resolved = properties.resolved(|n| created.get(usize::from(n)).copied(), revision);
    resolved.ok_or_else(|| Error::invalid("a property is the id of a create that there is not"))
}

/// Whether the leading values equal those of the query, and the next one is in its range.
fn is_match(values: &[Value], query: &Query) -> bool {
    if !values.starts_with(&query.equals) {
        return false;
    }
    let Some(next) = values.get(query.equals.len()) else { return true };
    let is_above = match &query.range.0 {
        Bound::Included(from) => next >= from,
        Bound::Excluded(from) => next > from,
        Bound::Unbounded => true,
    };
    let is_below = match &query.range.1 {
        Bound::Included(to) => next <= to,
        Bound::Excluded(to) => next < to,
        Bound::Unbounded => true,
    };
    is_above && is_below
}

/// An ordered index is sorted by values, then ids; a scattered one by ids only.
fn sort(places: &mut [EntryKey], index: &IndexSchema, direction: Direction) {
    match index.order {
        IndexOrder::Ordered => places.sort(),
        IndexOrder::Scattered => places.sort_by_key(|place| place.id),
    }
    if direction == Direction::Descending {
        places.reverse();
    }
}

/// Whether `place` comes after `after` in the walk.
fn is_behind(place: &EntryKey, after: &EntryKey, index: &IndexSchema, direction: Direction) -> bool {
    let order = match index.order {
        IndexOrder::Ordered => place.cmp(after),
        IndexOrder::Scattered => place.id.cmp(&after.id),
    };
    match direction {
        Direction::Ascending => order.is_gt(),
        Direction::Descending => order.is_lt(),
    }
}

/// The first changes: whole revisions, and at most `limit` unless the first revision has more.
fn page(
    all: BTreeMap<(Revision, Changed), Happened>,
    since: Revision,
    limit: usize,
    revision: Revision,
) -> Changes {
    let mut page = Changes { revision, ..Changes::default() };
    let mut last = since;
    let mut count = 0;
    for (revision, of_revision) in by_revision(all) {
        if count > 0 && count + of_revision.len() > limit {
            page.revision = last;
            page.has_more = true;
            break;
        }
        count += of_revision.len();
        last = revision;
        for (changed, happened) in of_revision {
            match happened {
                Happened::Created => page.created.push(changed),
                Happened::Updated => page.updated.push(changed),
                Happened::Destroyed => page.destroyed.push(changed),
            }
        }
    }
    page
}

/// Changes in groups of one revision, ascending.
fn by_revision(all: BTreeMap<(Revision, Changed), Happened>) -> BTreeMap<Revision, Vec<(Changed, Happened)>> {
    let mut groups: BTreeMap<Revision, Vec<(Changed, Happened)>> = BTreeMap::new();
    for ((revision, changed), happened) in all {
        groups.entry(revision).or_default().push((changed, happened));
    }
    groups
}
