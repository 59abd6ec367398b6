use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// Counts the answers of peers to metadata requests.
#[derive(Clone, Debug, Default)]
pub struct MetadataMetrics {
    answers: Family<AnswerLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    result: &'static str,
}

/// What a peer answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerResult {
    /// It is in our cluster.
    SameCluster,
    /// It is in another cluster, and was disconnected.
    OtherCluster,
    /// It named no cluster, and was disconnected.
    NoCluster,
    /// It did not answer, or the answer can't be decoded.
    NoAnswer,
}

impl AnswerResult {
    /// The value of the label `result`.
    fn as_str(self) -> &'static str {
        match self {
            Self::SameCluster => "same_cluster",
            Self::OtherCluster => "other_cluster",
            Self::NoCluster => "no_cluster",
            Self::NoAnswer => "no_answer",
        }
    }
}

impl MetadataMetrics {
    pub(super) fn count_answer(&self, result: AnswerResult) {
        self.answers.get_or_create(&AnswerLabels { result: result.as_str() }).inc();
    }

    #[cfg(test)]
    pub(crate) fn count(&self, result: AnswerResult) -> u64 {
        self.answers.get_or_create(&AnswerLabels { result: result.as_str() }).get()
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let what = "Peers that were asked for their cluster, by their answer";
        registry.register("metadata_answers", what, self.answers.clone());
    }
}
