//! Promises of the `sqlite` engine only: about its file, about readers next to the writer, and about being killed.
#![cfg(feature = "sqlite")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use common::{message, rows, sorted, walk};
use restante_archive::{Appended, Config, Error, Message, Opened, Query, Topics, open};
use restante_core::{ErrorKind, Timestamp};
use rusqlite::Connection;

/// The variable with the file, for a process that is going to be killed.
const CHILD_FILE: &str = "RESTANTE_TEST_CHILD_FILE";

fn config(file: &Path) -> Config {
    let mut config = Config::new(format!("sqlite:{}", file.display()).parse().unwrap());
    config.topic_bits = common::topic_bits;
    config
}

async fn open_file(file: &Path) -> Result<Opened, Error> {
    open(config(file)).await
}

async fn open_read_only(file: &Path) -> Result<Opened, Error> {
    open(Config { read_only: true, ..config(file) }).await
}

/// All files of a folder with their contents.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| (file.clone(), std::fs::read(file).unwrap())).collect()
}

fn nth(n: i64) -> Message {
    let mut message = message(n * 1_000_000, 1, &format!("topic {}", n % 5));
    message.body = vec![n as u8; 300 + (n % 7) as usize * 1_000].into();
    message
}

/// Appends until it is killed, and prints what was acknowledged.
#[test]
#[ignore = "the process that acked_append_survives_kill kills"]
fn child_that_appends() {
    let Some(file) = std::env::var_os(CHILD_FILE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let opened = open_file(Path::new(&file)).await.unwrap();
        let first = opened.upkeep.stats().await.unwrap().messages as i64;
        for n in first.. {
            assert_eq!(opened.archive.append(vec![nth(n)]).await.unwrap(), [Appended::Stored]);
            println!("\nanswered {n}");
            if n % 100 == 99 {
                let policy = "capacity:1000000;size:100GB".parse().unwrap();
                opened.upkeep.prune(&policy, Timestamp(0)).await.unwrap();
            }
        }
    });
}

#[tokio::test]
async fn acked_append_survives_kill() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("archive.db");
    for round in 1..=5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_appends", "--ignored", "--nocapture"])
            .env(CHILD_FILE, &file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut answered = None;
        let wanted = round * 60;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            if let Some(n) = line.unwrap().strip_prefix("answered ") {
                answered = Some(n.parse::<i64>().unwrap());
                if answered >= Some(wanted) {
                    break;
                }
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let answered = answered.unwrap();
        assert!(answered >= wanted, "the child ended by itself after {answered}");

        let opened = open_file(&file).await.unwrap();
        let kept = walk(&*opened.archive, Query::default()).await.concat();
        let expected: Vec<Message> = (0..kept.len() as i64).map(nth).collect();
        assert_eq!(kept, sorted(&expected));
        assert!(kept.len() as i64 > answered, "{answered} was answered and {} are there", kept.len());
        let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
        assert!(report.is_sound(), "{report:?}");
        opened.upkeep.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_foreign_file_is_refused_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "no database").unwrap();
    // The state that a killed node of another kind leaves: its writes are only in the log.
    let foreign = folder.path().join("store.sqlite3");
    let other = Connection::open(&foreign).unwrap();
    other.pragma_update(None, "journal_mode", "WAL").unwrap();
    other.execute_batch("CREATE TABLE Message (messageHash BLOB PRIMARY KEY) WITHOUT ROWID").unwrap();
    let newer = folder.path().join("newer.db");
    open_file(&newer).await.unwrap().upkeep.close().await.unwrap();
    let shell = Connection::open(&newer).unwrap();
    shell.pragma_update(None, "user_version", 2).unwrap();
    shell.pragma_update(None, "journal_mode", "DELETE").unwrap();
    drop(shell);
    std::fs::remove_file(folder.path().join("newer.db.lock")).unwrap();

    let before = contents(folder.path());
    for (file, advice) in [
        (&text, "name another file"),
        (&foreign, "archive import"),
        (&newer, "newer.db has format version 2, and this program knows versions up to 1"),
    ] {
        for opened in [open_file(file).await, open_read_only(file).await] {
            let error = opened.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
    assert_eq!(contents(folder.path()), before);
}

#[tokio::test]
async fn a_file_has_one_writer_and_many_readers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("archive.db");
    let error = open_read_only(&file).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(contents(folder.path()).is_empty(), "reading makes nothing");

    let writer = open_file(&file).await.unwrap();
    let error = open_file(&file).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    let readers = [open_read_only(&file).await.unwrap(), open_read_only(&file).await.unwrap()];
    writer.archive.append(vec![nth(1)]).await.unwrap();
    for reader in &readers {
        assert_eq!(reader.archive.query(&Query::default()).await.unwrap().len(), 1);
        assert_eq!(reader.upkeep.stats().await.unwrap().messages, 1);
        assert_eq!(reader.upkeep.rebuild(&|_, _| ()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    writer.upkeep.close().await.unwrap();
    open_file(&file).await.unwrap();
}

#[tokio::test]
async fn a_read_only_opener_sees_new_messages_and_new_topics() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("archive.db");
    let writer = open_file(&file).await.unwrap();
    writer.archive.append(vec![message(1, 1, "apple")]).await.unwrap();
    let reader = open_read_only(&file).await.unwrap();
    let of = |topic: &str| Query { topics: Topics::List(vec![topic.into()]), ..Query::default() };
    assert_eq!(reader.archive.query(&of("beech")).await.unwrap().len(), 0);
    let beech = message(2, 1, "beech");
    writer.archive.append(vec![beech.clone()]).await.unwrap();
    assert_eq!(
        rows(&reader.archive.query(&of("beech")).await.unwrap()),
        sorted(std::slice::from_ref(&beech))
    );
    let bloom = Query { topics: Topics::Bloom(common::filter_of(&["beech"])), ..Query::default() };
    assert_eq!(rows(&reader.archive.query(&bloom).await.unwrap()), sorted(&[beech]));
    // The topic is removed and added again, under another number.
    writer.upkeep.prune(&"time:1".parse().unwrap(), Timestamp::from_seconds(100)).await.unwrap();
    assert_eq!(reader.archive.query(&of("beech")).await.unwrap().len(), 0);
    writer.archive.append(vec![message(3, 1, "cedar"), message(4, 1, "beech")]).await.unwrap();
    let page = reader.archive.query(&of("beech")).await.unwrap();
    assert_eq!(rows(&page), sorted(&[message(4, 1, "beech")]));
    assert_eq!(reader.upkeep.stats().await.unwrap().topics, 2);
}

#[tokio::test]
async fn pruning_shrinks_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("archive.db");
    let opened = open_file(&file).await.unwrap();
    let messages: Vec<Message> = (0..4_000).map(nth).collect();
    for batch in messages.chunks(500) {
        opened.archive.append(batch.to_vec()).await.unwrap();
    }
    opened.upkeep.prune(&"capacity:4000".parse().unwrap(), Timestamp(0)).await.unwrap();
    let full = opened.upkeep.stats().await.unwrap();
    let pruned = opened.upkeep.prune(&"capacity:1000".parse().unwrap(), Timestamp(0)).await.unwrap();
    assert_eq!(pruned.messages, 3_000);
    assert!(pruned.disk_bytes > full.body_bytes / 2, "{pruned:?}");
    let stats = opened.upkeep.stats().await.unwrap();
    assert_eq!(stats.messages, 1_000);
    // The log is empty, so this is the file.
    assert_eq!(std::fs::metadata(&file).unwrap().len(), stats.disk_bytes);
    assert!(stats.disk_bytes < stats.body_bytes * 3 / 2, "{stats:?}");
    let kept = walk(&*opened.archive, Query::default()).await.concat();
    assert_eq!(kept, sorted(&messages[3_000..]));

    let pruned = opened.upkeep.prune(&"size:1MB".parse().unwrap(), Timestamp(0)).await.unwrap();
    let stats = opened.upkeep.stats().await.unwrap();
    assert!(stats.disk_bytes <= 1_000_000 && stats.disk_bytes > 700_000, "{stats:?}");
    assert_eq!(stats.messages, 1_000 - pruned.messages);
    opened.upkeep.prune(&"size:0.001MB".parse().unwrap(), Timestamp(0)).await.unwrap();
    let kept = walk(&*opened.archive, Query::default()).await.concat();
    assert_eq!(kept, sorted(&messages[3_999..]), "the newest message is kept");
    assert!(opened.upkeep.check(&|_, _| ()).await.unwrap().is_sound());
}

#[tokio::test]
async fn odd_names_are_names() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a b.db", "what?mode=ro", "50%41#.db", "ünï'cödé\".db", ":memory:"] {
        let file = folder.path().join("new folder").join(name);
        let opened = open_file(&file).await.unwrap();
        opened.archive.append(vec![nth(1)]).await.unwrap();
        opened.upkeep.close().await.unwrap();
        assert!(file.is_file(), "{name}");
        let opened = open_read_only(&file).await.unwrap();
        assert_eq!(opened.archive.query(&Query::default()).await.unwrap().len(), 1, "{name}");
    }
    let (target, link) = (folder.path().join("new folder").join("a b.db"), folder.path().join("link"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let opened = open_file(&link).await.unwrap();
    assert_eq!(open_file(&target).await.err().unwrap().kind(), ErrorKind::Conflict);
    assert_eq!(opened.archive.append(vec![nth(1)]).await.unwrap(), [Appended::Duplicate]);
    // An empty file, as created by mktemp, is accepted.
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    open_file(&empty).await.unwrap().archive.append(vec![nth(1)]).await.unwrap();
}
