//! The state that all parts of the engine share.
//!
//! - *Disconnected*: there is no link. Lookups return this node's sessions.
//! - *Catching up*: there is a link, and Redis may lack changes of this node. Lookups return what Redis and this node have.
//! - *Synchronised*: Redis has all changes of this node. Lookups return what Redis has, which changes atomically for all nodes.
//!
//! Changes that Redis may lack are counted, not listed: catching up registers all sessions again (`register.rs`).

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
    /// Proves that a lease belongs to this process.
    pub(super) token: String,
    /// The name of this node, for display.
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
    /// Sessions on which the supervisor makes Redis agree with this node.
    pub(super) repairs: mpsc::Sender<SessionId>,
    /// Notifies the supervisor that the link is lost.
    pub(super) lost: Notify,
    pub(super) state: LinkState,
}

/// The state of the link: at first there is none, and Redis may lack everything.
pub(super) struct LinkState {
    link: RwLock<Option<Arc<Link>>>,
    last_error: Mutex<LinkError>,
    /// Changes of this node that Redis may lack.
    missed: AtomicU64,
    /// The value of `missed` when everything was last registered.
    caught_up: AtomicU64,
    /// Counts changes of this node, in the order in which its own table made them.
    revision: Mutex<u64>,
}

impl Default for LinkState {
    fn default() -> Self {
        Self {
            link: RwLock::new(None),
            last_error: Mutex::new(LinkError::lost("not connected yet")),
            missed: AtomicU64::new(1),
            caught_up: AtomicU64::new(0),
            revision: Mutex::new(0),
        }
    }
}

impl Table {
    /// The link to Redis, if there is one.
    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.state.link.read().clone()
    }

    pub(super) fn is_synced(&self) -> bool {
        // Others may sweep the sessions of a node without a lease.
        self.state.caught_up.load(Ordering::SeqCst) == self.state.missed.load(Ordering::SeqCst)
            && self.leases.read().has(self.here)
    }

    /// Notes that Redis may lack a change of this node.
    pub(super) fn mark_missed(&self) {
        self.state.missed.fetch_add(1, Ordering::SeqCst);
    }

    /// The argument of [`Table::caught_up_to`] once everything that exists now has been registered.
    pub(super) fn missed(&self) -> u64 {
        self.state.missed.load(Ordering::SeqCst)
    }

    pub(super) fn caught_up_to(&self, missed: u64) {
        self.state.caught_up.store(missed, Ordering::SeqCst);
        self.metrics.up.set(1);
    }

    /// Begins to use a link.
    pub(super) fn use_link(&self, link: Arc<Link>) {
        info!(node = %self.here, "connected to redis");
        *self.state.link.write() = Some(link);
    }

    /// Stops using a link, unless it has been replaced.
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
        warn!(error = %Error::from(error.clone()), "only the sessions of this node are known until redis is reachable again");
        self.lost.notify_one();
    }

    /// Records why there is no link.
    pub(super) fn set_error(&self, error: &LinkError) {
        *self.state.last_error.lock() = error.clone();
        self.metrics.up.set(0);
    }

    /// Stops using Redis; returns the link for the last requests.
    pub(super) fn leave(&self) -> Option<Arc<Link>> {
        let link = self.state.link.write().take();
        self.mark_missed();
        self.set_error(&LinkError::lost("the table is closed"));
        link
    }

    /// Why other nodes are unreachable.
    pub(super) fn last_error(&self) -> Error {
        self.state.last_error.lock().clone().into()
    }

    /// Handles the failure of a request on a link.
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

    /// Changes the table of this node, and returns the revision of the change.
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

    /// Ends sessions of this node that a script returned.
    pub(super) fn end_sessions(&self, losers: &Value) -> Result<(), LinkError> {
        for loser in reply::array(losers)? {
            if let Some((id, why)) = schema::end_of(reply::bytes(loser)?) {
                self.local.close(id, why);
            }
        }
        Ok(())
    }

    /// Has the supervisor make Redis agree with this node on a session.
    pub(super) fn queue_repair(&self, id: SessionId) {
        if self.repairs.try_send(id).is_err() {
            self.mark_missed();
        }
    }

    /// A session and the others of its user: a script whose answer was not read may have ended any of them.
    pub(super) fn with_others_of_its_user(&self, id: SessionId) -> Vec<SessionId> {
        let mut ids = vec![id];
        if let Some(session) = self.local.by_id(id).first() {
            let all = self.local.by_user(session.user());
            ids.extend(all.iter().map(|session| session.id).filter(|other| *other != id));
        }
        ids
    }

    /// When the lease of this node expires, as far as it knows.
    pub(super) fn lease_end(&self) -> Option<Instant> {
        self.leases.read().until(self.here)
    }
}

/// Passes messages to the table, which it doesn't keep alive.
pub(super) struct LinkListener {
    pub(super) table: std::sync::Weak<Table>,
    pub(super) generation: u64,
}

impl Listener for LinkListener {
    fn received(&self, channel: &[u8], message: &[u8]) {
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
                &LinkError::lost("the connection of the subscribed channels has ended"),
            );
        }
    }
}

fn end(table: &Table, id: SessionId, why: Ended) {
    if id.node == table.here {
        table.local.close(id, why);
    }
}
