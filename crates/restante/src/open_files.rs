//! How many files and connections the process may have open.

use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::{debug, warn};

use crate::{config::Config, doors};

/// The open files of a server in addition to its connections: segments and databases, logs, the runtime's own.
const OTHERS: u64 = 512;

/// Raises the limit to the maximum that the system allows. Many systems start with 1,024, which as many connections use up; then
/// neither files can be opened nor connections accepted.
pub(crate) fn raise(config: &Config) {
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        debug!(%error, "the limit of open files was not raised");
        limit.current = before;
    }
    let wanted = wanted(config);
    if let Some(allowed) = limit.current.filter(|allowed| *allowed < wanted) {
        warn!(
            allowed,
            wanted,
            "the system allows too few open files for all connections: raise it (ulimit -n, LimitNOFILE=)"
        );
    }
}

/// How many open files the system allows and how many are needed, if it allows fewer. A server raises its own limit first.
pub(crate) fn shortage(config: &Config) -> Option<(u64, u64)> {
    let wanted = wanted(config);
    let allowed = getrlimit(Resource::Nofile).maximum?;
    (allowed < wanted).then_some((allowed, wanted))
}

/// The sum of all limits on connections.
fn wanted(config: &Config) -> u64 {
    let http = doors::http_bounds(config).limits.connections_max as u64;
    let others: u64 = doors::enabled(config).map(|door| door.connections_max(config)).sum();
    OTHERS + http + others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_counts() {
        let config = Config::default();
        assert!(wanted(&config) > config.rest.door.connections_max.get() as u64 + 1_000);
        raise(&config);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum, "the test may have what the system allows");
    }
}
