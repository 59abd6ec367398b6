//! The metrics of SMTP.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{Protocol, refusal::Refusal};

/// The values of the label `result` of messages.
const MESSAGE_RESULTS: [&str; 7] =
    ["stored", "junk", "quarantined", "queued", "deferred", "refused", "broken_off"];
/// The values of the label `check` that exist from the beginning.
const CHECKS: [&str; 8] =
    ["dmarc", "from", "block_list", "greylist", "reverse", "hello", "filter", "attachment"];

/// The metrics of SMTP and LMTP. Cloning shares the counts.
#[derive(Clone, Debug)]
pub struct SmtpMetrics {
    connections: Family<ProtocolLabel, Counter>,
    messages: Family<ResultLabels, Counter>,
    recipients: Family<ResultLabels, Counter>,
    limits: Family<LimitLabel, Counter>,
    refused_by_checks: Family<CheckLabel, Counter>,
    seconds: Family<ProtocolLabel, Histogram, fn() -> Histogram>,
    bytes: Family<ProtocolLabel, Counter>,
    pub(crate) memory_bytes: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProtocolLabel {
    protocol: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    protocol: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CheckLabel {
    check: &'static str,
}

/// The limits per minute of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Connect.
    Connects,
    /// Begin a message.
    Messages,
    /// Name a recipient that does not exist.
    Unknown,
}

impl Limit {
    const ALL: [Self; 3] = [Self::Connects, Self::Messages, Self::Unknown];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Connects => "connects",
            Self::Messages => "messages",
            Self::Unknown => "unknown_recipients",
        }
    }
}

/// How a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageResult {
    /// It was stored for at least one recipient.
    Stored,
    /// It was stored, and checks put it into Junk.
    Junk,
    /// It is held for the operator.
    Quarantined,
    /// It was queued to be sent.
    Queued,
    /// The client is asked to try again.
    Deferred,
    /// Refused permanently.
    Refused,
    /// The client closed the connection before the end.
    BrokenOff,
}

impl MessageResult {
    /// The result of a message that was refused as a whole.
    pub(crate) const fn of(refusal: Refusal) -> Self {
        if refusal.reply().is_permanent() { Self::Refused } else { Self::Deferred }
    }
}

impl Default for SmtpMetrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(100e-6, 2.0, 18)); // 100 us to 13 s
        let metrics = Self {
            connections: Family::default(),
            messages: Family::default(),
            recipients: Family::default(),
            limits: Family::default(),
            refused_by_checks: Family::default(),
            seconds: Family::new_with_constructor(histogram),
            bytes: Family::default(),
            memory_bytes: Gauge::default(),
        };
        for limit in Limit::ALL {
            let _ = metrics.limits.get_or_create(&LimitLabel { limit: limit.as_str() });
        }
        for check in CHECKS {
            let _ = metrics.refused_by_checks.get_or_create(&CheckLabel { check });
        }
        for protocol in Protocol::ALL {
            for result in MESSAGE_RESULTS {
                // So that the first event is seen as an increase.
                let _ = metrics.messages.get_or_create(&ResultLabels { protocol: protocol.as_str(), result });
            }
        }
        metrics
    }
}

impl SmtpMetrics {
    /// Registers the metrics in `registry` as `restante_smtp_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_smtp");
        let what = "Connections that were accepted, by protocol";
        registry.register("connections", what, self.connections.clone());
        let what = "Messages that were received, by protocol and result";
        registry.register("messages", what, self.messages.clone());
        let what = "Recipients, by protocol and the first answer to them";
        registry.register("recipients", what, self.recipients.clone());
        let what = "Clients that reached a limit per minute, by the limit";
        registry.register("limits", what, self.limits.clone());
        let what = "Recipients and messages that a check has refused, for now or for good, by the check";
        registry.register("refused_by_checks", what, self.refused_by_checks.clone());
        let what = "Time from the last byte of a message to the reply, by protocol";
        registry.register("message_seconds", what, self.seconds.clone());
        registry.register(
            "message_bytes",
            "Bytes of messages that were received whole, by protocol",
            self.bytes.clone(),
        );
        let what = "Memory of messages that are being received or stored";
        registry.register("memory_bytes", what, self.memory_bytes.clone());
    }

    pub(crate) fn count_connection(&self, protocol: Protocol) {
        self.connections.get_or_create(&ProtocolLabel { protocol: protocol.as_str() }).inc();
    }

    pub(crate) fn count_message(&self, protocol: Protocol, result: MessageResult) {
        let result = match result {
            MessageResult::Stored => "stored",
            MessageResult::Junk => "junk",
            MessageResult::Quarantined => "quarantined",
            MessageResult::Queued => "queued",
            MessageResult::Deferred => "deferred",
            MessageResult::Refused => "refused",
            MessageResult::BrokenOff => "broken_off",
        };
        self.messages.get_or_create(&ResultLabels { protocol: protocol.as_str(), result }).inc();
    }

    pub(crate) fn observe_message(&self, protocol: Protocol, bytes: u64, took: Duration) {
        let label = ProtocolLabel { protocol: protocol.as_str() };
        self.seconds.get_or_create(&label).observe(took.as_secs_f64());
        self.bytes.get_or_create(&label).inc_by(bytes);
    }

    pub(crate) fn count_limit(&self, limit: Limit) {
        self.limits.get_or_create(&LimitLabel { limit: limit.as_str() }).inc();
    }

    pub(crate) fn count_recipient(&self, protocol: Protocol, refusal: Option<Refusal>) {
        let result = refusal.map_or("accepted", Refusal::as_str);
        self.recipients.get_or_create(&ResultLabels { protocol: protocol.as_str(), result }).inc();
    }

    /// Counts a recipient that a check refused.
    pub(crate) fn count_checked_recipient(&self, protocol: Protocol, check: &'static str) {
        let labels = ResultLabels { protocol: protocol.as_str(), result: "refused_by_check" };
        self.recipients.get_or_create(&labels).inc();
        self.count_check(check);
    }

    /// Counts a refusal by a check.
    pub(crate) fn count_check(&self, check: &'static str) {
        self.refused_by_checks.get_or_create(&CheckLabel { check }).inc();
    }
}
