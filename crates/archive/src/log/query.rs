//! Answering a query: choose topics, visit segments in order, cut one page.

use restante_core::{Cursor, Key, MessageHash};

use super::{
    Shared,
    active::in_direction,
    merge::{Next, merge},
    segment::{Budget, Find, Found, Segment, Span},
};
use crate::{
    Direction, Error, Page, Part, Query, RowAt, page::key_at, query::KeyRange, record::Record,
    topics::Selection,
};

/// The cost of looking up a hash in a segment: about that of verifying this many bytes.
const LOOK_UP_BYTES: usize = 512;

/// One page of the messages that match. When the budget was exceeded, the answer is invalid.
pub(super) fn query(shared: &Shared, query: &Query, budget: &Budget) -> Result<Page, Error> {
    query.check_bounds()?;
    let selection = shared.dictionary.read().select(query);
    let segments = shared.segments();
    let cursor = place_of(query.cursor, &segments, budget)?;
    let range = query.range(cursor);
    let mut rows = Rows::default();
    if selection.is_empty() {
        return Ok(rows.into_page(query));
    }
    if query.hashes.is_empty() {
        let limit = query.limit + 1; // one more row shows whether more remain
        let find = Find { range, selection: &selection, direction: query.direction, limit, budget };
        for group in Groups::new(&segments, &range, query.direction) {
            let missing = limit - rows.at.len();
            rows.add_group(&group, &Find { limit: missing, ..find })?;
            if rows.at.len() >= limit {
                break;
            }
        }
    } else {
        let find =
            Find { range, selection: &selection, direction: query.direction, limit: query.limit + 1, budget };
        rows.add_hashes(shared, &segments, &query.hashes, &find)?;
    }
    Ok(rows.into_page(query))
}

/// The key of a cursor.
fn place_of(cursor: Option<Cursor>, segments: &[Segment], budget: &Budget) -> Result<Option<Key>, Error> {
    let hash = match cursor {
        None => return Ok(None),
        Some(Cursor::At(key)) => return Ok(Some(key)),
        Some(Cursor::Message(hash)) => hash,
    };
    for segment in segments.iter().rev() {
        if let Some(offset) = segment.find_hash(&hash, budget)?.first() {
            return Ok(key_at(&segment.part(), *offset));
        }
    }
    Err(Error::not_found(format!("cursor {hash} is not archived")))
}

/// The segments of a range in the direction of a query; those that overlap in time are in one group.
struct Groups<'a> {
    segments: std::iter::Peekable<std::vec::IntoIter<(Span, &'a Segment)>>,
}

impl<'a> Groups<'a> {
    fn new(segments: &'a [Segment], range: &KeyRange, direction: Direction) -> Self {
        let with_span = segments.iter().filter_map(|segment| Some((segment.span()?, segment)));
        let mut inside: Vec<_> = with_span.filter(|(span, _)| span.touches(range)).collect();
        match direction {
            Direction::Forward => inside.sort_by_key(|(span, _)| span.oldest),
            Direction::Backward => inside.sort_by_key(|(span, _)| std::cmp::Reverse(span.newest)),
        }
        Self { segments: inside.into_iter().peekable() }
    }
}

impl<'a> Iterator for Groups<'a> {
    type Item = Vec<&'a Segment>;

    fn next(&mut self) -> Option<Vec<&'a Segment>> {
        let (mut covered, first) = self.segments.next()?;
        let mut group = vec![first];
        while let Some((span, segment)) = self.segments.next_if(|(span, _)| covered.overlaps(span)) {
            covered.oldest = covered.oldest.min(span.oldest);
            covered.newest = covered.newest.max(span.newest);
            group.push(segment);
        }
        Some(group)
    }
}

/// Rows of an answer in the direction of the query.
#[derive(Default)]
struct Rows {
    parts: Vec<Part>,
    at: Vec<RowAt>,
}

impl Rows {
    /// Adds the rows of segments that overlap in time.
    fn add_group(&mut self, group: &[&Segment], find: &Find<'_>) -> Result<(), Error> {
        if let [segment] = group {
            let found = segment.find(find)?;
            if !found.offsets.is_empty() {
                let rows = self.add_part(found);
                self.at.extend(rows);
            }
            return Ok(());
        }
        let mut lists = Vec::with_capacity(group.len());
        for segment in group {
            let found = segment.find(find)?;
            if !found.offsets.is_empty() {
                lists.push(self.add_part(found));
            }
        }
        let end = self.at.len() + find.limit;
        let parts = &self.parts;
        let keyed = lists.into_iter().map(|list| {
            list.filter_map(|at| {
                let key = key_at(parts.get(at.part as usize)?, at.offset)?;
                Some((in_direction(key, find.direction), at))
            })
        });
        let merged = &mut self.at;
        merge(keyed.collect(), |at| {
            merged.push(at);
            if merged.len() < end { Next::More } else { Next::Enough }
        });
        Ok(())
    }

    /// Adds a part and returns its rows.
    fn add_part(&mut self, found: Found) -> impl Iterator<Item = RowAt> + use<> {
        let part =
            u32::try_from(self.parts.len()).expect("a page has fewer parts than an archive has segments");
        self.parts.push(found.part);
        found.offsets.into_iter().map(move |offset| RowAt { part, offset })
    }

    /// Adds the rows with the wanted hashes that match everything else.
    fn add_hashes(
        &mut self,
        shared: &Shared,
        segments: &[Segment],
        hashes: &[MessageHash],
        find: &Find<'_>,
    ) -> Result<(), Error> {
        let mut hashes = hashes.to_vec();
        hashes.sort_unstable();
        hashes.dedup();
        let mut keyed = Vec::new();
        for segment in
            segments.iter().filter(|segment| segment.span().is_some_and(|span| span.touches(&find.range)))
        {
            let mut offsets = Vec::new();
            if !find.budget.spend(hashes.len() * LOOK_UP_BYTES) {
                break;
            }
            for hash in &hashes {
                offsets.extend(segment.find_hash(hash, find.budget)?);
            }
            if offsets.is_empty() {
                continue;
            }
            for at in self.add_part(Found { part: segment.part(), offsets }) {
                keyed.extend(self.wanted_key(shared, at, find).map(|key| (key, at)));
            }
        }
        keyed.sort_unstable_by_key(|(key, _)| in_direction(*key, find.direction));
        keyed.truncate(find.limit);
        self.at.extend(keyed.into_iter().map(|(_, at)| at));
        Ok(())
    }

    /// The key of a row, if it is in the range and its topic is wanted.
    fn wanted_key(&self, shared: &Shared, at: RowAt, find: &Find<'_>) -> Option<Key> {
        let part = self.parts.get(at.part as usize)?;
        let message = Record::read(&part.bytes, at.offset as usize)?.message()?;
        let is_wanted = match find.selection {
            Selection::All => true,
            Selection::Topics(set) => {
                let name = part.topics.get(message.topic as usize)?;
                let id = shared.dictionary.read().find(&name.channel, &name.topic);
                id.is_some_and(|id| set.contains(id))
            }
        };
        (is_wanted && find.range.contains(message.key())).then_some(message.key())
    }

    fn into_page(self, query: &Query) -> Page {
        Page::assemble(self.parts, self.at, query)
    }
}
