//! Every file of an archive is truncated, emptied, removed, or has one byte flipped, at random: a check finds exactly the lost
//! messages, opening serves all others and removes nothing.
//!
//! `RESTANTE_TEST_DAMAGES=1000` flips this many bytes in each file, and truncates it to a fifth as many lengths; 5 by default.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::{
    collections::BTreeSet,
    fs,
    ops::Range,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use common::{OwnedRow, message, sorted, walk};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use restante_archive::{Config, LogConfig, Message, Opened, Query, Report, open};
use restante_core::{Key, MessageHash, NANOS_PER_SECOND, Timestamp, nonzero};

const WINDOWS: i64 = 10;
const LOG_HEADER_BYTES: usize = 64;
/// Bytes of a record's length and checksum, which come before the bytes that the length counts.
const FRAME_BYTES: usize = 8;

/// What happens to a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Cut(usize),
    Removed,
    /// The log and its index.
    PairRemoved,
    Flipped {
        at: usize,
        bit: u8,
    },
}

/// A file of the archive, sound.
struct File {
    name: String,
    bytes: Vec<u8>,
}

/// A record of a log.
enum Record {
    Definition(u32),
    Message(u32, Key),
}

impl File {
    fn is_log(&self) -> bool {
        self.name.ends_with(".log")
    }

    /// The records of a log and their byte ranges.
    fn records(&self) -> Vec<(Range<usize>, Record)> {
        let u32_at = |at: usize| u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap());
        let mut records = Vec::new();
        let mut at = LOG_HEADER_BYTES;
        while at < self.bytes.len() {
            let end = at + FRAME_BYTES + u32_at(at) as usize;
            let field = u32_at(at + FRAME_BYTES);
            let record = if field >> 31 == 1 {
                Record::Definition(field & !(1 << 31))
            } else {
                let timestamp = i64::from_le_bytes(self.bytes[at + 12..at + 20].try_into().unwrap());
                let message_hash = MessageHash(self.bytes[at + 20..at + 52].try_into().unwrap());
                Record::Message(field, Key { timestamp: Timestamp(timestamp), message_hash })
            };
            records.push((at..end, record));
            at = end;
        }
        records
    }

    /// The messages that are lost by this damage.
    fn lost(&self, damage: Damage, is_sealed: bool) -> BTreeSet<Key> {
        let records = self.records();
        let hit = |at: usize| records.iter().find(|(range, _)| range.contains(&at)).map(|(_, record)| record);
        let is_lost = |range: &Range<usize>, topic: u32, key: Key| match damage {
            Damage::Cut(len) => range.end > len,
            Damage::Removed | Damage::PairRemoved => true,
            Damage::Flipped { at, .. } => match hit(at) {
                Some(Record::Message(_, hit)) => *hit == key,
                // The index of a sealed log has the names, too.
                Some(Record::Definition(hit)) => !is_sealed && *hit == topic,
                None => false,
            },
        };
        let lost = records.iter().filter_map(|(range, record)| match record {
            Record::Message(topic, key) => is_lost(range, *topic, *key).then_some(*key),
            Record::Definition(_) => None,
        });
        lost.collect()
    }
}

/// A sound archive: thirty sealed segments and more over ten windows, and some that are open.
struct Archive {
    folder: tempfile::TempDir,
    files: Vec<File>,
    messages: Vec<Message>,
}

fn config(folder: &Path, read_only: bool) -> Config {
    let log = LogConfig {
        window_seconds: nonzero!(1),
        segment_messages: nonzero!(8),
        open_segments: nonzero!(3),
        ..LogConfig::default()
    };
    let url = format!("log:{}", folder.display()).parse().unwrap();
    Config { log, read_only, ..Config::new(url) }
}

impl Archive {
    async fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let folder = tempfile::tempdir().unwrap();
        let opened = open(config(folder.path(), false)).await.unwrap();
        let mut messages = Vec::new();
        let mut add = |window: i64, n: i64| {
            let mut message =
                message(window * NANOS_PER_SECOND + n, 1, ["a", "b", "c"][random.random_range(0..3)]);
            let padding = "x".repeat(random.random_range(0..300));
            message.body = [&message.body[..], padding.as_bytes()].concat().into();
            messages.push(message.clone());
            message
        };
        for window in 0..WINDOWS {
            for n in 0..20 {
                opened.archive.append(vec![add(window, n)]).await.unwrap();
            }
        }
        for n in 100..102 {
            for late in [0, 3, 6, 1, 4] {
                opened.archive.append(vec![add(late, n)]).await.unwrap();
            }
        }
        opened.upkeep.close().await.unwrap();
        let entries = fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
        let mut files: Vec<File> = entries
            .map(|entry| File {
                name: entry.file_name().into_string().unwrap(),
                bytes: fs::read(entry.path()).unwrap(),
            })
            .collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Self { folder, files, messages }
    }

    fn is_sealed(&self, log: &str) -> bool {
        let index = log.replace(".log", ".idx");
        self.files.iter().any(|file| file.name == index)
    }

    /// A copy of the archive with this damage; returns the damaged file's bytes, if it still exists.
    fn damaged(&self, file: &File, damage: Damage, to: &Path) -> Option<Vec<u8>> {
        for other in self.files.iter().filter(|other| other.name != file.name && other.name != "LOCK") {
            let is_of_pair = other.name == file.name.replace(".log", ".idx");
            if !(is_of_pair && matches!(damage, Damage::PairRemoved)) {
                fs::hard_link(self.folder.path().join(&other.name), to.join(&other.name)).unwrap();
            }
        }
        let mut bytes = file.bytes.clone();
        match damage {
            Damage::Removed | Damage::PairRemoved => return None,
            Damage::Cut(len) => bytes.truncate(len),
            Damage::Flipped { at, bit } => bytes[at] ^= 1 << bit,
        }
        fs::write(to.join(&file.name), &bytes).unwrap();
        Some(bytes)
    }

    async fn check(&self, file: &File, damage: Damage) {
        let folder = tempfile::tempdir().unwrap();
        let what = format!("{}: {damage:?}", file.name);
        let damaged = self.damaged(file, damage, folder.path());
        let lost = match file.is_log() {
            true => file.lost(damage, self.is_sealed(&file.name)),
            false => BTreeSet::new(),
        };
        let left: Vec<Message> =
            self.messages.iter().filter(|message| !lost.contains(&message.key())).cloned().collect();
        let left = sorted(&left);

        let reader = open(config(folder.path(), true)).await.unwrap();
        assert_lost(&reader, lost.len(), &what).await;
        assert!(served(&reader).await == left, "{what}: a reader serves something else");
        // Another start finds what the first has left; for the many flips a sample is enough.
        let starts = if matches!(damage, Damage::Flipped { at, .. } if at % 8 != 0) { 1 } else { 2 };
        for start in 1..=starts {
            let opened = open(config(folder.path(), false)).await.unwrap();
            assert!(served(&opened).await == left, "{what}: start {start} serves something else");
            assert_lost(&opened, lost.len(), &what).await;
            opened.upkeep.close().await.unwrap();
        }
        // The list is updated to what exists, and the lock file is not part of a segment.
        if let Some(bytes) = damaged.filter(|_| file.name.starts_with("00")) {
            let entries = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
            let mut kept = entries
                .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&file.name))
                .map(|path| fs::read(path).unwrap());
            assert!(kept.any(|kept| kept == bytes), "{what}: the damaged file is gone");
        }
    }
}

async fn served(opened: &Opened) -> Vec<OwnedRow> {
    walk(&*opened.archive, Query { limit: 1_000, ..Query::default() }).await.concat()
}

/// The messages in the findings must add up to what the report counts.
async fn assert_lost(opened: &Opened, lost: usize, what: &str) {
    let report: Report = opened.upkeep.check(&|_, _| {}).await.unwrap();
    let number = |what: &str| what.strip_prefix("LOST DATA: ")?.split(' ').next()?.parse::<u64>().ok();
    let named: u64 = report.findings.iter().filter_map(|finding| number(&finding.what)).sum();
    assert_eq!((report.lost, named), (lost as u64, lost as u64), "{what}: {report:?}");
}

/// All damage that is tried, in an order that is the same for the same seed.
fn damages(archive: &Archive, flips: usize, random: &mut impl Rng) -> Vec<(usize, Damage)> {
    let mut damages = Vec::new();
    for (number, file) in archive.files.iter().enumerate() {
        let len = file.bytes.len();
        damages.extend([(number, Damage::Removed), (number, Damage::Cut(0))]);
        if file.is_log() {
            damages.push((number, Damage::PairRemoved));
        }
        if len > 0 {
            for _ in 0..flips.div_ceil(5) {
                damages.push((number, Damage::Cut(random.random_range(0..len))));
            }
            for _ in 0..flips {
                let (at, bit) = (random.random_range(0..len), random.random_range(0..8));
                damages.push((number, Damage::Flipped { at, bit }));
            }
        }
    }
    damages
}

#[test]
fn whatever_happens_to_a_file_the_check_counts_what_is_lost_and_the_rest_is_served() {
    let flips = std::env::var("RESTANTE_TEST_DAMAGES").ok().and_then(|flips| flips.parse().ok()).unwrap_or(5);
    let seed = 7;
    println!("seed {seed}, {flips} flips for each file");
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let archive = runtime().block_on(Archive::new(seed));
    let sealed = archive.files.iter().filter(|file| file.name.ends_with(".idx")).count();
    assert!(sealed >= 30, "{sealed} segments are sealed");
    let damages = damages(&archive, flips, &mut ChaCha8Rng::seed_from_u64(seed));
    println!("{} files, {sealed} sealed segments, {} damages", archive.files.len(), damages.len());
    let next = AtomicUsize::new(0);
    let lossy = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let runtime = runtime();
                while let Some((file, damage)) = damages.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let file = &archive.files[*file];
                    runtime.block_on(archive.check(file, *damage));
                    let has_lost =
                        file.is_log() && !file.lost(*damage, archive.is_sealed(&file.name)).is_empty();
                    *lossy.lock().unwrap() += usize::from(has_lost);
                }
            });
        }
    });
    let lossy = lossy.into_inner().unwrap();
    println!("{lossy} of them lost messages");
    assert!(lossy > damages.len() / 5, "the damages hit messages");
}
