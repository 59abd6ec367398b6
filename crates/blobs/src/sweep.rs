//! Removal of unreferenced blobs.

use std::collections::BTreeSet;

use async_trait::async_trait;
use restante_core::{BlobId, Identity, Timestamp};

use crate::{Error, LIST_BLOBS_MAX, Listed, Upkeep};

/// The records of a server, which refer to blobs.
#[async_trait]
pub trait References: Send + Sync {
    /// The identity of the records.
    fn identity(&self) -> Identity;

    /// A page of the referenced blobs, with repeats, in any order; `after` is the second part of the former result, which is `None`
    /// after the last page. A blob is included if it was referenced during the whole time from the call for the first page to the
    /// result of the last, even if another record took over the reference meanwhile.
    ///
    /// # Errors
    /// When the references can't be read: then nothing is removed.
    async fn page(&self, after: Option<u64>) -> Result<(Vec<BlobId>, Option<u64>), Error>;
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Blobs that were examined.
    pub blobs: u64,
    /// Blobs that were removed.
    pub removed: u64,
    /// Their bytes.
    pub removed_bytes: u64,
}

/// Removes the blobs that were last put before a time and are not referenced.
///
/// A blob is put, or touched ([`crate::Blobs::touch`]), before the record that refers to it is committed: `put_before` must be
/// early enough that every such commit has ended. A blob that is touched during the sweep stays, even if no reference to it is found.
///
/// References are stored in a Bloom filter of 10 bits for each blob of the store, so that one in a hundred of the unreferenced
/// blobs may be mistaken for a referenced one and stays; which ones depends on `put_before`, and differs in the next sweep.
///
/// # Errors
/// `Conflict`, and nothing is removed, when the blobs' owner ([`Upkeep::owner`]) has another identity than `references`: for
/// other records every blob would look unreferenced. Those of the references and of the blobs; what was removed until then
/// stays removed.
pub async fn sweep(
    blobs: &dyn Upkeep,
    references: &dyn References,
    put_before: Timestamp,
) -> Result<Swept, Error> {
    check_owner(blobs.owner().await?, references.identity())?;
    let room_for = blobs.stats().await?.blobs;
    let mut referred = Referred::new(room_for, put_before);
    let mut after = None;
    loop {
        let (page, next) = references.page(after).await?;
        page.iter().for_each(|id| referred.insert(id));
        after = match next {
            Some(next) => Some(next),
            None => break,
        };
    }
    remove_all_but(blobs, &referred, put_before).await
}

fn check_owner(owner: Option<Identity>, records: Identity) -> Result<(), Error> {
    let what = match owner {
        Some(owner) if owner == records => return Ok(()),
        Some(owner) => format!("the blobs belong to the records {owner}"),
        None => "the blobs have no owner yet".to_owned(),
    };
    let what = format!("{what}, and these are the records {records}: nothing is removed");
    Err(Error::conflict(what))
}

async fn remove_all_but(
    blobs: &dyn Upkeep,
    referred: &Referred,
    put_before: Timestamp,
) -> Result<Swept, Error> {
    let mut swept = Swept::default();
    let mut after = None;
    loop {
        let page = blobs.list(after, LIST_BLOBS_MAX).await?;
        let Some(last) = page.last() else { return Ok(swept) };
        swept.blobs += page.len() as u64;
        let is_left = |blob: &Listed| blob.put_at < put_before && !referred.contains(&blob.id);
        let left: Vec<Listed> = page.iter().copied().filter(is_left).collect();
        if !left.is_empty() {
            let ids: Vec<BlobId> = left.iter().map(|blob| blob.id).collect();
            let removed = blobs.remove(&ids, put_before).await?;
            let is_all = removed == ids.len() as u64;
            let kept = if is_all { BTreeSet::new() } else { still_there(blobs, after, last.id).await? };
            swept.removed += removed;
            swept.removed_bytes +=
                left.iter().filter(|blob| !kept.contains(&blob.id)).map(|blob| blob.bytes).sum::<u64>();
        }
        after = Some(last.id);
    }
}

/// The blobs after one up to another that still exist: some were put again while others were removed.
async fn still_there(
    blobs: &dyn Upkeep,
    mut after: Option<BlobId>,
    last: BlobId,
) -> Result<BTreeSet<BlobId>, Error> {
    let mut found = BTreeSet::new();
    loop {
        let page = blobs.list(after, LIST_BLOBS_MAX).await?;
        found.extend(page.iter().map(|blob| blob.id).filter(|id| *id <= last));
        match page.last() {
            Some(end) if end.id < last => after = Some(end.id),
            _ => return Ok(found),
        }
    }
}

/// Bits per reference. With seven of them set, 0.8 % of the other blobs are false positives.
const BITS_PER_REFERENCE: u64 = 10;
/// Bits that each reference sets: 10 ln 2 is the best number for ten bits.
const BITS_SET: u64 = 7;
/// The most bytes of the filter: enough for two hundred million blobs. With more blobs there are more false positives.
const FILTER_BYTES_MAX: u64 = 256 << 20;

/// A Bloom filter of the blobs that are referred to.
struct Referred {
    words: Vec<u64>,
    seed: u64,
}

impl Referred {
    /// A filter for `blobs` blobs. References to blobs that the store does not have do not matter.
    fn new(blobs: u64, put_before: Timestamp) -> Self {
        let bits = blobs.saturating_mul(BITS_PER_REFERENCE).clamp(64, FILTER_BYTES_MAX * 8);
        Self { words: vec![0; bits.div_ceil(64) as usize], seed: mix(put_before.nanos() as u64) }
    }

    fn insert(&mut self, id: &BlobId) {
        for bit in self.bits(id) {
            if let Some(word) = self.words.get_mut((bit / 64) as usize) {
                *word |= 1 << (bit % 64);
            }
        }
    }

    fn contains(&self, id: &BlobId) -> bool {
        self.bits(id)
            .all(|bit| self.words.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 == 1))
    }

    /// The bits of a blob, by combining two hashes of its id and the seed (Kirsch and Mitzenmacher, "Less hashing, same performance",
    /// 2006).
    fn bits(&self, id: &BlobId) -> impl Iterator<Item = u64> + use<> {
        let (mut first, mut second) = (self.seed, !self.seed);
        for part in id.0.chunks(8) {
            let word = part.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            first = mix(first ^ word);
            second = mix(second.wrapping_add(word));
        }
        let bits = self.words.len() as u64 * 64;
        (0..BITS_SET).map(move |n| first.wrapping_add(n.wrapping_mul(second | 1)) % bits)
    }
}

/// Spreads every bit over all others (the finalizer of splitmix64).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::id_of;

    fn id(n: u32) -> BlobId {
        id_of(&n.to_le_bytes())
    }

    #[test]
    fn what_was_inserted_is_found_and_one_in_a_hundred_of_others_at_most() {
        let mut referred = Referred::new(10_000, Timestamp(7));
        (0..10_000).for_each(|n| referred.insert(&id(n)));
        assert!((0..10_000).all(|n| referred.contains(&id(n))));
        let mistaken = (10_000..110_000).filter(|n| referred.contains(&id(*n))).count();
        assert!((100..1_200).contains(&mistaken), "{mistaken} of 100,000: 0.8 % is expected");
    }

    #[test]
    fn another_sweep_is_mistaken_about_others() {
        let mistaken = |at| {
            let mut referred = Referred::new(1_000, Timestamp(at));
            (0..1_000).for_each(|n| referred.insert(&id(n)));
            (1_000..101_000).filter(|n| referred.contains(&id(*n))).collect::<BTreeSet<u32>>()
        };
        let (one, other) = (mistaken(1_000), mistaken(2_000));
        let both = one.intersection(&other).count();
        assert!(one.len() > 100 && both * 10 < one.len(), "{both} of {} again", one.len());
    }

    #[test]
    fn a_filter_for_nothing_and_one_for_too_much_have_bounds() {
        assert!(!Referred::new(0, Timestamp(0)).contains(&id(1)));
        let bits = u64::MAX.saturating_mul(BITS_PER_REFERENCE).clamp(64, FILTER_BYTES_MAX * 8);
        assert_eq!(bits, FILTER_BYTES_MAX * 8);
    }
}
