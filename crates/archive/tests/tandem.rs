//! Two archives at once: the second follows the first.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;
#[path = "spool/switch.rs"]
mod switch;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::{message, sorted, walk};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use restante_archive::{
    Appended, Config, Following, Message, Opened, Query, Retention, SpoolConfig, TandemConfig,
    backup::{SECOND, SECOND_SPOOL},
    open, open_over,
};
use restante_core::{ErrorKind, ManualClock, Timestamp, nonzero};
use switch::{Mode, Switch, wait_until};
use tempfile::TempDir;

fn config(folder: &Path, bytes_max: u64) -> Config {
    let spool =
        SpoolConfig { bytes_max, timeout_ms: nonzero!(60_000), ..SpoolConfig::new(folder.join("tandem")) };
    let tandem = TandemConfig { url: "memory:".parse().unwrap(), spool };
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(77)));
    Config { tandem: Some(tandem), clock, ..Config::new("memory:".parse().unwrap()) }
}

struct Subject {
    first: Arc<Switch>,
    second: Arc<Switch>,
    opened: Opened,
    config: Config,
    folder: TempDir,
}

impl Subject {
    async fn new(bytes_max: u64) -> Self {
        let (first, second) = (Switch::new(Mode::On).await, Switch::new(Mode::On).await);
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), bytes_max);
        let opened = open_over(first.opened(), Some(second.opened()), &config).await.unwrap();
        Self { first, second, opened, config, folder }
    }

    async fn append(&self, messages: &[Message]) -> Vec<Appended> {
        self.opened.archive.append(messages.to_vec()).await.unwrap()
    }

    fn following(&self) -> Following {
        self.opened.upkeep.health().following.unwrap()
    }

    async fn wait_until_equal(&self) {
        wait_until("the second has caught up", async || {
            let following = self.following();
            following.messages == 0 && following.problem.is_none()
        })
        .await;
        let rows =
            |switch: Arc<Switch>| async move { walk(switch.archive(), Query::default()).await.concat() };
        assert_eq!(rows(self.first.clone()).await, rows(self.second.clone()).await);
    }

    /// Drops both without closing them, as a crash does, and opens them again.
    async fn crash(self) -> Self {
        let Self { first, second, opened, config, folder } = self;
        drop(opened);
        let opened = loop {
            match open_over(first.opened(), Some(second.opened()), &config).await {
                Ok(opened) => break opened,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        Self { first, second, opened, config, folder }
    }
}

fn numbered(range: std::ops::Range<i64>) -> Vec<Message> {
    range.map(|number| message(number, 1, "topic")).collect()
}

#[tokio::test]
async fn the_second_gets_what_the_first_has() {
    let subject = Subject::new(64 << 20).await;
    assert_eq!(subject.append(&numbered(0..10)).await, [Appended::Stored; 10]);
    assert_eq!(subject.append(&numbered(5..6)).await, [Appended::Duplicate]);
    subject.wait_until_equal().await;
    assert_eq!(subject.second.count().await, 10);
    let following = subject.following();
    assert_eq!((following.engine, following.is_stopped, following.problem), ("memory", false, None));
}

#[tokio::test]
async fn the_first_answers_queries_whatever_the_second_does() {
    let subject = Subject::new(64 << 20).await;
    subject.second.set(Mode::Hangs);
    subject.append(&numbered(0..10)).await;
    let rows = walk(&*subject.opened.archive, Query::default()).await.concat();
    assert_eq!(rows, sorted(&numbered(0..10)));
    assert_eq!(subject.opened.upkeep.stats().await.unwrap().messages, 10);
    assert_eq!(subject.opened.upkeep.health().problem, None);
}

#[tokio::test]
async fn a_second_that_was_away_catches_up_and_its_lag_is_reported() {
    let subject = Subject::new(64 << 20).await;
    subject.second.set(Mode::Off);
    for number in 0..50 {
        assert_eq!(subject.append(&numbered(number..number + 1)).await, [Appended::Stored]);
    }
    wait_until("it is known to be away", async || subject.following().problem.is_some()).await;
    let following = subject.following();
    assert_eq!(following.problem.unwrap(), "memory is unavailable: switched off");
    assert_eq!((following.messages, following.oldest), (50, Some(Timestamp(0))));
    assert!(following.bytes > 0 && !following.is_stopped);
    let health = subject.opened.upkeep.health();
    assert_eq!((health.problem, health.spooled_messages), (None, 0), "the first is well");
    subject.second.set(Mode::On);
    subject.wait_until_equal().await;
    assert_eq!(subject.following().oldest, None);
}

#[tokio::test]
async fn a_second_that_is_too_far_behind_is_given_up_and_the_first_goes_on() {
    let subject = Subject::new(2 << 20).await;
    subject.second.set(Mode::Off);
    let body = bytes::Bytes::from(vec![7; 100_000]);
    for number in 0..40 {
        let large = Message { body: body.clone(), ..message(number, 1, "topic") };
        assert_eq!(subject.append(&[large]).await, [Appended::Stored]);
    }
    assert_eq!(subject.first.count().await, 40);
    let following = subject.following();
    let problem = following.problem.unwrap();
    assert!(following.is_stopped, "{problem}");
    let begin = "tandem stopped at 1970-01-01T00:01:17.000000000Z: ";
    assert!(problem.starts_with(begin) && problem.contains("is full"), "{problem}");
    assert!(problem.contains("restante archive copy"), "{problem}");
    assert_eq!(following.since, Some(Timestamp::from_seconds(77)));
    assert_eq!(subject.opened.upkeep.health().problem, None, "the first is well");

    // What was spooled before is still stored; new messages are not.
    subject.second.set(Mode::On);
    wait_until("the spool is drained", async || subject.following().messages == 0).await;
    subject.append(&numbered(1_000..1_001)).await;
    assert!(subject.following().is_stopped);
    assert!((10..40).contains(&subject.second.count().await));

    // The next start follows again and remembers that something is missing, until an operator clears that.
    let subject = subject.crash().await;
    subject.append(&numbered(2_000..2_010)).await;
    wait_until("it follows again", async || subject.following().messages == 0).await;
    let following = subject.following();
    assert!(!following.is_stopped);
    assert!(following.problem.unwrap().contains("run `restante archive copy`, then remove"));
    std::fs::remove_file(subject.folder.path().join("tandem/GAP")).unwrap();
    for row in walk(subject.first.archive(), Query::default()).await.concat() {
        let key = (row.key.timestamp, row.key.message_hash);
        let copy = Message {
            timestamp: key.0,
            message_hash: key.1,
            channel: row.channel.into(),
            topic: row.topic.into(),
            body: row.body.into(),
        };
        subject.second.opened().archive.append(vec![copy]).await.unwrap();
    }
    let subject = subject.crash().await;
    subject.wait_until_equal().await;
}

/// The first had stored the message, and then the server crashed before it was spooled for the second.
#[tokio::test]
async fn a_retry_heals_what_a_crash_between_the_two_has_left() {
    let subject = Subject::new(64 << 20).await;
    subject.first.opened().archive.append(numbered(0..1)).await.unwrap();
    assert_eq!(subject.append(&numbered(0..1)).await, [Appended::Duplicate]);
    subject.wait_until_equal().await;
}

#[tokio::test]
async fn what_waits_for_the_second_survives_a_crash() {
    let subject = Subject::new(64 << 20).await;
    subject.second.set(Mode::Off);
    subject.append(&numbered(0..100)).await;
    let subject = subject.crash().await;
    assert_eq!(subject.following().messages, 100);
    subject.second.set(Mode::On);
    subject.wait_until_equal().await;
}

#[tokio::test]
async fn what_the_first_refuses_does_not_reach_the_second() {
    let subject = Subject::new(64 << 20).await;
    subject.first.set(Mode::Fails(ErrorKind::Full));
    let error = subject.opened.archive.append(numbered(0..1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    subject.first.set(Mode::On);
    subject.append(&numbered(1..2)).await;
    subject.wait_until_equal().await;
    assert_eq!(subject.second.count().await, 1);
}

#[tokio::test]
async fn a_tandem_that_is_closed_acknowledges_nothing() {
    let subject = Subject::new(64 << 20).await;
    subject.opened.upkeep.close().await.unwrap();
    subject.opened.upkeep.close().await.unwrap();
    // The first would still store it, but the second would never get it.
    let error = subject.opened.archive.append(numbered(0..1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!subject.following().is_stopped);
}

#[tokio::test]
async fn both_keep_the_policy_and_the_first_does_so_alone_when_it_must() {
    let subject = Subject::new(64 << 20).await;
    subject.append(&numbered(0..10)).await;
    subject.wait_until_equal().await;
    let policy = |keep| Retention { capacity: Some(keep), ..Retention::default() };
    assert_eq!(subject.opened.upkeep.prune(&policy(6), Timestamp(0)).await.unwrap().messages, 4);
    subject.wait_until_equal().await;
    subject.second.set(Mode::Off);
    assert_eq!(subject.opened.upkeep.prune(&policy(5), Timestamp(0)).await.unwrap().messages, 1);
    subject.second.set(Mode::On);
    assert_eq!((subject.first.count().await, subject.second.count().await), (5, 6));
}

#[tokio::test]
async fn a_first_that_is_away_is_followed_too() {
    let (first, second) = (Switch::new(Mode::Off).await, Switch::new(Mode::On).await);
    let folder = tempfile::tempdir().unwrap();
    let spool = Some(SpoolConfig::new(folder.path().join("spool")));
    let config = Config { spool, ..config(folder.path(), 64 << 20) };
    let opened = open_over(first.opened(), Some(second.opened()), &config).await.unwrap();
    assert_eq!(opened.archive.append(numbered(0..5)).await.unwrap(), [Appended::Spooled; 5]);
    wait_until("the second has them", async || second.count().await == 5).await;
    assert_eq!(first.count().await, 0);
    first.set(Mode::On);
    wait_until("the first has them", async || first.count().await == 5).await;
}

#[tokio::test]
async fn a_tandem_is_opened_by_url() {
    let folder = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("log:{}", folder.path().join(name).display()).parse().unwrap();
    let spool = SpoolConfig::new(folder.path().join("tandem"));
    let tandem = Some(TandemConfig { url: url("second"), spool });
    let config = Config { tandem, ..Config::new(url("first")) };
    let opened = open(config.clone()).await.unwrap();
    opened.archive.append(numbered(0..5)).await.unwrap();
    wait_until("it has followed", async || {
        opened.upkeep.health().following.is_some_and(|following| following.messages == 0)
    })
    .await;
    let reader = open(Config { read_only: true, ..config.clone() }).await.unwrap();
    assert_eq!(reader.upkeep.health().following, None, "who only reads needs no second");
    opened.upkeep.close().await.unwrap();
    let second = open(Config { read_only: true, ..Config::new(url("second")) }).await.unwrap();
    assert_eq!(walk(&*second.archive, Query::default()).await.concat(), sorted(&numbered(0..5)));
}

/// Whatever the second does, and with crashes in between, both are equal in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_are_equal_in_the_end() {
    for seed in 0..2 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut subject = Subject::new(64 << 20).await;
        for life in 0..3 {
            let appenders: Vec<_> = (0..4_u8)
                .map(|appender| {
                    let archive = subject.opened.archive.clone();
                    let begin = life * 1_000_000;
                    tokio::spawn(async move {
                        for number in 0..100 {
                            let at = begin + number * 7_919 % 100;
                            archive.append(vec![message(at, appender, "topic")]).await.unwrap();
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    })
                })
                .collect();
            for _ in 0..20 {
                let mode = match random.random_range(0..4) {
                    0 | 1 => Mode::On,
                    2 => Mode::Off,
                    _ => Mode::LosesAnswers,
                };
                subject.second.set(mode);
                tokio::time::sleep(Duration::from_millis(random.random_range(0..100))).await;
            }
            for appender in appenders {
                appender.await.unwrap();
            }
            subject = subject.crash().await;
        }
        subject.second.set(Mode::On);
        subject.wait_until_equal().await;
        assert_eq!(subject.second.count().await, 3 * 400, "seed {seed}");
    }
}

/// The copy's second, with its spool, has all that the copy's first has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_both_loses_nothing_in_either() {
    let folder = tempfile::tempdir().unwrap();
    let at = |place: &Path, name: &str| -> Config {
        let url = |name: &str| format!("log:{}", place.join(name).display()).parse().unwrap();
        let spool = SpoolConfig::new(place.join(SECOND_SPOOL));
        Config { tandem: Some(TandemConfig { url: url(SECOND), spool }), ..Config::new(url(name)) }
    };
    let opened = open(at(folder.path(), "first")).await.unwrap();
    let (archive, is_over) = (opened.archive.clone(), Arc::new(AtomicBool::new(false)));
    let over = is_over.clone();
    let appender = tokio::spawn(async move {
        let mut number = 0;
        while !over.load(Ordering::Relaxed) {
            archive.append(numbered(number..number + 3)).await.unwrap();
            number += 3;
        }
        number
    });
    for round in 0..4 {
        let copy = folder.path().join(format!("copy {round}"));
        std::fs::create_dir(&copy).unwrap();
        opened.upkeep.backup(&copy).await.unwrap();
        let copied = open(at(&copy, ".")).await.unwrap();
        let rows = walk(&*copied.archive, Query::default()).await.concat();
        assert_eq!(rows, sorted(&numbered(0..rows.len() as i64)), "round {round}");
        wait_until("what waits is drained", async || {
            copied.upkeep.health().following.is_some_and(|following| following.messages == 0)
        })
        .await;
        copied.upkeep.close().await.unwrap();
        let url = format!("log:{}", copy.join(SECOND).display()).parse().unwrap();
        let second = open(Config { read_only: true, ..Config::new(url) }).await.unwrap();
        // What was appended after the first's copy may be there.
        let followed = walk(&*second.archive, Query::default()).await.concat();
        assert_eq!(followed[..rows.len()], rows, "round {round}");
    }
    is_over.store(true, Ordering::Relaxed);
    let appended = appender.await.unwrap();
    let rows = walk(&*opened.archive, Query::default()).await.concat();
    assert_eq!(rows, sorted(&numbered(0..appended)));
}

#[tokio::test]
async fn what_waits_for_the_second_is_copied_though_neither_archive_is() {
    let copy = tempfile::tempdir().unwrap();
    let subject = Subject::new(64 << 20).await;
    subject.second.set(Mode::Off);
    subject.append(&numbered(0..10)).await;
    let error = subject.opened.upkeep.backup(copy.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let entries = std::fs::read_dir(copy.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(entries.collect::<Vec<_>>(), [SECOND_SPOOL]);
    subject.append(&numbered(10..12)).await;
    subject.second.set(Mode::On);
    subject.wait_until_equal().await;

    let restored = Subject::new(64 << 20).await;
    let mut config = restored.config.clone();
    config.tandem.as_mut().unwrap().spool.folder = copy.path().join(SECOND_SPOOL);
    let second = Switch::new(Mode::On).await;
    let _opened = open_over(restored.first.opened(), Some(second.opened()), &config).await.unwrap();
    wait_until("the second has it", async || second.count().await == 10).await;
}

/// Waiting messages may reach the second as soon as the second's own copy was made, and must be in a copy all the same.
#[tokio::test]
async fn what_reaches_the_second_after_its_copy_is_in_the_copy_of_its_spool() {
    let copy = tempfile::tempdir().unwrap();
    let subject = Subject::new(64 << 20).await;
    subject.second.set(Mode::Off);
    subject.append(&numbered(0..10)).await;
    let copied = subject.second.wait_when_copied();
    let (upkeep, to) = (subject.opened.upkeep.clone(), copy.path().to_owned());
    let backup = tokio::spawn(async move { upkeep.backup(&to).await });
    copied.wait().await;
    subject.second.set(Mode::On);
    wait_until("the spool is empty", async || subject.following().bytes == 0).await;
    copied.wait().await;
    assert_eq!(backup.await.unwrap().unwrap_err().kind(), ErrorKind::Invalid, "the model has no files");

    let restored = Subject::new(64 << 20).await;
    let mut config = restored.config.clone();
    config.tandem.as_mut().unwrap().spool.folder = copy.path().join(SECOND_SPOOL);
    let second = Switch::new(Mode::Off).await;
    let opened = open_over(restored.first.opened(), Some(second.opened()), &config).await.unwrap();
    assert_eq!(opened.upkeep.health().following.unwrap().messages, 10);
}
