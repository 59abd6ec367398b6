//! What changed: the head of an account and the rows of its history, at one moment.

use tokio_postgres::{Row, types::ToSql};

use super::{
    Shared,
    connect::Connection,
    error::{AttemptError, column},
    read::{begin_snapshot, end_snapshot, head},
    schema::{
        HISTORY_PREFIX_BYTES, account_to_sql, after_prefix, corrupt, decode_history_key, live_prefix, to_sql,
        tombstone_prefix,
    },
};
use crate::{
    AccountId, COMMIT_CHANGES_MAX, Changed, Changes, ChangesSince, Error, FeedRequest, Kind, Revision,
    rows::{AccountRow, LiveRow, TombstoneRow},
    validate::{check_changes, check_since},
};
use restante_lmdb::key::Pack;

/// Rows that are read at first for each entry that a page may have, and beside. Rows in vain are of records that were returned
/// as created already.
const ROWS_PER_ENTRY: usize = 2;
const ROWS_BESIDE: usize = 64;
/// So many rows hold a whole revision at least, with one of the next.
const ROWS_OF_REVISION: usize = COMMIT_CHANGES_MAX + 1;

/// The first rows of several ranges, in the order of revisions, kinds and ids. What stands behind the first bytes of a key
/// sorts by revision, then by id; a record has one row of a revision at most.
const ROWS: &str = "SELECT e.key, e.value FROM unnest($2::bytea[], $3::bytea[]) AS part (low, high) \
     CROSS JOIN LATERAL (SELECT key, value FROM entry WHERE account = $1 AND key >= part.low AND key < part.high \
     ORDER BY key LIMIT $4) e ORDER BY substr(e.key, $5), e.key LIMIT $4";

/// What is asked of the history of an account.
struct Asked {
    account: AccountId,
    kind: Option<Kind>,
    since: Revision,
    /// Of a follower: the revision from which on nothing that was forgotten concerns it.
    began: Option<Revision>,
    limit: usize,
}

impl Shared {
    /// [`crate::Records::changes`].
    pub(super) async fn changes(
        &self,
        account: AccountId,
        question: &ChangesSince,
    ) -> Result<Changes, Error> {
        check_changes(&self.schema, question)?;
        let ChangesSince { kind, since, limit } = *question;
        self.history(&Asked { account, kind, since, began: None, limit }).await
    }

    /// [`crate::Feed::follow`].
    pub(super) async fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        let FeedRequest { since, began, limit } = *request;
        check_changes(&self.schema, &ChangesSince { kind: None, since, limit })?;
        self.history(&Asked { account, kind: None, since, began: Some(began), limit }).await
    }

    async fn history(&self, asked: &Asked) -> Result<Changes, Error> {
        let lease = self.reader().await?;
        let connection = lease.connection.clone();
        let work = async {
            begin_snapshot(&connection).await?;
            let head = head(&connection, asked.account).await?.after_restores(self.restores());
            let checked = asked.check(&head);
            let page = match checked {
                Ok(()) => Ok(asked.page(&connection, &head).await?),
                Err(error) => Err(error),
            };
            end_snapshot(&connection).await?;
            Ok(page)
        };
        lease.drive("read changes", work).await?
    }
}

impl Asked {
    /// Refuses a revision from which changes can't be calculated.
    fn check(&self, head: &AccountRow) -> Result<(), Error> {
        let floor = head.floor_above(self.kind, self.since);
        let floor = floor.filter(|floor| self.began.is_none_or(|began| began < *floor));
        check_since(self.account, self.since, head.revision, floor.unwrap_or_default())
    }

    async fn page(&self, connection: &Connection, head: &AccountRow) -> Result<Changes, AttemptError> {
        let (from, to) = self.ranges(head);
        if from.is_empty() {
            return Ok(Changes { revision: head.revision, ..Changes::default() });
        }
        let few = self.limit * ROWS_PER_ENTRY + ROWS_BESIDE;
        for rows_max in [few, few.max(self.limit + ROWS_OF_REVISION)] {
            let rows = self.rows(connection, &from, &to, rows_max).await?;
            if let Some(page) = self.cut(&rows, rows.len() == rows_max, head.revision) {
                return Ok(page);
            }
        }
        Err(Error::corrupt("a revision has more changes than a commit may have").into())
    }

    /// The ranges of the history behind `since`: of each kind the records that exist, and those that are gone.
    fn ranges(&self, head: &AccountRow) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut from, mut to) = (Vec::new(), Vec::new());
        let mut add = |prefix: Vec<u8>| {
            to.push(after_prefix(&prefix));
            let mut key = prefix;
            key.put_number(self.since.0 + 1);
            from.push(key);
        };
        for share in &head.kinds {
            let is_asked_for = self.kind.is_none_or(|kind| kind == share.kind);
            if !is_asked_for || share.state <= self.since {
                continue;
            }
            add(live_prefix(share.kind));
            if share.tombstones > 0 {
                add(tombstone_prefix(share.kind));
            }
        }
        (from, to)
    }

    async fn rows(
        &self,
        connection: &Connection,
        from: &[Vec<u8>],
        to: &[Vec<u8>],
        rows_max: usize,
    ) -> Result<Vec<History>, AttemptError> {
        let account = account_to_sql(self.account);
        let limit = to_sql(rows_max as u64);
        let behind_prefix = HISTORY_PREFIX_BYTES as i32 + 1;
        let parameters: [&(dyn ToSql + Sync); 5] = [&account, &from, &to, &limit, &behind_prefix];
        let mut rows = Vec::new();
        for row in connection.query("read changes", ROWS, &parameters).await? {
            rows.push(History::of(self.account, &row)?);
        }
        rows.sort_unstable_by_key(|row| (row.revision, row.changed));
        Ok(rows)
    }

    /// The page of rows that were read; `None` when they don't reach to the end of the first revision. `is_cut` says that there
    /// may be more of the last revision, which is then left out.
    fn cut(&self, rows: &[History], is_cut: bool, revision: Revision) -> Option<Changes> {
        let last = rows.last().map(|row| row.revision);
        let mut page = Changes { revision: self.since, ..Changes::default() };
        for of_revision in rows.chunk_by(|one, other| one.revision == other.revision) {
            let now = of_revision.first()?.revision;
            if is_cut && Some(now) == last {
                page.has_more = true;
                break;
            }
            let news: Vec<&History> = of_revision.iter().filter(|row| self.is_news(row)).collect();
            let before = page.created.len() + page.updated.len() + page.destroyed.len();
            if before > 0 && !news.is_empty() && before + news.len() > self.limit {
                page.has_more = true;
                return Some(page);
            }
            for row in news {
                match row.what {
                    What::Created => page.created.push(row.changed),
                    What::Updated(_) => page.updated.push(row.changed),
                    What::Destroyed(_) => page.destroyed.push(row.changed),
                }
            }
            page.revision = now;
        }
        if !page.has_more {
            page.revision = revision;
        }
        (page.revision > self.since || !page.has_more).then_some(page)
    }

    /// Whether a row says something that the caller needs: what became of a record that it gets as new is not.
    fn is_news(&self, row: &History) -> bool {
        match row.what {
            What::Created => true,
            What::Updated(created) => created <= self.since,
            What::Destroyed(created) => created <= self.since || self.began.is_some(),
        }
    }
}

/// A row of the history.
struct History {
    revision: Revision,
    changed: Changed,
    what: What,
}

/// What a row says of its record. Each was created in the revision that stands there.
#[derive(Clone, Copy)]
enum What {
    Created,
    Updated(Revision),
    Destroyed(Revision),
}

impl History {
    fn of(account: AccountId, row: &Row) -> Result<Self, AttemptError> {
        let (key, value): (&[u8], &[u8]) = (column(row, 0)?, column(row, 1)?);
        let decoded = Self::decode(key, value);
        decoded.ok_or_else(|| corrupt(account, key).into())
    }

    fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let parts = decode_history_key(key)?;
        let what = match parts.is_gone {
            true => What::Destroyed(TombstoneRow::decode(value)?.created),
            false => match LiveRow::decode(value)? {
                LiveRow::Creation => What::Created,
                LiveRow::Change { created } => What::Updated(created),
            },
        };
        Some(Self { revision: parts.revision, changed: Changed { kind: parts.kind, id: parts.id }, what })
    }
}
