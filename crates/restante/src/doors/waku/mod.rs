//! The Waku door: the network, nwaku's REST interface, and the archive.

pub(crate) mod archives;
pub(crate) mod commands;
mod door;
mod nwaku;
mod printer;
mod retention;
mod settings;
mod size;
pub(crate) mod transfer;

/// The Waku door, if this binary has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakuSpec;
