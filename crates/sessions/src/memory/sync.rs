//! The atomics and sizes of cells and tables. The check with loom (`tests/loom`) replaces this module by loom's atomics and
//! smaller numbers, so that all interleavings can be tried.

pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering, fence},
};

/// Words of a record in a cell: with the head they fill a cache line.
pub(crate) const WORDS: usize = 7;
/// Tries of a reader before it waits for the writers.
pub(crate) const TRIES: usize = 32;
