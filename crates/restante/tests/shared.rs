//! Servers that share a table of sessions in Redis. Without a Redis these tests are reported as ignored; see
//! docs/development.md.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

#[path = "e2e/live.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod live;
#[path = "e2e/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::{
    env, fs,
    hash::{BuildHasher, RandomState},
    path::Path,
};

use libtest_mimic::{Arguments, Trial};
use live::{Reader, counted, listed};
use serde_json::Value;
use support::{CONTENT_TOPIC, Server, folder, say, wait_until};

/// Names the Redis server, as `dev/services/with redis` sets it.
const REDIS_URL: &str = "RESTANTE_REDIS_URL";
/// Engines, separated by commas, whose tests must not be ignored.
const REQUIRE: &str = "RESTANTE_TEST_REQUIRE";
/// Short, so that nothing waits long for a dead server.
const LEASE_MS: u64 = 3_000;

type Test = (&'static str, fn(&str));

fn main() {
    let tests: [Test; 4] = [
        ("servers_see_and_close_each_others_sessions", servers_see_and_close_each_others_sessions),
        ("what_one_takes_is_live_at_the_other", what_one_takes_is_live_at_the_other),
        ("sessions_of_a_killed_server_are_gone", sessions_of_a_killed_server_are_gone),
        ("a_server_that_stops_is_gone_at_once", a_server_that_stops_is_gone_at_once),
    ];
    let url = env::var(REDIS_URL).ok();
    let is_required =
        env::var(REQUIRE).is_ok_and(|names| names.split(',').any(|name| name.trim() == "redis"));
    let mut trials = Vec::new();
    for (name, test) in tests {
        let url = url.clone();
        let is_ignored = url.is_none() && !is_required;
        let run = move || {
            test(&url.ok_or(format!("{REDIS_URL} is not set"))?);
            Ok(())
        };
        trials.push(Trial::test(name, run).with_kind("redis").with_ignored_flag(is_ignored));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// The prefix of the keys of one test.
fn prefix() -> String {
    format!("t_{:016x}", RandomState::new().hash_one(0))
}

/// A server on a table that it shares with those that have the same prefix.
fn start(folder: &Path, url: &str, prefix: &str, name: &str) -> Server {
    let settings = format!(
        "[sessions]\nurl = \"{url}\"\nnode_name = \"{name}\"\n\
         [sessions.redis]\nprefix = \"{prefix}\"\nlease_ms = {LEASE_MS}\n"
    );
    fs::write(folder.join("restante.toml"), settings).unwrap();
    let server = Server::start_with(folder, &["--archive", "memory:", "--rest-admin"]);
    wait_until("it is on the table", || sessions_health(&server) == "Ready");
    server
}

fn sessions_health(server: &Server) -> String {
    let health: Value = serde_json::from_str(&server.get("/health").body).unwrap();
    let protocols = health["protocolsHealth"].as_array().unwrap();
    protocols.iter().find_map(|protocol| protocol["Sessions"].as_str()).unwrap().to_owned()
}

/// Two servers on one table.
struct Pair {
    one: Server,
    two: Server,
    folders: [(tempfile::TempDir, std::path::PathBuf); 2],
}

impl Pair {
    fn start(url: &str) -> Self {
        let (folders, prefix) = ([folder(), folder()], prefix());
        let one = start(&folders[0].1, url, &prefix, "one");
        let two = start(&folders[1].1, url, &prefix, "two");
        Self { one, two, folders }
    }
}

fn stream(server: &Server) -> Reader {
    Reader::open(server, &format!("contentTopics={CONTENT_TOPIC}"))
}

/// The users of the sessions that a server lists, in order.
fn users(server: &Server, filters: &[&str]) -> Vec<String> {
    let sessions = listed(server, filters);
    let mut users: Vec<String> =
        sessions.iter().map(|session| session["user"].as_str().unwrap().to_owned()).collect();
    users.sort();
    users
}

fn user(reader: &Reader) -> String {
    reader.user().to_string()
}

fn servers_see_and_close_each_others_sessions(url: &str) {
    let Pair { one, two, folders } = &Pair::start(url);
    let (at_one, at_two) = (stream(one), stream(two));
    let mut both = [user(&at_one), user(&at_two)];
    both.sort();
    for server in [one, two] {
        assert_eq!(users(server, &[]), both);
        assert_eq!(users(server, &["--node", "one"]), [user(&at_one)]);
        assert_eq!(users(server, &["--user", &user(&at_two)]), [user(&at_two)]);
        let counts = counted(server);
        assert_eq!((counts["sessions"].as_u64(), counts["users"].as_u64()), (Some(2), Some(2)));
        let nodes = counts["byNode"].as_array().unwrap();
        let mut names: Vec<&str> = nodes.iter().map(|node| node["name"].as_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["one", "two"]);
    }
    let (folder, user) = (&folders[0].1, user(&at_two));
    let closed = say(folder, &["sessions", "close", "--rest", &one.url(), "--user", &user]);
    assert_eq!((closed.code, &*closed.out), (0, "closed 1 session\n"), "{}", closed.err);
    let end = at_two.wait_for_end();
    assert!(end.contains("operator"), "{end}");
    wait_until("it is gone", || users(two, &[]).len() == 1);
}

/// No relay connects the two: what one accepts reaches the other's streams through Redis.
fn what_one_takes_is_live_at_the_other(url: &str) {
    let Pair { one, two, .. } = &Pair::start(url);
    let (at_one, at_two) = (stream(one), stream(two));
    one.publish("from one");
    two.publish("from two");
    for reader in [&at_one, &at_two] {
        reader.wait_for("ZnJvbSBvbmU="); // "from one" in base64
        reader.wait_for("ZnJvbSB0d28="); // "from two"
    }
    for reader in [at_one, at_two] {
        assert_eq!(reader.text().matches("ZnJvbSBvbmU=").count(), 1, "{}", reader.text());
    }
}

fn sessions_of_a_killed_server_are_gone(url: &str) {
    let Pair { one, two, folders: _folders } = Pair::start(url);
    let (at_one, at_two) = (stream(&one), stream(&two));
    assert_eq!(users(&one, &[]).len(), 2);
    two.kill();
    at_two.wait_for_end();
    wait_until("its lease has run out", || users(&one, &[]) == [user(&at_one)]);
    wait_until("it is counted no more", || counted(&one)["sessions"] == 1);
    wait_until("it is forgotten", || counted(&one)["byNode"].as_array().unwrap().len() == 1);
}

fn a_server_that_stops_is_gone_at_once(url: &str) {
    let Pair { one, two, folders: _folders } = Pair::start(url);
    let (at_one, at_two) = (stream(&one), stream(&two));
    assert_eq!(users(&one, &[]).len(), 2);
    assert_eq!(two.stop().code(), Some(0));
    assert!(at_two.wait_for_end().contains("stopping"));
    assert_eq!(users(&one, &[]), [user(&at_one)], "its lease need not run out");
    assert_eq!(counted(&one)["sessions"], 1);
}
