//! The times when blobs were last put or touched, from the manifests of all servers.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use restante_core::{BlobId, Clock, Timestamp};
use tokio::sync::{Mutex, MutexGuard};

use super::{
    client::Client,
    schema::{LOG, decode_manifest, manifest_time, manifests_from},
};
use crate::Error;

/// A manifest may become visible this much later than its time says: clocks may differ by a quarter of an hour (requests are
/// refused otherwise), and a put of a manifest is only retried for some seconds.
pub(super) const MARGIN_SECONDS: i64 = 30 * 60;
/// The most manifests that are read at the same time.
const READS_MAX: usize = 32;
/// The most blobs in memory, about 100 bytes each.
const ENTRIES_MAX: usize = 8 << 20;
/// Manifests that are older than this are dropped from memory, and read again when they are needed.
const REMEMBERED_SECONDS: i64 = 3 * 86_400;

/// Reads manifests, each of them once.
pub(super) struct Times {
    client: Arc<Client>,
    clock: Arc<dyn Clock>,
    known: Mutex<Known>,
}

/// The contents of the manifests since a time.
#[derive(Default)]
pub(super) struct Known {
    /// All manifests that were visible and not older than this have been read. `None` when none were read.
    since: Option<Timestamp>,
    /// When the manifests were listed last.
    listed_at: Timestamp,
    /// The manifests of the last half hour that have been read: that time is listed again, because others may become visible
    /// late. After a failure, also earlier ones.
    read: BTreeSet<String>,
    entries: HashMap<BlobId, Entry>,
    /// The number of times that the manifests were listed.
    round: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    put_at: Timestamp,
    /// The last round in which a manifest named the blob.
    round: u64,
}

impl Known {
    /// When a blob was last put or touched; `None` when no manifest names it.
    pub(super) fn put_at(&self, id: BlobId) -> Option<Timestamp> {
        self.entries.get(&id).map(|entry| entry.put_at)
    }

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    /// Whether a manifest that was read after a round names the blob.
    pub(super) fn is_named_after(&self, id: BlobId, round: u64) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.round > round)
    }

    /// The range of keys in which all manifests have been read, and none becomes visible any more. A clock that was set back
    /// makes it smaller.
    fn complete(&self, now: Timestamp) -> Option<Range<String>> {
        let end = self.listed_at.min(now).plus_seconds(-MARGIN_SECONDS);
        self.since.map(|since| manifests_from(since)..manifests_from(end))
    }

    /// Notes that all manifests since a time were listed and read. The keys of those that are never listed again are forgotten.
    fn note_listed(&mut self, from: Timestamp, now: Timestamp) {
        self.since = Some(self.since.map_or(from, |since| since.min(from)));
        self.listed_at = now;
        self.read = self.read.split_off(&manifests_from(now.plus_seconds(-MARGIN_SECONDS)));
    }
}

impl Times {
    pub(super) fn new(client: Arc<Client>, clock: Arc<dyn Clock>) -> Self {
        Self { client, clock, known: Mutex::default() }
    }

    /// Reads the manifests from a time on that have not been read yet.
    ///
    /// # Errors
    /// `Full` when there are too many for memory; `Corrupt`; `Unavailable`.
    pub(super) async fn refresh(&self, from: Timestamp) -> Result<MutexGuard<'_, Known>, Error> {
        let mut known = self.known.lock().await;
        let now = self.clock.now();
        let is_too_old = known.since.is_some_and(|since| since < now.plus_seconds(-REMEMBERED_SECONDS));
        if is_too_old && known.since.is_some_and(|since| since < from) {
            *known = Known { round: known.round, ..Known::default() };
        }
        let listed_to = known.listed_at.min(now).plus_seconds(-MARGIN_SECONDS);
        let is_read = known.since.is_some_and(|since| since <= from);
        let begin = if is_read { listed_to } else { from.plus_seconds(-MARGIN_SECONDS) };
        known.round += 1;
        self.read_from(&mut known, begin, now).await?;
        known.note_listed(from, now);
        Ok(known)
    }

    /// The latest times of some blobs in the manifests between two times, which are not kept in memory.
    pub(super) async fn latest_between(
        &self,
        ids: &HashSet<BlobId>,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<HashMap<BlobId, Timestamp>, Error> {
        let mut after = manifests_from(from.plus_seconds(-MARGIN_SECONDS));
        let end = manifests_from(to.plus_seconds(MARGIN_SECONDS));
        let mut latest = HashMap::new();
        loop {
            let page = self.client.list(LOG, Some(&after), usize::MAX).await?;
            let keys = page.objects.iter().map(|object| object.key.clone());
            let keys: Vec<String> = keys.filter(|key| manifest_time(key).is_some() && *key < end).collect();
            let mut reads = stream::iter(keys).map(|key| self.read(key)).buffer_unordered(READS_MAX);
            while let Some((_, entries)) = reads.try_next().await? {
                for (id, at) in entries {
                    if ids.contains(&id) {
                        let known = latest.entry(id).or_insert(at);
                        *known = at.max(*known);
                    }
                }
            }
            match page.objects.last() {
                Some(last) if !page.is_last && last.key < end => after.clone_from(&last.key),
                _ => return Ok(latest),
            }
        }
    }

    async fn read_from(&self, known: &mut Known, begin: Timestamp, now: Timestamp) -> Result<(), Error> {
        let mut after = manifests_from(begin);
        let complete = known.complete(now);
        loop {
            let page = self.client.list(LOG, Some(&after), usize::MAX).await?;
            let keys = page.objects.iter().map(|object| object.key.clone());
            let is_read = |key: &String| {
                known.read.contains(key) || complete.as_ref().is_some_and(|complete| complete.contains(key))
            };
            let is_new = |key: &String| manifest_time(key).is_some() && !is_read(key);
            let unread: Vec<String> = keys.filter(is_new).collect();
            let mut reads = stream::iter(unread).map(|key| self.read(key)).buffer_unordered(READS_MAX);
            while let Some((key, entries)) = reads.try_next().await? {
                let round = known.round;
                for (id, at) in entries {
                    let entry = known.entries.entry(id).or_insert(Entry { put_at: at, round });
                    *entry = Entry { put_at: entry.put_at.max(at), round };
                }
                known.read.insert(key);
                if known.entries.len() > ENTRIES_MAX {
                    *known = Known { round, ..Known::default() };
                    return Err(Error::full(format!(
                        "more than {ENTRIES_MAX} blobs were put since {begin}: remove blobs more often, or with a shorter grace"
                    )));
                }
            }
            match page.objects.last() {
                Some(last) if !page.is_last => after.clone_from(&last.key),
                _ => return Ok(()),
            }
        }
    }

    async fn read(&self, key: String) -> Result<(String, Vec<(BlobId, Timestamp)>), Error> {
        // A manifest that was deleted since it was listed is older than any time that is needed.
        let entries = match self.client.get_small(&key).await? {
            Some(bytes) => decode_manifest(&key, &bytes)?,
            None => Vec::new(),
        };
        Ok((key, entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::schema::manifest_key;

    const HOUR: i64 = 3_600;

    fn at(seconds: i64) -> Timestamp {
        Timestamp(0).plus_seconds(seconds)
    }

    /// Once, the key of each manifest was kept for three days.
    #[test]
    fn keys_are_kept_only_of_manifests_that_are_listed_again() {
        let mut known = Known::default();
        assert_eq!(known.complete(at(0)), None);
        let keys: Vec<String> =
            (0..48 * HOUR).step_by(60).map(|second| manifest_key(at(second), 1, 0)).collect();
        known.read.extend(keys.iter().cloned());
        known.note_listed(at(HOUR), at(48 * HOUR));
        assert_eq!(known.read.len(), 30);
        let complete = known.complete(at(49 * HOUR)).unwrap();
        let since_from = &keys[60..];
        let is_known = |key: &String| known.read.contains(key) || complete.contains(key);
        assert!(since_from.iter().all(is_known), "none is read again");
        assert!(!is_known(&keys[59]) && !is_known(&manifest_key(at(48 * HOUR), 1, 0)));
        // After a clock was set back, later manifests may have earlier times.
        let complete = known.complete(at(24 * HOUR)).unwrap();
        assert!(!complete.contains(&manifest_key(at(24 * HOUR), 1, 0)));
    }
}
