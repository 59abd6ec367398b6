use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use restante_sessions::{Ended, hub::Losses};

/// The metrics of the filter.
#[derive(Clone, Debug, Default)]
pub struct FilterMetrics {
    pub(crate) subscribers: Gauge,
    pub(crate) criteria: Gauge,
    pushes: Family<PushLabel, Counter>,
    removed: Family<RemovedLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PushLabel {
    result: &'static str,
}

/// The result of pushing a message to one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It was written to a stream that was then closed in order, or stayed open.
    Sent,
    /// The queue was full, or its subscriber was removed.
    Dropped,
    /// The subscriber is not connected.
    Away,
    /// No stream could be opened, or the stream broke or was too slow.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RemovedLabel {
    reason: &'static str,
}

/// Why a subscriber was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    /// It unsubscribed.
    Unsubscribed,
    /// Its subscription expired.
    Expired,
    /// Several pushes in a row failed.
    Failed,
    /// It was not connected, and was removed for a new subscriber.
    Replaced,
    /// Its session was closed by an operator or with the server.
    Closed,
}

impl Pushed {
    const ALL: [Self; 4] = [Self::Sent, Self::Dropped, Self::Away, Self::Failed];

    fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Dropped => "dropped",
            Self::Away => "away",
            Self::Failed => "failed",
        }
    }
}

impl Removed {
    const ALL: [Self; 5] = [Self::Unsubscribed, Self::Expired, Self::Failed, Self::Replaced, Self::Closed];

    fn as_str(self) -> &'static str {
        match self {
            Self::Unsubscribed => "unsubscribed",
            Self::Expired => "expired",
            Self::Failed => "failed",
            Self::Replaced => "replaced",
            Self::Closed => "closed",
        }
    }

    /// The reason for the session table; `None` when the table itself closed the session.
    pub(crate) fn ended(self) -> Option<Ended> {
        match self {
            Self::Unsubscribed => Some(Ended::Left),
            Self::Expired | Self::Replaced => Some(Ended::Expired),
            Self::Failed => Some(Ended::Slow),
            Self::Closed => None,
        }
    }
}

impl PushLabel {
    fn of(result: Pushed) -> Self {
        Self { result: result.as_str() }
    }
}

impl RemovedLabel {
    fn of(reason: Removed) -> Self {
        Self { reason: reason.as_str() }
    }
}

impl FilterMetrics {
    pub(crate) fn pushed(&self, result: Pushed, messages: usize) {
        if messages > 0 {
            self.pushes.get_or_create(&PushLabel::of(result)).inc_by(messages as u64);
        }
    }

    /// The counters for messages that the hub does not queue for subscribers.
    pub(crate) fn losses(&self) -> Losses {
        let counter = |result| self.pushes.get_or_create(&PushLabel::of(result)).clone();
        Losses { dropped: counter(Pushed::Dropped), away: counter(Pushed::Away) }
    }

    pub(crate) fn removed(&self, reason: Removed) {
        self.removed.get_or_create(&RemovedLabel::of(reason)).inc();
    }

    #[cfg(test)]
    pub(crate) fn count_of(&self, result: Pushed) -> u64 {
        self.pushes.get_or_create(&PushLabel::of(result)).get()
    }

    #[cfg(test)]
    pub(crate) fn removed_for(&self, reason: Removed) -> u64 {
        self.removed.get_or_create(&RemovedLabel::of(reason)).get()
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        // All label values exist from the start, so that the first of each is an increase.
        for result in Pushed::ALL {
            let _ = self.pushes.get_or_create(&PushLabel::of(result));
        }
        for reason in Removed::ALL {
            let _ = self.removed.get_or_create(&RemovedLabel::of(reason));
        }
        registry.register("filter_subscribers", "Filter subscribers", self.subscribers.clone());
        let what = "Pairs of pubsub and content topic of all filter subscribers";
        registry.register("filter_criteria", what, self.criteria.clone());
        let what = "Messages for filter subscribers, by result";
        registry.register("filter_pushes", what, self.pushes.clone());
        registry.register("filter_removed", "Filter subscribers that were removed", self.removed.clone());
    }
}
