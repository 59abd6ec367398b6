//! One task per server removes what commits have left behind, for many accounts at once.

use std::{collections::BTreeSet, sync::Arc};

use futures_util::{StreamExt, stream};
use tokio::sync::{OwnedRwLockReadGuard, mpsc};
use tracing::debug;

use super::{Shared, bodies::Batches, schema::slot_of};
use crate::{AccountId, Error, Position};

/// The most items that wait to be removed; further commits wait for room.
const WAITING_MAX: usize = 1_024;
/// Items that are removed together.
const GROUP: usize = 64;
/// Accounts whose bodies are removed concurrently.
const AT_ONCE: usize = 8;

/// What a change of an account has left to be removed.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// The position that the change took.
    pub(super) position: Option<Position>,
    /// The account's previous position.
    pub(super) position_before: Option<Position>,
    pub(super) bodies: Vec<u64>,
}

/// What a commit has left. The guard is held until it is removed.
pub(super) struct Finishing {
    pub(super) account: AccountId,
    pub(super) left: Left,
    pub(super) _guard: OwnedRwLockReadGuard<()>,
}

/// The queue of the task.
pub(super) type Queue = mpsc::Receiver<Finishing>;

/// The sender and the receiver of the queue.
pub(super) fn queue() -> (mpsc::Sender<Finishing>, Queue) {
    mpsc::channel(WAITING_MAX)
}

/// Removes what commits have left, until the store is dropped.
pub(super) async fn run(shared: Arc<Shared>, mut queue: Queue) {
    let mut group = Vec::with_capacity(GROUP);
    while queue.recv_many(&mut group, GROUP).await > 0 {
        let left: Vec<(AccountId, &Left)> = group.iter().map(|one| (one.account, &one.left)).collect();
        shared.remove_left(&left).await;
        group.clear();
    }
}

impl Shared {
    /// Removes what changes have left. If that fails because no node can be reached, [`crate::Upkeep::clean`] removes it later.
    pub(super) async fn remove_left(&self, left: &[(AccountId, &Left)]) {
        let bodies = left.iter().filter(|(_, left)| !left.bodies.is_empty());
        let bodies = bodies.map(|(account, left)| self.remove_bodies(*account, &left.bodies));
        let bodies = stream::iter(bodies.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).collect::<Vec<_>>();
        let (feed, bodies) = futures_util::future::join(self.finish_positions(left), bodies).await;
        for error in std::iter::once(feed).chain(bodies).filter_map(Result::err) {
            debug!(%error, "what commits have left is removed later");
        }
    }

    /// Marks positions as done, and removes from the feed those that are past.
    async fn finish_positions(&self, left: &[(AccountId, &Left)]) -> Result<(), Error> {
        let past: BTreeSet<Position> = left.iter().filter_map(|(_, left)| left.position_before).collect();
        let mut batches = Batches::default();
        let mut add = |position: Position, statement| batches.add((0, slot_of(position).0), statement, 0);
        for position in left.iter().filter_map(|(_, left)| left.position) {
            if !past.contains(&position) {
                add(position, self.done(position));
            }
        }
        for position in past.into_iter().filter(|position| *position != Position(0)) {
            add(position, self.past(position));
        }
        self.write_batches("shorten the feed", batches.finish()).await
    }
}
