//! A reader that commits of this server keep overtaking holds up the next commits in the account until it has an answer.
//!
//! A view that takes several reads fails when the account changes meanwhile. Without holds, a client that commits without a pause
//! could starve the long reads of another one.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::AccountId;

/// The longest that a commit waits for readers.
const COMMIT_WAIT: Duration = Duration::from_secs(1);

/// The accounts that readers hold.
#[derive(Default)]
pub(super) struct Holds(Mutex<HashMap<AccountId, Held>>);

#[derive(Default)]
struct Held {
    readers: usize,
    /// Notified when the last of them has ended.
    ended: Arc<Notify>,
}

/// A reader's hold on an account, released on drop.
pub(super) struct Hold<'h> {
    holds: &'h Holds,
    account: AccountId,
}

impl Holds {
    /// Holds up the next commits of this server in an account.
    pub(super) fn hold(&self, account: AccountId) -> Hold<'_> {
        self.0.lock().entry(account).or_default().readers += 1;
        Hold { holds: self, account }
    }

    /// Waits until no reader holds an account, at most for [`COMMIT_WAIT`]; returns whether one did.
    pub(super) async fn wait(&self, account: AccountId) -> bool {
        let deadline = Instant::now() + COMMIT_WAIT;
        let mut was_held = false;
        loop {
            let ended = {
                let held = self.0.lock();
                let Some(held) = held.get(&account) else { return was_held };
                held.ended.clone().notified_owned() // from now on it notices when a hold ends
            };
            was_held = true;
            if timeout_at(deadline, ended).await.is_err() {
                return was_held;
            }
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut accounts = self.holds.0.lock();
        let Some(held) = accounts.get_mut(&self.account) else { return };
        held.readers -= 1;
        if held.readers == 0 {
            held.ended.notify_waiters();
            accounts.remove(&self.account);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const A: AccountId = AccountId(1);
    const B: AccountId = AccountId(2);

    #[tokio::test(start_paused = true)]
    async fn a_commit_waits_for_all_readers_of_its_account() {
        let holds = Arc::new(Holds::default());
        let (one, other) = (holds.hold(A), holds.hold(A));
        assert!(!holds.wait(B).await);
        let begun = Instant::now();
        let waiting = tokio::spawn({
            let holds = holds.clone();
            async move { (holds.wait(A).await, begun.elapsed()) }
        });
        sleep(Duration::from_millis(20)).await;
        drop(one);
        sleep(Duration::from_millis(20)).await;
        drop(other);
        assert_eq!(waiting.await.unwrap(), (true, Duration::from_millis(40)));
        assert!(holds.0.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_does_not_wait_for_a_reader_without_end() {
        let holds = Holds::default();
        let _hold = holds.hold(A);
        let begun = Instant::now();
        assert!(holds.wait(A).await);
        assert_eq!(begun.elapsed(), COMMIT_WAIT);
    }
}
