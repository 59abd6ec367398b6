//! The open connections of a listener: how many there are, from which addresses, and which of them are idle.
//!
//! When a connection arrives and the limit is reached, the connection that has been idle for longest is closed. Otherwise clients
//! that connect and send nothing would keep everybody out until a timeout.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

use crate::{Limits, ListenerMetrics, LogThrottle};

/// What counts as one client: an IPv4 address, or an IPv6 network of 64 bits, the least that a provider gives a customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(IpAddr);

impl Source {
    /// The source of a connection; `None` for loopback, where a proxy may connect for any number of clients.
    pub fn of(address: SocketAddr) -> Option<Self> {
        let ip = address.ip().to_canonical();
        if ip.is_loopback() {
            return None;
        }
        Some(Self(match ip {
            IpAddr::V4(_) => ip,
            IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
        }))
    }

    /// The network that contains it: 24 bits for IPv4, and 48 bits for IPv6, the most that a provider gives a customer.
    pub fn network(self) -> Self {
        Self(match self.0 {
            IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) >> 8 << 8).into()),
            IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 80 << 80).into()),
        })
    }
}

/// The connections of a listener.
#[derive(Debug)]
pub(crate) struct Connections {
    permits: Arc<Semaphore>,
    per_source_max: usize,
    state: Mutex<State>,
    /// Notified when a connection becomes idle.
    became_idle: Notify,
    metrics: ListenerMetrics,
    refused: LogThrottle,
    waiting: LogThrottle,
}

#[derive(Debug, Default)]
struct State {
    by_source: HashMap<Source, usize>,
    /// The idle connections, in the order in which they became idle.
    idle: BTreeMap<u64, Idle>,
    next_number: u64,
}

#[derive(Debug)]
struct Idle {
    source: Option<Source>,
    closing: Arc<Notify>,
}

impl Connections {
    pub(crate) fn new(limits: &Limits, metrics: ListenerMetrics) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(limits.connections_max.clamp(1, Semaphore::MAX_PERMITS))),
            per_source_max: limits.connections_per_address_max,
            state: Mutex::default(),
            became_idle: Notify::new(),
            metrics,
            refused: LogThrottle::default(),
            waiting: LogThrottle::default(),
        })
    }

    /// Admits a connection. At a limit, the connection that has been idle for longest is closed. If none is idle, the new one
    /// waits for the end of another, or is refused (`None`) when its own address is at its limit. A proxy's own address is not
    /// limited: [`Open::set_client`] follows.
    pub(crate) async fn admit(self: &Arc<Self>, peer: SocketAddr, is_proxy: bool) -> Option<Arc<Open>> {
        if !is_proxy && !self.admits_from(&mut self.state.lock(), peer) {
            return None;
        }
        let permit = self.permit().await?;
        self.metrics.connections.inc();
        let open = Open {
            connections: self.clone(),
            source: OnceLock::new(),
            closing: Arc::default(),
            number: Mutex::default(),
            _permit: permit,
        };
        if !is_proxy {
            open.set_source(&mut self.state.lock(), peer);
        }
        open.set_idle();
        Some(Arc::new(open))
    }

    /// Whether one more connection of an address may be open. Closes an idle one of the same address if necessary.
    fn admits_from(&self, state: &mut State, peer: SocketAddr) -> bool {
        let Some(source) = Source::of(peer) else { return true };
        let open = state.by_source.get(&source).copied().unwrap_or_default();
        if open < self.per_source_max || self.close_oldest(state, Some(source)) {
            return true;
        }
        self.metrics.refused.inc();
        debug!(%peer, "refused: its address has too many connections");
        if let Some(times) = self.refused.count() {
            let (listener, limit) = (self.metrics.listener, self.per_source_max);
            warn!(listener, times, limit, "connections were refused: connections_per_address_max is reached");
        }
        false
    }

    /// A permit for one more connection. Never `None`: nothing closes the semaphore.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                return Some(permit);
            }
            let is_closing_one = self.close_oldest(&mut self.state.lock(), None);
            let permit = self.permits.clone().acquire_owned();
            if is_closing_one {
                return permit.await.ok();
            }
            if let Some(times) = self.waiting.count() {
                let listener = self.metrics.listener;
                warn!(listener, times, "connections wait: connections_max is reached, and all are in use");
            }
            tokio::select! {
                permit = permit => return permit.ok(),
                () = self.became_idle.notified() => {}
            }
        }
    }

    /// Closes the connection that has been idle for longest, of `source` only if one is given. Returns whether there was one.
    fn close_oldest(&self, state: &mut State, source: Option<Source>) -> bool {
        let mut of_source = state.idle.iter().filter(|(_, idle)| source.is_none() || idle.source == source);
        let Some(number) = of_source.next().map(|(number, _)| *number) else { return false };
        let Some(idle) = state.idle.remove(&number) else { return false };
        idle.closing.notify_one();
        self.metrics.idle.set(state.idle.len() as i64);
        self.metrics.idle_closed.inc();
        true
    }
}

/// An open connection. Dropping it admits another.
#[derive(Debug)]
pub(crate) struct Open {
    connections: Arc<Connections>,
    /// The client's source, once it is known; none for loopback.
    source: OnceLock<Source>,
    closing: Arc<Notify>,
    /// Its key in [`State::idle`], while it is idle.
    number: Mutex<Option<u64>>,
    _permit: OwnedSemaphorePermit,
}

impl Open {
    /// Completes when the connection is to be closed for another.
    pub(crate) async fn closing(&self) {
        self.closing.notified().await;
    }

    /// Counts the connection for the client that a proxy named. Returns whether the client may have one more.
    pub(crate) fn set_client(&self, client: SocketAddr) -> bool {
        let number = self.number.lock();
        let mut state = self.connections.state.lock();
        if !self.connections.admits_from(&mut state, client) {
            return false;
        }
        self.set_source(&mut state, client);
        if let Some(idle) = number.and_then(|number| state.idle.get_mut(&number)) {
            idle.source = self.source.get().copied();
        }
        true
    }

    fn set_source(&self, state: &mut State, client: SocketAddr) {
        let Some(source) = Source::of(client) else { return };
        if self.source.set(source).is_ok() {
            *state.by_source.entry(source).or_default() += 1;
        }
    }

    /// Marks the connection as idle: from now on it may be closed for others.
    pub(crate) fn set_idle(&self) {
        let mut number = self.number.lock();
        if number.is_some() {
            return;
        }
        let mut state = self.connections.state.lock();
        state.next_number += 1;
        let next = state.next_number;
        state.idle.insert(next, Idle { source: self.source.get().copied(), closing: self.closing.clone() });
        *number = Some(next);
        self.connections.metrics.idle.set(state.idle.len() as i64);
        self.connections.became_idle.notify_one();
    }

    /// Marks the connection as in use: from now on it is not closed for others.
    pub(crate) fn set_in_use(&self) {
        let Some(number) = self.number.lock().take() else { return };
        let mut state = self.connections.state.lock();
        state.idle.remove(&number);
        self.connections.metrics.idle.set(state.idle.len() as i64);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.set_in_use();
        self.connections.metrics.connections.dec();
        let Some(source) = self.source.get().copied() else { return };
        let mut state = self.connections.state.lock();
        let is_last = state.by_source.get_mut(&source).is_none_or(|open| {
            *open -= 1;
            *open == 0
        });
        if is_last {
            state.by_source.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::NetMetrics;

    fn peer(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 1)
    }

    #[tokio::test]
    async fn an_address_is_limited_and_only_its_own_idle_connections_are_closed() {
        let limits = Limits { connections_max: 100, connections_per_address_max: 2, ..Limits::default() };
        let metrics = NetMetrics::default().listener("test");
        let connections = Connections::new(&limits, metrics.clone());
        let admit = |address: &str| {
            connections.admit(peer(address), false).now_or_never().expect("there is a permit")
        };
        let _other = admit("192.0.2.1").unwrap();
        let first = admit("2001:db8::1").unwrap();
        let second = admit("2001:db8::2").unwrap();
        let third = admit("2001:db8::3").unwrap();
        assert!(first.closing().now_or_never().is_some(), "it has been idle for longest of its network");
        assert!(second.closing().now_or_never().is_none());
        drop(first);
        second.set_in_use();
        third.set_in_use();
        assert!(admit("2001:db8::4").is_none(), "all of its connections are in use");
        assert_eq!((metrics.refused.get(), metrics.idle_closed.get(), metrics.connections.get()), (1, 1, 3));
        let _elsewhere = admit("2001:db8:0:1::1").unwrap();
        let _local: Vec<_> = (0..10).map(|_| admit("127.0.0.1").unwrap()).collect();
        drop((second, third));
        assert!(admit("2001:db8::4").is_some());
        assert_eq!(connections.state.lock().by_source.len(), 2, "the others have gone");
    }

    #[tokio::test]
    async fn a_client_behind_a_proxy_is_limited_and_the_proxy_is_not() {
        let limits = Limits { connections_max: 100, connections_per_address_max: 2, ..Limits::default() };
        let connections = Connections::new(&limits, NetMetrics::default().listener("test"));
        let admit = || connections.admit(peer("192.0.2.9"), true).now_or_never().flatten().unwrap();
        let open: Vec<_> = (0..5).map(|_| admit()).collect();
        assert!(open[0].set_client(peer("192.0.2.1")) && open[1].set_client(peer("192.0.2.1")));
        assert!(open[2].set_client(peer("192.0.2.1")), "an idle one of the same client is closed");
        assert!(open[0].closing().now_or_never().is_some());
        assert!(open[3].closing().now_or_never().is_none(), "one of a client that is not known yet is not");
        open[1].set_in_use();
        open[2].set_in_use();
        assert!(!open[3].set_client(peer("192.0.2.1")) && open[3].set_client(peer("192.0.2.2")));
        drop(open);
        assert!(connections.state.lock().by_source.is_empty());
    }

    #[test]
    fn a_source_is_an_address_or_an_ipv6_network() {
        let source = |address: &str| Source::of(SocketAddr::new(address.parse().unwrap(), 1));
        assert_eq!(source("192.0.2.1"), source("::ffff:192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::9"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
        let network = |address: &str| source(address).map(Source::network);
        assert_eq!(network("192.0.2.1"), network("192.0.2.255"));
        assert_ne!(network("192.0.2.1"), network("192.0.3.1"));
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:2:2::1"));
        for loopback in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(source(loopback), None, "{loopback}");
        }
    }
}
