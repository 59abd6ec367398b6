//! Mail: records, blobs and the directory of accounts.

pub(crate) mod blobs;
pub(crate) mod commands;
mod door;
mod logins;
pub(crate) mod records;
mod settings;
mod stores;
pub(crate) mod tidying;

pub(crate) use settings::Mail as MailSection;

/// Mail, if this binary has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MailSpec;
