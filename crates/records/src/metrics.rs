use prometheus_client::registry::Registry;

/// What is counted of a record store. Cloning shares the counts; unregistered metrics count for nobody.
#[derive(Clone, Debug, Default)]
pub struct Metrics {}

impl Metrics {
    /// Makes the metrics visible in `registry` as `restante_records_...`.
    pub fn register(&self, registry: &mut Registry) {
        let _registry = registry.sub_registry_with_prefix("restante_records");
    }
}
