//! Which cells are in use, for readers.
//!
//! A reader must know that the cells it reads are not freed meanwhile. Counting readers would make all of them write to one
//! place, which costs more than the look-up. So each thread holds on to the map that it has read last, and looks only
//! whether that is still the present one. Cells that were replaced are freed when the threads that read have come by again.

use std::{
    cell::RefCell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::{ArcSwap, Cache};

use super::table::{Cells, Size};

/// The cells of each shard.
pub(super) type Map = Vec<Arc<Cells>>;

/// The present map.
pub(super) struct SharedMap {
    /// Tells tables apart: a thread may read several.
    number: u64,
    present: Arc<ArcSwap<Map>>,
}

type Seen = Cache<Arc<ArcSwap<Map>>, Arc<Map>>;

thread_local! {
    /// The map that this thread has read last, and whose it is.
    static SEEN: RefCell<Option<(u64, Seen)>> = const { RefCell::new(None) };
}

impl SharedMap {
    /// A map of so many shards, all empty.
    pub(super) fn new(shards: usize) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let empty = Arc::new(Size::MIN.build().0);
        let present = Arc::new(ArcSwap::from_pointee(vec![empty; shards]));
        Self { number: NUMBERS.fetch_add(1, Ordering::Relaxed), present }
    }

    /// Tells readers of a shard's new cells.
    pub(super) fn put(&self, shard: usize, cells: &Arc<Cells>) {
        self.present.rcu(|map| {
            let mut map = Map::clone(map);
            if let Some(place) = map.get_mut(shard) {
                *place = cells.clone();
            }
            map
        });
    }

    /// Reads the present map. What it says was so at some moment since the call.
    #[inline]
    pub(super) fn with<T>(&self, mut read: impl FnMut(&Map) -> T) -> T {
        let seen = SEEN.try_with(|seen| match seen.try_borrow_mut().ok()?.as_mut() {
            Some((number, seen)) if *number == self.number => Some(read(seen.load())),
            _ => None,
        });
        match seen {
            Ok(Some(read)) => read,
            _ => self.with_new(read),
        }
    }

    /// The thread has not read this table before, or another one since, or it ends.
    #[cold]
    fn with_new<T>(&self, mut read: impl FnMut(&Map) -> T) -> T {
        let _ = SEEN.try_with(|seen| {
            if let Ok(mut seen) = seen.try_borrow_mut() {
                *seen = Some((self.number, Cache::new(self.present.clone())));
            }
        });
        read(&self.present.load())
    }
}

impl fmt::Debug for SharedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMap").field("number", &self.number).finish_non_exhaustive()
    }
}
