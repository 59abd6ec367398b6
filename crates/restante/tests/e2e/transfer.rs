//! Messages are exported from one archive and imported into another.

use std::{fs, path::Path};

use crate::support::{Server, folder, said, say, say_with_input};

/// An archive below `data` with this many messages.
fn filled(folder: &Path, count: usize) {
    let server = Server::start(folder);
    for number in 0..count {
        server.publish(&number.to_string());
    }
    assert_eq!(server.stop().code(), Some(0));
}

fn export(folder: &Path, data: &str) -> String {
    said(folder, &["archive", "export", "--data", data])
}

#[test]
fn an_exported_archive_is_the_same_after_import() {
    let (_guard, folder) = folder();
    filled(&folder, 50);
    let lines = export(&folder, "data");
    assert_eq!(lines.lines().count(), 50);
    for (name, other) in [("all.ndjson", "first"), ("all.pb", "second")] {
        said(&folder, &["archive", "export", "--output", name]);
        let import = say(&folder, &["archive", "import", name, "--data", other]);
        assert_eq!(import.code, 0, "{}", import.err);
        assert_eq!(import.err, "stored 50 messages, 0 were there already, 0 refused\n");
        assert_eq!(export(&folder, other), lines, "{name}");
        let compared = say(
            &folder,
            &["archive", "compare", "log:data/archive", &format!("log:{other}/archive"), "--bodies"],
        );
        assert_eq!(compared.out, "equal: 50 messages in each\n", "{name}");

        let again = say(&folder, &["archive", "import", name, "--data", other]);
        assert_eq!(again.err, "stored 0 messages, 50 were there already, 0 refused\n");
        assert_eq!(export(&folder, other), lines, "{name}");
    }
    assert_eq!(fs::read_to_string(folder.join("all.ndjson")).unwrap(), lines);
}

/// A file of the requested name is complete: an unfinished one does not get the name.
#[test]
fn an_export_that_fails_leaves_no_file_and_the_old_one() {
    let (_guard, folder) = folder();
    filled(&folder, 400);
    let binary = env!("CARGO_BIN_EXE_restante");
    for command in ["archive export --output", "records dump --out"] {
        // A file of half a KiB at most; a write past that is an error and no signal.
        let script = format!("ulimit -f 1; trap '' XFSZ; exec {binary} {command} all.ndjson");
        if command.starts_with("records") {
            crate::backup::fill_stores(&folder.join("data"), 0..40);
        }
        let failing = || {
            let mut shell = std::process::Command::new("/bin/sh");
            let output = shell.args(["-c", &script]).current_dir(&folder).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        };
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        failing();
        assert_eq!(names(), ["data"], "{command}");
        fs::write(folder.join("all.ndjson"), "old").unwrap();
        failing();
        assert_eq!(fs::read(folder.join("all.ndjson")).unwrap(), b"old");
        let args: Vec<&str> = command.split(' ').chain(["all.ndjson"]).collect();
        said(&folder, &args);
        assert!(fs::metadata(folder.join("all.ndjson")).unwrap().len() > 1_024);
        assert_eq!(names(), ["all.ndjson", "data"]);
        fs::remove_file(folder.join("all.ndjson")).unwrap();
        // What is not a regular file is written to directly.
        said(&folder, &[&args[..args.len() - 1], &["/dev/null"]].concat());
    }
}

#[test]
fn a_servers_export_is_the_commands_export() {
    let (_guard, folder) = folder();
    filled(&folder, 10);
    let server = Server::start(&folder);
    let by_server = server.get("/archive/v1/export");
    assert_eq!(by_server.status, 200);
    let parse = |text: &str| -> Vec<serde_json::Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    assert_eq!(parse(&by_server.body), parse(&export(&folder, "data")));
    assert_eq!(parse(&by_server.body).len(), 10);
}

#[test]
fn part_of_an_archive_is_exported_by_topic_and_time() {
    let (_guard, folder) = folder();
    filled(&folder, 3);
    let count = |args: &[&str]| said(&folder, &[&["archive", "export"], args].concat()).lines().count();
    assert_eq!(count(&["--start", "-1h"]), 3);
    assert_eq!(count(&["--end", "-1h"]), 0);
    assert_eq!(count(&["--content-topic", crate::support::CONTENT_TOPIC]), 3);
    assert_eq!(count(&["--pubsub-topic", "/waku/2/rs/9/9"]), 0);
}

#[test]
fn damaged_records_are_refused_and_the_others_stored() {
    let (_guard, folder) = folder();
    filled(&folder, 3);
    let lines = export(&folder, "data");
    let mut damaged: Vec<&str> = lines.lines().collect();
    damaged.insert(1, "{\"messageHash\": \"0x00\"}");
    let import =
        say_with_input(&folder, &["archive", "import", "--data", "other"], damaged.join("\n").as_bytes());
    assert_eq!(import.code, 1, "{}", import.err);
    assert!(import.err.starts_with("refused: line 2: messageHash: not a message hash"), "{}", import.err);
    assert!(import.err.ends_with("stored 3 messages, 0 were there already, 1 refused\n"), "{}", import.err);
    assert_eq!(export(&folder, "other"), lines);
}

#[test]
fn a_missing_file_is_named() {
    let (_guard, folder) = folder();
    let import = say(&folder, &["archive", "import", "none.pb"]);
    assert_eq!(import.code, 1);
    assert!(import.err.starts_with("restante: can't open none.pb: "), "{}", import.err);
}
