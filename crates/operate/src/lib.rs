//! The HTTP interface for operators: health of doors and roles, metrics, the console, who is connected, and the routes for
//! administering a server.
//!
//! A [`Door`] reports its state; [`Operate`] collects the reports, and makes the routes of each [`Listener`].

#[cfg(feature = "archive")]
mod archive;
mod console;
mod door;
mod health;
mod mta_sts;
mod public;
mod routes;
mod sessions;

#[cfg(feature = "archive")]
pub use archive::{ArchiveHealth, RetentionState};
pub use console::{cached, exposition};
pub use door::{Door, Facts, Listener, Offer, ShowFacts};
pub use health::{ArchiveReport, ComponentHealth, Problem, RoleCheck, Status};
pub use mta_sts::{MtaStsConfig, MtaStsMode};
pub use public::{PublicConfig, PublicUrl};
pub use routes::{Operate, Parts, SetLogLevel};
pub use sessions::{CLOSE_NAMES, LIST_NAMES};
