//! Sums over a sliding window of time, in slots.

use serde::{Deserialize, Serialize};

/// A window and the slots that it is counted in.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowLength {
    /// The length of a slot.
    pub(super) slot_seconds: u64,
    /// The slots of the window. One more is kept, so that a sum covers the whole window no matter how much of the newest slot has passed.
    pub(super) slots: u64,
}

/// What was counted in each slot, the oldest first: pairs of the number of a slot (the time divided by its length) and a sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Window(Vec<(u64, u64)>);

impl WindowLength {
    fn slot_of(self, now: u64) -> u64 {
        now / self.slot_seconds
    }

    /// When a slot leaves the window.
    fn end_of(self, slot: u64) -> u64 {
        slot.saturating_add(self.slots + 1).saturating_mul(self.slot_seconds)
    }
}

impl Window {
    /// Drops the slots that have left the window, and those too far in the future, which a wrong clock has left.
    pub(super) fn move_to(&mut self, now: u64, length: WindowLength) {
        let current = length.slot_of(now);
        self.0.retain(|(slot, _)| length.end_of(*slot) > now && *slot <= current + length.slots);
    }

    pub(super) fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Adds a count at this time.
    pub(super) fn add(&mut self, now: u64, length: WindowLength, count: u64) {
        let current = length.slot_of(now);
        match self.0.binary_search_by_key(&current, |(slot, _)| *slot) {
            Ok(index) => {
                if let Some((_, sum)) = self.0.get_mut(index) {
                    *sum = sum.saturating_add(count);
                }
            }
            Err(index) => self.0.insert(index, (current, count)),
        }
    }

    /// When `count` more fit below `max`, if nothing is counted until then. `None` when they never fit.
    pub(super) fn fits_at(&self, length: WindowLength, count: u64, max: u64) -> Option<u64> {
        let mut sum = self.sum();
        for (slot, counted) in &self.0 {
            sum -= (*counted).min(sum);
            if sum.saturating_add(count) <= max {
                return Some(length.end_of(*slot));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: WindowLength = WindowLength { slot_seconds: 600, slots: 6 };

    #[test]
    fn any_hour_is_covered_by_the_sum() {
        let mut window = Window::default();
        window.add(599, HOUR, 5); // at the end of its slot
        for now in [600, 3_600, 4_199] {
            window.move_to(now, HOUR);
            assert_eq!(window.sum(), 5, "{now}");
        }
        window.move_to(4_200, HOUR);
        assert_eq!(window.sum(), 0);
    }

    #[test]
    fn the_time_at_which_more_fits_is_that_of_the_slots_that_leave() {
        let mut window = Window::default();
        window.add(0, HOUR, 5);
        window.add(1_200, HOUR, 5);
        assert_eq!(window.fits_at(HOUR, 1, 10), Some(4_200));
        assert_eq!(window.fits_at(HOUR, 6, 10), Some(5_400));
        assert_eq!(window.fits_at(HOUR, 11, 10), None);
    }

    #[test]
    fn a_clock_that_was_wrong_leaves_a_bounded_number_of_slots_behind() {
        let mut window = Window::default();
        for now in [1_000_000_000, 600, 0, 3_000] {
            window.move_to(now, HOUR);
            window.add(now, HOUR, 1);
        }
        window.move_to(3_000, HOUR);
        assert_eq!(window.sum(), 3, "the slot that is far in the future is forgotten");
    }
}
