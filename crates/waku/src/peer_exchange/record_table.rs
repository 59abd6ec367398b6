//! The known node records.

use std::{
    collections::{BTreeMap, HashMap},
    sync::OnceLock,
    time::Duration,
};

use libp2p::PeerId;
use parking_lot::Mutex;
use rand::{rngs::StdRng, seq::SliceRandom};
use restante_waku_wire::enr::Enr;
use tokio::time::Instant;

use super::{metrics::RecordResult, record};

/// The most records: about half a megabyte.
const RECORDS_MAX: usize = 1_000;
/// How long a record is stored after it was last received, and shared after its peer was last seen.
const AGE_MAX: Duration = Duration::from_secs(3_600);

/// Known records, one per peer. When the table is full, the least recently received record is removed.
///
/// A record is shared only if its own peer sent it or was connected within the last hour, or if it is from the settings or our
/// own. Otherwise nodes would exchange a peer's record for ever after the peer has left the network.
#[derive(Debug)]
pub(crate) struct RecordTable {
    cluster_id: Option<u16>,
    own: OnceLock<Enr>,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    by_peer: HashMap<PeerId, Entry>,
    /// All records except those of the settings, in the order in which they were last received.
    by_number: BTreeMap<u64, PeerId>,
    next_number: u64,
    rng: StdRng,
}

#[derive(Debug)]
struct Entry {
    record: Enr,
    /// `None` for a record of the settings: it is never removed, and always shared.
    received: Option<Received>,
    seen: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Received {
    number: u64,
    at: Instant,
}

impl Entry {
    fn is_shared(&self, now: Instant) -> bool {
        self.received.is_none() || self.seen.is_some_and(|seen| now.saturating_duration_since(seen) < AGE_MAX)
    }
}

impl RecordTable {
    /// Creates an empty table for a node of this cluster; `rng` selects records.
    pub(super) fn new(cluster_id: Option<u16>, rng: StdRng) -> Self {
        let table = Table { by_peer: HashMap::new(), by_number: BTreeMap::new(), next_number: 0, rng };
        Self { cluster_id, own: OnceLock::new(), table: Mutex::new(table) }
    }

    /// Sets the record of this node, once.
    pub(super) fn set_own(&self, own: Enr) {
        let _ = self.own.set(own);
    }

    /// Adds a record from the settings, which is never removed.
    pub(super) fn pin(&self, record: Enr) {
        let mut table = self.table.lock();
        if let Some(peer) = record::peer_of(&record)
            && table.by_peer.len() < RECORDS_MAX
        {
            table.by_peer.insert(peer, Entry { record, received: None, seen: None });
        }
    }

    /// Adds a received record if it is useful.
    pub(super) fn add(
        &self,
        record: Enr,
        is_peer_seen: impl FnOnce(PeerId) -> bool,
        now: Instant,
    ) -> RecordResult {
        let Some(peer) = self.useful_peer(&record) else { return RecordResult::Useless };
        let seen = is_peer_seen(peer).then_some(now);
        let mut table = self.table.lock();
        table.remove_old(now);
        let received = Received { number: table.next_number, at: now };
        let (result, previous) = match table.by_peer.get_mut(&peer) {
            None => {
                table.by_peer.insert(peer, Entry { record, received: Some(received), seen });
                (RecordResult::New, None)
            }
            Some(entry) => {
                let is_newer = record.seq() > entry.record.seq();
                if is_newer {
                    entry.record = record;
                }
                entry.seen = seen.or(entry.seen);
                if entry.received.is_none() {
                    return if is_newer { RecordResult::Newer } else { RecordResult::Known };
                }
                (
                    if is_newer { RecordResult::Newer } else { RecordResult::Known },
                    entry.received.replace(received),
                )
            }
        };
        if let Some(previous) = previous {
            table.by_number.remove(&previous.number);
        }
        table.by_number.insert(received.number, peer);
        table.next_number += 1;
        table.evict_oldest();
        result
    }

    /// The peer of a useful record: of a Waku node with an address, of our cluster if we have one, and not our own.
    fn useful_peer(&self, record: &Enr) -> Option<PeerId> {
        let contents = record.contents();
        let cluster_id = contents.relay_shards.as_ref().map(|shards| shards.cluster);
        let is_ours = self.cluster_id.is_none() || self.cluster_id == cluster_id;
        let is_own = self.own.get().is_some_and(|own| own.public_key() == record.public_key());
        let is_useful = contents.capabilities.is_some() && is_ours && !is_own;
        if !is_useful || record::addresses_of(&contents).is_empty() {
            return None;
        }
        record::peer_of(record)
    }

    /// Records that these peers are connected.
    pub(super) fn mark_seen(&self, peers: impl IntoIterator<Item = PeerId>, now: Instant) {
        let mut table = self.table.lock();
        table.remove_old(now);
        for peer in peers {
            if let Some(entry) = table.by_peer.get_mut(&peer) {
                entry.seen = Some(now);
            }
        }
    }

    /// Up to `count` random records for a peer, without its own; ours is added if there are fewer.
    pub(super) fn pick(&self, count: usize, asker: PeerId, now: Instant) -> Vec<Enr> {
        let is_eligible = |peer: &PeerId, entry: &Entry| *peer != asker && entry.is_shared(now);
        let mut picked: Vec<Enr> =
            self.table.lock().choose(count, now, is_eligible).into_iter().map(|(_, record)| record).collect();
        if picked.len() < count {
            picked.extend(self.own.get().cloned());
        }
        picked
    }

    /// Up to `count` random peers that are not connected.
    pub(super) fn pick_to_dial(
        &self,
        count: usize,
        is_connected: impl Fn(PeerId) -> bool,
        now: Instant,
    ) -> Vec<(PeerId, Enr)> {
        self.table.lock().choose(count, now, |peer, _| !is_connected(*peer))
    }

    /// Removes the record of a peer that can't be reached, unless it is from the settings.
    pub(super) fn remove(&self, peer: PeerId) {
        self.table.lock().remove(peer);
    }

    /// The number of records.
    pub(super) fn len(&self) -> usize {
        self.table.lock().by_peer.len()
    }
}

impl Table {
    fn choose(
        &mut self,
        count: usize,
        now: Instant,
        is_eligible: impl Fn(&PeerId, &Entry) -> bool,
    ) -> Vec<(PeerId, Enr)> {
        self.remove_old(now);
        let mut eligible: Vec<PeerId> = self
            .by_peer
            .iter()
            .filter(|(peer, entry)| is_eligible(peer, entry))
            .map(|(peer, _)| *peer)
            .collect();
        eligible.sort_unstable(); // so that the result depends only on the seed
        let (chosen, _) = eligible.partial_shuffle(&mut self.rng, count);
        let record = |peer: &PeerId| Some((*peer, self.by_peer.get(peer)?.record.clone()));
        chosen.iter().filter_map(record).collect()
    }

    fn remove_old(&mut self, now: Instant) {
        while let Some(oldest) = self.by_number.first_entry() {
            let peer = *oldest.get();
            let received = self.by_peer.get(&peer).and_then(|entry| entry.received);
            let is_young =
                received.is_some_and(|received| now.saturating_duration_since(received.at) < AGE_MAX);
            if is_young {
                return;
            }
            oldest.remove();
            self.by_peer.remove(&peer);
        }
    }

    fn evict_oldest(&mut self) {
        while self.by_peer.len() > RECORDS_MAX {
            let Some((_, peer)) = self.by_number.pop_first() else { return };
            self.by_peer.remove(&peer);
        }
    }

    fn remove(&mut self, peer: PeerId) {
        let received = self.by_peer.get(&peer).and_then(|entry| entry.received);
        if let Some(received) = received {
            self.by_number.remove(&received.number);
            self.by_peer.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests;
