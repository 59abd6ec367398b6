//! From one archive to another, between any engines: copy, compare, and import from other servers.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

use restante_archive::Message;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    filled::{fill, message},
    support::{Said, folder, restante, said, say},
};

/// Enough for many pages of a copy, so that it can be stopped between them.
const MANY: u32 = 100_000;

fn state_files(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".state")).count()
}

fn assert_equal(folder: &Path, a: &str, b: &str, messages: &str) {
    let out = said(folder, &["archive", "compare", a, b, "--bodies"]);
    assert_eq!(out, format!("equal: {messages} messages in each\n"));
}

/// A mistyped path used to be treated as an empty archive, for which every check succeeds.
#[test]
fn commands_that_need_an_archive_say_where_the_nearest_one_is() {
    let (_guard, folder) = folder();
    fill(&folder, "data/archive", (0..3).map(message));
    let (right, wrong) = ("log:data/archive", "log:data");
    for args in [
        &["archive", "check", "--archive", wrong][..],
        &["archive", "stats", "--archive", wrong],
        &["archive", "export", "--archive", wrong],
        &["archive", "rebuild", "--archive", wrong],
        &["archive", "prune", "--archive", wrong, "--policy", "time:60"],
        &["archive", "compare", right, wrong],
        &["archive", "copy", wrong, "log:elsewhere"],
        &["query", "--archive", wrong],
    ] {
        let said = say(&folder, args);
        assert_eq!(said.code, 1, "{args:?}: {}", said.err);
        assert!(
            said.err.contains("the nearest one is log:") && said.err.contains("data/archive"),
            "{}",
            said.err
        );
    }
    assert!(!folder.join("elsewhere").exists(), "nothing was made");
    let missing = say(&folder, &["archive", "prune", "--archive", "log:typo", "--policy", "time:60"]);
    assert_eq!(missing.code, 1, "{}", missing.err);
    assert!(!folder.join("typo").exists(), "nothing was made");
}

/// How often a command is retried that finished before it could be stopped.
const TRIES: usize = 20;

/// Starts a command that writes into `to`, and signals it once it has recorded that a part is done. Returns its exit code
/// and its last line of output.
fn stop_midway(folder: &Path, args: &[&str], to: &str, signal: Signal) -> (Option<i32>, String) {
    for _ in 0..TRIES {
        let mut child = restante(folder).args(args).stderr(Stdio::piped()).spawn().unwrap();
        while state_files(folder) == 0 && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = kill_process(Pid::from_child(&child), signal); // it may have ended already
        let last = BufReader::new(child.stderr.take().unwrap()).lines().last();
        let code = child.wait().unwrap().code();
        if code != Some(0) {
            return (code, last.map(Result::unwrap).unwrap_or_default());
        }
        remove(folder, to);
    }
    panic!("{args:?} was done {TRIES} times before it could be stopped");
}

/// Removes everything whose name starts with `name`.
fn remove(folder: &Path, name: &str) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_string_lossy().starts_with(name) {
            continue;
        }
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
}

#[test]
fn a_copy_through_three_engines_survives_kill_9_and_ctrl_c() {
    let (_guard, folder) = folder();
    fill(&folder, "a", (0..MANY).map(message));

    let (code, _) = stop_midway(&folder, &["archive", "copy", "log:a", "sqlite:b.db"], "b.db", Signal::KILL);
    assert_eq!(code, None, "it was killed");
    let differs = say(&folder, &["archive", "compare", "log:a", "sqlite:b.db", "--limit", "3"]);
    assert_eq!(differs.code, 1, "{}", differs.err);
    assert!(differs.out.contains("\nand "), "{}", differs.out);
    let resumed = say(&folder, &["archive", "copy", "log:a", "sqlite:b.db"]);
    assert_eq!(resumed.code, 0, "{}", resumed.err);
    assert!(resumed.err.starts_with("copied "), "{}", resumed.err);
    assert_eq!(state_files(&folder), 0);
    assert_equal(&folder, "log:a", "sqlite:b.db", "100,000");

    let (code, said_last) =
        stop_midway(&folder, &["archive", "copy", "sqlite:b.db", "log:c"], "c", Signal::INT);
    assert_eq!(code, Some(130), "{said_last}");
    assert!(said_last.starts_with("stopped early: copied "), "{said_last}");
    let resumed = say(&folder, &["archive", "copy", "sqlite:b.db", "log:c"]);
    assert_eq!(resumed.err, "copied 100,000 messages, 0 were there already\n", "it went on where it stopped");
    assert_equal(&folder, "log:a", "log:c", "100,000");

    let again = say(&folder, &["archive", "copy", "log:a", "log:c"]);
    assert_eq!((again.code, &*again.err), (0, "copied 0 messages, 100,000 were there already\n"));
}

#[test]
fn a_state_file_is_that_of_one_command() {
    let (_guard, folder) = folder();
    fill(&folder, "a", (0..MANY).map(message));
    stop_midway(&folder, &["archive", "copy", "log:a", "log:b"], "b", Signal::KILL);
    let other = say(&folder, &["archive", "copy", "log:a", "log:b", "--start", "-1h"]);
    assert_eq!(other.code, 1, "{}", other.err);
    assert!(other.err.contains("is of another command: log:a to log:b, ..; this one is"), "{}", other.err);
    let named =
        say(&folder, &["archive", "copy", "log:a", "log:c", "--state", "my.state", "--end", "2023-11-15"]);
    assert_eq!(named.code, 0, "{}", named.err);
    assert_eq!(state_files(&folder), 1, "the other one's is still there");
}

/// The state file of a copy into an archive that was removed since made the next copy skip what that archive had.
#[test]
fn a_copy_begins_anew_when_its_target_was_removed() {
    let (_guard, folder) = folder();
    fill(&folder, "a", (0..MANY).map(message));
    let copy = ["archive", "copy", "log:a", "log:b"];
    stop_midway(&folder, &copy, "b", Signal::INT);
    remove(&folder, "b");
    let anew = say(&folder, &copy);
    assert_eq!(anew.code, 0, "{}", anew.err);
    assert!(anew.err.starts_with("the state file restante-copy-"), "{}", anew.err);
    assert!(anew.err.ends_with("copied 100,000 messages, 0 were there already\n"), "{}", anew.err);
    assert_eq!(state_files(&folder), 0);
    assert_equal(&folder, "log:a", "log:b", "100,000");
}

/// Regression test: damaged messages were left out, and the exit code reported success.
#[test]
fn a_copy_an_export_and_a_query_count_damaged_messages() {
    let (_guard, folder) = folder();
    fill(&folder, "a", (0..1_000).map(message));
    let names = fs::read_dir(folder.join("a")).unwrap().map(|entry| entry.unwrap().path());
    let log = names.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "log")).unwrap();
    let mut bytes = fs::read(&log).unwrap();
    let at = bytes.windows(8).position(|window| window == b"body 500").unwrap();
    bytes[at] ^= 1;
    fs::write(&log, bytes).unwrap();

    let left_out = "1 damaged record was left out: see restante archive check --archive log:";
    let copied = say(&folder, &["archive", "copy", "log:a", "log:b"]);
    assert_eq!(copied.code, 1, "{}", copied.err);
    let counts = format!("copied 999 messages, 0 were there already\n{left_out}a\n");
    assert!(copied.err.ends_with(&counts), "{}", copied.err);
    let exported = say(&folder, &["archive", "export", "--archive", "log:a"]);
    assert_eq!((exported.code, exported.out.lines().count()), (1, 999), "{}", exported.err);
    assert!(exported.err.contains(left_out), "{}", exported.err);
    assert_eq!(say(&folder, &["archive", "export", "--archive", "log:b"]).code, 0);
    for (limit, printed) in [("2000", 999), ("10", 10)] {
        let queried = say(&folder, &["query", "--archive", "log:a", "--limit", limit]);
        assert_eq!((queried.code, queried.out.lines().count()), (1, printed), "{}", queried.err);
        assert!(queried.err.ends_with(&format!("{left_out}a\n")), "{}", queried.err);
    }
    let sound = say(&folder, &["query", "--archive", "log:b"]);
    assert!(sound.code == 0 && !sound.err.contains("left out"), "{}", sound.err);
}

#[test]
fn a_comparison_names_what_is_missing_and_a_repair_copies_it() {
    let (_guard, folder) = folder();
    let other_body = |number| Message { body: "another body".into(), ..message(number) };
    fill(&folder, "a", (0..1_000).filter(|number| *number != 7).map(message));
    let b = (0..1_000).filter(|number| ![50, 999].contains(number));
    fill(&folder, "b", b.map(|number| if number == 500 { other_body(number) } else { message(number) }));

    let compare =
        |more: &[&str]| -> Said { say(&folder, &[&["archive", "compare", "log:a", "log:b"], more].concat()) };
    let line = |kind: &str, number| {
        let Message { timestamp, message_hash, .. } = message(number);
        format!("{kind}  {timestamp}  {message_hash}\n")
    };
    let [only_b, only_a, differs, last] =
        [line("only in B", 7), line("only in A", 50), line("differs  ", 500), line("only in A", 999)];
    let found = compare(&["--bodies"]);
    let counts = "999 messages in A, 998 in B: 2 only in A, 1 only in B, 1 differ";
    assert_eq!((found.code, found.out), (1, format!("{only_b}{only_a}{differs}{last}{counts}\n")));
    let short = compare(&["--limit", "1"]);
    assert!(short.out.starts_with(&format!("{only_b}and 2 more\n")), "{}", short.out);
    assert_eq!(compare(&["--end", "2023-11-14T22:13:30Z"]).out, "equal: 3 messages in each\n");

    let repaired = compare(&["--repair"]);
    assert_eq!(repaired.code, 1, "B has one that A lacks");
    assert!(
        repaired.out.ends_with("2 only in A, 1 only in B, 0 differ; 2 copied to B\n"),
        "{}",
        repaired.out
    );
    let back = say(&folder, &["archive", "compare", "log:b", "log:a", "--repair"]);
    assert_eq!(back.code, 0, "{}", back.out);
    assert!(back.out.ends_with("; 1 copied to B\n"), "{}", back.out);
    assert_eq!(compare(&[]).out, "equal: 1,000 messages in each\n");
    assert_eq!(compare(&["--bodies"]).code, 1, "an archive never changes a message");
}

#[test]
fn a_copy_beside_a_server_reads_what_it_has() {
    let (_guard, folder) = folder();
    let server = crate::support::Server::start(&folder);
    for number in 0..20 {
        server.publish(&number.to_string());
    }
    let copied = say(&folder, &["archive", "copy", "log:data/archive", "log:copy"]);
    assert_eq!((copied.code, &*copied.err), (0, "copied 20 messages, 0 were there already\n"));
    server.publish("later");
    let repaired = say(&folder, &["archive", "compare", "log:data/archive", "log:copy", "--repair"]);
    assert_eq!(repaired.code, 0, "{}", repaired.err);
    assert!(
        repaired.out.ends_with("1 only in A, 0 only in B, 0 differ; 1 copied to B\n"),
        "{}",
        repaired.out
    );
}

#[test]
fn mistakes_are_named() {
    let (_guard, folder) = folder();
    fill(&folder, "a", (0..10).map(message));
    fs::write(folder.join("x.ndjson"), "").unwrap();
    fs::write(folder.join("x.ndjson.gz"), b"\x1f\x8b\x08\x00").unwrap();
    fs::create_dir(folder.join("empty")).unwrap();
    for (args, code, why) in [
        (&["copy", "log:a", "log:a"][..], 2, "the same archive"),
        (&["compare", "log:a", "log:a"], 2, "the same archive"),
        (&["copy", "log:a", "tape:b"], 2, "log:<folder>"),
        (&["copy", "log:none", "log:b"], 1, "none"),
        (&["import", "--from", "nwaku", "x.ndjson"], 2, "x.ndjson is no archive of nwaku"),
        (&["import", "--from", "status"], 2, "stdin is no archive of a Status mailserver"),
        (&["import", "empty"], 1, "without a LevelDB"),
        (&["import", "log:a"], 2, "'restante archive copy' takes one"),
        (&["import", "x.ndjson.gz"], 1, "it is compressed by gzip"),
        (&["import", "--rehash", "x.ndjson"], 2, "for archives of other servers"),
        (&["import", "--pubsub-topic", "nowhere", "empty"], 2, "nowhere"),
    ] {
        let said = say(&folder, &[&["archive"], args].concat());
        assert_eq!(said.code, code, "{args:?}: {}", said.err);
        assert!(said.err.contains(why), "{args:?}: {}", said.err);
    }
}

/// An envelope of `5c6c9b56`, sent at 2019-04-01, and its key as a Status mailserver stores it; made with the packages that
/// the mailserver used.
const ENVELOPE: &[u8] = b"\xd3\x84\x5c\xa1\x54\xb2\x32\x84\x5c\x6c\x9b\x56\x86secret\x4d";
const KEY: &[u8] = b"\x5c\xa1\x54\x80\
    \xc7\x7f\xb0\x23\x1d\x3e\x8b\xf1\x3c\x84\xcf\x17\x75\xd2\xa1\xca\
    \x9a\xc3\x11\x8e\x30\xb2\xff\x8f\x4a\x19\x5c\x20\xf5\x2a\x23\x6c\
    \x5c\x6c\x9b\x56";

#[test]
fn a_mailservers_archive_is_imported() {
    let (_guard, folder) = folder();
    let mut db = rusty_leveldb::DB::open(folder.join("wnode"), rusty_leveldb::Options::default()).unwrap();
    db.put(KEY, ENVELOPE).unwrap();
    db.close().unwrap();
    drop(db);
    let import = |more: &[&str]| say(&folder, &[&["archive", "import", "wnode"], more].concat());
    let first = import(&[]);
    assert_eq!((first.code, &*first.err), (0, "stored 1 messages, 0 were there already, 0 refused\n"));
    assert_eq!(import(&["--from", "status-go"]).err, "stored 0 messages, 1 were there already, 0 refused\n");
    assert_eq!(import(&["--from", "nwaku"]).code, 1);
    let json = said(&folder, &["query", "--archive", "log:data/archive", "--format", "ndjson"]);
    let entry: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(entry["pubsubTopic"], "/waku/2/default-waku/proto");
    assert_eq!(entry["message"]["contentTopic"], "/waku/1/0x5c6c9b56/rfc26");
    assert_eq!(entry["message"]["timestamp"], 1_554_076_800_000_000_000_i64);
    assert_eq!(entry["message"]["version"], 1);
    assert_eq!(crate::support::payload_of(&entry), "secret");
    assert_eq!(state_files(&folder), 0);

    let other = import(&["--pubsub-topic", "/waku/2/rs/16/32", "--data", "other"]);
    assert_eq!(other.code, 0, "{}", other.err);
    assert_eq!(
        said(&folder, &["archive", "export", "--data", "other", "--pubsub-topic", "/waku/2/rs/16/32"])
            .lines()
            .count(),
        1
    );

    let mut db = rusty_leveldb::DB::open(folder.join("wnode"), rusty_leveldb::Options::default()).unwrap();
    db.put(b"x", ENVELOPE).unwrap();
    db.close().unwrap();
    let damaged = import(&[]);
    assert_eq!(damaged.code, 1);
    assert!(damaged.err.starts_with("refused: envelope 78: a key of 1 bytes"), "{}", damaged.err);
}

/// Stopped at any moment, again and again, until it is done: nothing is lost and nothing is stored twice.
#[test]
fn an_import_that_is_stopped_goes_on() {
    let (_guard, folder) = folder();
    let options = rusty_leveldb::Options { write_buffer_size: 64 << 20, ..rusty_leveldb::Options::default() };
    let mut db = rusty_leveldb::DB::open(folder.join("wnode"), options).unwrap();
    for number in 0..50_000_u32 {
        // Under wrong hashes, which an import accepts with a flag.
        let mut envelope = ENVELOPE.to_vec();
        envelope[2..6].copy_from_slice(&(1_554_076_850 + number).to_be_bytes());
        let mut key = KEY.to_vec();
        key[..4].copy_from_slice(&(1_554_076_800 + number).to_be_bytes());
        db.put(&key, &envelope).unwrap();
    }
    db.close().unwrap();
    let args = ["archive", "import", "wnode", "--rehash"];
    let (code, _) = stop_midway(&folder, &args, "data", Signal::KILL);
    assert_eq!(code, None, "it was killed");
    let resumed = say(&folder, &args);
    assert_eq!(resumed.code, 0, "{}", resumed.err);
    let last = resumed.err.lines().last().unwrap();
    assert!(last.starts_with("stored "), "{last}");
    assert!(resumed.err.contains("taken under another hash: 49,979 more"), "{}", resumed.err);
    assert_eq!(state_files(&folder), 0);
    let stats = || -> serde_json::Value {
        serde_json::from_str(&said(&folder, &["archive", "stats", "--format", "json"])).unwrap()
    };
    assert_eq!(stats()["messages"], 50_000);

    // What was copied into an archive that was removed since was skipped.
    remove(&folder, "data");
    stop_midway(&folder, &args, "data", Signal::INT);
    remove(&folder, "data");
    let anew = say(&folder, &args);
    assert_eq!(anew.code, 0, "{}", anew.err);
    assert_eq!(
        anew.err.lines().last().unwrap(),
        "stored 50,000 messages, 0 were there already, 0 refused",
        "{}",
        anew.err
    );
    assert_eq!(stats()["messages"], 50_000);
}
