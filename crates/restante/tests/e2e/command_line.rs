//! Help, completions, man pages, and mistakes at the prompt.

use std::{fs, path::Path};

use crate::support::{folder, said, say};

/// Every command that does something, as it is typed.
const COMMANDS: &[&str] = &[
    "",
    "serve",
    "publish",
    "query",
    "sessions",
    "sessions list",
    "sessions count",
    "sessions close",
    "archive",
    "archive stats",
    "archive check",
    "archive rebuild",
    "archive export",
    "archive import",
    "archive copy",
    "archive compare",
    "archive prune",
    "mail",
    "mail check",
    "mail vault",
    "mail restore",
    "mail trace",
    "records",
    "records stats",
    "records check",
    "records dump",
    "blobs",
    "blobs stats",
    "blobs check",
    "blobs sweep",
    "backup",
    "backup check",
    "restore",
    "bench",
    "bench history",
    "bench ingest",
    "bench pages",
    "bench sessions",
    "bench engines",
    "bench overhead",
    "config",
    "config show",
    "config check",
    "completions",
    "man",
];

/// What a user can type or set has a line in the changelog and an entry in the docs.
#[test]
fn every_command_and_every_table_of_settings_is_documented() {
    let (_guard, folder) = folder();
    said(&folder, &["man", "--out", "man"]);
    let root = Path::new("../..");
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let pages = [
        "README.md",
        "docs/running.md",
        "docs/accounts.md",
        "docs/domains.md",
        "docs/mail.md",
        "docs/sending.md",
        "docs/junk.md",
        "docs/measured.md",
        "docs/operators.md",
        "docs/operators-databases.md",
        "docs/scaling.md",
        "docs/moving.md",
        "docs/development.md",
    ];
    let (changelog, pages) = (read("CHANGELOG.md"), pages.map(read).concat());
    let mut missing = Vec::new();
    for entry in fs::read_dir(folder.join("man")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let command = name.strip_suffix(".1").unwrap().replace('-', " ");
        let last = command.rsplit(' ').next().unwrap();
        // Commands of one kind share a line: `restante records stats`, `check` and `dump`.
        let is_named = |text: &str| text.contains(&command) || text.contains(&format!("`{last}`"));
        // Benches are named as `make bench` calls them.
        let bench = command.strip_prefix("restante bench ").unwrap_or(last).replace(' ', "-");
        let is_bench =
            |text: &str| text.contains(&format!("BENCH={bench}")) || text.contains(&format!("bench {bench}"));
        for (place, text) in [("CHANGELOG.md", &changelog), ("the pages", &pages)] {
            if !is_named(text) && !is_bench(text) {
                missing.push(format!("{command} in {place}"));
            }
        }
    }
    let settings = read("restante.toml");
    for table in settings.lines().filter(|line| line.starts_with('[')) {
        for (place, text) in [("CHANGELOG.md", &changelog), ("the pages", &pages)] {
            if !text.contains(&format!("`{table}`")) {
                missing.push(format!("{table} in {place}"));
            }
        }
    }
    assert!(missing.is_empty(), "not documented: {missing:#?}");
}

#[test]
fn every_commands_help_has_an_example() {
    let (_guard, folder) = folder();
    for command in COMMANDS {
        let args: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let help = said(&folder, &args);
        assert!(help.contains("Example"), "restante {command} --help has no example:\n{help}");
        assert!(help.contains("restante"), "{help}");
    }
}

#[test]
fn mistakes_at_the_prompt_are_named() {
    let (_guard, folder) = folder();
    let everything = "f".repeat(128);
    for (args, expected) in [
        (&["serve", "--rest-prot", "1"][..], "--rest-port"),
        (&["serv"], "serve"),
        (&["serve", "--rest-port", "http"], "http"),
        (&["serve", "--max-msg-size", "big"], "150KiB"),
        (&["query", "--start", "yesterday"], "-1h"),
        (&["query", "--bloom", "ff"], "128 hex digits"),
        (&["query", "--bloom", &everything, "--content-topic", "x"], "--content-topic"),
        (&["query", "--rest", "http://x", "--archive", "memory:"], "--archive"),
        (&["query", "--archive", "tape:1"], "log:<folder>"),
        (&["archive", "prune", "--policy", "age:1"], "time:<seconds>"),
        (&["query", "--rest", "https://127.0.0.1"], "TLS"),
        (&["publish", "--payload", "x"], "--content-topic"),
        (&["sessions", "close"], "--user"),
        (&["sessions", "close", "17"], "32 hexadecimal digits"),
        (&["sessions", "close", "--resource", "x"], "--user"),
        (&["sessions", "list", "--limit", "0"], "--limit"),
        (&["serve", "--sessions-url", "rabbit:"], "use memory:, redis://"),
        (&["serve", "--records", "log:x"], "use memory:, lmdb:<folder>, postgres://"),
        (&["records", "check", "--blobs", "lmdb:x"], "use memory:, files:<folder> or s3://"),
        (&["records", "stats", "--token-file", "x"], "--rest"),
        (&["blobs", "sweep", "--grace", "1h"], "--grace"),
        (&["mail", "restore", "anna@example.org"], "<ID>"),
        (&["mail", "vault", "anna@example.org", "--limit", "0"], "--limit"),
        (&["publish", "--content-topic", "x", "--payload", "x", "--payload-file", "y"], "--payload"),
    ] {
        let said = say(&folder, args);
        assert_eq!(said.code, 2, "{args:?}: {}", said.err);
        assert!(said.err.contains(expected), "{args:?} does not say {expected}:\n{}", said.err);
        assert_eq!(said.out, "", "{args:?}");
    }
}

/// Refused arguments were repeated as typed, with their password, and such lines end up in logs.
#[test]
fn a_password_in_a_refused_url_is_not_printed() {
    let (_guard, folder) = folder();
    let place = "postgres://mailu:LeakSecret9@h/db?schema=BAD";
    let bad_parameter = "cassandra://mailu:LeakSecret9@h/db?bad=1";
    let twice = "postgres://mailu:Leak@Secret9:5432/x@h/db";
    for args in [
        &["records", "copy", place, "lmdb:x"][..],
        &["records", "copy", "lmdb:x", bad_parameter],
        &["records", "copy", "lmdb:x", "lmdb:y", place],
        &["archive", "copy", place, "log:x"],
        &["archive", "copy", twice, "log:x"],
        &["blobs", "copy", "s3://key:LeakSecret9@bucket", "files:x"],
        &["serve", "--records", place],
        &["serve", "--records", twice],
        &["serve", "--archive", place],
        &["serve", "--archive", "postgres://h/db?user=mailu&password=LeakSecret9&schema=BAD"],
        &["serve", "--sessions-url", "rabbit://mailu:LeakSecret9@h"],
        &["serve", "--rest-port", "rediss://:LeakSecret9@h"],
        &["serve", "--no-such-flag", place],
        &[place],
    ] {
        let said = say(&folder, args);
        assert_eq!(said.code, 2, "{args:?}: {}", said.err);
        assert!(!said.err.contains("Secret9") && !said.err.contains("Leak"), "{args:?}: {}", said.err);
    }
    let said = say(&folder, &["serve", "--records", twice]);
    assert!(said.err.contains("%40"), "{}", said.err);
}

#[test]
fn a_server_that_is_not_there_is_named_in_one_line() {
    let (_guard, folder) = folder();
    // Port 1 is reserved (tcpmux) and nobody listens there.
    let said = say(&folder, &["query", "--rest", "http://127.0.0.1:1"]);
    assert_eq!(said.code, 1);
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    assert!(said.err.starts_with("restante: can't reach http://127.0.0.1:1: "), "{}", said.err);
    assert!(said.err.contains("is a server running there?"), "{}", said.err);
}

#[test]
fn completions_know_the_commands() {
    let (_guard, folder) = folder();
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&folder, &["completions", shell]);
        for word in ["restante", "rest-port", "rebuild", "content-topic"] {
            assert!(script.contains(word), "{word} is missing for {shell}");
        }
    }
}

#[test]
fn there_is_a_man_page_for_every_command() {
    let (_guard, folder) = folder();
    said(&folder, &["man", "--out", "pages"]);
    for command in COMMANDS {
        let name = ["restante"].into_iter().chain(command.split_whitespace()).collect::<Vec<_>>().join("-");
        let page = fs::read_to_string(folder.join("pages").join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
        assert!(page.contains("Example"), "{name} shows no example");
    }
}
