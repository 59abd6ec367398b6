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
