//! The units that a query reads one by one: windows, or parts of them, in the direction of the query, with the expected number of
//! rows.

use std::collections::VecDeque;

use restante_core::{Key, MessageHash, Timestamp};

use super::{
    catalog::{Answer, Candidate, Window},
    query::Reading,
    schema::Access,
};
use crate::{Direction, query::KeyRange};

// The cost of a step for the server, in microseconds, measured on the history data set; only the proportions matter.
const SCAN_ROW: f64 = 0.3;
pub(super) const SEEK_TOPIC: f64 = 9.0;
pub(super) const MERGE_ROW: f64 = 1.2;
pub(super) const STATEMENT: f64 = 60.0;
pub(super) const LOCK_WINDOW: f64 = 0.5;
pub(super) const OPEN_WINDOW: f64 = 6.0;
pub(super) const SEEK_GATHERED: f64 = 3.0;
pub(super) const GATHERED_ROW: f64 = 1.5;
/// A part of a window that would leave less than this share of the wanted part is extended to all of it.
const REST: f64 = 0.3;

/// A window, or a part of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) candidate: Candidate,
    pub(super) range: KeyRange,
    /// The part of the window's time that is in the range.
    share: f64,
    /// How many rows are expected.
    pub(super) expects: f64,
    /// The same if all of it is as dense as the part of the window that was read last.
    pub(super) expects_here: f64,
}

/// The units of a query in its direction.
pub(super) struct Units<'a> {
    reading: &'a Reading<'a>,
    pub(super) answer: &'a Answer,
    range: KeyRange,
    /// Windows that were not visited yet, as indexes into the answer.
    windows: std::ops::Range<usize>,
    /// Units that were given back, or are the rest of a window.
    before: VecDeque<Unit>,
}

impl<'a> Units<'a> {
    pub(super) fn new(reading: &'a Reading<'a>, answer: &'a Answer, range: KeyRange) -> Self {
        Self { reading, answer, range, windows: 0..answer.windows.len(), before: VecDeque::new() }
    }

    /// Units that are together expected to return this many rows, the last of them a part of a window, or all that are left.
    pub(super) fn take(&mut self, rows: f64) -> Vec<Unit> {
        let mut taken = Vec::new();
        let mut missing = rows;
        while missing > 0.0 {
            let Some(unit) = self.next() else { break };
            let unit = Unit { expects: unit.expects_here, ..unit };
            let (unit, rest) = unit.split(missing, self.reading.query.direction);
            missing -= unit.expects;
            taken.push(unit);
            if let Some(rest) = rest {
                self.before.push_front(rest);
                break;
            }
        }
        taken
    }

    /// Returns units that were taken last.
    pub(super) fn give_back(&mut self, units: Vec<Unit>) {
        units.into_iter().rev().for_each(|unit| self.before.push_front(unit));
    }
}

impl Iterator for Units<'_> {
    type Item = Unit;

    fn next(&mut self) -> Option<Unit> {
        if let Some(unit) = self.before.pop_front() {
            return Some(unit);
        }
        let shared = self.reading.shared;
        loop {
            let place = match self.reading.query.direction {
                Direction::Forward => self.windows.next()?,
                Direction::Backward => self.windows.next_back()?,
            };
            let window = self.answer.windows.get(place)?;
            if let Some(candidate) = shared.catalog.candidate(window, &self.answer.selection) {
                let may_be_anywhere = !self.reading.query.hashes.is_empty();
                return Some(Unit::new(candidate, self.range, shared.now().0, may_be_anywhere));
            }
        }
    }
}

impl Unit {
    /// For a query for hashes, the rows of a window can't be predicted, so none are expected.
    fn new(candidate: Candidate, range: KeyRange, now: i64, by_hash: bool) -> Self {
        let share = share_of(&candidate.window, &range, now);
        let expects = if by_hash { 0.0 } else { candidate.wanted_messages as f64 * share };
        Self { candidate, range, share, expects, expects_here: expects * candidate.density }
    }

    /// Splits off the part that is expected to return this many rows; the second value is the rest.
    fn split(self, rows: f64, direction: Direction) -> (Self, Option<Self>) {
        if self.expects < rows * (1.0 + REST) {
            return (self, None);
        }
        let window = &self.candidate.window;
        let first = self.range.from.timestamp.0.max(window.first_ns) as f64;
        let end = self.range.until.map_or(window.end_ns, |until| until.timestamp.0.min(window.end_ns)) as f64;
        let part = rows / self.expects;
        let from_start = if direction == Direction::Forward { part } else { 1.0 - part };
        let cut = Key {
            timestamp: Timestamp((first + (end - first) * from_start) as i64),
            message_hash: MessageHash::MIN,
        };
        let older = KeyRange { until: Some(cut), ..self.range };
        let newer = KeyRange { from: cut, from_excluded: false, until: self.range.until };
        let is_inside = self.range.contains(cut);
        if !is_inside {
            return (self, None);
        }
        let with = |range, part: f64| Self {
            range,
            share: self.share * part,
            expects: self.expects * part,
            expects_here: self.expects_here * part,
            ..self
        };
        match direction {
            Direction::Forward => (with(older, part), Some(with(newer, 1.0 - part))),
            Direction::Backward => (with(newer, part), Some(with(older, 1.0 - part))),
        }
    }

    /// The cost of a scan depends on the rows that it passes until it has enough, that of a merge on the topics and the rows of
    /// each of them.
    pub(super) fn cheaper(&self, limit: usize) -> Access {
        let limit = limit as f64;
        let candidate = &self.candidate;
        let in_range = candidate.messages.max(1) as f64 * self.share;
        let wanted_in_range = candidate.wanted_messages.max(1) as f64 * self.share;
        let passed = if wanted_in_range <= limit { in_range } else { in_range * limit / wanted_in_range };
        let topics = candidate.wanted_topics as f64;
        let merged = wanted_in_range.min(limit * topics);
        let (scan, merge) = (passed * SCAN_ROW, topics * SEEK_TOPIC + merged * MERGE_ROW);
        if scan <= merge { Access::Scan } else { Access::Merge }
    }
}

/// The part of a window that is in a range of time, if its messages are spread evenly over its past part.
fn share_of(window: &Window, range: &KeyRange, now: i64) -> f64 {
    let is_current = window.contains(now);
    let end = if is_current { now } else { window.end_ns };
    let length = end as f64 - window.first_ns as f64;
    let from = range.from.timestamp.0.max(window.first_ns) as f64;
    let until = range.until.map_or(end, |until| until.timestamp.0.min(end)) as f64;
    if length <= 0.0 { 1.0 } else { ((until - from) / length).clamp(0.001, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Window = Window { generation: 1, first_ns: 0, end_ns: 1_000 };

    fn key(timestamp: i64) -> Key {
        Key { timestamp: Timestamp(timestamp), message_hash: MessageHash::MIN }
    }

    const ALL: KeyRange = KeyRange {
        from: Key { timestamp: Timestamp::MIN, message_hash: MessageHash::MIN },
        from_excluded: false,
        until: None,
    };

    fn unit(wanted_messages: u64, wanted_topics: usize) -> Unit {
        let candidate = Candidate {
            window: DAY,
            messages: 50_000,
            wanted_messages,
            wanted_topics,
            density: 1.0,
            is_uneven: false,
        };
        Unit::new(candidate, ALL, 5_000, false)
    }

    #[test]
    fn few_rows_of_few_topics_are_merged() {
        assert_eq!(unit(34, 3).cheaper(101), Access::Merge);
        assert_eq!(unit(300, 200).cheaper(101), Access::Merge);
    }

    #[test]
    fn nearly_everything_is_scanned() {
        assert_eq!(unit(48_000, 1_500).cheaper(101), Access::Scan);
        assert_eq!(unit(48_000, 1_500).cheaper(10_001), Access::Scan);
    }

    #[test]
    fn a_window_is_spread_over_its_time() {
        let range = KeyRange { from: key(250), from_excluded: false, until: Some(key(500)) };
        assert_eq!(share_of(&DAY, &range, 5_000), 0.25);
        // A window that isn't over has all its messages in its past part.
        assert_eq!(share_of(&DAY, &range, 500), 0.5);
        assert_eq!(share_of(&DAY, &ALL, 5_000), 1.0);
    }

    #[test]
    fn a_large_page_expects_the_density_of_the_last_one() {
        let candidate = Candidate { density: 2.0, ..unit(10_000, 5).candidate };
        let unit = Unit::new(candidate, ALL, 5_000, false);
        assert_eq!((unit.expects, unit.expects_here), (10_000.0, 20_000.0));
        let (part, rest) = Unit { expects: unit.expects_here, ..unit }.split(5_000.0, Direction::Forward);
        assert_eq!((part.range.until, part.expects_here), (Some(key(250)), 5_000.0));
        assert_eq!(rest.unwrap().expects_here, 15_000.0);
    }

    #[test]
    fn a_window_is_cut_where_enough_rows_are_likely_before() {
        let (part, rest) = unit(10_000, 5).split(2_500.0, Direction::Forward);
        let rest = rest.unwrap();
        assert_eq!((part.range.until, rest.range.from), (Some(key(250)), key(250)));
        assert_eq!((part.expects, rest.expects), (2_500.0, 7_500.0));
        let (part, rest) = unit(10_000, 5).split(2_500.0, Direction::Backward);
        assert_eq!((part.range.from, rest.unwrap().range.until), (key(750), Some(key(750))));
        let (whole, rest) = unit(10_000, 5).split(9_000.0, Direction::Forward);
        assert!(rest.is_none() && whole.range == ALL);
    }
}
