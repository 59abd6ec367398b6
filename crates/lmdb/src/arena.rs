//! Values that stay where they are, made in order by one thread while others read them.

use std::sync::OnceLock;

/// The first chunk has so many values, and each further one twice as many as the one before, so that an arena of a few values is
/// made at once. From some length on they stay as long as they are: what is made at once delays who asked for the first value.
const SHORTEST_BITS: u32 = 6;
const SHORTEST: usize = 1 << SHORTEST_BITS;
const LONGEST_BITS: u32 = 15;
const LONGEST: usize = 1 << LONGEST_BITS;

/// Chunks until they are as long as they get, and all.
const GROWING: usize = (LONGEST_BITS - SHORTEST_BITS) as usize;
const CHUNKS: usize = 2_048;

/// How many values an arena has place for: some 67 million.
pub(crate) const PLACES: usize = LONGEST - SHORTEST + (CHUNKS - GROWING) * LONGEST;

/// Values by their number. A chunk of them is made when the first one is asked for, and goes with the arena.
pub(crate) struct Arena<T> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
}

/// The chunk of a value, and its place there.
fn place(number: u32) -> (usize, usize) {
    let n = number as usize + SHORTEST;
    if n < LONGEST {
        let bits = n.ilog2();
        return ((bits - SHORTEST_BITS) as usize, n - (1 << bits));
    }
    (GROWING - 1 + (n >> LONGEST_BITS), n % LONGEST)
}

fn len(chunk: usize) -> usize {
    if chunk < GROWING { SHORTEST << chunk } else { LONGEST }
}

impl<T: Default> Arena<T> {
    pub(crate) fn new() -> Self {
        Self { chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect() }
    }

    /// A value; `None` when its chunk was not made.
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let (chunk, at) = place(number);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// A value, whose chunk is made if need be; `None` when there is no place for it.
    pub(crate) fn make(&self, number: u32) -> Option<&T> {
        let (chunk, at) = place(number);
        let values = self.chunks.get(chunk)?;
        values.get_or_init(|| (0..len(chunk)).map(|_| T::default()).collect()).get(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_a_place_of_its_own() {
        let mut next = (0, 0);
        for number in 0..4 * LONGEST as u32 {
            assert_eq!(place(number), next, "{number}");
            next = if next.1 + 1 < len(next.0) { (next.0, next.1 + 1) } else { (next.0 + 1, 0) };
        }
        assert_eq!(place(PLACES as u32 - 1), (CHUNKS - 1, LONGEST - 1));
    }

    #[test]
    fn values_are_there_when_they_were_made_and_none_beyond_the_last_place() {
        let arena = Arena::<u64>::new();
        assert_eq!(arena.get(70), None);
        assert_eq!(arena.make(70), Some(&0));
        assert_eq!((arena.get(70), arena.get(5)), (Some(&0), None), "chunk by chunk");
        assert_eq!(arena.make(PLACES as u32), None);
    }
}
