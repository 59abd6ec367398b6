//! The metrics of the server, in one registry, and how they are shown.

use std::sync::{Arc, atomic::AtomicU64};

use prometheus_client::{
    encoding::text,
    metrics::{gauge::Gauge, info::Info},
    registry::Registry,
};
use restante_core::Timestamp;

/// The version of this build.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A registry with the metrics of the process itself.
pub(crate) fn registry(started: Timestamp) -> Registry {
    let mut registry = Registry::default();
    registry.register("restante_build", "Version of the server", Info::new([("version", VERSION)]));
    let start = Gauge::<f64, AtomicU64>::default();
    start.set(started.nanos() as f64 / 1e9);
    registry.register("restante_server_start_time_seconds", "When the server was started, Unix time", start);
    registry
}

/// Returns a function that renders the registry in the text format of OpenMetrics.
pub(crate) fn shown(registry: Registry) -> Arc<dyn Fn() -> String + Send + Sync> {
    Arc::new(move || {
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("writing into a string can't fail");
        text
    })
}
