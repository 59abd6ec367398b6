//! What is known of a client from its address: its name in the DNS, block lists, and whether it has sent before.

mod checks;
mod greylist;
mod lists;
mod lookups;
#[cfg(test)]
mod tests;

use std::num::{NonZero, NonZeroU64};

use restante_core::nonzero;
use serde::{Deserialize, Serialize};

pub use self::{checks::ClientChecks, greylist::Greylist, lookups::ClientLookups};
use crate::Action;

/// The name of an address in the DNS (RFC 8601 §2.7.3, `iprev`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reverse {
    /// A name that resolves back to the address.
    Confirmed(String),
    /// A name that does not resolve back.
    Unconfirmed(String),
    /// No name.
    None,
    /// Not known now.
    Unknown,
}

/// A list that an address is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The zone of the list.
    pub zone: String,
    /// The action for mail from this address.
    pub action: Action,
    /// The list's TXT record for it, at most 200 bytes of printable ASCII.
    pub text: Option<String>,
}

/// What is known of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFacts {
    /// Its name.
    pub reverse: Reverse,
    /// The lists that it is on.
    pub listings: Vec<Listing>,
}

impl ClientFacts {
    /// The facts about a client that was not looked up.
    pub const UNKNOWN: Self = Self { reverse: Reverse::Unknown, listings: Vec::new() };
}

/// A DNS list of addresses (RFC 5782).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockList {
    /// Its zone, as `zen.example.org`.
    pub zone: String,
    /// The action for mail from addresses on it.
    pub action: Action,
}

/// Greylisting: a first message from an unknown client is refused temporarily, and accepted when it is sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GreylistConfig {
    /// Whether it is enabled.
    pub enabled: bool,
    /// After how long a message that was refused is accepted.
    pub delay_seconds: NonZeroU64,
    /// For how long a client that has sent again doesn't have to wait any more.
    pub remembered_seconds: NonZeroU64,
    /// The most clients that are remembered, and the most first attempts of others. The oldest are forgotten.
    pub entries_max: NonZero<usize>,
}

impl Default for GreylistConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            delay_seconds: nonzero!(300),
            remembered_seconds: nonzero!(3_110_400),
            entries_max: nonzero!(100_000),
        }
    }
}
