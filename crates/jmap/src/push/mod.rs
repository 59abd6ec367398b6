//! State changes, for clients that subscribe to them (RFC 8620 §7).
//!
//! One task reads the announcements of the records, and those of the directory, which changes quotas. It collects the changes of an
//! account for a short time, reads its states once, and publishes them to each of the account's clients: a slow client only sees the
//! newest states.

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

/// Reads state changes and passes them to clients.
pub(crate) struct Pusher {
    parts: Arc<JmapParts>,
    delay: Duration,
    /// The accounts that have subscriptions, with their newest states.
    accounts: Mutex<HashMap<AccountId, watch::Sender<Read>>>,
}

impl Pusher {
    pub(crate) fn new(parts: Arc<JmapParts>, delay: Duration) -> Self {
        // Without a delay, the read of an account that fails would be retried without a pause.
        let delay = delay.max(Duration::from_millis(1));
        Self { parts, delay, accounts: Mutex::default() }
    }

    /// Subscribes to accounts; the first one must be the user's own. The subscription has their states from now on; those of identities
    /// and submissions only for the first account.
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
            // Changes from here on are announced to the task; earlier changes are read here.
            self.publish(*account).await?;
        }
        Ok(subscription)
    }

    /// Reads the states of an account and publishes them to its clients.
    async fn publish(&self, account: AccountId) -> Result<(), Error> {
        let read = states::read(&self.parts, account).await?;
        if let Some(sender) = self.accounts.lock().get(&account) {
            sender.send_if_modified(|shown| shown.replace(read));
        }
        Ok(())
    }

    /// Follows announcements until the records are closed. The announcements must have been subscribed to before any subscription.
    pub(crate) async fn run(self: Arc<Self>, watch: Watch, directory: AccountChanges) {
        let mut announced = Announced { watch, directory };
        let mut changed = HashSet::new();
        loop {
            if changed.is_empty() && !self.note(&mut announced, &mut changed, None).await {
                return;
            }
            if changed.is_empty() {
                continue; // the account has no subscriptions
            }
            // Collect further changes within the delay.
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

    /// Waits for an announcement until a deadline, and adds its account if it has subscriptions. False when the records are closed.
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

    /// The accounts that have subscriptions.
    #[cfg(test)]
    pub(crate) fn listened(&self) -> usize {
        self.accounts.lock().len()
    }
}

/// The announcements of accounts whose states may have changed.
struct Announced {
    watch: Watch,
    /// A quota changes without a commit in its account.
    directory: AccountChanges,
}

impl Announced {
    /// The next account; `None` when the records or the directory are closed. Cancel safe.
    async fn next(&mut self) -> Option<AccountChange> {
        tokio::select! {
            committed = self.watch.next() => match committed? {
                Ok(announcement) => Some(AccountChange::Account(announcement.account)),
                Err(_) => Some(AccountChange::Any), // announcements were lost
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

    /// Waits until a state is newer than the last result of [`Subscription::newest`]. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        let waits = self.receivers.iter_mut().map(|(_, receiver)| Box::pin(receiver.changed()));
        let _ = select_all(waits).await; // the sender lives as long as there are subscriptions
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
