//! Power cuts, replayed: whether what was acknowledged is really on the disk.
//!
//! Ending a process at any moment proves little: what it has written lies in the system's cache and outlives it, so a store
//! that never syncs passes. Here a test runs its writer as a child process under a recorder that logs every write, sync and
//! rename below one folder, and every acknowledgement. Then the log is cut at random places. Each time a folder is made as a
//! disk may hold it after a power cut at that place: what was synced is there, of the rest any part may be. The test opens
//! it and looks.
//!
//! ```no_run
//! #[test]
//! fn acknowledged_lines_survive_power_cuts() {
//!     if let Some(child) = restante_power_cut::child().unwrap() {
//!         // Write below `child.folder()`, sync, and only then:
//!         child.acknowledge("line 1").unwrap();
//!         return;
//!     }
//!     let log = restante_power_cut::record("acknowledged_lines_survive_power_cuts").unwrap();
//!     log.replay(restante_power_cut::cuts(60), 7, |cut| {
//!         let lines = std::fs::read_to_string(cut.folder().join("lines")).unwrap_or_default();
//!         for line in cut.acknowledged() {
//!             assert!(lines.lines().any(|there| there == *line));
//!         }
//!     })
//!     .unwrap();
//! }
//! ```
//!
//! # What a cut leaves
//!
//! - **Bytes**: what was written before a sync began that has returned. Of later writes each block (512 or 4,096 bytes, by the
//!   cut) has what it had after any of them, as the system may write a page back at any time; blocks are independent of each
//!   other. A write through a descriptor with `O_DSYNC` is synced when it returns, with what was written to its blocks before.
//! - **Lengths**: any that the file had since its last sync.
//! - **Names**: creation, removal and renaming of entries are durable when their *folder* was synced after them; syncing a file
//!   does not make its name durable. Of later ones a first part is there (as a journal keeps them), or any of them (as
//!   POSIX allows). A rename is there as a whole or not at all.
//!
//! Memory that is mapped shared and writable changes files without a call: [`Log::mapped`] tells which, and what is in them is not
//! replayed. What the recorder can't follow at all (a symbolic link, a file that was there before) is an error.

mod child;
mod error;
mod image;
mod log;
mod record;
mod replay;
mod state;

pub use child::{Child, child};
pub use error::Error;
pub use log::Log;
pub use record::record;
pub use replay::{Cut, cuts};
