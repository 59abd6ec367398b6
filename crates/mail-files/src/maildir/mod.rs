//! Maildir and Maildir++: a file for each message, whose name contains its flags.

mod names;
mod read;
mod write;

pub use read::{read, total_messages};
pub use write::MaildirWriter;

#[cfg(test)]
mod tests;
