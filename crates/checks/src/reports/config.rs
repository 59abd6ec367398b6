use std::num::{NonZero, NonZeroU64};

use restante_core::nonzero;
use serde::{Deserialize, Serialize};

/// Aggregate reports of DMARC (RFC 7489 §7.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReportsConfig {
    /// Whether what DMARC finds is counted, for the console and for reports.
    pub collect: bool,
    /// Whether domains that ask for reports get one about each day. It needs `collect`.
    pub send: bool,
    /// The address that reports come from; empty for `postmaster` at the domain of this server. Its domain should have a DKIM key and an SPF record.
    pub from: String,
    /// For how many days the counts are kept.
    pub days_kept: NonZeroU64,
    /// The most rows of a day: of messages that have all but their number in common. Further messages are counted together.
    pub rows_per_day_max: NonZero<usize>,
}

impl Default for ReportsConfig {
    fn default() -> Self {
        Self {
            collect: true,
            send: false,
            from: String::new(),
            days_kept: nonzero!(14),
            rows_per_day_max: nonzero!(10_000),
        }
    }
}
