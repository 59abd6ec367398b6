//! How much of something each user may do at once.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use restante_records::AccountId;

/// A number of slots for each user.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    max: usize,
    /// Users without a taken slot are not in it.
    taken: Arc<Mutex<HashMap<AccountId, usize>>>,
}

/// A slot of a user, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    taken: Arc<Mutex<HashMap<AccountId, usize>>>,
    user: AccountId,
}

impl Slots {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, taken: Arc::default() }
    }

    /// Takes a slot; `None` when the user has taken all.
    pub(crate) fn take(&self, user: AccountId) -> Option<Slot> {
        let mut taken = self.taken.lock();
        let count = taken.entry(user).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Slot { taken: self.taken.clone(), user })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        let Some(count) = taken.get_mut(&self.user) else { return };
        *count -= 1;
        if *count == 0 {
            taken.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q5_each_user_has_slots_of_its_own_and_gets_them_back() {
        let slots = Slots::new(2);
        let (one, other) = (AccountId(1), AccountId(2));
        let held = (slots.take(one).unwrap(), slots.take(one).unwrap());
        assert!(slots.take(one).is_none());
        let others = slots.take(other);
        assert!(others.is_some());
        drop(held.0);
        assert!(slots.take(one).is_some());
        drop((held.1, others));
        assert!(slots.taken.lock().is_empty(), "users that do nothing take no memory");
    }
}
