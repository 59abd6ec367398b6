use std::num::{NonZero, NonZeroU64};

use restante_core::nonzero;
use serde::{Deserialize, Serialize};

/// DMARC aggregate reports (RFC 7489 §7.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReportsConfig {
    /// Whether the results of DMARC are counted, for the console and for reports.
    pub collect: bool,
    /// Whether domains that request reports get one about each day. It requires `collect`.
    pub send: bool,
    /// The address from which reports are sent; empty for `postmaster` at the domain of this server. Its domain should have a
    /// DKIM key and an SPF record.
    pub from: String,
    /// For how many days the counts are kept.
    pub days_kept: NonZeroU64,
    /// The most rows of a day. A row counts messages that are equal in all other columns; further messages are counted together.
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
