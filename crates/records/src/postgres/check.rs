//! Verifying everything against everything else: account by account, each at one moment, then what belongs to none.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::types::ToSql;

use super::{
    Shared,
    connect::Connection,
    error::{AttemptError, column},
    query::parts,
    read::{begin_snapshot, blobs_of, end_snapshot},
    schema::{
        FORMAT, HISTORY, INDEX, META_FORMAT, META_IDENTITY, META_ORIGIN, META_SCHEMA, STATE,
        account_from_sql, account_to_sql, decode_history_key, decode_state_key, entry_keys, from_sql, hex,
        index_prefix, live_key, state_key, to_sql,
    },
};
use crate::{
    AccountId, BODY_BLOBS_MAX, BODY_BYTES_MAX, Error, Index, Kind, RecordId, Report, Revision, entries,
    indexes,
    rows::{AccountRow, LiveRow, StateRow, TombstoneRow, decode_number},
};
use restante_lmdb::key::take_byte;

/// Rows that one statement reads.
const ROWS: usize = 1_000;

const WHAT: &str = "check its records";
const PAGE: &str = "SELECT e.key, e.value, e.body, b.account, length(b.bytes), b.blobs FROM \
     (SELECT key, value, body FROM entry WHERE account = $1 AND key > $2 ORDER BY key LIMIT $3) e \
     LEFT JOIN body b ON b.id = e.body";
const FIND: &str = "SELECT wanted.key, e.value FROM unnest($2::bytea[]) AS wanted (key) \
     CROSS JOIN LATERAL (SELECT value FROM entry WHERE account = $1 AND key = wanted.key LIMIT 1) e";
const ACCOUNTS: &str = "SELECT account FROM account WHERE account > $1 ORDER BY account LIMIT $2";
const HEAD: &str = "SELECT a.head, f.position, f.revision, (SELECT position FROM feed_head) \
     FROM account a LEFT JOIN feed f USING (account) WHERE a.account = $1";
const FOLLOWERS: &str = "SELECT w.name, w.account, w.number, a.head, (SELECT position FROM feed_head), \
     (SELECT restores FROM feed_head) FROM follower w LEFT JOIN account a ON a.account = w.account";
const META: &str = "SELECT key, value FROM meta";
/// Each has one moment for all that it compares, so that commits meanwhile look like no damage.
const STRAYS: [(&str, &str, &str); 4] = [
    (
        "body",
        "it belongs to no record",
        "SELECT b.id FROM body b WHERE NOT EXISTS (SELECT FROM entry e WHERE e.account = b.account AND e.body = b.id)",
    ),
    (
        "body",
        "it belongs to more than one record",
        "SELECT body FROM entry WHERE body IS NOT NULL GROUP BY body HAVING count(*) > 1",
    ),
    (
        "account",
        "other tables have rows of it, and it has no row of its own",
        "SELECT DISTINCT account FROM entry e WHERE NOT EXISTS (SELECT FROM account a WHERE a.account = e.account)",
    ),
    (
        "feed of account",
        "it is in the feed, and has no row of its own",
        "SELECT account FROM feed f WHERE NOT EXISTS (SELECT FROM account a WHERE a.account = f.account)",
    ),
];

type Progress<'c> = &'c (dyn Fn(u64, u64) + Send + Sync);

/// Verifies that every record can be read, and that all other rows say what the records say.
pub(super) async fn check(shared: &Shared, progress: Progress<'_>) -> Result<Report, Error> {
    let mut check = Check { shared, progress, done: 0, report: Report::default() };
    let mut after = -1;
    loop {
        let accounts: Vec<i64> = shared
            .read(WHAT, async |connection| {
                let mut accounts = Vec::new();
                for row in connection.query(WHAT, ACCOUNTS, &[&after, &to_sql(ROWS as u64)]).await? {
                    accounts.push(column(&row, 0)?);
                }
                Ok(accounts)
            })
            .await?;
        for account in &accounts {
            check.account(account_from_sql(*account)?).await?;
            after = *account;
        }
        if accounts.len() < ROWS {
            break;
        }
    }
    check.strays().await?;
    check.followers().await?;
    check.meta().await?;
    progress(check.done, check.done);
    Ok(check.report)
}

struct Check<'c> {
    shared: &'c Shared,
    progress: Progress<'c>,
    done: u64,
    report: Report,
}

/// What was counted of an account's kind.
#[derive(Default)]
struct Counted {
    records: u64,
    tombstones: u64,
    /// The last revision that the history has.
    last: Revision,
}

/// What was found about an account.
struct Account {
    account: AccountId,
    counted: BTreeMap<Kind, Counted>,
    last_id: RecordId,
    findings: Vec<(String, String)>,
    records: u64,
    rows: u64,
}

/// A row as a page has it.
struct PageRow {
    key: Vec<u8>,
    value: Vec<u8>,
    body: Option<i64>,
    /// Whose body it is, its length and its blobs.
    found: Option<(i64, i32, Option<Vec<u8>>)>,
}

impl Account {
    fn note(&mut self, kind: Kind, id: RecordId, what: impl Into<String>) {
        let place = format!("account {} kind {} record {}", self.account.0, kind.0, id.0);
        self.findings.push((place, what.into()));
    }

    fn note_row(&mut self, key: &[u8], what: impl Into<String>) {
        self.findings.push((format!("account {} key {}", self.account.0, hex(key)), what.into()));
    }

    fn note_head(&mut self, what: impl Into<String>) {
        self.findings.push((format!("account {}", self.account.0), what.into()));
    }
}

impl Check<'_> {
    /// Verifies an account at one moment.
    async fn account(&mut self, account: AccountId) -> Result<(), Error> {
        let shared = self.shared;
        let mut found = Account {
            account,
            counted: BTreeMap::new(),
            last_id: RecordId(0),
            findings: Vec::new(),
            records: 0,
            rows: 0,
        };
        let read = async |connection: &Connection| {
            begin_snapshot(connection).await?;
            let mut behind = Vec::new();
            loop {
                let rows = page(connection, account, &behind).await?;
                verify(shared, connection, &mut found, &rows).await?;
                match rows.last() {
                    Some(last) if rows.len() == ROWS => behind = last.key.clone(),
                    _ => break,
                }
            }
            let heads = connection.query(WHAT, HEAD, &[&account_to_sql(account)]).await?;
            end_snapshot(connection).await?;
            if let Some(row) = heads.first() {
                let (head, position, revision, last): (&[u8], Option<i64>, Option<i64>, i64) =
                    (column(row, 0)?, column(row, 1)?, column(row, 2)?, column(row, 3)?);
                verify_head(&mut found, head, position.zip(revision), last);
            }
            Ok(found)
        };
        let found = shared.read(WHAT, read).await?;
        self.report.records += found.records;
        for (place, what) in found.findings {
            self.report.note(place, what);
        }
        self.done += found.rows + 1;
        (self.progress)(self.done, self.done);
        Ok(())
    }

    /// What belongs to nothing.
    async fn strays(&mut self) -> Result<(), Error> {
        for (place, what, sql) in STRAYS {
            let read = async |connection: &Connection| {
                // Whole tables are compared: here the planner may do as it likes.
                let begin = "BEGIN; SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; \
                             SET LOCAL enable_mergejoin = on; SET LOCAL statement_timeout = 0";
                connection.run(WHAT, begin).await?;
                let rows = connection.query(WHAT, sql, &[]).await?;
                connection.run(WHAT, "COMMIT").await?;
                Ok(rows)
            };
            for row in self.shared.read(WHAT, read).await? {
                let number: i64 = super::error::value(&row, 0)?;
                self.report.note(format!("{place} {number}"), what);
            }
        }
        Ok(())
    }

    /// Sees that no follower is ahead of what it follows.
    async fn followers(&mut self) -> Result<(), Error> {
        let rows =
            self.shared.read(WHAT, async |connection| connection.query(WHAT, FOLLOWERS, &[]).await).await?;
        for row in &rows {
            let (name, account, number): (&[u8], i64, &[u8]) =
                (super::error::value(row, 0)?, super::error::value(row, 1)?, super::error::value(row, 2)?);
            let place = format!("follower {}", String::from_utf8_lossy(name));
            let Some(number) = decode_number(number) else {
                self.report.note(place, "its row is damaged");
                continue;
            };
            let (head, last, restores): (Option<&[u8]>, i64, i64) =
                (super::error::value(row, 3)?, super::error::value(row, 4)?, super::error::value(row, 5)?);
            let head = head.and_then(AccountRow::decode).unwrap_or_default();
            let revision = head.after_restores(from_sql(restores)).revision;
            if account < 0 && number > from_sql(last) {
                self.report.note(place, "it is ahead of the feed");
            } else if account >= 0 && number > revision.0 {
                self.report.note(place, format!("it is ahead of account {account}"));
            }
        }
        Ok(())
    }

    async fn meta(&mut self) -> Result<(), Error> {
        let rows = self.shared.read(WHAT, async |connection| connection.query(WHAT, META, &[]).await).await?;
        let mut keys = BTreeSet::new();
        for row in &rows {
            let (key, value): (&[u8], &[u8]) = (super::error::value(row, 0)?, super::error::value(row, 1)?);
            let is_sound = match key {
                META_FORMAT => decode_number(value) == Some(FORMAT),
                META_IDENTITY => value == self.shared.identity.0,
                META_SCHEMA => {
                    indexes::decode(value).is_some_and(|known| known == indexes::wanted(&self.shared.schema))
                }
                META_ORIGIN => true,
                _ => false,
            };
            if !is_sound {
                self.report
                    .note(format!("table meta key {}", String::from_utf8_lossy(key)), "its row is wrong");
            }
            keys.insert(key.to_vec());
        }
        for key in [META_FORMAT, META_IDENTITY, META_SCHEMA] {
            if !keys.contains(key) {
                self.report
                    .note(format!("table meta key {}", String::from_utf8_lossy(key)), "it is not there");
            }
        }
        Ok(())
    }
}

/// The next rows of an account behind a key.
async fn page(
    connection: &Connection,
    account: AccountId,
    behind: &[u8],
) -> Result<Vec<PageRow>, AttemptError> {
    let parameters: [&(dyn ToSql + Sync); 3] = [&account_to_sql(account), &behind, &to_sql(ROWS as u64)];
    let mut rows = Vec::new();
    for row in connection.query(WHAT, PAGE, &parameters).await? {
        let (owner, length): (Option<i64>, Option<i32>) = (column(&row, 3)?, column(&row, 4)?);
        let blobs: Option<Vec<u8>> = column(&row, 5)?;
        rows.push(PageRow {
            key: column(&row, 0)?,
            value: column(&row, 1)?,
            body: column(&row, 2)?,
            found: owner.zip(length).map(|(owner, length)| (owner, length, blobs)),
        });
    }
    rows.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(rows)
}

/// Verifies the rows of a page. Others that should be there because of them are looked for in one statement.
async fn verify(
    shared: &Shared,
    connection: &Connection,
    account: &mut Account,
    rows: &[PageRow],
) -> Result<(), AttemptError> {
    let mut wanted: BTreeSet<Vec<u8>> = BTreeSet::new();
    for row in rows {
        wanted.extend(relations(shared, row));
    }
    let wanted: Vec<Vec<u8>> = wanted.into_iter().collect();
    let mut there: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for row in connection.query(WHAT, FIND, &[&account_to_sql(account.account), &wanted]).await? {
        there.insert(column(&row, 0)?, column(&row, 1)?);
    }
    for row in rows {
        account.rows += 1;
        match row.key.first() {
            Some(&STATE) => state(shared, account, row, &there),
            Some(&HISTORY) => history(account, row, &there),
            Some(&INDEX) => index(shared, account, row, &there),
            _ => account.note_row(&row.key, "it is no key of ours"),
        }
    }
    Ok(())
}

/// The keys of rows that a row is compared with.
fn relations(shared: &Shared, row: &PageRow) -> Vec<Vec<u8>> {
    match row.key.first() {
        Some(&STATE) => {
            let Some(((kind, id), state)) = decode_state_key(&row.key).zip(StateRow::decode(&row.value))
            else {
                return Vec::new();
            };
            let mut keys = vec![live_key(kind, state.created, id), live_key(kind, state.revision, id)];
            let properties = entries::take_properties(&mut { state.properties });
            if let Some(properties) = properties
                && let Ok(schema) = shared.schema.kind(kind)
            {
                for index in &schema.indexes {
                    keys.extend(entry_keys(kind, id, index, &properties).unwrap_or_default());
                }
            }
            keys
        }
        Some(&HISTORY) => decode_history_key(&row.key)
            .map(|parts| vec![state_key(parts.kind, parts.id)])
            .unwrap_or_default(),
        _ => {
            entry_of(shared, &row.key).map(|entry| vec![state_key(entry.kind, entry.id)]).unwrap_or_default()
        }
    }
}

fn state(shared: &Shared, account: &mut Account, row: &PageRow, there: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let Some((kind, id)) = decode_state_key(&row.key) else {
        return account.note_row(&row.key, "it is no key of a record");
    };
    account.records += 1;
    account.counted.entry(kind).or_default().records += 1;
    account.last_id = account.last_id.max(id);
    let Some(state) = StateRow::decode(&row.value) else {
        return account.note(kind, id, "its row is damaged");
    };
    body(account, kind, id, &state, row);
    if state.created == Revision(0) || state.created > state.revision {
        let what = format!("it was created by {} and last changed by {}", state.created.0, state.revision.0);
        account.note(kind, id, what);
    } else {
        live(account, there, kind, id, state.created, LiveRow::Creation);
        if state.revision > state.created {
            live(account, there, kind, id, state.revision, LiveRow::Change { created: state.created });
        }
    }
    let Some(properties) = entries::take_properties(&mut { state.properties }) else {
        return account.note(kind, id, "its properties are damaged");
    };
    // A kind that the schema has no longer has records, and no indexes.
    let Ok(schema) = shared.schema.kind(kind) else { return };
    for index in &schema.indexes {
        let Ok(keys) = entry_keys(kind, id, index, &properties) else {
            let what = format!("it has more or longer entries in the index {} than are possible", index.name);
            account.note(kind, id, what);
            continue;
        };
        for key in keys {
            if !there.contains_key(&key) {
                account.note(kind, id, format!("an entry of it in the index {} is missing", index.name));
            }
        }
    }
}

fn body(account: &mut Account, kind: Kind, id: RecordId, state: &StateRow<'_>, row: &PageRow) {
    let named = (state.body.0 != 0).then_some(to_sql(state.body.0));
    if row.body != named {
        account.note(kind, id, "its row and its value name different bodies");
    }
    if row.body.is_none() {
        return;
    }
    let number = state.body.0;
    let Some((owner, length, blobs)) = &row.found else {
        return account.note(kind, id, format!("its body {number} is not there"));
    };
    let blobs = blobs_of(blobs.as_deref().unwrap_or_default());
    let is_sound = blobs.is_some_and(|blobs| blobs.len() <= BODY_BLOBS_MAX)
        && usize::try_from(*length).is_ok_and(|length| length <= BODY_BYTES_MAX);
    if !is_sound {
        account.note(kind, id, format!("its body {number} can't be read"));
    }
    if *owner != account_to_sql(account.account) {
        account.note(kind, id, format!("its body {number} belongs to account {owner}"));
    }
}

fn live(
    account: &mut Account,
    there: &BTreeMap<Vec<u8>, Vec<u8>>,
    kind: Kind,
    id: RecordId,
    revision: Revision,
    expected: LiveRow,
) {
    let event = if expected == LiveRow::Creation { "creation" } else { "last change" };
    match there.get(&live_key(kind, revision, id)) {
        None => account.note(kind, id, format!("its {event} is not in the history")),
        Some(value) if LiveRow::decode(value) != Some(expected) => {
            account.note(kind, id, format!("the row of its {event} in the history is wrong"));
        }
        Some(_) => {}
    }
}

fn history(account: &mut Account, row: &PageRow, there: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let Some(parts) = decode_history_key(&row.key) else {
        return account.note_row(&row.key, "it is no key of the history");
    };
    let (kind, id, revision) = (parts.kind, parts.id, parts.revision);
    let counted = account.counted.entry(kind).or_default();
    counted.last = counted.last.max(revision);
    let state = there.get(&state_key(kind, id));
    if parts.is_gone {
        counted.tombstones += 1;
        account.last_id = account.last_id.max(id);
        let tombstone = TombstoneRow::decode(&row.value);
        let is_sound = tombstone.is_some_and(|row| row.created > Revision(0) && row.created < revision);
        if state.is_some() {
            account.note(kind, id, format!("it was destroyed by {}, and is there", revision.0));
        } else if !is_sound {
            account.note(kind, id, format!("its tombstone of revision {} is damaged", revision.0));
        }
        return;
    }
    let Some(state) = state else {
        let what = format!("the history has it at revision {}, and it is not there", revision.0);
        return account.note(kind, id, what);
    };
    let Some(state) = StateRow::decode(state) else { return }; // it is reported where the record stands
    if revision != state.created && revision != state.revision {
        let what = format!("the history has it at revision {}, which is not its last change", revision.0);
        account.note(kind, id, what);
    }
}

/// The kind, the index and the record of the key of an entry, and its place among the indexes of the schema.
struct Entry {
    kind: Kind,
    index: Index,
    id: RecordId,
}

fn entry_of(shared: &Shared, key: &[u8]) -> Option<Entry> {
    let mut rest = key.strip_prefix(&[INDEX])?;
    let (kind, index) = (Kind(take_byte(&mut rest)?), Index(take_byte(&mut rest)?));
    let schema = shared.schema.kind(kind).ok()?.find_index(index)?;
    let (_, id) = parts(key, index_prefix(kind, index).len(), schema)?;
    Some(Entry { kind, index, id })
}

fn index(shared: &Shared, account: &mut Account, row: &PageRow, there: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let Some(entry) = entry_of(shared, &row.key) else {
        return account.note_row(&row.key, "it is no entry of an index of the schema");
    };
    let Some(value) = there.get(&state_key(entry.kind, entry.id)) else {
        return account.note(entry.kind, entry.id, "an index has an entry of it, and it is not there");
    };
    let properties =
        StateRow::decode(value).and_then(|state| entries::take_properties(&mut { state.properties }));
    let Some(properties) = properties else { return }; // it is reported where the record stands
    let schema = shared.schema.kind(entry.kind).ok().and_then(|kind| kind.find_index(entry.index));
    let keys = schema.and_then(|index| entry_keys(entry.kind, entry.id, index, &properties).ok());
    if !keys.unwrap_or_default().contains(&row.key) || !row.value.is_empty() {
        account.note(entry.kind, entry.id, "an index has an entry of it that its properties don't give");
    }
}

/// Compares the head with what was counted, and with the feed.
fn verify_head(account: &mut Account, head: &[u8], feed: Option<(i64, i64)>, last_position: i64) {
    let Some(head) = AccountRow::decode(head) else {
        return account.note_head("its row is damaged");
    };
    match feed {
        None => account.note_head("it is not in the feed"),
        Some((_, revision)) if from_sql(revision) != head.revision.0 => {
            account.note_head(format!(
                "the feed has it at revision {revision}, and it is at {}",
                head.revision.0
            ));
        }
        Some((position, _)) if position > last_position => account.note_head("it is ahead of the feed"),
        Some(_) => {}
    }
    if account.last_id >= head.next_id {
        account.note_head("it would give an id again");
    }
    for share in &head.kinds {
        account.counted.entry(share.kind).or_default();
    }
    for (kind, counted) in std::mem::take(&mut account.counted) {
        let share = head.kind(kind);
        if (share.records, share.tombstones) != (counted.records, counted.tombstones) {
            account.note_head(format!(
                "it counts {} records and {} tombstones of kind {}, and has {} and {}",
                share.records, share.tombstones, kind.0, counted.records, counted.tombstones
            ));
        }
        if counted.last > share.state || share.state > head.revision {
            account.note_head(format!("the state of its kind {} is not that of its last change", kind.0));
        }
    }
    for share in &head.kinds {
        if share.floor > head.revision {
            account.note_head(format!("the floor of its kind {} is ahead of it", share.kind.0));
        }
    }
}
