//! What all parts of the engine share, and how it stands with Redis.
//!
//! - *Away*: there is no link. Look-ups give this node's sessions.
//! - *Behind*: there is a link, and Redis may lack something of this node. Look-ups give what Redis has and what this node has.
//! - *In step*: Redis has everything of this node. Look-ups give what Redis has, which changes in one step for everybody.
//!
//! What Redis may lack is only counted, and not remembered: catching up is to write down everything again (`register.rs`).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock};
use redis::{Cmd, Value};
use tokio::{
    sync::{Notify, mpsc},
    time::{Duration, Instant},
};
use tracing::{debug, info, warn};

use super::{
    events,
    link::{Address, Link, LinkError, Listener},
    local::Local,
    nodes::Leases,
    reply, schema,
    schema::Keys,
    scripts::Script,
};
use crate::{Ended, Error, Found, NodeId, Owner, SessionId, redis_metrics::RedisMetrics};

pub(super) struct Table {
    /// This node.
    pub(super) here: NodeId,
    /// Proves that a lease is this process'.
    pub(super) token: String,
    /// The name of this node, for people.
    pub(super) name: String,
    pub(super) lease: Duration,
    pub(super) sessions_per_user_max: usize,
    pub(super) keys: Keys,
    pub(super) address: Address,
    pub(super) local: Local,
    pub(super) owner: Arc<dyn Owner>,
    pub(super) leases: RwLock<Leases>,
    pub(super) events: events::Queue,
    pub(super) metrics: RedisMetrics,
    /// Sessions of which the supervisor makes sure that Redis has them as they are.
    pub(super) repairs: mpsc::Sender<SessionId>,
    /// Tells the supervisor that the link is lost.
    pub(super) lost: Notify,
    pub(super) state: LinkState,
}

/// How it stands with Redis: at first there is no link, and Redis may lack everything.
pub(super) struct LinkState {
    link: RwLock<Option<Arc<Link>>>,
    last_error: Mutex<LinkError>,
    /// Changes of this node that Redis may lack.
    missed: AtomicU64,
    /// The value of `missed` when everything was last written down.
    caught_up: AtomicU64,
    /// Changes of this node, in the order in which its own table has made them.
    revision: Mutex<u64>,
}

impl Default for LinkState {
    fn default() -> Self {
        Self {
            link: RwLock::new(None),
            last_error: Mutex::new(LinkError::lost("it was not reached yet")),
            missed: AtomicU64::new(1),
            caught_up: AtomicU64::new(0),
            revision: Mutex::new(0),
        }
    }
}

impl Table {
    /// The way to Redis, if there is one.
    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.state.link.read().clone()
    }

    pub(super) fn is_synced(&self) -> bool {
        // Others may sweep away what a node without a lease has.
        self.state.caught_up.load(Ordering::SeqCst) == self.state.missed.load(Ordering::SeqCst)
            && self.leases.read().has(self.here)
    }

    /// A change of this node may not be in Redis.
    pub(super) fn mark_missed(&self) {
        self.state.missed.fetch_add(1, Ordering::SeqCst);
    }

    /// What [`Table::caught_up_to`] takes once everything that is here now was written down.
    pub(super) fn missed(&self) -> u64 {
        self.state.missed.load(Ordering::SeqCst)
    }

    pub(super) fn caught_up_to(&self, missed: u64) {
        self.state.caught_up.store(missed, Ordering::SeqCst);
        self.metrics.up.set(1);
    }

    /// Begins to use a link.
    pub(super) fn use_link(&self, link: Arc<Link>) {
        info!(node = %self.here, "redis is within reach");
        *self.state.link.write() = Some(link);
    }

    /// Ends the use of a link, unless there is another by now.
    pub(super) fn drop_link(&self, generation: u64, error: &LinkError) {
        {
            let mut link = self.state.link.write();
            if link.as_ref().is_none_or(|link| link.generation != generation) {
                return;
            }
            *link = None;
        }
        self.mark_missed();
        self.set_error(error);
        warn!(error = %Error::from(error.clone()), "only the sessions of this node are known until redis is back");
        self.lost.notify_one();
    }

    /// Remembers why there is no link.
    pub(super) fn set_error(&self, error: &LinkError) {
        *self.state.last_error.lock() = error.clone();
        self.metrics.up.set(0);
    }

    /// Stops the use of Redis; gives the link, for the last words.
    pub(super) fn leave(&self) -> Option<Arc<Link>> {
        let link = self.state.link.write().take();
        self.mark_missed();
        self.set_error(&LinkError::lost("the table is closed"));
        link
    }

    /// Why others are out of reach.
    pub(super) fn last_error(&self) -> Error {
        self.state.last_error.lock().clone().into()
    }

    /// A request has failed on a link.
    pub(super) fn report(&self, link: &Link, error: &LinkError) {
        if error.is_lost {
            self.drop_link(link.generation, error);
        } else {
            debug!(error = %Error::from(error.clone()), "a request to redis has failed");
        }
    }

    /// Begins the command that runs a script on this table.
    pub(super) fn call(&self, link: &Link, script: Script) -> Cmd {
        let mut call = link.command(script);
        call.arg(self.keys.prefix());
        call
    }

    /// Makes a change in the table of this node and gives it its revision.
    pub(super) fn change<T>(&self, change: impl FnOnce(&Local) -> T) -> (T, u64) {
        let mut revision = self.state.revision.lock();
        let changed = change(&self.local);
        *revision += 1;
        (changed, *revision)
    }

    /// A session of this node as it is now, with a revision for its row.
    pub(super) fn now(&self, id: SessionId) -> (Found, u64) {
        self.change(|local| local.by_id(id))
    }

    /// Ends sessions of this node as a script tells.
    pub(super) fn end_sessions(&self, losers: &Value) -> Result<(), LinkError> {
        for loser in reply::array(losers)? {
            if let Some((id, why)) = schema::end_of(reply::bytes(loser)?) {
                self.local.close(id, why);
            }
        }
        Ok(())
    }

    /// Has the supervisor make sure that Redis has a session as it is, or has it not.
    pub(super) fn queue_repair(&self, id: SessionId) {
        if self.repairs.try_send(id).is_err() {
            self.mark_missed();
        }
    }

    /// A session, and the others of its user: a script whose answer nobody has read may have ended any of them.
    pub(super) fn with_others_of_its_user(&self, id: SessionId) -> Vec<SessionId> {
        let mut ids = vec![id];
        if let Some(session) = self.local.by_id(id).first() {
            let all = self.local.by_user(session.user());
            ids.extend(all.iter().map(|session| session.id).filter(|other| *other != id));
        }
        ids
    }

    /// When the lease of this node runs out, as far as it knows.
    pub(super) fn lease_end(&self) -> Option<Instant> {
        self.leases.read().until(self.here)
    }
}

/// Hears for the table, which it doesn't keep alive.
pub(super) struct LinkListener {
    pub(super) table: std::sync::Weak<Table>,
    pub(super) generation: u64,
}

impl Listener for LinkListener {
    fn heard(&self, channel: &[u8], message: &[u8]) {
        let Some(table) = self.table.upgrade() else { return };
        if channel == table.keys.live().as_bytes() {
            table.receive(message);
        } else if let Some((id, why)) = schema::end_of(message) {
            end(&table, id, why);
        }
    }

    fn ended(&self) {
        if let Some(table) = self.table.upgrade() {
            table.drop_link(
                self.generation,
                &LinkError::lost("the connection on which it is heard has ended"),
            );
        }
    }
}

fn end(table: &Table, id: SessionId, why: Ended) {
    if id.node == table.here {
        table.local.close(id, why);
    }
}
