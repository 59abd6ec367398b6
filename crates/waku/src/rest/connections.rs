//! The open connections of the REST server: how many there are, from which addresses, and which of them wait for a request.
//!
//! A connection that waits for a request gives way when one more arrives than there may be, the one that has waited longest
//! first. Otherwise clients that connect and send nothing would keep everybody out until the header timeout.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

use super::{RestConfig, metrics::ConnectionMetrics, occasional::Occasional, room::Room};

/// What counts as one client: an IPv4 address, or an IPv6 network of 64 bits, the least that a provider gives a customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Source(IpAddr);

impl Source {
    /// The source of a connection; `None` for loopback, where a proxy may stand for any number of clients.
    fn of(address: SocketAddr) -> Option<Self> {
        let ip = address.ip().to_canonical();
        if ip.is_loopback() {
            return None;
        }
        Some(Self(match ip {
            IpAddr::V4(_) => ip,
            IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
        }))
    }
}

/// The connections of a server.
#[derive(Debug)]
pub(super) struct Connections {
    permits: Arc<Semaphore>,
    per_source_max: usize,
    state: Mutex<State>,
    /// Notified when a connection begins to wait for a request.
    became_idle: Notify,
    metrics: ConnectionMetrics,
    refused: Occasional,
    crowded: Occasional,
}

#[derive(Debug, Default)]
struct State {
    by_source: HashMap<Source, usize>,
    /// The connections that wait for a request, in the order in which they began to.
    idle: BTreeMap<u64, Idle>,
    next_number: u64,
}

#[derive(Debug)]
struct Idle {
    source: Option<Source>,
    closing: Arc<Notify>,
}

impl Connections {
    pub(super) fn new(config: &RestConfig, metrics: ConnectionMetrics) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(config.connections_max.clamp(1, Semaphore::MAX_PERMITS))),
            per_source_max: config.connections_per_address_max,
            state: Mutex::default(),
            became_idle: Notify::new(),
            metrics,
            refused: Occasional::default(),
            crowded: Occasional::default(),
        })
    }

    /// Admits a connection. Where a limit is reached, the connection that has waited longest for a request is closed; without one the
    /// new one waits for the end of another, or is refused (`None`) when its own address has as many as it may have.
    pub(super) async fn admit(self: &Arc<Self>, peer: SocketAddr) -> Option<Arc<Open>> {
        let source = Source::of(peer);
        if !self.has_room_of(source) {
            self.metrics.refused.inc();
            debug!(%peer, "refused: its address has too many connections");
            if let Some(times) = self.refused.count() {
                let limit = self.per_source_max;
                warn!(times, limit, "connections were refused: rest.connections_per_address_max is reached");
            }
            return None;
        }
        let permit = self.permit().await?;
        if let Some(source) = source {
            *self.state.lock().by_source.entry(source).or_default() += 1;
        }
        self.metrics.open.inc();
        let open = Open {
            connections: self.clone(),
            source,
            closing: Arc::default(),
            number: Mutex::default(),
            _permit: permit,
        };
        open.wait_for_request();
        Some(Arc::new(open))
    }

    fn has_room_of(&self, source: Option<Source>) -> bool {
        let Some(source) = source else { return true };
        let mut state = self.state.lock();
        let open = state.by_source.get(&source).copied().unwrap_or_default();
        open < self.per_source_max || self.close_oldest(&mut state, Some(source))
    }

    /// A permit for one more connection; `None` never comes, because nobody closes the semaphore.
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
            if let Some(times) = self.crowded.count() {
                warn!(
                    times,
                    "connections wait to be admitted: rest.connections_max is reached, and all are in use"
                );
            }
            tokio::select! {
                permit = permit => return permit.ok(),
                () = self.became_idle.notified() => {}
            }
        }
    }

    /// Closes the connection that has waited longest for a request, of one source if one is named. Returns whether there was one.
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

/// An open connection. Dropping it makes room for another.
#[derive(Debug)]
pub(super) struct Open {
    connections: Arc<Connections>,
    source: Option<Source>,
    closing: Arc<Notify>,
    /// Its number among the connections that wait for a request.
    number: Mutex<Option<u64>>,
    _permit: OwnedSemaphorePermit,
}

impl Open {
    /// Completes when the connection is to give way to another.
    pub(super) async fn closing(&self) {
        self.closing.notified().await;
    }

    /// The connection may be closed from now on.
    pub(super) fn wait_for_request(&self) {
        let mut number = self.number.lock();
        if number.is_some() {
            return;
        }
        let mut state = self.connections.state.lock();
        state.next_number += 1;
        let next = state.next_number;
        state.idle.insert(next, Idle { source: self.source, closing: self.closing.clone() });
        *number = Some(next);
        self.connections.metrics.idle.set(state.idle.len() as i64);
        self.connections.became_idle.notify_one();
    }

    /// The connection is not closed for others from now on.
    pub(super) fn begin_request(&self) {
        let Some(number) = self.number.lock().take() else { return };
        let mut state = self.connections.state.lock();
        state.idle.remove(&number);
        self.connections.metrics.idle.set(state.idle.len() as i64);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.begin_request();
        self.connections.metrics.open.dec();
        let Some(source) = self.source else { return };
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

/// Goes with every request of a connection: the accept loop knows the connection but nothing of the router, and handlers the room
/// for answers but not the connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionMark {
    open: Option<Arc<Open>>,
    room: OnceLock<Arc<Room>>,
    /// Whether an answer has been handed to the connection in full, and may not have been written yet.
    is_answered: AtomicBool,
}

impl ConnectionMark {
    pub(super) fn of(open: Arc<Open>) -> Self {
        Self { open: Some(open), ..Self::default() }
    }

    pub(crate) fn meet(&self, room: &Arc<Room>) {
        self.room.get_or_init(|| room.clone());
    }

    /// Whether somebody waits for room that this connection's answers may hold.
    pub(crate) fn is_room_wanted(&self) -> bool {
        self.room.get().is_some_and(|room| room.is_crowded())
    }

    /// A request has come.
    pub(super) fn begin_request(&self) {
        self.is_answered.store(false, Ordering::Relaxed); // all of a connection happens in one task
        if let Some(open) = &self.open {
            open.begin_request();
        }
    }

    /// All that was handed to the connection has been written.
    pub(super) fn note_written(&self) {
        if self.is_answered.swap(false, Ordering::Relaxed)
            && let Some(open) = &self.open
        {
            open.wait_for_request();
        }
    }
}

/// The body of an answer. Its drop says that the connection has all of it.
pub(super) struct Answer {
    body: Body,
    mark: Arc<ConnectionMark>,
}

impl Answer {
    pub(super) fn new(body: Body, mark: Arc<ConnectionMark>) -> Self {
        Self { body, mark }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.mark.is_answered.store(true, Ordering::Relaxed);
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn peer(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 1)
    }

    #[tokio::test]
    async fn an_address_has_its_share_and_its_own_idle_connections_give_way() {
        let config =
            RestConfig { connections_max: 100, connections_per_address_max: 2, ..RestConfig::default() };
        let metrics = ConnectionMetrics::default();
        let connections = Connections::new(&config, metrics.clone());
        let admit =
            |address: &str| connections.admit(peer(address)).now_or_never().expect("there is a permit");
        let _other = admit("192.0.2.1").unwrap();
        let first = admit("2001:db8::1").unwrap();
        let second = admit("2001:db8::2").unwrap();
        let third = admit("2001:db8::3").unwrap();
        assert!(first.closing().now_or_never().is_some(), "it has waited longest of its network");
        assert!(second.closing().now_or_never().is_none());
        drop(first);
        second.begin_request();
        third.begin_request();
        assert!(admit("2001:db8::4").is_none(), "all of its connections are in use");
        assert_eq!((metrics.refused.get(), metrics.idle_closed.get(), metrics.open.get()), (1, 1, 3));
        let _elsewhere = admit("2001:db8:0:1::1").unwrap();
        let _local: Vec<_> = (0..10).map(|_| admit("127.0.0.1").unwrap()).collect();
        drop((second, third));
        assert!(admit("2001:db8::4").is_some());
        assert_eq!(connections.state.lock().by_source.len(), 2, "the others have gone");
    }

    #[test]
    fn a_source_is_an_address_or_an_ipv6_network() {
        let source = |address: &str| Source::of(SocketAddr::new(address.parse().unwrap(), 1));
        assert_eq!(source("192.0.2.1"), source("::ffff:192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::9"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
        for loopback in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(source(loopback), None, "{loopback}");
        }
    }
}
