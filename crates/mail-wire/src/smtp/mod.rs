//! The bytes of SMTP (RFC 5321) and LMTP (RFC 2033), as a server reads and writes them.
//!
//! - [`LineReader`] finds command lines, [`Command`] parses one.
//! - [`Reply`] writes replies.
//! - [`DataDecoder`] decodes what follows `DATA`, [`ChunkDecoder`] what follows `BDAT` (RFC 3030).
//! - [`peer`] is the other side: commands and messages to other servers, and what these reply.
//!
//! All decoders are incremental: however the bytes are split, the result is the same.

mod chunk;
mod command;
mod data;
mod line;
mod path;
pub mod peer;
#[doc(hidden)]
pub mod properties;
mod reply;

pub use chunk::ChunkDecoder;
pub use command::{Body, Command, CommandError, MailParameters};
pub use data::{DataDecoder, DataError, Newlines, TEXT_LINE_BYTES_MAX};
pub use line::{COMMAND_LINE_BYTES_MAX, LineError, LineReader, ReadLine};
pub use path::{ForwardPath, Mailbox};
pub use reply::Reply;
