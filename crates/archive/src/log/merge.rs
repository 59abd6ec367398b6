//! Merging sorted lists.

use std::{cmp::Ordering, collections::BinaryHeap};

/// The next item of a list. The heap's greatest head is the one with the least key.
struct Head<K, T> {
    key: K,
    list: usize,
    item: T,
}

impl<K: Ord, T> Ord for Head<K, T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (&other.key, other.list).cmp(&(&self.key, self.list))
    }
}

impl<K: Ord, T> PartialOrd for Head<K, T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Ord, T> PartialEq for Head<K, T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<K: Ord, T> Eq for Head<K, T> {}

/// Visits the items of all lists in ascending order of their keys until `visit` stops.
pub(super) fn merge<K: Ord, T>(
    mut lists: Vec<impl Iterator<Item = (K, T)>>,
    mut visit: impl FnMut(T) -> Next,
) {
    let mut heads = BinaryHeap::with_capacity(lists.len());
    for (list, items) in lists.iter_mut().enumerate() {
        heads.extend(items.next().map(|(key, item)| Head { key, list, item }));
    }
    while let Some(Head { list, item, .. }) = heads.pop() {
        if visit(item) == Next::Enough {
            return;
        }
        let next = lists.get_mut(list).and_then(Iterator::next);
        heads.extend(next.map(|(key, item)| Head { key, list, item }));
    }
}

/// Whether a visitor continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    More,
    Enough,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_lists_are_in_order_and_end_with_the_visitor() {
        let lists = vec![vec![1, 4, 9], vec![], vec![2, 4, 5]];
        let iterators = lists.into_iter().map(|list| list.into_iter().map(|n| (n, n)));
        let mut seen = Vec::new();
        merge(iterators.collect(), |n| {
            seen.push(n);
            if n == 5 { Next::Enough } else { Next::More }
        });
        assert_eq!(seen, [1, 2, 4, 4, 5]);
    }
}
