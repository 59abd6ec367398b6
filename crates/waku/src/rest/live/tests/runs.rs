//! Random runs: messages arrive in both ways before, while and after a stream begins, and what it sends is compared with what it
//! must send.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use restante_archive::{Appended, Archive, Config, Error, Message, Opened, Page, Query, open};

use super::*;
use crate::{WakuConfig, rest::tests::start_door, validate::Rules};

const RUNS: u64 = 1_000;
const TOPICS: [&str; 4] = ["/toy/1/chat/proto", "/toy/1/news/proto", "/toy/2/chat/proto", "/else/1/x/proto"];

/// An archive whose queries take some time, and let other tasks run meanwhile.
struct Dawdling {
    inner: Arc<dyn Archive>,
    random: Mutex<StdRng>,
    turns_max: usize,
    refused: Arc<Refused>,
}

/// Messages whose next append is refused.
type Refused = Mutex<BTreeSet<MessageHash>>;

impl Dawdling {
    async fn dawdle(&self) {
        let turns = self.random.lock().random_range(0..=self.turns_max);
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl Archive for Dawdling {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        self.dawdle().await;
        if let [message] = &*messages
            && self.refused.lock().remove(&message.message_hash)
        {
            return Err(Error::unavailable("refused once"));
        }
        let answer = self.inner.append(messages).await;
        self.dawdle().await;
        answer
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        self.dawdle().await;
        let answer = self.inner.query(query).await;
        self.dawdle().await;
        answer
    }
}

/// A message of a run, and what happened to it.
#[derive(Clone, Debug)]
struct Sent {
    key: Key,
    is_wanted: bool,
    is_ephemeral: bool,
    /// It was sent before the stream was requested, had arrived by then, and was not sent again.
    is_before: bool,
    /// It was sent only after the stream had begun.
    is_after: bool,
    /// How often the archive did not accept it: it may have been announced each time.
    refusals: usize,
}

/// One run.
struct Run {
    door: Door,
    app: Arc<App>,
    random: Mutex<StdRng>,
    sent: Mutex<BTreeMap<MessageHash, Sent>>,
    wires: Mutex<Vec<(Bytes, MessageHash)>>,
    is_asked: AtomicBool,
    has_begun: AtomicBool,
    publishing: AtomicUsize,
    wanted: IsWanted,
    /// Messages that are announced and then refused once; only in runs in which nothing is dropped, where the result is exact.
    refused: Option<Arc<Refused>>,
}

/// Whether a stream wants a topic.
type IsWanted = fn(&str) -> bool;

/// What the streams of runs request, and which topics that is.
const WANTED: [(&str, IsWanted); 4] = [
    ("", |_| true),
    ("contentTopics=/toy/1/chat/proto,/else/1/x/proto", |topic| {
        topic == "/toy/1/chat/proto" || topic == "/else/1/x/proto"
    }),
    ("contentTopicPrefix=/toy/1/", |topic| topic.starts_with("/toy/1/")),
    ("contentTopicPrefix=/toy/2/&contentTopics=/toy/1/news/proto", |topic| {
        topic.starts_with("/toy/2/") || topic == "/toy/1/news/proto"
    }),
];

impl Run {
    /// Sends messages in both ways, some of them twice, with pauses between.
    async fn publish(self: Arc<Self>, messages: usize, publisher: usize) {
        for number in 0..messages {
            let (turns, is_again) = {
                let mut random = self.random.lock();
                (random.random_range(0..4), random.random_range(0..6) == 0)
            };
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            let again = if is_again { self.any_sent() } else { None };
            let (wire, hash) = again.unwrap_or_else(|| self.make(&format!("{publisher}-{number}")));
            self.send(wire, hash).await;
        }
        self.publishing.fetch_sub(1, Ordering::SeqCst);
    }

    fn any_sent(&self) -> Option<(Bytes, MessageHash)> {
        let wires = self.wires.lock();
        (!wires.is_empty()).then(|| wires[self.random.lock().random_range(0..wires.len())].clone())
    }

    /// A message with one of a few times within the window, so that many are equal.
    fn make(&self, payload: &str) -> (Bytes, MessageHash) {
        let mut random = self.random.lock();
        let timestamp = NOW.plus_seconds(random.random_range(-4..=4) * 5);
        let topic = TOPICS[random.random_range(0..TOPICS.len())];
        let is_ephemeral = random.random_range(0..12) == 0;
        drop(random);
        let (wire, message_hash) = message_with(topic, payload, timestamp, is_ephemeral);
        let sent = Sent {
            key: Key { timestamp, message_hash },
            is_wanted: (self.wanted)(topic),
            is_ephemeral,
            is_before: false,
            is_after: self.has_begun.load(Ordering::SeqCst),
            refusals: 0,
        };
        self.sent.lock().insert(message_hash, sent);
        self.wires.lock().push((wire.clone(), message_hash));
        (wire, message_hash)
    }

    async fn send(&self, wire: Bytes, hash: MessageHash) {
        let intake = &self.door.waku.intake;
        if self.random.lock().random_range(0..2) == 0 {
            intake.take_relayed(PUBSUB, wire);
        } else {
            let refused = self.refused.as_ref().filter(|_| self.random.lock().random_range(0..5) == 0);
            if let Some(refused) = refused {
                refused.lock().insert(hash);
                self.sent.lock().get_mut(&hash).unwrap().refusals += 1;
            }
            // A refused client sends the message again, some time later.
            while intake.publish(PUBSUB, wire.clone()).await.is_err() {
                let pause = self.random.lock().random_range(0..20);
                for _ in 0..pause {
                    tokio::task::yield_now().await;
                }
            }
        }
        // A message that is sent again is delivered if nobody was there to receive it before.
        if let Some(sent) = self.sent.lock().get_mut(&hash) {
            sent.is_before = !self.is_asked.load(Ordering::SeqCst);
        }
    }

    /// Fills the archive, and returns the keys of its messages.
    async fn history(&self) -> Vec<Key> {
        let count = self.random.lock().random_range(0..30);
        let mut messages = Vec::new();
        for number in 0..count {
            let seconds = -self.random.lock().random_range(0..20) * 7;
            let topic = TOPICS[self.random.lock().random_range(0..TOPICS.len())];
            let timestamp = NOW.plus_seconds(seconds);
            let (body, message_hash) = message(topic, &format!("history-{number}"), timestamp);
            let key = Key { timestamp, message_hash };
            let is_wanted = (self.wanted)(topic);
            let (is_ephemeral, is_before, is_after, refusals) = (false, true, false, 0);
            let sent = Sent { key, is_wanted, is_ephemeral, is_before, is_after, refusals };
            self.sent.lock().insert(message_hash, sent);
            messages.push(Message {
                message_hash,
                channel: PUBSUB.into(),
                topic: topic.into(),
                timestamp,
                body,
            });
        }
        let keys = messages.iter().map(Message::key).collect();
        self.door.archive.append(messages).await.unwrap();
        keys
    }

    /// A cursor in one of its forms, and the key after which its stream begins.
    fn cursor(&self, history: &[Key]) -> (String, Key) {
        let mut random = self.random.lock();
        if history.is_empty() || random.random_range(0..4) == 0 {
            let start = NOW.plus_seconds(random.random_range(-100..=10));
            let before = Key { timestamp: Timestamp(start.nanos() - 1), message_hash: MessageHash::MAX };
            return (format!("start={}", start.nanos()), before);
        }
        let key = history[random.random_range(0..history.len())];
        if random.random_range(0..2) == 0 {
            return (format!("cursor={}", key.message_hash), key);
        }
        let mut text = Vec::new();
        ask::write_cursor(key, &mut text);
        (format!("cursor={}", String::from_utf8(text).unwrap()), key)
    }
}

/// Starts a run over an archive.
async fn start(seed: u64, opened: Opened) -> (Arc<Run>, &'static str) {
    let mut random = StdRng::seed_from_u64(seed);
    let refused = Arc::new(Refused::default());
    let archive = Arc::new(Dawdling {
        refused: refused.clone(),
        inner: opened.archive,
        random: Mutex::new(StdRng::seed_from_u64(seed ^ 0xa5a5)),
        turns_max: random.random_range(0..12),
    });
    let takes_any = random.random_range(0..4) == 0;
    let window = if takes_any { 0 } else { 20 };
    let rules = Rules { timestamp_window_seconds: window, ..Rules::default() };
    let config = RestConfig::default();
    let waku = WakuConfig { rules, ..WakuConfig::default() };
    let door = start_door(archive, opened.upkeep, config, waku).await;
    let has_refusals = seed.is_multiple_of(4);
    let pages = Pages {
        rows_first: random.random_range(1..4),
        rows_max: random.random_range(4..20),
        chunk_bytes: random.random_range(1..4_000),
        held_max: if has_refusals { usize::MAX } else { random.random_range(0..6) },
    };
    let app = App::new(door.rest.clone());
    let app = Arc::new(App { live: Bounds { pages, ..Bounds::of(&RestConfig::default()) }, ..app });
    let (query, wanted) = WANTED[random.random_range(0..WANTED.len())];
    let run = Run {
        door,
        app,
        random: Mutex::new(random),
        sent: Mutex::default(),
        wires: Mutex::default(),
        is_asked: AtomicBool::new(false),
        has_begun: AtomicBool::new(false),
        publishing: AtomicUsize::new(0),
        wanted,
        refused: has_refusals.then_some(refused),
    };
    (Arc::new(run), query)
}

/// One run, from its seed alone.
async fn run(seed: u64, opened: Opened) {
    let (run, query) = start(seed, opened).await;
    let history = run.history().await;
    let (from, behind) = run.cursor(&history);
    for publisher in 0..3 {
        run.publishing.fetch_add(1, Ordering::SeqCst);
        let messages = run.random.lock().random_range(0..40);
        tokio::spawn(run.clone().publish(messages, publisher));
    }
    let pause = run.random.lock().random_range(0..60);
    for _ in 0..pause {
        tokio::task::yield_now().await;
    }
    run.is_asked.store(true, Ordering::SeqCst);
    let mut stream = open_feed(&run.app, &format!("{query}&{from}"), 7_000).await.ok().unwrap();
    run.has_begun.store(true, Ordering::SeqCst);

    let mut given: HashMap<MessageHash, usize> = HashMap::new();
    let (mut is_live, mut last) = (false, None);
    loop {
        // The last message is sent after all others, when the stream is live: nothing follows it.
        let is_quiet = run.publishing.load(Ordering::SeqCst) == 0;
        if is_live && is_quiet && last.is_none() {
            let topic = TOPICS.into_iter().find(|topic| (run.wanted)(topic)).unwrap();
            let (wire, hash) = message(topic, "last", NOW);
            run.door.waku.intake.publish(PUBSUB, wire).await.unwrap();
            last = Some(hash);
        }
        let piece = tokio::select! {
            piece = next(&mut stream) => piece,
            () = tokio::task::yield_now(), if last.is_none() => continue,
        };
        match piece {
            Piece::Live(_) => {
                assert!(!is_live, "seed {seed}: announced twice that it is live");
                is_live = true;
            }
            Piece::Messages(items) => {
                items.iter().for_each(|item| *given.entry(hash_of(item)).or_default() += 1)
            }
            Piece::End(end) => panic!("seed {seed}: ended: {end:?}"),
        }
        if let Some(last) = last
            && given.remove(&last).is_some()
        {
            break;
        }
    }
    judge(seed, &run.sent.lock(), behind, &given);
}

/// What was sent must be what was requested, each message once; refused ones may have been sent once per attempt.
fn judge(seed: u64, sent: &BTreeMap<MessageHash, Sent>, behind: Key, given: &HashMap<MessageHash, usize>) {
    let most = |hash| 1 + sent.get(hash).map_or(0, |one| one.refusals);
    let repeated: Vec<_> = given.iter().filter(|(hash, count)| **count > most(hash)).collect();
    assert!(repeated.is_empty(), "seed {seed}: given twice: {repeated:?}");
    let given: BTreeSet<&MessageHash> = given.keys().collect();
    for (hash, one) in sent {
        let is_behind = one.key > behind;
        let must = one.is_wanted && ((is_behind && !one.is_ephemeral) || one.is_after);
        // What arrives while the stream begins is sent if it is early enough, regardless of its key.
        let may = one.is_wanted && (must || !one.is_before);
        assert!(!must || given.contains(hash), "seed {seed}: missing: {one:?}");
        assert!(may || !given.contains(hash), "seed {seed}: too much: {one:?}");
    }
    assert!(given.iter().all(|hash| sent.contains_key(hash)), "seed {seed}: unknown messages");
}

/// The seeds of the runs; `RESTANTE_TEST_SEED` sets the first one.
fn seeds() -> impl Iterator<Item = u64> {
    let first = std::env::var("RESTANTE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    first..first + RUNS
}

#[tokio::test]
async fn a_thousand_streams_give_everything_since_their_cursor_once() {
    for seed in seeds() {
        run(seed, crate::rest::tests::memory().await).await;
    }
}

/// The same over the engine that servers use, and on several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_over_the_log_engine_do_so_too() {
    for seed in seeds().take(5) {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("log:{}", folder.path().display()).parse().unwrap();
        let opened = open(Config::new(url)).await.unwrap();
        let upkeep = opened.upkeep.clone();
        run(seed, opened).await;
        upkeep.close().await.unwrap();
    }
}
