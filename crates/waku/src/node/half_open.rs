//! Incoming connections whose handshake is not complete. Their number is bounded, in total and for each address, and a new one
//! replaces an old one, so that silent sockets don't block others.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use libp2p::{
    Multiaddr, Transport,
    core::transport::{Boxed, DialOpts, ListenerId, TransportError, TransportEvent},
};
use parking_lot::Mutex;
use restante_net::LogThrottle;
use tracing::warn;

use super::{NodeLimits, address::AddressGroup, metrics::NodeMetrics};

/// The handshakes of incoming connections.
pub(crate) struct HalfOpen {
    all_max: usize,
    address_max: usize,
    table: Mutex<Table>,
    metrics: NodeMetrics,
    log: LogThrottle,
}

#[derive(Default)]
struct Table {
    next_id: u64,
    /// The oldest first.
    entries: VecDeque<Entry>,
}

struct Entry {
    id: u64,
    group: Option<AddressGroup>,
    eviction: Arc<Eviction>,
}

#[derive(Default)]
struct Eviction {
    is_due: AtomicBool,
    waker: AtomicWaker,
}

impl HalfOpen {
    pub(crate) fn new(limits: &NodeLimits, metrics: NodeMetrics) -> Arc<Self> {
        Arc::new(Self {
            all_max: limits.handshakes_max.get() as usize,
            address_max: limits.handshakes_per_address_max.get() as usize,
            table: Mutex::default(),
            metrics,
            log: LogThrottle::default(),
        })
    }

    /// Admits a new handshake. At a limit, the oldest handshake of the same address ends, or else the oldest of the address
    /// with the most handshakes.
    fn admit(self: &Arc<Self>, group: Option<AddressGroup>) -> HandshakeSlot {
        let mut table = self.table.lock();
        if table.entries.iter().filter(|entry| entry.group == group).count() >= self.address_max {
            self.evict(&mut table, group, "address");
        } else if table.entries.len() >= self.all_max {
            let largest = table.largest_group();
            self.evict(&mut table, largest, "all");
        }
        let (id, eviction) = (table.next_id, Arc::new(Eviction::default()));
        table.next_id += 1;
        table.entries.push_back(Entry { id, group, eviction: eviction.clone() });
        self.metrics.handshakes.set(table.entries.len() as i64);
        HandshakeSlot { half_open: self.clone(), id, eviction }
    }

    fn evict(&self, table: &mut Table, group: Option<AddressGroup>, limit: &'static str) {
        let Some(oldest) = table.entries.iter().position(|entry| entry.group == group) else { return };
        let Some(entry) = table.entries.remove(oldest) else { return };
        entry.eviction.is_due.store(true, Ordering::Release);
        entry.eviction.waker.wake();
        self.metrics.evicted_handshake(limit);
        if let Some(connections) = self.log.count() {
            let advice = "see waku.limits.handshakes_max and waku.limits.handshakes_per_address_max";
            warn!(
                connections,
                limit, advice, "connections that did not finish their handshake were closed for new ones"
            );
        }
    }
}

impl Table {
    fn largest_group(&self) -> Option<AddressGroup> {
        let mut counts: HashMap<Option<AddressGroup>, usize> = HashMap::new();
        for entry in &self.entries {
            *counts.entry(entry.group).or_default() += 1;
        }
        let most = counts.values().max().copied();
        // Among several, the group with the oldest handshake.
        let oldest = self.entries.iter().find(|entry| counts.get(&entry.group).copied() == most);
        oldest.and_then(|entry| entry.group)
    }
}

/// Counts one handshake for as long as it lives.
struct HandshakeSlot {
    half_open: Arc<HalfOpen>,
    id: u64,
    eviction: Arc<Eviction>,
}

impl HandshakeSlot {
    fn is_evicted(&self, cx: &Context<'_>) -> bool {
        self.eviction.waker.register(cx.waker());
        self.eviction.is_due.load(Ordering::Acquire)
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        let mut table = self.half_open.table.lock();
        table.entries.retain(|entry| entry.id != self.id);
        self.half_open.metrics.handshakes.set(table.entries.len() as i64);
    }
}

/// A transport that bounds the handshakes of incoming connections.
pub(crate) struct Gate<O> {
    transport: Boxed<O>,
    half_open: Arc<HalfOpen>,
}

impl<O> Gate<O> {
    pub(crate) fn new(transport: Boxed<O>, half_open: Arc<HalfOpen>) -> Self {
        Self { transport, half_open }
    }
}

/// A handshake that fails when it is evicted.
pub(crate) struct Handshake<F> {
    upgrade: F,
    slot: HandshakeSlot,
}

impl<O, F: Future<Output = io::Result<O>> + Unpin> Future for Handshake<F> {
    type Output = io::Result<O>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<O>> {
        if self.slot.is_evicted(cx) {
            return Poll::Ready(Err(io::Error::other("the handshake was replaced by a newer one")));
        }
        Pin::new(&mut self.upgrade).poll(cx)
    }
}

impl<O: 'static> Transport for Gate<O> {
    type Output = O;
    type Error = io::Error;
    type ListenerUpgrade = Handshake<<Boxed<O> as Transport>::ListenerUpgrade>;
    type Dial = <Boxed<O> as Transport>::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.transport.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.transport.remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        self.transport.dial(address, options)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        let Poll::Ready(event) = Pin::new(&mut self.transport).poll(cx) else { return Poll::Pending };
        let group = match &event {
            TransportEvent::Incoming { send_back_addr, .. } => AddressGroup::of(send_back_addr),
            _ => None,
        };
        Poll::Ready(event.map_upgrade(|upgrade| Handshake { upgrade, slot: self.half_open.admit(group) }))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn half_open(all: u32, address: u32) -> Arc<HalfOpen> {
        let limits = NodeLimits {
            handshakes_max: all.try_into().unwrap(),
            handshakes_per_address_max: address.try_into().unwrap(),
            ..NodeLimits::default()
        };
        HalfOpen::new(&limits, NodeMetrics::default())
    }

    fn group(n: u8) -> Option<AddressGroup> {
        Some(AddressGroup::V4([192, 0, 2, n].into()))
    }

    fn evicted(slots: &[HandshakeSlot]) -> Vec<usize> {
        let cx = Context::from_waker(Waker::noop());
        (0..slots.len()).filter(|n| slots[*n].is_evicted(&cx)).collect()
    }

    #[test]
    fn the_oldest_handshake_of_an_address_is_evicted() {
        let half_open = half_open(10, 3);
        let other = half_open.admit(group(9));
        let slots: Vec<HandshakeSlot> = (0..5).map(|_| half_open.admit(group(1))).collect();
        assert_eq!(evicted(&slots), [0, 1]);
        assert!(evicted(&[other]).is_empty(), "no other address is affected");
        drop(slots);
        assert!(half_open.table.lock().entries.is_empty());
    }

    #[test]
    fn the_address_with_most_handshakes_is_evicted_for_another() {
        let half_open = half_open(6, 4);
        let few: Vec<HandshakeSlot> = (0..2).map(|_| half_open.admit(group(1))).collect();
        let many: Vec<HandshakeSlot> = (0..4).map(|_| half_open.admit(group(2))).collect();
        let new: Vec<HandshakeSlot> = (3..5).map(|n| half_open.admit(group(n))).collect();
        assert_eq!((evicted(&few), evicted(&many), evicted(&new)), (vec![], vec![0, 1], vec![]));
    }

    #[test]
    fn a_finished_handshake_no_longer_counts() {
        let half_open = half_open(2, 2);
        for _ in 0..10 {
            let slot = half_open.admit(group(1));
            assert!(evicted(&[slot]).is_empty());
        }
    }
}
