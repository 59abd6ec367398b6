//! The Waku node of a server: its identity, what it relays, and what it fetches from others.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Stdio,
};

use serde_json::Value;

use crate::support::{Server, exchange, folder, restante, said, say, wait_until};

/// A server of the cluster of these tests, which relays the shard on which they publish.
fn relay(folder: &Path, args: &[&str]) -> Server {
    Server::start_with(folder, &[&["--cluster-id", "1", "--shard", "0"], args].concat())
}

fn peer_id(server: &Server) -> String {
    server.peer_address().rsplit('/').next().unwrap().to_owned()
}

/// Waits until two servers relay to each other.
fn wait_for_mesh(servers: &[&Server]) {
    wait_until("the servers relay to each other", || {
        servers.iter().all(|server| server.metric("restante_waku_relay_mesh_peers") >= Some(1.0))
    });
}

fn wait_for_payloads(server: &Server, expected: &[&str]) {
    wait_until("the archive has what was published", || {
        let mut payloads = server.payloads(100);
        payloads.sort();
        payloads == expected
    });
}

#[test]
fn a_node_stays_who_it_is_over_restarts() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    let id = peer_id(&server);
    assert!(id.starts_with("16Uiu2HA"), "{id} is the id of a secp256k1 key");
    assert_eq!(server.stop().code(), Some(0));
    let server = Server::start(&folder);
    assert_eq!(peer_id(&server), id);
    server.kill();
    let key = folder.join("data/node.key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);

    // The key is the identity, wherever it is stored and however it is set.
    let digits = fs::read_to_string(&key).unwrap();
    let named = folder.join("elsewhere.key");
    fs::copy(&key, &named).unwrap();
    fs::remove_file(&key).unwrap();
    for nodekey in [digits.trim(), named.to_str().unwrap(), "../elsewhere.key"] {
        let server = Server::start_with(&folder, &["--nodekey", nodekey]);
        assert_eq!(peer_id(&server), id, "--nodekey {nodekey}");
    }
    assert_ne!(peer_id(&Server::start(&folder)), id, "without the key it is a stranger");
}

#[test]
fn a_key_on_the_command_line_is_warned_of_and_not_shown() {
    let (_guard, folder) = folder();
    let digits = "01".repeat(32);
    let shown = said(&folder, &["config", "show", "--nodekey", &digits]);
    assert!(shown.contains("waku.node.key = \"***\""), "{shown}");
    assert!(!shown.contains(&digits), "{shown}");

    let blocker = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = blocker.local_addr().unwrap().port().to_string();
    let args = ["serve", "--rest-port", "0", "--tcp-port", &port, "--nodekey", &digits];
    let ended = say(&folder, &args);
    assert!(ended.err.contains("everybody on this machine can read the node's key"), "{}", ended.err);
    assert!(!ended.err.contains(&digits), "{}", ended.err);
}

#[test]
fn scripts_can_read_the_addresses_of_all_listeners() {
    let (_guard, folder) = folder();
    let flags = ["--rest-port=0", "--tcp-port=0", "--websocket-support", "--websocket-port=0"];
    let external = "/dns4/node.example.org/tcp/8000/wss";
    let mut server = restante(&folder)
        .arg("serve")
        .args(flags)
        .args(["--ext-multiaddr", external, "--log-level", "error"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().take(4);
    let lines: Vec<String> = lines.map(|line| line.unwrap()).collect();
    server.kill().unwrap();
    server.wait().unwrap();
    let addresses: Vec<&str> = lines
        .iter()
        .map(|line| line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")))
        .collect();
    assert!(addresses[0].starts_with("http://127.0.0.1:"), "{lines:?}");
    for (address, begin, middle) in [
        (addresses[1], external, "/p2p/16Uiu2HA"),
        (addresses[2], "/ip4/127.0.0.1/tcp/", "/p2p/16Uiu2HA"),
        (addresses[3], "/ip4/127.0.0.1/tcp/", "/ws/p2p/16Uiu2HA"),
    ] {
        assert!(address.starts_with(begin) && address.contains(middle), "{address}");
    }
}

/// libp2p lets several nodes of one user share a port, so that this would go unnoticed.
#[test]
fn a_taken_port_of_the_node_is_named() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    let address = server.peer_address();
    let port = address.split('/').nth(4).unwrap();
    let second =
        |flags: &[&str]| say(&folder, &[&["serve", "--rest-port=0", "--data=other"], flags].concat());
    for (flags, advice) in [
        (vec!["--tcp-port", port], "--tcp-port"),
        (vec!["--tcp-port=0", "--websocket-support", "--websocket-port", port], "--websocket-port"),
    ] {
        let refused = second(&flags);
        assert_eq!(refused.code, 3, "{flags:?}: {}", refused.err);
        let line = refused.err.lines().find(|line| line.starts_with("restante: ")).unwrap();
        assert!(line.contains(&format!("can't listen on 127.0.0.1:{port}")), "{line}");
        assert!(line.contains(advice), "{line}");
    }
}

#[test]
fn two_servers_relay_to_each_other_and_both_archive() {
    let (_guard_one, one_folder) = folder();
    let (_guard_two, two_folder) = folder();
    let one = relay(&one_folder, &[]);
    let two = relay(&two_folder, &["--staticnode", &one.peer_address()]);
    wait_for_mesh(&[&one, &two]);
    one.publish("from one");
    two.publish("from two");
    for server in [&one, &two] {
        wait_for_payloads(server, &["from one", "from two"]);
    }
    assert_eq!(one.stop().code(), Some(0));
    assert_eq!(two.stop().code(), Some(0));
}

/// The peer is static: its server reconnects by itself when it is back.
#[test]
fn a_server_that_comes_back_is_connected_again() {
    let (_guard_one, one_folder) = folder();
    let (_guard_two, two_folder) = folder();
    let one = relay(&one_folder, &[]);
    let address = one.peer_address();
    let port = address.split('/').nth(4).unwrap().to_owned();
    let two = relay(&two_folder, &["--staticnode", &address]);
    wait_for_mesh(&[&one, &two]);
    one.kill();
    wait_until("the peer is missed", || two.metric("restante_waku_peers") == Some(0.0));
    let mut command = restante(&one_folder);
    command.args([
        "serve",
        "--rest-port=0",
        "--log-level=warn",
        "--cluster-id=1",
        "--shard=0",
        "--tcp-port",
        &port,
    ]);
    let one = Server::spawn(command);
    wait_for_mesh(&[&one, &two]);
    two.publish("to the one that is back");
    wait_for_payloads(&one, &["to the one that is back"]);
}

#[test]
fn relayed_messages_that_were_served_survive_kill_9() {
    let (_guard_one, one_folder) = folder();
    let (_guard_two, two_folder) = folder();
    let one = relay(&one_folder, &[]);
    let two = relay(&two_folder, &["--staticnode", &one.peer_address()]);
    wait_for_mesh(&[&one, &two]);
    let payloads: Vec<String> = (100..150).map(|number| number.to_string()).collect();
    for payload in &payloads {
        one.publish(payload);
    }
    wait_until("some are served", || two.payloads(100).len() >= 10);
    let served = two.payloads(100);
    two.kill();
    let two = relay(&two_folder, &[]);
    let kept = two.payloads(100);
    for payload in &served {
        assert!(kept.contains(payload), "{payload} was served and is gone");
    }
    assert!(said(&two_folder, &["archive", "check"]).contains("all sound"));
}

#[test]
fn what_relay_brought_is_archived_before_the_server_ends() {
    let (_guard_one, one_folder) = folder();
    let (_guard_two, two_folder) = folder();
    let one = relay(&one_folder, &[]);
    let two = relay(&two_folder, &["--staticnode", &one.peer_address()]);
    wait_for_mesh(&[&one, &two]);
    for number in 0..100 {
        one.publish(&number.to_string());
    }
    wait_until("relay has brought all", || two.metric("restante_waku_relay_messages_total") == Some(100.0));
    assert_eq!(two.stop().code(), Some(0));
    assert_eq!(relay(&two_folder, &[]).payloads(100).len(), 100);
}

#[test]
fn what_relay_missed_is_fetched_from_a_store_node() {
    let (_guard_one, one_folder) = folder();
    let (_guard_two, two_folder) = folder();
    // Recent messages are left to relay by default; here there is no relay to deliver them.
    fs::write(two_folder.join("restante.toml"), "[waku.sync]\nlag_seconds = 0\n").unwrap();
    let one = relay(&one_folder, &[]);
    let two = relay(&two_folder, &["--staticnode", &one.peer_address()]);
    wait_for_mesh(&[&one, &two]);
    one.publish("1 relayed");
    wait_for_payloads(&two, &["1 relayed"]);
    assert_eq!(two.stop().code(), Some(0));

    one.publish("2 missed");
    one.publish("3 missed");
    let storenode = one.peer_address();
    let two = relay(&two_folder, &["--relay=false", "--storenode", &storenode, "--store-sync-interval=1"]);
    wait_for_payloads(&two, &["1 relayed", "2 missed", "3 missed"]);
    assert_eq!(two.metric("restante_waku_sync_messages_total"), Some(2.0));

    // And again, while it runs.
    one.publish("4 later");
    wait_for_payloads(&two, &["1 relayed", "2 missed", "3 missed", "4 later"]);
}

#[test]
fn health_tells_of_each_protocol() {
    let (_guard, folder) = folder();
    let health = |flags: &[&str]| -> String {
        let server = Server::start_with(&folder, &[&["--archive", "memory:"], flags].concat());
        let answer = server.get("/health");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let state: Value = serde_json::from_str(&answer.body).unwrap();
        let protocols = state["protocolsHealth"].as_array().unwrap().iter();
        let states = protocols.map(|protocol| {
            let is_state = |(name, _): &(&String, &Value)| *name != "desc";
            let (name, state) = protocol.as_object().unwrap().iter().find(is_state).unwrap();
            format!("{name}: {}", state.as_str().unwrap())
        });
        states.collect::<Vec<_>>().join(", ")
    };
    let all = health(&[]);
    for protocol in ["Store: Ready", "Filter: Ready", "Lightpush: Ready", "Relay: Not Ready"] {
        assert!(all.contains(protocol), "{protocol} is not in {all}");
    }
    let some = health(&["--relay=false", "--filter", "false"]);
    for protocol in ["Relay: Not Mounted", "Filter: Not Mounted", "Lightpush: Ready"] {
        assert!(some.contains(protocol), "{protocol} is not in {some}");
    }
    fs::write(folder.join("restante.toml"), "waku.node.enabled = false\n").unwrap();
    assert!(health(&[]).contains("Lightpush: Not Mounted"));
}

#[test]
fn the_log_level_is_set_while_the_server_runs() {
    let (_guard, folder) = folder();
    let log = folder.join("log");
    let mut command = restante(&folder);
    command.args(["serve", "--rest-port=0", "--tcp-port=0", "--rest-admin", "--log-level=error"]);
    command.stderr(fs::File::create(&log).unwrap());
    let server = Server::spawn(command);
    let is_debugging = || fs::read_to_string(&log).unwrap().contains("DEBUG");
    let _ = exchange(server.address(), b"nonsense\r\n\r\n");
    assert!(!is_debugging());
    let set = |level: &str| server.post(&format!("/admin/v1/log-level/{level}"), &Value::Null).status;
    assert_eq!(set("loud"), 400);
    assert_eq!(set("DEBUG"), 200);
    // A connection that breaks is logged at that level.
    wait_until("the log says more", || {
        let _ = exchange(server.address(), b"nonsense\r\n\r\n");
        is_debugging()
    });
}

#[test]
fn a_server_may_have_a_node_alone() {
    let (_guard, folder) = folder();
    let mut server = restante(&folder)
        .args(["serve", "--rest=false", "--tcp-port=0", "--log-level=error"])
        .env("RESTANTE_OPERATE__LISTEN", "")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on /ip4/127.0.0.1/tcp/") && line.contains("/p2p/"), "{line}");
    let process = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn wrong_settings_of_the_node_are_named() {
    let (_guard, folder) = folder();
    let id = "16Uiu2HAkykgaECHswi3YKJ5dMLbq2kPVCo89fcyTd38UcQD6ej5W";
    for (flags, expected) in [
        (
            vec!["--staticnode=/ip4/10.0.0.1/tcp/60000"],
            "flag --staticnode: waku.node.static_peers: '/ip4/10.0.0.1",
        ),
        (vec!["--storenode=nowhere"], "flag --storenode: waku.sync.peers: 'nowhere' is no peer's address"),
        (vec!["--ext-multiaddr=nowhere"], "flag --ext-multiaddr: waku.node.external_addresses: 'nowhere'"),
        (
            vec!["--nodekey=0000000000000000000000000000000000000000"],
            "flag --nodekey: waku.node.key: a node key has",
        ),
        (vec!["--max-connections=0"], "flag --max-connections: waku.limits.connections_max: "),
        (vec!["--websocket-secure-support"], "secure WebSockets need waku.node.certificate_file"),
    ] {
        for command in [&["serve"][..], &["config", "check"]] {
            let said = say(&folder, &[command, &flags[..]].concat());
            assert_eq!(said.code, 2, "{flags:?}: {}", said.err);
            assert!(said.err.contains(expected), "{flags:?} does not say {expected}: {}", said.err);
            assert_eq!(said.err.lines().count(), 1, "{}", said.err);
        }
    }
    for (flag, expected) in [
        ("--relay=perhaps", "true, false"),
        ("--tcp-port=70000", "70000"),
        ("--rate-limit=store:fast", "150/1s"),
        ("--rate-limit=stoer:1/1s", "stoer"),
        ("--nat=none", "--ext-multiaddr"),
        ("--discv5-discovery=true", "--staticnode"),
    ] {
        let said = say(&folder, &["serve", flag]);
        assert_eq!(said.code, 2, "{flag}: {}", said.err);
        assert!(said.err.contains(expected), "{flag} does not say {expected}: {}", said.err);
    }
    let peer = format!("--staticnode=/ip4/10.0.0.1/tcp/60000/p2p/{id}");
    let args =
        ["config", "check", &peer, "--relay", "--store=false", "--rate-limit=150/1s", "--rate-limit=px:1/1m"];
    said(&folder, &args);
}
