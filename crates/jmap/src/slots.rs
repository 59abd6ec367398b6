//! Limits how much each user may do at once.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use restante_records::AccountId;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// A number of slots for each user, and of waiters for them.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    max: usize,
    waiting_max: usize,
    /// Users without slots and waiters are not in the map.
    users: Arc<Mutex<HashMap<AccountId, User>>>,
}

#[derive(Debug)]
struct User {
    free: Arc<Semaphore>,
    /// Slots and waiters.
    held: usize,
}

/// A slot of a user, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    _permit: OwnedSemaphorePermit,
    _claim: Claim,
}

/// A holder of a slot, or a waiter for one. When it is dropped, its slot goes to the next waiter.
#[derive(Debug)]
pub(crate) struct Claim {
    users: Arc<Mutex<HashMap<AccountId, User>>>,
    user: AccountId,
    free: Arc<Semaphore>,
}

impl Slots {
    /// `max` slots for each user, and at most `waiting_max` waiters for them.
    pub(crate) fn new(max: usize, waiting_max: usize) -> Self {
        Self { max, waiting_max, users: Arc::default() }
    }

    /// Takes a slot; `None` when the user has none free.
    pub(crate) fn take(&self, user: AccountId) -> Option<Slot> {
        let claim = self.claim(user)?;
        let permit = claim.free.clone().try_acquire_owned().ok()?;
        Some(Slot { _permit: permit, _claim: claim })
    }

    /// A claim to a slot; `None` when too many wait already.
    pub(crate) fn claim(&self, user: AccountId) -> Option<Claim> {
        let mut users = self.users.lock();
        let new = || User { free: Arc::new(Semaphore::new(self.max)), held: 0 };
        let of_user = users.entry(user).or_insert_with(new);
        if of_user.held >= self.max.saturating_add(self.waiting_max) {
            return None;
        }
        of_user.held += 1;
        Some(Claim { users: self.users.clone(), user, free: of_user.free.clone() })
    }
}

impl Claim {
    /// Waits for a slot, at most this long; slots are assigned in the order of waiting.
    pub(crate) async fn slot(self, patience: Duration) -> Option<Slot> {
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => timeout(patience, self.free.clone().acquire_owned()).await.ok()?.ok()?,
        };
        Some(Slot { _permit: permit, _claim: self })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut users = self.users.lock();
        let Some(of_user) = users.get_mut(&self.user) else { return };
        of_user.held -= 1;
        if of_user.held == 0 {
            users.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);
    const ONE: AccountId = AccountId(1);

    #[test]
    fn q5_each_user_has_slots_of_its_own_and_gets_them_back() {
        let slots = Slots::new(2, 0);
        let held = (slots.take(ONE).unwrap(), slots.take(ONE).unwrap());
        assert!(slots.take(ONE).is_none());
        let others = slots.take(AccountId(2));
        assert!(others.is_some());
        drop(held.0);
        assert!(slots.take(ONE).is_some());
        drop((held.1, others));
        assert!(slots.users.lock().is_empty(), "users that do nothing take no memory");
    }

    #[tokio::test(start_paused = true)]
    async fn q5_some_wait_for_a_slot_in_their_order_and_more_are_refused() {
        let slots = Slots::new(1, 2);
        let held = slots.take(ONE).unwrap();
        let second = tokio::spawn(slots.claim(ONE).unwrap().slot(LONG));
        tokio::task::yield_now().await;
        let third = tokio::spawn(slots.claim(ONE).unwrap().slot(LONG));
        tokio::task::yield_now().await;
        assert!(slots.claim(ONE).is_none());
        drop(held);
        let second = second.await.unwrap().unwrap();
        assert!(!third.is_finished());
        assert!(slots.take(ONE).is_none());
        drop(second);
        drop(third.await.unwrap().unwrap());
        assert!(slots.users.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn q5_waiting_ends_when_it_takes_too_long_or_is_cancelled() {
        let slots = Slots::new(1, 1);
        let held = slots.take(ONE).unwrap();
        assert!(slots.claim(ONE).unwrap().slot(Duration::from_millis(5)).await.is_none());
        let cancelled = tokio::spawn(slots.claim(ONE).unwrap().slot(LONG));
        tokio::task::yield_now().await;
        cancelled.abort();
        assert!(cancelled.await.is_err());
        drop(held);
        drop(slots.take(ONE).unwrap());
        assert!(slots.users.lock().is_empty());
    }
}
