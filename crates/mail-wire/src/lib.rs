//! The byte formats of mail: header forms, MIME, SMTP and LMTP. No I/O.
//!
//! Nothing in this crate panics, whatever bytes it parses, and all of it takes time proportional to their number.

pub mod canonical;
pub mod charset;
pub mod compose;
pub mod dsn;
pub mod header;
pub mod smtp;
pub mod subject;
pub mod transfer;

#[doc(hidden)]
pub mod properties;
