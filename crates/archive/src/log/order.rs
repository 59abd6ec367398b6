//! Row numbers kept in key order while rows arrive almost, but not quite, in order.

/// Row numbers in ascending order of their keys, in chunks, so that any insertion moves few of them.
#[derive(Default)]
pub(super) struct Order {
    chunks: Vec<Vec<u32>>,
    len: usize,
}

/// The most rows of a chunk: an insertion moves at most 2 KiB.
const CHUNK_ROWS: usize = 512;

impl Order {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds `row`; `is_less(other)` says whether the other row's key is below this row's.
    pub(super) fn insert(&mut self, row: u32, is_less: impl Fn(u32) -> bool) {
        self.len += 1;
        // Nearly every row is the last one, and there is space for it.
        if let Some(chunk) = self.chunks.last_mut()
            && chunk.len() < CHUNK_ROWS
            && chunk.last().is_some_and(|last| is_less(*last))
        {
            chunk.push(row);
            return;
        }
        let chunk = self.chunks.partition_point(|chunk| chunk.first().is_some_and(|first| is_less(*first)));
        let Some(chunk) = self.chunks.get_mut(chunk.saturating_sub(1)) else {
            self.chunks.push(vec![row]);
            return;
        };
        let belongs_at_the_end = chunk.last().is_some_and(|last| is_less(*last));
        let at =
            if belongs_at_the_end { chunk.len() } else { chunk.partition_point(|other| is_less(*other)) };
        chunk.insert(at, row);
        if chunk.len() > CHUNK_ROWS {
            self.split(row, is_less);
        }
    }

    /// Splits the chunk that has `row` and has grown too long. If rows arrive in order, chunks are filled: only the row that was
    /// too many begins the next one.
    fn split(&mut self, row: u32, is_less: impl Fn(u32) -> bool) {
        let after = self
            .chunks
            .partition_point(|chunk| chunk.first().is_some_and(|first| *first == row || is_less(*first)));
        let is_last = after == self.chunks.len();
        let Some(chunk) = self.chunks.get_mut(after.saturating_sub(1)) else { return };
        let came_in_order = is_last && chunk.last() == Some(&row);
        let keep = if came_in_order { chunk.len() - 1 } else { chunk.len() / 2 };
        let rest = chunk.split_off(keep);
        self.chunks.insert(after, rest);
    }

    /// All rows in order, from the first one for which `is_before` is false.
    pub(super) fn from(&self, is_before: impl Fn(u32) -> bool) -> impl Iterator<Item = u32> {
        let (chunk, at) = self.place(is_before);
        let first = self.chunks.get(chunk).and_then(|rows| rows.get(at..)).unwrap_or_default();
        let rest = self.chunks.get(chunk + 1..).unwrap_or_default();
        first.iter().chain(rest.iter().flatten()).copied()
    }

    /// All rows in reverse order, from the last one for which `is_before` is true.
    pub(super) fn before(&self, is_before: impl Fn(u32) -> bool) -> impl Iterator<Item = u32> {
        let (chunk, at) = self.place(is_before);
        let last = self.chunks.get(chunk).and_then(|rows| rows.get(..at)).unwrap_or_default();
        let rest = self.chunks.get(..chunk).unwrap_or_default();
        last.iter().rev().chain(rest.iter().rev().flat_map(|rows| rows.iter().rev())).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.chunks.iter().flatten().copied()
    }

    /// The chunk, and the index in it, of the first row for which `is_before` is false.
    fn place(&self, is_before: impl Fn(u32) -> bool) -> (usize, usize) {
        let after = self.chunks.partition_point(|chunk| chunk.first().is_some_and(|first| is_before(*first)));
        let chunk = after.saturating_sub(1);
        let at = self.chunks.get(chunk).map_or(0, |rows| rows.partition_point(|row| is_before(*row)));
        (chunk, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn build(keys: &[u16]) -> Order {
        let mut order = Order::default();
        for (row, key) in keys.iter().enumerate() {
            order.insert(row as u32, |other| (keys[other as usize], other) < (*key, row as u32));
        }
        order
    }

    #[test]
    fn rows_in_order_fill_their_chunks() {
        let keys: Vec<u16> = (0..5_000).collect();
        let order = build(&keys);
        assert!(order.iter().eq(0..5_000));
        assert_eq!(order.chunks.len(), 5_000_usize.div_ceil(CHUNK_ROWS));
    }

    proptest! {
        #[test]
        fn any_insertion_order_gives_the_sorted_order(keys in prop::collection::vec(any::<u16>(), 0..3_000), at: u16) {
            let order = build(&keys);
            let mut sorted: Vec<(u16, u32)> = keys.iter().copied().zip(0..).collect();
            sorted.sort_unstable();
            let sorted: Vec<u32> = sorted.into_iter().map(|(_, row)| row).collect();
            prop_assert_eq!(order.iter().collect::<Vec<_>>(), sorted.clone());
            prop_assert_eq!(order.len(), keys.len());

            let is_before = |row: u32| keys[row as usize] < at;
            let split = sorted.partition_point(|row| is_before(*row));
            prop_assert_eq!(order.from(is_before).collect::<Vec<_>>(), &sorted[split..]);
            let reversed: Vec<u32> = sorted[..split].iter().rev().copied().collect();
            prop_assert_eq!(order.before(is_before).collect::<Vec<_>>(), reversed);
        }
    }
}
