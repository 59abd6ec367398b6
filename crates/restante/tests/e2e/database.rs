//! An unreachable database: messages are accepted, spooled, and stored when an engine is there; and a second archive that
//! follows.

use std::{fs, path::Path};

use serde_json::Value;

use crate::support::{Server, folder, message, now, publish_path, request, said, say, wait_until};

/// A database that does not exist: port 1 of this machine accepts no connection.
const NOWHERE: &str = "postgres://restante:secret@127.0.0.1:1/archive";

fn start_without_database(folder: &Path) -> Server {
    Server::start_with(folder, &["--archive", NOWHERE, "--retention", "capacity:1000"])
}

#[test]
fn a_server_takes_messages_while_its_database_is_away_and_keeps_them() {
    let (_guard, folder) = folder();
    let mut server = start_without_database(&folder);
    for number in 0..20 {
        server.publish(&number.to_string());
    }
    let health = server.get("/health");
    assert_eq!(health.status, 503, "{}", health.body);
    let state: Value = serde_json::from_str(&health.body).unwrap();
    assert_eq!(state["nodeHealth"], "Not Ready");
    let desc = state["protocolsHealth"][1]["desc"].as_str().unwrap();
    assert!(desc.starts_with("postgres is unavailable"), "{desc}");
    assert!(desc.contains("since 20") && desc.contains("waiting in the spool: 20 messages"), "{desc}");
    assert!(!desc.contains("secret"), "{desc}");
    assert_eq!(server.get("/store/v3/messages").status, 503);
    assert_eq!(server.metric("restante_archive_engine_up"), Some(0.0));
    assert_eq!(server.metric("restante_archive_spool_messages"), Some(20.0));
    assert!(server.is_running());
    server.kill();

    let server = start_without_database(&folder);
    assert_eq!(server.metric("restante_archive_spool_messages"), Some(20.0));
    server.publish("after the crash");
    assert_eq!(server.stop().code(), Some(0));

    // An engine that replaces the database gets what was meant for it.
    let server = Server::start(&folder);
    wait_until("the spool is drained", || server.metric("restante_archive_spool_bytes") == Some(0.0));
    let mut expected: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    expected.push("after the crash".into());
    assert_eq!(server.payloads(100), expected);
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_full_spool_turns_publishers_away_for_a_while() {
    let (_guard, folder) = folder();
    fs::write(folder.join("restante.toml"), "[archive.spool]\nbytes_max = 3000\n").unwrap();
    let server = start_without_database(&folder);
    let publish = |number: i64| {
        let message = message("x", now() + number).to_string();
        request(server.address(), "POST", &publish_path(), &message).unwrap()
    };
    let refused =
        (0..100).map(publish).find(|answer| answer.status != 200).expect("3000 bytes are soon full");
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("its spool is full"), "{}", refused.body);
    let health = server.get("/health").body;
    assert!(health.contains("the spool is full"), "{health}");
}

#[test]
fn without_a_spool_a_database_must_be_there_at_the_start() {
    let (_guard, folder) = folder();
    fs::write(folder.join("restante.toml"), "[archive.spool]\nbytes_max = 0\n").unwrap();
    let refused = say(&folder, &["serve", "--rest-port", "0", "--archive", NOWHERE]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    let line = refused.err.lines().find(|line| line.starts_with("restante: ")).unwrap();
    assert!(line.contains("can't open the archive postgres://restante:***@127.0.0.1:1/archive"), "{line}");
    assert!(!refused.err.contains("secret"), "{}", refused.err);
}

#[test]
fn a_second_archive_follows_the_first() {
    let (_guard, folder) = folder();
    let server = Server::start_with(&folder, &["--archive", "log:one", "--tandem", "log:two"]);
    for number in 0..20 {
        server.publish(&number.to_string());
    }
    wait_until("it has followed", || server.metric("restante_archive_tandem_messages") == Some(0.0));
    assert_eq!(server.get("/health").status, 200);
    let first = server.payloads(100);
    assert_eq!(server.stop().code(), Some(0));

    let server = Server::start_with(&folder, &["--archive", "log:two"]);
    assert_eq!(server.payloads(100), first);
    assert_eq!(first.len(), 20);
}

#[test]
fn passwords_are_not_shown() {
    let (_guard, folder) = folder();
    let shown =
        said(&folder, &["config", "show", "--archive", NOWHERE, "--tandem", "postgres://a:secret@b/c"]);
    assert!(!shown.contains("secret@"), "{shown}");
    assert!(shown.contains("archive.url = \"postgres://restante:***@127.0.0.1:1/archive\""), "{shown}");
    let alias = said(&folder, &["config", "show", "--store-message-db-url", "sqlite://store.sqlite3"]);
    assert!(alias.contains("archive.url = \"sqlite:store.sqlite3\""), "{alias}");
}
