//! The byte format of SMTP as a client of another server reads and writes it. A server may send anything.
//!
//! - [`ReplyReader`] finds replies in what a server sends, [`Extensions`] parses the one to `EHLO`.
//! - [`write_mail`] and [`write_rcpt`] write commands with their parameters.
//! - [`DataWriter`] writes a message as it follows `DATA`.

mod commands;
mod data;
mod extensions;
mod reply;

pub use commands::{
    AddressError, MailCommand, Notified, RcptCommand, is_safe_address, utf8_address_in_ascii, write_mail,
    write_rcpt,
};
pub use data::{DATA_END, DataWriter};
pub use extensions::Extensions;
pub use reply::{PeerReply, REPLY_BYTES_MAX, REPLY_LINES_MAX, ReadReply, ReplyError, ReplyReader};
