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

/// The metrics of the directory. Clones share the counts; metrics that are not registered are not exported.
#[derive(Clone, Debug)]
pub struct DirectoryMetrics {
    logins: Family<LoginLabel, Counter>,
    /// Time to derive keys from a password.
    pub(crate) check_seconds: Histogram,
    /// Passwords that wait to be checked.
    pub(crate) checks_waiting: Gauge,
    /// Passwords that are remembered.
    pub(crate) remembered: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LoginLabel {
    mechanism: &'static str,
    result: &'static str,
}

/// The kinds of log-ins that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    Password,
    ScramSha1,
    ScramSha256,
    Token,
}

impl Means {
    const ALL: [Self; 4] = [Self::Password, Self::ScramSha1, Self::ScramSha256, Self::Token];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::ScramSha1 => "scram_sha_1",
            Self::ScramSha256 => "scram_sha_256",
            Self::Token => "token",
        }
    }
}

/// The outcomes of log-ins that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginResult {
    Accepted,
    /// Accepted because it was remembered.
    Remembered,
    Refused,
    /// Too many failures before it.
    Limited,
    /// Too many checks wait.
    Busy,
    /// The records did not answer.
    Failed,
}

impl LoginResult {
    const ALL: [Self; 6] =
        [Self::Accepted, Self::Remembered, Self::Refused, Self::Limited, Self::Busy, Self::Failed];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Remembered => "remembered",
            Self::Refused => "refused",
            Self::Limited => "limited",
            Self::Busy => "busy",
            Self::Failed => "failed",
        }
    }
}

impl Default for DirectoryMetrics {
    fn default() -> Self {
        let metrics = Self {
            logins: Family::default(),
            check_seconds: Histogram::new(exponential_buckets(1e-3, 2.0, 14)), // 1 ms to 8 s
            checks_waiting: Gauge::default(),
            remembered: Gauge::default(),
        };
        // A label that was never counted would not be exported at all, so its rise from 0 would not be visible.
        for means in Means::ALL {
            for result in LoginResult::ALL {
                drop(metrics.logins_of(means, result));
            }
        }
        metrics
    }
}

impl DirectoryMetrics {
    /// Makes the metrics visible in `registry` as `restante_directory_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_directory");
        registry.register("logins", "Log-ins by mechanism and result", self.logins.clone());
        registry.register("check_seconds", "Time to derive keys from a password", self.check_seconds.clone());
        registry.register("checks_waiting", "Passwords that wait to be checked", self.checks_waiting.clone());
        registry.register("remembered_logins", "Passwords that are remembered", self.remembered.clone());
    }

    pub(crate) fn count(&self, means: Means, result: LoginResult) {
        self.logins_of(means, result).inc();
    }

    pub(crate) fn logins_of(&self, means: Means, result: LoginResult) -> Counter {
        let label = LoginLabel { mechanism: means.as_str(), result: result.as_str() };
        self.logins.get_or_create_owned(&label)
    }
}
