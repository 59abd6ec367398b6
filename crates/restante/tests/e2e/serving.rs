//! A server's life: started, used, stopped in order, started again.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
};

use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use serde_json::Value;

use crate::support::{
    CONTENT_TOPIC, PUBSUB_TOPIC, Server, exchange, folder, free_address, message, now, publish_path, request,
    restante, said, say, say_with_input, wait_until,
};

#[test]
fn what_is_published_by_either_way_is_queried_by_either_way() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    let url = server.url();
    let topics = ["--pubsub-topic", PUBSUB_TOPIC, "--content-topic", CONTENT_TOPIC];

    server.publish("by http");
    let hash =
        said(&folder, &[&["publish", "--rest", &url, "--payload", "by command"], &topics[..]].concat());
    let piped = say_with_input(&folder, &[&["publish", "--rest", &url], &topics[..]].concat(), b"by pipe");
    assert_eq!(piped.code, 0, "{}", piped.err);

    assert_eq!(server.payloads(2), ["by http", "by command", "by pipe"]);
    let found = said(&folder, &["query", "--rest", &url, "--hash", hash.trim()]);
    let entry: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(entry["messageHash"], hash.trim());
    assert_eq!(crate::support::payload_of(&entry), "by command");
    assert_eq!(server.stop().code(), Some(0));
}

/// A topic with a comma was split, and a long list of topics did not fit into a URL.
#[test]
fn any_topics_can_be_queried_and_times_that_a_server_misreads_can_not() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    let url = server.url();
    let topic = "/toy/1/a,b/proto";
    let publish = [
        "publish",
        "--rest",
        &url,
        "--pubsub-topic",
        PUBSUB_TOPIC,
        "--content-topic",
        topic,
        "--payload",
        "x",
    ];
    said(&folder, &publish);
    server.publish("other");
    let count = |args: &[&str]| said(&folder, &[&["query", "--rest", &url], args].concat()).lines().count();
    assert_eq!(count(&["--content-topic", topic]), 1);
    let others: Vec<String> =
        (0..3_000).map(|number| format!("--content-topic=/toy/1/{number}/proto")).collect();
    let mut many: Vec<&str> = others.iter().map(String::as_str).collect();
    assert_eq!(count(&many), 0);
    many.extend(["--content-topic", CONTENT_TOPIC]);
    assert_eq!(count(&many), 1);
    for end in ["0", "1970-01-01", "1970-01-02"] {
        let refused = say(&folder, &["query", "--rest", &url, "--end", end]);
        assert_eq!((refused.code, &*refused.out), (2, ""), "{}", refused.err);
        assert!(
            refused.err.contains("--end 1970-01-0") && refused.err.contains("--archive"),
            "{}",
            refused.err
        );
    }
    assert_eq!(said(&folder, &["query", "--archive", "log:data/archive", "--end", "0"]), "");
}

/// The routes for operators exist without a setting, and not where clients publish and query.
#[test]
fn operators_have_a_listener_of_their_own() {
    let (_guard, folder) = folder();
    let free = free_address();
    let mut command = restante(&folder);
    command.args(["serve", "--rest-port", "0", "--tcp-port", "0"]);
    command.env("RESTANTE_OPERATE__LISTEN", free.to_string());
    let server = Server::spawn(command);
    let operate = |path: &str| request(free, "GET", path, "").expect("the listener answers");
    for path in ["/admin/v1/peers", "/admin/v1/sessions", "/admin/v1/records", "/console/v1/state"] {
        assert_eq!(operate(path).status, 200, "{path}");
    }
    assert_eq!(server.get("/admin/v1/peers").status, 404);
    let state: Value = serde_json::from_str(&operate("/console/v1/state").body).unwrap();
    assert_eq!(state["server"]["hasAdmin"], true);
    let names: Vec<&str> = state["server"]["doors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|door| door["name"].as_str().unwrap())
        .collect();
    assert_eq!(names[..3], ["REST", "Operators", "Waku node"]);

    server.publish("hello");
    assert!(operate("/store/v3/messages").body.contains("messageHash"), "the console reads history here");
    assert_eq!(request(free, "POST", &publish_path(), "{}").unwrap().status, 404, "and nobody publishes");
    for health in [operate("/health"), server.get("/health")] {
        let health: Value = serde_json::from_str(&health.body).unwrap();
        assert_eq!(health["nodeHealth"], "Ready", "{health}");
    }
    let metrics = operate("/metrics").body;
    for listener in ["rest", "operate"] {
        let requests = format!(
            "restante_http_requests_total{{listener=\"{listener}\",route=\"/health\",status=\"2xx\"}} 1\n"
        );
        assert!(metrics.contains(&requests), "{requests}");
    }

    // A second server that names the same port does not start.
    let mut taken = restante(&folder);
    taken.args(["serve", "--data", "other", "--rest-port", "0", "--tcp-port", "0"]);
    let taken = taken.env("RESTANTE_OPERATE__LISTEN", free.to_string()).output().unwrap();
    assert!(String::from_utf8_lossy(&taken.stderr).contains("operate.listen"), "{taken:?}");
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn queries_page_in_both_directions_up_to_their_limit() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    let begin = now();
    for number in 0..230 {
        let answer = server.post(&publish_path(), &message(&number.to_string(), begin + number));
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let query = |args: &[&str]| -> Vec<String> {
        let lines = said(&folder, &[&["query", "--rest", &server.url()], args].concat());
        lines.lines().map(|line| crate::support::payload_of(&serde_json::from_str(line).unwrap())).collect()
    };
    let numbers =
        |range: std::ops::Range<i32>| -> Vec<String> { range.map(|number| number.to_string()).collect() };
    let mut newest_first = numbers(0..230);
    newest_first.reverse();

    assert_eq!(query(&[]), numbers(0..230));
    assert_eq!(query(&["--limit", "150"]), numbers(0..150));
    assert_eq!(query(&["--backward"]), newest_first);
    assert_eq!(query(&["--backward", "--limit", "101"]), newest_first[..101]);
    assert_eq!(query(&["--start", "-1h", "--end", &(begin + 7).to_string()]), numbers(0..7));
    assert_eq!(query(&["--content-topic", "/other/1/x/proto"]), Vec::<String>::new());
    assert_eq!(query(&["--content-topic", CONTENT_TOPIC, "--limit", "3"]), numbers(0..3));
    assert_eq!(query(&["--bloom", &"f".repeat(128)]), numbers(0..230));
    assert_eq!(query(&["--bloom", &"0".repeat(128)]), Vec::<String>::new());
    assert_eq!(server.payloads(7), numbers(0..230));

    let table = said(&folder, &["query", "--rest", &server.url(), "--format", "table", "--limit", "2"]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.contains(CONTENT_TOPIC), "{table}");
}

#[test]
fn messages_are_there_after_an_orderly_restart() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    for number in 0..20 {
        server.publish(&number.to_string());
    }
    let before = server.payloads(100);
    assert_eq!(server.stop().code(), Some(0));

    let server = Server::start(&folder);
    assert_eq!(server.payloads(100), before);
    assert_eq!(before.len(), 20);
}

#[test]
fn an_interrupt_stops_in_order_too() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn an_archive_is_read_beside_its_server() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    server.publish("one");
    let lines = said(&folder, &["query", "--archive", "log:data/archive"]);
    assert_eq!(lines.lines().count(), 1, "{lines}");
    let stats: Value =
        serde_json::from_str(&said(&folder, &["archive", "stats", "--format", "json"])).unwrap();
    assert_eq!(stats["messages"], 1);
    assert!(said(&folder, &["archive", "stats"]).contains("messages   1\n"));
    assert!(said(&folder, &["archive", "check"]).contains("all sound"));
    assert_eq!(server.payloads(100), ["one"]);
}

#[test]
fn lost_messages_are_reported_wherever_an_operator_looks() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    for payload in ["one", "two", "three"] {
        server.publish(payload);
    }
    assert_eq!(server.stop().code(), Some(0));
    let log = folder.join("data/archive/00000001.log");
    let len = fs::metadata(&log).unwrap().len();
    fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(len - 1).unwrap();
    let checked = say(&folder, &["archive", "check"]);
    assert_eq!(checked.code, 1, "{}", checked.out);
    assert!(checked.out.contains("00000001.log: LOST DATA: 1 of 3 messages"), "{}", checked.out);

    let server = Server::start(&folder);
    assert_eq!(server.payloads(100), ["one", "two"]);
    let health = server.get("/health");
    let lost = "archived messages that are lost: 1 (00000001.log)";
    assert!(health.status == 200 && health.body.contains(lost), "{}", health.body);
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains(r#"restante_archive_lost_messages{engine="log"} 1"#), "{metrics}");
    let console = server.get("/console/v1/state").body;
    assert!(console.contains(lost), "{console}");
    assert_eq!(server.stop().code(), Some(0));
    assert_eq!(say(&folder, &["archive", "rebuild"]).code, 1, "it says so once more");
    assert_eq!(say(&folder, &["archive", "check"]).code, 1, "half a record is still there");
}

#[test]
fn a_second_server_on_the_same_folder_is_turned_away() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    let second = say(&folder, &["serve", "--rest-port", "0"]);
    assert_eq!(second.code, 3, "{}", second.err);
    let line = second.err.lines().find(|line| line.starts_with("restante: ")).unwrap();
    let holder = format!("the data folder data is in use by process {}: ", server.id());
    assert!(line.contains(&holder), "{line}");
    // Also with other stores: both would be the same peer.
    let second =
        say(&folder, &["serve", "--rest-port", "0", "--archive", "log:other", "--records", "lmdb:third"]);
    assert_eq!(second.code, 3, "{}", second.err);
    assert!(!folder.join("other").exists() && !folder.join("third").exists());
    for command in ["rebuild", "prune"] {
        let args: &[&str] = if command == "prune" { &["--policy", "capacity:1"] } else { &[] };
        let refused = say(&folder, &[&["archive", command], args].concat());
        assert_eq!(refused.code, 3, "archive {command}: {}", refused.err);
    }
    server.publish("still here");
    assert_eq!(server.payloads(100), ["still here"]);
}

#[test]
fn a_taken_port_is_named() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    let port = server.address().port().to_string();
    let second = say(&folder, &["serve", "--rest-port", &port, "--data", "other"]);
    assert_eq!(second.code, 3, "{}", second.err);
    let line = second.err.lines().find(|line| line.starts_with("restante: ")).unwrap();
    assert!(line.contains(&format!("can't listen on 127.0.0.1:{port}")), "{line}");
    assert!(line.contains("--rest-port"), "{line}");
}

#[test]
fn retention_works_while_the_server_runs() {
    let (_guard, folder) = folder();
    fs::write(folder.join("restante.toml"), "[archive]\nretention_interval_seconds = 1\n").unwrap();
    let server = Server::start_with(&folder, &["--archive", "memory:", "--retention", "capacity:2"]);
    for number in 0..5 {
        server.publish(&number.to_string());
    }
    wait_until("retention has removed three", || server.payloads(100) == ["3", "4"]);
}

#[test]
fn retention_is_kept_by_hand() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    server.publish("new");
    assert_eq!(server.stop().code(), Some(0));
    let none = say(&folder, &["archive", "prune"]);
    assert_eq!(none.code, 2, "{}", none.err);
    assert!(none.err.contains("--policy"), "{}", none.err);
    assert!(said(&folder, &["archive", "prune", "--policy", "time:86400"]).starts_with("removed 0 messages"));
    let server = Server::start(&folder);
    assert_eq!(server.payloads(100), ["new"]);
}

/// A request whose body has not been sent yet.
fn begin_request(server: &Server, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        publish_path(),
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // RFC 9110 §10.1.1: the server requests the body once it handles the request.
    let mut asked = [0; 25];
    stream.read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream
}

/// A stopping server accepts no more connections.
fn wait_until_stopping(server: &Server) {
    wait_until("the server takes no connections", || TcpStream::connect(server.address()).is_err());
}

#[test]
fn a_request_that_was_begun_is_finished_after_the_signal() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    let body = message("in time", now()).to_string();
    let mut stream = begin_request(&server, &body);
    server.signal(Signal::TERM);
    wait_until_stopping(&server);
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(Server::start(&folder).payloads(100), ["in time"]);
}

#[test]
fn a_second_signal_ends_at_once() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    let _unfinished = begin_request(&server, "never sent");
    server.signal(Signal::TERM);
    wait_until_stopping(&server);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(128 + 15));
}

/// A client that stops in the middle of its request is no failure of the server.
#[test]
fn a_stalled_client_is_cut_at_the_end_of_the_grace_time() {
    let (_guard, folder) = folder();
    fs::write(folder.join("restante.toml"), "[server]\ngrace_seconds = 1\n").unwrap();
    let server = Server::start(&folder);
    server.publish("kept");
    let _unfinished = begin_request(&server, "never sent");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(Server::start(&folder).payloads(100), ["kept"]);
}

#[test]
fn a_cluster_of_our_own_takes_only_its_messages() {
    let (_guard, folder) = folder();
    let server = Server::start_with(&folder, &["--cluster-id", "1", "--shard", "0", "--archive", "memory:"]);
    server.publish("ours");
    let path = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F1%2F5";
    assert_eq!(server.post(path, &message("another shard", now())).status, 400);
    assert_eq!(server.payloads(100), ["ours"]);
}

/// An operator saw neither which clients tried tokens nor which limit was reached; a line for each attempt would let
/// strangers fill the disk.
#[test]
fn refused_requests_are_logged_once_a_minute() {
    let (_guard, folder) = folder();
    fs::write(folder.join("token"), "correct-horse-battery").unwrap();
    let log = folder.join("log");
    let mut command = restante(&folder);
    command.args([
        "serve",
        "--rest-port",
        "0",
        "--tcp-port",
        "0",
        "--archive",
        "memory:",
        "--rest-token-file",
        "token",
    ]);
    command.stderr(fs::File::create(&log).unwrap());
    let server = Server::spawn(command);
    let ask = |header: &str| {
        let request =
            format!("GET /admin/v1/peers HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}\r\n");
        exchange(server.address(), request.as_bytes()).unwrap().status
    };
    assert_eq!(ask(""), 401);
    for _ in 0..5 {
        assert_eq!(ask("authorization: Bearer incorrect-horse-battery\r\n"), 401);
    }
    assert_eq!(server.stop().code(), Some(0));
    let log = fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("requests are refused")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains("/admin/v1/peers") && lines[0].contains("the token is wrong"), "{log}");
}

/// Sockets that sent nothing used up all connections, and every request waited for the header timeout.
#[test]
fn two_thousand_idle_connections_delay_nobody() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let (_guard, folder) = folder();
    fs::write(folder.join("restante.toml"), "[rest]\nheader_timeout_ms = 86400000\n").unwrap();
    let server = Server::start_with(&folder, &["--archive", "memory:"]);
    let idle: Vec<TcpStream> = (0..2_000).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    server.publish("answered");
    assert_eq!(server.payloads(100), ["answered"]);
    drop(idle);
}

/// The port is held by the test: a server that needed it would not start.
#[test]
fn the_listener_for_users_is_closed_while_no_door_serves_them() {
    let (_guard, folder) = folder();
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    std::fs::write(folder.join("restante.toml"), "mail.enabled = false\n").unwrap();
    let server = Server::start_with(&folder, &["--jmap-listen", &address]);
    assert_eq!(server.get("/health").status, 200);
    let metrics = server.get("/metrics").body;
    assert!(!metrics.contains("listener=\"public\""), "{metrics}");
    assert_eq!(server.stop().code(), Some(0));
}
