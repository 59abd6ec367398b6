//! From the embedded engines to Cassandra and S3, from there to PostgreSQL, and back. Each copy is killed several times, and
//! continued.

use std::{fs, path::Path, process::Stdio, thread, time::Duration};

use serde_json::{Value, json};

use crate::{
    USER, add_account,
    client::Client,
    engines::{Stores, configure_s3},
    filled::{fill, message},
    support::{Server, folder, free_address, restante, said, say},
};

/// Enough that a copy takes longer than the time until the first kill.
const MESSAGES: usize = 3_000;
const EMAILS: usize = 200;
/// A copy is killed after the first time, and its continuations after the next ones, unless it is done before.
const KILLS_MS: [u64; 3] = [200, 600, 1_800];

/// The output of a copy of records that was killed after all was copied and before it could report that.
const COMPLETE: &str = "the target is a complete copy of these records";

/// Runs a command that continues where it was stopped, and kills it at first. Returns how often it was killed.
fn run_with_kills(folder: &Path, args: &[&str]) -> usize {
    let waits = KILLS_MS.into_iter().map(Some).chain([None]);
    for (kills, wait_ms) in waits.enumerate() {
        let mut child = restante(folder).args(args).stderr(Stdio::piped()).spawn().unwrap();
        if let Some(ms) = wait_ms {
            thread::sleep(Duration::from_millis(ms));
            let _ = child.kill(); // it may have ended already
        }
        let ended = child.wait_with_output().unwrap();
        let problem = String::from_utf8_lossy(&ended.stderr);
        match ended.status.code() {
            Some(0) => return kills,
            Some(_) if kills > 0 && problem.contains(COMPLETE) => return kills,
            Some(_) => panic!("restante {args:?}: {problem}"),
            None => {}
        }
    }
    panic!("restante {args:?} was killed, and not by this test");
}

/// Moves what a command copies along these places; each copy is equal to the original.
fn move_along(folder: &Path, what: &str, places: &[&str], is_equal: impl Fn(&str, &str)) {
    let mut kills = 0;
    for pair in places.windows(2) {
        kills += run_with_kills(folder, &[what, "copy", pair[0], pair[1]]);
        is_equal(places[0], pair[1]);
    }
    println!("{what}: copies were killed {kills} times");
    assert!(kills > 0, "{what}: no copy was killed");
}

fn fill_stores(folder: &Path) {
    fill(folder, "data/archive", (0..MESSAGES as u32).map(message));
    let mails: String = (0..EMAILS)
        .map(|n| {
            format!(
                "From carol@example.net Sat Nov 28 12:00:00 2026\nFrom: carol@example.net\n\
                 Message-ID: <{n}@example.net>\nSubject: {n}\n\n{n}: a text.\n\n"
            )
        })
        .collect();
    fs::write(folder.join("mbox"), mails).unwrap();
    said(folder, &["mail", "import", "--account", USER, "mbox:mbox"]);
}

/// All emails with their state as a client sees them, and how many messages the server has.
fn seen(folder: &Path, places: &[(&str, &str)]) -> (Value, usize) {
    let jmap = free_address();
    let mut command = restante(folder);
    command.args(["serve", "--rest-port=0", "--tcp-port=0", "--log-level=warn"]);
    command.args(["--jmap-listen", &jmap.to_string()]);
    for (flag, place) in places {
        command.args([flag, place]);
    }
    let server = Server::spawn(command);
    let client = Client::new(jmap, USER).unwrap();
    let ids = client.call("Email/query", json!({"limit": EMAILS})).unwrap()["ids"].clone();
    let emails = client.call("Email/get", json!({"ids": ids, "fetchTextBodyValues": true})).unwrap();
    let messages = server.payloads(100).len();
    assert_eq!(server.stop().code(), Some(0));
    (emails, messages)
}

pub(crate) fn everything_moves_and_comes_back(postgres: &Stores, cassandra: &Stores) {
    let (_guard, folder) = folder();
    let folder = &folder;
    fs::write(folder.join("restante.toml"), configure_s3(folder)).unwrap();
    add_account(folder);
    fill_stores(folder);
    let before = seen(folder, &[]);
    assert_eq!((before.0["list"].as_array().unwrap().len(), before.1), (EMAILS, MESSAGES));

    let archives = ["log:data/archive", &cassandra.archive(), &postgres.archive(), "log:back/archive"];
    move_along(folder, "archive", &archives, |a, b| {
        let compared = said(folder, &["archive", "compare", a, b, "--bodies"]);
        assert_eq!(compared, "equal: 3,000 messages in each\n");
    });
    let records = ["lmdb:data/records", &cassandra.records(), &postgres.records(), "lmdb:back/records"];
    move_along(folder, "records", &records, |a, b| {
        let compared = say(folder, &["records", "compare", a, b]);
        assert_eq!(compared.code, 0, "{a} and {b}: {}{}", compared.out, compared.err);
    });
    let blobs = ["files:data/blobs", &cassandra.blobs(), "files:back/blobs"];
    let stats = |place: &str| {
        let said = said(folder, &["blobs", "stats", "--blobs", place, "--format", "json"]);
        let stats: Value = serde_json::from_str(&said).unwrap();
        (stats["blobs"].clone(), stats["bytes"].clone())
    };
    move_along(folder, "blobs", &blobs, |_, b| {
        let checked = say(folder, &["blobs", "check", "--blobs", b]);
        assert_eq!(checked.code, 0, "{b}: {}{}", checked.out, checked.err);
    });
    assert_eq!(stats(blobs[0]).0, json!(EMAILS));
    for place in &blobs[1..] {
        assert_eq!(stats(place), stats(blobs[0]), "{place}");
    }

    let back = [("--archive", archives[3]), ("--records", records[3]), ("--blobs", blobs[2])];
    assert_eq!(seen(folder, &back), before, "clients see the same and go on from the same state");
    let scaled = [("--archive", archives[1]), ("--records", records[1]), ("--blobs", blobs[1])];
    assert_eq!(seen(folder, &scaled), before);
}
