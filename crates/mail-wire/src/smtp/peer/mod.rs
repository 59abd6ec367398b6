//! The bytes of SMTP as a client of another server reads and writes them. What a server sends may be anything.
//!
//! - [`ReplyReader`] finds replies in what a server sends, [`Extensions`] reads the one to `EHLO`.
//! - [`write_mail`] and [`write_rcpt`] write commands with their parameters.
//! - [`write_data`] writes a message as it follows `DATA`.

mod commands;
mod data;
mod extensions;
mod reply;

pub use commands::{
    AddressError, MailCommand, Notified, RcptCommand, is_safe_address, utf8_address_in_ascii, write_mail, write_rcpt,
};
pub use data::write_data;
pub use extensions::Extensions;
pub use reply::{PeerReply, REPLY_BYTES_MAX, REPLY_LINES_MAX, ReadReply, ReplyError, ReplyReader};
