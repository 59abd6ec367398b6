//! Whether an index that is built beside another is as complete as that one.

use serde_json::json;
use tokio::time::{Duration, Instant};

use super::{Engine, Failure, place::IndexName, write::Writing};
use crate::AccountId;

/// The shortest time between two checks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Accounts that are compared by one request.
const ACCOUNTS_MAX: usize = 1_000;

/// An index that is being built. The old one is not written any more, so accounts that were compared need not be compared again.
pub(super) struct Build {
    old: Option<IndexName>,
    /// Up to this account the new index is as complete as the old one.
    compared: Option<AccountId>,
    next_look: Instant,
}

impl Build {
    pub(super) fn new(old: Option<IndexName>) -> Self {
        Self { old, compared: None, next_look: Instant::now() }
    }

    pub(super) fn old(&self) -> Option<&IndexName> {
        self.old.as_ref()
    }

    pub(super) fn next_look(&self) -> Instant {
        self.next_look
    }

    /// Whether the new index is complete, for each account, up to the revision of the old one.
    pub(super) async fn is_complete(&mut self, engine: &Engine, new: &mut Writing) -> Result<bool, Failure> {
        let Some(old) = self.old.clone() else { return Ok(true) };
        if self.next_look > Instant::now() {
            return Ok(false);
        }
        self.next_look = Instant::now() + LOOK_INTERVAL;
        loop {
            let filter = json!({"match_all": {}});
            let states = engine.states(&old, &filter, self.compared, ACCOUNTS_MAX).await?;
            let accounts: Vec<AccountId> = states.iter().map(|(account, _)| *account).collect();
            let revisions = new.revisions(engine, &accounts).await?;
            for ((account, of_old), of_new) in states.into_iter().zip(revisions) {
                if of_new < of_old {
                    return Ok(false);
                }
                self.compared = Some(account);
            }
            if accounts.len() < ACCOUNTS_MAX {
                return Ok(true);
            }
        }
    }
}
