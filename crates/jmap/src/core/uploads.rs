//! Uploads: blobs that nothing refers to yet. They live for some time, for the user who uploaded them, in a quota of their own.

use std::collections::HashSet;

use restante_core::{BlobId, Error, ErrorKind};
use restante_mail::{Mail, Tries, upload};
use restante_records::{
    AccountId, Body, Change, Commit, Get, Properties, QUERY_ROWS_MAX, Query, Record, RecordId, Value,
};

use super::{BlobRef, Content, Context, content::number};
use crate::JmapConfig;

/// The most uploads of a user in an account: beyond them the oldest go.
const UPLOADS_MAX: usize = 1_000;
/// Uploads of one hash that are looked at.
const SAME_HASH_MAX: usize = 16;

/// The uploads that the calls of a request make, and those that they take bytes of. They are the newest of the user, and as long as
/// they are not more than the quota of an account, none of them pushes out another one.
#[derive(Debug, Default)]
pub(crate) struct UsedUploads {
    bytes: u64,
    known: HashSet<(AccountId, RecordId)>,
}

impl UsedUploads {
    /// Counts the bytes of an upload that is to be made; false when there are too many with it. The first of a request always fits, as
    /// one over HTTP does.
    pub(crate) fn admit(&mut self, config: &JmapConfig, bytes: u64) -> bool {
        let total = self.bytes.saturating_add(bytes);
        let fits = total <= config.uploads_bytes_max.get() && self.known.len() < UPLOADS_MAX;
        if !fits && !self.known.is_empty() {
            return false;
        }
        self.bytes = total;
        true
    }

    /// Adds an upload whose bytes were counted.
    pub(crate) fn made(&mut self, account: AccountId, upload: RecordId) {
        self.known.insert((account, upload));
    }

    /// Begins the time of an upload anew, because bytes are taken of it, and counts it. Once for each.
    ///
    /// # Errors
    /// Those of [`note`].
    pub(crate) async fn renew(
        &mut self,
        context: &Context,
        account: AccountId,
        upload: RecordId,
    ) -> Result<(), Error> {
        if self.known.contains(&(account, upload)) {
            return Ok(());
        }
        let content = context.content(account, &BlobRef::upload(upload)).await?;
        let Some(Content::Stored { blob, size }) = content else { return Ok(()) };
        // Another request may push it out in this moment, and its blob may be swept then.
        if context.blobs().touch(&[blob]).await?.first() == Some(&true) {
            note(context, account, blob, size).await?;
            self.bytes = self.bytes.saturating_add(size);
            self.known.insert((account, upload));
        }
        Ok(())
    }
}

/// Notes that the user has uploaded a blob to an account, and returns the upload. The same bytes again are the same upload, whose
/// time begins anew (RFC 8620 §6.1). Expired uploads go, and the oldest beyond the quota.
///
/// # Errors
/// Those of the records; `Unavailable` when other servers change uploads of the account all the time.
pub(crate) async fn note(
    context: &Context,
    account: AccountId,
    blob: BlobId,
    bytes: u64,
) -> Result<RecordId, Error> {
    let _lock = context.mail().lock_edits(account, upload::KIND).await;
    let mut tries = Tries::default();
    loop {
        let plan = plan(context, account, blob, bytes).await?;
        let known = plan.known;
        match context.records().commit(account, plan.commit).await {
            Ok(committed) => {
                let missing = || Error::internal("a commit that creates an upload returned no id");
                return known.or_else(|| committed.created.first().copied()).ok_or_else(missing);
            }
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                if !tries.next().await {
                    let what = format!("uploads of account {} change all the time: try again", account.0);
                    return Err(Error::unavailable(what));
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// What is to be committed.
struct Plan {
    commit: Commit,
    /// The upload, if it is there.
    known: Option<RecordId>,
}

async fn plan(context: &Context, account: AccountId, blob: BlobId, bytes: u64) -> Result<Plan, Error> {
    let (records, config) = (context.records(), &context.config);
    let owner = u64::from(context.login.account.0);
    let hash = hash_of(blob);
    let same = Query::new(upload::KIND, upload::BY_HASH).equals(hash).limit(SAME_HASH_MAX);
    let same = records.query(account, &same).await?;
    let state = same.state;
    let same = records.get(account, &Get::whole(upload::KIND, same.ids)).await?;
    let is_it = |record: &&Record| {
        number(record, upload::OWNER) == Some(owner) && record.body.blobs.first() == Some(&blob)
    };
    let known = same.iter().flatten().find(is_it).map(|record| record.id);
    let own = Query::new(upload::KIND, upload::BY_OWNER).equals(owner).limit(QUERY_ROWS_MAX);
    let own = records.query(account, &own).await?;
    let mut others = records.get(account, &Get::small(upload::KIND, own.ids)).await?;
    others.retain(|record| record.as_ref().map(|record| record.id) != known);

    let now = context.clock().now().seconds();
    let properties = Properties::default()
        .with(upload::UPLOADED, seconds(now))
        .with(upload::OWNER, owner)
        .with(upload::SIZE, bytes)
        .with(upload::HASH, hash);
    let mut changes = vec![match known {
        Some(id) => Change::Update { kind: upload::KIND, id, body: None, properties: Some(properties) },
        None => {
            let body = Body { blobs: vec![blob], ..Body::default() };
            Change::Create { kind: upload::KIND, body, properties }
        }
    }];
    // From the newest to the oldest: what is beyond the quota goes.
    let expired = seconds(now.saturating_sub_unsigned(config.upload_seconds.get()));
    let (mut left, mut total) = (1, bytes);
    for record in others.iter().flatten().rev() {
        total = total.saturating_add(number(record, upload::SIZE).unwrap_or_default());
        left += 1;
        let is_expired = number(record, upload::UPLOADED).unwrap_or_default() <= expired;
        if is_expired || total > config.uploads_bytes_max.get() || left > UPLOADS_MAX {
            changes.push(Change::Destroy { kind: upload::KIND, id: record.id });
        }
    }
    Ok(Plan { commit: Commit::of(changes).if_in_state(upload::KIND, state), known })
}

/// Removes the uploads of an account that have expired; returns how many.
///
/// # Errors
/// Those of the records.
pub(crate) async fn expire(mail: &Mail, account: AccountId, upload_seconds: u64) -> Result<usize, Error> {
    let records = mail.records();
    let expired = mail.clock().now().seconds().saturating_sub_unsigned(upload_seconds);
    let until = std::ops::Bound::Included(Value::Number(seconds(expired)));
    let query = Query::new(upload::KIND, upload::BY_UPLOADED).between(std::ops::Bound::Unbounded, until);
    let mut removed = 0;
    loop {
        let page = records.query(account, &query.clone().limit(QUERY_ROWS_MAX / 2)).await?;
        if page.ids.is_empty() {
            return Ok(removed);
        }
        let changes = page.ids.iter().map(|id| Change::Destroy { kind: upload::KIND, id: *id });
        let commit = Commit::of(changes).if_in_state(upload::KIND, page.state);
        match records.commit(account, commit).await {
            Ok(_) => removed += page.ids.len(),
            // Somebody has uploaded meanwhile: the next walk removes them.
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                return Ok(removed);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Uploads are found by the first 8 bytes of their hash.
fn hash_of(blob: BlobId) -> u64 {
    let first = blob.0.first_chunk::<8>().copied().unwrap_or_default();
    u64::from_be_bytes(first)
}

fn seconds(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or_default()
}
