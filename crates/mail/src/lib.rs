//! Mail on records: the kinds of records that mail consists of.

mod schema;

pub use schema::{KINDS_END, RESERVED, account, email, identity, keyword, kinds, mailbox, thread};
