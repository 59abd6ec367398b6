//! Segments that lost messages: `check` reports how many, opening serves what is left and removes nothing.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use common::{message, sorted, walk};
use prometheus_client::{encoding::text::encode, registry::Registry};
use restante_archive::{Config, LogConfig, Message, Metrics, Opened, Query, Report, open};
use restante_core::{NANOS_PER_SECOND, Timestamp, nonzero};

const LIST: &str = "SEGMENTS";

/// An archive of sealed segments with ten messages each, in the folder's order.
struct Archive {
    folder: tempfile::TempDir,
    segments: Vec<Vec<Message>>,
}

impl Archive {
    async fn sealed(segments: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let segment =
            |segment: u32| (0..10).map(move |n| message(at(segment, n), 1, ["a", "b"][n as usize % 2]));
        let segments: Vec<Vec<Message>> = (0..segments).map(|number| segment(number).collect()).collect();
        let archive = Self { folder, segments };
        let opened = archive.open().await;
        for messages in &archive.segments {
            opened.archive.append(messages.clone()).await.unwrap();
        }
        opened.upkeep.close().await.unwrap();
        for number in 1..=archive.segments.len() {
            assert!(archive.file(number, "idx").exists());
        }
        archive
    }

    fn config(&self) -> Config {
        let url = format!("log:{}", self.folder.path().display()).parse().unwrap();
        let log = LogConfig { segment_messages: nonzero!(10), ..LogConfig::default() };
        Config { log, ..Config::new(url) }
    }

    async fn open(&self) -> Opened {
        open(self.config()).await.unwrap()
    }

    /// The report of a check, with or without a server running.
    async fn check(&self) -> Report {
        let opened = open(Config { read_only: true, ..self.config() }).await.unwrap();
        check(&opened).await
    }

    fn file(&self, number: usize, suffix: &str) -> PathBuf {
        self.folder.path().join(format!("{number:08}.{suffix}"))
    }

    /// Turns it into an archive from before there was a list of segments.
    fn forget_list(&self) {
        let _ = fs::remove_file(self.folder.path().join(LIST));
    }

    /// All messages except those of a segment from an index on.
    fn without(&self, number: usize, kept: usize) -> Vec<common::OwnedRow> {
        let each = self.segments.iter().enumerate();
        let left =
            each.flat_map(|(at, messages)| if at + 1 == number { &messages[..kept] } else { messages });
        sorted(&left.cloned().collect::<Vec<_>>())
    }

    /// Names and bytes of everything in the folder, of an archive that is not open.
    fn content(&self) -> BTreeMap<String, Vec<u8>> {
        let read = |name: String| (name.clone(), fs::read(self.folder.path().join(name)).unwrap());
        self.names().into_iter().map(read).collect()
    }

    /// The names alone: an open archive may replace files meanwhile.
    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap().map(Result::unwrap);
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }
}

/// The time of a segment's message: a segment is within a second.
fn at(segment: u32, n: u32) -> i64 {
    i64::from(segment) * NANOS_PER_SECOND + i64::from(n)
}

async fn check(opened: &Opened) -> Report {
    opened.upkeep.check(&|_, _| {}).await.unwrap()
}

async fn served(opened: &Opened) -> Vec<common::OwnedRow> {
    walk(&*opened.archive, Query::default()).await.concat()
}

/// How many messages are lost in all, according to the findings of a report.
fn lost(report: &Report) -> u64 {
    let lost = |what: &str| what.strip_prefix("LOST DATA: ")?.split(' ').next()?.parse::<u64>().ok();
    let lost = report.findings.iter().filter_map(|finding| lost(&finding.what)).sum();
    assert_eq!(report.lost, lost);
    lost
}

fn cut(file: &Path, len: u64) {
    fs::OpenOptions::new().write(true).open(file).unwrap().set_len(len).unwrap();
}

/// The offset of a message's record.
fn place_of(log: &Path, message: &Message) -> u64 {
    let bytes = fs::read(log).unwrap();
    let at = bytes.windows(message.body.len()).position(|bytes| bytes == message.body).unwrap();
    (at - restante_archive::record::HEADER_BYTES) as u64
}

/// Truncated, emptied and removed, with its index still there; with the list of segments, and as it was before there was one.
#[tokio::test]
async fn a_sealed_log_that_is_cut_emptied_or_gone_has_lost_its_messages() {
    for has_list in [true, false] {
        for kept in [Some(10), Some(4), Some(0), None] {
            let archive = Archive::sealed(3).await;
            let log = archive.file(2, "log");
            match kept {
                Some(10) => cut(&log, fs::metadata(&log).unwrap().len() - 1),
                Some(0) => cut(&log, 0),
                Some(kept) => cut(&log, place_of(&log, &archive.segments[1][kept]) + 30),
                None => fs::remove_file(&log).unwrap(),
            }
            if !has_list {
                archive.forget_list();
            }
            let kept = kept.map_or(0, |kept: usize| kept.min(9));
            let what = format!("list {has_list}, {kept} kept");
            let damaged = archive.content();
            let report = archive.check().await;
            assert_eq!(lost(&report), 10 - kept as u64, "{what}: {report:?}");
            assert_eq!(archive.content(), damaged, "{what}: a check changes nothing");

            for _ in 0..2 {
                let opened = archive.open().await;
                assert_eq!(served(&opened).await, archive.without(2, kept), "{what}");
                let report = check(&opened).await;
                assert_eq!(lost(&report), 10 - kept as u64, "{what}: {report:?}");
                opened.upkeep.close().await.unwrap();
            }
            let now: Vec<Vec<u8>> = archive.content().into_values().collect();
            for (name, bytes) in damaged.iter().filter(|(name, _)| *name != LIST && *name != "LOCK") {
                assert!(now.contains(bytes), "{what}: nothing is removed, and {name} is gone");
            }
        }
    }
}

#[tokio::test]
async fn a_pair_that_is_gone_is_not_one_that_retention_removed() {
    let archive = Archive::sealed(5).await;
    let opened = archive.open().await;
    // The first two segments are removed.
    let now = Timestamp(at(3, 0));
    opened.upkeep.prune(&"time:1".parse().unwrap(), now).await.unwrap();
    assert!(!archive.file(2, "log").exists() && archive.file(3, "log").exists());
    opened.upkeep.close().await.unwrap();
    assert!(archive.check().await.is_sound());

    fs::remove_file(archive.file(4, "log")).unwrap();
    fs::remove_file(archive.file(4, "idx")).unwrap();
    assert_eq!(lost(&archive.check().await), 10);
    let opened = archive.open().await;
    let expected: Vec<Message> = [&archive.segments[2][..], &archive.segments[4]].concat();
    assert_eq!(served(&opened).await, sorted(&expected));
    assert_eq!(lost(&check(&opened).await), 10);
    // Losses are forgotten when retention would have removed the messages.
    let now = Timestamp(at(5, 0));
    opened.upkeep.prune(&"time:1".parse().unwrap(), now).await.unwrap();
    assert_eq!(lost(&check(&opened).await), 0);
    opened.upkeep.close().await.unwrap();
    assert!(archive.check().await.is_sound());
}

#[tokio::test]
async fn a_log_in_the_place_of_another_is_not_served_and_the_other_is_lost() {
    let archive = Archive::sealed(3).await;
    fs::copy(archive.file(1, "log"), archive.file(2, "log")).unwrap();
    assert_eq!(lost(&archive.check().await), 10);
    let opened = archive.open().await;
    assert_eq!(served(&opened).await, archive.without(2, 0));
    assert_eq!(lost(&check(&opened).await), 10);
    opened.upkeep.close().await.unwrap();
    assert_eq!(lost(&archive.check().await), 10);
}

#[tokio::test]
async fn an_index_of_another_log_loses_nothing_while_the_log_is_there() {
    let archive = Archive::sealed(3).await;
    let foreign = fs::read(archive.file(1, "idx")).unwrap();
    fs::copy(archive.file(1, "idx"), archive.file(2, "idx")).unwrap();
    let report = archive.check().await;
    assert!(lost(&report) == 0 && !report.is_sound(), "{report:?}");
    let opened = archive.open().await;
    assert_eq!(served(&opened).await, archive.without(2, 10));
    opened.upkeep.close().await.unwrap();
    assert!(archive.check().await.is_sound());
    assert!(
        archive
            .content()
            .iter()
            .any(|(name, bytes)| name.starts_with("00000002.idx.damaged-") && *bytes == foreign)
    );
}

/// A server that was stopped has synced its open segment: if it is shorter afterwards, messages were lost.
#[tokio::test]
async fn an_open_log_that_is_cut_after_a_clean_stop_has_lost_messages() {
    let archive = Archive::sealed(1).await;
    let opened = archive.open().await;
    let more: Vec<Message> = (0..6).map(|n| message(at(1, n), 1, "a")).collect();
    opened.archive.append(more.clone()).await.unwrap();
    opened.upkeep.close().await.unwrap();
    let log = archive.file(2, "log");
    let whole = fs::read(&log).unwrap();
    cut(&log, place_of(&log, &more[4]) + 7);
    let damaged = fs::read(&log).unwrap();
    assert_eq!(lost(&archive.check().await), 2);
    let opened = archive.open().await;
    assert_eq!(served(&opened).await, sorted(&[&archive.segments[0][..], &more[..4]].concat()));
    assert_eq!(lost(&check(&opened).await), 2);
    opened.upkeep.close().await.unwrap();
    assert_eq!(fs::read(&log).unwrap(), damaged, "it is not cut any further");

    // A killed server may leave a torn end: nothing of it was acknowledged.
    let archive = Archive::sealed(1).await;
    fs::write(archive.file(2, "log"), &whole[..whole.len() - 3]).unwrap();
    assert_eq!(lost(&archive.check().await), 0);
}

/// What can't be recovered is not reported forever.
#[tokio::test]
async fn a_rebuild_accepts_what_is_lost() {
    let archive = Archive::sealed(3).await;
    fs::remove_file(archive.file(2, "log")).unwrap();
    let opened = archive.open().await;
    let report = opened.upkeep.rebuild(&|_, _| {}).await.unwrap();
    assert_eq!(lost(&report), 10, "it says so once more");
    assert!(check(&opened).await.is_sound());
    opened.upkeep.close().await.unwrap();
    assert!(archive.check().await.is_sound());
}

#[tokio::test]
async fn health_and_metrics_report_what_is_lost_and_set_aside() {
    let archive = Archive::sealed(3).await;
    fs::remove_file(archive.file(2, "log")).unwrap();
    cut(&archive.file(3, "idx"), 100);
    let metrics = Metrics::default();
    let mut registry = Registry::default();
    metrics.register(&mut registry, "log");
    let opened = open(Config { metrics, ..archive.config() }).await.unwrap();
    let health = opened.upkeep.health();
    assert_eq!(health.problem, None, "it does its work");
    let damage = health.damage.unwrap();
    for what in [
        "archived messages that are lost: 10 (00000002.log)",
        "indexes made anew since the start: 1",
        "damaged files set aside: 2",
    ] {
        assert!(damage.contains(what), "{damage}");
    }
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        "restante_archive_lost_messages{engine=\"log\"} 10",
        "restante_archive_damaged_files{engine=\"log\"} 2",
        "restante_archive_rebuilt_indexes_total{engine=\"log\"} 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    opened.upkeep.close().await.unwrap();
}

/// Retention removes the files that were set aside of a segment together with it.
#[tokio::test]
async fn retention_removes_what_was_set_aside() {
    let archive = Archive::sealed(3).await;
    fs::remove_file(archive.file(1, "log")).unwrap();
    cut(&archive.file(2, "idx"), 100);
    let opened = archive.open().await;
    let damaged_files =
        || archive.names().into_iter().filter(|name| name.contains(".damaged-")).collect::<Vec<_>>();
    assert_eq!(damaged_files(), ["00000001.idx.damaged-1", "00000002.idx.damaged-1"]);
    opened.upkeep.prune(&"time:1".parse().unwrap(), Timestamp(at(3, 0))).await.unwrap();
    assert_eq!(damaged_files(), Vec::<String>::new());
    assert_eq!(
        opened.upkeep.health().damage,
        Some("damaged indexes made anew since the start: 1; see 'restante archive check'".into())
    );
    opened.upkeep.close().await.unwrap();
}

/// A copy has its own list: losses of the copy are noticed, and earlier losses are not forgotten.
#[tokio::test]
async fn a_backup_knows_what_its_segments_should_have() {
    let archive = Archive::sealed(4).await;
    fs::remove_file(archive.file(1, "log")).unwrap();
    let opened = archive.open().await;
    opened.archive.append(vec![message(at(4, 0), 1, "a")]).await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    opened.upkeep.backup(copy.path()).await.unwrap();
    opened.upkeep.close().await.unwrap();
    let copy = Archive { folder: copy, segments: archive.segments.clone() };
    assert_eq!(lost(&copy.check().await), 10);
    fs::remove_file(copy.file(3, "log")).unwrap();
    fs::remove_file(copy.file(3, "idx")).unwrap();
    cut(&copy.file(5, "log"), 100);
    assert_eq!(lost(&copy.check().await), 10 + 10 + 1);
    assert_eq!(lost(&archive.check().await), 10, "the archive itself is as it was");
}

/// Archives from before there was a list get one when they are opened for writing.
#[tokio::test]
async fn an_old_archive_gets_a_list() {
    let archive = Archive::sealed(3).await;
    archive.forget_list();
    assert!(archive.check().await.is_sound());
    archive.open().await.upkeep.close().await.unwrap();
    fs::remove_file(archive.file(2, "log")).unwrap();
    fs::remove_file(archive.file(2, "idx")).unwrap();
    assert_eq!(lost(&archive.check().await), 10);
}

#[tokio::test]
async fn a_newer_list_is_refused_and_left_alone() {
    let archive = Archive::sealed(1).await;
    let list = archive.folder.path().join(LIST);
    let mut bytes = fs::read(&list).unwrap();
    bytes[8] = 2; // the version
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&list, &bytes).unwrap();
    let error = open(archive.config()).await.err().unwrap();
    let refusal = "SEGMENTS has format version 2, and this program knows versions up to 1";
    assert!(error.to_string().contains(refusal), "{error}");
    assert_eq!(fs::read(&list).unwrap(), bytes);
}
