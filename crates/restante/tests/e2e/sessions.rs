//! Connected clients: listed, counted and closed from the command line, while the server runs and when it ends.

use std::{fs, path::Path};

use restante_waku::filter::FilterClient;
use serde_json::{Value, json};

use crate::{
    hostile_peers::connected_peer,
    live::{Reader, counted, listed},
    support::{CONTENT_TOPIC, PUBSUB_TOPIC, Server, folder, request, restante, say, wait_until},
};

/// A Redis that does not exist: port 1 of this machine accepts no connection.
const NOWHERE: &str = "redis://restante:secret@127.0.0.1:1/0";

fn start(folder: &Path, args: &[&str]) -> Server {
    Server::start_with(folder, &[&["--archive", "memory:", "--rest-admin"], args].concat())
}

fn stream(server: &Server) -> Reader {
    Reader::open(server, &format!("contentTopics={CONTENT_TOPIC}"))
}

#[test]
fn a_live_stream_is_listed_and_closed() {
    let (_guard, folder) = folder();
    let server = start(&folder, &[]);
    let reader = stream(&server);
    server.publish("live");
    reader.wait_for("bGl2ZQ=="); // "live" in base64

    let sessions = listed(&server, &[]);
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    let session = &sessions[0];
    assert_eq!(session["user"], reader.user().to_string());
    assert!(session["resource"].as_str().unwrap().starts_with("live"), "{session}");
    assert_eq!(session["info"]["door"], "rest_live");
    for (filter, count) in
        [(["--door", "rest_live"], 1), (["--door", "waku_filter"], 0), (["--user", "nobody"], 0)]
    {
        assert_eq!(listed(&server, &filter).len(), count, "{filter:?}");
    }
    let table = say(&folder, &["sessions", "list", "--rest", &server.url(), "--format", "table"]).out;
    assert!(table.contains(&reader.user().to_string()) && table.contains("door=rest_live"), "{table}");
    let counts = counted(&server);
    assert_eq!((&counts["sessions"], &counts["users"]), (&json!(1), &json!(1)));

    let id = session["id"].as_str().unwrap();
    let close = ["sessions", "close", "--rest", &server.url(), id];
    let closed = say(&folder, &close);
    assert_eq!((closed.code, &*closed.out), (0, "closed 1 session\n"), "{}", closed.err);
    let end = reader.wait_for_end();
    assert!(end.contains("operator"), "{end}");
    assert_eq!(listed(&server, &[]).len(), 0);
    let again = say(&folder, &close);
    assert_eq!((again.code, &*again.out), (1, "closed 0 sessions\n"));
    assert_eq!(again.err, format!("restante: there is no session {id}\n"));
}

#[test]
fn a_stream_that_hangs_up_is_no_session_any_more() {
    let (_guard, folder) = folder();
    let server = start(&folder, &[]);
    let readers = [stream(&server), stream(&server)];
    assert_eq!(listed(&server, &[]).len(), 2);
    drop(readers);
    wait_until("both are gone", || listed(&server, &[]).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_subscriber_is_a_session_of_its_peer() {
    let (_guard, folder) = folder();
    let server = start(&folder, &[]);
    let (node, peer) = connected_peer(&server).await;
    let client = FilterClient::new(node.clone());
    client.subscribe(peer, PUBSUB_TOPIC, &[CONTENT_TOPIC]).await.unwrap();

    let user = node.peer_id().to_string();
    let sessions = listed(&server, &["--user", &user]);
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    let session = &sessions[0];
    assert!(session["resource"].as_str().unwrap().starts_with("filter"), "{session}");
    assert_eq!(session["info"]["door"], "waku_filter");

    let closed = say(&folder, &["sessions", "close", "--rest", &server.url(), "--user", &user]);
    assert_eq!((closed.code, &*closed.out), (0, "closed 1 session\n"), "{}", closed.err);
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(120);
    while client.ping(peer).await.is_ok() {
        assert!(tokio::time::Instant::now() < deadline, "the subscription is still there");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(listed(&server, &[]).len(), 0);
}

#[test]
fn sessions_are_for_operators() {
    let (_guard, folder) = folder();
    let server = Server::start_with(&folder, &["--archive", "memory:"]);
    for command in [&["list"][..], &["count"], &["close", "--user", "x"]] {
        let said = say(&folder, &[&["sessions"], command, &["--rest", &server.url()]].concat());
        assert_eq!(said.code, 1, "{command:?}");
        assert!(said.err.contains("--rest-admin"), "{command:?}: {}", said.err);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    }
}

#[test]
fn the_token_opens_what_is_for_operators() {
    let (_guard, folder) = folder();
    for (file, token) in [("token", "correct-horse-battery\n"), ("other", "wrong-horse-battery")] {
        fs::write(folder.join(file), token).unwrap();
    }
    let server = Server::start_with(&folder, &["--archive", "memory:", "--rest-token-file", "token"]);
    let count = |args: &[&str], variable: Option<&str>| {
        let mut command = restante(&folder);
        command.args(["sessions", "count", "--rest", &server.url()]).args(args);
        command.envs(variable.map(|token| ("RESTANTE_TOKEN", token)));
        command.output().unwrap()
    };
    assert!(count(&["--token-file", "token"], None).status.success());
    assert!(count(&[], Some("correct-horse-battery")).status.success());
    for (args, variable) in [(&["--token-file", "other"][..], Some("correct-horse-battery")), (&[], None)] {
        let refused = count(args, variable);
        assert_eq!(refused.status.code(), Some(1), "{args:?}");
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(error.contains("401") && error.contains("token"), "{error}");
        assert!(!error.contains("horse"), "{error}");
    }
}

#[test]
fn a_server_that_stops_tells_its_streams_and_forgets_them() {
    let (_guard, folder) = folder();
    let server = start(&folder, &[]);
    let reader = stream(&server);
    assert_eq!(server.stop().code(), Some(0));
    let end = reader.wait_for_end();
    assert!(end.contains("stopping"), "{end}");
    let server = start(&folder, &[]);
    assert_eq!(counted(&server)["sessions"], 0);
}

#[test]
fn a_server_starts_without_redis_and_says_so() {
    let (_guard, folder) = folder();
    let log = folder.join("log");
    let mut command = restante(&folder);
    command.args(["serve", "--rest-port=0", "--tcp-port=0", "--archive=memory:", "--rest-admin"]);
    command.args(["--sessions-url", NOWHERE, "--log-level=warn"]);
    command.stderr(fs::File::create(&log).unwrap());
    let server = Server::spawn(command);
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("other servers are out of reach"), "{log}");
    assert!(!log.contains("secret"), "{log}");

    let health = server.get("/health");
    assert_eq!(health.status, 200, "{}", health.body);
    let state: Value = serde_json::from_str(&health.body).unwrap();
    let sessions = state["protocolsHealth"].as_array().unwrap().last().unwrap();
    assert_eq!(sessions["Sessions"], "Not Ready");
    assert!(!health.body.contains("secret"), "{}", health.body);

    // This server's sessions go on.
    let reader = stream(&server);
    server.publish("live");
    reader.wait_for("bGl2ZQ==");
    let listed = say(&folder, &["sessions", "list", "--rest", &server.url()]);
    assert_eq!((listed.code, listed.out.lines().count()), (0, 1), "{}", listed.err);
    assert!(listed.err.contains("other servers are out of reach"), "{}", listed.err);
    wait_until("the metric is there", || server.metric("restante_sessions_everywhere") == Some(1.0));
    assert_eq!(server.metric("restante_sessions_engine_up"), Some(0.0));
    assert_eq!(server.stop().code(), Some(0));
    assert!(reader.wait_for_end().contains("stopping"));
}

#[test]
fn the_password_of_redis_is_not_shown() {
    let (_guard, folder) = folder();
    let shown = say(&folder, &["config", "show", "--sessions-url", NOWHERE]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert!(shown.out.contains("sessions.url = \"redis://restante"), "{}", shown.out);
    assert!(!shown.out.contains("secret@"), "{}", shown.out);
    let missing = "[sessions]\nurl = \"redis://127.0.0.1:1/0\"\nredis.password_file = \"missing\"\n";
    fs::write(folder.join("restante.toml"), missing).unwrap();
    let refused = say(&folder, &["serve", "--rest-port=0"]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert!(refused.err.contains("can't read the password in missing"), "{}", refused.err);
}

/// A page that is open in a browser on this machine can send requests here, but no DELETE with its own origin.
#[test]
fn what_the_command_line_does_is_plain_http() {
    let (_guard, folder) = folder();
    let server = start(&folder, &[]);
    let reader = stream(&server);
    let page = request(server.address(), "GET", "/admin/v1/sessions", "").unwrap();
    let page: Value = serde_json::from_str(&page.body).unwrap();
    let id = page["sessions"][0]["id"].as_str().unwrap();
    let closed = request(server.address(), "DELETE", &format!("/admin/v1/sessions/{id}"), "").unwrap();
    assert_eq!((closed.status, &*closed.body), (200, r#"{"closed":1,"complete":true}"#));
    reader.wait_for_end();
}
