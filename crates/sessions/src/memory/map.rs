//! The current cells of each shard, for readers.
//!
//! The cells that a reader uses must not be freed meanwhile. A reference count would make all readers write to one cache line,
//! which costs more than the lookup. So each thread caches the map that it has read last, and only checks whether that is still
//! current. Replaced cells are freed when the threads that cached them read again.

use std::{
    array,
    cell::RefCell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::{ArcSwap, Cache};

use super::{
    SHARDS,
    table::{Cells, Size},
};

/// The cells of each shard.
pub(super) type Map = [Arc<Cells>; SHARDS];

/// The current map.
pub(super) struct SharedMap {
    /// Identifies the table: a thread may read several.
    number: u64,
    present: Arc<ArcSwap<Map>>,
}

type Seen = Cache<Arc<ArcSwap<Map>>, Arc<Map>>;

thread_local! {
    /// The map that this thread has read last, and the number of its table.
    static SEEN: RefCell<Option<(u64, Seen)>> = const { RefCell::new(None) };
}

impl SharedMap {
    /// A map of empty shards.
    pub(super) fn new() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let empty = Arc::new(Size::MIN.build().0);
        let present = Arc::new(ArcSwap::from_pointee(array::from_fn(|_| empty.clone())));
        Self { number: NUMBERS.fetch_add(1, Ordering::Relaxed), present }
    }

    /// Publishes a shard's new cells.
    pub(super) fn put(&self, shard: usize, cells: &Arc<Cells>) {
        self.present.rcu(|map| {
            let mut map = Map::clone(map);
            if let Some(slot) = map.get_mut(shard) {
                *slot = cells.clone();
            }
            map
        });
    }

    /// Reads the current map. Its contents were current at some moment since the call. Returns `None` in a thread that ends.
    #[inline]
    pub(super) fn with<T>(&self, read: impl FnOnce(&Map) -> T) -> Option<T> {
        let seen = |seen: &RefCell<Option<(u64, Seen)>>| {
            let mut seen = seen.try_borrow_mut().ok()?;
            if seen.as_ref().is_none_or(|(number, _)| *number != self.number) {
                self.see(&mut seen);
            }
            let (_, map) = seen.as_mut()?;
            Some(read(map.load()))
        };
        SEEN.try_with(seen).ok().flatten()
    }

    /// Fills the cache when the thread has read no table before, or another one since.
    #[cold]
    fn see(&self, seen: &mut Option<(u64, Seen)>) {
        *seen = Some((self.number, Cache::new(self.present.clone())));
    }
}

impl fmt::Debug for SharedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMap").field("number", &self.number).finish_non_exhaustive()
    }
}
