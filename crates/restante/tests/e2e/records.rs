//! Records and blobs: opened and closed by a server, maintained by commands.

use std::{fs, future::Future, path::Path};

use bytes::Bytes;
use restante_blobs::{BlobId, Blobs};
use restante_mail::email;
use restante_records::{AccountId, Body, Change, Commit, Properties, RecordId, Schema};
use serde_json::{Value, json};

use crate::support::{Server, folder, said, say, wait_until};

/// Opens both stores of a folder, as a server does, and closes them.
pub(crate) fn with_stores<F: Future<Output = ()>>(
    folder: &Path,
    work: impl FnOnce(restante_records::Opened, restante_blobs::Opened) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = restante_records::EngineUrl::Lmdb(folder.join("data/records"));
        let kinds = restante_mail::kinds().into_iter().chain(restante_directory::kinds());
        let schema = Schema::new(kinds.collect()).unwrap();
        let records = restante_records::Config::new(url, schema);
        let records = restante_records::open(records).await.unwrap();
        let url = restante_blobs::EngineUrl::Files(folder.join("data/blobs"));
        let blobs = restante_blobs::open(restante_blobs::Config::new(url)).await.unwrap();
        work(records.clone(), blobs.clone()).await;
        records.upkeep.close().await.unwrap();
        blobs.upkeep.close().await.unwrap();
    });
}

async fn put(blobs: &dyn Blobs, text: &'static str) -> BlobId {
    blobs.put(&mut Bytes::from_static(text.as_bytes())).await.unwrap().id
}

/// Two accounts with an email each, one of them with a blob; a third email that was destroyed; a blob without a reference.
fn fill(folder: &Path) {
    with_stores(folder, async |records, blobs| {
        let attached = put(&*blobs.blobs, "attached").await;
        put(&*blobs.blobs, "nobody's").await;
        let email = |blobs| Change::Create {
            kind: email::KIND,
            body: Body { bytes: Bytes::from_static(b"Hello"), blobs },
            properties: Properties::default().with(email::MAILBOX, 1).with(email::UNSEEN, 1),
        };
        for (account, blobs) in [(1_024, vec![attached]), (1_025, Vec::new())] {
            records.records.commit(AccountId(account), Commit::of([email(blobs)])).await.unwrap();
        }
        records.records.commit(AccountId(1_025), Commit::of([email(Vec::new())])).await.unwrap();
        let destroy = Change::Destroy { kind: email::KIND, id: RecordId(2) };
        records.records.commit(AccountId(1_025), Commit::of([destroy])).await.unwrap();
    });
}

fn json_of(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&said(folder, args)).unwrap()
}

#[test]
fn a_server_opens_records_and_blobs_and_closes_them_in_order() {
    let (_guard, folder) = folder();
    for _ in 0..2 {
        let server = Server::start(&folder);
        let health: Value = serde_json::from_str(&server.get("/health").body).unwrap();
        for line in [json!({"Records": "Ready"}), json!({"Blobs": "Ready"})] {
            assert!(health["protocolsHealth"].as_array().unwrap().contains(&line), "{health}");
        }
        assert_eq!(server.metric("restante_records_clean_turns_total"), Some(0.0));
        assert_eq!(server.metric("restante_blobs_sweep_turns_total"), Some(0.0));
        assert_eq!(server.stop().code(), Some(0));
    }
    assert_eq!(said(&folder, &["records", "check"]), "checked 0 records: all sound\n");
    assert_eq!(said(&folder, &["blobs", "check"]), "checked 0 blobs of 0 B: all sound\n");
}

#[test]
fn what_is_kept_is_counted_checked_and_dumped() {
    let (_guard, folder) = folder();
    fill(&folder);
    let stats = json_of(&folder, &["records", "stats", "--format", "json"]);
    assert_eq!((&stats["accounts"], &stats["commits"]), (&json!(2), &json!(4)));
    assert_eq!(stats["url"], "lmdb:data/records");
    assert_eq!(stats["kinds"], json!([{"kind": "email", "records": 2, "tombstones": 1}]));
    assert!(stats["diskBytes"].as_u64() > Some(0), "{stats}");
    assert!(said(&folder, &["records", "stats"]).contains("accounts   2 (with internal ones)\n"));
    assert_eq!(said(&folder, &["records", "check"]), "checked 2 records: all sound\n");

    let dump = said(&folder, &["records", "dump"]);
    let lines: Vec<Value> = dump.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    // What sha256sum prints for "attached".
    let attached = "55d9067ef2bfacd4dc38ef7294695794ff61bba45f11b2f4d9b70515c57b2187";
    assert_eq!(lines[0]["blobs"], json!([attached]));
    assert_eq!(
        lines[1],
        json!({"account": 1025, "kind": "email", "id": 1, "revision": 1, "created": 1,
               "properties": {"mailbox": [1], "unseen": [1]}, "body": "Hello", "blobs": []})
    );
    assert_eq!(said(&folder, &["records", "dump", "--out", "records.ndjson"]), "");
    assert_eq!(fs::read_to_string(folder.join("records.ndjson")).unwrap(), dump);
}

#[test]
fn records_are_moved_and_compared() {
    let (_guard, folder) = folder();
    fill(&folder);
    let dump = said(&folder, &["records", "dump"]);
    let (from, to) = ("lmdb:data/records", "lmdb:moved");
    let copied = said(&folder, &["records", "copy", from, to]);
    assert_eq!(copied, "copied 2 accounts with 3 records and tombstones, and 0 checkpoints\n");
    let compared = said(&folder, &["records", "compare", from, to]);
    assert_eq!(compared, "compared 3 records and tombstones: both are equal\n");
    assert_eq!(said(&folder, &["records", "dump", "--records", to]), dump);
    assert_eq!(said(&folder, &["records", "check", "--records", to]), "checked 2 records: all sound\n");

    // Waiting for a process would not help, which is what exit code 3 is for.
    let refused = say(&folder, &["records", "copy", from, to]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert!(refused.err.contains("the target is a complete copy of these records"), "{}", refused.err);
    said(&folder, &["records", "erase", "1024", "--yes", "--records", to]);
    let differ = say(&folder, &["records", "compare", from, to]);
    assert_eq!(differ.code, 1);
    assert!(differ.out.contains("account 1024, kind 2, record 1: only in the first\n"), "{}", differ.out);

    let refused = say(&folder, &["records", "copy", "lmdb:nowhere", "lmdb:other"]);
    assert_eq!(refused.code, 1);
    assert!(!folder.join("other").exists() && !folder.join("nowhere").exists(), "{}", refused.err);
    assert_eq!(say(&folder, &["records", "copy", from, from]).code, 2);

    let server = Server::start_with(&folder, &["--records", to]);
    let refused = say(&folder, &["records", "copy", to, "lmdb:other"]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn an_account_is_erased() {
    let (_guard, folder) = folder();
    fill(&folder);
    let refused = say(&folder, &["records", "erase", "1024"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("add --yes"), "{}", refused.err);
    // The accounts of the directory: domains would be gone, and their accounts not.
    for internal in ["0", "64", "1023"] {
        let refused = say(&folder, &["records", "erase", internal, "--yes"]);
        assert_eq!(refused.code, 2, "{}", refused.err);
        assert!(refused.err.contains("is internal"), "{}", refused.err);
    }
    assert_eq!(said(&folder, &["records", "erase", "1024", "--yes"]), "erased 1 records of account 1024\n");
    assert_eq!(said(&folder, &["records", "erase", "1024", "--yes"]), "erased 0 records of account 1024\n");
    let dump = said(&folder, &["records", "dump"]);
    assert!(dump.lines().count() == 1 && dump.starts_with("{\"account\":1025,"), "{dump}");
    assert_eq!(said(&folder, &["records", "check"]), "checked 1 records: all sound\n");
}

#[test]
fn blobs_that_nobody_refers_to_are_swept_by_hand() {
    let (_guard, folder) = folder();
    fill(&folder);
    let blobs = || {
        let stats = json_of(&folder, &["blobs", "stats", "--format", "json"]);
        (stats["blobs"].as_u64().unwrap(), stats["bytes"].as_u64().unwrap())
    };
    assert_eq!(blobs(), (2, 16));
    assert_eq!(said(&folder, &["blobs", "check"]), "checked 2 blobs of 16 B: all sound\n");
    assert_eq!(said(&folder, &["blobs", "sweep"]), "looked at 2 blobs, removed 0 of 0 B\n", "the grace time");
    assert_eq!(said(&folder, &["blobs", "sweep", "--grace", "0"]), "looked at 2 blobs, removed 1 of 8 B\n");
    assert_eq!(blobs(), (1, 8));

    // Records at another place are unrelated to these blobs.
    let other = folder.join("other");
    let server = Server::start_with(&folder, &["--data", other.to_str().unwrap()]);
    assert_eq!(server.stop().code(), Some(0));
    let refused = say(&folder, &["blobs", "sweep", "--grace", "0", "--records", "lmdb:other/records"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("the blobs belong to the records"), "{}", refused.err);
    assert_eq!(blobs(), (1, 8));
    fs::remove_file(folder.join("data/blobs/OWNER")).unwrap(); // as with blobs from before identities
    let refused = say(&folder, &["blobs", "sweep", "--grace", "0", "--records", "lmdb:other/records"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("the records refer to none that is there"), "{}", refused.err);
    let refused = say(&folder, &["blobs", "sweep", "--grace", "0", "--records", "memory:", "--adopt"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("set blobs.url to memory:"), "{}", refused.err);
    assert_eq!(blobs(), (1, 8));
    let adopt = ["blobs", "sweep", "--grace", "0", "--records", "lmdb:other/records", "--adopt"];
    assert_eq!(said(&folder, &adopt), "looked at 1 blobs, removed 1 of 8 B\n");
    assert_eq!(blobs(), (0, 0));
}

#[test]
fn a_server_forgets_what_was_destroyed_long_ago() {
    let (_guard, folder) = folder();
    fill(&folder);
    let settings = "[records]\nkeep_destroyed_seconds = 1\nclean_interval_seconds = 1\n";
    fs::write(folder.join("restante.toml"), settings).unwrap();
    let server = Server::start(&folder);
    wait_until("the second is over", || {
        server.metric("restante_records_cleaned_tombstones_total") == Some(1.0)
    });
    assert_eq!(server.stop().code(), Some(0));
    let stats = json_of(&folder, &["records", "stats", "--format", "json"]);
    assert_eq!(stats["kinds"], json!([{"kind": "email", "records": 2, "tombstones": 0}]));
    assert_eq!(said(&folder, &["records", "check"]), "checked 2 records: all sound\n");
}

#[test]
fn a_server_has_them_alone_and_tells_operators() {
    let (_guard, folder) = folder();
    fill(&folder);
    let server = Server::start_with(&folder, &["--rest-admin"]);
    for args in [
        &["records", "check"][..],
        &["records", "stats"],
        &["records", "dump"],
        &["blobs", "check"],
        &["blobs", "stats"],
        &["blobs", "sweep"],
    ] {
        let refused = say(&folder, args);
        assert_eq!(refused.code, 3, "{args:?}: {}", refused.err);
        let place =
            format!("restante: can't open the {}", if args[1] == "sweep" { "records" } else { args[0] });
        assert!(refused.err.starts_with(&place), "{args:?}: {}", refused.err);
        assert!(refused.err.contains("stop it first"), "{args:?}: {}", refused.err);
        let is_advised = refused.err.contains("restante records stats --rest URL");
        assert_eq!(is_advised, place.ends_with("records"), "{}", refused.err);
        assert_eq!(refused.err.lines().count(), 1, "{}", refused.err);
    }
    let stats = json_of(&folder, &["records", "stats", "--rest", &server.url(), "--format", "json"]);
    assert_eq!(stats["kinds"], json!([{"kind": "email", "records": 2, "tombstones": 1}]));
    assert_eq!(server.stop().code(), Some(0));

    let server = Server::start(&folder);
    let refused = say(&folder, &["records", "stats", "--rest", &server.url()]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("--rest-admin"), "{}", refused.err);
}

#[test]
fn a_place_that_was_mistyped_is_named_and_not_made() {
    let (_guard, folder) = folder();
    for (args, place) in [
        (["records", "check"], "records lmdb:elsewhere/records"),
        (["blobs", "check"], "blobs files:elsewhere/blobs"),
    ] {
        let refused = say(&folder, &[&args[..], &["--data", "elsewhere"]].concat());
        assert_eq!(refused.code, 1);
        let expected =
            format!("restante: can't open the {place}: there are none: name their folder with --data");
        assert!(refused.err.starts_with(&expected), "{}", refused.err);
    }
    assert!(!folder.join("elsewhere").exists());
}

/// As with an archive that can't be opened: one line that names it, and the server does not start without it.
#[test]
fn damage_that_leaves_them_unreadable_stops_the_start() {
    let (_guard, folder) = folder();
    fill(&folder);
    let data = folder.join("data/records/data.mdb");
    let whole = fs::read(&data).unwrap();
    fs::write(&data, [&[0xff; 8_192], &whole[8_192..]].concat()).unwrap();
    for args in [&["serve", "--rest-port", "0", "--tcp-port", "0"][..], &["records", "check"]] {
        let refused = say(&folder, args);
        assert_eq!(refused.code, 1, "{args:?}: {}", refused.err);
        let line = refused.err.lines().find(|line| line.starts_with("restante: ")).unwrap();
        assert!(line.starts_with("restante: can't open the records lmdb:data/records: "), "{line}");
    }
}

#[test]
fn damage_is_found() {
    let (_guard, folder) = folder();
    fill(&folder);
    let blobs = folder.join("data/blobs");
    let damaged = files_below(&blobs).iter().filter(|path| damage(path, b"attached")).count();
    assert_eq!(damaged, 1, "one file has the blob");
    let found = say(&folder, &["blobs", "check"]);
    assert_eq!(found.code, 1, "{}", found.err);
    assert!(found.out.ends_with("1 damaged place\n"), "{}", found.out);
}

fn files_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found
}

/// Changes the first byte of a text in a file, if it is there.
fn damage(path: &Path, text: &[u8]) -> bool {
    let mut bytes = fs::read(path).unwrap();
    let Some(place) = bytes.windows(text.len()).position(|window| window == text) else { return false };
    bytes[place] ^= 1;
    fs::write(path, bytes).unwrap();
    true
}
