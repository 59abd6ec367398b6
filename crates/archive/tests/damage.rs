//! Files that were damaged, truncated or left over: what is sound is served, what isn't is never served, and the damage is
//! reported.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::path::{Path, PathBuf};

use common::{message, rows, sorted, walk};
use restante_archive::{Appended, Config, Finding, LogConfig, Message, Opened, Query, open};
use restante_core::{ErrorKind, Key, MessageHash, Timestamp, nonzero};

struct Archive {
    folder: tempfile::TempDir,
    config: Config,
}

impl Archive {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(format!("log:{}", folder.path().display()).parse().unwrap());
        Self { folder, config }
    }

    async fn open(&self) -> Opened {
        open(self.config.clone()).await.unwrap()
    }

    /// Fills the archive and seals its segments.
    async fn filled_and_sealed(&self) -> Vec<Message> {
        let small = LogConfig { segment_messages: nonzero!(10), ..LogConfig::default() };
        let opened = open(Config { log: small, ..self.config.clone() }).await.unwrap();
        let messages: Vec<Message> = (0..10).map(|n| message(n, 1, ["a", "b"][n as usize % 2])).collect();
        opened.archive.append(messages.clone()).await.unwrap();
        opened.upkeep.close().await.unwrap();
        assert!(self.file("idx").exists());
        messages
    }

    async fn filled(&self) -> Vec<Message> {
        let opened = self.open().await;
        let mut messages = Vec::new();
        for n in 0..10 {
            let batch = vec![message(n, 1, "a"), message(n, 2, "b")];
            opened.archive.append(batch.clone()).await.unwrap();
            messages.extend(batch);
        }
        opened.upkeep.close().await.unwrap();
        messages
    }

    fn file(&self, suffix: &str) -> PathBuf {
        self.folder.path().join(format!("00000001.{suffix}"))
    }

    /// Leaves the folder as a killed process would: segments that were open are not listed.
    fn forget_list(&self) {
        std::fs::remove_file(self.folder.path().join("SEGMENTS")).unwrap();
    }

    /// The offset of a message's body in the log.
    fn place_of(&self, message: &Message) -> usize {
        let log = std::fs::read(self.file("log")).unwrap();
        log.windows(message.body.len()).position(|bytes| bytes == message.body).unwrap()
    }
}

fn flip(file: &Path, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 0x40;
    std::fs::write(file, bytes).unwrap();
}

fn without(messages: &[Message], gone: &[&Message]) -> Vec<common::OwnedRow> {
    let kept: Vec<Message> = messages.iter().filter(|message| !gone.contains(message)).cloned().collect();
    sorted(&kept)
}

/// A byte of an index: in the column of timestamps.
const FIFTH_TIMESTAMP: usize = 128 + 4 * 8 + 2;

fn no_progress(_: u64, _: u64) {}

#[tokio::test]
async fn a_damaged_record_of_a_sealed_segment_is_left_out_and_reported() {
    let archive = Archive::new();
    let messages = archive.filled_and_sealed().await;
    flip(&archive.file("log"), archive.place_of(&messages[4]));
    let opened = archive.open().await;
    for limit in [1, 3, 100] {
        let served = walk(&*opened.archive, Query { limit, ..Query::default() }).await.concat();
        assert_eq!(served, without(&messages, &[&messages[4]]));
    }
    let hashes = vec![messages[4].message_hash, messages[5].message_hash];
    let page = opened.archive.query(&Query { hashes, ..Query::default() }).await.unwrap();
    assert_eq!(rows(&page), sorted(&messages[5..6]));
    assert_eq!(opened.upkeep.stats().await.unwrap().damaged, 1, "it is counted once");
    let report = opened.upkeep.check(&no_progress).await.unwrap();
    assert_eq!(report.messages, 9);
    assert!(report.findings.iter().any(|finding| finding.part == "00000001.log" && finding.offset.is_some()));
}

#[tokio::test]
async fn a_damaged_message_can_be_appended_again() {
    let archive = Archive::new();
    let messages = archive.filled_and_sealed().await;
    flip(&archive.file("log"), archive.place_of(&messages[4]));
    let opened = archive.open().await;
    opened.archive.append(messages.clone()).await.unwrap();
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
}

#[tokio::test]
async fn a_rebuild_leaves_damaged_records_out_for_good() {
    let archive = Archive::new();
    let messages = archive.filled_and_sealed().await;
    flip(&archive.file("log"), archive.place_of(&messages[4]));
    let opened = archive.open().await;
    let report = opened.upkeep.rebuild(&no_progress).await.unwrap();
    assert!(!report.is_sound());
    assert_eq!(opened.upkeep.stats().await.unwrap().messages, 9);
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), without(&messages, &[&messages[4]]));
}

#[tokio::test]
async fn a_damaged_index_is_made_anew_when_a_query_meets_it() {
    let archive = Archive::new();
    let messages = archive.filled_and_sealed().await;
    let sound = std::fs::read(archive.file("idx")).unwrap();
    flip(&archive.file("idx"), FIFTH_TIMESTAMP);
    let damaged = std::fs::read(archive.file("idx")).unwrap();

    // A reader has it in memory only.
    let reader = open(Config { read_only: true, ..archive.config.clone() }).await.unwrap();
    assert!(!reader.upkeep.check(&no_progress).await.unwrap().is_sound());
    assert_eq!(walk(&*reader.archive, Query::default()).await.concat(), sorted(&messages));
    assert_eq!(std::fs::read(archive.file("idx")).unwrap(), damaged);

    let opened = archive.open().await;
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
    assert_eq!(std::fs::read(archive.file("idx")).unwrap(), sound);
    assert_eq!(std::fs::read(archive.file("idx.damaged-1")).unwrap(), damaged);
    assert!(opened.upkeep.check(&no_progress).await.unwrap().is_sound());
    opened.upkeep.close().await.unwrap();
}

#[tokio::test]
async fn a_damaged_index_is_made_anew_when_an_append_meets_it() {
    let archive = Archive::new();
    let messages = archive.filled_and_sealed().await;
    let sound = std::fs::read(archive.file("idx")).unwrap();
    flip(&archive.file("idx"), FIFTH_TIMESTAMP);
    let opened = archive.open().await;
    let answers = opened.archive.append(messages.clone()).await.unwrap();
    assert_eq!(answers, [restante_archive::Appended::Duplicate; 10]);
    assert_eq!(std::fs::read(archive.file("idx")).unwrap(), sound);
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
}

/// The first and the last timestamp of an index decide which queries need the segment.
#[tokio::test]
async fn a_wrong_span_hides_no_message() {
    for at in [128 + 2, 128 + 9 * 8 + 2] {
        for has_list in [true, false] {
            let archive = Archive::new();
            let messages = archive.filled_and_sealed().await;
            flip(&archive.file("idx"), at);
            if !has_list {
                archive.forget_list();
            }
            for read_only in [true, false] {
                let opened = open(Config { read_only, ..archive.config.clone() }).await.unwrap();
                let query = Query { start: Some(Timestamp(0)), end: Some(Timestamp(10)), ..Query::default() };
                let served = walk(&*opened.archive, query).await.concat();
                assert_eq!(served, sorted(&messages), "byte {at}, list {has_list}, read-only {read_only}");
                opened.upkeep.close().await.unwrap();
            }
        }
    }
}

/// Without any request: an index that no query needs is verified in the background.
#[tokio::test]
async fn a_damaged_index_is_made_anew_after_the_next_start() {
    let archive = Archive::new();
    archive.filled_and_sealed().await;
    let sound = std::fs::read(archive.file("idx")).unwrap();
    flip(&archive.file("idx"), FIFTH_TIMESTAMP);
    let opened = archive.open().await;
    let begun = std::time::Instant::now();
    while std::fs::read(archive.file("idx")).ok() != Some(sound.clone()) {
        assert!(begun.elapsed().as_secs() < 60, "the index is not made anew");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    opened.upkeep.close().await.unwrap();
}

#[tokio::test]
async fn an_unreadable_index_is_made_anew_at_the_start() {
    let damages: [fn(&Path); 5] = [
        |index| flip(index, 3),
        |index| flip(index, 20),
        of_another_version,
        |index| std::fs::write(index, b"").unwrap(),
        |index| std::fs::remove_file(index).unwrap(),
    ];
    for damage in damages {
        let archive = Archive::new();
        let messages = archive.filled_and_sealed().await;
        damage(&archive.file("idx"));
        let opened = archive.open().await;
        assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
        assert_eq!(opened.upkeep.stats().await.unwrap().topics, 2);
    }
}

/// Gives an index a sound header of version 2.
fn of_another_version(index: &Path) {
    let mut bytes = std::fs::read(index).unwrap();
    bytes[8] = 2;
    let checksum = crc32c(&bytes[..124]);
    bytes[124..128].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(index, bytes).unwrap();
}

#[tokio::test]
async fn a_torn_end_is_cut_at_the_last_whole_record() {
    let archive = Archive::new();
    let messages = archive.filled().await;
    let whole = std::fs::read(archive.file("log")).unwrap();
    let last = messages.last().unwrap();
    let last_begins = archive.place_of(last) - restante_archive::record::HEADER_BYTES;
    for len in last_begins..whole.len() {
        std::fs::write(archive.file("log"), &whole[..len]).unwrap();
        archive.forget_list();
        let opened = archive.open().await;
        assert_eq!(
            walk(&*opened.archive, Query::default()).await.concat(),
            without(&messages, &[last]),
            "{len}"
        );
        opened.archive.append(vec![last.clone()]).await.unwrap();
        opened.upkeep.close().await.unwrap();
        assert_eq!(
            std::fs::read(archive.file("log")).unwrap(),
            whole,
            "{len}: the log goes on where it was cut"
        );
    }
}

#[tokio::test]
async fn a_log_that_ends_in_zeros_is_cut_there() {
    let archive = Archive::new();
    let messages = archive.filled().await;
    let mut log = std::fs::read(archive.file("log")).unwrap();
    let len = log.len();
    log.resize(len + 5_000, 0);
    std::fs::write(archive.file("log"), log).unwrap();
    let opened = archive.open().await;
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
    assert_eq!(std::fs::metadata(archive.file("log")).unwrap().len(), len as u64);
}

#[tokio::test]
async fn damage_in_the_midst_of_an_open_log_loses_only_what_it_hit() {
    for shift in [0, restante_archive::record::HEADER_BYTES, 45] {
        let archive = Archive::new();
        let messages = archive.filled().await;
        // In the body, in the length field and in the topic field of the eighth message.
        flip(&archive.file("log"), archive.place_of(&messages[7]) - shift);
        for _ in 0..2 {
            let opened = archive.open().await;
            let served = walk(&*opened.archive, Query::default()).await.concat();
            assert_eq!(served, without(&messages, &[&messages[7]]), "{shift}");
            opened.archive.append(vec![message(0, 1, "a")]).await.unwrap();
            opened.upkeep.close().await.unwrap();
        }
    }
}

#[tokio::test]
async fn messages_of_a_damaged_topic_definition_are_not_served() {
    let archive = Archive::new();
    let messages = archive.filled().await;
    // Log header, record header up to the topic's name: the first definition is that of topic a.
    flip(&archive.file("log"), 64 + 12 + 2 + 1);
    let opened = archive.open().await;
    let of_b: Vec<Message> = messages.iter().filter(|message| &*message.topic == "b").cloned().collect();
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&of_b));
    opened.archive.append(messages.clone()).await.unwrap();
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
}

#[tokio::test]
async fn a_damaged_header_hides_no_record() {
    let archive = Archive::new();
    let messages = archive.filled().await;
    flip(&archive.file("log"), 20);
    let opened = archive.open().await;
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
    opened.archive.append(vec![message(50, 1, "a")]).await.unwrap();
    opened.upkeep.close().await.unwrap();
    let opened = archive.open().await;
    assert_eq!(opened.upkeep.stats().await.unwrap().messages, 21);
}

/// A body may have any content, including what looks like records. Found in a torn record, those must not be recovered.
#[tokio::test]
async fn records_in_a_body_are_no_records() {
    let archive = Archive::new();
    let opened = archive.open().await;
    opened.archive.append(vec![message(1, 1, "a")]).await.unwrap();
    let mut forged = Vec::new();
    for seed in [0, 1, u32::MAX] {
        restante_archive::record::encode_message(seed, 0, message(7, 7, "a").key(), b"forged", &mut forged);
    }
    let mut carrier = message(2, 1, "a");
    carrier.body = [&forged[..], b"the end"].concat().into();
    opened.archive.append(vec![carrier.clone()]).await.unwrap();
    opened.upkeep.close().await.unwrap();

    let log = std::fs::read(archive.file("log")).unwrap();
    std::fs::write(archive.file("log"), &log[..log.len() - 3]).unwrap();
    let opened = archive.open().await;
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&[message(1, 1, "a")]));
}

#[tokio::test]
async fn a_damaged_salt_hides_no_record() {
    for at in [45, 53] {
        let archive = Archive::new();
        let messages = archive.filled_and_sealed().await;
        flip(&archive.file("log"), at);
        let opened = archive.open().await;
        assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
        let report = opened.upkeep.check(&no_progress).await.unwrap();
        let is_named = |finding: &Finding| finding.part == "00000001.log" && finding.what.contains("header");
        assert!(report.findings.iter().any(is_named), "{report:?}");
    }
}

/// Both copies in the log are gone, but the index has one more: neither opening nor rebuilding loses anything.
#[tokio::test]
async fn the_index_knows_the_salt_as_well() {
    let archive = Archive::new();
    let messages = archive.filled_and_sealed().await;
    flip(&archive.file("log"), 45);
    flip(&archive.file("log"), 53);
    let opened = archive.open().await;
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
    assert_eq!(opened.upkeep.rebuild(&no_progress).await.unwrap().messages, 10);
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
}

#[tokio::test]
async fn the_list_of_segments_knows_the_salt_as_well() {
    let archive = Archive::new();
    let messages = archive.filled().await;
    flip(&archive.file("log"), 45);
    flip(&archive.file("log"), 53);
    let opened = archive.open().await;
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
}

#[tokio::test]
async fn a_log_whose_header_says_nothing_is_left_as_it_is() {
    let archive = Archive::new();
    archive.filled().await;
    archive.forget_list();
    flip(&archive.file("log"), 45);
    flip(&archive.file("log"), 53);
    let log = std::fs::read(archive.file("log")).unwrap();
    let opened = archive.open().await;
    assert!(opened.archive.query(&Query::default()).await.unwrap().is_empty());
    assert!(!opened.upkeep.rebuild(&no_progress).await.unwrap().is_sound());
    opened.upkeep.close().await.unwrap();
    assert_eq!(std::fs::read(archive.file("log")).unwrap(), log);
}

/// A lost sector reads as zeros. That is no secret, so anybody could write records for such a log into a body.
#[tokio::test]
async fn a_salt_of_zeros_is_no_salt() {
    let archive = Archive::new();
    let opened = archive.open().await;
    let mut forged = Vec::new();
    // A definition: its topic's number, the channel's length of one byte, names.
    let names = Key {
        timestamp: Timestamp(i64::from_le_bytes(*b"\x01\0nnnnnn")),
        message_hash: MessageHash([b'n'; 32]),
    };
    restante_archive::record::encode_message(0, 1 << 31, names, b"n", &mut forged);
    restante_archive::record::encode_message(0, 0, message(7, 7, "a").key(), b"forged", &mut forged);
    opened.archive.append(vec![Message { body: forged.into(), ..message(1, 1, "a") }]).await.unwrap();
    opened.upkeep.close().await.unwrap();
    archive.forget_list();
    let mut log = std::fs::read(archive.file("log")).unwrap();
    log[40..56].fill(0);
    std::fs::write(archive.file("log"), &log).unwrap();
    let opened = archive.open().await;
    assert!(opened.archive.query(&Query::default()).await.unwrap().is_empty());
    opened.upkeep.close().await.unwrap();
    assert_eq!(std::fs::read(archive.file("log")).unwrap(), log);
}

/// The length of windows is a setting: duplicates are found whatever it was before.
#[tokio::test]
async fn duplicates_are_known_under_another_window_length() {
    let archive = Archive::new();
    let hour = 3_600_000_000_000;
    let messages: Vec<Message> = (0..30).map(|n| message(n * hour, 1, "a")).collect();
    for window_seconds in [3_600, 86_400, 7_200, 3_600] {
        let log = LogConfig { window_seconds: window_seconds.try_into().unwrap(), ..LogConfig::default() };
        let opened = open(Config { log, ..archive.config.clone() }).await.unwrap();
        opened.archive.append(messages.clone()).await.unwrap();
        assert_eq!(
            walk(&*opened.archive, Query::default()).await.concat(),
            sorted(&messages),
            "{window_seconds}"
        );
        opened.upkeep.close().await.unwrap();
    }
}

/// A segment of a day has messages of many hours: it is not within any window of an hour, and still has its messages.
#[tokio::test]
async fn duplicates_are_known_under_a_shorter_window_length() {
    let archive = Archive::new();
    let hour = 3_600_000_000_000;
    let messages: Vec<Message> = (0..24).map(|n| message(n * hour, 1, "a")).collect();
    for (window_seconds, answer) in [(86_400, Appended::Stored), (3_600, Appended::Duplicate)] {
        let log = LogConfig { window_seconds: window_seconds.try_into().unwrap(), ..LogConfig::default() };
        let opened = open(Config { log, ..archive.config.clone() }).await.unwrap();
        assert_eq!(opened.archive.append(messages.clone()).await.unwrap(), vec![answer; 24]);
        opened.upkeep.close().await.unwrap();
    }
}

/// Files are bounded: one batch may touch more windows than a process may open files.
#[tokio::test]
async fn a_batch_may_touch_very_many_windows() {
    let archive = Archive::new();
    let opened = archive.open().await;
    let day = 86_400_000_000_000;
    let messages: Vec<Message> = (0..200).map(|n| message(n * day, 1, "a")).collect();
    let answers = opened.archive.append(messages.clone()).await.unwrap();
    assert!(answers.iter().all(|answer| *answer == restante_archive::Appended::Stored));
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let logs = files.filter(|file| {
        let target = std::fs::read_link(file.as_ref().unwrap().path()).unwrap_or_default();
        target.starts_with(archive.folder.path()) && target.extension().is_some_and(|suffix| suffix == "log")
    });
    assert!(logs.count() < 100);
    assert_eq!(
        walk(&*opened.archive, Query { limit: 1_000, ..Query::default() }).await.concat(),
        sorted(&messages)
    );
    opened.upkeep.close().await.unwrap();
    let opened = archive.open().await;
    assert_eq!(
        opened.archive.append(messages.clone()).await.unwrap(),
        [restante_archive::Appended::Duplicate; 200]
    );
}

#[tokio::test]
async fn leftovers_are_removed() {
    let archive = Archive::new();
    let messages = archive.filled().await;
    let leftovers = ["00000007.idx", "00000001.idx.tmp", "00000009.log"];
    for name in leftovers {
        std::fs::write(archive.folder.path().join(name), b"unfinished").unwrap();
    }
    let opened = archive.open().await;
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
    for name in leftovers {
        assert!(!archive.folder.path().join(name).exists(), "{name}");
    }
    let report = opened.upkeep.check(&no_progress).await.unwrap();
    assert!(report.is_sound(), "{report:?}");
}

#[tokio::test]
async fn a_newer_format_is_refused_and_left_alone() {
    let archive = Archive::new();
    archive.filled().await;
    let mut log = std::fs::read(archive.file("log")).unwrap();
    log[8] = 2; // the version
    let checksum = crc32c(&log[..60]);
    log[60..64].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(archive.file("log"), &log).unwrap();
    let error = open(archive.config.clone()).await.err().unwrap();
    let refusal = "00000001.log has format version 2, and this program knows versions up to 1";
    assert!(error.to_string().contains(refusal), "{error}");
    assert_eq!(std::fs::read(archive.file("log")).unwrap(), log);
}

/// CRC-32C, bit by bit, to verify the library's.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[tokio::test]
async fn a_second_writer_learns_which_process_has_the_archive() {
    let archive = Archive::new();
    let opened = archive.open().await;
    let error = open(archive.config.clone()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    opened.upkeep.close().await.unwrap();
    archive.open().await;
}

#[tokio::test]
async fn reading_only_changes_nothing() {
    let archive = Archive::new();
    let messages = archive.filled().await;
    let mut log = std::fs::read(archive.file("log")).unwrap();
    log.extend_from_slice(b"torn");
    std::fs::write(archive.file("log"), &log).unwrap();
    let opened = open(Config { read_only: true, ..archive.config.clone() }).await.unwrap();
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
    assert_eq!(std::fs::read(archive.file("log")).unwrap(), log);
    let absent = Config::new("log:/nonexistent/archive".parse().unwrap());
    let error = open(Config { read_only: true, ..absent }).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// An archive written by version 1 of the format, one segment sealed and one open: it must stay readable forever.
#[tokio::test]
async fn version_1_stays_readable() {
    // The first was written before there was a list of segments.
    for (name, has_list) in [("log-v1", false), ("log-v1-list", true)] {
        let fixture = Path::new("tests/fixtures").join(name);
        let messages = fixture_messages();
        if has_list && std::env::var_os("RESTANTE_TEST_WRITE_FIXTURE").is_some() {
            write_fixture(&fixture, &messages).await;
        }
        assert_eq!(fixture.join("SEGMENTS").exists(), has_list);
        assert_reads(&fixture, &messages).await;

        // Opened for writing, it has a list afterwards, and nothing is lost.
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(&fixture).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let config = Config::new(format!("log:{}", copy.path().display()).parse().unwrap());
        open(config).await.unwrap().upkeep.close().await.unwrap();
        assert!(copy.path().join("SEGMENTS").exists());
        assert_reads(copy.path(), &messages).await;
    }
}

async fn assert_reads(fixture: &Path, messages: &[Message]) {
    let config = Config::new(format!("log:{}", fixture.display()).parse().unwrap());
    let opened = open(Config { read_only: true, ..config }).await.unwrap();
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(messages));
    let stats = opened.upkeep.stats().await.unwrap();
    assert_eq!(
        stats.parts.iter().map(|part| (part.messages, part.is_open)).collect::<Vec<_>>(),
        [(6, false), (4, true)]
    );
    assert!(opened.upkeep.check(&no_progress).await.unwrap().is_sound());
}

fn fixture_messages() -> Vec<Message> {
    (0..10).map(|n| message(1_554_076_800_000_000_000 + n, 1, ["a", "b", "c"][n as usize % 3])).collect()
}

async fn write_fixture(folder: &Path, messages: &[Message]) {
    let _ = std::fs::remove_dir_all(folder);
    let mut config = Config::new(format!("log:{}", folder.display()).parse().unwrap());
    config.log.segment_messages = nonzero!(6);
    let opened = open(config).await.unwrap();
    for message in messages {
        opened.archive.append(vec![message.clone()]).await.unwrap();
    }
    opened.upkeep.close().await.unwrap();
    std::fs::remove_file(folder.join("LOCK")).unwrap();
}
