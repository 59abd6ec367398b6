//! Results of queries that are kept: the ids of all emails that pass a filter, in the order of a sort.

use std::{
    cmp::Ordering,
    collections::{HashMap, HashSet},
    mem,
    sync::{
        Arc,
        atomic::{self, AtomicU32},
    },
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use restante_core::{AccountId, Revision};

use super::sort::{Key, Keys, Sort};

/// How many results are kept for one account.
const ACCOUNT_VIEWS_MAX: usize = 64;

/// How many results are kept for all accounts.
const VIEWS_MAX: usize = 4_096;

/// So many updates are made one by one, each of which may move the entries behind it; more are merged.
const SINGLE_UPDATES_MAX: usize = 32;

/// An email of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) keys: Keys,
    pub(crate) id: u64,
    pub(crate) thread: u64,
}

/// How an email that changed stands in a result now.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    /// It passes the filter.
    In(Entry),
    /// It exists, and does not pass.
    Out(Entry),
    /// It was destroyed.
    Gone(u64),
}

impl Update {
    fn id(&self) -> u64 {
        match self {
            Self::In(entry) | Self::Out(entry) => entry.id,
            Self::Gone(id) => *id,
        }
    }
}

/// All emails that passed a filter when the emails were in a state, in the order of a sort.
///
/// The entries are stored the other way round when the first comparator descends, so that a new email, which is the newest,
/// comes last and moves no other.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// It is complete up to here. Single emails may be as they were later.
    pub(crate) state: Revision,
    sort: Arc<Sort>,
    stored: Vec<Entry>,
}

impl View {
    pub(crate) fn new(state: Revision, sort: Arc<Sort>, mut entries: Vec<Entry>) -> Self {
        let is_reversed = sort.is_descending();
        entries.sort_unstable_by(|left, right| stored_order(&sort, is_reversed, left, right));
        entries.dedup_by_key(|entry| entry.id);
        entries.shrink_to_fit();
        Self { state, sort, stored: entries }
    }

    pub(crate) fn len(&self) -> usize {
        self.stored.len()
    }

    /// The entries in the order of the sort, from an index on.
    pub(crate) fn from(&self, index: usize) -> impl Iterator<Item = &Entry> {
        let (forward, backward) = if self.sort.is_descending() {
            let end = self.stored.len().saturating_sub(index);
            (&[][..], self.stored.get(..end).unwrap_or_default())
        } else {
            (self.stored.get(index..).unwrap_or_default(), &[][..])
        };
        forward.iter().chain(backward.iter().rev())
    }

    /// The indexes of some emails. Linear in the length of the result; an email that is not in it is left out.
    pub(crate) fn indexes_of(&self, ids: &HashSet<u64>) -> Vec<(usize, u64)> {
        let mut found = Vec::with_capacity(ids.len());
        for (index, entry) in self.from(0).enumerate() {
            if found.len() == ids.len() {
                break;
            }
            if ids.contains(&entry.id) {
                found.push((index, entry.id));
            }
        }
        found
    }

    /// The index of an entry of which the keys are known; `None` when the result has no such entry.
    pub(crate) fn index_of(&self, entry: &Entry) -> Option<usize> {
        let place = self.search(entry).ok()?;
        Some(if self.sort.is_descending() { self.stored.len() - 1 - place } else { place })
    }

    fn search(&self, entry: &Entry) -> Result<usize, usize> {
        let is_reversed = self.sort.is_descending();
        self.stored.binary_search_by(|stored| stored_order(&self.sort, is_reversed, stored, entry))
    }

    /// Brings emails that changed up to date.
    pub(crate) fn apply(&mut self, updates: Vec<Update>, state: Revision) {
        if updates.len() <= SINGLE_UPDATES_MAX && !self.sort.is_mutable() {
            self.apply_singly(updates);
        } else {
            self.apply_together(updates);
        }
        self.state = state;
    }

    /// The keys of an email never change here, so that they say where it is.
    fn apply_singly(&mut self, updates: Vec<Update>) {
        let mut gone = HashSet::new();
        for update in updates {
            match update {
                Update::In(entry) => {
                    if let Err(place) = self.search(&entry) {
                        self.stored.insert(place, entry);
                    }
                }
                Update::Out(entry) => {
                    if let Ok(place) = self.search(&entry) {
                        self.stored.remove(place);
                    }
                }
                Update::Gone(id) => {
                    gone.insert(id);
                }
            }
        }
        if !gone.is_empty() {
            self.stored.retain(|entry| !gone.contains(&entry.id));
        }
    }

    fn apply_together(&mut self, updates: Vec<Update>) {
        let changed: HashSet<u64> = updates.iter().map(Update::id).collect();
        self.stored.retain(|entry| !changed.contains(&entry.id));
        for update in updates {
            if let Update::In(entry) = update {
                self.stored.push(entry);
            }
        }
        let is_reversed = self.sort.is_descending();
        // The stable sort is fast on what is in order but for its end.
        self.stored.sort_by(|left, right| stored_order(&self.sort, is_reversed, left, right));
        self.stored.dedup_by_key(|entry| entry.id);
    }

    /// The memory that it takes, about.
    fn bytes(&self) -> usize {
        let texts: usize = self.stored.iter().map(|entry| heap_bytes(&entry.keys)).sum();
        self.stored.capacity() * mem::size_of::<Entry>() + texts + mem::size_of::<Self>()
    }
}

fn stored_order(sort: &Sort, is_reversed: bool, left: &Entry, right: &Entry) -> Ordering {
    let order = sort.compare((&left.keys, left.id), (&right.keys, right.id));
    if is_reversed { order.reverse() } else { order }
}

fn heap_bytes(keys: &Keys) -> usize {
    let Keys::Many(keys) = keys else { return 0 };
    let text = |key: &Key| if let Key::Text(text) = key { text.len() } else { 0 };
    keys.len() * mem::size_of::<Key>() + keys.iter().map(text).sum::<usize>()
}

/// What a result is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ViewKey {
    pub(crate) account: AccountId,
    /// A hash of the filter, the sort, and whether threads are in the entries.
    pub(crate) digest: [u8; 32],
}

/// How queries are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// By a walk in an index.
    Walked,
    /// By the newest hits of the search index.
    Searched,
    /// By a result that was kept, and is current.
    Current,
    /// By a result that was kept, and was brought up to date.
    Updated,
    /// By a result that was made.
    Made,
}

impl Answered {
    fn as_str(self) -> &'static str {
        match self {
            Self::Walked => "walked",
            Self::Searched => "searched",
            Self::Current => "current",
            Self::Updated => "updated",
            Self::Made => "made",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnsweredLabels {
    by: &'static str,
}

/// How queries are answered, and the memory of kept results. Cloning shares the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryMetrics {
    answers: Family<AnsweredLabels, Counter>,
    bytes: Gauge,
}

impl QueryMetrics {
    /// Adds them to a registry.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "email_queries",
            "Answers to Email/query by what they came from",
            self.answers.clone(),
        );
        registry.register(
            "email_query_results_bytes",
            "Memory of kept results of Email/query",
            self.bytes.clone(),
        );
    }
}

/// The results that are kept, for all accounts: [`ACCOUNT_VIEWS_MAX`] for one account, a number of bytes for all. Those that were
/// not used for the longest time go first.
#[derive(Debug)]
pub(crate) struct Views {
    bytes_max: usize,
    kept: Mutex<ViewTable>,
    metrics: QueryMetrics,
}

#[derive(Debug, Default)]
struct ViewTable {
    slots: HashMap<ViewKey, Slot>,
    bytes: usize,
    /// Rises with each use.
    uses: u64,
}

#[derive(Debug)]
struct Slot {
    cell: Arc<Cell>,
    bytes: usize,
    used: u64,
}

/// One result, perhaps not made yet.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    /// Held by the request that makes the result or brings it up to date: others wait for it.
    pub(crate) maker: tokio::sync::Mutex<()>,
    pub(crate) view: Mutex<Option<View>>,
    /// How often it would have been of use.
    misses: AtomicU32,
}

impl Cell {
    /// Whether there is a result, or it would have been of use so often before that it is worth being made.
    pub(crate) fn is_worth_it(&self, misses_min: u32) -> bool {
        self.view.lock().is_some() || self.misses.fetch_add(1, atomic::Ordering::Relaxed) >= misses_min
    }
}

impl Views {
    /// Keeps so many bytes at most. What a single request needs is made also when it is larger, and not kept then.
    pub(crate) fn new(bytes_max: usize, metrics: QueryMetrics) -> Self {
        Self { bytes_max, kept: Mutex::default(), metrics }
    }

    /// Counts an answer.
    pub(crate) fn count(&self, by: Answered) {
        self.metrics.answers.get_or_create(&AnsweredLabels { by: by.as_str() }).inc();
    }

    /// The cell of a key.
    pub(crate) fn cell(&self, key: ViewKey) -> Arc<Cell> {
        let mut kept = self.kept.lock();
        kept.uses += 1;
        let used = kept.uses;
        if let Some(slot) = kept.slots.get_mut(&key) {
            slot.used = used;
            return slot.cell.clone();
        }
        kept.make_room(key.account);
        let cell = Arc::<Cell>::default();
        kept.slots.insert(key, Slot { cell: cell.clone(), bytes: 0, used });
        cell
    }

    /// Counts the memory of a result that was made or brought up to date, and drops others, or this one, if all take too much.
    pub(crate) fn weigh(&self, key: ViewKey, cell: &Arc<Cell>) {
        let bytes = cell.view.lock().as_ref().map_or(0, View::bytes);
        let mut kept = self.kept.lock();
        let Some(slot) = kept.slots.get_mut(&key).filter(|slot| Arc::ptr_eq(&slot.cell, cell)) else {
            return;
        };
        let before = mem::replace(&mut slot.bytes, bytes);
        kept.bytes = kept.bytes.saturating_sub(before).saturating_add(bytes);
        if bytes > self.bytes_max {
            kept.remove(&key);
        }
        while kept.bytes > self.bytes_max {
            let Some(oldest) = kept.oldest(|_, slot| slot.bytes > 0) else { break };
            kept.remove(&oldest);
        }
        self.metrics.bytes.set(i64::try_from(kept.bytes).unwrap_or(i64::MAX));
    }
}

impl ViewTable {
    /// Drops the cells that would be too many with one more of an account.
    fn make_room(&mut self, account: AccountId) {
        let of_account = self.slots.keys().filter(|key| key.account == account).count();
        if of_account >= ACCOUNT_VIEWS_MAX
            && let Some(oldest) = self.oldest(|key, _| key.account == account)
        {
            self.remove(&oldest);
        }
        if self.slots.len() >= VIEWS_MAX
            && let Some(oldest) = self.oldest(|_, _| true)
        {
            self.remove(&oldest);
        }
    }

    fn oldest(&self, is_candidate: impl Fn(&ViewKey, &Slot) -> bool) -> Option<ViewKey> {
        let candidates = self.slots.iter().filter(|(key, slot)| is_candidate(key, slot));
        candidates.min_by_key(|(_, slot)| slot.used).map(|(key, _)| *key)
    }

    fn remove(&mut self, key: &ViewKey) {
        if let Some(slot) = self.slots.remove(key) {
            self.bytes = self.bytes.saturating_sub(slot.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(received: i64, id: u64) -> Entry {
        Entry { keys: Keys::One(received), id, thread: 0 }
    }

    fn view(sort: serde_json::Value, entries: &[(i64, u64)]) -> View {
        let entries = entries.iter().map(|(received, id)| entry(*received, *id)).collect();
        View::new(Revision(1), Arc::new(Sort::parse(&sort).unwrap()), entries)
    }

    fn ids(view: &View) -> Vec<u64> {
        view.from(0).map(|entry| entry.id).collect()
    }

    #[test]
    fn a_view_is_read_in_its_order_from_any_index() {
        let newest = view(json!(null), &[(5, 1), (7, 2), (5, 3)]);
        assert_eq!(ids(&newest), [2, 3, 1]);
        assert_eq!(newest.from(1).map(|entry| entry.id).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(newest.from(4).count(), 0);
        assert_eq!(newest.index_of(&entry(5, 1)), Some(2));
        assert_eq!(newest.index_of(&entry(5, 2)), None);
        let oldest = view(json!([{"property": "receivedAt"}]), &[(5, 1), (7, 2), (5, 3)]);
        assert_eq!(ids(&oldest), [1, 3, 2]);
        assert_eq!(oldest.index_of(&entry(7, 2)), Some(2));
        assert_eq!(oldest.indexes_of(&[3, 2, 9].into()), [(1, 3), (2, 2)]);
    }

    #[test]
    fn updates_add_keep_and_remove_few_or_many_at_once() {
        for padding in [0, 2 * SINGLE_UPDATES_MAX as u64] {
            let mut view = view(json!(null), &[(5, 1), (7, 2), (5, 3), (1, 4)]);
            let mut updates = vec![
                Update::In(entry(5, 1)),
                Update::In(entry(6, 5)),
                Update::Out(entry(7, 2)),
                Update::Out(entry(7, 20)),
                Update::Gone(4),
            ];
            updates.extend((0..padding).map(|n| Update::Gone(1_000 + n)));
            view.apply(updates, Revision(2));
            assert_eq!(ids(&view), [5, 3, 1]);
            assert_eq!(view.state, Revision(2));
        }
    }

    #[test]
    fn views_are_bounded_for_each_account_and_in_bytes() {
        let views = Views::new(9_000, QueryMetrics::default());
        let key = |account: u32, n: u8| ViewKey { account: AccountId(account), digest: [n; 32] };
        let first = views.cell(key(1, 0));
        assert!(Arc::ptr_eq(&first, &views.cell(key(1, 0))));
        let fill = |key: ViewKey, count: i64| {
            let cell = views.cell(key);
            let entries: Vec<(i64, u64)> = (0..count).map(|n| (n, n as u64)).collect();
            *cell.view.lock() = Some(view(json!(null), &entries));
            views.weigh(key, &cell);
        };
        let is_kept = |key: ViewKey| views.kept.lock().slots.contains_key(&key);
        fill(key(1, 0), 100);
        fill(key(2, 0), 100);
        fill(key(3, 0), 100);
        assert!(!is_kept(key(1, 0)), "the one that was not used for the longest time goes");
        assert!(is_kept(key(2, 0)) && is_kept(key(3, 0)));
        fill(key(4, 0), 10_000);
        assert!(!is_kept(key(4, 0)), "what is too large alone is not kept");
        assert!(is_kept(key(3, 0)));
        for n in 0..=ACCOUNT_VIEWS_MAX as u8 {
            views.cell(key(3, 100 + n));
        }
        assert!(!is_kept(key(3, 0)));
        assert!(is_kept(key(2, 0)), "another account keeps its own");
        let of_account = views.kept.lock().slots.keys().filter(|key| key.account == AccountId(3)).count();
        assert_eq!(of_account, ACCOUNT_VIEWS_MAX);
    }
}
