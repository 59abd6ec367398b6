//! The commands of mail.

pub(crate) mod blobs;
pub(crate) mod directory;
pub(crate) mod records;
