//! An index whose columns are damaged is rebuilt from its log: when a query or an append finds the damage, and in the background
//! after a start.

use std::sync::Arc;

use bytes::Bytes;
use restante_core::ErrorKind;
use tracing::{error, info, warn};

use super::{
    Shared,
    check::index_of,
    damage::{self, set_aside},
    query,
    recover::replay,
    seal::{FileLens, load_written, remove_unwanted_index, write_index},
    sealed::Sealed,
    segment::{Budget, Segment},
};
use crate::{Error, Page, Query};

/// One page, even if indexes that it needs are damaged.
pub(super) fn query(shared: &Shared, query: &Query) -> Result<Page, Error> {
    healing(shared, || query::query(shared, query, &Budget::unlimited()))
}

/// Runs `work`, which may find damaged indexes, and repeats it after each index that was rebuilt.
pub(super) fn healing<T>(shared: &Shared, mut work: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    // A disk may damage the rebuilt index again: the loop ends all the same.
    for _ in 0..shared.segments().len() {
        match work() {
            Err(error) if error.kind() == ErrorKind::Corrupt && heal_met(shared) => {}
            answer => return answer,
        }
    }
    work()
}

/// Rebuilds the indexes that were found damaged; returns whether there were any.
fn heal_met(shared: &Shared) -> bool {
    let _one_at_a_time = shared.healing.lock();
    let mut healed = false;
    for segment in shared.segments().iter() {
        if let Segment::Sealed(sealed) = segment
            && sealed.has_damaged_index()
        {
            healed |= heal(shared, sealed);
        }
    }
    // Another thread may have been faster.
    healed || !shared.segments().iter().any(has_damaged_index)
}

fn has_damaged_index(segment: &Segment) -> bool {
    matches!(segment, Segment::Sealed(sealed) if sealed.has_damaged_index())
}

/// Verifies the next index that was not used yet, and rebuilds it if it is damaged; returns whether there was one.
pub(super) fn verify_next(shared: &Shared) -> bool {
    let segments = shared.segments();
    let unverified = segments.iter().find_map(|segment| match segment {
        Segment::Sealed(sealed) if sealed.is_unverified() => Some(sealed),
        _ => None,
    });
    let Some(sealed) = unverified else { return false };
    if !sealed.columns_are_sound() {
        heal_met(shared);
    }
    true
}

/// Returns whether the segment has a sound index now. If the index can't be written it is kept in memory.
fn heal(shared: &Shared, damaged: &Sealed) -> bool {
    let id = damaged.id;
    let name = id.index_name();
    let replay = replay(damaged.log(), &id);
    let bytes = index_of(damaged, &replay);
    let lens = FileLens { log: damaged.log().len() as u64, index: bytes.len() as u64 };
    let written = (!shared.read_only).then(|| {
        set_aside(shared, &name);
        write_index(shared, &id, &bytes)
    });
    let not_while_removing = shared.replacing.lock();
    let rebuilt = match &written {
        Some(Ok(())) => load_written(shared, id, lens),
        _ => in_memory(shared, damaged, &bytes),
    };
    if let Some(Err(error)) = written {
        warn!(%error, name, "an index that was made anew can't be written; it is kept in memory until the next start");
    }
    let rebuilt = match rebuilt {
        Ok(rebuilt) => rebuilt,
        Err(error) => {
            error!(%error, name, "a damaged index can't be made anew");
            return false;
        }
    };
    let rows = rebuilt.index.rows;
    let is_replaced = shared.replace(id.sequence, Segment::Sealed(Arc::new(rebuilt)));
    drop(not_while_removing);
    if is_replaced {
        info!(name, rows, "a damaged index was made anew from its log");
        shared.metrics.rebuilt_indexes.inc();
    } else {
        remove_unwanted_index(shared, &id);
    }
    damage::count(shared);
    true
}

fn in_memory(shared: &Shared, damaged: &Sealed, bytes: &[u8]) -> Result<Sealed, Error> {
    let index = Bytes::from_owner(Aligned::copy(bytes));
    let counter = shared.metrics.damaged.clone();
    let opened =
        Sealed::open(damaged.id, damaged.log().clone(), index, &mut shared.dictionary.write(), counter);
    opened.map_err(|what| Error::corrupt(format!("{}: {what}", damaged.id.index_name())))
}

/// Bytes aligned for numbers of eight bytes: columns are read in place.
struct Aligned {
    words: Vec<u64>,
    len: usize,
}

impl Aligned {
    fn copy(bytes: &[u8]) -> Self {
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            u64::from_ne_bytes(word)
        };
        Self { words: bytes.chunks(8).map(word).collect(), len: bytes.len() }
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice::<u64, u8>(&self.words).get(..self.len).unwrap_or_default()
    }
}
