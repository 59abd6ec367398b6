//! Tracks which bodies in a range of numbers records refer to, one bit each.

use crate::lmdb::schema::BodyNumber;

/// The bodies of one window: 32 MiB of bits. Body numbers are dense, so few stores ever need a second window.
pub(super) const WINDOW_BODIES: u64 = 1 << 28;

/// A range of body numbers.
pub(super) struct BodyWindow {
    first: u64,
    bits: Vec<u64>,
}

impl BodyWindow {
    /// The bodies from `first` on, at most `bodies_max` and none greater than `last`.
    pub(super) fn new(first: BodyNumber, last: BodyNumber, bodies_max: u64) -> Self {
        let bodies = last.0.saturating_sub(first.0).saturating_add(1).min(bodies_max);
        Self { first: first.0, bits: vec![0; bodies.div_ceil(64) as usize] }
    }

    /// Whether a body is in the window.
    pub(super) fn covers(&self, body: BodyNumber) -> bool {
        self.place_of(body).is_some_and(|(word, _)| word < self.bits.len())
    }

    /// Marks a body. Returns false if it was marked already; bodies outside of the window never are.
    pub(super) fn mark(&mut self, body: BodyNumber) -> bool {
        let Some((place, bit)) = self.place_of(body) else { return true };
        let Some(word) = self.bits.get_mut(place) else { return true };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    pub(super) fn is_marked(&self, body: BodyNumber) -> bool {
        let word = self.place_of(body).and_then(|(place, bit)| Some(self.bits.get(place)? & bit));
        word.is_some_and(|word| word != 0)
    }

    fn place_of(&self, body: BodyNumber) -> Option<(usize, u64)> {
        let distance = body.0.checked_sub(self.first)?;
        let place = usize::try_from(distance / 64).ok()?;
        Some((place, 1 << (distance % 64)))
    }
}
