//! Pushes to the URLs of push subscriptions (RFC 8620 §7.2).
//!
//! Each subscription that this server knows has a task, which waits for state changes, sends the newest states, and retries failed
//! pushes. So at most one push is pending for a subscription, and newer states replace pending ones. A semaphore bounds the concurrent
//! pushes. A task reads its subscription again before each push: one that was destroyed, has expired, or whose log-in was revoked gets
//! no more pushes.

mod client;
mod delivery;
mod encryption;
mod endpoint;
mod pace;
mod stored;
mod vapid;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use restante_core::{Error, ErrorKind};
use restante_directory::{AccountChange, AccountChanges, Actor, Answer, Operation, PAGE_MAX};
use restante_records::{AccountId, RecordId};
use tokio::{
    sync::{Notify, OnceCell, Semaphore},
    task::AbortHandle,
    time::{Instant, sleep},
};
use tracing::warn;

pub(crate) use endpoint::Endpoint;
pub use stored::erase_push_subscriptions;
pub(crate) use stored::{Found, Keys, Stored, change, create, destroy, list};

use super::Pusher;
use crate::{JmapParts, PushConfig};
use client::Client;
use delivery::Delivery;
use vapid::Vapid;

/// How long to wait before failed records are read again.
const RETRY: Duration = Duration::from_secs(1);
/// How often to look for subscriptions that other servers on the same records have created: such a server may be gone.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// The pause before the next scan is at least this many times as long as the last scan took, so that many accounts keep the records
/// busy only for a small part of the time.
const LOOK_PAUSE: u32 = 10;
/// The seconds over which creations are counted.
const HOUR: i64 = 3_600;
/// The most users whose creations are counted; those without creations within the hour are dropped first.
const COUNTED_MAX: usize = 10_000;
/// The name of the VAPID key among the secrets of the server.
const VAPID_KEY: &str = "VAPID key of JMAP";

/// Sends pushes.
pub(crate) struct PushSender {
    parts: Arc<JmapParts>,
    config: PushConfig,
    pusher: Arc<Pusher>,
    client: Client,
    vapid: OnceCell<Vapid>,
    /// One permit for each push that is being sent.
    sends: Semaphore,
    tasks: Mutex<HashMap<AccountId, HashMap<RecordId, Running>>>,
    created: Mutex<HashMap<AccountId, Created>>,
}

/// The task of a subscription, until it is dropped.
struct Running {
    poke: Arc<Notify>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a user has created since a time.
#[derive(Clone, Copy)]
struct Created {
    since: i64,
    count: usize,
}

impl PushSender {
    pub(crate) fn new(parts: Arc<JmapParts>, config: PushConfig, pusher: Arc<Pusher>) -> Self {
        Self {
            parts,
            client: Client::new(&config),
            sends: Semaphore::new(config.sends_max.get().min(Semaphore::MAX_PERMITS)),
            config,
            pusher,
            vapid: OnceCell::new(),
            tasks: Mutex::default(),
            created: Mutex::default(),
        }
    }

    /// The public key by which push services recognize this server (RFC 9749 §3), in base64url.
    ///
    /// # Errors
    /// Those of the records.
    pub(crate) async fn application_server_key(&self) -> Result<&str, Error> {
        self.vapid().await.map(Vapid::public_key)
    }

    async fn vapid(&self) -> Result<&Vapid, Error> {
        let make = async || {
            let stored = self.parts.directory.server_secret(VAPID_KEY, &Vapid::new_key()?).await?;
            Vapid::of_key(&stored)
        };
        self.vapid.get_or_try_init(make).await
    }

    /// Starts the tasks of all stored subscriptions periodically, and notifies those whose account changes, until the directory is closed.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut changes = self.parts.directory.changes();
        tokio::select! {
            () = self.follow(&mut changes) => {}
            () = self.look() => {}
        }
    }

    async fn look(self: &Arc<Self>) {
        loop {
            let began = Instant::now();
            let pause = match self.begin_all().await {
                Ok(()) => LOOK_INTERVAL.max(began.elapsed().saturating_mul(LOOK_PAUSE)),
                Err(error) => {
                    warn!(%error, "push subscriptions were not read, and are read again");
                    RETRY
                }
            };
            sleep(pause).await;
        }
    }

    /// Starts the tasks of the subscriptions that have none.
    async fn begin_all(self: &Arc<Self>) -> Result<(), Error> {
        let (actor, mut after) = (Actor("the JMAP door".to_owned()), None);
        loop {
            let page = Operation::Accounts { domain: None, after, limit: PAGE_MAX };
            let Answer::Accounts(page) = self.parts.directory.operate(&actor, page).await? else {
                return Ok(());
            };
            for account in page.items {
                let account = AccountId(account.account);
                let listed = match list(&self.parts.mail, account).await {
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        warn!(account = account.0, %error, "the push subscriptions of an account can't be read");
                        continue;
                    }
                    listed => listed?,
                };
                for found in listed.subscriptions {
                    if !self.is_running(account, found.id) {
                        self.begin(account, found.id);
                    }
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Makes the subscriptions of an account whose password, token, grants or state has changed check themselves.
    async fn follow(&self, changes: &mut AccountChanges) {
        while let Some(change) = changes.next().await {
            let tasks = self.tasks.lock();
            match change {
                AccountChange::Account(account) => tasks.get(&account).into_iter().for_each(poke),
                AccountChange::Any => tasks.values().for_each(poke),
            }
        }
    }

    fn is_running(&self, account: AccountId, id: RecordId) -> bool {
        self.tasks.lock().get(&account).is_some_and(|of_account| of_account.contains_key(&id))
    }

    /// Starts the task of a subscription, or notifies it of a change.
    pub(crate) fn begin(self: &Arc<Self>, account: AccountId, id: RecordId) {
        let mut tasks = self.tasks.lock();
        let of_account = tasks.entry(account).or_default();
        if let Some(running) = of_account.get(&id) {
            running.poke.notify_one();
            return;
        }
        let poke = Arc::new(Notify::new());
        let delivery = Delivery::new(self.clone(), account, id, poke.clone());
        let sender = self.clone();
        let task = tokio::spawn(async move {
            delivery.run().await;
            sender.end(account, id);
        });
        of_account.insert(id, Running { poke, task: task.abort_handle() });
        self.parts.metrics.pushes.subscriptions.inc();
    }

    /// Stops the task of a subscription that is destroyed.
    pub(crate) fn end(&self, account: AccountId, id: RecordId) {
        let mut tasks = self.tasks.lock();
        let Some(of_account) = tasks.get_mut(&account) else { return };
        if of_account.remove(&id).is_some() {
            self.parts.metrics.pushes.subscriptions.dec();
        }
        if of_account.is_empty() {
            tasks.remove(&account);
        }
    }

    /// Counts a subscription that a user is about to create; false when the user has created too many within an hour.
    pub(crate) fn may_create(&self, user: AccountId) -> bool {
        let now = self.parts.mail.clock().now().seconds();
        let mut created = self.created.lock();
        if created.len() >= COUNTED_MAX {
            created.retain(|_, counted| counted.since > now - HOUR);
        }
        let counted = created.entry(user).or_insert(Created { since: now, count: 0 });
        if counted.since <= now - HOUR || counted.since > now {
            *counted = Created { since: now, count: 0 };
        }
        counted.count += 1;
        counted.count <= self.config.created_per_hour_max.get()
    }

    /// Stops all tasks.
    pub(crate) fn close(&self) {
        self.tasks.lock().clear();
        self.parts.metrics.pushes.subscriptions.set(0);
    }

    /// The subscriptions that have a task.
    #[cfg(test)]
    pub(crate) fn running(&self) -> usize {
        self.tasks.lock().values().map(HashMap::len).sum()
    }
}

fn poke(of_account: &HashMap<RecordId, Running>) {
    of_account.values().for_each(|running| running.poke.notify_one());
}

/// Whether keys can be used for encryption; validates keys of a client.
pub(crate) fn are_usable(keys: &Keys) -> bool {
    encryption::encrypt(keys, b"").is_ok()
}
