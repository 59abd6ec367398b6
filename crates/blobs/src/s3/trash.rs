//! Removed blobs are in the trash for a week. They are restored if it turns out that a put or a touch was acknowledged meanwhile.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, TryStreamExt, stream};
use restante_core::{BlobId, Timestamp};
use tracing::warn;

use super::{
    S3,
    client::Object,
    schema::{LOG, Removal, TRASH, blob_key, manifest_time, trash_of},
};
use crate::Error;

/// How long removed blobs stay in the trash.
const TRASH_SECONDS: i64 = 7 * 86_400;
/// How long manifests are kept.
const MANIFEST_SECONDS: i64 = 40 * 86_400;
/// How long ago the time may be before which blobs are removed: for earlier times manifests may be missing.
pub(super) const PUT_BEFORE_SECONDS_MAX: i64 = MANIFEST_SECONDS - 86_400;
/// How often the trash is emptied.
const PURGE_INTERVAL_SECONDS: i64 = 86_400;
/// Manifests that matter for a removal are from this long before it, as it has read earlier ones...
const BEFORE_REMOVAL_SECONDS: i64 = 2 * 3_600;
/// ...to this long after it: a later put finds that the blob is missing.
const AFTER_REMOVAL_SECONDS: i64 = 3_600;
/// The manifests since a removal that is more recent than this are in memory, or will be needed there.
const RECENT_SECONDS: i64 = 86_400;
/// The most removals that are purged with one pass over the manifests.
const PURGED_TOGETHER_MAX: usize = 100_000;
/// The most requests of a purge at the same time.
const REQUESTS_MAX: usize = 16;

impl S3 {
    /// The object of a blob. If it was removed wrongly, it is restored first.
    pub(super) async fn find(&self, id: BlobId) -> Result<Option<Object>, Error> {
        let key = blob_key(id);
        if let Some(object) = self.client.head(&key).await? {
            return Ok(Some(object));
        }
        match self.restore_if_due(id).await? {
            true => self.client.head(&key).await,
            false => Ok(None),
        }
    }

    /// Restores a missing blob when it was put or touched after the time before which it was removed.
    pub(super) async fn restore_if_due(&self, id: BlobId) -> Result<bool, Error> {
        let Some(removal) = self.last_removal(id).await? else { return Ok(false) };
        if !self.is_wrong(&removal).await? {
            return Ok(false);
        }
        self.bring_back(id).await
    }

    /// Whether a manifest shows that the blob should not have been removed.
    async fn is_wrong(&self, removal: &Removal) -> Result<bool, Error> {
        let (from, to) = manifests_of(removal.at, removal.at);
        let put_at = if removal.at >= self.settings.clock.now().plus_seconds(-RECENT_SECONDS) {
            self.times.refresh(from).await?.put_at(removal.id)
        } else {
            self.times.latest_between(&HashSet::from([removal.id]), from, to).await?.remove(&removal.id)
        };
        Ok(put_at.is_some_and(|at| at >= removal.put_before))
    }

    /// The last removal of a blob that is in the trash.
    async fn last_removal(&self, id: BlobId) -> Result<Option<Removal>, Error> {
        let (start, mut after, mut last) = (trash_of(id), None, None);
        loop {
            let page = self.client.list(&start, after.as_deref(), usize::MAX).await?;
            last = page.objects.iter().rev().find_map(|object| Removal::parse(&object.key)).or(last);
            after = match page.objects.last() {
                Some(object) if !page.is_last => Some(object.key.clone()),
                _ => return Ok(last),
            };
        }
    }

    /// Copies a blob back from the trash; false when it is not there.
    pub(super) async fn restore(&self, id: BlobId) -> Result<bool, Error> {
        match self.last_removal(id).await? {
            Some(removal) => self.client.copy(&removal.key(), &blob_key(id)).await,
            None => Ok(false),
        }
    }

    /// Deletes what was removed long ago from the trash, and old manifests, once a day. A failure is logged, and the next removal
    /// tries again.
    pub(super) async fn purge_if_due(&self) {
        let now = self.settings.clock.now();
        let purged_at = *self.purged_at.lock();
        if purged_at.is_some_and(|at| now < at.plus_seconds(PURGE_INTERVAL_SECONDS)) {
            return;
        }
        match self.purge(now).await {
            Ok(()) => *self.purged_at.lock() = Some(now),
            Err(error) => warn!(%error, "the trash of the blobs was not emptied"),
        }
    }

    async fn purge(&self, now: Timestamp) -> Result<(), Error> {
        let (mut after, mut is_last) = (None, false);
        while !is_last {
            let mut old = Vec::new();
            while old.len() < PURGED_TOGETHER_MAX && !is_last {
                let page = self.client.list(TRASH, after.as_deref(), usize::MAX).await?;
                let removals = page.objects.iter().filter_map(|object| Removal::parse(&object.key));
                old.extend(removals.filter(|removal| removal.at < now.plus_seconds(-TRASH_SECONDS)));
                after = page.objects.last().map(|object| object.key.clone());
                is_last = page.is_last || after.is_none();
            }
            self.purge_some(old).await?;
        }
        self.retire_manifests(now).await
    }

    async fn purge_some(&self, old: Vec<Removal>) -> Result<(), Error> {
        let (Some(first), Some(last)) =
            (old.iter().map(|removal| removal.at).min(), old.iter().map(|removal| removal.at).max())
        else {
            return Ok(());
        };
        let (from, to) = manifests_of(first, last);
        let ids = old.iter().map(|removal| removal.id).collect();
        let put_at = &self.times.latest_between(&ids, from, to).await?;
        let purges = stream::iter(old).map(|removal| self.purge_one(removal, put_at));
        purges.buffer_unordered(REQUESTS_MAX).try_collect::<()>().await
    }

    async fn purge_one(&self, removal: Removal, put_at: &HashMap<BlobId, Timestamp>) -> Result<(), Error> {
        let _held = self.locks.hold(&[removal.id]).await;
        let is_wrong = put_at.get(&removal.id).is_some_and(|at| *at >= removal.put_before);
        if is_wrong && self.client.head(&blob_key(removal.id)).await?.is_none() {
            self.client.copy(&removal.key(), &blob_key(removal.id)).await?;
            self.settings.metrics.s3.restored_blobs.inc();
        } else {
            self.settings.metrics.s3.purged_blobs.inc();
        }
        self.client.delete(&removal.key()).await
    }

    async fn retire_manifests(&self, now: Timestamp) -> Result<(), Error> {
        loop {
            let page = self.client.list(LOG, None, usize::MAX).await?;
            let is_old =
                |key: &String| manifest_time(key).is_some_and(|at| at < now.plus_seconds(-MANIFEST_SECONDS));
            let old: Vec<String> =
                page.objects.iter().map(|object| object.key.clone()).filter(is_old).collect();
            let is_all_old = old.len() == page.objects.len();
            let deletions = stream::iter(old).map(|key| async move { self.client.delete(&key).await });
            deletions.buffer_unordered(REQUESTS_MAX).try_collect::<()>().await?;
            if page.is_last || !is_all_old {
                return Ok(());
            }
        }
    }
}

/// The times between which the manifests are that may contradict removals.
fn manifests_of(first: Timestamp, last: Timestamp) -> (Timestamp, Timestamp) {
    (first.plus_seconds(-BEFORE_REMOVAL_SECONDS), last.plus_seconds(AFTER_REMOVAL_SECONDS))
}
