//! The engine `local`: queues in this process. The other engines are compared with it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    Announcement, Announcements, DEAD_MAX, DeadItem, Dealer, Error, Listener, OpenedAnnouncements,
    OpenedWork, RETURNS_MAX, Received, Stats, Ticket, Upkeep, WAITING_MAX, Work, announcements::Listeners,
    check_items, closed, work::Settlement,
};

/// A queue that this many servers in this process share, for tests.
pub fn local_work(servers: usize, prefetch: usize) -> Vec<OpenedWork> {
    let broker = Arc::new(Broker { prefetch, state: Mutex::default(), changed: Notify::new() });
    broker.state.lock().servers = (0..servers).map(|_| Some(HashMap::new())).collect();
    let open = |server| {
        let local = Arc::new(Local { broker: broker.clone(), server });
        OpenedWork { work: local.clone(), upkeep: local }
    };
    (0..servers).map(open).collect()
}

/// Announcements between this many servers in this process, for tests.
pub fn local_announcements(servers: usize) -> Vec<OpenedAnnouncements> {
    let all: Arc<Vec<Listeners>> = Arc::new((0..servers).map(|_| Listeners::new()).collect());
    let open = |server| OpenedAnnouncements {
        announcements: Arc::new(LocalAnnouncements { all: all.clone(), server }),
        problem: Arc::new(|| None),
    };
    (0..servers).map(open).collect()
}

#[derive(Clone)]
struct Item {
    bytes: Bytes,
    returns: u32,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Item>,
    dead: VecDeque<DeadItem>,
    /// What each server holds; `None` once it is closed.
    servers: Vec<Option<HashMap<u64, Item>>>,
    last_number: u64,
}

impl State {
    fn bury(&mut self, item: Bytes, reason: &str) {
        if self.dead.len() >= DEAD_MAX {
            self.dead.pop_front();
        }
        self.dead.push_back(DeadItem { item, reason: reason.to_owned() });
    }

    fn settle(&mut self, item: Item, settlement: Settlement) {
        match settlement {
            Settlement::Done => {}
            Settlement::Rejected => self.bury(item.bytes, "rejected"),
            Settlement::Returned if item.returns >= RETURNS_MAX => self.bury(item.bytes, "delivery_limit"),
            Settlement::Returned => self.waiting.push_back(Item { returns: item.returns + 1, ..item }),
        }
    }
}

struct Broker {
    prefetch: usize,
    state: Mutex<State>,
    /// Notified when an item waits, or a server may hold more.
    changed: Notify,
}

impl Broker {
    /// An item for a server, with its number.
    fn take(&self, server: usize) -> Option<(u64, Bytes)> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let held = state.servers.get_mut(server)?.as_mut()?;
        if held.len() >= self.prefetch {
            return None;
        }
        let item = state.waiting.pop_front()?;
        state.last_number += 1;
        let bytes = item.bytes.clone();
        held.insert(state.last_number, item);
        Some((state.last_number, bytes))
    }

    fn settle(&self, server: usize, number: u64, settlement: Settlement) {
        let mut state = self.state.lock();
        let held = state.servers.get_mut(server).and_then(Option::as_mut);
        if let Some(item) = held.and_then(|held| held.remove(&number)) {
            state.settle(item, settlement);
            self.changed.notify_waiters();
        }
    }
}

/// One server's side of a queue.
struct Local {
    broker: Arc<Broker>,
    server: usize,
}

impl Local {
    fn is_closed(&self) -> bool {
        self.broker.state.lock().servers.get(self.server).is_none_or(Option::is_none)
    }
}

#[async_trait]
impl Work for Local {
    async fn publish(&self, items: &[Bytes]) -> Result<(), Error> {
        check_items(items)?;
        self.health()?;
        let mut state = self.broker.state.lock();
        for bytes in items {
            if state.waiting.len() >= WAITING_MAX {
                return Err(Error::full(format!("{WAITING_MAX} items wait in the queue")));
            }
            state.waiting.push_back(Item { bytes: bytes.clone(), returns: 0 });
        }
        self.broker.changed.notify_waiters();
        Ok(())
    }

    async fn next(&self) -> Received {
        loop {
            let changed = self.broker.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Before the queue is checked, so that no change is missed.
            changed.as_mut().enable();
            if let Some((number, item)) = self.broker.take(self.server) {
                let (broker, server) = (self.broker.clone(), self.server);
                let ticket = Ticket::new(move |settlement| broker.settle(server, number, settlement));
                return Received { item, ticket };
            }
            changed.await;
        }
    }

    fn dealer(&self) -> Dealer {
        let state = self.broker.state.lock();
        match state.servers.iter().position(Option::is_some) {
            Some(first) if first == self.server => Dealer::ThisServer(1),
            _ if state.servers.get(self.server).is_some_and(Option::is_some) => Dealer::AnotherServer,
            _ => Dealer::Unknown,
        }
    }
}

#[async_trait]
impl Upkeep for Local {
    fn health(&self) -> Result<(), Error> {
        if self.is_closed() { Err(closed()) } else { Ok(()) }
    }

    async fn stats(&self) -> Result<Stats, Error> {
        self.health()?;
        let state = self.broker.state.lock();
        Ok(Stats { waiting: state.waiting.len() as u64, dead: state.dead.len() as u64 })
    }

    async fn dead(&self, limit: usize) -> Result<Vec<DeadItem>, Error> {
        self.health()?;
        Ok(self.broker.state.lock().dead.iter().take(limit).cloned().collect())
    }

    async fn requeue_dead(&self) -> Result<u64, Error> {
        self.health()?;
        let mut state = self.broker.state.lock();
        let dead = std::mem::take(&mut state.dead);
        let count = dead.len() as u64;
        state.waiting.extend(dead.into_iter().map(|dead| Item { bytes: dead.item, returns: 0 }));
        self.broker.changed.notify_waiters();
        Ok(count)
    }

    async fn drop_dead(&self) -> Result<u64, Error> {
        self.health()?;
        Ok(std::mem::take(&mut self.broker.state.lock().dead).len() as u64)
    }

    async fn close(&self) {
        let mut state = self.broker.state.lock();
        let held = state.servers.get_mut(self.server).and_then(Option::take);
        for item in held.unwrap_or_default().into_values() {
            state.settle(item, Settlement::Returned);
        }
        self.broker.changed.notify_waiters();
    }
}

struct LocalAnnouncements {
    all: Arc<Vec<Listeners>>,
    server: usize,
}

impl Announcements for LocalAnnouncements {
    fn announce(&self, announcement: Announcement) {
        for (server, listeners) in self.all.iter().enumerate() {
            if server != self.server {
                listeners.heard(Ok(announcement));
            }
        }
    }

    fn listen(&self) -> Listener {
        self.all.get(self.server).map_or_else(|| Listeners::new().listen(), Listeners::listen)
    }
}
