//! The byte format of SMTP (RFC 5321) and LMTP (RFC 2033), as a server reads and writes it.
//!
//! - [`LineReader`] finds command lines, [`Command`] parses one.
//! - [`AuthResponse`] parses the lines of a log-in.
//! - [`Reply`] writes replies.
//! - [`DataDecoder`] decodes what follows `DATA`, [`ChunkDecoder`] what follows `BDAT` (RFC 3030).
//! - [`peer`] is the client side: commands and messages to other servers, and their replies.
//!
//! All decoders are incremental: however the bytes are split, the result is the same.

mod auth;
mod chunk;
mod command;
mod data;
mod line;
mod parameters;
mod path;
pub mod peer;
#[doc(hidden)]
pub mod properties;
mod reply;
mod xtext;

pub use auth::{AuthResponse, challenge_text};
pub use chunk::ChunkDecoder;
pub use command::{Command, CommandError};
pub use data::{DataDecoder, DataError, Newlines, TEXT_LINE_BYTES_MAX};
pub use line::{COMMAND_LINE_BYTES_MAX, LineError, LineReader, ReadLine};
pub use parameters::{Body, Hold, MailParameters, Notify, RcptParameters, Return};
pub use path::{ForwardPath, Mailbox};
pub use reply::Reply;
pub use xtext::{decode_xtext, encode_xtext, is_xtext};
