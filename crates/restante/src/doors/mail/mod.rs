//! Mail: records, blobs, the directory of accounts and the search index; the doors JMAP, SMTP and LMTP.

pub(crate) mod blobs;
mod checking;
pub(crate) mod commands;
mod console;
mod door;
mod erasing;
pub(crate) mod journal;
mod key_file;
mod logins;
mod mismatch;
mod queue;
pub(crate) mod records;
mod reporting;
pub(crate) mod search;
pub(crate) mod sending;
mod settings;
mod stores;
pub(crate) mod tidying;
mod usage;

pub(crate) use settings::Mail as MailSection;

/// Mail, if this binary has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MailSpec;
