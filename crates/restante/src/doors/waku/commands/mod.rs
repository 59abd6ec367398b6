//! The commands of the Waku door.

pub(crate) mod archive;
pub(crate) mod publish;
pub(crate) mod query;
