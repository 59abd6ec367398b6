//! What changed: the head of an account and the rows of its history, as of one moment.

use tokio_postgres::types::ToSql;

use super::{
    Shared,
    connect::Connection,
    error::{AttemptError, column},
    read::{begin_snapshot, end_snapshot, head},
    schema::{HISTORY_PREFIX_BYTES, account_to_sql, to_sql},
};
use crate::{
    AccountId, Changes, ChangesSince, Error, FeedRequest,
    map::changes::{Asked, History},
    rows::AccountRow,
};

/// The first rows of several ranges, in the order of revisions, kinds and ids. After its first bytes, a key sorts by revision,
/// then by id; a record has at most one row per revision.
const ROWS: &str = "SELECT e.key, e.value FROM unnest($2::bytea[], $3::bytea[]) AS part (low, high) \
     CROSS JOIN LATERAL (SELECT key, value FROM entry WHERE account = $1 AND key >= part.low AND key < part.high \
     ORDER BY key LIMIT $4) e ORDER BY substr(e.key, $5), e.key LIMIT $4";

impl Shared {
    /// [`crate::Records::changes`].
    pub(super) async fn changes(
        &self,
        account: AccountId,
        question: &ChangesSince,
    ) -> Result<Changes, Error> {
        self.history(&Asked::by_client(&self.schema, account, question)?).await
    }

    /// [`crate::Feed::follow`].
    pub(super) async fn follow(&self, account: AccountId, request: &FeedRequest) -> Result<Changes, Error> {
        self.history(&Asked::by_follower(&self.schema, account, request)?).await
    }

    async fn history(&self, asked: &Asked) -> Result<Changes, Error> {
        let lease = self.reader().await?;
        let connection = lease.connection.clone();
        let work = async {
            begin_snapshot(&connection).await?;
            let head = head(&connection, asked.account).await?.after_restores(self.restores());
            let checked = asked.check(&head);
            let page = match checked {
                Ok(()) => Ok(page(asked, &connection, &head).await?),
                Err(error) => Err(error),
            };
            end_snapshot(&connection).await?;
            Ok(page)
        };
        lease.drive("read changes", work).await?
    }
}

/// A page of changes.
async fn page(asked: &Asked, connection: &Connection, head: &AccountRow) -> Result<Changes, AttemptError> {
    let (from, to) = asked.ranges(head);
    if from.is_empty() {
        return Ok(Changes { revision: head.revision, ..Changes::default() });
    }
    for rows_max in asked.rows_max() {
        let rows = rows(asked, connection, &from, &to, rows_max).await?;
        if let Some(page) = asked.cut(&rows, rows.len() == rows_max, head.revision) {
            return Ok(page);
        }
    }
    Err(Error::corrupt("a revision has more changes than a commit may have").into())
}

/// The first rows of some ranges of the history, in the order of revisions, kinds and ids.
async fn rows(
    asked: &Asked,
    connection: &Connection,
    from: &[Vec<u8>],
    to: &[Vec<u8>],
    rows_max: usize,
) -> Result<Vec<History>, AttemptError> {
    let account = account_to_sql(asked.account);
    let limit = to_sql(rows_max as u64);
    let behind_prefix = HISTORY_PREFIX_BYTES as i32 + 1;
    let parameters: [&(dyn ToSql + Sync); 5] = [&account, &from, &to, &limit, &behind_prefix];
    let mut rows = Vec::new();
    for row in connection.query("read changes", ROWS, &parameters).await? {
        let (key, value): (&[u8], &[u8]) = (column(&row, 0)?, column(&row, 1)?);
        rows.push(History::of(asked.account, key, value)?);
    }
    rows.sort_unstable_by_key(|row| (row.revision, row.changed));
    Ok(rows)
}
