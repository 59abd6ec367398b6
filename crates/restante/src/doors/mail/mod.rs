//! Mail: records, blobs and the directory of accounts.

pub(crate) mod blobs;
pub(crate) mod commands;
pub(crate) mod logins;
pub(crate) mod records;
pub(crate) mod stores;
pub(crate) mod tidying;
