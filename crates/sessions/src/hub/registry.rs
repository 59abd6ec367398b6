//! The subscribers by the ids of their sessions.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
};

use super::subscriber::Subscriber;
use crate::{Ended, SessionId};

/// Ends that are remembered of sessions that have not joined. A session joins right after it was opened, so no more than this
/// end in between. The bound is needed because sessions of doors without live events never join.
const EARLY_ENDS_MAX: usize = 4_096;

#[derive(Default)]
pub(super) struct Registry {
    by_id: HashMap<SessionId, Arc<Subscriber>>,
    early: HashMap<SessionId, Ended>,
    /// Ids in `early`, the oldest end first, and ids that have joined since.
    early_order: VecDeque<SessionId>,
    pub(super) is_stopping: bool,
}

impl Registry {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&Arc<Subscriber>> {
        self.by_id.get(&id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Subscriber>> {
        self.by_id.values()
    }

    /// Returns the former subscriber if the session joined before.
    pub(super) fn enter(&mut self, subscriber: &Arc<Subscriber>) -> Option<Arc<Subscriber>> {
        self.by_id.insert(subscriber.id, subscriber.clone())
    }

    /// Removes a subscriber, unless the session has joined again.
    pub(super) fn leave(&mut self, subscriber: &Arc<Subscriber>) {
        if let Entry::Occupied(entry) = self.by_id.entry(subscriber.id)
            && Arc::ptr_eq(entry.get(), subscriber)
        {
            entry.remove();
        }
    }

    /// Remembers the end of a session that has not joined.
    pub(super) fn note_early(&mut self, id: SessionId, why: Ended) {
        if self.early.insert(id, why).is_none() {
            self.early_order.push_back(id);
        }
        while self.early_order.len() > EARLY_ENDS_MAX {
            if let Some(oldest) = self.early_order.pop_front() {
                self.early.remove(&oldest);
            }
        }
    }

    /// The reason if a session has ended before it joined.
    pub(super) fn take_early(&mut self, id: SessionId) -> Option<Ended> {
        self.early.remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    #[test]
    fn early_ends_are_found_once_and_bounded() {
        let id = |opened_us| SessionId { opened_us, node: NodeId(1), user_hash: 0 };
        let mut registry = Registry::default();
        for n in 0..3 * EARLY_ENDS_MAX as u64 {
            registry.note_early(id(n), Ended::Replaced);
            if n % 2 == 0 {
                assert_eq!(registry.take_early(id(n)), Some(Ended::Replaced));
                assert_eq!(registry.take_early(id(n)), None);
            }
        }
        assert!(registry.early.len() <= EARLY_ENDS_MAX && registry.early_order.len() <= EARLY_ENDS_MAX);
        assert_eq!(registry.take_early(id(3 * EARLY_ENDS_MAX as u64 - 1)), Some(Ended::Replaced));
    }
}
