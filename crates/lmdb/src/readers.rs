//! Read transactions, which are reused.
//!
//! Beginning and ending a transaction takes LMDB about as long as finding a row: it allocates, takes a slot in its table of
//! readers, and looks up each table by name. So a reader leaves its transaction to the next one, which sees the same as long as
//! nothing was committed. A commit ends unused transactions at once, because LMDB can't reuse the pages that they see.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};

use heed::{Env, RoTxn, WithoutTls};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

/// Slots for reused transactions. A thread's number selects its slot; when that is in use, it begins another transaction.
const SLOTS: usize = 64;

/// The readers of an environment.
pub(crate) struct Readers {
    env: Env<WithoutTls>,
    /// Each is locked while its transaction is in use.
    slots: Box<[Slot]>,
    /// The last transaction that was committed, or the one before it for a moment.
    newest: AtomicUsize,
}

/// Each slot has its own cache lines, so that threads don't share them.
#[derive(Default)]
#[repr(align(128))]
struct Slot(Mutex<Option<Reused>>);

pub(crate) struct Reused {
    id: usize,
    transaction: RoTxn<'static, WithoutTls>,
}

/// A read transaction.
pub(crate) enum Reading<'e> {
    // Fields are dropped in this order: the lock of the slot first.
    Reused(MappedMutexGuard<'e, Reused>, Release<'e>),
    Own(RoTxn<'e, WithoutTls>),
}

impl Reading<'_> {
    pub(crate) fn transaction(&self) -> &RoTxn<'_, WithoutTls> {
        match self {
            Self::Reused(reused, _) => &reused.transaction,
            Self::Own(transaction) => transaction,
        }
    }

    /// Does not leave the transaction to the next reader: LMDB refuses to read with one that found a damaged page.
    pub(crate) fn note_failed(&self) {
        if let Self::Reused(_, release) = self {
            release.has_failed.store(true, Ordering::Relaxed);
        }
    }

    /// The number of the last transaction that wrote what this one sees.
    pub(crate) fn id(&self) -> usize {
        match self {
            Self::Reused(reused, _) => reused.id,
            Self::Own(transaction) => transaction.id(),
        }
    }
}

/// Ends a reused transaction after its use if something was committed meanwhile.
pub(crate) struct Release<'e> {
    readers: &'e Readers,
    slot: &'e Slot,
    id: usize,
    has_failed: AtomicBool,
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        fence(Ordering::SeqCst); // see `Readers::committed`
        let has_failed = self.has_failed.load(Ordering::Relaxed);
        if has_failed || self.id != self.readers.newest.load(Ordering::SeqCst) {
            self.slot.clear_if_free();
        }
    }
}

impl Slot {
    /// Ends the transaction of the slot, unless it is in use.
    fn clear_if_free(&self) {
        if let Some(mut slot) = self.0.try_lock() {
            *slot = None;
        }
    }
}

impl Readers {
    pub(crate) fn new(env: Env<WithoutTls>) -> Self {
        let newest = AtomicUsize::new(env.info().last_txn_id);
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        Self { env, slots, newest }
    }

    /// Begins a transaction, or reuses one that sees the last commit.
    pub(crate) fn begin(&self) -> heed::Result<Reading<'_>> {
        let slot = self.slots.get(number_of_thread() % SLOTS);
        match slot.and_then(|slot| Some((slot, slot.0.try_lock()?))) {
            Some((slot, locked)) => self.reuse(slot, locked),
            None => Ok(Reading::Own(self.env.read_txn()?)),
        }
    }

    fn reuse<'e>(
        &'e self,
        slot: &'e Slot,
        mut locked: MutexGuard<'e, Option<Reused>>,
    ) -> heed::Result<Reading<'e>> {
        let newest = self.newest.load(Ordering::SeqCst);
        if locked.as_ref().is_none_or(|reused| reused.id != newest) {
            *locked = None;
            let transaction = self.env.clone().static_read_txn()?;
            *locked = Some(Reused { id: transaction.id(), transaction });
        }
        let reused = MutexGuard::map(locked, |slot| slot.as_mut().expect("a transaction was put there"));
        let release = Release { readers: self, slot, id: reused.id, has_failed: AtomicBool::new(false) };
        Ok(Reading::Reused(reused, release))
    }

    /// Notes that a transaction was committed, and ends unused ones that don't see it. One that is in use ends after its use.
    pub(crate) fn committed(&self, id: usize) {
        self.newest.store(id, Ordering::SeqCst);
        fence(Ordering::SeqCst); // pairs with `Release`: it sees the number, or its slot is unlocked here
        for slot in &self.slots {
            slot.clear_if_free();
        }
    }

    /// The number of slots that hold a transaction.
    #[cfg(test)]
    pub(crate) fn reused_transactions(&self) -> usize {
        self.slots.iter().filter(|slot| slot.0.try_lock().is_none_or(|reused| reused.is_some())).count()
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
