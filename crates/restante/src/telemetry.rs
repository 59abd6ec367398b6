//! What the server counts, in one registry, and how it is shown.

use std::sync::{Arc, atomic::AtomicU64};

use prometheus_client::{
    encoding::text,
    metrics::{gauge::Gauge, info::Info},
    registry::Registry,
};
use restante_core::Timestamp;

/// The version of this build.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A registry with what the process itself tells.
pub(crate) fn registry(started: Timestamp) -> Registry {
    let mut registry = Registry::default();
    registry.register("restante_build", "Version of the server", Info::new([("version", VERSION)]));
    let start = Gauge::<f64, AtomicU64>::default();
    start.set(started.nanos() as f64 / 1e9);
    registry.register("restante_server_start_time_seconds", "When the server was started, Unix time", start);
    registry
}

/// Gives the registry's content in the text format of OpenMetrics, each time anew.
pub(crate) fn shown(registry: Registry) -> Arc<dyn Fn() -> String + Send + Sync> {
    Arc::new(move || {
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("writing into a string can't fail");
        text
    })
}
