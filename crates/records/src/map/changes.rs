//! Pages of changes, built from rows of the history.

use restante_lmdb::key::Pack;

use super::keys::{after_prefix, corrupt, decode_history_key, live_prefix, tombstone_prefix};
use crate::{
    AccountId, COMMIT_CHANGES_MAX, Changed, Changes, ChangesSince, Error, FeedRequest, Kind, Revision,
    Schema,
    rows::{AccountRow, LiveRow, TombstoneRow},
    validate::{check_changes, check_since},
};

/// The first read of a page fetches a quarter more rows than the page may have entries, and these. Rows of records that the page
/// returns as created are no entries of their own; when there are many of them, the page is shorter than allowed.
const ROWS_BESIDE: usize = 16;
/// This many rows include at least one whole revision and one row of the next.
const ROWS_OF_REVISION: usize = COMMIT_CHANGES_MAX + 1;

/// A request for changes of an account.
pub(crate) struct Asked {
    pub(crate) account: AccountId,
    pub(crate) kind: Option<Kind>,
    pub(crate) since: Revision,
    /// For a follower: from this revision on, nothing that was forgotten matters to it.
    pub(crate) began: Option<Revision>,
    pub(crate) limit: usize,
}

impl Asked {
    /// A client's request, see [`crate::Records::changes`].
    pub(crate) fn by_client(
        schema: &Schema,
        account: AccountId,
        question: &ChangesSince,
    ) -> Result<Self, Error> {
        check_changes(schema, question)?;
        let ChangesSince { kind, since, limit } = *question;
        Ok(Self { account, kind, since, began: None, limit })
    }

    /// A follower's request, see [`crate::Feed::follow`].
    pub(crate) fn by_follower(
        schema: &Schema,
        account: AccountId,
        request: &FeedRequest,
    ) -> Result<Self, Error> {
        let FeedRequest { since, began, limit } = *request;
        check_changes(schema, &ChangesSince { kind: None, since, limit })?;
        Ok(Self { account, kind: None, since, began: Some(began), limit })
    }

    /// The most rows to read for a page: in the first attempt, and in the second.
    pub(crate) fn rows_max(&self) -> [usize; 2] {
        let few = self.limit + self.limit / 4 + ROWS_BESIDE;
        [few, few.max(self.limit + ROWS_OF_REVISION)]
    }

    /// Refuses a `since` from which changes can't be calculated.
    pub(crate) fn check(&self, head: &AccountRow) -> Result<(), Error> {
        let floor = head.floor_above(self.kind, self.since);
        let floor = floor.filter(|floor| self.began.is_none_or(|began| began < *floor));
        check_since(self.account, self.since, head.revision, floor.unwrap_or_default())
    }

    /// The ranges of the history after `since`: for each kind that of the existing records, and that of the destroyed ones.
    pub(crate) fn ranges(&self, head: &AccountRow) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
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

    /// Builds the page from the rows that were read; `None` when they don't reach the end of the first revision. `is_cut` says
    /// that the last revision may have more rows; it is then left out.
    pub(crate) fn cut(&self, rows: &[History], is_cut: bool, revision: Revision) -> Option<Changes> {
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

    /// Whether the caller needs a row. It does not when the row says what happened to a record that is returned as new.
    fn is_news(&self, row: &History) -> bool {
        match row.what {
            What::Created => true,
            What::Updated(created) => created <= self.since,
            What::Destroyed(created) => created <= self.since || self.began.is_some(),
        }
    }
}

/// A row of the history.
pub(crate) struct History {
    pub(crate) revision: Revision,
    pub(crate) changed: Changed,
    what: What,
}

/// What happened to a record. The revision in a variant is that of its creation.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Created,
    Updated(Revision),
    Destroyed(Revision),
}

impl History {
    /// Decodes a row.
    pub(crate) fn of(account: AccountId, key: &[u8], value: &[u8]) -> Result<Self, Error> {
        Self::decode(key, value).ok_or_else(|| corrupt(account, key))
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
