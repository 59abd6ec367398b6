use std::num::NonZero;

use restante_core::nonzero;
use serde::{Deserialize, Serialize};

/// The settings of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectoryConfig {
    /// Rounds of the derivation of keys from passwords that are set from now on. More rounds make guessing slower for a thief
    /// of the records, and log-ins slower for clients, which compute the same in SCRAM. RFC 7677 requires at least 4,096.
    pub rounds: NonZero<u32>,
    /// How long a correct password is remembered, so that the next log-in with it needs no derivation; 0 for not at all.
    pub remembered_seconds: u64,
    /// The most passwords that are remembered; each takes about 300 bytes.
    pub remembered_max: NonZero<usize>,
    /// The most passwords that wait to be checked; further ones are refused as busy.
    pub checks_waiting_max: NonZero<usize>,
    /// Failed log-ins that one IP address (one /64 network for IPv6) may have at once; they are refilled over
    /// `failure_seconds`.
    pub failures_per_ip_max: NonZero<u32>,
    /// Failed log-ins that one account may have at once.
    pub failures_per_account_max: NonZero<u32>,
    /// The time in which all failures are refilled.
    pub failure_seconds: NonZero<u64>,
}

impl Default for DirectoryConfig {
    fn default() -> Self {
        Self {
            rounds: nonzero!(100_000),
            remembered_seconds: 600,
            remembered_max: nonzero!(16_384),
            checks_waiting_max: nonzero!(256),
            failures_per_ip_max: nonzero!(30),
            failures_per_account_max: nonzero!(10),
            failure_seconds: nonzero!(300),
        }
    }
}

impl DirectoryConfig {
    /// The fewest rounds (RFC 7677 §4).
    pub const ROUNDS_MIN: u32 = 4_096;
    /// The most rounds: a check would take seconds.
    pub const ROUNDS_MAX: u32 = 10_000_000;

    /// The error in `rounds`, if there is one, and what to do.
    pub fn rounds_problem(&self) -> Option<String> {
        if !(Self::ROUNDS_MIN..=Self::ROUNDS_MAX).contains(&self.rounds.get()) {
            let (min, max) = (Self::ROUNDS_MIN, Self::ROUNDS_MAX);
            return Some(format!("use {min} to {max}"));
        }
        None
    }
}
