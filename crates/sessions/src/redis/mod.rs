//! A table shared by several nodes through Redis 6 or later.
//!
//! `docs/design/sessions-redis.md` explains the reasons, and what happens while Redis is unreachable.
//!
//! - [`schema`]: keys and values. [`scripts`]: the atomic operations on them.
//! - [`table`]: the state that all parts share. [`local`]: the sessions of this node.
//! - [`read`], [`write`], [`events`]: the operations of the table.
//! - [`supervisor`]: the task that renews the lease, with [`register`], [`sweep`] and [`nodes`].
//! - [`link`] and [`reply`]: the connections and what Redis answers.

mod events;
mod link;
mod local;
mod nodes;
mod read;
mod register;
mod reply;
mod schema;
mod scripts;
mod supervisor;
mod sweep;
mod table;
mod write;

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use futures_util::stream::BoxStream;
use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::JoinHandle,
};

use self::{
    link::{Address, Link, LinkError},
    local::Local,
    schema::Keys,
    supervisor::{BEATS_MAX, BeatRequest, REPAIRS_MAX, Supervisor},
    table::{LinkState, Table},
};
use crate::{
    Answer, Config, Counts, Ended, Error, Found, InfoChange, NewSession, NodeId, NodeState, Nodes, Opened,
    Owner, SessionId, Sessions, hub::Event, memory::Memory, redis_metrics::Op,
};

/// The shortest lease: a heartbeat is sent every third of it, and must arrive in time on a busy machine.
const LEASE_MS_MIN: u64 = 100;
/// The most bytes of a node's name, which is shown in tables.
const NAME_BYTES_MAX: usize = 255;

/// Opens the table, and waits until the first attempt to reach Redis has succeeded or failed.
///
/// # Errors
/// `Invalid`: the URL or the prefix can't be used, or the lease is too short.
pub(crate) async fn open(url: &str, config: &Config, owner: Arc<dyn Owner>) -> Result<Opened, Error> {
    let address = Address::new(url, &config.redis)?;
    let keys = Keys::new(&config.redis.prefix, address.db())?;
    let lease_ms = config.redis.lease_ms.get();
    if lease_ms < LEASE_MS_MIN {
        return Err(Error::invalid(format!(
            "a lease of {lease_ms} ms is too short: {LEASE_MS_MIN} at least"
        )));
    }
    let here = NodeId((random() as u32).max(1)); // no node has the number 0
    let (beats, beat_requests) = mpsc::channel(BEATS_MAX);
    let (repairs, repair_requests) = mpsc::channel(REPAIRS_MAX);
    let (events, outbox) = events::queue();
    let table = Arc::new(Table {
        here,
        token: format!("{:016x}", random()),
        name: cut(&config.node_name).to_owned(),
        lease: Duration::from_millis(lease_ms),
        sessions_per_user_max: config.sessions_per_user_max.get(),
        keys,
        address,
        local: Local::new(Memory::new(here, config, owner.clone())),
        owner,
        leases: RwLock::default(),
        events,
        metrics: config.metrics.redis.clone(),
        repairs,
        lost: Notify::new(),
        state: LinkState::default(),
    });
    let supervisor = Supervisor::new(table.clone(), beat_requests, repair_requests);
    let tasks = vec![tokio::spawn(supervisor.run()), tokio::spawn(events::send(table.clone(), outbox))];
    let redis = Arc::new(Redis { table, beats, tasks: Mutex::new(tasks) });
    // An unreachable Redis is not an error: then the table begins with this node alone.
    let _ = redis.heartbeat().await;
    Ok(Opened { sessions: redis.clone(), nodes: redis })
}

/// A random number: the standard library seeds its hashers from the system's random source.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// The beginning of a name that is too long, cut between characters.
fn cut(name: &str) -> &str {
    name.get(..name.floor_char_boundary(NAME_BYTES_MAX)).unwrap_or(name)
}

/// The table, and the tasks that are aborted with it.
struct Redis {
    table: Arc<Table>,
    beats: mpsc::Sender<BeatRequest>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Redis {
    fn drop(&mut self) {
        for task in self.tasks.get_mut() {
            task.abort();
        }
    }
}

impl Redis {
    async fn beat(&self) -> Result<(), Error> {
        let closed = || Error::unavailable("the table of sessions is closed");
        let (answer, answered) = oneshot::channel();
        self.beats.send(answer).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    /// Runs a request that needs a link.
    async fn ask<T>(&self, ask: impl AsyncFnOnce(&Table, &Link) -> Result<T, LinkError>) -> Result<T, Error> {
        let table = &self.table;
        let Some(link) = table.link() else { return Err(table.last_error()) };
        let answer = ask(table, &link).await;
        answer.map_err(|error| {
            table.report(&link, &error);
            error.into()
        })
    }

    async fn leave(&self) -> Result<(), Error> {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        let is_closed = tasks.is_empty();
        for task in tasks {
            task.abort();
            // Aborted or ended by itself: both are fine.
            let _ = task.await;
        }
        let table = &self.table;
        table.local.clear();
        let last_error = table.last_error(); // before `leave` replaces it
        let Some(link) = table.leave() else {
            return if is_closed { Ok(()) } else { Err(last_error) };
        };
        let mut end = redis::cmd("DEL");
        end.arg(table.keys.lease(table.here)).arg(table.keys.mail(table.here));
        link.ask(Op::Leave, &end).await?;
        table.sweep_node(&link, table.here).await?;
        Ok(())
    }
}

impl Sessions for Redis {
    fn open<'a>(&'a self, new: NewSession<'a>) -> Answer<'a, Result<SessionId, Error>> {
        self.table.open(new)
    }

    fn close(&self, id: SessionId, why: Ended) -> Answer<'_, Result<bool, Error>> {
        self.table.close(id, why)
    }

    fn set_presence<'a>(
        &'a self,
        id: SessionId,
        priority: Option<i8>,
        changes: &'a [InfoChange<'a>],
    ) -> Answer<'a, Result<bool, Error>> {
        self.table.update(id, |local| local.set_presence(id, priority, changes))
    }

    fn merge_info<'a>(
        &'a self,
        id: SessionId,
        changes: &'a [InfoChange<'a>],
    ) -> Answer<'a, Result<bool, Error>> {
        self.table.update(id, |local| local.merge_info(id, changes))
    }

    fn by_user<'a>(&'a self, user: &'a str) -> Answer<'a, Result<Found, Error>> {
        self.table.by_user(user)
    }

    fn by_address<'a>(&'a self, user: &'a str, resource: &'a str) -> Answer<'a, Result<Found, Error>> {
        self.table.by_address(user, resource)
    }

    fn by_id(&self, id: SessionId) -> Answer<'_, Result<Found, Error>> {
        self.table.by_id(id)
    }

    fn all(&self) -> BoxStream<'_, Result<Found, Error>> {
        self.table.all()
    }

    fn counts(&self) -> Answer<'_, Result<Counts, Error>> {
        self.table.counts()
    }
}

impl Nodes for Redis {
    fn here(&self) -> NodeId {
        self.table.here
    }

    fn heartbeat(&self) -> Answer<'_, Result<(), Error>> {
        Answer::later(self.beat())
    }

    fn sweep(&self) -> Answer<'_, Result<u64, Error>> {
        Answer::later(self.ask(async |table, link| {
            let (_, nodes) = table.states(link).await?;
            table.sweep_dead(link, &nodes).await
        }))
    }

    fn nodes(&self) -> Answer<'_, Result<Vec<NodeState>, Error>> {
        Answer::later(self.ask(async |table, link| Ok(table.states(link).await?.1)))
    }

    fn broadcast(&self, event: &Event) {
        self.table.broadcast(event);
    }

    fn health(&self) -> Result<(), Error> {
        if self.table.link().is_none() {
            return Err(self.table.last_error());
        }
        if !self.table.is_synced() {
            let text = "redis is reachable again: this node's sessions are being registered";
            return Err(Error::unavailable(text));
        }
        Ok(())
    }

    fn close(&self) -> Answer<'_, Result<(), Error>> {
        Answer::later(self.leave())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!(cut("node-1"), "node-1");
        let long = "é".repeat(200);
        assert_eq!(cut(&long).len(), 254);
    }
}
