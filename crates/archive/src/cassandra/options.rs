//! The options of connections.

use std::{sync::Arc, time::Duration};

use percent_encoding::percent_decode_str;
use restante_net::tls::{self, ClientTls, Roots, Verify};
use scylla::{
    client::{
        PoolSize, execution_profile::ExecutionProfile, session::Session, session_builder::SessionBuilder,
    },
    policies::{
        load_balancing::DefaultPolicy, retry::FallthroughRetryPolicy,
        speculative_execution::SimpleSpeculativeExecutionPolicy,
    },
    statement::{Consistency, SerialConsistency},
};

use crate::{CassandraConfig, CassandraUrl, Error};

/// The value of `sslrootcert` that selects the authorities of the operating system.
const SYSTEM_ROOTS: &str = "system";
/// After this long without an answer another node is queried too, if it is safe to execute the statement twice.
const SPECULATION: Duration = Duration::from_millis(150);
const SPECULATIONS_MAX: usize = 1;
/// In a large cluster, nodes take seconds to agree on a new table.
const AGREEMENT: Duration = Duration::from_secs(50);

/// The TLS settings; `None` without TLS. Nodes are reached by their addresses, which hardly any certificate names, so only the
/// issuer can be verified.
fn tls_of(url: &CassandraUrl) -> Result<Option<ClientTls>, Error> {
    let roots = match url.parameter("sslrootcert") {
        Some(file) if file != SYSTEM_ROOTS => Roots::File(file.into()),
        _ => Roots::System,
    };
    let has_roots = url.parameter("sslrootcert").is_some();
    let verify = match url.parameter("sslmode") {
        None if has_roots => Verify::Chain,
        None | Some("disable") => return Ok(None),
        Some("require") if has_roots => Verify::Chain,
        Some("require") => Verify::Nothing,
        Some("verify-ca") => Verify::Chain,
        Some(other) => {
            let what = format!(
                "archive URL {url} has the unknown sslmode '{other}': use disable, require or verify-ca"
            );
            return Err(Error::invalid(what));
        }
    };
    let identity = match (url.parameter("sslcert"), url.parameter("sslkey")) {
        (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
        (None, None) => None,
        _ => {
            let what = format!("archive URL {url} names only one of sslcert and sslkey: name both");
            return Err(Error::invalid(what));
        }
    };
    Ok(Some(ClientTls { verify, roots, identity }))
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Connects to the nodes of a URL.
///
/// # Errors
/// `Invalid`: the URL or a file can't be used. `Unavailable`: no node can be reached.
pub(super) async fn connect(url: &CassandraUrl, config: &CassandraConfig) -> Result<Session, Error> {
    let connect_timeout = Duration::from_millis(config.connect_timeout_ms.get());
    let mut balancing = DefaultPolicy::builder().token_aware(true).permit_dc_failover(false);
    if let Some(datacenter) = url.parameter("datacenter") {
        balancing = balancing.prefer_datacenter(datacenter.to_owned());
    }
    let profile = ExecutionProfile::builder()
        .consistency(Consistency::LocalQuorum)
        .serial_consistency(Some(SerialConsistency::LocalSerial))
        .request_timeout(Some(Duration::from_millis(config.request_timeout_ms.get())))
        .load_balancing_policy(balancing.build())
        // The caller decides what is tried again, and for how long.
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .speculative_execution_policy(Some(Arc::new(SimpleSpeculativeExecutionPolicy {
            max_retry_count: SPECULATIONS_MAX,
            retry_interval: SPECULATION,
        })))
        .build();
    let mut builder = SessionBuilder::new()
        .known_nodes(url.nodes())
        .connection_timeout(connect_timeout)
        .schema_agreement_timeout(AGREEMENT)
        .pool_size(PoolSize::PerHost(config.connections))
        .keyspaces_to_fetch([url.keyspace()])
        .default_execution_profile_handle(profile.into_handle());
    if let Some(user) = url.user() {
        let password = url.password().map(decoded).or_else(|| url.password_beside().map(str::to_owned));
        builder = builder.user(decoded(user), password.unwrap_or_default());
    }
    if let Some(tls) = tls_of(url)? {
        tls::install_provider();
        let config = tls.config().map_err(|error| Error::invalid(format!("TLS to cassandra: {error}")))?;
        builder = builder.tls_context(Some(Arc::new(config)));
    }
    let nodes = u32::try_from(url.nodes().len()).unwrap_or(u32::MAX);
    // All known nodes are tried, one after the other.
    let limit = connect_timeout.saturating_mul(2).saturating_mul(nodes.saturating_add(1));
    let opened = tokio::time::timeout(limit, builder.build()).await;
    let unreached = |reason: String| {
        let nodes = url.nodes().join(", ");
        let what = format!(
            "cassandra can't be reached at {nodes}: {reason}: is it running? look at the archive URL"
        );
        Error::unavailable(what)
    };
    let opened = opened.map_err(|_| unreached("no answer in time".to_owned()))?;
    opened.map_err(|error| unreached(error.to_string()))
}

/// Checks what can be checked without a connection.
pub(super) fn check(url: &CassandraUrl) -> Result<(), Error> {
    if let Some(tls) = tls_of(url)? {
        tls::install_provider();
        tls.config().map_err(|error| Error::invalid(format!("TLS to cassandra: {error}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(parameters: &str) -> Result<Option<ClientTls>, Error> {
        tls_of(&format!("cassandra://me@one/archive?{parameters}").parse().unwrap())
    }

    #[test]
    fn modes_check_what_is_asked_for() {
        let file = || Roots::File("/etc/ca.pem".into());
        for (parameters, expected) in [
            ("", None),
            ("sslmode=disable", None),
            ("sslmode=require", Some((Verify::Nothing, Roots::System))),
            ("sslmode=require&sslrootcert=/etc/ca.pem", Some((Verify::Chain, file()))),
            ("sslrootcert=/etc/ca.pem", Some((Verify::Chain, file()))),
            ("sslmode=verify-ca", Some((Verify::Chain, Roots::System))),
            ("sslmode=verify-ca&sslrootcert=system", Some((Verify::Chain, Roots::System))),
        ] {
            let expected = expected.map(|(verify, roots)| ClientTls { verify, roots, identity: None });
            assert_eq!(tls(parameters).unwrap(), expected, "{parameters}");
        }
    }

    #[test]
    fn contradictory_parameters_are_refused() {
        for (parameters, hint) in
            [("sslmode=verify-full", "verify-ca"), ("sslmode=require&sslcert=/c.pem", "sslkey")]
        {
            assert!(tls(parameters).unwrap_err().to_string().contains(hint), "{parameters}");
        }
    }
}
