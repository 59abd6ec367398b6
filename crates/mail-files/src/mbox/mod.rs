//! mbox: messages one after the other in a file, each below a line that begins with `From `.

mod from_line;
pub(crate) mod fuzz;
mod read;
mod split;
mod status;
pub(crate) mod walk;
pub(crate) mod write;

pub use read::{read, total_bytes};
pub use split::{Content, LookAhead, Split, Splitter, unquoted};
pub use write::{MboxFolders, MboxWriter};

#[cfg(test)]
pub(crate) mod tests;
