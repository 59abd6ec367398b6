//! Who reads LMDB at the moment, and transactions that are kept for the next reader.
//!
//! To begin and to end a transaction takes LMDB about as long as to find a row: it allocates, takes a place in its table of
//! readers, and looks up by its name each table that is asked. So a reader leaves its transaction for the next one, which
//! sees the same as long as nothing was committed. After a commit those left behind end at once: pages that they
//! still see could not be used again.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    thread,
    time::{Duration, Instant},
};

use heed::{Env, RoTxn, WithoutTls};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Transactions that are kept at most. Threads share them out by their numbers; who finds its own in use begins another.
const KEPT_MAX: usize = 64;

/// How long readers wait behind the wish to let the map grow, and how long that wish then waits for them.
const ALONE_AT_ONCE: Duration = Duration::from_millis(2);
const ALONE_LATER: Duration = Duration::from_millis(20);

/// The readers of an environment.
pub(crate) struct Readers {
    env: Env<WithoutTls>,
    /// Shared by transactions that are not kept, and by who writes; taken alone while the map grows, when no transaction may
    /// live. Who waits to take it alone goes before those who come to share it later, so a thread that has a transaction must
    /// not begin another, nor wait for who grows.
    gate: RwLock<()>,
    /// Held by who uses the transaction, all of them while the map grows.
    kept: Box<[Slot]>,
    /// The last transaction that was committed, or the one before it for a moment.
    newest: AtomicUsize,
    /// Whether the map is to grow: then those who come to read wait at the gate, so that those who read get done.
    is_growing: AtomicBool,
}

/// A place for a transaction. Each has cache lines of its own, so that threads don't disturb each other.
#[derive(Default)]
#[repr(align(128))]
struct Slot(Mutex<Option<Kept>>);

struct Kept {
    id: usize,
    transaction: RoTxn<'static, WithoutTls>,
}

/// A read transaction. While it lives the map does not grow.
pub(crate) struct Reading<'e>(Place<'e>);

enum Place<'e> {
    // Dropped in this order: the transaction first.
    Kept(MappedMutexGuard<'e, Kept>, Leaving<'e>),
    Own(RoTxn<'e, WithoutTls>, #[expect(dead_code, reason = "it is held")] RwLockReadGuard<'e, ()>),
}

impl Reading<'_> {
    pub(crate) fn transaction(&self) -> &RoTxn<'_, WithoutTls> {
        match &self.0 {
            Place::Kept(kept, _) => &kept.transaction,
            Place::Own(transaction, _) => transaction,
        }
    }

    /// Does not keep the transaction for the next reader: LMDB refuses to read with one that met a damaged page.
    pub(crate) fn note_failed(&self) {
        if let Place::Kept(_, leaving) = &self.0 {
            leaving.has_failed.store(true, Ordering::Relaxed);
        }
    }

    /// The number of the last transaction that wrote what this one sees.
    pub(crate) fn id(&self) -> usize {
        match &self.0 {
            Place::Kept(kept, _) => kept.id,
            Place::Own(transaction, _) => transaction.id(),
        }
    }
}

/// Looks, after a kept transaction was used, whether something was committed meanwhile.
struct Leaving<'e> {
    readers: &'e Readers,
    slot: &'e Slot,
    id: usize,
    has_failed: AtomicBool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        fence(Ordering::SeqCst); // see `Readers::committed`
        let has_failed = self.has_failed.load(Ordering::Relaxed);
        if has_failed || self.id != self.readers.newest.load(Ordering::SeqCst) {
            self.slot.clear_if_free();
        }
    }
}

impl Slot {
    /// Ends the transaction that is kept here, unless it is in use.
    fn clear_if_free(&self) {
        if let Some(mut kept) = self.0.try_lock() {
            *kept = None;
        }
    }
}

/// Nobody reads while this lives.
pub(crate) struct Alone<'e> {
    _gate: RwLockWriteGuard<'e, ()>,
    _kept: Vec<MutexGuard<'e, Option<Kept>>>,
}

impl Readers {
    pub(crate) fn new(env: Env<WithoutTls>) -> Self {
        let newest = AtomicUsize::new(env.info().last_txn_id);
        let kept = (0..KEPT_MAX).map(|_| Slot::default()).collect();
        Self { env, gate: RwLock::new(()), kept, newest, is_growing: AtomicBool::new(false) }
    }

    /// Begins a transaction, or goes on with one that sees the last commit.
    pub(crate) fn begin(&self) -> heed::Result<Reading<'_>> {
        let slot = self.kept.get(number_of_thread() % KEPT_MAX);
        let slot = slot.filter(|_| !self.is_growing.load(Ordering::Relaxed));
        if let Some((slot, free)) = slot.and_then(|slot| Some((slot, slot.0.try_lock()?))) {
            return self.go_on(slot, free);
        }
        let stays = self.stay();
        Ok(Reading(Place::Own(self.env.read_txn()?, stays)))
    }

    fn go_on<'e>(
        &'e self,
        slot: &'e Slot,
        mut place: MutexGuard<'e, Option<Kept>>,
    ) -> heed::Result<Reading<'e>> {
        let newest = self.newest.load(Ordering::SeqCst);
        if place.as_ref().is_none_or(|kept| kept.id != newest) {
            *place = None;
            let transaction = self.env.clone().static_read_txn()?;
            *place = Some(Kept { id: transaction.id(), transaction });
        }
        let kept = MutexGuard::map(place, |place| place.as_mut().expect("a transaction was put there"));
        let leaving = Leaving { readers: self, slot, id: kept.id, has_failed: AtomicBool::new(false) };
        Ok(Reading(Place::Kept(kept, leaving)))
    }

    /// Sees to it that the map stays where it is.
    pub(crate) fn stay(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read()
    }

    /// Notes that a transaction was committed, and ends those that are kept and don't see it. One that is in use is ended by
    /// who uses it.
    pub(crate) fn committed(&self, id: usize) {
        self.newest.store(id, Ordering::SeqCst);
        fence(Ordering::SeqCst); // who uses a transaction sees the number when he leaves, or is seen to have left
        for slot in &self.kept {
            slot.clear_if_free();
        }
    }

    /// Waits until nobody happens to read. Readers that come meanwhile don't wait behind this: one of them may be a backup
    /// that takes its time.
    pub(crate) fn wait_until_alone(&self) -> Alone<'_> {
        loop {
            if let Some(alone) = self.try_alone(Instant::now() + ALONE_AT_ONCE) {
                return alone;
            }
            thread::sleep(ALONE_LATER);
        }
    }

    /// How many transactions are kept, or used by somebody.
    #[cfg(test)]
    pub(crate) fn kept_transactions(&self) -> usize {
        self.kept.iter().filter(|slot| slot.0.try_lock().is_none_or(|kept| kept.is_some())).count()
    }

    fn try_alone(&self, until: Instant) -> Option<Alone<'_>> {
        self.is_growing.store(true, Ordering::Relaxed);
        let alone = self.take_all(until);
        self.is_growing.store(false, Ordering::Relaxed);
        alone
    }

    fn take_all(&self, until: Instant) -> Option<Alone<'_>> {
        let gate = self.gate.try_write_until(until)?;
        let mut all = Vec::with_capacity(self.kept.len());
        for slot in &self.kept {
            let mut kept = slot.0.try_lock_until(until)?;
            *kept = None;
            all.push(kept);
        }
        Some(Alone { _gate: gate, _kept: all })
    }
}

/// A number of this thread, from 0.
fn number_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    NUMBER.get()
}
