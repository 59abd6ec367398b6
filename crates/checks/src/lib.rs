//! Checks of mail from outside: who sends it, and what is done with it.
//!
//! [`SenderChecks`] is called by the SMTP server at each step of a message from another server: when the client connects, at
//! `MAIL` and `RCPT`, and when the message was received. It never loses mail because something that it queries is slow,
//! unreachable or wrong: what is not known is not held against the sender.

mod attachments;
mod authentication;
mod checks;
mod client;
mod config;
mod filter;
mod judgement;
mod metrics;
mod network;
mod policy;
mod reports;
mod text;

#[doc(hidden)]
pub mod properties;

pub use authentication::{
    Authentication, Authenticator, DkimSignature, DmarcPolicy, Outcome, claims_to_be_ours, results_field,
};
pub use checks::{AttachmentNames, Checks, ClientChecking, Parts};
pub use client::{
    BlockList, ClientChecks, ClientFacts, ClientLookups, Greylist, GreylistConfig, Listing, Reverse,
};
pub use config::{Action, ChecksConfig};
pub use filter::{Filter, FilterAction, FilterConfig, FilterVerdict, Lesson, Rspamd};
pub use judgement::{Envelope, Judgement, Peer, Refused, SenderChecks, Verdict};
pub use metrics::ChecksMetrics;
pub use reports::{Disposition, DmarcSeen, PolicyOverride, ReportSink, ReportsConfig};
