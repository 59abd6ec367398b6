//! Mail on records: what an email, a mailbox and a thread are, and where a new email goes.
//!
//! [`Mail`] is the handle: it delivers, creates, changes and destroys emails and mailboxes of accounts. Each edit updates all
//! counters in the same commit. [`message`] reads raw messages, [`row`] has what listings need of a message, and [`kinds`] are the
//! kinds of records that mail consists of.

mod check;
mod config;
mod counts;
pub mod dmarc;
mod document;
mod edits;
mod email_state;
mod error;
mod hex;
pub mod html;
mod identities;
mod keywords;
mod lane;
mod mail;
mod mailboxes;
pub mod message;
mod metrics;
mod place;
mod plan;
pub mod quarantine;
pub mod queue;
mod read;
mod restore;
pub mod row;
mod schema;
pub mod sending;
mod submissions;
mod tree;
mod tries;
mod vacations;
mod view;

pub use config::MailConfig;
pub use document::{SEARCHED_BODY_BYTES_MAX, document, searched_end};
pub use edits::{
    CreatedEmail, Delivered, Delivery, EmailUpdate, Imported, ImportedMessage, MailboxSet, MailboxSetOutcome,
    MailboxUpdate, NewEmail, NewMailbox, Parent, Patch, SetMailbox, StoredMessage, Transition,
};
pub use email_state::EmailState;
pub use error::MailError;
pub use identities::{Identity, IdentityUpdate, NamedAddress, NewIdentity};
pub use keywords::{KEYWORD_BYTES_MAX, Keywords, SEEN, parse_keyword};
pub use mail::{Finding, Mail, Usage};
pub use mailboxes::{Mailbox, Role};
pub use metrics::MailMetrics;
pub use restante_core::Error;
pub use restore::{Purged, VaultEntry, VaultPage, VaultUsage};
pub use schema::{
    KINDS_END, RESERVED, account, answered, dkim, dmarc_seen, email, identity, keyword, kinds, learned,
    mailbox, outbox, outgoing, push, quarantined, queued, sent, submission, thread, upload, vacation, vault,
};
pub use submissions::{
    EnvelopeAddress, NewSubmission, OutboxEntry, OutboxMessage, RecipientState, SUBMISSIONS_MAX, Submission,
    SubmissionHead, SubmissionRecipient, UndoStatus,
};
pub use tries::Tries;
pub use vacations::VacationResponse;

#[cfg(test)]
mod tests;
