use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use restante_core::ErrorKind;

/// The metrics of a record store. Clones share the counts; metrics that are not registered are counted but never exported.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) commit_seconds: Histogram,
    pub(crate) query_seconds: Histogram,
    pub(crate) changes: Family<ChangeLabel, Counter>,
    pub(crate) committed_blobs: Counter,
    pub(crate) gets: Counter,
    pub(crate) errors: Family<ErrorLabel, Counter>,
    pub(crate) cleaned_tombstones: Counter,
    pub(crate) erased_records: Counter,
    /// Metrics of the `lmdb` engine; 0 with other engines.
    pub(crate) lmdb: restante_lmdb::Metrics,
    /// This and the next one are of the `postgres` engine; 0 with other engines.
    pub(crate) postgres_group_commits: Histogram,
    pub(crate) postgres_settled: Counter,
    /// This and the next four are of the `cassandra` engine; 0 with other engines.
    pub(crate) cassandra_requests: Family<RequestLabel, Counter>,
    pub(crate) cassandra_group_commits: Histogram,
    pub(crate) cassandra_refused: Counter,
    pub(crate) cassandra_settled: Counter,
    pub(crate) cassandra_held_up: Counter,
}

/// How a change affects a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ChangeLabel {
    pub(crate) change: &'static str,
}

impl ChangeLabel {
    pub(crate) const CREATE: Self = Self { change: "create" };
    pub(crate) const UPDATE: Self = Self { change: "update" };
    pub(crate) const DESTROY: Self = Self { change: "destroy" };
}

/// The kind of a request to Cassandra.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabel {
    pub(crate) request: &'static str,
}

impl RequestLabel {
    pub(crate) const READ: Self = Self { request: "read" };
    pub(crate) const SERIAL_READ: Self = Self { request: "serial_read" };
    pub(crate) const WRITE: Self = Self { request: "write" };
    pub(crate) const CONDITIONAL: Self = Self { request: "conditional" };
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ErrorLabel {
    pub(crate) operation: &'static str,
    pub(crate) kind: &'static str,
}

/// An operation of a record store, as errors are counted: operations of followers share one label, and so do those of operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Commit,
    Get,
    Query,
    Changes,
    States,
    Feed,
    Upkeep,
}

impl Operation {
    const ALL: [Self; 7] =
        [Self::Commit, Self::Get, Self::Query, Self::Changes, Self::States, Self::Feed, Self::Upkeep];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Get => "get",
            Self::Query => "query",
            Self::Changes => "changes",
            Self::States => "states",
            Self::Feed => "feed",
            Self::Upkeep => "upkeep",
        }
    }
}

const ERROR_KINDS: [ErrorKind; 7] = [
    ErrorKind::NotFound,
    ErrorKind::Invalid,
    ErrorKind::Conflict,
    ErrorKind::Full,
    ErrorKind::Unavailable,
    ErrorKind::Corrupt,
    ErrorKind::Internal,
];

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            commit_seconds: Histogram::new(exponential_buckets(20e-6, 2.0, 18)), // 20 us to 2.6 s
            query_seconds: Histogram::new(exponential_buckets(5e-6, 2.0, 18)),   // 5 us to 0.7 s
            changes: Family::default(),
            committed_blobs: Counter::default(),
            gets: Counter::default(),
            errors: Family::default(),
            cleaned_tombstones: Counter::default(),
            erased_records: Counter::default(),
            lmdb: restante_lmdb::Metrics::default(),
            postgres_group_commits: Histogram::new(exponential_buckets(1.0, 2.0, 9)), // 1 to 256
            postgres_settled: Counter::default(),
            cassandra_requests: Family::default(),
            cassandra_group_commits: Histogram::new(exponential_buckets(1.0, 2.0, 7)), // 1 to 64
            cassandra_refused: Counter::default(),
            cassandra_settled: Counter::default(),
            cassandra_held_up: Counter::default(),
        };
        // Labels that were never counted would not be exported at all, and a rise from 0 would be missed.
        for change in [ChangeLabel::CREATE, ChangeLabel::UPDATE, ChangeLabel::DESTROY] {
            drop(metrics.changes.get_or_create(&change));
        }
        let requests =
            [RequestLabel::READ, RequestLabel::SERIAL_READ, RequestLabel::WRITE, RequestLabel::CONDITIONAL];
        for request in requests {
            drop(metrics.cassandra_requests.get_or_create(&request));
        }
        for operation in Operation::ALL {
            for kind in ERROR_KINDS {
                drop(metrics.errors_of(operation, kind));
            }
        }
        metrics
    }
}

impl Metrics {
    /// Makes the metrics visible in `registry` as `restante_records_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_records");
        registry.register(
            "commit_seconds",
            "Time from a commit to its durable answer",
            self.commit_seconds.clone(),
        );
        registry.register(
            "query_seconds",
            "Time to answer one page of an index, or those of several queries at once",
            self.query_seconds.clone(),
        );
        registry.register("changes", "Changes that were committed", self.changes.clone());
        registry.register(
            "committed_blobs",
            "Blobs that a commit has made durable, so that they needed no sync of their own",
            self.committed_blobs.clone(),
        );
        registry.register("gets", "Reads of records by their ids", self.gets.clone());
        registry.register("errors", "Failed operations by kind of error", self.errors.clone());
        registry.register(
            "cleaned_tombstones",
            "Destroyed records that history was made to forget",
            self.cleaned_tombstones.clone(),
        );
        registry.register(
            "erased_records",
            "Records of accounts that were erased",
            self.erased_records.clone(),
        );
        registry.register(
            "postgres_group_commits",
            "Commits that one transaction in PostgreSQL makes",
            self.postgres_group_commits.clone(),
        );
        registry.register(
            "postgres_settled",
            "Transactions in PostgreSQL whose outcome had to be looked up because the connection was lost",
            self.postgres_settled.clone(),
        );
        registry.register(
            "cassandra_requests",
            "Requests to Cassandra, those that were tried again included",
            self.cassandra_requests.clone(),
        );
        registry.register(
            "cassandra_group_commits",
            "Commits of an account that one batch in Cassandra makes",
            self.cassandra_group_commits.clone(),
        );
        registry.register(
            "cassandra_refused",
            "Conditional batches in Cassandra that were made again because another server was faster",
            self.cassandra_refused.clone(),
        );
        registry.register(
            "cassandra_settled",
            "Conditional batches in Cassandra that were tried again because their answer was lost",
            self.cassandra_settled.clone(),
        );
        registry.register(
            "cassandra_held_up",
            "Groups of commits to Cassandra that waited for a reader of their account which commits had overtaken",
            self.cassandra_held_up.clone(),
        );
        self.lmdb.register(registry);
    }

    pub(crate) fn errors_of(&self, operation: Operation, kind: ErrorKind) -> Counter {
        let label = ErrorLabel { operation: operation.as_str(), kind: kind.as_str() };
        self.errors.get_or_create_owned(&label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_exported_before_anything_is_counted() {
        let mut registry = Registry::default();
        Metrics::default().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "restante_records_commit_seconds_count 0",
            "restante_records_query_seconds_count 0",
            "restante_records_changes_total{change=\"destroy\"} 0",
            "restante_records_gets_total 0",
            "restante_records_errors_total{operation=\"upkeep\",kind=\"not_found\"} 0",
            "restante_records_cleaned_tombstones_total 0",
            "restante_records_erased_records_total 0",
            "restante_records_lmdb_writes_total 0",
            "restante_records_postgres_group_commits_count 0",
            "restante_records_postgres_settled_total 0",
            "restante_records_cassandra_requests_total{request=\"conditional\"} 0",
            "restante_records_cassandra_group_commits_count 0",
            "restante_records_cassandra_refused_total 0",
            "restante_records_cassandra_settled_total 0",
            "restante_records_cassandra_held_up_total 0",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
    }
}
