//! Replays power cuts: checks that acknowledged data is really on the disk.
//!
//! Killing a process proves little: its writes survive in the system's page cache, so even a store that never syncs passes.
//! Here a test runs its writer as a child process under a recorder that logs every write, sync and rename below one folder,
//! and every acknowledgement. The log is then cut at random points. For each cut a folder is written as a disk may hold it
//! after a power cut at that point: everything that was synced, and any part of the rest. The test opens and checks it.
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
//!             assert!(lines.lines().any(|found| found == *line));
//!         }
//!     })
//!     .unwrap();
//! }
//! ```
//!
//! # What a cut leaves
//!
//! - **Bytes**: all that was written before the start of a completed sync. Of later writes each block (512 or 4,096 bytes,
//!   depending on the cut) has its content after any of them, as the system may write a page back at any time; blocks are
//!   independent of each other. A write through a descriptor with `O_DSYNC` is synced when it returns, together with earlier
//!   writes to its blocks.
//! - **Lengths**: any that the file had since its last sync.
//! - **Names**: creation, removal and renaming of entries are durable once their *folder* was synced after them; syncing a file
//!   does not make its name durable. Of later changes the first ones are kept (as with a journal), or any of them (as
//!   POSIX allows). A rename is kept whole or not at all.
//!
//! Memory that is mapped shared and writable changes files without a call: [`Log::mapped`] lists these files, whose content is
//! not replayed. What the recorder can't follow at all (a symbolic link, a file older than the recording) is an error.

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
