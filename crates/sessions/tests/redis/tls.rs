//! Redis over TLS, with certificates that `dev/services` made.

use std::{path::PathBuf, sync::Arc};

use restante_sessions::{Config, EngineUrl, Opened, open};

use crate::{
    Subject,
    common::{
        node::{Node, Recorder},
        soon,
    },
};

/// The tests of this module, which need a server with certificates.
pub(crate) const TESTS: [&str; 3] = [
    "nodes_share_a_table_by_tls",
    "a_server_with_the_wrong_certificate_is_refused",
    "a_certificate_of_another_authority_is_refused",
];
/// The folder of certificates of the server that `dev/services` starts.
pub(crate) const CERTIFICATES: &str = "RESTANTE_REDIS_TLS";

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn certificate(file: &str) -> PathBuf {
    PathBuf::from(variable(CERTIFICATES)).join(file)
}

/// The same table, reached over TLS.
fn by_tls(table: &Subject) -> Config {
    let mut config = table.config();
    config.url = EngineUrl::Redis(variable("RESTANTE_REDIS_TLS_URL"));
    config.redis.ca_file = certificate("ca.pem");
    config
}

pub(crate) async fn nodes_share_a_table_by_tls(table: Subject) {
    let mut with_certificate = by_tls(&table);
    with_certificate.redis.certificate_file = certificate("client.pem");
    with_certificate.redis.certificate_key_file = certificate("client.key");
    let (one, other) = (Node::new(by_tls(&table)).await, Node::new(with_certificate).await);
    let id = one.open("u", "r").await;
    soon("the other node sees the session", async {
        while other.ids("u").await != [id] {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn is_refused(config: Config) {
    let Opened { nodes, .. } = open(config, Arc::new(Recorder::default())).await.unwrap();
    let problem = nodes.health().unwrap_err().to_string();
    assert!(problem.contains("unreachable"), "{problem}");
    // The library's message about the handshake: the server's certificate, or the server's alert about ours.
    assert!(problem.to_lowercase().contains("certificate") || problem.contains("UnknownCA"), "{problem}");
}

pub(crate) async fn a_server_with_the_wrong_certificate_is_refused(table: Subject) {
    let mut other_authority = by_tls(&table);
    other_authority.redis.ca_file = certificate("other-ca.pem");
    is_refused(other_authority).await;
    let mut other_name = by_tls(&table);
    other_name.url = EngineUrl::Redis(variable("RESTANTE_REDIS_TLS_URL").replace("localhost", "127.0.0.1"));
    is_refused(other_name).await;
    let mut system = by_tls(&table);
    system.redis.ca_file = PathBuf::new();
    is_refused(system).await;
}

pub(crate) async fn a_certificate_of_another_authority_is_refused(table: Subject) {
    let mut config = by_tls(&table);
    config.redis.certificate_file = certificate("other-ca.pem");
    config.redis.certificate_key_file = certificate("other-ca.key");
    is_refused(config).await;
}
