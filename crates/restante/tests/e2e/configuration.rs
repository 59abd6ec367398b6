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

    // The printed settings are a valid configuration file.
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

/// What would fail at start is found beforehand.
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
            "error: waku.node.certificate_file: can't read missing: ",
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
    let long = format!("lmtp.listen = \"unix:{}\"", "a".repeat(108));
    fs::write(folder.join("restante.toml"), long).unwrap();
    let said = say(&folder, &["config", "check"]);
    assert!(said.code == 2 && said.err.contains("can't be the path of a socket"), "{}", said.err);
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

/// A server would start, and ignore some of its settings.
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
        (
            "mail.enabled = false\nsmtp.listen = [\"127.0.0.1:2525\"]",
            "warning: smtp.listen: nothing listens there: it needs mail.enabled",
        ),
    ] {
        fs::write(folder.join("restante.toml"), settings).unwrap();
        let said = say(&folder, &["config", "check"]);
        assert_eq!(said.code, 0, "{settings}: {}", said.err);
        assert!(said.out.starts_with(expected), "{settings}: {}", said.out);
        assert!(said.out.contains("the settings are fine: "), "{}", said.out);
    }
}

/// An operator need not know the language that the server is written in.
#[test]
fn wrong_values_are_named_in_plain_words() {
    let (_guard, folder) = folder();
    let in_file = [
        ("[rest]\nport = \"http\"", "rest.port: it must be a whole number from 0 to 65535, and is \"http\""),
        ("[rest]\nport = 70000", "rest.port: it must be a whole number from 0 to 65535, and is 70000"),
        ("[rest]\nport = 1.5", "rest.port: it must be a whole number from 0 to 65535, and is 1.5"),
        ("[rest]\nconnections_max = 0", "it must be a whole number of at least 1, and is 0"),
        ("[rest]\nconnections_max = -1", "it must be a whole number of at least 1, and is -1"),
        ("[rest]\nenabled = 1", "rest.enabled: it must be true or false, and is 1"),
        ("[rest]\nenabled = \"yes\"", "rest.enabled: it must be true or false, and is \"yes\""),
        ("[rest]\naddress = \"here\"", "rest.address: it must be an IP address"),
        ("[rest]\naddress = 1", "rest.address: it must be an IP address, and is 1"),
        ("[log]\nformat = \"xml\"", "log.format: it must be one of text, json, and is \"xml\""),
        ("[log]\nlevel = [\"info\"]", "log.level: it must be a text, and is a list"),
        ("[waku]\nshards = 7", "waku.shards: it must be a list, and is 7"),
        ("[waku]\nshards = [\"a\"]", "waku.shards: it must be a whole number from 0 to 65535, and is \"a\""),
        ("[server]\ndata_dir = 7", "server.data_dir: it must be a path, and is 7"),
        ("[archive]\nretention = 7", "archive.retention: it must be a text, and is 7"),
        ("[rest]\nport = 1979-05-27", "and is \"1979-05-27\""),
        ("[archive]\nretention = \"time:10;time:20\"", "the rule 'time' is given twice"),
        ("[archive]\nretention = \"time:0\"", "'time:0' keeps nothing"),
    ];
    for (text, expected) in in_file {
        fs::write(folder.join("restante.toml"), text).unwrap();
        let said = say(&folder, &["config", "check"]);
        assert_eq!(said.code, 2, "{text}: {}", said.err);
        assert!(said.err.contains(expected), "{text}: {}", said.err);
        assert_plain(&said.err);
    }
    fs::remove_file(folder.join("restante.toml")).unwrap();
    for (args, expected) in [
        (&["serve", "--rest-port", "http"][..], "it is no whole number"),
        (&["serve", "--rest-port", "70000"], "it is not from 0 to 65535"),
        (&["serve", "--rest-port", "-1"], ""),
        (&["serve", "--rest-port", ""], ""),
        (&["serve", "--cluster-id", "1.5"], "it is no whole number"),
        (&["serve", "--rest-relay-cache-capacity", "99999999999999999999999"], ""),
        (&["query", "--limit", "x"], "it is no whole number"),
        (&["serve", "--rest-address", "here"], "it is no IP address"),
        (&["serve", "--rest", "perhaps"], ""),
        (&["blobs", "sweep", "--grace", "1h"], "it is no whole number"),
        (&["bench", "history", "--messages", "many"], "it is no whole number"),
    ] {
        let said = say(&folder, args);
        assert_eq!(said.code, 2, "{args:?}: {}", said.err);
        assert!(said.err.contains(expected), "{args:?}: {}", said.err);
        assert_plain(&said.err);
    }
    for (variable, value) in
        [("RESTANTE_REST__PORT", "x"), ("RESTANTE_REST__ENABLED", "perhaps"), ("RESTANTE_WAKU__SHARDS", "x")]
    {
        let output = restante(&folder).args(["config", "check"]).env(variable, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_plain(&String::from_utf8(output.stderr).unwrap());
    }
}

fn assert_plain(error: &str) {
    for word in [
        "u16",
        "u32",
        "u64",
        "usize",
        "i64",
        "nonzero",
        "struct",
        "invalid type",
        "variant",
        "sequence",
        "..=",
        "digit found",
        "zero-size",
    ] {
        assert!(!error.contains(word), "'{word}' stands in: {error}");
    }
}

/// A typing error in a key must not create a file of that name, and with it a node that nobody knows.
#[test]
fn a_node_key_that_is_none_is_an_error() {
    let (_guard, folder) = folder();
    for text in ["nonsense", &"z".repeat(64), "0x", "key with spaces"] {
        let said = say(&folder, &["serve", "--rest-port", "0", "--tcp-port", "0", "--nodekey", text]);
        assert_eq!(said.code, 2, "{text}: {}", said.err);
        assert!(said.err.contains("neither 64 hex digits nor a file that is there"), "{}", said.err);
        assert!(!said.err.contains("zzzz"), "it may be a secret: {}", said.err);
        assert!(!folder.join("data").exists(), "nothing was made");
    }
    fs::create_dir(folder.join("data")).unwrap();
    fs::write(folder.join("data/mine.key"), "a diary").unwrap();
    let said = say(&folder, &["serve", "--rest-port", "0", "--tcp-port", "0", "--nodekey", "mine.key"]);
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("mine.key holds no node key"), "{}", said.err);
    // A path creates a new key, as documented.
    drop(crate::support::Server::start_with(&folder, &["--nodekey", "./other"]));
    assert!(folder.join("data/other").is_file());
}

/// The codes are documented in the help and in README.md.
#[test]
fn exit_codes_are_as_documented() {
    let (_guard, folder) = folder();
    let code = |args: &[&str]| say(&folder, args).code;
    assert_eq!(code(&["config", "show"]), 0);
    assert_eq!(code(&["archive", "stats", "--data", "missing"]), 1);
    assert_eq!(code(&["serv"]), 2);
    assert_eq!(code(&["serve", "--rest-token-file", "missing", "--rest-port", "0", "--tcp-port", "0"]), 2);
    let server = crate::support::Server::start(&folder);
    assert_eq!(code(&["serve", "--rest-port", "0", "--tcp-port", "0"]), 3, "the data folder is held");
    let port = server.address().port().to_string();
    assert_eq!(code(&["serve", "--data", "other", "--rest-port", &port, "--tcp-port", "0"]), 3);
    assert_eq!(server.stop().code(), Some(0));
    assert_eq!(code(&["backup", "copy"]), 0);
    assert_eq!(code(&["backup", "check", "copy"]), 0);
    fs::write(folder.join("copy/settings.toml"), "# other\n").unwrap();
    assert_eq!(code(&["backup", "check", "copy"]), 1);
    // 130: see the tests of copies and of backups, which are interrupted.
}

/// The log has every listening address and input of the server, each address once.
#[test]
fn the_start_names_the_settings_and_each_address_once() {
    let (_guard, folder) = folder();
    fs::write(folder.join("restante.toml"), "[server]\ngrace_seconds = 9\n").unwrap();
    let log = |in_one: bool| {
        let mut command = restante(&folder);
        command.args(["serve", "--rest-port", "0", "--tcp-port", "0", "--log-format", "json"]);
        let (out, err) = (folder.join("out"), folder.join("err"));
        let file = fs::File::create(&out).unwrap();
        let other = if in_one { file.try_clone().unwrap() } else { fs::File::create(&err).unwrap() };
        let mut child = command.stdout(file).stderr(other).spawn().unwrap();
        let read = || fs::read_to_string(&out).unwrap() + &fs::read_to_string(&err).unwrap_or_default();
        crate::support::wait_until("it serves", || read().contains("/p2p/"));
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let texts = (fs::read_to_string(&out).unwrap(), fs::read_to_string(&err).unwrap_or_default());
        let _ = fs::remove_file(err);
        texts
    };
    let (out, err) = log(false);
    assert!(out.starts_with("listening on http://127.0.0.1:"), "{out}");
    for (text, what) in [(&err, "restante.toml"), (&err, "/console"), (&err, "/p2p/")] {
        assert_eq!(text.matches(what).count(), 1, "{what}: {text}");
    }
    // On a terminal and in the journal, output and log are one.
    let (all, _) = log(true);
    for what in ["/console", "/p2p/"] {
        assert_eq!(all.matches(what).count(), 1, "{what}: {all}");
    }
    let rest = out.lines().next().unwrap().rsplit('/').next().unwrap().rsplit(':').next().unwrap().len();
    assert!(rest > 1 && all.matches("http://127.0.0.1:").count() <= 2, "{all}");
}

/// The files of a server can be read and written by its user, and read by its group.
#[test]
fn files_are_0640_folders_0750_and_secrets_0600() {
    use std::os::unix::fs::PermissionsExt;
    let (_guard, folder) = folder();
    for archive in ["log:data/archive", "sqlite:data/archive.db"] {
        let data = folder.join("data");
        // What exists already stays as it is.
        fs::create_dir(&data).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
        let binary = env!("CARGO_BIN_EXE_restante");
        let mut command = std::process::Command::new("/bin/sh");
        let line = format!(
            "umask 000; exec {binary} serve --rest-port 0 --tcp-port 0 --rest-admin --archive {archive}"
        );
        command.args(["-c", &line]).current_dir(&folder).env("RESTANTE_LOG__LEVEL", "warn");
        let server = crate::support::Server::spawn(command);
        server.publish("kept");
        let copy = folder.join("copy");
        said(&folder, &["backup", "copy", "--rest", &server.url()]);
        assert_eq!(server.stop().code(), Some(0));
        let mut waiting = vec![data.clone(), copy.clone()];
        while let Some(path) = waiting.pop() {
            let mode = fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777;
            if path == data {
                assert_eq!(mode, 0o755, "it was there");
            } else if path.is_dir() {
                assert_eq!(mode & !0o750, 0, "{}: {mode:o}", path.display());
            } else {
                let allowed = if path.ends_with("node.key") { 0o600 } else { 0o640 };
                assert_eq!(mode & !allowed, 0, "{}: {mode:o}", path.display());
            }
            if path.is_dir() {
                waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        fs::remove_dir_all(data).unwrap();
        fs::remove_dir_all(copy).unwrap();
    }
}
