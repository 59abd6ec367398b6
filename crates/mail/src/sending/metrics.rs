use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::SendingLimit;

/// Metrics of limits on sending. Clones share the counts.
#[derive(Clone, Debug)]
pub struct SendingMetrics {
    refused: Family<LimitLabel, Counter>,
    accounts: Family<LimitLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

impl LimitLabel {
    const fn of(limit: SendingLimit) -> Self {
        match limit {
            SendingLimit::Messages => Self { limit: "messages" },
            SendingLimit::Recipients => Self { limit: "recipients" },
        }
    }
}

impl Default for SendingMetrics {
    fn default() -> Self {
        let metrics = Self { refused: Family::default(), accounts: Family::default() };
        for limit in [SendingLimit::Messages, SendingLimit::Recipients] {
            // Exported as 0, so that the first one is an increase.
            drop(metrics.refused.get_or_create(&LimitLabel::of(limit)));
            drop(metrics.accounts.get_or_create(&LimitLabel::of(limit)));
        }
        metrics
    }
}

impl SendingMetrics {
    /// Makes the metrics visible in `registry` as `restante_sending_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_sending");
        let what =
            "Messages that were refused because their account has sent as much as it may, by the limit";
        registry.register("refused", what, self.refused.clone());
        let what = "Times that an account reached a limit on sending, by the limit";
        registry.register("accounts_limited", what, self.accounts.clone());
    }

    pub(super) fn count_refused(&self, limit: SendingLimit) {
        self.refused.get_or_create(&LimitLabel::of(limit)).inc();
    }

    pub(super) fn count_account(&self, limit: SendingLimit) {
        self.accounts.get_or_create(&LimitLabel::of(limit)).inc();
    }
}
