//! A door that the settings switch off opens nothing.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::support::{Server, folder, request, restante, say};

/// A server with these settings, at a free port for operators.
fn start(folder: &Path, settings: &[(&str, &str)]) -> Server {
    let mut command = restante(folder);
    command.args(["serve", "--rest-port=0", "--tcp-port=0", "--log-level=warn"]);
    command.env("RESTANTE_OPERATE__LISTEN", "127.0.0.1:0").envs(settings.iter().copied());
    Server::spawn(command)
}

#[test]
fn without_mail_there_are_no_records_blobs_and_accounts() {
    let (_guard, folder) = folder();
    let server = start(&folder, &[("RESTANTE_MAIL__ENABLED", "false")]);
    server.publish("hello");
    let health = server.get("/health");
    assert_eq!(health.status, 200);
    assert!(!health.body.contains("Records") && !health.body.contains("Blobs"), "{}", health.body);
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("restante_archive_") && !metrics.contains("restante_records_"), "{metrics}");
    server.stop();
    let names = names_in(&folder.join("data"));
    assert!(names.contains(&"archive".to_owned()), "{names:?}");
    assert!(!names.iter().any(|name| ["records", "blobs"].contains(&name.as_str())), "{names:?}");
}

#[test]
fn without_waku_there_is_no_archive_and_operators_are_served() {
    let (_guard, folder) = folder();
    let off = [("RESTANTE_REST__ENABLED", "false"), ("RESTANTE_WAKU__NODE__ENABLED", "false")];
    let server = start(&folder, &off);
    let health = server.get("/health");
    assert_eq!(health.status, 200, "{}", health.body);
    assert!(health.body.contains("Records") && !health.body.contains("Store"), "{}", health.body);
    let add = json!({"by": "a test", "operation": {"do": "add_domain", "domain": "example.org"}});
    assert_eq!(server.post("/admin/v1/directory", &add).status, 200);
    for path in ["/store/v3/messages", "/archive/v1/export"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    let state = request(server.address(), "GET", "/console/v1/state", "").unwrap();
    let state: Value = serde_json::from_str(&state.body).unwrap();
    let state = &state["server"];
    assert_eq!((&state["archive"], &state["retention"]), (&Value::Null, &Value::Null));
    assert_eq!(state["isReady"], true);
    let backup = folder.join("copy");
    let answer = server.post("/admin/v1/backup", &json!({"folder": backup}));
    assert!(backup.join("records").is_dir() && !backup.join("archive").exists(), "{}", answer.body);
    server.stop();
    assert_eq!(
        names_in(&folder.join("data")),
        ["blobs", "journal", "last-backup.json", "records", "server.lock"]
    );
}

#[test]
fn a_server_without_a_door_does_not_start() {
    let (_guard, folder) = folder();
    fs::write(
        folder.join("restante.toml"),
        "rest.enabled = false\nwaku.node.enabled = false\nmail.enabled = false\n",
    )
    .unwrap();
    let said = say(&folder, &["serve"]);
    assert_eq!(said.code, 2);
    assert!(
        said.err.contains("switch one on with rest.enabled or waku.node.enabled or mail.enabled"),
        "{}",
        said.err
    );
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
