//! What every engine refuses before it looks at its data: limits and the schema, checked in one place.
//!
//! A commit is checked in this order, so that all engines return the same error for a commit with several faults:
//! [`check_commit`], then each precondition by [`check_state`], then whether the changed records exist ([`no_such_record`]).

use std::{collections::HashSet, ops::Bound};

use crate::{
    AccountId, BODY_BLOBS_MAX, BODY_BYTES_MAX, Body, CHANGES_MAX, COMMIT_BYTES_MAX, COMMIT_CHANGES_MAX,
    Change, ChangesSince, Commit, DUMP_RECORDS_MAX, Error, FOLLOWER_NAME_BYTES_MAX, FeedRequest,
    GET_RECORDS_MAX, Gate, Get, IndexOrder, IndexSchema, Kind, KindSchema, Properties, QUERIES_MAX,
    QUERY_ROWS_MAX, Query, RecordId, Revision, Schema, TEXT_BYTES_MAX, TOUCHED_MAX, TRANSFER_ACCOUNTS_MAX,
    TRANSFER_ROWS_MAX, Value,
    entries::{self, EntryKey},
};

/// The id of the first record of an account.
pub(crate) const FIRST_ID: RecordId = RecordId(1);
/// The most preconditions of a commit: one for each possible kind.
const EXPECT_MAX: usize = 256;
/// How many bytes a blob id counts for in the size of a commit.
const BLOB_ID_BYTES: usize = 32;
/// How many bytes a number, or a value that becomes one, counts for in the size of a commit.
const NUMBER_BYTES: usize = 8;

/// Refuses unsynced blobs, for engines whose commits don't make them durable.
pub(crate) fn check_synced(gates: &[Gate]) -> Result<(), Error> {
    match gates.iter().find_map(Gate::unsynced) {
        Some(blob) => Err(Error::invalid(format!("blob {} was put without a sync", blob.id))),
        None => Ok(()),
    }
}

/// Refuses a commit that no store can accept.
pub(crate) fn check_commit(schema: &Schema, commit: &Commit) -> Result<(), Error> {
    check_at_most("preconditions", commit.expect.len(), EXPECT_MAX)?;
    check_at_most("changes", commit.changes.len(), COMMIT_CHANGES_MAX)?;
    for (kind, _) in &commit.expect {
        schema.kind(*kind)?;
    }
    let creates = commit.changes.iter().filter(|change| matches!(change, Change::Create { .. })).count();
    let mut changed = HashSet::new();
    let mut bytes = 0;
    for change in &commit.changes {
        bytes += check_change(schema.kind(change.kind())?, change, creates)?;
        if let Change::Update { kind, id, .. } | Change::Destroy { kind, id } = change
            && !changed.insert((*kind, *id))
        {
            return Err(Error::invalid(format!("the record {} is in two changes of the commit", id.0)));
        }
    }
    check_at_most("bytes of bodies and properties", bytes, COMMIT_BYTES_MAX)
}

/// Checks a change of a commit with `creates` creates; returns its share of the commit's size in bytes.
fn check_change(kind: &KindSchema, change: &Change, creates: usize) -> Result<usize, Error> {
    let (body, properties) = match change {
        Change::Create { body, properties, .. } => (Some(body), Some(properties)),
        Change::Update { body, properties, .. } => (body.as_ref(), properties.as_ref()),
        Change::Destroy { .. } => (None, None),
    };
    let mut bytes = 0;
    if let Some(body) = body {
        bytes += check_body(body)?;
    }
    if let Some(properties) = properties {
        bytes += check_properties(kind, properties, creates)?;
    }
    Ok(bytes)
}

fn check_body(body: &Body) -> Result<usize, Error> {
    check_at_most("bytes in a body", body.bytes.len(), BODY_BYTES_MAX)?;
    check_at_most("blobs in a body", body.blobs.len(), BODY_BLOBS_MAX)?;
    Ok(body.bytes.len() + BLOB_ID_BYTES * body.blobs.len())
}

fn check_properties(kind: &KindSchema, properties: &Properties, creates: usize) -> Result<usize, Error> {
    let mut bytes = 0;
    for (property, value) in properties.iter() {
        if !kind.properties.iter().any(|(known, _)| known == property) {
            return Err(Error::invalid(format!("the kind {} has no property {}", kind.name, property.0)));
        }
        bytes += 1 + check_value(value, creates)?;
    }
    for index in &kind.indexes {
        entries::check_entries(index, properties)?;
    }
    Ok(bytes)
}

/// Checks a value in a commit with `creates` creates; returns its size in bytes.
fn check_value(value: &Value, creates: usize) -> Result<usize, Error> {
    match value {
        Value::Number(_) | Value::Revision => Ok(NUMBER_BYTES),
        Value::Text(text) => {
            check_at_most("bytes in a text", text.len(), TEXT_BYTES_MAX)?;
            Ok(text.len())
        }
        Value::Created(n) if usize::from(*n) < creates => Ok(NUMBER_BYTES),
        Value::Created(n) => {
            Err(Error::invalid(format!("a property is the id of create {n}: there are {creates}")))
        }
    }
}

/// Refuses a value that no record can have.
fn check_stored_value(value: &Value) -> Result<(), Error> {
    if *value == Value::Revision {
        return Err(Error::invalid(
            "a query asks for the revision of a commit: name the revision as a number",
        ));
    }
    check_value(value, 0).map(|_| ())
}

/// Refuses a commit that expects the kind to be in another state.
pub(crate) fn check_state(kind: Kind, expected: Revision, state: Revision) -> Result<(), Error> {
    if state == expected {
        return Ok(());
    }
    let what = format!("kind {} is in state {}, and was expected in {}", kind.0, state.0, expected.0);
    Err(Error::conflict(what))
}

/// The error for a record that is to be changed but does not exist.
pub(crate) fn no_such_record(kind: Kind, id: RecordId) -> Error {
    Error::not_found(format!("there is no record {} of kind {}", id.0, kind.0))
}

/// The error for a commit in an account that is being erased.
pub(crate) fn is_erasing(account: AccountId) -> Error {
    let what =
        format!("account {} is being erased: run `restante records erase` until it is done", account.0);
    Error::conflict(what)
}

/// Refuses a read of an unknown kind or of too many records.
pub(crate) fn check_get(schema: &Schema, get: &Get) -> Result<(), Error> {
    schema.kind(get.kind)?;
    check_at_most("ids", get.ids.len(), GET_RECORDS_MAX)
}

/// A valid query: its index and the position of its cursor.
pub(crate) struct CheckedQuery<'s> {
    /// The index.
    pub(crate) index: &'s IndexSchema,
    /// The position of its cursor. In an ordered index the walk continues after the whole position, regardless of the query's own
    /// values; in a scattered index, after its id.
    pub(crate) after: Option<EntryKey>,
}

/// Refuses more queries than one call may have.
pub(crate) fn check_queries(queries: &[Query]) -> Result<(), Error> {
    check_at_most("queries", queries.len(), QUERIES_MAX)
}

/// Refuses a query that its index can't answer, and decodes its cursor.
pub(crate) fn check_query<'s>(schema: &'s Schema, query: &Query) -> Result<CheckedQuery<'s>, Error> {
    let kind = schema.kind(query.kind)?;
    let Some(index) = kind.find_index(query.index) else {
        return Err(Error::invalid(format!("the kind {} has no index {}", kind.name, query.index.0)));
    };
    check_limit(query.limit, QUERY_ROWS_MAX)?;
    let has_range = query.range != (Bound::Unbounded, Bound::Unbounded);
    let values = query.equals.len() + usize::from(has_range);
    check_at_most("values", values, index.parts.len())?;
    let is_scattered = index.order == IndexOrder::Scattered;
    if is_scattered && query.equals.len() != index.parts.len() {
        return Err(Error::invalid(format!(
            "the index {} answers only when all its parts are given",
            index.name
        )));
    }
    for value in &query.equals {
        check_stored_value(value)?;
    }
    entries::check_values(index, &query.equals)?;
    for end in [&query.range.0, &query.range.1] {
        if let Bound::Included(value) | Bound::Excluded(value) = end {
            check_stored_value(value)?;
            entries::check_values(index, query.equals.iter().chain([value]))?;
        }
    }
    let after =
        query.after.as_ref().map(|cursor| entries::place_of(cursor, query.kind, index)).transpose()?;
    Ok(CheckedQuery { index, after })
}

/// Refuses a request for changes of an unknown kind, or with a limit that is out of range.
pub(crate) fn check_changes(schema: &Schema, since: &ChangesSince) -> Result<(), Error> {
    if let Some(kind) = since.kind {
        schema.kind(kind)?;
    }
    check_limit(since.limit, CHANGES_MAX)
}

/// Refuses a revision that an account has not reached, or that is below the floor of its history. For all kinds, the floor is the
/// highest one of them.
pub(crate) fn check_since(
    account: AccountId,
    since: Revision,
    revision: Revision,
    floor: Revision,
) -> Result<(), Error> {
    if since > revision {
        let what = format!("account {} is at revision {}, before {}", account.0, revision.0, since.0);
        return Err(Error::invalid(what));
    }
    if since < floor {
        let what = format!(
            "changes of account {} since {} can't be calculated: its history begins with {}",
            account.0, since.0, floor.0
        );
        return Err(Error::not_found(what));
    }
    Ok(())
}

/// [`check_since`] of all kinds for a follower: what was forgotten before [`FeedRequest::began`] is no obstacle.
pub(crate) fn check_feed_since(
    account: AccountId,
    request: &FeedRequest,
    revision: Revision,
    floor: Revision,
) -> Result<(), Error> {
    let is_obstacle = floor > request.since.max(request.began);
    check_since(account, request.since, revision, if is_obstacle { floor } else { Revision(0) })
}

/// Refuses a page size of 0 or above the limit, for the changes that a follower requests.
pub(crate) fn check_follow(request: &FeedRequest) -> Result<(), Error> {
    check_limit(request.limit, CHANGES_MAX)
}

/// Refuses a page size of 0 or above the limit, for accounts.
pub(crate) fn check_touched(limit: usize) -> Result<(), Error> {
    check_limit(limit, TOUCHED_MAX)
}

/// Refuses a page size of 0 or above the limit, for a dump.
pub(crate) fn check_dump(limit: usize) -> Result<(), Error> {
    check_limit(limit, DUMP_RECORDS_MAX)
}

/// Refuses a page size of 0 or above the limit, for the accounts of a store that is being moved.
pub(crate) fn check_heads(limit: usize) -> Result<(), Error> {
    check_limit(limit, TRANSFER_ACCOUNTS_MAX)
}

/// Refuses a page size of 0 or above the limit, for the rows of a store that is being moved.
pub(crate) fn check_rows(limit: usize) -> Result<(), Error> {
    check_limit(limit, TRANSFER_ROWS_MAX)
}

/// Refuses a follower's name that is empty or too long.
pub(crate) fn check_follower_name(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::invalid("a follower has no name"));
    }
    check_at_most("bytes in the name of a follower", name.len(), FOLLOWER_NAME_BYTES_MAX)
}

/// Refuses a checkpoint with an invalid follower name or too many accounts.
pub(crate) fn check_checkpoint(follower: &str, accounts: usize) -> Result<(), Error> {
    check_follower_name(follower)?;
    check_at_most("accounts", accounts, TOUCHED_MAX)
}

fn check_limit(limit: usize, max: usize) -> Result<(), Error> {
    if limit == 0 {
        return Err(Error::invalid("the limit is 0: ask for something"));
    }
    check_at_most("rows to a page", limit, max)
}

fn check_at_most(what: &str, count: usize, max: usize) -> Result<(), Error> {
    if count > max {
        return Err(Error::invalid(format!("{count} {what} are too many: at most {max} are possible")));
    }
    Ok(())
}
