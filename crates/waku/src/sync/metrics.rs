use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The metrics of store sync.
#[derive(Clone, Debug, Default)]
pub struct SyncMetrics {
    runs: Family<ResultLabel, Counter>,
    pub(super) hashes: Counter,
    pub(super) messages: Counter,
    pub(super) declined: Counter,
    pub(super) wrong: Counter,
    pub(super) last_success: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// How a run with a peer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunResult {
    /// The whole window was read.
    Complete,
    /// The time for a run was over.
    Unfinished,
    /// The peer could not be reached, or did not answer.
    Away,
    /// The peer answered, but refused.
    Refused,
    /// The peer's answers were invalid.
    Wrong,
    /// This node's own archive failed.
    Archive,
}

impl RunResult {
    const ALL: [Self; 6] =
        [Self::Complete, Self::Unfinished, Self::Away, Self::Refused, Self::Wrong, Self::Archive];

    /// The value of the label `result`.
    fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Unfinished => "unfinished",
            Self::Away => "away",
            Self::Refused => "refused",
            Self::Wrong => "wrong",
            Self::Archive => "archive",
        }
    }
}

impl SyncMetrics {
    pub(super) fn ran(&self, result: RunResult) {
        self.runs.get_or_create(&ResultLabel { result: result.as_str() }).inc();
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        // All label values exist from the start, so that the first run of each is an increase.
        for result in RunResult::ALL {
            let _ = self.runs.get_or_create(&ResultLabel { result: result.as_str() });
        }
        registry.register(
            "sync_runs",
            "Runs of store sync with a peer, by how they ended",
            self.runs.clone(),
        );
        let what = "Hashes of store peers that were looked up in this node's archive";
        registry.register("sync_hashes", what, self.hashes.clone());
        let what = "Missing messages that store sync has archived";
        registry.register("sync_messages", what, self.messages.clone());
        let what = "Messages of store peers that this node does not accept";
        registry.register("sync_declined_messages", what, self.declined.clone());
        let what = "Announced messages that store peers did not send, or sent with a wrong hash";
        registry.register("sync_wrong_messages", what, self.wrong.clone());
        let what = "When a run of store sync was last completed, in seconds since 1970; 0 is never";
        registry.register("sync_last_success_timestamp_seconds", what, self.last_success.clone());
    }
}
