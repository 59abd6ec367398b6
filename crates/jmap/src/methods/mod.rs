//! The methods of JMAP. Each module has a list of its own; [`ALL`] names the lists.

mod blob;
pub(crate) mod changes;
mod core;
pub(crate) mod email;
mod email_edit;
mod get;
mod identity;
mod mail_errors;
mod mailbox;
mod push_subscription;
mod quota;
mod set_states;
mod small_query;
mod thread;

use crate::core::Method;

pub(crate) use blob::LOOKUP_TYPES;
pub(crate) use quota::QuotaState;

/// All methods.
pub(crate) const ALL: &[&[Method]] = &[
    core::METHODS,
    blob::METHODS,
    email::METHODS,
    email_edit::METHODS,
    identity::METHODS,
    mailbox::METHODS,
    push_subscription::METHODS,
    quota::METHODS,
    thread::METHODS,
];
