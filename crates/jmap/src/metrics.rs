//! The metrics of JMAP.

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

use crate::{
    core::{
        MethodError,
        errors::{RequestError, RequestErrorKind},
    },
    methods::email::query::QueryMetrics,
};

/// The outcome of a success.
const OK: &str = "ok";
/// The limit of event streams and WebSockets of one user, which has no name in RFC 8620.
const CONNECTIONS: &str = "connections";
/// The limits of requests (RFC 8620 §2), and that of connections.
const LIMITS: [&str; 6] = [
    "maxSizeRequest",
    "maxCallsInRequest",
    "maxConcurrentRequests",
    "maxConcurrentUpload",
    "maxSizeUpload",
    CONNECTIONS,
];

/// Calls and requests. Clones share the counts.
#[derive(Clone, Debug)]
pub struct JmapMetrics {
    requests: Family<OutcomeLabel, Counter>,
    limits: Family<LimitLabel, Counter>,
    calls: Family<CallLabels, Counter>,
    pub(crate) request_seconds: Histogram,
    pub(crate) queries: QueryMetrics,
    pub(crate) pushes: PushMetrics,
}

/// Pushes to the URLs of subscriptions. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct PushMetrics {
    sent: Family<PushLabels, Counter>,
    removed: Family<RemovalLabels, Counter>,
    waiting: Gauge,
    pub(crate) subscriptions: Gauge,
}

/// The values are closed sets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PushLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RemovalLabels {
    reason: &'static str,
}

/// Why the server removes a push subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalReason {
    Expired,
    /// Its password or token no longer exists.
    Revoked,
    /// The push service does not know its URL.
    Gone,
    /// Its pushes have failed for too long.
    Failed,
}

impl RemovalReason {
    fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Gone => "gone",
            Self::Failed => "failed",
        }
    }
}

/// A push that waits, until it is dropped.
pub(crate) struct WaitingPush(Gauge);

impl Drop for WaitingPush {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl PushMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("pushes", "Pushes to URLs of subscriptions by result", self.sent.clone());
        let help = "Push subscriptions that the server has removed, by reason";
        registry.register("push_subscriptions_removed", help, self.removed.clone());
        let help = "Pushes that wait for others, or to be tried again";
        registry.register("pushes_waiting", help, self.waiting.clone());
        registry.register("push_subscriptions", "Push subscriptions", self.subscriptions.clone());
    }

    /// Counts a push that waits.
    pub(crate) fn wait(&self) -> WaitingPush {
        self.waiting.inc();
        WaitingPush(self.waiting.clone())
    }

    pub(crate) fn sent(&self, is_sent: bool) {
        self.sent.get_or_create(&PushLabels { result: if is_sent { "sent" } else { "failed" } }).inc();
    }

    pub(crate) fn removed(&self, reason: RemovalReason) {
        self.removed.get_or_create(&RemovalLabels { reason: reason.name() }).inc();
    }
}

/// The outcome of a request as a whole: `ok`, or the name of its error.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// A limit by its name in the session object, or [`CONNECTIONS`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

/// The values are closed sets: the names of the table of methods and `unknown`; `ok` and the types of errors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: &'static str,
    outcome: &'static str,
}

impl Default for JmapMetrics {
    fn default() -> Self {
        let request_seconds = Histogram::new(exponential_buckets(50e-6, 2.0, 18)); // 50 us to 6.5 s
        let metrics = Self {
            requests: Family::default(),
            limits: Family::default(),
            calls: Family::default(),
            queries: QueryMetrics::default(),
            pushes: PushMetrics::default(),
            request_seconds,
        };
        // Created with 0, so that the first event is visible as an increase.
        for outcome in [OK, "limit", "unavailable"] {
            drop(metrics.requests.get_or_create(&OutcomeLabel { outcome }));
        }
        for limit in LIMITS {
            drop(metrics.limits.get_or_create(&LimitLabel { limit }));
        }
        metrics
    }
}

impl JmapMetrics {
    /// Registers the metrics in `registry` as `restante_jmap_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_jmap");
        registry.register("requests", "Requests by outcome", self.requests.clone());
        let help = "Requests and uploads that were refused for a limit, by its name in the session object; event streams and \
                    WebSockets as connections";
        registry.register("limits", help, self.limits.clone());
        registry.register("calls", "Calls by method and outcome", self.calls.clone());
        let help = "Time from a request that was read to its responses";
        registry.register("request_seconds", help, self.request_seconds.clone());
        self.queries.register(registry);
        self.pushes.register(registry);
    }

    /// Counts a request that was answered with its responses.
    pub(crate) fn count_request(&self) {
        self.requests.get_or_create(&OutcomeLabel { outcome: OK }).inc();
    }

    /// Counts a request that was refused as a whole.
    pub(crate) fn count_refused(&self, error: &RequestError) {
        self.requests.get_or_create(&OutcomeLabel { outcome: error.name() }).inc();
        self.count_limit(error);
    }

    /// Counts a reached limit, if an error is about one.
    pub(crate) fn count_limit(&self, error: &RequestError) {
        if let RequestErrorKind::Limit(limit) = error.kind() {
            self.limits.get_or_create(&LimitLabel { limit }).inc();
        }
    }

    /// Counts an event stream or a WebSocket that was refused because its user has too many.
    pub(crate) fn count_refused_connection(&self) {
        self.limits.get_or_create(&LimitLabel { limit: CONNECTIONS }).inc();
    }

    /// Counts a call.
    pub(crate) fn count(&self, method: &'static str, error: Option<&MethodError>) {
        let outcome = error.map_or(OK, MethodError::name);
        self.calls.get_or_create(&CallLabels { method, outcome }).inc();
    }
}
