//! Compares an index with the emails of an account.

use std::collections::{BTreeMap, BTreeSet};

use restante_core::ErrorKind;
use restante_mail::email;
use restante_records::{
    AccountId, CHANGES_MAX, ChangesSince, Error, GET_RECORDS_MAX, Get, RecordId, Records, Revision,
};
use restante_search::{Filter, Query, Search};

/// Where an index and the emails of an account differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Emails that should be in the index and are not.
    pub missing: Vec<RecordId>,
    /// Emails that are in the index and don't exist.
    pub surplus: Vec<RecordId>,
}

/// Compares an index with the emails of an account. `emails` are all that exist, with the revisions that created them; emails
/// that are created or destroyed meanwhile are not differences.
///
/// An index may lag behind the records: an email that was created after its revision is not missing, and one that was destroyed
/// after it is not surplus.
///
/// # Errors
/// `Unavailable`, `Corrupt`.
pub async fn compare(
    records: &dyn Records,
    search: &dyn Search,
    account: AccountId,
    emails: &BTreeMap<RecordId, Revision>,
) -> Result<Difference, Error> {
    let (found, revision) = all_of_index(search, account).await?;
    let expected = emails.iter().filter(|(_, created)| **created <= revision).map(|(id, _)| *id);
    let missing: Vec<RecordId> = expected.filter(|id| !found.contains(id)).collect();
    let surplus: Vec<RecordId> = found.into_iter().filter(|id| !emails.contains_key(id)).collect();
    let missing = existing(records, account, missing, true).await?;
    let mut surplus = existing(records, account, surplus, false).await?;
    if !surplus.is_empty() {
        match destroyed_since(records, account, revision).await? {
            Some(destroyed) => surplus.retain(|id| !destroyed.contains(id)),
            None => surplus.clear(),
        }
    }
    Ok(Difference { missing, surplus })
}

/// All emails of an account that are in the index, and the revision up to which the index is complete.
async fn all_of_index(
    search: &dyn Search,
    account: AccountId,
) -> Result<(BTreeSet<RecordId>, Revision), Error> {
    let mut query = Query::new(Filter::And(Vec::new()));
    let mut found = BTreeSet::new();
    let mut revision: Option<Revision> = None;
    loop {
        let page = search.query(account, &query).await?;
        revision = Some(revision.map_or(page.revision, |so_far| so_far.min(page.revision)));
        found.extend(page.hits.iter().map(|hit| hit.id));
        query.after = page.hits.last().copied();
        if !page.has_more || query.after.is_none() {
            return Ok((found, revision.unwrap_or_default()));
        }
    }
}

/// Those of some emails that exist now, or those that don't.
async fn existing(
    records: &dyn Records,
    account: AccountId,
    ids: Vec<RecordId>,
    do_exist: bool,
) -> Result<Vec<RecordId>, Error> {
    let mut kept = Vec::new();
    for ids in ids.chunks(GET_RECORDS_MAX) {
        let found = records.get(account, &Get::small(email::KIND, ids.to_vec())).await?;
        let pairs = ids.iter().zip(found);
        kept.extend(pairs.filter(|(_, record)| record.is_some() == do_exist).map(|(id, _)| *id));
    }
    Ok(kept)
}

/// The emails that were destroyed after a revision; `None` when that is no longer known.
async fn destroyed_since(
    records: &dyn Records,
    account: AccountId,
    revision: Revision,
) -> Result<Option<BTreeSet<RecordId>>, Error> {
    let mut destroyed = BTreeSet::new();
    let mut question = ChangesSince { kind: Some(email::KIND), since: revision, limit: CHANGES_MAX };
    loop {
        match records.changes(account, &question).await {
            Ok(page) => {
                destroyed.extend(page.destroyed.iter().map(|changed| changed.id));
                question.since = page.revision;
                if !page.has_more {
                    return Ok(Some(destroyed));
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
}
