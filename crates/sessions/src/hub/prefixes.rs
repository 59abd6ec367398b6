//! Subscribers to prefixes of topics, in a radix tree: all prefixes of a topic lie on one path from the root. Finding them
//! takes time by the length of the topic, however many prefixes there are.

use std::sync::Arc;

use super::{index::Subscribers, subscriber::Subscriber};

/// The prefix of a node is the concatenation of the labels on the path to it. Every node except the root has a subscriber or at
/// least two children.
#[derive(Default)]
pub(super) struct Prefixes {
    root: Node,
}

#[derive(Default)]
struct Node {
    label: Box<[u8]>,
    subscribers: Subscribers,
    /// Ordered by the first bytes of their labels, which differ.
    children: Vec<Node>,
}

impl Prefixes {
    pub(super) fn is_empty(&self) -> bool {
        self.root.subscribers.is_empty() && self.root.children.is_empty()
    }

    pub(super) fn add(&mut self, prefix: &str, subscriber: &Arc<Subscriber>) {
        let (mut node, mut rest) = (&mut self.root, prefix.as_bytes());
        while let Some(first) = rest.first() {
            let at = match node.find(*first) {
                Ok(at) => at,
                Err(at) => {
                    node.children.insert(at, Node { label: rest.into(), ..Node::default() });
                    at
                }
            };
            let Some(child) = node.children.get_mut(at) else { return };
            let common = common_len(&child.label, rest);
            child.split(common);
            rest = rest.get(common..).unwrap_or_default();
            node = child;
        }
        node.subscribers.add(subscriber);
    }

    pub(super) fn remove(&mut self, prefix: &str, subscriber: &Arc<Subscriber>) {
        let Some(depth) = self.depth_of(prefix) else { return };
        if let Some(node) = self.node_at(prefix, depth) {
            node.subscribers.remove(subscriber);
            node.join_only_child(depth == 0);
        }
        let Some(above) = depth.checked_sub(1) else { return };
        if let Some(parent) = self.node_at(prefix, above) {
            parent.children.retain(|child| !(child.subscribers.is_empty() && child.children.is_empty()));
            parent.join_only_child(above == 0);
        }
    }

    /// Calls `give` with the subscribers of each prefix of a topic, the shortest first.
    pub(super) fn find<'a>(&'a self, topic: &str, mut give: impl FnMut(&'a Subscribers)) {
        let (mut node, mut rest) = (&self.root, topic.as_bytes());
        loop {
            if !node.subscribers.is_empty() {
                give(&node.subscribers);
            }
            let Some(child) = node.child(rest) else { return };
            let Some(behind) = rest.strip_prefix(&*child.label) else { return };
            (node, rest) = (child, behind);
        }
    }

    /// The depth of the node of a prefix, if it has one.
    fn depth_of(&self, prefix: &str) -> Option<usize> {
        let (mut node, mut rest, mut depth) = (&self.root, prefix.as_bytes(), 0);
        while !rest.is_empty() {
            let child = node.child(rest)?;
            rest = rest.strip_prefix(&*child.label)?;
            node = child;
            depth += 1;
        }
        Some(depth)
    }

    /// The node at a depth on the path to a prefix.
    fn node_at(&mut self, prefix: &str, depth: usize) -> Option<&mut Node> {
        let (mut node, mut rest) = (&mut self.root, prefix.as_bytes());
        for _ in 0..depth {
            let at = node.find(*rest.first()?).ok()?;
            node = node.children.get_mut(at)?;
            rest = rest.get(node.label.len()..)?;
        }
        Some(node)
    }
}

impl Node {
    fn find(&self, first: u8) -> Result<usize, usize> {
        self.children.binary_search_by_key(&Some(first), |child| child.label.first().copied())
    }

    fn child(&self, rest: &[u8]) -> Option<&Self> {
        let at = self.find(*rest.first()?).ok()?;
        self.children.get(at)
    }

    /// Cuts the label to `len` bytes, and moves the rest of it and everything below to a new child.
    fn split(&mut self, len: usize) {
        let Some((front, back)) = self.label.split_at_checked(len).filter(|(_, back)| !back.is_empty())
        else {
            return;
        };
        let (front, label) = (front.into(), back.into());
        let below = std::mem::take(self);
        let child = Self { label, ..below };
        *self = Self { label: front, subscribers: Subscribers::default(), children: vec![child] };
    }

    /// Merges a node without subscribers with its only child, unless it is the root.
    fn join_only_child(&mut self, is_root: bool) {
        if is_root || !self.subscribers.is_empty() || self.children.len() != 1 {
            self.children.shrink_to_fit();
            return;
        }
        let Some(child) = self.children.pop() else { return };
        let label = [&*self.label, &*child.label].concat().into();
        *self = Self { label, ..child };
    }
}

fn common_len(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests;
