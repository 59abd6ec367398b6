//! Queries: a range of keys in one statement, with the account's head as of the same moment.

use tokio_postgres::types::ToSql;

use super::{
    Shared,
    error::value as sql_value,
    schema::{account_to_sql, corrupt, from_sql, to_sql},
};
use crate::{
    AccountId, Count, Direction, Error, Page, Query, Revision,
    map::query::{Keys, page},
    rows::AccountRow,
    validate::{CheckedQuery, check_query},
};

const PAGE_UP: &str = "SELECT NULL::bytea, (SELECT head FROM account WHERE account = $1), (SELECT epoch FROM feed_head) \
     UNION ALL (SELECT key, NULL, NULL FROM entry WHERE account = $1 AND key >= $2 AND key < $3 \
     ORDER BY key LIMIT $4 OFFSET $5)";
const PAGE_DOWN: &str = "SELECT NULL::bytea, (SELECT head FROM account WHERE account = $1), (SELECT epoch FROM feed_head) \
     UNION ALL (SELECT key, NULL, NULL FROM entry WHERE account = $1 AND key >= $2 AND key < $3 \
     ORDER BY key DESC LIMIT $4 OFFSET $5)";
const COUNT: &str = "SELECT count(*), (SELECT head FROM account WHERE account = $1), (SELECT epoch FROM feed_head) \
     FROM entry WHERE account = $1 AND key >= $2 AND key < $3";

impl Shared {
    /// [`crate::Records::query`].
    pub(super) async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        let CheckedQuery { index, after } = check_query(&self.schema, query)?;
        let keys = Keys::of(query, index, after.as_ref());
        let sql = match query.direction {
            Direction::Ascending => PAGE_UP,
            Direction::Descending => PAGE_DOWN,
        };
        let (account_number, limit, skip) =
            (account_to_sql(account), to_sql(query.limit as u64 + 1), to_sql(query.skip));
        let parameters: [&(dyn ToSql + Sync); 5] = [&account_number, &keys.from, &keys.to, &limit, &skip];
        let lease = self.reader().await?;
        let connection = lease.connection.clone();
        let work = async { connection.query("read a page", sql, &parameters).await };
        let rows = lease.drive("read a page", work).await?;
        let mut found: Vec<Vec<u8>> = Vec::with_capacity(rows.len());
        let mut state = Revision(0);
        for row in &rows {
            match sql_value::<Option<Vec<u8>>>(row, 0)? {
                Some(key) => found.push(key),
                None => state = self.state_of(account, query, sql_value(row, 1)?, sql_value(row, 2)?)?,
            }
        }
        // SQL promises no order among the parts of a union.
        found.sort_unstable();
        if query.direction == Direction::Descending {
            found.reverse();
        }
        page(account, query, index, &found, state)
    }

    /// [`crate::Records::count`].
    pub(super) async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error> {
        let CheckedQuery { index, after } = check_query(&self.schema, query)?;
        let keys = Keys::of(query, index, after.as_ref());
        let account_number = account_to_sql(account);
        let parameters: [&(dyn ToSql + Sync); 3] = [&account_number, &keys.from, &keys.to];
        let lease = self.reader().await?;
        let connection = lease.connection.clone();
        let work = async { connection.query("count entries", COUNT, &parameters).await };
        let rows = lease.drive("count entries", work).await?;
        let row = rows.first().ok_or_else(|| Error::internal("a count has no row"))?;
        let state = self.state_of(account, query, sql_value(row, 1)?, sql_value(row, 2)?)?;
        Ok(Count { entries: from_sql(sql_value(row, 0)?), state })
    }

    /// The state of the query's kind, if the indexes are still those of this server.
    fn state_of(
        &self,
        account: AccountId,
        query: &Query,
        head: Option<&[u8]>,
        epoch: i64,
    ) -> Result<Revision, Error> {
        self.check_epoch(epoch)?;
        let Some(head) = head else { return Ok(Revision(0)) };
        let head = AccountRow::decode(head).ok_or_else(|| corrupt(account, b"head"))?;
        Ok(head.kind(query.kind).state)
    }
}
