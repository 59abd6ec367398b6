//! The spool, with an engine that is switched off and on.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "spool/backup.rs"]
mod backup;
mod common;
#[path = "spool/switch.rs"]
mod switch;

use std::{collections::BTreeSet, fs, path::Path, sync::Arc, time::Duration};

use common::{message, sorted, walk};
use prometheus_client::registry::Registry;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use restante_archive::{Appended, Config, Error, Message, Opened, Query, SpoolConfig, open, open_over};
use restante_core::{ErrorKind, ManualClock, Timestamp, nonzero};
use switch::{Mode, Switch, wait_until};
use tempfile::TempDir;

/// Large enough for every test but those that fill it.
const ROOM: u64 = 64 << 20;

fn config(folder: &Path, bytes_max: u64) -> Config {
    // A long time-out: in these tests an engine answers, or it never does.
    let spool =
        SpoolConfig { bytes_max, timeout_ms: nonzero!(60_000), ..SpoolConfig::new(folder.join("spool")) };
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(77)));
    Config { spool: Some(spool), clock, ..Config::new("memory:".parse().unwrap()) }
}

/// A spool with an engine.
struct Subject {
    engine: Arc<Switch>,
    opened: Opened,
    config: Config,
    folder: TempDir,
}

impl Subject {
    async fn new(mode: Mode) -> Self {
        Self::with_room(mode, ROOM).await
    }

    async fn with_room(mode: Mode, bytes_max: u64) -> Self {
        let engine = Switch::new(mode).await;
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), bytes_max);
        let opened = open_over(engine.opened(), None, &config).await.unwrap();
        Self { engine, opened, config, folder }
    }

    async fn append(&self, messages: &[Message]) -> Result<Vec<Appended>, Error> {
        self.opened.archive.append(messages.to_vec()).await
    }

    /// Damages the log of the first generation.
    fn damage(&self, damage: impl FnOnce(&mut [u8])) {
        let files = fs::read_dir(self.spool_folder().join("00000001")).unwrap();
        let mut paths = files.map(|entry| entry.unwrap().path());
        let log = paths.find(|path| path.extension().is_some_and(|ending| ending == "log")).unwrap();
        let mut bytes = fs::read(&log).unwrap();
        damage(&mut bytes);
        fs::write(&log, bytes).unwrap();
    }

    async fn wait_until_set_aside(&self) {
        let aside = self.spool_folder().join("00000001.damaged");
        wait_until("the damaged part was set aside", async || aside.is_dir()).await;
    }

    /// Appends messages that must go to the spool.
    async fn spool(&self, messages: &[Message]) {
        let answers = self.append(messages).await.unwrap();
        assert_eq!(answers, vec![Appended::Spooled; messages.len()]);
    }

    fn waiting(&self) -> u64 {
        self.opened.upkeep.health().spooled_messages
    }

    fn problem(&self) -> Option<String> {
        self.opened.upkeep.health().problem
    }

    async fn wait_until_drained(&self) {
        wait_until("the spool is drained", async || {
            let health = self.opened.upkeep.health();
            health.spooled_messages == 0 && health.problem.is_none()
        })
        .await;
    }

    /// Draining frees disk space.
    async fn wait_until_removed(&self) {
        wait_until("nothing is left", async || self.opened.upkeep.health().spooled_bytes == 0).await;
        assert_eq!(self.generations(), 0);
    }

    /// The engine has these messages and no others.
    async fn assert_stored(&self, messages: &[Message]) {
        let rows = walk(self.engine.archive(), Query::default()).await.concat();
        assert_eq!(rows, sorted(messages));
    }

    /// Drops the spool without closing it, as a crash does, and opens it again.
    async fn crash(self) -> Self {
        let Self { engine, opened, config, folder } = self;
        drop(opened);
        Self { opened: reopen(&engine, &config).await, engine, config, folder }
    }

    fn spool_folder(&self) -> std::path::PathBuf {
        self.folder.path().join("spool")
    }

    fn generations(&self) -> usize {
        let entries = fs::read_dir(self.spool_folder()).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with('0')).count()
    }
}

/// Opens a spool whose previous user is about to end.
async fn reopen(engine: &Arc<Switch>, config: &Config) -> Opened {
    loop {
        match open_over(engine.opened(), None, config).await {
            Ok(opened) => return opened,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn numbered(range: std::ops::Range<i64>) -> Vec<Message> {
    range.map(|number| message(number, 1, "topic")).collect()
}

#[tokio::test]
async fn messages_pass_through_while_the_engine_is_there() {
    let subject = Subject::new(Mode::On).await;
    let messages = numbered(0..3);
    assert_eq!(subject.append(&messages).await.unwrap(), [Appended::Stored; 3]);
    assert_eq!(subject.append(&messages[..1]).await.unwrap(), [Appended::Duplicate]);
    assert_eq!((subject.waiting(), subject.problem()), (0, None));
    assert_eq!(subject.generations(), 0);
    subject.assert_stored(&messages).await;
}

#[tokio::test]
async fn messages_wait_for_an_engine_that_is_away_and_follow_when_it_is_back() {
    let subject = Subject::new(Mode::Off).await;
    let messages = numbered(0..20);
    subject.spool(&messages[..15]).await;
    for message in &messages[15..] {
        subject.spool(std::slice::from_ref(message)).await;
    }
    let health = subject.opened.upkeep.health();
    assert_eq!(health.problem.unwrap(), "memory is unavailable: switched off");
    assert_eq!(health.since, Some(Timestamp::from_seconds(77)));
    assert_eq!(health.spooled_messages, 20);
    assert!(health.spooled_bytes > 0);
    assert_eq!(
        subject.opened.archive.query(&Query::default()).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );

    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.assert_stored(&messages).await;
    assert_eq!(subject.append(&messages[..1]).await.unwrap(), [Appended::Duplicate]);
    subject.wait_until_removed().await;
}

#[tokio::test]
async fn what_was_spooled_is_stored_oldest_first() {
    let subject = Subject::new(Mode::Off).await;
    let messages = numbered(0..3_000);
    for batch in messages.rchunks(100) {
        subject.spool(batch).await; // the newest first
    }
    let asked_before = subject.engine.asked().len();
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.assert_stored(&messages).await;
    let asked = subject.engine.asked().split_off(asked_before).concat();
    // The check whether the engine is back has the first batches, which are the newest, frozen in their own generation; the
    // others went to the next one, which has the oldest message.
    let begin = asked.iter().position(|key| *key == messages[0].key()).unwrap();
    assert!(asked[..begin].is_sorted() && asked[begin..].is_sorted(), "{asked:?}");
}

#[tokio::test]
async fn generations_are_drained_in_the_order_in_which_they_were_made() {
    // A generation of this spool takes a mebibyte: eleven of these messages.
    let subject = Subject::with_room(Mode::Off, 8 << 20).await;
    let body = bytes::Bytes::from(vec![7; 100_000]);
    let messages: Vec<Message> =
        numbered(0..50).into_iter().map(|message| Message { body: body.clone(), ..message }).collect();
    for message in &messages {
        subject.spool(std::slice::from_ref(message)).await;
    }
    assert!(subject.generations() >= 4, "{} generations", subject.generations());
    let asked_before = subject.engine.asked().len();
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    let mut asked = subject.engine.asked().split_off(asked_before).concat();
    asked.dedup();
    let expected: Vec<_> = messages.iter().map(Message::key).collect();
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn a_late_message_that_comes_while_others_are_drained_is_stored() {
    let subject = Subject::new(Mode::Off).await;
    subject.spool(&numbered(100..200)).await;
    for late in 0..5 {
        subject.engine.set(Mode::OnFor(1)); // one batch is stored, and then the engine is off again
        wait_until("a batch was taken", async || subject.engine.count().await as i64 > late).await;
        wait_until("it is known to be away", async || subject.problem().is_some()).await;
        subject.spool(&numbered(late..late + 1)).await;
    }
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.assert_stored(&[numbered(0..5), numbered(100..200)].concat()).await;
}

#[tokio::test]
async fn an_answer_that_was_lost_stores_nothing_twice() {
    let subject = Subject::new(Mode::LosesAnswers).await;
    let messages = numbered(0..10);
    subject.spool(&messages).await;
    subject.assert_stored(&messages).await;
    assert_eq!(subject.waiting(), 10);
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.assert_stored(&messages).await;
}

#[tokio::test]
async fn an_engine_that_hangs_costs_one_time_out_and_not_one_for_each_message() {
    let engine = Switch::new(Mode::Hangs).await;
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path(), ROOM);
    config.spool.as_mut().unwrap().timeout_ms = nonzero!(20);
    let opened = open_over(engine.opened(), None, &config).await.unwrap();
    let messages = numbered(0..50);
    for message in &messages {
        assert_eq!(opened.archive.append(vec![message.clone()]).await.unwrap(), [Appended::Spooled]);
    }
    // Only the first one was sent to the engine, by its publisher and by the check whether the engine is back.
    let asked: BTreeSet<_> = engine.asked().concat().into_iter().collect();
    assert_eq!(asked.into_iter().collect::<Vec<_>>(), [messages[0].key()]);
    engine.set(Mode::On);
    wait_until("all are stored", async || engine.count().await == 50).await;
}

/// A client that gave up used to cancel the time-out too: it was never noticed that the engine hung.
#[tokio::test]
async fn callers_that_give_up_are_served_all_the_same() {
    let engine = Switch::new(Mode::Hangs).await;
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path(), ROOM);
    config.spool.as_mut().unwrap().timeout_ms = nonzero!(50);
    let opened = open_over(engine.opened(), None, &config).await.unwrap();
    for message in numbered(0..20) {
        let append = opened.archive.append(vec![message]);
        let _ = tokio::time::timeout(Duration::from_millis(1), append).await; // and the future is dropped
    }
    wait_until("the outage is noticed", async || opened.upkeep.health().problem.is_some()).await;
    engine.set(Mode::On);
    wait_until("all are stored", async || engine.count().await == 20).await;
}

#[tokio::test]
async fn those_who_wait_for_an_engine_go_to_the_spool_when_one_of_them_has_found_it_away() {
    let subject = Subject::new(Mode::Hangs).await; // the time-out is long
    let archive = subject.opened.archive.clone();
    let waiting = tokio::spawn(async move { archive.append(numbered(0..1)).await.unwrap() });
    wait_until("it has come as far as the engine", async || subject.engine.asked().len() == 1).await;
    subject.engine.set(Mode::Off);
    subject.spool(&numbered(1..2)).await;
    assert_eq!(waiting.await.unwrap(), [Appended::Spooled]);
}

#[tokio::test]
async fn an_engine_that_was_away_from_the_beginning_is_not_asked_by_publishers() {
    let engine = Switch::new(Mode::Off).await;
    engine.set_problem("no route to host");
    let folder = tempfile::tempdir().unwrap();
    let opened = open_over(engine.opened(), None, &config(folder.path(), ROOM)).await.unwrap();
    assert_eq!(opened.upkeep.health().problem.unwrap(), "memory is unavailable: no route to host");
    assert_eq!(opened.archive.append(numbered(0..5)).await.unwrap(), [Appended::Spooled; 5]);
    assert!(engine.asked().iter().all(|batch| batch.len() == 1), "only the drain asks, with one message");
}

#[tokio::test]
async fn an_engine_that_comes_back_before_anything_was_spooled_is_noticed() {
    let engine = Switch::new(Mode::Off).await;
    engine.set_problem("starting");
    let folder = tempfile::tempdir().unwrap();
    let opened = open_over(engine.opened(), None, &config(folder.path(), ROOM)).await.unwrap();
    engine.set(Mode::On);
    wait_until("it is noticed", async || {
        let problem = opened.upkeep.health().problem;
        problem.as_deref() == Some("starting") // the engine's own text, unchanged
    })
    .await;
    assert_eq!(opened.archive.append(numbered(0..1)).await.unwrap(), [Appended::Stored]);
}

#[tokio::test]
async fn other_errors_are_passed_on() {
    for kind in
        [ErrorKind::Invalid, ErrorKind::Conflict, ErrorKind::Full, ErrorKind::Corrupt, ErrorKind::Internal]
    {
        let subject = Subject::new(Mode::Fails(kind)).await;
        assert_eq!(subject.append(&numbered(0..1)).await.unwrap_err().kind(), kind);
        assert_eq!((subject.waiting(), subject.generations()), (0, 0));
    }
    let subject = Subject::new(Mode::Off).await;
    let long = Message { topic: "x".repeat(5_000).into(), ..numbered(0..1).remove(0) };
    assert_eq!(subject.append(&[long]).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(subject.append(&[]).await.unwrap(), []);
    assert_eq!(subject.engine.asked().len(), 0);
}

#[tokio::test]
async fn a_full_spool_says_so_and_keeps_what_it_has_acknowledged() {
    let subject = Subject::with_room(Mode::Off, 4 << 20).await;
    let body = bytes::Bytes::from(vec![7; 100_000]);
    let large = |number| Message { body: body.clone(), ..message(number, 1, "topic") };
    for _round in 0..2 {
        let mut kept = Vec::new();
        let error = loop {
            let next = large(kept.len() as i64 + 1_000);
            match subject.append(std::slice::from_ref(&next)).await {
                Ok(answers) => assert_eq!(answers, [Appended::Spooled]),
                Err(error) => break error,
            }
            kept.push(next);
        };
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(error.to_string().contains("the spool") && error.to_string().contains("is full"), "{error}");
        assert!(subject.problem().unwrap().contains("the spool is full"));
        assert!((35..42).contains(&kept.len()), "4 MiB were filled by {} messages", kept.len());
        assert!(subject.opened.upkeep.health().spooled_bytes <= 4 << 20);
        subject.engine.set(Mode::On);
        subject.wait_until_drained().await;
        subject.wait_until_removed().await;
        subject.assert_stored(&kept).await;
        subject.engine.set(Mode::Off);
    }
}

#[tokio::test]
async fn what_is_spooled_survives_a_crash() {
    let subject = Subject::new(Mode::Off).await;
    subject.spool(&numbered(0..100)).await;
    let subject = subject.crash().await;
    assert_eq!(subject.waiting(), 100);
    subject.spool(&numbered(50..150)).await;
    let subject = subject.crash().await;
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.assert_stored(&numbered(0..150)).await;
}

#[tokio::test]
async fn a_crash_in_the_midst_of_draining_only_repeats() {
    let mut subject = Subject::new(Mode::Off).await;
    subject.spool(&numbered(0..2_000)).await;
    for batches in 1..5 {
        subject.engine.set(Mode::OnFor(batches));
        let before = subject.engine.count().await;
        wait_until("a batch was taken", async || {
            subject.engine.count().await > before || subject.waiting() < 2_000
        })
        .await;
        subject = subject.crash().await;
        subject.engine.set(Mode::Off);
    }
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.assert_stored(&numbered(0..2_000)).await;
}

#[tokio::test]
async fn closing_leaves_the_spool_as_it_is_and_takes_no_more() {
    let subject = Subject::new(Mode::Off).await;
    subject.spool(&numbered(0..10)).await;
    subject.opened.upkeep.close().await.unwrap();
    subject.opened.upkeep.close().await.unwrap();
    assert_eq!(subject.append(&numbered(10..11)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let subject = subject.crash().await;
    assert_eq!(subject.waiting(), 10);
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.assert_stored(&numbered(0..10)).await;
}

#[tokio::test]
async fn a_second_user_of_a_spool_is_turned_away() {
    let subject = Subject::new(Mode::On).await;
    let error = open_over(subject.engine.opened(), None, &subject.config).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("is in use by process"), "{error}");
}

#[tokio::test]
async fn a_spool_of_a_newer_format_is_refused_and_left_alone() {
    let subject = Subject::new(Mode::Off).await;
    subject.spool(&numbered(0..3)).await;
    subject.opened.upkeep.close().await.unwrap();
    subject.damage(|log| {
        log[8] = 2; // the version
        let checksum = crc32c::crc32c(&log[..60]);
        log[60..64].copy_from_slice(&checksum.to_le_bytes());
    });
    let error = open_over(subject.engine.opened(), None, &subject.config).await.err().unwrap();
    let refusal = "00000001.log has format version 2, and this program knows versions up to 1";
    assert!(error.to_string().contains(refusal), "{error}");
    assert!(subject.spool_folder().join("00000001").is_dir());
}

#[tokio::test]
async fn a_message_that_the_engine_never_takes_is_set_aside_and_holds_nobody_up() {
    let subject = Subject::new(Mode::Off).await;
    let messages = numbered(0..100);
    subject.spool(&messages).await;
    subject.engine.set(Mode::Refuses(messages[42].key()));
    subject.wait_until_drained().await;
    let others = [&messages[..42], &messages[43..]].concat();
    subject.assert_stored(&others).await;
    let url = format!("log:{}", subject.spool_folder().join("refused").display());
    let refused = open(Config { read_only: true, ..Config::new(url.parse().unwrap()) }).await.unwrap();
    assert_eq!(walk(&*refused.archive, Query::default()).await.concat(), sorted(&messages[42..43]));
}

#[tokio::test]
async fn an_engine_that_answers_and_stores_nothing_is_reported() {
    let subject = Subject::new(Mode::Off).await;
    subject.spool(&numbered(0..10)).await;
    subject.engine.set(Mode::Fails(ErrorKind::Full));
    wait_until("it is reported", async || {
        subject.problem().is_some_and(|problem| problem.starts_with("what is in the spool can't be stored"))
    })
    .await;
    assert_eq!(subject.waiting(), 10);
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.assert_stored(&numbered(0..10)).await;
}

#[tokio::test]
async fn damaged_messages_are_reported_and_the_others_stored() {
    let subject = Subject::new(Mode::Off).await;
    subject.spool(&numbered(0..100)).await;
    subject.opened.upkeep.close().await.unwrap();
    subject.damage(|bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    });
    let subject = subject.crash().await;
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.wait_until_set_aside().await;
    assert_eq!(subject.engine.count().await, 99);
}

/// A log that can't be read seems to have no messages, and used to be removed for that reason.
#[tokio::test]
async fn a_part_that_cannot_be_read_at_all_is_kept() {
    let subject = Subject::new(Mode::Off).await;
    subject.spool(&numbered(0..50)).await;
    subject.opened.upkeep.close().await.unwrap();
    subject.damage(|bytes| bytes[..64].fill(0));
    // It has a copy of the header's fields.
    fs::remove_file(subject.spool_folder().join("00000001/SEGMENTS")).unwrap();
    let subject = subject.crash().await;
    subject.engine.set(Mode::On);
    subject.wait_until_set_aside().await;
}

/// Nothing restores what somebody has removed; later messages are stored again.
#[tokio::test]
async fn a_spool_whose_files_were_removed_takes_messages_again() {
    let subject = Subject::new(Mode::Off).await;
    subject.spool(&numbered(0..10)).await;
    fs::remove_dir_all(subject.spool_folder()).unwrap();
    let after = numbered(10..20);
    wait_until("messages are taken", async || {
        let taken = subject.append(&after).await;
        taken.inspect_err(|error| assert_eq!(error.kind(), ErrorKind::Unavailable)).is_ok()
            && subject.spool_folder().is_dir()
    })
    .await;
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    let stored = walk(subject.engine.archive(), Query::default()).await.concat();
    assert!(sorted(&after).iter().all(|row| stored.contains(row)), "{stored:?}");
}

#[tokio::test]
async fn any_timestamp_and_any_length_goes_through_the_spool() {
    let subject = Subject::new(Mode::Off).await;
    let mut messages: Vec<Message> =
        [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX].map(|at| message(at, 1, "topic")).into();
    messages.push(Message { body: bytes::Bytes::from(vec![1; 16 << 20]), ..message(5, 2, "") });
    messages.push(Message { body: bytes::Bytes::new(), ..message(5, 3, &"x".repeat(4_096)) });
    subject.spool(&messages).await;
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.assert_stored(&messages).await;
}

#[tokio::test]
async fn the_spool_is_counted() {
    let subject = Subject::new(Mode::Off).await;
    let shown = || {
        let mut registry = Registry::default();
        subject.config.metrics.register(&mut registry, "memory");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    };
    let assert_shown = |lines: &[&str]| {
        let text = shown();
        for line in lines {
            let (name, value) = line.split_once(' ').unwrap();
            let line = format!("restante_archive_{name}{{engine=\"memory\"}} {value}");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    };
    assert_shown(&["engine_up 1", "spool_messages 0", "spool_bytes 0", "tandem_stopped 0"]);
    subject.spool(&numbered(2_000_000_000..2_000_000_010)).await;
    assert_shown(&[
        "engine_up 0",
        "spool_messages 10",
        "spool_put_messages_total 10",
        "spool_drained_messages_total 0",
        "spool_oldest_timestamp_seconds 2",
    ]);
    assert!(
        shown().contains("restante_archive_messages_total{engine=\"memory\",result=\"spooled\"} 10"),
        "{}",
        shown()
    );
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.wait_until_removed().await;
    assert_shown(&["engine_up 1", "spool_messages 0", "spool_bytes 0", "spool_drained_messages_total 10"]);
}

/// Whatever an engine does and whenever a server crashes: in the end all acknowledged messages exist, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_whatever_the_engine_does() {
    for seed in 0..3 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut subject = Subject::new(Mode::On).await;
        let mut acknowledged = Vec::new();
        for life in 0..3 {
            let publishers: Vec<_> = (0..4)
                .map(|publisher| {
                    let archive = subject.opened.archive.clone();
                    let seed = random.random::<u64>();
                    tokio::spawn(async move { publish(&*archive, life, publisher, seed).await })
                })
                .collect();
            for _ in 0..25 {
                let kind = [ErrorKind::Internal, ErrorKind::Full][random.random_range(0..2)];
                let mode = match random.random_range(0..6) {
                    0 | 1 => Mode::On,
                    2 => Mode::Off,
                    3 => Mode::OnFor(random.random_range(0..5)),
                    4 => Mode::LosesAnswers,
                    _ => Mode::Fails(kind),
                };
                subject.engine.set(mode);
                // Long enough that the drain runs now and then between its pauses.
                tokio::time::sleep(Duration::from_millis(random.random_range(0..60))).await;
            }
            for publisher in publishers {
                acknowledged.extend(publisher.await.unwrap());
            }
            subject = subject.crash().await;
        }
        subject.engine.set(Mode::On);
        subject.wait_until_drained().await;
        let stored = walk(subject.engine.archive(), Query::default()).await.concat();
        let stored: BTreeSet<_> = stored.into_iter().map(|row| row.key).collect();
        let lost: Vec<_> = acknowledged.iter().filter(|message| !stored.contains(&message.key())).collect();
        assert!(lost.is_empty(), "seed {seed}: {} of {} lost", lost.len(), acknowledged.len());
        assert!(!acknowledged.is_empty());
        assert_eq!(subject.append(&acknowledged[..1]).await.unwrap(), [Appended::Duplicate], "seed {seed}");
    }
}

/// Appends its own batches, some with messages of earlier ones, and returns those that were acknowledged.
async fn publish(
    archive: &dyn restante_archive::Archive,
    life: i64,
    publisher: u8,
    seed: u64,
) -> Vec<Message> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut acknowledged: Vec<Message> = Vec::new();
    for number in 0..60 {
        let len = random.random_range(1..8);
        let at = |n| life * 1_000_000 + random.random_range(0..50) * 1_000 + number * 10 + n;
        let mut batch: Vec<Message> = (0..len).map(at).map(|at| message(at, publisher, "topic")).collect();
        batch.extend(acknowledged.first().cloned());
        if let Ok(answers) = archive.append(batch.clone()).await {
            assert_eq!(answers.len(), batch.len());
            acknowledged.extend(batch);
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..20))).await;
    }
    acknowledged
}
