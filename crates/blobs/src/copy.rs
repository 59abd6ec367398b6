//! Copies all blobs of a store into another one.

use restante_core::{BlobId, ErrorKind};
use tokio::task::JoinSet;

use crate::{Error, LIST_BLOBS_MAX, Listed, Opened, Report, Source, TOUCH_BLOBS_MAX};

/// Blobs that are copied at the same time.
const COPIES_MAX: usize = 8;

/// The result of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Blobs that were copied.
    pub copied: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Blobs that were there already, for example from a copy that was interrupted.
    pub known: u64,
    /// The blobs and bytes that were examined, and damaged blobs, which are not copied.
    pub report: Report,
}

/// Copies the blobs that `to` does not have, and compares each with its hash. A copy that was interrupted is continued by copying
/// again. In `to`, all blobs count as put now. Blobs that are put into `from` meanwhile may be missed: no server should write to
/// it.
///
/// At the end `to` gets the owner of `from`, unless blobs are damaged or it has one.
///
/// `progress` is called from time to time with the bytes done and the total bytes.
///
/// # Errors
/// `Conflict` when the two belong to different records: nothing is copied. Those of the stores; what was copied before the error stays.
pub async fn copy(
    from: &Opened,
    to: &Opened,
    progress: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Copied, Error> {
    let owner = from.upkeep.owner().await?;
    let owner_there = to.upkeep.owner().await?;
    if let (Some(owner), Some(there)) = (owner, owner_there)
        && owner != there
    {
        return Err(Error::conflict(format!(
            "the blobs to copy belong to the records {owner}, those at the destination to the records {there}: copy to an empty place"
        )));
    }
    let total = from.upkeep.stats().await?.bytes;
    let (mut done, mut after) = (Copied::default(), None);
    loop {
        let page = from.upkeep.list(after, LIST_BLOBS_MAX).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        for blobs in page.chunks(TOUCH_BLOBS_MAX) {
            copy_some(from, to, blobs, &mut done, &|bytes: u64| progress(bytes, total.max(bytes))).await?;
        }
    }
    if let (Some(owner), None, 0) = (owner, owner_there, done.report.wrong) {
        to.upkeep.set_owner(owner).await?;
    }
    Ok(done)
}

async fn copy_some(
    from: &Opened,
    to: &Opened,
    blobs: &[Listed],
    done: &mut Copied,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<(), Error> {
    let ids: Vec<BlobId> = blobs.iter().map(|blob| blob.id).collect();
    let is_known = to.blobs.touch(&ids).await?;
    let mut copies = JoinSet::new();
    for (blob, is_known) in blobs.iter().zip(is_known) {
        if is_known {
            done.known += 1;
            done.note(blob.bytes, progress);
            continue;
        }
        if copies.len() >= COPIES_MAX {
            done.join_one(&mut copies, progress).await?;
        }
        let (from, to, id) = (from.clone(), to.clone(), blob.id);
        copies.spawn(async move { (id, copy_one(&from, &to, id).await) });
    }
    while !copies.is_empty() {
        done.join_one(&mut copies, progress).await?;
    }
    Ok(())
}

async fn copy_one(from: &Opened, to: &Opened, id: BlobId) -> Result<u64, Error> {
    // Reading it whole compares its hash.
    let mut source: Box<dyn Source> = from.blobs.read(id, 0..u64::MAX).await?;
    let put = to.blobs.put(&mut *source).await?;
    if put.id != id {
        return Err(Error::corrupt("the bytes are not those that were put"));
    }
    Ok(put.bytes)
}

impl Copied {
    fn note(&mut self, bytes: u64, progress: &(dyn Fn(u64) + Send + Sync)) {
        self.report.blobs += 1;
        self.report.bytes += bytes;
        progress(self.report.bytes);
    }

    /// Waits for one of the copies in progress.
    async fn join_one(
        &mut self,
        copies: &mut JoinSet<(BlobId, Result<u64, Error>)>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), Error> {
        let Some(outcome) = copies.join_next().await else { return Ok(()) };
        let (id, copied) =
            outcome.map_err(|error| Error::internal("a copy of a blob ended early").with_source(error))?;
        match copied {
            Ok(bytes) => {
                self.copied += 1;
                self.copied_bytes += bytes;
                self.note(bytes, progress);
            }
            // It was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.report.blobs += 1;
                self.report.note(id.to_string(), error.to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
