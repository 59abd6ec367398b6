//! Verifies all rows against each other: account by account, each as of one moment, then the rows that belong to no account.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::types::ToSql;

use super::{
    Shared,
    connect::Connection,
    error::{AttemptError, column},
    read::{begin_snapshot, end_snapshot},
    schema::{
        FORMAT, META_FORMAT, META_IDENTITY, META_ORIGIN, META_SCHEMA, account_from_sql, account_to_sql,
        from_sql, to_sql,
    },
};
use crate::{
    AccountId, Error, Report, indexes,
    map::{
        self,
        check::{Account, PageRow, relations, verify_head},
    },
    rows::{AccountRow, decode_number},
};

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
/// Each statement compares rows as of one moment, so that concurrent commits don't look like damage.
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

/// Verifies that every record can be read, and that all other rows agree with the records.
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

impl Check<'_> {
    /// Verifies an account as of one moment.
    async fn account(&mut self, account: AccountId) -> Result<(), Error> {
        let shared = self.shared;
        let mut found = Account::of(account);
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

    /// Finds rows that belong to nothing.
    async fn strays(&mut self) -> Result<(), Error> {
        for (place, what, sql) in STRAYS {
            let read = async |connection: &Connection| {
                // Whole tables are compared, so here the planner may choose freely.
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

    /// Checks that no follower is ahead of the accounts that it follows.
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

/// The next rows of an account, after a key.
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

/// Verifies the rows of a page. Other rows that they require are looked up in one statement.
async fn verify(
    shared: &Shared,
    connection: &Connection,
    account: &mut Account,
    rows: &[PageRow],
) -> Result<(), AttemptError> {
    let mut wanted: BTreeSet<Vec<u8>> = BTreeSet::new();
    for row in rows {
        wanted.extend(relations(&shared.schema, row));
    }
    let wanted: Vec<Vec<u8>> = wanted.into_iter().collect();
    let mut there: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for row in connection.query(WHAT, FIND, &[&account_to_sql(account.account), &wanted]).await? {
        there.insert(column(&row, 0)?, column(&row, 1)?);
    }
    for row in rows {
        map::check::verify(&shared.schema, account, row, &there);
    }
    Ok(())
}
