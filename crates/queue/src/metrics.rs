use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::work::Settlement;

/// The metrics of a queue. Clones share the counts; metrics that are not registered are not exported.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) work_up: Gauge,
    pub(crate) announcements_up: Gauge,
    pub(crate) is_dealer: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) dead: Gauge,
    pub(crate) published: Counter,
    pub(crate) publish_failed: Counter,
    pub(crate) received: Counter,
    pub(crate) settled: Family<SettledLabel, Counter>,
    pub(crate) connects: Counter,
    pub(crate) announced: Counter,
    pub(crate) heard: Counter,
    pub(crate) lost: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct SettledLabel {
    result: &'static str,
}

impl SettledLabel {
    pub(crate) fn of(settlement: Settlement) -> Self {
        let result = match settlement {
            Settlement::Done => "done",
            Settlement::Returned => "returned",
            Settlement::Rejected => "rejected",
        };
        Self { result }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            work_up: Gauge::default(),
            announcements_up: Gauge::default(),
            is_dealer: Gauge::default(),
            waiting: Gauge::default(),
            dead: Gauge::default(),
            published: Counter::default(),
            publish_failed: Counter::default(),
            received: Counter::default(),
            settled: Family::default(),
            connects: Counter::default(),
            announced: Counter::default(),
            heard: Counter::default(),
            lost: Counter::default(),
        };
        // Until an engine sets it: a server may have no queue.
        metrics.work_up.set(1);
        metrics.announcements_up.set(1);
        for settlement in [Settlement::Done, Settlement::Returned, Settlement::Rejected] {
            let _ = metrics.settled.get_or_create(&SettledLabel::of(settlement));
        }
        metrics
    }
}

impl Metrics {
    /// Makes the metrics visible in `registry` as `restante_queue_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_queue");
        registry.register(
            "work_up",
            "Whether the engine that deals out work can be used; 1 where there is none",
            self.work_up.clone(),
        );
        let help = "Whether the engine of announcements can be used; 1 where there is none";
        registry.register("announcements_up", help, self.announcements_up.clone());
        registry.register("is_dealer", "Whether this server deals out the work", self.is_dealer.clone());
        registry.register("waiting_items", "Items that wait for a server", self.waiting.clone());
        registry.register("dead_items", "Items that no server could use", self.dead.clone());
        registry.register("published", "Items that were added", self.published.clone());
        let help = "Items that could not be added: they are found in the records";
        registry.register("publish_failed", help, self.publish_failed.clone());
        registry.register("received", "Items that this server received", self.received.clone());
        registry.register("settled", "What became of received items", self.settled.clone());
        registry.register("connects", "Connections to engines that were made", self.connects.clone());
        registry.register(
            "announced",
            "Commits that were announced to other servers",
            self.announced.clone(),
        );
        registry.register("heard", "Announcements of other servers", self.heard.clone());
        let help = "Announcements that were not sent, or could not be read";
        registry.register("announcements_lost", help, self.lost.clone());
    }
}
