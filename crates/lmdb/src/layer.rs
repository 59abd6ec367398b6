//! Rows that are in the commit log and not yet in LMDB, in memory and in order.
//!
//! A layer is a skip list for each table, over the bytes of the batches. One thread adds, any number read, and nobody waits
//! for anybody: a node is complete before a link leads to it, and after that nothing of it changes but its links. Nodes stay
//! where they are until the whole layer goes, so a batch costs one allocation, however many rows it has.

use std::{
    cmp::Ordering::{self, Equal, Less},
    collections::hash_map::RandomState,
    hash::BuildHasher,
    ops::Bound,
    sync::{
        OnceLock,
        atomic::{
            AtomicU32, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use foldhash::fast::FixedState;
use parking_lot::Mutex;

use crate::{
    arena::{Arena, PLACES},
    frame::{self, FrameRow},
};

/// A batch of rows has one number, and batches are numbered in the order in which they were written.
pub(crate) type Sequence = u64;

/// The most rows of a layer that is written to. Two of them fit into the one that a store is opened with after a crash.
pub(crate) const ROWS_MAX: usize = PLACES / 2 - TABLES;

/// Tables are numbered by a byte.
const TABLES: usize = 256;

/// A link that leads nowhere.
const NIL: u32 = 0;

/// Levels of links. A node reaches each level with a quarter of those that reach the one below: enough for 16 million rows.
const LEVELS: usize = 12;

/// Levels whose links lie in the node itself: one node of 16,384 has more.
const LEVELS_INLINE: usize = 7;

/// Everything that was written into one file of the commit log.
pub(crate) struct Layer {
    /// Where the list of each table begins; NIL before its first row.
    heads: Box<[AtomicU32]>,
    nodes: Arena<Node>,
    /// Links of the levels that nodes have no room for.
    tall: Arena<AtomicU32>,
    /// The rows of each batch, as they stand in its frame.
    batches: Arena<OnceLock<Box<[u8]>>>,
    rows: AtomicUsize,
    filter: Filter,
    adding: Mutex<Adding>,
}

/// A row's place in its list, in one cache line.
#[derive(Default)]
#[repr(align(64))]
struct Node {
    /// The two halves of what a [`Probe`] begins with.
    begin: [AtomicU64; 2],
    sequence: AtomicU64,
    batch: AtomicU32,
    /// Where the row begins within the rows of its batch.
    row: AtomicU32,
    /// Where its links are that it has no room for.
    tall: AtomicU32,
    links: [AtomicU32; LEVELS_INLINE],
}

/// Where a row stands: the number of its batch in the layer, and the place where it begins there.
#[derive(Clone, Copy)]
struct Place {
    batch: u32,
    row: u32,
}

/// What only who adds rows must know.
struct Adding {
    nodes: u32,
    tall: u32,
    batches: u32,
    random: u64,
    fingers: Box<[Finger]>,
}

/// Most rows were written once or twice. Of one with more versions than these the newest is searched for.
const VERSIONS_WALKED: usize = 4;

/// Where the last row went whose table and first bytes are these. The next one mostly goes right behind it.
#[derive(Clone, Copy)]
struct Finger {
    table: u8,
    begin: [u8; FINGER_BYTES],
    /// The last nodes up to that row, on each level.
    path: Path,
}

/// Bytes of a key by which fingers are told apart: what belongs to one account and one index has them in common.
const FINGER_BYTES: usize = 4;

/// How many places are remembered.
const FINGERS: usize = 512;

/// The last nodes before some place in a list, on each level.
type Path = [u32; LEVELS];

impl Adding {
    fn new() -> Self {
        let nowhere = Finger { table: 0, begin: [0; FINGER_BYTES], path: [NIL; LEVELS] };
        // Another one in each layer: whoever knew how tall nodes are could line short ones up.
        let random = RandomState::new().hash_one(0) | 1;
        Self { nodes: NIL + 1, tall: 0, batches: 0, random, fingers: vec![nowhere; FINGERS].into() }
    }

    /// The finger that a key has, or will have. It may be another key's.
    fn finger(&mut self, table: u8, begin: [u8; FINGER_BYTES]) -> Option<&mut Finger> {
        let hash = FixedState::with_seed(u64::from(table)).hash_one(u32::from_ne_bytes(begin));
        self.fingers.get_mut(hash as usize % FINGERS)
    }
}

/// A key and a sequence that are looked for. Of two rows with the same key the older one comes first.
struct Probe<'k> {
    /// The first 15 bytes of the key, and its length: most keys are told apart by that alone.
    begin: u128,
    key: &'k [u8],
    sequence: Sequence,
}

/// Bytes of a key that a [`Probe`] begins with.
const BEGIN_BYTES: usize = 15;

impl<'k> Probe<'k> {
    /// What comes after the version of a key that a batch wrote; no batch has the last number.
    fn after(key: &'k [u8], sequence: Sequence) -> Self {
        Self::new(key, sequence.saturating_add(1))
    }

    fn finger(&self) -> [u8; FINGER_BYTES] {
        ((self.begin >> (8 * (BEGIN_BYTES + 1 - FINGER_BYTES))) as u32).to_be_bytes()
    }

    fn new(key: &'k [u8], sequence: Sequence) -> Self {
        let mut begin = [0; BEGIN_BYTES + 1];
        for (place, byte) in begin.iter_mut().zip(key.iter().take(BEGIN_BYTES)) {
            *place = *byte;
        }
        if let Some(len) = begin.last_mut() {
            *len = key.len().min(BEGIN_BYTES + 1) as u8; // a shorter key comes first, as bytes are compared
        }
        Self { begin: u128::from_be_bytes(begin), key, sequence }
    }
}

impl Node {
    fn set(&self, probe: &Probe<'_>, place: Place) {
        let [high, low] = &self.begin;
        high.store((probe.begin >> 64) as u64, Relaxed);
        low.store(probe.begin as u64, Relaxed);
        self.sequence.store(probe.sequence, Relaxed);
        self.batch.store(place.batch, Relaxed);
        self.row.store(place.row, Relaxed);
    }

    fn begin(&self) -> u128 {
        let [high, low] = &self.begin;
        u128::from(high.load(Relaxed)) << 64 | u128::from(low.load(Relaxed))
    }
}

/// A row of a layer.
#[derive(Clone)]
pub(crate) struct LayerRow<'l> {
    pub(crate) table: u8,
    pub(crate) key: &'l [u8],
    /// `None` when it was deleted.
    pub(crate) value: Option<&'l [u8]>,
    sequence: Sequence,
    number: u32,
}

impl Layer {
    /// An empty layer for about so many bytes of rows.
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            heads: (0..TABLES).map(|_| AtomicU32::new(NIL)).collect(),
            nodes: Arena::new(),
            tall: Arena::new(),
            batches: Arena::new(),
            rows: AtomicUsize::new(0),
            filter: Filter::new(bytes),
            adding: Mutex::new(Adding::new()),
        }
    }

    /// How many rows were added. A row that was written twice counts twice.
    pub(crate) fn rows(&self) -> usize {
        self.rows.load(Relaxed)
    }

    /// Adds the rows of a batch, as they stand in its frame. Of several rows with one key the last holds. There must be
    /// place for them, see [`ROWS_MAX`].
    pub(crate) fn add(&self, sequence: Sequence, rows: Box<[u8]>) {
        let adding = &mut *self.adding.lock();
        let number = adding.batches;
        adding.batches += 1;
        let Some(batch) = self.batches.make(number) else { return };
        let rows = batch.get_or_init(|| rows);
        let (mut rest, mut added) = (&**rows, 0);
        loop {
            let row_at = (rows.len() - rest.len()) as u32;
            let Some(Some(row)) = frame::take_row(&mut rest) else { break };
            self.filter.add(row.table, row.key);
            let place = Place { batch: number, row: row_at };
            added += usize::from(self.insert(adding, row.table, &Probe::new(row.key, sequence), place));
        }
        self.rows.fetch_add(added, Relaxed);
    }

    /// Whether there is a node more than before.
    fn insert(&self, adding: &mut Adding, table: u8, probe: &Probe<'_>, place: Place) -> bool {
        let levels = levels(&mut adding.random);
        let Some(before) = self.search_to_insert(adding, table, probe, levels) else { return false };
        let next = before.first().map_or(NIL, |before| self.next(*before, 0));
        if next != NIL && self.compare(next, probe) == Equal {
            self.nodes.get(next).inspect(|node| node.row.store(place.row, Relaxed));
            return false; // of the same batch, which nobody sees yet
        }
        let Some((number, node)) = self.make_node(adding, levels) else { return false };
        node.set(probe, place);
        for (level, before) in before.iter().enumerate().take(levels) {
            let next = self.next(*before, level);
            self.link(number, level).inspect(|link| link.store(next, Relaxed));
        }
        // From the lowest level on, so that what is found on a level can be found below it.
        let mut path = before;
        for (level, before) in path.iter_mut().enumerate().take(levels) {
            self.link(*before, level).inspect(|link| link.store(number, Release));
            *before = number;
        }
        if let Some(finger) = adding.finger(table, probe.finger()) {
            *finger = Finger { table, begin: probe.finger(), path };
        }
        true
    }

    /// The last nodes before a probe, at least on so many levels.
    fn search_to_insert(
        &self,
        adding: &mut Adding,
        table: u8,
        probe: &Probe<'_>,
        levels: usize,
    ) -> Option<Path> {
        let begin = probe.finger();
        let path =
            adding.finger(table, begin).filter(|finger| finger.table == table && finger.begin == begin);
        let path = path.map(|finger| finger.path).filter(|path| {
            path.first().is_some_and(|last| *last != NIL && self.compare(*last, probe) == Less)
        });
        match path {
            Some(path) => Some(self.search_from(path, probe, levels)),
            None => Some(self.search(self.head_or_make(adding, table)?, probe)),
        }
    }

    fn head_or_make(&self, adding: &mut Adding, table: u8) -> Option<u32> {
        let place = self.heads.get(usize::from(table))?;
        let mut head = place.load(Relaxed);
        if head == NIL {
            (head, _) = self.make_node(adding, LEVELS)?;
            place.store(head, Release);
        }
        Some(head)
    }

    fn make_node(&self, adding: &mut Adding, levels: usize) -> Option<(u32, &Node)> {
        let number = adding.nodes;
        let node = self.nodes.make(number)?;
        adding.nodes += 1;
        if levels > LEVELS_INLINE {
            node.tall.store(adding.tall, Relaxed);
            for _ in LEVELS_INLINE..levels {
                self.tall.make(adding.tall)?;
                adding.tall += 1;
            }
        }
        Some((number, node))
    }

    fn link(&self, node: u32, level: usize) -> Option<&AtomicU32> {
        let node = self.nodes.get(node)?;
        match level.checked_sub(LEVELS_INLINE) {
            None => node.links.get(level),
            Some(above) => self.tall.get(node.tall.load(Relaxed) + above as u32),
        }
    }

    fn next(&self, node: u32, level: usize) -> u32 {
        self.link(node, level).map_or(NIL, |link| link.load(Acquire))
    }

    /// The last nodes before a probe, on each level; the head where there is none.
    fn search(&self, head: u32, probe: &Probe<'_>) -> Path {
        self.descend([head; LEVELS], LEVELS, probe)
    }

    /// The same from nodes that are before the probe: from the lowest level that leads past it, and at least on so many
    /// levels as are asked for.
    fn search_from(&self, path: Path, probe: &Probe<'_>, levels: usize) -> Path {
        let leads_past = |(level, at): (usize, &u32)| !self.is_before(self.next(*at, level), probe);
        let top = path.iter().enumerate().position(leads_past).map_or(LEVELS, |level| level + 1);
        self.descend(path, top.max(levels), probe)
    }

    /// Goes on to the last nodes before a probe, from level to level down.
    fn descend(&self, mut path: Path, levels: usize, probe: &Probe<'_>) -> Path {
        let (mut moved, mut beyond) = (None, NIL);
        for (level, before) in path.iter_mut().enumerate().take(levels).rev() {
            let begun = moved.unwrap_or(*before);
            let mut at = begun;
            loop {
                let next = self.next(at, level);
                // What was not before the probe on the level above is not on this one.
                if next == beyond || !self.is_before(next, probe) {
                    beyond = next;
                    break;
                }
                at = next;
            }
            moved = moved.or((at != begun).then_some(at)).map(|_| at);
            *before = at;
        }
        path
    }

    fn is_before(&self, node: u32, probe: &Probe<'_>) -> bool {
        node != NIL && self.compare(node, probe) == Less
    }

    /// How a node stands to a probe.
    fn compare(&self, node: u32, probe: &Probe<'_>) -> Ordering {
        let Some(node) = self.nodes.get(node) else { return Less };
        let by_key = node.begin().cmp(&probe.begin).then_with(|| {
            let is_told = probe.key.len() <= BEGIN_BYTES;
            if is_told { Equal } else { self.row_of(node).map_or(Less, |row| row.key.cmp(probe.key)) }
        });
        by_key.then_with(|| node.sequence.load(Relaxed).cmp(&probe.sequence))
    }

    fn row_of(&self, node: &Node) -> Option<FrameRow<'_>> {
        let batch = self.batches.get(node.batch.load(Relaxed))?.get()?;
        let mut rows = batch.get(node.row.load(Relaxed) as usize..)?;
        frame::take_row(&mut rows)?
    }

    fn row(&self, number: u32) -> Option<LayerRow<'_>> {
        let node = self.nodes.get(number).filter(|_| number != NIL)?;
        let FrameRow { table, key, value } = self.row_of(node)?;
        Some(LayerRow { table, key, value, sequence: node.sequence.load(Relaxed), number })
    }

    /// The last node of a table before a probe, or the list's head; `None` for a list without nodes.
    fn before(&self, table: u8, probe: &Probe<'_>) -> Option<u32> {
        let path = self.search(self.head(table)?, probe);
        path.first().copied()
    }

    fn head(&self, table: u8) -> Option<u32> {
        let head = self.heads.get(usize::from(table))?.load(Acquire);
        (head != NIL).then_some(head)
    }

    /// The newest version of a key up to a batch.
    pub(crate) fn get(&self, table: u8, key: &[u8], until: Sequence) -> Option<LayerRow<'_>> {
        if !self.filter.may_have(table, key) {
            return None;
        }
        self.find(table, key, until)
    }

    fn find(&self, table: u8, key: &[u8], until: Sequence) -> Option<LayerRow<'_>> {
        let head = self.head(table)?;
        let before = self.before(table, &Probe::after(key, until)).filter(|node| *node != head)?;
        self.row(before).filter(|row| row.key == key)
    }

    /// The first key at or after a bound, in its newest version up to a batch.
    pub(crate) fn at_or_after(&self, table: u8, from: Bound<&[u8]>, until: Sequence) -> Option<LayerRow<'_>> {
        let before = match from {
            Bound::Included(key) => self.before(table, &Probe::new(key, 0)),
            Bound::Excluded(key) => self.before(table, &Probe::after(key, Sequence::MAX)),
            Bound::Unbounded => self.head(table),
        }?;
        self.newest_from(self.next(before, 0), until)
    }

    /// The key behind that of a row, in its newest version up to a batch.
    pub(crate) fn after(&self, row: &LayerRow<'_>, until: Sequence) -> Option<LayerRow<'_>> {
        self.newest_from(self.next_key(row)?, until)
    }

    /// The first key from its oldest version on, in its newest version up to a batch.
    fn newest_from(&self, mut oldest: u32, until: Sequence) -> Option<LayerRow<'_>> {
        loop {
            let mut newest = self.row(oldest)?;
            if newest.sequence > until {
                oldest = self.next_key(&newest)?;
                continue;
            }
            for _ in 0..VERSIONS_WALKED {
                match self.row(self.next(newest.number, 0)) {
                    Some(next) if next.key == newest.key && next.sequence <= until => newest = next,
                    _ => return Some(newest),
                }
            }
            return self.find(newest.table, newest.key, until);
        }
    }

    /// The oldest version of the key behind that of a row.
    fn next_key(&self, row: &LayerRow<'_>) -> Option<u32> {
        let mut at = row.number;
        for _ in 0..VERSIONS_WALKED {
            at = self.next(at, 0);
            if self.row(at)?.key != row.key {
                return Some(at);
            }
        }
        let last = self.before(row.table, &Probe::after(row.key, Sequence::MAX))?;
        Some(self.next(last, 0))
    }

    /// The last key at or before a bound, in its newest version up to a batch.
    pub(crate) fn at_or_before(&self, table: u8, to: Bound<&[u8]>, until: Sequence) -> Option<LayerRow<'_>> {
        let head = self.head(table)?;
        let mut at = match to {
            Bound::Included(key) => self.before(table, &Probe::after(key, Sequence::MAX)),
            Bound::Excluded(key) => self.before(table, &Probe::new(key, 0)),
            Bound::Unbounded => Some(self.last(head)),
        }?;
        while at != head {
            let found = self.row(at)?;
            if found.sequence <= until {
                return Some(found); // walking back, the newest version comes first
            }
            at = self.before(table, &Probe::new(found.key, found.sequence))?;
        }
        None
    }

    /// The last node of a list.
    fn last(&self, head: u32) -> u32 {
        let mut at = head;
        for level in (0..LEVELS).rev() {
            loop {
                match self.next(at, level) {
                    NIL => break,
                    next => at = next,
                }
            }
        }
        at
    }

    /// The newest version of each row, in order.
    pub(crate) fn newest(&self) -> impl Iterator<Item = LayerRow<'_>> {
        let heads = self.heads.iter().map(|head| head.load(Acquire)).filter(|head| *head != NIL);
        heads.flat_map(|head| {
            let first = self.row(self.next(head, 0));
            let mut rows = std::iter::successors(first, |row| self.row(self.next(row.number, 0))).peekable();
            std::iter::from_fn(move || {
                loop {
                    let row = rows.next()?;
                    if rows.peek().is_none_or(|next| next.key != row.key) {
                        return Some(row);
                    }
                }
            })
        })
    }
}

/// How many levels the next node reaches.
fn levels(random: &mut u64) -> usize {
    // Xorshift by Marsaglia (Journal of Statistical Software 8, 2003): neither speed nor order may depend on keys.
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    (random.leading_zeros() as usize / 2 + 1).min(LEVELS)
}

/// Tells quickly that a key is not in a layer, as most keys that are asked for: a Bloom filter whose two bits of a key lie in
/// one word, so that asking costs one cache miss.
struct Filter {
    words: Box<[AtomicU64]>,
}

/// Bytes of rows for each word of a filter. Rows take about 60 bytes: some eight for a word, eight bits for each.
const ROW_BYTES_PER_WORD: u64 = 512;

impl Filter {
    fn new(bytes: u64) -> Self {
        let words = (bytes / ROW_BYTES_PER_WORD).next_power_of_two().max(8);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    fn place(&self, table: u8, key: &[u8]) -> (Option<&AtomicU64>, u64) {
        let hash = FixedState::with_seed(u64::from(table)).hash_one(key);
        let word = (hash >> 12) as usize & (self.words.len() - 1);
        let bits = 1 << (hash & 63) | 1 << (hash >> 6 & 63);
        (self.words.get(word), bits)
    }

    fn add(&self, table: u8, key: &[u8]) {
        if let (Some(word), bits) = self.place(table, key) {
            word.fetch_or(bits, Relaxed);
        }
    }

    /// Relaxed is enough: a row that a reader must see was added before the sequence was published that it reads by.
    fn may_have(&self, table: u8, key: &[u8]) -> bool {
        let (word, bits) = self.place(table, key);
        word.is_none_or(|word| word.load(Relaxed) & bits == bits)
    }
}
