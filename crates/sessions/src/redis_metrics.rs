//! Metrics of the `redis` engine. They are outside the engine so that every build has the same metrics.

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

/// Metrics of a table that is shared through Redis.
#[derive(Clone, Debug)]
pub(crate) struct RedisMetrics {
    pub(crate) requests: Family<RequestLabel, Counter>,
    pub(crate) seconds: Histogram,
    pub(crate) connects: Counter,
    pub(crate) up: Gauge,
    pub(crate) nodes: Gauge,
    pub(crate) sessions: Gauge,
    pub(crate) registered: Counter,
    pub(crate) swept: Counter,
    pub(crate) sent: Counter,
    pub(crate) heard: Counter,
    pub(crate) lost: Family<LossLabel, Counter>,
}

/// The kinds of requests to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Open,
    Update,
    Close,
    ByUser,
    ByAddress,
    ById,
    Page,
    Nodes,
    Leases,
    Beat,
    Register,
    Sweep,
    Leave,
    Publish,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// Redis answered with an error.
    Refused,
    /// Redis did not answer, or not in time.
    Lost,
}

/// Why an event did not reach another node, or this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventLoss {
    /// The queue of events to send was full.
    QueueFull,
    /// The event is too long.
    TooLong,
    /// Redis was unreachable.
    Away,
    /// A message from another node could not be decoded.
    Unreadable,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabel {
    op: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct LossLabel {
    reason: &'static str,
}

impl RequestLabel {
    pub(crate) fn new(op: Op, outcome: Outcome) -> Self {
        let op = match op {
            Op::Open => "open",
            Op::Update => "update",
            Op::Close => "close",
            Op::ByUser => "by_user",
            Op::ByAddress => "by_address",
            Op::ById => "by_id",
            Op::Page => "page",
            Op::Nodes => "nodes",
            Op::Leases => "leases",
            Op::Beat => "beat",
            Op::Register => "register",
            Op::Sweep => "sweep",
            Op::Leave => "leave",
            Op::Publish => "publish",
        };
        let result = match outcome {
            Outcome::Ok => "ok",
            Outcome::Refused => "refused",
            Outcome::Lost => "lost",
        };
        Self { op, result }
    }

    fn all() -> impl Iterator<Item = Self> {
        let ops = [
            Op::Open,
            Op::Update,
            Op::Close,
            Op::ByUser,
            Op::ByAddress,
            Op::ById,
            Op::Page,
            Op::Nodes,
            Op::Leases,
            Op::Beat,
            Op::Register,
            Op::Sweep,
            Op::Leave,
            Op::Publish,
        ];
        ops.into_iter().flat_map(|op| {
            [Outcome::Ok, Outcome::Refused, Outcome::Lost].map(|outcome| Self::new(op, outcome))
        })
    }
}

impl LossLabel {
    pub(crate) fn new(loss: EventLoss) -> Self {
        let reason = match loss {
            EventLoss::QueueFull => "queue_full",
            EventLoss::TooLong => "too_long",
            EventLoss::Away => "away",
            EventLoss::Unreadable => "unreadable",
        };
        Self { reason }
    }

    fn all() -> impl Iterator<Item = Self> {
        [EventLoss::QueueFull, EventLoss::TooLong, EventLoss::Away, EventLoss::Unreadable]
            .into_iter()
            .map(Self::new)
    }
}

impl Default for RedisMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            seconds: Histogram::new(exponential_buckets(50e-6, 2.0, 16)), // 50 us to 1.6 s
            connects: Counter::default(),
            up: Gauge::default(),
            nodes: Gauge::default(),
            sessions: Gauge::default(),
            registered: Counter::default(),
            swept: Counter::default(),
            sent: Counter::default(),
            heard: Counter::default(),
            lost: Family::default(),
        }
    }
}

impl RedisMetrics {
    /// Makes the metrics visible in `registry`, the one of sessions.
    pub(crate) fn register(&self, registry: &mut Registry) {
        // Create all labels at start, so that the first count of each is an increase.
        for label in RequestLabel::all() {
            let _ = self.requests.get_or_create(&label);
        }
        for label in LossLabel::all() {
            let _ = self.lost.get_or_create(&label);
        }
        let registry = registry.sub_registry_with_prefix("redis");
        registry.register("requests", "Requests to Redis, by result", self.requests.clone());
        registry.register("request_seconds", "Time until Redis has answered", self.seconds.clone());
        registry.register("connects", "Connections made to Redis", self.connects.clone());
        let what =
            "Whether other nodes are reachable and have this node's sessions: 1, or 0 (also without Redis)";
        registry.register("up", what, self.up.clone());
        registry.register("nodes", "Nodes with a lease, at the last heartbeat", self.nodes.clone());
        registry.register("known", "Sessions of all nodes, at the last heartbeat", self.sessions.clone());
        let what = "Sessions of this node that were registered again";
        registry.register("registered_sessions", what, self.registered.clone());
        let what = "Sessions of dead nodes that this node has removed";
        registry.register("swept_sessions", what, self.swept.clone());
        registry.register("sent_events", "Events sent to other nodes", self.sent.clone());
        registry.register("heard_events", "Events received from other nodes", self.heard.clone());
        registry.register(
            "lost_events",
            "Events that did not get from node to node, by reason",
            self.lost.clone(),
        );
    }
}
