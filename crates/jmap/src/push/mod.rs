//! Changes of states, for clients that want to hear of them (RFC 8620 §7).
//!
//! One task reads the announcements of the records, and those of the directory, which changes quotas. It joins the changes of an account for a short time, reads its states once, and
//! puts them where each of the account's clients looks: a slow client finds the newest states alone.

mod states;
pub(crate) mod subscriptions;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::select_all;
use parking_lot::Mutex;
use restante_core::Error;
use restante_directory::{AccountChange, AccountChanges};
use restante_records::{AccountId, Watch};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tracing::debug;

pub(crate) use states::{Types, Visible};

use crate::JmapParts;
use states::Read;

/// Reads changes of states and hands them to clients.
pub(crate) struct Pusher {
    parts: Arc<JmapParts>,
    delay: Duration,
    /// The accounts that somebody listens to, with their newest states.
    accounts: Mutex<HashMap<AccountId, watch::Sender<Read>>>,
}

impl Pusher {
    pub(crate) fn new(parts: Arc<JmapParts>, delay: Duration) -> Self {
        // Without a delay an account that can't be read would be read again and again without a pause.
        let delay = delay.max(Duration::from_millis(1));
        Self { parts, delay, accounts: Mutex::default() }
    }

    /// Listens to accounts, of which the first is the user's own. What is returned has their states from now on, those of identities and
    /// submissions of the first alone.
    ///
    /// # Errors
    /// Those of the records.
    pub(crate) async fn subscribe(self: &Arc<Self>, accounts: &[AccountId]) -> Result<Subscription, Error> {
        let mut subscription = Subscription { pusher: self.clone(), receivers: Vec::new() };
        for account in accounts {
            let receiver = {
                let mut all = self.accounts.lock();
                let sender = all.entry(*account).or_insert_with(|| watch::Sender::new(Read::default()));
                sender.subscribe()
            };
            subscription.receivers.push((*account, receiver));
            // What changes from here on is announced to the task; what has changed before is read here.
            self.publish(*account).await?;
        }
        Ok(subscription)
    }

    /// Reads the states of an account and shows them to its clients.
    async fn publish(&self, account: AccountId) -> Result<(), Error> {
        let read = states::read(&self.parts, account).await?;
        if let Some(sender) = self.accounts.lock().get(&account) {
            sender.send_if_modified(|shown| shown.replace(read));
        }
        Ok(())
    }

    /// Follows announcements until the records are closed. They must be older than each subscription.
    pub(crate) async fn run(self: Arc<Self>, watch: Watch, directory: AccountChanges) {
        let mut announced = Announced { watch, directory };
        let mut changed = HashSet::new();
        loop {
            if changed.is_empty() && !self.note(&mut announced, &mut changed, None).await {
                return;
            }
            if changed.is_empty() {
                continue; // nobody listens to that account
            }
            // Further changes of the same time are joined.
            let until = Instant::now() + self.delay;
            while Instant::now() < until {
                if !self.note(&mut announced, &mut changed, Some(until)).await {
                    return;
                }
            }
            for account in std::mem::take(&mut changed) {
                if let Err(error) = self.publish(account).await {
                    debug!(%error, "the states of an account could not be read, and are read again");
                    changed.insert(account);
                }
            }
        }
    }

    /// Waits for an announcement, until a time, and notes its account if somebody listens to it. False when the records are closed.
    async fn note(
        &self,
        announced: &mut Announced,
        changed: &mut HashSet<AccountId>,
        until: Option<Instant>,
    ) -> bool {
        let next = match until {
            None => announced.next().await,
            Some(until) => match timeout_at(until, announced.next()).await {
                Ok(next) => next,
                Err(_) => return true,
            },
        };
        match next {
            None => return false,
            Some(AccountChange::Account(account)) => {
                if self.accounts.lock().contains_key(&account) {
                    changed.insert(account);
                }
            }
            Some(AccountChange::Any) => changed.extend(self.accounts.lock().keys()),
        }
        true
    }

    /// The accounts that somebody listens to.
    #[cfg(test)]
    pub(crate) fn listened(&self) -> usize {
        self.accounts.lock().len()
    }
}

/// What announces accounts whose states may have changed.
struct Announced {
    watch: Watch,
    /// A quota changes without a commit in its account.
    directory: AccountChanges,
}

impl Announced {
    /// The next account; `None` when the records or the directory are closed. Cancelling the wait loses nothing.
    async fn next(&mut self) -> Option<AccountChange> {
        tokio::select! {
            committed = self.watch.next() => match committed? {
                Ok(announcement) => Some(AccountChange::Account(announcement.account)),
                Err(_) => Some(AccountChange::Any), // announcements were left out
            },
            changed = self.directory.next() => changed,
        }
    }
}

/// The states of the accounts of one client, the user's own first.
pub(crate) struct Subscription {
    pusher: Arc<Pusher>,
    receivers: Vec<(AccountId, watch::Receiver<Read>)>,
}

impl Subscription {
    /// The newest states; [`Subscription::changed`] waits for newer ones.
    pub(crate) fn newest(&mut self) -> Visible {
        let mut newest = Vec::with_capacity(self.receivers.len());
        for (place, (account, receiver)) in self.receivers.iter_mut().enumerate() {
            let states = receiver.borrow_and_update().states;
            newest.push((*account, if place == 0 { states } else { states.without_personal() }));
        }
        Visible(newest)
    }

    /// Waits until a state is newer than what [`Subscription::newest`] has returned last. Cancelling the wait loses nothing.
    pub(crate) async fn changed(&mut self) {
        let waits = self.receivers.iter_mut().map(|(_, receiver)| Box::pin(receiver.changed()));
        let _ = select_all(waits).await; // the sender stays while somebody listens
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut all = self.pusher.accounts.lock();
        for (account, receiver) in self.receivers.drain(..) {
            drop(receiver);
            if all.get(&account).is_some_and(|sender| sender.receiver_count() == 0) {
                all.remove(&account);
            }
        }
    }
}
