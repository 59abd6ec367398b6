use std::num::{NonZero, NonZeroU64};

use restante_core::nonzero;
use serde::{Deserialize, Serialize};

/// How long messages stay in quarantine, and how many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuarantineConfig {
    /// After how many days a message that was not released is removed.
    pub days_kept: NonZeroU64,
    /// The most messages. Beyond them the oldest are removed.
    pub messages_max: NonZero<usize>,
    /// The most bytes of all messages. Beyond them the oldest are removed.
    pub bytes_max: NonZeroU64,
}

impl Default for QuarantineConfig {
    fn default() -> Self {
        Self { days_kept: nonzero!(30), messages_max: nonzero!(10_000), bytes_max: nonzero!(2_000_000_000) }
    }
}
