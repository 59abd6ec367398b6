//! Removes blobs: moves them to the trash, and back again when an unknown manifest with them appears.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use restante_core::{BlobId, Timestamp};

use super::{
    S3,
    schema::{Removal, blob_key},
    trash::PUT_BEFORE_SECONDS_MAX,
};
use crate::Error;

/// The most requests of one removal at the same time.
const REQUESTS_MAX: usize = 16;
/// The manifests that are read for a removal begin this long before its time, because for blobs without a manifest the clock of
/// the storage counts.
const READ_BEFORE_SECONDS: i64 = 2 * 3_600;
/// The most blobs that are removed together.
const TOGETHER_MAX: usize = 1_024;

/// A blob that was moved to the trash.
#[derive(Clone, Copy)]
struct Quarantined {
    id: BlobId,
    bytes: u64,
}

impl S3 {
    /// Removes those of `ids` that were last put before a time; returns how many.
    pub(super) async fn remove_all(&self, ids: &[BlobId], put_before: Timestamp) -> Result<u64, Error> {
        let earliest = self.settings.clock.now().plus_seconds(-PUT_BEFORE_SECONDS_MAX);
        if put_before < earliest {
            return Err(Error::invalid(format!(
                "blobs can be removed that were last put before {earliest} or later: it is not known any more what was touched \
                 before that"
            )));
        }
        self.purge_if_due().await;
        let ids: Vec<BlobId> = ids.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let mut removed = 0;
        for ids in ids.chunks(TOGETHER_MAX) {
            removed += self.remove_some(ids, put_before).await?;
        }
        Ok(removed)
    }

    async fn remove_some(&self, ids: &[BlobId], put_before: Timestamp) -> Result<u64, Error> {
        let _held = self.locks.hold(ids).await;
        let from = put_before.plus_seconds(-READ_BEFORE_SECONDS);
        let times = self.times.refresh(from).await?;
        let round = times.round();
        let known: Vec<(BlobId, Option<Timestamp>)> = ids.iter().map(|id| (*id, times.put_at(*id))).collect();
        drop(times);

        let old = known.into_iter().filter(|(_, at)| at.is_none_or(|at| at < put_before));
        let mut quarantines = stream::iter(old)
            .map(|(id, put_at)| self.quarantine(id, put_at, put_before))
            .buffer_unordered(REQUESTS_MAX);
        let (mut gone, mut failure) = (Vec::new(), None);
        while let Some(outcome) = quarantines.next().await {
            match outcome {
                Ok(quarantined) => gone.extend(quarantined),
                Err(error) => failure = Some(error),
            }
        }
        drop(quarantines);

        let stay = self.return_those_named(&gone, round, from).await;
        let stay = stay?;
        let removed: Vec<Quarantined> = gone.into_iter().filter(|blob| !stay.contains(&blob.id)).collect();
        self.forget(removed.clone()).await?;
        match failure {
            Some(error) => Err(error),
            None => Ok(removed.len() as u64),
        }
    }

    /// Moves a blob to the trash; `None` when it does not exist, or was put too late.
    async fn quarantine(
        &self,
        id: BlobId,
        put_at: Option<Timestamp>,
        put_before: Timestamp,
    ) -> Result<Option<Quarantined>, Error> {
        let key = blob_key(id);
        let Some(object) = self.client.head(&key).await? else { return Ok(None) };
        if put_at.is_none() && object.modified >= put_before {
            return Ok(None);
        }
        let removal = Removal { id, at: self.settings.clock.now(), put_before, server: self.server };
        if !self.client.copy(&key, &removal.key()).await? {
            return Ok(None);
        }
        self.client.delete(&key).await?;
        Ok(Some(Quarantined { id, bytes: object.bytes }))
    }

    /// Restores blobs that were put or touched since the manifests were read; returns which.
    async fn return_those_named(
        &self,
        gone: &[Quarantined],
        round: u64,
        from: Timestamp,
    ) -> Result<BTreeSet<BlobId>, Error> {
        if gone.is_empty() {
            return Ok(BTreeSet::new());
        }
        let times = self.times.refresh(from).await?;
        let named: BTreeSet<BlobId> =
            gone.iter().map(|blob| blob.id).filter(|id| times.is_named_after(*id, round)).collect();
        drop(times);
        for id in &named {
            self.bring_back(*id).await?;
        }
        Ok(named)
    }

    async fn forget(&self, removed: Vec<Quarantined>) -> Result<(), Error> {
        let metrics = &self.settings.metrics;
        metrics.removed_blobs.inc_by(removed.len() as u64);
        for blob in &removed {
            self.take_from_totals(blob.bytes);
        }
        let cache = self.cache.clone();
        super::blocking(move || {
            removed.iter().for_each(|blob| cache.forget(blob.id));
            Ok(())
        })
        .await
    }
}
