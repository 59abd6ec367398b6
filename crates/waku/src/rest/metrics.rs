//! What the REST door counts.

use std::{sync::Arc, time::Instant};

use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::Response,
};
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
use restante_net::{Activity, LogThrottle, SharedMemory};
use tracing::{Instrument, debug_span, warn};

use super::{live::LiveMetrics, reply::Noted};

/// What the REST door counts. Cloning shares the counts; unregistered metrics count for nobody.
#[derive(Clone, Debug)]
pub struct RestMetrics {
    requests: Family<RequestLabels, Counter>,
    seconds: Family<RouteLabel, Histogram, fn() -> Histogram>,
    pub(crate) cache: CacheMetrics,
    pub(super) live: LiveMetrics,
}

/// What is counted of messages that wait until clients fetch them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CacheMetrics {
    subscriptions: Gauge,
    messages: Gauge,
    bytes: Gauge,
    dropped: Family<DropLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabel {
    reason: &'static str,
}

/// Why a message is dropped before anybody has fetched it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// Its subscription has as many as it may have.
    Full,
    /// All together take as much memory as they may take.
    Memory,
}

impl DropReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Memory => "memory",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: &'static str,
}

/// The classes of statuses: the values of the label `status`.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

impl Default for RestMetrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(50e-6, 2.0, 18)); // 50 us to 6.5 s
        Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(histogram),
            cache: CacheMetrics::default(),
            live: LiveMetrics::default(),
        }
    }
}

impl RestMetrics {
    /// Makes the metrics visible in `registry` as `restante_rest_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_rest");
        registry.register("requests", "Requests by route and class of status", self.requests.clone());
        registry.register(
            "request_seconds",
            "Time from a request's head to its answer's",
            self.seconds.clone(),
        );
        self.cache.register(registry);
        self.live.register(registry);
    }

    /// The counts of one route, looked up once and not for every request.
    pub(crate) fn route(&self, route: &'static str) -> RouteMetrics {
        RouteMetrics {
            route,
            by_class: CLASSES
                .map(|status| self.requests.get_or_create(&RequestLabels { route, status }).clone()),
            seconds: self.seconds.get_or_create(&RouteLabel { route }).clone(),
        }
    }
}

impl CacheMetrics {
    fn register(&self, registry: &mut Registry) {
        let subscriptions = self.subscriptions.clone();
        registry.register("subscriptions", "Topics that REST clients have subscribed to", subscriptions);
        let messages = self.messages.clone();
        registry.register("cached_messages", "Messages that wait until a client fetches them", messages);
        registry.register("cached_bytes", "What the messages that wait take", self.bytes.clone());
        // Both reasons are there from the start, so that the first of each is an increase.
        for reason in [DropReason::Full, DropReason::Memory] {
            let _ = self.dropped.get_or_create(&DropLabel { reason: reason.as_str() });
        }
        let what = "Messages that were dropped before a client fetched them, by why";
        registry.register("cache_dropped", what, self.dropped.clone());
    }

    pub(crate) fn note(&self, subscriptions: usize, messages: usize, bytes: usize) {
        self.subscriptions.set(subscriptions as i64);
        self.messages.set(messages as i64);
        self.bytes.set(bytes as i64);
    }

    pub(crate) fn dropped(&self, reason: DropReason) {
        self.dropped.get_or_create(&DropLabel { reason: reason.as_str() }).inc();
    }
}

/// The counts of one route.
#[derive(Clone, Debug)]
pub(crate) struct RouteMetrics {
    route: &'static str,
    by_class: [Counter; 5],
    seconds: Histogram,
}

impl RouteMetrics {
    fn count(&self, status: StatusCode, begun: Instant) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(counter) = self.by_class.get(class) {
            counter.inc();
        }
        self.seconds.observe(begun.elapsed().as_secs_f64());
    }
}

/// What stands before a route's handler.
pub(crate) struct Observer {
    pub(crate) metrics: RouteMetrics,
    pub(crate) memory: Arc<dyn SharedMemory>,
    /// What is logged of requests that are refused.
    pub(crate) refused: LogThrottle,
}

/// Counts and times a route's requests.
pub(crate) async fn observe(State(observer): State<Arc<Observer>>, request: Request, next: Next) -> Response {
    let Observer { metrics, memory, refused } = &*observer;
    let begun = Instant::now();
    if let Some(connection) = request.extensions().get::<Arc<Activity>>() {
        connection.share_memory(memory);
    }
    let span = debug_span!("rest_request", route = metrics.route);
    let response = next.run(request).instrument(span).await;
    if let Some(reason) = Noted::of(&response)
        && let Some(times) = refused.count()
    {
        warn!(route = metrics.route, reason, times, "requests are refused");
    }
    metrics.count(response.status(), begun);
    response
}
