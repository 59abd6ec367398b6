//! Cached results of queries: the ids of all emails that pass a filter, in the order of a sort.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::{
        Arc,
        atomic::{self, AtomicU64},
    },
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use restante_core::{AccountId, Revision};
use tokio::time::Instant;

use super::{
    list::{Entry, EntryList},
    result::Evaluated,
    sort::Sort,
};

/// The most results that are cached for one account.
const ACCOUNT_VIEWS_MAX: usize = 64;

/// The most results that are cached for all accounts.
const VIEWS_MAX: usize = 4_096;

/// How an email that changed appears in a result after the change.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    /// It is in the result.
    In(Entry),
    /// It exists, but is not in the result.
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

/// The emails of a result for a state of the account's emails, in the order of a sort.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// It is complete up to here. Single emails may have later changes already.
    pub(crate) state: Revision,
    /// The revision of the search index, if it lacks emails that may therefore be missing here.
    pub(crate) partial_at: Option<Revision>,
    made: Instant,
    sort: Arc<Sort>,
    entries: EntryList,
}

impl View {
    /// The result for all emails that pass; where threads are collapsed, it has the first email of each thread (EQ4).
    pub(crate) fn new(state: Revision, sort: Arc<Sort>, mut passed: Vec<Evaluated>, collapse: bool) -> Self {
        passed.sort_unstable_by(|left, right| sort.order(&left.entry, &right.entry));
        passed.dedup_by_key(|email| email.entry.id);
        if collapse {
            let mut threads = HashSet::new();
            passed.retain(|email| threads.insert(email.thread));
        }
        let entries = EntryList::from_sorted(passed.into_iter().map(|email| email.entry).collect());
        Self { state, partial_at: None, made: Instant::now(), sort, entries }
    }

    /// How long ago it was made.
    pub(crate) fn age(&self) -> Duration {
        self.made.elapsed()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entries in the order of the sort, starting at an index.
    pub(crate) fn from(&self, index: usize) -> impl Iterator<Item = &Entry> {
        self.entries.from(index)
    }

    /// The indexes of some emails. At worst linear in the length of the result; an email that is not in the result is left out.
    pub(crate) fn indexes_of(&self, ids: &HashSet<u64>) -> Vec<(usize, u64)> {
        self.entries.indexes_of(ids)
    }

    /// The index of an entry whose keys are known; `None` when the result has no such entry.
    pub(crate) fn index_of(&self, entry: &Entry) -> Option<usize> {
        self.entries.index_of(|known| self.sort.order(known, entry))
    }

    /// Updates the result for emails that changed; each of them occurs once in the updates.
    pub(crate) fn apply(&mut self, updates: Vec<Update>, state: Revision) {
        // If the keys never change, they locate an email; otherwise its id does.
        let is_mutable = self.sort.is_mutable();
        let by_id = updates.iter().filter(|update| is_mutable || matches!(update, Update::Gone(_)));
        let by_id: HashSet<u64> = by_id.map(Update::id).collect();
        if !by_id.is_empty() {
            self.entries.remove_ids(&by_id);
        }
        for update in updates {
            match update {
                Update::In(entry) => {
                    let place = entry.clone();
                    self.entries.insert(entry, |known| self.sort.order(known, &place));
                }
                Update::Out(entry) => self.entries.remove(|known| self.sort.order(known, &entry)),
                Update::Gone(_) => {}
            }
        }
        self.state = state;
    }

    /// The approximate memory of the result.
    fn bytes(&self) -> usize {
        self.entries.bytes() + mem::size_of::<Self>()
    }
}

/// The key of a cached result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ViewKey {
    pub(crate) account: AccountId,
    /// A hash of the filter, the sort, and whether threads are collapsed.
    pub(crate) digest: [u8; 32],
}

/// How queries are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// By walking an index.
    Walked,
    /// By the newest hits of the search index.
    Searched,
    /// By a cached result that was up to date.
    Current,
    /// By a cached result that was updated first.
    Updated,
    /// By a result that was built.
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

/// How queries are answered, and the memory of cached results. Clones share the counts.
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

/// The cached results of all accounts: at most [`ACCOUNT_VIEWS_MAX`] for one account, and a number of bytes for all. The least recently
/// used are dropped first.
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
    /// Increases with each use.
    uses: u64,
}

#[derive(Debug)]
struct Slot {
    cell: Arc<Cell>,
    bytes: usize,
    used: u64,
}

/// One result, which may not be built yet.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    /// Held by the request that builds or updates the result; others wait for it.
    pub(crate) maker: tokio::sync::Mutex<()>,
    pub(crate) view: Mutex<Option<View>>,
    /// The index entries that were walked over although a cached result would have avoided the walk.
    walked: AtomicU64,
}

impl Cell {
    /// Counts a walk over this many entries; returns the total of all walks.
    pub(crate) fn add_walk(&self, entries: u64) -> u64 {
        self.walked.fetch_add(entries, atomic::Ordering::Relaxed).saturating_add(entries)
    }
}

impl Views {
    /// A cache of at most this many bytes. A result that is larger is built for its request, but not cached.
    pub(crate) fn new(bytes_max: usize, metrics: QueryMetrics) -> Self {
        Self { bytes_max, kept: Mutex::default(), metrics }
    }

    /// Counts an answered query.
    pub(crate) fn count(&self, by: Answered) {
        self.metrics.answers.get_or_create(&AnsweredLabels { by: by.as_str() }).inc();
    }

    /// Whether there is a result for a key.
    pub(crate) fn is_kept(&self, key: &ViewKey) -> bool {
        let cell = self.kept.lock().slots.get(key).map(|slot| slot.cell.clone());
        cell.is_some_and(|cell| cell.view.lock().is_some())
    }

    /// The cell for a key.
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

    /// Counts the memory of a result that was built or updated, and drops others, or this one, if all together need too much.
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
    /// Drops cells so that one more fits, for the account and in total.
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

    use super::{super::sort::Keys, *};

    fn entry(received: i64, id: u64) -> Entry {
        Entry { keys: Keys::One(received), id }
    }

    fn view(sort: serde_json::Value, entries: &[(i64, u64)], collapse: bool) -> View {
        // Emails whose ids have the same last digit are in one thread.
        let email = |(received, id): &(i64, u64)| Evaluated { entry: entry(*received, *id), thread: id % 10 };
        let emails = entries.iter().map(email).collect();
        View::new(Revision(1), Arc::new(Sort::parse(&sort).unwrap()), emails, collapse)
    }

    fn ids(view: &View) -> Vec<u64> {
        view.from(0).map(|entry| entry.id).collect()
    }

    #[test]
    fn a_view_is_read_in_its_order_from_any_index() {
        let newest = view(json!(null), &[(5, 1), (7, 2), (5, 3)], false);
        assert_eq!(ids(&newest), [2, 3, 1]);
        assert_eq!(newest.from(1).map(|entry| entry.id).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(newest.from(4).count(), 0);
        assert_eq!(newest.index_of(&entry(5, 1)), Some(2));
        assert_eq!(newest.index_of(&entry(5, 2)), None);
        let oldest = view(json!([{"property": "receivedAt"}]), &[(5, 1), (7, 2), (5, 3)], false);
        assert_eq!(ids(&oldest), [1, 3, 2]);
        assert_eq!(oldest.index_of(&entry(7, 2)), Some(2));
        assert_eq!(oldest.indexes_of(&[3, 2, 9].into()), [(1, 3), (2, 2)]);
    }

    #[test]
    fn eq4_a_collapsed_view_has_the_first_email_of_each_thread() {
        let emails = [(5, 1), (7, 2), (6, 11), (9, 3), (8, 12)];
        assert_eq!(ids(&view(json!(null), &emails, true)), [3, 12, 11]);
        assert_eq!(ids(&view(json!([{"property": "receivedAt"}]), &emails, true)), [1, 2, 3]);
    }

    #[test]
    fn updates_add_keep_and_remove() {
        // The second sorts by a property that can change.
        let flagged = json!([{"property": "hasKeyword", "keyword": "$flagged"}, {"property": "receivedAt"}]);
        for sort in [json!(null), flagged] {
            let mut view = view(sort, &[(5, 1), (7, 2), (5, 3), (1, 4)], false);
            let updates = vec![
                Update::In(entry(5, 1)),
                Update::In(entry(6, 5)),
                Update::Out(entry(7, 2)),
                Update::Out(entry(7, 20)),
                Update::Gone(4),
                Update::Gone(1_000),
            ];
            view.apply(updates, Revision(2));
            let mut found = ids(&view);
            found.sort_unstable();
            assert_eq!((found, view.state), (vec![1, 3, 5], Revision(2)));
        }
    }

    #[test]
    fn views_are_bounded_for_each_account_and_in_bytes() {
        let views = Views::new(6_000, QueryMetrics::default());
        let key = |account: u32, n: u8| ViewKey { account: AccountId(account), digest: [n; 32] };
        let first = views.cell(key(1, 0));
        assert!(Arc::ptr_eq(&first, &views.cell(key(1, 0))));
        let fill = |key: ViewKey, count: i64| {
            let cell = views.cell(key);
            let entries: Vec<(i64, u64)> = (0..count).map(|n| (n, n as u64)).collect();
            *cell.view.lock() = Some(view(json!(null), &entries, false));
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
