//! Mail on records: the kinds of records that mail consists of.

mod schema;

pub use schema::kinds;
