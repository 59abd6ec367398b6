//! What cells and tables are made of. Their check with loom (`tests/loom`) puts other things in their user_hash: loom's atomics,
//! and smaller numbers, so that all that can happen can be tried.

pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering, fence},
};

/// Words of a record in a cell: with the head they fill a cache line.
pub(crate) const WORDS: usize = 7;
/// Copies that a reader makes in vain before it waits for the writers.
pub(crate) const TRIES: usize = 32;
