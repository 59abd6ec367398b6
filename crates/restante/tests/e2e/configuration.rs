//! Settings: where they come from, and what is said about wrong ones.

use std::fs;

use crate::support::{folder, restante, said, say};

#[test]
fn show_prints_each_value_with_its_origin() {
    let (_guard, folder) = folder();
    fs::write(folder.join("restante.toml"), "[rest]\nport = 1\n\n[waku]\nmax_message_bytes = 1000\n")
        .unwrap();
    let output = restante(&folder)
        .args(["config", "show", "--data", "elsewhere", "--max-msg-size", "1KiB"])
        .env("RESTANTE_ARCHIVE__RETENTION", "time:60")
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let line = |key: &str| {
        let line = shown.lines().find(|line| line.starts_with(&format!("{key} = ")));
        line.unwrap_or_else(|| panic!("{key} is not shown:\n{shown}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(line("rest.port"), "rest.port = 1 # restante.toml:2");
    assert_eq!(line("waku.max_message_bytes"), "waku.max_message_bytes = 1024 # flag --max-msg-size");
    assert_eq!(line("server.data_dir"), "server.data_dir = \"elsewhere\" # flag --data");
    assert_eq!(
        line("archive.retention"),
        "archive.retention = \"time:60\" # environment RESTANTE_ARCHIVE__RETENTION"
    );
    assert_eq!(line("log.level"), "log.level = \"info\" # default");

    // What is shown is a configuration file again.
    fs::write(folder.join("again.toml"), &shown).unwrap();
    said(&folder, &["config", "check", "--config", "again.toml"]);
}

#[test]
fn wrong_settings_stop_every_command_that_reads_them_with_one_line() {
    let (_guard, folder) = folder();
    fs::write(folder.join("restante.toml"), "[rest]\nprot = 1\n").unwrap();
    for args in [
        &["serve"][..],
        &["config", "check"],
        &["config", "show"],
        &["archive", "stats"],
        &["records", "stats"],
    ] {
        let said = say(&folder, args);
        assert_eq!(said.code, 2, "{args:?}");
        assert_eq!(
            said.err,
            "restante: restante.toml:2: there is no setting 'rest.prot': did you mean 'rest.port'?\n"
        );
    }
}

#[test]
fn wrong_flags_and_variables_are_named() {
    let (_guard, folder) = folder();
    for (args, expected) in [
        (
            &["serve", "--retention", "age:1"][..],
            "restante: flag --retention: archive.retention: retention rule 'age:1'",
        ),
        (&["serve", "--archive", "tape:1"], "restante: flag --archive: archive.url: archive URL 'tape:1'"),
        (&["serve", "--shard", "1"], "restante: flag --shard: waku.shards: a shard belongs to a cluster"),
        (&["serve", "--config", "none.toml"], "restante: can't read the configuration none.toml: "),
        (&["serve", "--store-message-db-url", "x"], "restante: flag --archive: archive.url: "),
        (
            &["serve", "--store-message-retention-policy", "x"],
            "restante: flag --retention: archive.retention: ",
        ),
    ] {
        let said = say(&folder, args);
        assert_eq!(said.code, 2, "{args:?}: {}", said.err);
        assert!(said.err.starts_with(expected), "{args:?}: {}", said.err);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    }
    let output =
        restante(&folder).args(["config", "check"]).env("RESTANTE_REST__PROT", "1").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("'RESTANTE_REST__PROT': did you mean 'RESTANTE_REST__PORT'?"), "{error}");
}

/// What would fail at the start is found before it.
#[test]
fn check_finds_files_that_are_missing_or_hold_nothing_of_use() {
    let (_guard, folder) = folder();
    fs::write(folder.join("short"), "short\n").unwrap();
    fs::write(folder.join("key"), "no key").unwrap();
    for (settings, expected) in [
        ("rest.token_file = \"missing\"", "error: rest.token_file: can't read the token in missing: "),
        ("rest.token_file = \"short\"", "error: rest.token_file: can't use the token in short: "),
        (
            "archive.url = \"postgres://db/x\"\narchive.postgres.password_file = \"missing\"",
            "error: archive.postgres.password_file: can't read the password in missing: ",
        ),
        (
            "sessions.url = \"redis://db/0\"\nsessions.redis.password_file = \"missing\"",
            "error: sessions.redis.password_file: can't read the password in missing: ",
        ),
        (
            "[waku.node]\nwebsocket_secure = true\ncertificate_file = \"missing\"\ncertificate_key_file = \"key\"",
            "error: waku.node.certificate_file: can't use missing: ",
        ),
        ("server.data_dir = \".\"\nwaku.node.key = \"key\"", "error: waku.node.key: "),
        ("server.data_dir = \"key\"", "error: server.data_dir: key is not a folder"),
    ] {
        fs::write(folder.join("restante.toml"), settings).unwrap();
        let said = say(&folder, &["config", "check"]);
        assert_eq!(said.code, 1, "{settings}: {}{}", said.out, said.err);
        assert!(said.out.lines().any(|line| line.starts_with(expected)), "{settings}: {}", said.out);
    }
    assert!(!folder.join("data").exists(), "a check creates nothing");
}

#[test]
fn check_finds_ports_that_are_named_twice_and_shards_that_no_cluster_has() {
    let (_guard, folder) = folder();
    for (settings, expected) in [
        ("rest.port = 60000", "waku.node.tcp_port: 60000 is the port of rest.port, too: choose another"),
        (
            "rest.address = \"0.0.0.0\"\n[waku.node]\nwebsocket = true\nwebsocket_port = 8645",
            "waku.node.websocket_port: 8645 is the port of rest.port, too: choose another",
        ),
        (
            "[waku]\ncluster_id = 1\nshards = [1024]",
            "waku.shards: there is no shard 1024: a cluster has the shards 0 to 1023",
        ),
    ] {
        fs::write(folder.join("restante.toml"), settings).unwrap();
        let said = say(&folder, &["config", "check"]);
        assert_eq!(said.code, 2, "{settings}: {}", said.out);
        assert!(said.err.contains(expected), "{settings}: {}", said.err);
    }
    for settings in
        ["rest.port = 0\nwaku.node.tcp_port = 0", "rest.port = 60000\nrest.address = \"127.0.0.2\""]
    {
        fs::write(folder.join("restante.toml"), settings).unwrap();
        assert_eq!(say(&folder, &["config", "check"]).code, 0, "{settings}");
    }
}

/// A server would start, and not do all that its settings say.
#[test]
fn check_warns_of_limits_beyond_the_systems_and_of_shards_beyond_the_networks() {
    let (_guard, folder) = folder();
    for (settings, expected) in [
        (
            "rest.connections_max = 100000000000",
            "warning: the limits of connections need 100000001768 open files",
        ),
        (
            "[waku]\ncluster_id = 1\nshards = [7, 8, 9]",
            "warning: waku.shards: no content topic falls on 8, 9: ",
        ),
    ] {
        fs::write(folder.join("restante.toml"), settings).unwrap();
        let said = say(&folder, &["config", "check"]);
        assert_eq!(said.code, 0, "{settings}: {}", said.err);
        assert!(said.out.starts_with(expected), "{settings}: {}", said.out);
        assert!(said.out.contains("the settings are fine: "), "{}", said.out);
    }
}
