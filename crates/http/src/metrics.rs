//! The metrics of requests.

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
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use restante_net::{Activity, LogThrottle, SharedMemory};
use tracing::{Instrument, debug_span, warn};

use crate::reply::{LogReason, RefusalFormat, with_problem};

/// The requests of one listener. Cloning shares the counts; [`HttpMetrics::of`] returns those of another listener.
#[derive(Clone, Debug)]
pub struct HttpMetrics {
    listener: &'static str,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    listener: &'static str,
    route: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    listener: &'static str,
    route: &'static str,
}

/// The classes of statuses: the values of the label `status`.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

impl Default for HttpMetrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(50e-6, 2.0, 18)); // 50 us to 6.5 s
        let seconds = Family::new_with_constructor(histogram);
        Self { listener: "rest", requests: Family::default(), seconds }
    }
}

impl HttpMetrics {
    /// The same families for the requests of a listener.
    #[must_use]
    pub fn of(&self, listener: &'static str) -> Self {
        Self { listener, ..self.clone() }
    }

    /// Registers the metrics of all listeners in `registry` as `restante_http_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_http");
        registry.register(
            "requests",
            "Requests by listener, route and class of status",
            self.requests.clone(),
        );
        registry.register(
            "request_seconds",
            "Time from a request's head to its answer's",
            self.seconds.clone(),
        );
    }

    /// The counts of one route, looked up once instead of for every request.
    pub(crate) fn route(&self, route: &'static str) -> RouteMetrics {
        let listener = self.listener;
        let counter =
            |status| self.requests.get_or_create(&RequestLabels { listener, route, status }).clone();
        let seconds = self.seconds.get_or_create(&RouteLabels { listener, route }).clone();
        RouteMetrics { route, by_class: CLASSES.map(counter), seconds }
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

/// Counts, times and logs the requests of a route.
pub(crate) struct Observer {
    metrics: RouteMetrics,
    memory: Arc<dyn SharedMemory>,
    format: RefusalFormat,
    refused: LogThrottle,
}

impl Observer {
    pub(crate) fn new(metrics: RouteMetrics, memory: Arc<dyn SharedMemory>, format: RefusalFormat) -> Self {
        Self { metrics, memory, format, refused: LogThrottle::default() }
    }
}

/// Counts and times a route's requests.
pub(crate) async fn observe(State(observer): State<Arc<Observer>>, request: Request, next: Next) -> Response {
    let Observer { metrics, memory, format, refused } = &*observer;
    let begun = Instant::now();
    if let Some(connection) = request.extensions().get::<Arc<Activity>>() {
        connection.share_memory(memory);
    }
    let span = debug_span!("http_request", route = metrics.route);
    let response = next.run(request).instrument(span).await;
    if let Some(reason) = LogReason::of(&response)
        && let Some(times) = refused.count()
    {
        warn!(route = metrics.route, reason, times, "requests are refused");
    }
    metrics.count(response.status(), begun);
    match format {
        RefusalFormat::Text => response,
        RefusalFormat::Problem => with_problem(response),
    }
}
