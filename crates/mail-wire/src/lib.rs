//! The bytes of mail: header forms, MIME, SMTP and LMTP. No I/O.
//!
//! Nothing in this crate panics, whatever bytes it reads, and all of it takes time in proportion to their number.

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
