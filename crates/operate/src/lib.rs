//! The front for operators: health of doors and roles, metrics, the console, who is connected, and the routes by which a server is
//! administered.
//!
//! A [`Door`] reports what it is and how it works; [`Operate`] collects that, and makes the routes of each [`Listener`].

mod console;
mod door;
mod health;
mod public;
mod retention;
mod routes;
mod sessions;

pub use console::exposition;
pub use door::{Door, Facts, Listener, Offer};
pub use health::{ArchiveHealth, ComponentHealth, RoleCheck, Status};
pub use public::{PublicConfig, PublicUrl};
pub use retention::RetentionState;
pub use routes::{Operate, Parts, SetLogLevel};
pub use sessions::{CLOSE_NAMES, LIST_NAMES};
