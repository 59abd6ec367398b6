//! The methods of JMAP. Each module has a list of its own; [`ALL`] names the lists.

mod blob;
pub(crate) mod changes;
mod core;
pub(crate) mod email;
mod email_edit;
mod email_submission;
mod get;
mod identity;
mod mail_errors;
mod mailbox;
mod push_subscription;
mod quota;
mod set_states;
mod small_query;
mod thread;
mod vacation_response;

use crate::core::Method;

pub(crate) use blob::LOOKUP_TYPES;
pub(crate) use quota::QuotaState;

/// All methods.
pub(crate) const ALL: &[&[Method]] = &[
    core::METHODS,
    blob::METHODS,
    email::METHODS,
    email_edit::METHODS,
    email_submission::METHODS,
    identity::METHODS,
    mailbox::METHODS,
    push_subscription::METHODS,
    quota::METHODS,
    thread::METHODS,
    vacation_response::METHODS,
];
