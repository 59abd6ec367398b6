use std::{fs, path::PathBuf};

use proptest::prelude::*;
use restante_core::{ErrorKind, ManualClock, nonzero};
use restante_disk::testing::{FailingDisk, FailurePlan, InjectedFailure};
use tempfile::TempDir;

use super::*;

const NOW: i64 = 1_700_000_000;
const DAY: i64 = 86_400;

/// A journal in a temporary folder, with a fixed time.
struct TestJournal {
    folder: TempDir,
    clock: Arc<ManualClock>,
    metrics: JournalMetrics,
    config: JournalConfig,
    journal: DeliveryJournal,
}

impl TestJournal {
    fn new() -> Self {
        Self::with(JournalConfig::default())
    }

    fn with(config: JournalConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(NOW)));
        let metrics = JournalMetrics::default();
        let journal =
            DeliveryJournal::open(folder.path(), config.clone(), clock.clone(), metrics.clone()).unwrap();
        Self { folder, clock, metrics, config, journal }
    }

    /// Opens it again, as after a restart.
    fn reopen(self) -> Self {
        let Self { folder, clock, metrics, config, journal } = self;
        drop(journal);
        let journal =
            DeliveryJournal::open(folder.path(), config.clone(), clock.clone(), metrics.clone()).unwrap();
        Self { folder, clock, metrics, config, journal }
    }

    /// Writes what is pending, without a sync.
    async fn write(&self) {
        self.journal.blocking(Shared::write).await.unwrap();
    }

    async fn find(&self, about: About) -> Found {
        find(&self.journal, about, 1_000_000).await
    }

    /// The ids of the entries with a text.
    async fn ids(&self, text: &str) -> Vec<String> {
        ids(&self.find(About::Text(text.to_owned())).await)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| !file.ends_with("LOCK"));
        files.sort();
        files
    }

    fn disk_bytes(&self) -> u64 {
        self.files().iter().map(|file| fs::metadata(file).unwrap().len()).sum()
    }
}

async fn find(journal: &DeliveryJournal, about: About, limit: usize) -> Found {
    journal.find(Lookup { about, since: Timestamp::MIN, limit }).await.unwrap()
}

fn ids(found: &Found) -> Vec<String> {
    found.entries.iter().map(|entry| entry.id.clone()).collect()
}

/// A message that Bob has sent to Anna.
fn stored(id: impl ToString) -> DeliveryEntry {
    let id = id.to_string();
    DeliveryEntry {
        time: Timestamp::from_seconds(NOW),
        protocol: Some(Protocol::Smtp),
        is_tls: true,
        peer: Some("192.0.2.1".parse().unwrap()),
        hello: "mx.example.net".to_owned(),
        sender: "bob@example.net".to_owned(),
        recipient: "info@example.org".to_owned(),
        account: Some((AccountId(100), "anna@example.org".to_owned())),
        message_id: Some(format!("M{id}@example.net")),
        id,
        bytes: 4_096,
        outcome: Outcome::Stored(RecordId(7)),
    }
}

fn unknown(id: impl ToString, recipient: &str) -> DeliveryEntry {
    let reply = NotedReply { code: 550, status: "5.1.1".into(), reason: "no such user here".into() };
    DeliveryEntry {
        recipient: recipient.to_owned(),
        account: None,
        message_id: None,
        bytes: 0,
        outcome: Outcome::Refused(reply),
        ..stored(id)
    }
}

fn any_entry() -> impl Strategy<Value = DeliveryEntry> {
    let text = || "[a-zä@.<> -]{0,40}";
    let outcome = prop_oneof![
        any::<u64>().prop_map(|id| Outcome::Stored(RecordId(id))),
        Just(Outcome::Repeated),
        Just(Outcome::BrokenOff),
        Just(Outcome::Queued),
        (any::<u64>(), text())
            .prop_map(|(id, reason)| Outcome::Junk { email: RecordId(id), reason: reason.into() }),
        text().prop_map(|reason| Outcome::Quarantined(reason.into())),
        (prop::option::of(1..u64::MAX), text())
            .prop_map(|(id, by)| Outcome::Released { email: id.map(RecordId), by: by.into() }),
        text().prop_map(|by| Outcome::Dropped(by.into())),
        (any::<u16>(), text(), text(), 0..6_usize).prop_map(|(code, status, reason, kind)| {
            let kinds = [
                Outcome::Refused,
                Outcome::Sent,
                Outcome::Postponed,
                Outcome::Failed,
                Outcome::Reported,
                Outcome::NotReleased,
            ];
            kinds[kind](NotedReply { code, status: status.into(), reason: reason.into() })
        }),
    ];
    let protocol = prop::option::of(prop::sample::select(&Protocol::ALL));
    let connection = (any::<i64>(), protocol, any::<bool>(), any::<Option<IpAddr>>(), text());
    let envelope =
        (text(), text(), prop::option::of((any::<u32>().prop_map(AccountId), text().prop_map(String::from))));
    let message = (text(), prop::option::of("[a-z@]{1,20}"), any::<u64>(), outcome);
    (connection, envelope, message).prop_map(
        |(
            (time, protocol, is_tls, peer, hello),
            (sender, recipient, account),
            (id, message_id, bytes, outcome),
        )| {
            let time = Timestamp(time);
            DeliveryEntry {
                time,
                protocol,
                is_tls,
                peer,
                hello,
                sender,
                recipient,
                account,
                id,
                message_id,
                bytes,
                outcome,
            }
        },
    )
}

fn file_of(entries: &[DeliveryEntry]) -> Vec<u8> {
    let mut file = format::header();
    entries.iter().for_each(|entry| format::write(entry, &mut file));
    file
}

fn read(file: &[u8]) -> Vec<DeliveryEntry> {
    let records = format::records(file, "x").unwrap();
    records.into_iter().flatten().map(|(_, view)| view.to_entry()).collect()
}

proptest! {
    #[test]
    fn what_is_written_reads_back(entries in prop::collection::vec(any_entry(), 0..20)) {
        prop_assert_eq!(read(&file_of(&entries)), entries);
    }

    #[test]
    fn a_damaged_file_is_read_up_to_the_damage(
        entries in prop::collection::vec(any_entry(), 1..10),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let mut file = file_of(&entries);
        let at = at.index(file.len());
        file[at] ^= 1 << bit;
        let before = file_of(&[]).len();
        let whole = (0..=entries.len()).rev().find(|count| file_of(&entries[..*count]).len() <= at.max(before)).unwrap();
        let expected = if at < before { 0 } else { whole };
        prop_assert_eq!(read(&file), &entries[..expected]);
        prop_assert_eq!(read(&file[..at]), &entries[..expected]);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        read(&[file_of(&[]), bytes].concat());
    }
}

#[test]
fn long_texts_are_cut_and_still_found() {
    let long = "ä".repeat(1_000);
    let entry = DeliveryEntry { message_id: Some(long.clone()), ..stored(1) };
    let [read] = &read(&file_of(&[entry]))[..] else { panic!() };
    assert_eq!(read.message_id.as_deref(), Some(&long[..512]));
    let file = file_of(std::slice::from_ref(read));
    let (_, view) = format::records(&file, "x").unwrap().unwrap().next().unwrap();
    assert!(Matcher::of(&About::Text(format!("<{long}>"))).matches(&view));
}

#[test]
fn a_file_of_a_newer_version_is_refused() {
    let mut file = b"RSTNTJNL\x04\0\0\0".to_vec();
    file.extend_from_slice(&crc32c::crc32c(&file).to_le_bytes());
    let error = format::records(&file, "stored-00000001").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn entries_are_found_by_addresses_and_ids() {
    let test = TestJournal::new();
    test.journal.note(stored("a-1"));
    test.journal.note(unknown("a-2", "Nobody@example.org"));
    let other = DeliveryEntry {
        sender: String::new(),
        recipient: "carol@example.org".to_owned(),
        account: Some((AccountId(102), "carol@example.org".to_owned())),
        ..stored("a-3")
    };
    test.journal.note(other);
    for (text, found) in [
        ("info@example.org", &["a-1"][..]),
        ("anna@EXAMPLE.org", &["a-1"]),
        ("bob@example.net", &["a-1", "a-2"]),
        ("nobody@example.org", &["a-2"]),
        ("<Ma-1@example.net>", &["a-1"]),
        ("Ma-3@example.net", &["a-3"]),
        ("<ma-1@example.net>", &[]),
        ("<info@example.org>", &[]),
        ("a-3", &["a-3"]),
        ("example.org", &[]),
        ("", &[]),
        ("<>", &[]),
    ] {
        assert_eq!(test.ids(text).await.len(), found.len(), "{text}");
        assert!(test.ids(text).await.iter().all(|id| found.contains(&id.as_str())), "{text}");
    }
    assert_eq!(ids(&test.find(About::Account(AccountId(102))).await), ["a-3"]);
    let all = test.find(About::Everything).await;
    assert_eq!((all.entries.len(), all.has_more), (3, false));
    assert_eq!(all.entries.iter().find(|entry| entry.id == "a-1"), Some(&stored("a-1")));
}

#[tokio::test]
async fn the_newest_come_first_whatever_became_of_them() {
    let test = TestJournal::new();
    for second in 0..6 {
        let time = Timestamp::from_seconds(NOW + second);
        match second % 2 {
            0 => test.journal.note(DeliveryEntry { time, ..stored(second) }),
            _ => test.journal.note(DeliveryEntry { time, ..unknown(second, "anna@example.org") }),
        }
    }
    assert_eq!(test.ids("anna@example.org").await, ["5", "4", "3", "2", "1", "0"]);
    let about = || About::Text("anna@example.org".to_owned());
    let page = find(&test.journal, about(), 4).await;
    assert_eq!((ids(&page), page.has_more), (["5", "4", "3", "2"].map(String::from).to_vec(), true));
    let all = find(&test.journal, about(), 6).await;
    assert_eq!((all.has_more, all.begins), (false, Some(Timestamp::from_seconds(NOW))));
    let since = Timestamp::from_seconds(NOW + 3);
    let later = test.journal.find(Lookup { about: about(), since, limit: 10 }).await.unwrap();
    assert_eq!(ids(&later), ["5", "4", "3"]);
    assert_eq!(later.begins, all.begins, "the moment that is asked for changes nothing of what there is");
}

#[tokio::test]
async fn entries_survive_a_restart() {
    let mut test = TestJournal::new();
    assert_eq!(test.find(About::Everything).await, Found::default());
    for id in 0..5 {
        test.journal.note(stored(id));
        test.journal.note(unknown(id, "x@example.org"));
        test.journal.close().await.unwrap();
        test = test.reopen();
    }
    assert_eq!(test.ids("anna@example.org").await, ["4", "3", "2", "1", "0"]);
    assert_eq!(test.files().len(), 2, "a restart appends to the files that are there");
}

#[tokio::test]
async fn a_journal_is_opened_once() {
    let test = TestJournal::new();
    let again = DeliveryJournal::open(
        test.folder.path(),
        test.config.clone(),
        test.clock.clone(),
        JournalMetrics::default(),
    );
    assert_eq!(again.err().unwrap().kind(), ErrorKind::Conflict);
}

#[tokio::test]
async fn a_torn_file_loses_its_end_alone() {
    let (first, second) = (stored("first"), stored("second"));
    let (begin, whole) =
        (file_of(std::slice::from_ref(&first)).len(), file_of(&[first.clone(), second]).len());
    for len in (0..whole).step_by(7).chain([begin - 1, begin, begin + 1]) {
        let test = TestJournal::new();
        test.journal.note(first.clone());
        test.journal.note(stored("second"));
        test.journal.close().await.unwrap();
        let file = fs::OpenOptions::new().write(true).open(&test.files()[0]).unwrap();
        file.set_len(len as u64).unwrap();
        if len % 2 == 0 {
            file.set_len(whole as u64 + 100).unwrap(); // as some file systems do after a crash: the length is there, the bytes are not
        }
        let test = test.reopen();
        test.journal.note(stored("third"));
        let expected: &[&str] = if len < begin { &["third"] } else { &["third", "first"] };
        assert_eq!(test.ids("anna@example.org").await, expected, "{len}");
        let test = test.reopen();
        assert_eq!(test.ids("anna@example.org").await, expected, "{len}, opened again");
    }
}

#[tokio::test]
async fn old_entries_are_not_found_and_their_files_are_removed() {
    let test = TestJournal::with(JournalConfig { days: 2, ..JournalConfig::default() });
    for day in 0..5 {
        let time = Timestamp::from_seconds(NOW + day * DAY);
        test.clock.set(time);
        test.journal.note(DeliveryEntry { time, ..stored(day) });
        test.journal.note(DeliveryEntry { time: time.plus_seconds(3_600), ..stored(format!("{day}+")) });
        test.journal.close().await.unwrap();
        assert!(test.files().len() <= 4, "{:?}", test.files());
    }
    assert_eq!(test.ids("anna@example.org").await, ["4+", "4", "3+", "3", "2+", "2"]);
    test.clock.set(Timestamp::from_seconds(NOW + 4 * DAY + 2 * DAY + 7_200));
    assert_eq!(test.find(About::Everything).await, Found::default());
    assert_eq!(test.files(), [""; 0].map(PathBuf::from), "nothing needs to come for that");
    let test = test.reopen();
    assert_eq!(test.find(About::Everything).await, Found::default());
}

fn small() -> JournalConfig {
    JournalConfig {
        entries_max: nonzero!(100_000),
        bytes_max: nonzero!(1_048_576),
        refused_per_minute_max: nonzero!(1_000_000),
        ..JournalConfig::default()
    }
}

#[tokio::test]
async fn the_bounds_hold_and_the_oldest_go_first() {
    for config in [small(), JournalConfig { entries_max: nonzero!(1_000), ..small() }] {
        let test = TestJournal::with(config.clone());
        for number in 0..20_000 {
            match number % 2 {
                0 => test.journal.note(stored(number)),
                _ => test.journal.note(unknown(number, "x@example.org")),
            }
            if number % 50 == 49 {
                test.write().await;
                assert!(test.disk_bytes() <= config.bytes_max.get());
            }
        }
        let found = test.find(About::Everything).await.entries;
        assert!(found.len() as u64 <= config.entries_max.get());
        for (name, last) in [("anna@example.org", 19_998), ("x@example.org", 19_999)] {
            let left: Vec<u32> = test.ids(name).await.iter().map(|id| id.parse().unwrap()).collect();
            assert!(left.len() >= 400, "{}", left.len());
            let newest: Vec<u32> = (0..left.len() as u32).map(|behind| last - 2 * behind).collect();
            assert_eq!(left, newest, "no gap");
        }
        assert_eq!((test.metrics.noted.get(), test.metrics.dropped.get()), (20_000, 0));
        assert_eq!(test.metrics.bytes.get() as u64, test.disk_bytes());
    }
}

#[tokio::test]
async fn refused_messages_displace_no_entry_of_a_stored_one() {
    let test = TestJournal::with(small());
    test.journal.note(stored("kept"));
    for number in 0..50_000 {
        test.journal.note(unknown(number, "x@example.org"));
        if number % 100 == 99 {
            test.write().await;
        }
    }
    assert_eq!(test.ids("anna@example.org").await, ["kept"]);
    assert!(test.disk_bytes() <= small().bytes_max.get() / 2 + 1_000);
}

#[tokio::test]
async fn an_address_makes_few_entries_of_refused_mail() {
    let test =
        TestJournal::with(JournalConfig { refused_per_minute_max: nonzero!(5), ..JournalConfig::default() });
    for number in 0..20 {
        test.journal.note(unknown(number, "x@example.org"));
        test.journal.note(stored(number));
        test.journal
            .note(DeliveryEntry { protocol: Some(Protocol::Lmtp), ..unknown(number, "y@example.org") });
    }
    let other = DeliveryEntry { peer: Some("198.51.100.1".parse().unwrap()), ..unknown(99, "x@example.org") };
    test.journal.note(other);
    assert_eq!(test.ids("x@example.org").await.len(), 6, "five of one address and one of another");
    assert_eq!(test.ids("anna@example.org").await.len(), 20);
    assert_eq!(test.ids("y@example.org").await.len(), 20, "clients of LMTP are trusted");
    assert_eq!(test.metrics.limited.get(), 15);
}

#[tokio::test]
async fn what_comes_faster_than_it_is_written_is_dropped_and_counted() {
    let test = TestJournal::with(small());
    for number in 0..2_000 {
        test.journal.note(stored(number));
    }
    let found = test.ids("anna@example.org").await;
    assert_eq!(found.last().map(String::as_str), Some("0"));
    assert_eq!(test.metrics.noted.get(), found.len() as u64);
    assert_eq!(test.metrics.dropped.get(), 2_000 - found.len() as u64);
    assert!(found.len() < 1_000, "{}", found.len());
}

#[tokio::test]
async fn the_writer_writes_by_itself() {
    let test = TestJournal::new();
    let writer = tokio::spawn(test.journal.clone().run());
    test.journal.note(stored(1));
    while test.metrics.noted.get() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    writer.abort();
    assert_eq!(test.files().len(), 1);
}

#[tokio::test]
async fn an_account_is_erased_with_what_was_refused_for_its_address() {
    let test = TestJournal::with(JournalConfig { days: 30, ..JournalConfig::default() });
    for day in 0..4 {
        let time = Timestamp::from_seconds(NOW - day * DAY);
        let carol = Some((AccountId(102), "carol@example.org".to_owned()));
        test.journal.note(DeliveryEntry { time, ..stored(format!("anna {day}")) });
        test.journal.note(DeliveryEntry {
            time,
            recipient: "carol@example.org".to_owned(),
            account: carol.clone(),
            sender: "Anna@example.org".to_owned(),
            ..stored(format!("carol {day}"))
        });
        test.journal.note(DeliveryEntry { time, ..unknown("refused", "Anna@example.org") });
        test.journal.note(DeliveryEntry { time, ..unknown("other", "dave@example.org") });
        test.journal.note(DeliveryEntry {
            time,
            account: Some((AccountId(100), "anna@example.org".to_owned())),
            ..unknown("full", "info@example.org")
        });
        test.journal.close().await.unwrap();
    }
    test.journal.note(stored("pending"));
    let erased = test.journal.erase(AccountId(100), "Anna@Example.org").await.unwrap();
    assert_eq!(erased, 4 * 3 + 1);
    let test = test.reopen();
    let left = test.find(About::Everything).await.entries;
    assert_eq!(left.len(), 8);
    assert!(left.iter().all(|entry| entry.account.as_ref().is_none_or(|(account, _)| account.0 == 102)));
    assert_eq!(test.ids("dave@example.org").await.len(), 4);
    for file in test.files() {
        let bytes = fs::read(&file).unwrap();
        let has_anna = |bytes: &[u8]| bytes.windows(16).any(|part| part == b"anna@example.org");
        assert!(!has_anna(&bytes), "{}", file.display());
    }
    assert_eq!(test.journal.erase(AccountId(100), "anna@example.org").await.unwrap(), 0);
    test.journal.note(stored("later"));
    assert_eq!(test.ids("anna@example.org").await.first().map(String::as_str), Some("later"));
}

/// A journal on a disk that fails at one step.
fn on_failing(folder: &TempDir, plan: &Arc<FailurePlan>) -> DeliveryJournal {
    let disk = Arc::new(FailingDisk::new(folder.path(), plan.clone()));
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(NOW)));
    DeliveryJournal::on(disk, None, JournalConfig::default(), clock, JournalMetrics::default())
}

#[tokio::test]
async fn a_disk_that_fails_costs_entries_and_nothing_else() {
    for step in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let plan = FailurePlan::none();
        let journal = on_failing(&folder, &plan);
        journal.note(stored("before"));
        journal.close().await.unwrap();
        plan.fail_at(step, InjectedFailure::FailsHalfway);
        journal.note(stored("lost?"));
        journal.note(unknown("lost?", "x@example.org"));
        let _ = journal.close().await;
        let _ = journal.erase(AccountId(7), "nobody@example.org").await;
        journal
            .note(DeliveryEntry { account: Some((AccountId(7), "seven@example.org".into())), ..stored("7") });
        let erased = journal.erase(AccountId(7), "seven@example.org").await;
        let is_reached = !plan.failed().is_empty();
        plan.clear();
        if erased.is_ok() {
            assert_eq!(find(&journal, About::Account(AccountId(7)), 10).await.entries, [], "{step}");
        }
        journal.note(stored("after"));
        for journal in [journal, on_failing(&folder, &plan)] {
            let found = ids(&find(&journal, About::Account(AccountId(100)), 10).await);
            assert_eq!(found.first().map(String::as_str), Some("after"), "{step}");
            assert_eq!(found.last().map(String::as_str), Some("before"), "{step}");
            journal.close().await.unwrap();
        }
        if !is_reached {
            assert!(step > 5, "{step}");
            return;
        }
    }
}

#[tokio::test]
async fn a_full_disk_loses_entries_until_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let plan = FailurePlan::none();
    let journal = on_failing(&folder, &plan);
    journal.note(stored("before"));
    journal.close().await.unwrap();
    plan.limit(0);
    for _ in 0..100 {
        journal.note(stored("lost")); // more than fits into the block that the file has
    }
    assert_eq!(journal.close().await.unwrap_err().kind(), ErrorKind::Full);
    plan.limit(1 << 20);
    journal.note(stored("after"));
    assert_eq!(ids(&find(&journal, About::Everything, 10).await), ["after", "before"]);
}

/// A file of an earlier version with one entry, byte by byte: `docs/formats/journal.md`.
fn of_version(version: u8) -> Vec<u8> {
    let mut body = (NOW * 1_000_000_000).to_le_bytes().to_vec();
    body.extend([32 | 2 | 4 | 8, 4]); // submission, TLS, an account, IPv4; queued
    body.extend(0_u16.to_le_bytes());
    body.extend(100_u32.to_le_bytes());
    body.extend(0_u64.to_le_bytes());
    body.extend(77_u64.to_le_bytes());
    body.extend([192, 0, 2, 1]);
    for text in ["laptop", "anna@example.org", "bob@example.net", "anna@example.org", "5-1", "1@x", "", ""] {
        body.extend((text.len() as u16).to_le_bytes());
        body.extend(text.as_bytes());
    }
    let mut file = [&b"RSTNTJNL"[..], &[version, 0, 0, 0]].concat();
    file.extend(crc32c::crc32c(&file).to_le_bytes());
    file.extend((body.len() as u32).to_le_bytes());
    file.extend(crc32c::crc32c(&body).to_le_bytes());
    file.extend(body);
    file
}

#[tokio::test]
async fn files_of_earlier_versions_are_read_and_not_appended_to() {
    for version in [1, 2] {
        let [entry] = &read(&of_version(version))[..] else { panic!() };
        assert_eq!(
            (entry.protocol, entry.is_tls, &entry.outcome),
            (Some(Protocol::Submission), true, &Outcome::Queued)
        );
        assert_eq!(
            (entry.bytes, entry.recipient.as_str(), entry.message_id.as_deref()),
            (77, "bob@example.net", Some("1@x"))
        );
        let test = TestJournal::new();
        fs::write(test.folder.path().join("stored-00000001"), of_version(version)).unwrap();
        let test = test.reopen();
        test.journal.note(stored("new"));
        test.journal.close().await.unwrap();
        assert_eq!(fs::read(test.folder.path().join("stored-00000001")).unwrap(), of_version(version));
        assert_eq!(test.ids("bob@example.net").await, ["new", "5-1"]);
    }
}

#[tokio::test]
async fn jrn1_what_was_sent_outlives_what_is_tried_again_and_again() {
    let test = TestJournal::with(small());
    let reply = |code| NotedReply { code, status: "4.4.1".into(), reason: "no server".into() };
    let of = |id: &str, outcome| DeliveryEntry { protocol: None, peer: None, outcome, ..stored(id) };
    test.journal.note(of("sent", Outcome::Sent(reply(250))));
    test.journal.note(of("failed", Outcome::Failed(reply(550))));
    for _ in 0..40 {
        for number in 0..100 {
            test.journal.note(of(&number.to_string(), Outcome::Postponed(reply(451))));
        }
        test.write().await;
    }
    let found = test.ids("bob@example.net").await;
    assert!(found.contains(&"sent".to_owned()) && found.contains(&"failed".to_owned()));
    assert!(found.len() < 4_000, "the oldest of them are gone: {}", found.len());
}

#[test]
fn settings_that_can_not_work_are_named() {
    let default = JournalConfig::default();
    assert_eq!(default.problem(), None);
    let problem = |config: JournalConfig| config.problem().map(|(setting, _)| setting);
    assert_eq!(problem(JournalConfig { entries_max: nonzero!(999), ..default.clone() }), Some("entries_max"));
    assert_eq!(problem(JournalConfig { bytes_max: nonzero!(1_000), ..default }), Some("bytes_max"));
}

#[tokio::test]
async fn jrn4_releases_and_drops_outlive_refused_mail_and_restarts() {
    let test = TestJournal::with(small());
    let of = |id: &str, outcome| DeliveryEntry { outcome, ..stored(id) };
    let reply = NotedReply {
        code: 550,
        status: "5.1.1".into(),
        reason: "no such user here; released by anna".into(),
    };
    let noted = [
        of("released", Outcome::Released { email: Some(RecordId(7)), by: "anna".into() }),
        of("failed", Outcome::NotReleased(reply)),
        of("dropped", Outcome::Dropped("bert".into())),
    ];
    noted.iter().for_each(|entry| test.journal.note(entry.clone()));
    for number in 0..400 {
        test.journal.note(unknown(number, "x@example.org"));
        test.write().await;
    }
    test.journal.close().await.unwrap();
    let test = test.reopen();
    let found = test.find(About::Account(AccountId(100))).await.entries;
    assert_eq!(found.len(), 3);
    for entry in noted {
        assert!(found.contains(&entry), "{entry:?}");
    }
}
