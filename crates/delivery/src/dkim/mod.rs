//! DKIM: keys of the domains of this server, and signatures of outgoing mail (RFC 6376, RFC 8463); with the same keys, ARC sets on
//! forwarded mail (RFC 8617).
//!
//! The crate mail-auth can sign, too, but if a body ends in lines of white space it keeps an empty line that RFC 6376 §3.4.4 drops.
//! So canonical forms and signatures are computed here.

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
