//! What is known of a client by its address: its name in the DNS, block lists, and whether it has sent before.

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
    /// A name that leads back to the address.
    Confirmed(String),
    /// A name that does not lead back.
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
    /// What is done with mail from there.
    pub action: Action,
    /// What the list says about it in its TXT record, printable ASCII, 200 bytes at most.
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
    /// Of a client that was not looked up.
    pub const UNKNOWN: Self = Self { reverse: Reverse::Unknown, listings: Vec::new() };
}

/// A list in the DNS of addresses (RFC 5782).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockList {
    /// Its zone, as `zen.example.org`.
    pub zone: String,
    /// What is done with mail from addresses on it.
    pub action: Action,
}

/// Greylisting: a first message from an unknown client is refused for now, and taken when it is sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GreylistConfig {
    /// Whether it is done.
    pub enabled: bool,
    /// After how long a message is taken that was refused.
    pub delay_seconds: NonZeroU64,
    /// How long a client that has sent again need not wait any more.
    pub remembered_seconds: NonZeroU64,
    /// Clients that are remembered, and first attempts of others: so many of each. The oldest are forgotten.
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
