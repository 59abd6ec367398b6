//! What operators see.

use std::collections::BTreeSet;

use crate::support::{Server, folder};

/// The second word of each name. `build` and `server` are the process itself.
const SOURCES: &[&str] = &[
    "archive",
    "records",
    "blobs",
    "backup",
    "directory",
    "mail",
    "jmap",
    "search",
    "smtp",
    "checks",
    "quarantine",
    "learning",
    "delivery",
    "queue",
    "sending",
    "submissions",
    "vacation",
    "follow",
    "indexer",
    "sessions",
    "waku",
    "rest",
    "http",
    "net",
    "build",
    "server",
];

#[test]
fn metrics_are_named_alike() {
    let (_guard, folder) = folder();
    let server = Server::start_with(&folder, &["--archive", "memory:"]);
    server.publish("counted");
    assert_eq!(server.payloads(100).len(), 1);

    let answer = server.get("/metrics");
    assert_eq!(answer.status, 200);
    let mut names = BTreeSet::new();
    for line in answer.body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        names.insert(name.to_owned());
    }
    for name in &names {
        let parts: Vec<&str> = name.split('_').collect();
        assert_eq!(parts[0], "restante", "{name}");
        assert!(SOURCES.contains(&parts[1]), "{name} names no source");
        assert!(parts.len() > 2 && parts.iter().all(|part| !part.is_empty()), "{name}");
        let is_lower =
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        assert!(is_lower, "{name}");
    }
    for expected in
        ["restante_build_info", "restante_server_start_time_seconds", "restante_archive_append_seconds_count"]
    {
        assert!(names.contains(expected), "{expected} is missing in {names:?}");
    }
    let version = format!("restante_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    assert!(answer.body.contains(&version), "{}", answer.body);
    assert!(
        answer.body.contains("restante_archive_messages_total{engine=\"memory\",result=\"stored\"} 1"),
        "{}",
        answer.body
    );
}

#[test]
fn health_and_version_are_shown() {
    let (_guard, folder) = folder();
    let server = Server::start_with(&folder, &["--archive", "memory:"]);
    let health = server.get("/health");
    assert_eq!(health.status, 200, "{}", health.body);
    assert!(health.body.contains("Ready"), "{}", health.body);
    assert!(server.get("/version").body.contains(env!("CARGO_PKG_VERSION")));
    assert!(server.get("/info").body.contains(&server.url()));
}
