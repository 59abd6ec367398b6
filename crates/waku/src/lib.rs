//! The Waku door: takes messages in, hands history out, in the protocols that Waku's clients speak.
//!
//! The [`rest`] module speaks the REST interface of nwaku, so that scripts written for it work as they are. [`validate`]
//! says which messages are taken; every way in asks it.

pub mod rest;
pub mod validate;
