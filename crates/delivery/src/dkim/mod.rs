//! DKIM: keys of the domains of this server, and signatures of what leaves it (RFC 6376, RFC 8463); with the same keys, ARC sets on what is forwarded
//! (RFC 8617).
//!
//! mail-auth signs, too, but keeps an empty line that RFC 6376 §3.4.4 drops: that of a body which ends in lines of white space. So
//! canonical forms and signatures are made here.

mod arc;
mod canonical;
mod keys;
mod pair;
mod signature;
mod signer;

pub use keys::{Answer, DkimKeys, KEYS_PER_DOMAIN_MAX, KeyInfo, KeyState, Operation};
pub use pair::Algorithm;
pub use signer::DomainSigner;

#[cfg(test)]
mod tests;
