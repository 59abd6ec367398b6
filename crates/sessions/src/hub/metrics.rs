use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::Ended;

/// Metrics of the hub.
#[derive(Clone, Debug, Default)]
pub struct HubMetrics {
    pub(super) subscriptions: Gauge,
    pub(super) interests: Gauge,
    pub(super) queued_bytes: Gauge,
    pub(super) handed_out: Counter,
    events: Family<SourceLabel, Counter>,
    dropped: Family<DropLabel, Counter>,
    ended: Family<EndLabel, Counter>,
}

/// The origin of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Published on this node.
    Here,
    /// Received from another node.
    Elsewhere,
    /// Published before. It is delivered only if no session of this node got it then.
    Again,
}

/// Why an event was dropped for a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropReason {
    /// The session's own queue was full.
    Full,
    /// The memory for all sessions was used up, or the queue would have used too much of the rest.
    Memory,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    reason: &'static str,
}

impl Source {
    const ALL: [Self; 3] = [Self::Here, Self::Elsewhere, Self::Again];

    fn label(self) -> SourceLabel {
        let source = match self {
            Self::Here => "here",
            Self::Elsewhere => "elsewhere",
            Self::Again => "again",
        };
        SourceLabel { source }
    }
}

impl DropReason {
    const ALL: [Self; 2] = [Self::Full, Self::Memory];

    /// The reason with which a session that must not miss the event ends. It is `Slow` only if its own queue was full.
    pub(super) fn ended(self) -> Ended {
        match self {
            Self::Full => Ended::Slow,
            Self::Memory => Ended::Full,
        }
    }

    fn label(self) -> DropLabel {
        let reason = match self {
            Self::Full => "full",
            Self::Memory => "memory",
        };
        DropLabel { reason }
    }
}

impl HubMetrics {
    pub(super) fn came(&self, source: Source) {
        self.events.get_or_create(&source.label()).inc();
    }

    pub(super) fn dropped(&self, reason: DropReason) {
        self.dropped.get_or_create(&reason.label()).inc();
    }

    pub(super) fn ended(&self, why: Ended) {
        self.ended.get_or_create(&EndLabel { reason: why.as_str() }).inc();
    }

    #[cfg(test)]
    pub(super) fn count_of_dropped(&self, reason: DropReason) -> u64 {
        self.dropped.get_or_create(&reason.label()).get()
    }

    #[cfg(test)]
    pub(super) fn count_of_ended(&self, why: Ended) -> u64 {
        self.ended.get_or_create(&EndLabel { reason: why.as_str() }).get()
    }

    #[cfg(test)]
    pub(super) fn count_of(&self, source: Source) -> u64 {
        self.events.get_or_create(&source.label()).get()
    }

    /// Makes the metrics visible in `registry`, the one of sessions.
    pub fn register(&self, registry: &mut Registry) {
        // Create all labels at start, so that the first count of each is an increase.
        for source in Source::ALL {
            let _ = self.events.get_or_create(&source.label());
        }
        for reason in DropReason::ALL {
            let _ = self.dropped.get_or_create(&reason.label());
        }
        for why in Ended::ALL {
            let _ = self.ended.get_or_create(&EndLabel { reason: why.as_str() });
        }
        let what = "Sessions of this node that subscribe to events";
        registry.register("hub_subscriptions", what, self.subscriptions.clone());
        let what = "Interests of these sessions: topics and prefixes of topics";
        registry.register("hub_interests", what, self.interests.clone());
        let what = "Bytes of events that wait for sessions, each event counted once";
        registry.register("hub_queued_bytes", what, self.queued_bytes.clone());
        let what = "Events published to the hub, by origin";
        registry.register("hub_events", what, self.events.clone());
        let what = "Events that were put into the queues of sessions";
        registry.register("hub_handed_out", what, self.handed_out.clone());
        let what = "Events that did not fit into the queue of a session, by what was full";
        registry.register("hub_dropped", what, self.dropped.clone());
        let what = "Sessions that the hub ended before their door did, by reason";
        registry.register("hub_ended", what, self.ended.clone());
    }
}
