//! Uploads: blobs that nothing refers to yet. They are kept for a limited time, for the user who uploaded them, and have a quota of
//! their own.

use std::collections::HashSet;

use restante_core::{BlobId, Error, ErrorKind};
use restante_mail::{Mail, Tries, upload};
use restante_records::{
    AccountId, Body, Change, Commit, Get, Properties, QUERY_ROWS_MAX, Query, Record, RecordId, Value,
};

use super::{BlobRef, Content, Context, content::number};
use crate::JmapConfig;

/// The most uploads of a user in an account; beyond that the oldest are removed.
const UPLOADS_MAX: usize = 1_000;
/// The most uploads with one hash that are examined.
const SAME_HASH_MAX: usize = 16;

/// The uploads that the calls of a request make, and those from which they take bytes. They are the newest uploads of the user, so
/// while they stay within the quota of the account, none of them evicts another.
#[derive(Debug, Default)]
pub(crate) struct UsedUploads {
    bytes: u64,
    known: HashSet<(AccountId, RecordId)>,
}

impl UsedUploads {
    /// Counts the bytes of an upload that is about to be made; false when this would exceed the quota. The first upload of a request is
    /// always admitted, like one over HTTP.
    pub(crate) fn admit(&mut self, config: &JmapConfig, bytes: u64) -> bool {
        let total = self.bytes.saturating_add(bytes);
        let fits = total <= config.uploads_bytes_max.get() && self.known.len() < UPLOADS_MAX;
        if !fits && !self.known.is_empty() {
            return false;
        }
        self.bytes = total;
        true
    }

    /// Adds an upload whose bytes were already counted.
    pub(crate) fn made(&mut self, account: AccountId, upload: RecordId) {
        self.known.insert((account, upload));
    }

    /// Restarts the time of an upload whose bytes are used, and counts it. Has an effect once for each upload.
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
        // Another request may evict it right now, and its blob may be swept then.
        if context.blobs().touch(&[blob]).await?.first() == Some(&true) {
            note(context, account, blob, size).await?;
            self.bytes = self.bytes.saturating_add(size);
            self.known.insert((account, upload));
        }
        Ok(())
    }
}

/// Records that the user has uploaded a blob to an account, and returns the upload. The same bytes again are the same upload, whose
/// time restarts (RFC 8620 §6.1). Removes expired uploads, and the oldest ones that exceed the quota.
///
/// # Errors
/// Those of the records; `Unavailable` when other servers keep changing uploads of the account.
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
    /// The upload of the same bytes, if there is one.
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
    // From the newest to the oldest: those that exceed the quota are removed.
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
            // There was a new upload meanwhile: the next run removes them.
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
