//! The Waku door: the network, nwaku's REST interface, and the archive.

pub(crate) mod archives;
pub(crate) mod commands;
pub(crate) mod nwaku;
pub(crate) mod retention;
pub(crate) mod size;
pub(crate) mod transfer;
