//! The node records that are known.

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

use super::{metrics::Heard, record};

/// Records that are remembered: 60 answers' worth, in about half a megabyte.
const RECORDS_MAX: usize = 1_000;
/// How long a record is remembered after it was heard last, and handed on after its peer was seen last.
const AGE_MAX: Duration = Duration::from_secs(3_600);

/// Known records, one per peer. When it is full, the one that was heard longest ago is forgotten.
///
/// What somebody else says of a peer is remembered, but not handed on: else nodes would tell each other of a peer that is
/// long gone for ever. Only a record whose peer told it itself, or was connected within the hour, is handed on, as well as
/// those of the settings and our own.
#[derive(Debug)]
pub(crate) struct Book {
    cluster_id: Option<u16>,
    own: OnceLock<Enr>,
    pages: Mutex<Pages>,
}

#[derive(Debug)]
struct Pages {
    by_peer: HashMap<PeerId, Entry>,
    /// All but those of the settings, in the order in which they were heard last.
    by_turn: BTreeMap<u64, PeerId>,
    next_turn: u64,
    chance: StdRng,
}

#[derive(Debug)]
struct Entry {
    record: Enr,
    /// `None` for a record of the settings: it is always kept, and always handed on.
    heard: Option<Turn>,
    seen: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    number: u64,
    at: Instant,
}

impl Entry {
    fn is_handed_on(&self, now: Instant) -> bool {
        self.heard.is_none() || self.seen.is_some_and(|seen| now.saturating_duration_since(seen) < AGE_MAX)
    }
}

impl Book {
    /// An empty book of a node of this cluster; `chance` decides who is named.
    pub(super) fn new(cluster_id: Option<u16>, chance: StdRng) -> Self {
        let pages = Pages { by_peer: HashMap::new(), by_turn: BTreeMap::new(), next_turn: 0, chance };
        Self { cluster_id, own: OnceLock::new(), pages: Mutex::new(pages) }
    }

    /// Sets the record of this node, once.
    pub(super) fn set_own(&self, own: Enr) {
        let _ = self.own.set(own);
    }

    /// Keeps a record of the settings for good.
    pub(super) fn pin(&self, record: Enr) {
        let mut pages = self.pages.lock();
        if let Some(peer) = record::peer_of(&record)
            && pages.by_peer.len() < RECORDS_MAX
        {
            pages.by_peer.insert(peer, Entry { record, heard: None, seen: None });
        }
    }

    /// Takes a record that a peer told, or leaves it.
    pub(super) fn take(&self, record: Enr, is_peer_seen: impl FnOnce(PeerId) -> bool, now: Instant) -> Heard {
        let Some(peer) = self.peer_of_use(&record) else { return Heard::Useless };
        let seen = is_peer_seen(peer).then_some(now);
        let mut pages = self.pages.lock();
        pages.forget_old(now);
        let heard = Turn { number: pages.next_turn, at: now };
        let (result, old_turn) = match pages.by_peer.get_mut(&peer) {
            None => {
                pages.by_peer.insert(peer, Entry { record, heard: Some(heard), seen });
                (Heard::New, None)
            }
            Some(entry) => {
                let is_newer = record.seq() > entry.record.seq();
                if is_newer {
                    entry.record = record;
                }
                entry.seen = seen.or(entry.seen);
                if entry.heard.is_none() {
                    return if is_newer { Heard::Newer } else { Heard::Known };
                }
                (if is_newer { Heard::Newer } else { Heard::Known }, entry.heard.replace(heard))
            }
        };
        if let Some(old_turn) = old_turn {
            pages.by_turn.remove(&old_turn.number);
        }
        pages.by_turn.insert(heard.number, peer);
        pages.next_turn += 1;
        pages.make_room();
        result
    }

    /// The peer of a record that is of use: of a Waku node with an address, of our cluster if we have one, and not our own.
    fn peer_of_use(&self, record: &Enr) -> Option<PeerId> {
        let contents = record.contents();
        let cluster_id = contents.relay_shards.as_ref().map(|shards| shards.cluster);
        let is_ours = self.cluster_id.is_none() || self.cluster_id == cluster_id;
        let is_own = self.own.get().is_some_and(|own| own.public_key() == record.public_key());
        let is_of_use = contents.capabilities.is_some() && is_ours && !is_own;
        if !is_of_use || record::addresses_of(&contents).is_empty() {
            return None;
        }
        record::peer_of(record)
    }

    /// Notes that these peers are connected.
    pub(super) fn see(&self, peers: impl IntoIterator<Item = PeerId>, now: Instant) {
        let mut pages = self.pages.lock();
        pages.forget_old(now);
        for peer in peers {
            if let Some(entry) = pages.by_peer.get_mut(&peer) {
                entry.seen = Some(now);
            }
        }
    }

    /// Up to `count` records by chance to hand on to a peer, none of them its own; ours is among them when there is room.
    pub(super) fn pick(&self, count: usize, asker: PeerId, now: Instant) -> Vec<Enr> {
        let is_wanted = |peer: &PeerId, entry: &Entry| *peer != asker && entry.is_handed_on(now);
        let mut picked: Vec<Enr> =
            self.pages.lock().choose(count, now, is_wanted).into_iter().map(|(_, record)| record).collect();
        if picked.len() < count {
            picked.extend(self.own.get().cloned());
        }
        picked
    }

    /// Up to `count` peers by chance that may be dialled.
    pub(super) fn strangers(
        &self,
        count: usize,
        is_connected: impl Fn(PeerId) -> bool,
        now: Instant,
    ) -> Vec<(PeerId, Enr)> {
        self.pages.lock().choose(count, now, |peer, _| !is_connected(*peer))
    }

    /// Forgets a peer that can't be reached.
    pub(super) fn forget(&self, peer: PeerId) {
        self.pages.lock().forget(peer);
    }

    /// How many records are known.
    pub(super) fn len(&self) -> usize {
        self.pages.lock().by_peer.len()
    }
}

impl Pages {
    fn choose(
        &mut self,
        count: usize,
        now: Instant,
        is_wanted: impl Fn(&PeerId, &Entry) -> bool,
    ) -> Vec<(PeerId, Enr)> {
        self.forget_old(now);
        let mut wanted: Vec<PeerId> = self
            .by_peer
            .iter()
            .filter(|(peer, entry)| is_wanted(peer, entry))
            .map(|(peer, _)| *peer)
            .collect();
        wanted.sort_unstable(); // so that chance alone decides
        let (chosen, _) = wanted.partial_shuffle(&mut self.chance, count);
        let record = |peer: &PeerId| Some((*peer, self.by_peer.get(peer)?.record.clone()));
        chosen.iter().filter_map(record).collect()
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some(oldest) = self.by_turn.first_entry() {
            let peer = *oldest.get();
            let heard = self.by_peer.get(&peer).and_then(|entry| entry.heard);
            let is_young = heard.is_some_and(|heard| now.saturating_duration_since(heard.at) < AGE_MAX);
            if is_young {
                return;
            }
            oldest.remove();
            self.by_peer.remove(&peer);
        }
    }

    fn make_room(&mut self) {
        while self.by_peer.len() > RECORDS_MAX {
            let Some((_, peer)) = self.by_turn.pop_first() else { return };
            self.by_peer.remove(&peer);
        }
    }

    fn forget(&mut self, peer: PeerId) {
        let turn = self.by_peer.get(&peer).and_then(|entry| entry.heard);
        if let Some(turn) = turn {
            self.by_turn.remove(&turn.number);
            self.by_peer.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests;
