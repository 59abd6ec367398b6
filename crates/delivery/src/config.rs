use std::num::{NonZero, NonZeroU32, NonZeroU64};

use restante_core::nonzero;
use serde::{Deserialize, Serialize};

use crate::transport::RemoteConfig;

/// The settings of the queue of outgoing mail and its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeliveryConfig {
    /// The time before each attempt, counted from the attempt before it; the first number belongs to the first attempt. The last
    /// number is repeated.
    pub retry_seconds: Vec<u64>,
    /// By how many percent, at most, each of these times is randomly made longer or shorter.
    pub retry_jitter_percent: u64,
    /// How long a recipient is tried before it fails, from when it first became due.
    pub expire_seconds: NonZeroU64,
    /// After how long the sender gets a report that delivery is delayed; 0 for never.
    pub delay_notice_seconds: u64,
    /// The most connections to other servers at once, and the most workers for domains of this server. With a smarthost,
    /// `remote.smarthost_connections_max` applies as well, and slow domains get no additional connections.
    pub connections_max: NonZero<usize>,
    /// Connections at once to servers that are slow or do not answer, in addition to `connections_max`.
    pub slow_connections_max: NonZero<usize>,
    /// Connections for one domain at once.
    pub connections_per_domain_max: NonZero<usize>,
    /// Attempts at once for one domain of this server.
    pub local_at_once_max: NonZero<usize>,
    /// The most bytes of messages that are in memory at once while they are sent. A larger message is sent alone.
    pub memory_bytes_max: NonZero<usize>,
    /// Recipients in one transaction. RFC 5321 requires every server to take 100.
    pub recipients_per_transaction_max: NonZero<usize>,
    /// Transactions on one connection while other domains wait.
    pub transactions_per_connection_max: NonZeroU32,
    /// After how long without progress a connection counts as slow.
    pub slow_after_seconds: NonZeroU64,
    /// How long no connection is tried to a domain that could not be reached.
    pub domain_down_seconds: u64,
    /// For how long a recipient is claimed; the lease is extended while its attempt lasts. If the server dies, the recipient is
    /// tried again after this time.
    pub lease_seconds: NonZeroU64,
    /// If a queue distributes work between servers: how long a recipient may be due before every server looks for it, independently
    /// of that queue.
    pub sweep_seconds: NonZeroU64,
    /// How often preparing a message may fail before it is held for the operator.
    pub faults_max: NonZeroU32,
    /// The sender counts as stuck after so long without any outcome while something is due.
    pub stuck_seconds: NonZeroU64,
    /// How other servers are reached.
    pub remote: RemoteConfig,
}

impl Default for DeliveryConfig {
    fn default() -> Self {
        Self {
            retry_seconds: vec![0, 300, 900, 1_800, 3_600, 7_200, 14_400],
            retry_jitter_percent: 10,
            expire_seconds: nonzero!(432_000),
            delay_notice_seconds: 14_400,
            connections_max: nonzero!(100),
            slow_connections_max: nonzero!(400),
            connections_per_domain_max: nonzero!(2),
            local_at_once_max: nonzero!(16),
            memory_bytes_max: nonzero!(256_000_000),
            recipients_per_transaction_max: nonzero!(100),
            transactions_per_connection_max: nonzero!(100),
            slow_after_seconds: nonzero!(10),
            domain_down_seconds: 60,
            lease_seconds: nonzero!(300),
            sweep_seconds: nonzero!(60),
            faults_max: nonzero!(3),
            stuck_seconds: nonzero!(900),
            remote: RemoteConfig::default(),
        }
    }
}

impl DeliveryConfig {
    /// The first wrong setting, if there is one, and what to do about it.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let is_repeated_at_once = self.retry_seconds.last().is_none_or(|last| *last == 0);
        if is_repeated_at_once {
            return Some(("retry_seconds", "end the list with at least 1".to_owned()));
        }
        if self.retry_jitter_percent > 50 {
            return Some(("retry_jitter_percent", "use 50 at most".to_owned()));
        }
        if self.delay_notice_seconds >= self.expire_seconds.get() {
            return Some((
                "delay_notice_seconds",
                "use less than expire_seconds, or 0 for no reports".to_owned(),
            ));
        }
        if self.recipients_per_transaction_max.get() > 1_000 {
            return Some(("recipients_per_transaction_max", "use 1000 at most".to_owned()));
        }
        if self.lease_seconds.get() < 3 {
            return Some(("lease_seconds", "use at least 3".to_owned()));
        }
        self.remote.problem()
    }
}
