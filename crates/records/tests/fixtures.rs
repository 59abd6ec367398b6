//! Stores that earlier versions wrote, which every later one must open.
//!
//! `tests/fixtures/lmdb-vN` is a folder that the `lmdb` engine wrote in format N, `lmdb-vN.txt` is its contents. The folder of
//! a format is made by `cargo test -p restante-records --test fixtures -- --ignored`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use common::{
    A, B, BY_HASH, BY_MAILBOX, EMAIL, HASH, IN, KEYWORD, MAILBOX, NAME, RECEIVED, UID_NEXT, blob, commit,
    create, destroy, ids, last_position, mirror::dump, move_to, none, schema,
};
use restante_records::{
    Body, CHANGES_MAX, Change, ChangesSince, Checkpoint, Config, Opened, Query, Record, RecordId, Revision,
    open,
};

/// The first format that is read.
const FIRST_FORMAT: u64 = 4;
/// The format that this version writes.
const FORMAT: u64 = 4;

fn fixtures() -> PathBuf {
    PathBuf::from("tests/fixtures")
}

async fn open_in(folder: &Path) -> Opened {
    let url = format!("lmdb:{}", folder.display()).parse().unwrap();
    let mut config = Config::new(url, schema());
    config.lmdb.log_bytes = 64 << 10;
    open(config).await.unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Everything that a store holds, as text.
async fn contents(store: &Opened) -> String {
    let mut text = String::new();
    for (place, record) in dump(&*store.upkeep, 100).await {
        let body = (record.body.bytes.len(), crc32c::crc32c(&record.body.bytes));
        let record = Record { body: Body { bytes: Bytes::new(), ..record.body.clone() }, ..record };
        writeln!(text, "{place:?} {body:?} {record:?}").unwrap();
    }
    for account in [A, B] {
        let since = ChangesSince { kind: None, since: Revision(0), limit: CHANGES_MAX };
        writeln!(text, "{:?}", store.records.changes(account, &since).await.map_err(|error| error.kind()))
            .unwrap();
        writeln!(text, "{:?}", store.records.states(account).await.unwrap()).unwrap();
        for query in [Query::new(EMAIL, BY_MAILBOX).equals(3), Query::new(EMAIL, BY_HASH).equals(5)] {
            writeln!(text, "{:?}", ids(&*store.records, account, &query).await).unwrap();
        }
    }
    writeln!(text, "{:?}", store.feed.checkpoint("search", &[A, B]).await.unwrap().accounts).unwrap();
    text
}

#[tokio::test]
async fn stores_of_earlier_versions_are_opened_and_written_to() {
    for format in FIRST_FORMAT..=FORMAT {
        let guard = tempfile::tempdir().unwrap();
        let name = format!("lmdb-v{format}");
        copy(&fixtures().join(&name), &guard.path().join("records"));
        let store = open_in(&guard.path().join("records")).await;
        assert_eq!(store.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
        let expected = fs::read_to_string(fixtures().join(format!("{name}.txt"))).unwrap();
        assert_eq!(contents(&store).await, expected, "{name}");
        let made = commit(&*store.records, A, [create(MAILBOX, "new", none().with(NAME, "new"))]).await;
        assert_eq!(store.records.states(A).await.unwrap().revision, made.revision);
        assert_eq!(store.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
        store.upkeep.close().await.unwrap();
    }
}

/// An account with bodies of each form and history, a partly erased one, and a restore.
#[tokio::test]
#[ignore = "writes into the source tree"]
async fn write_a_store_of_this_version() {
    let guard = tempfile::tempdir().unwrap();
    let store = open_in(&guard.path().join("first")).await;
    let inbox = create(MAILBOX, "Inbox", none().with(NAME, "Inbox").with(UID_NEXT, 7));
    commit(&*store.records, A, [inbox]).await;
    for n in 0..40_u64 {
        let properties =
            none().with(IN, n % 5).with(RECEIVED, 1_700_000_000 + n).with(HASH, n % 7).with(KEYWORD, "$seen");
        let bytes = format!("Subject: mail {n} of the fixture, with words that come again\r\n")
            .repeat(n as usize % 4 * 20);
        let body = Body { bytes: bytes.into(), blobs: (0..n % 3).map(blob).collect() };
        for account in [A, B] {
            let (body, properties) = (body.clone(), properties.clone());
            commit(&*store.records, account, [Change::Create { kind: EMAIL, body, properties }]).await;
        }
    }
    commit(&*store.records, A, [move_to(RecordId(3), 3, 9), destroy(EMAIL, RecordId(5))]).await;
    let position = last_position(&*store.feed).await;
    let accounts = vec![(A, Revision(12))];
    store.feed.save("search", &Checkpoint { position, accounts }).await.unwrap();
    store.upkeep.erase(B, 10).await.unwrap();
    let copied = guard.path().join("second");
    fs::create_dir(&copied).unwrap();
    store.upkeep.backup(&copied).await.unwrap();
    let restored = open_in(&copied).await;
    commit(&*restored.records, A, [destroy(EMAIL, RecordId(6))]).await;
    let text = contents(&restored).await;
    restored.upkeep.close().await.unwrap();
    drop(restored);
    let to = fixtures().join(format!("lmdb-v{FORMAT}"));
    copy(&copied, &to);
    for lock in ["lock", "lock.mdb"] {
        let _ = fs::remove_file(to.join(lock));
    }
    fs::write(fixtures().join(format!("lmdb-v{FORMAT}.txt")), text).unwrap();
}
