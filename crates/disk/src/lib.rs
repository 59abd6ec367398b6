//! Shared by all engines with files: locks, durable folders and files, and a disk that tests can make fail.
//!
//! An engine changes its files only through the trait [`Disk`]. In production that is [`Folder`]; tests replace it by
//! `testing::FailingDisk` (feature `testing`), which fails any step and models a disk of limited size.

mod disk;
mod lock;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use disk::{Disk, DiskFile, Folder, create_folder, free_bytes};
pub use lock::hold;
pub use restante_core::Error;
