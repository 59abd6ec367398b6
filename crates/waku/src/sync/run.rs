//! One run with one peer.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use restante_archive::{Appended, Message, Query, Walk};
use restante_core::{MessageHash, Timestamp};
use restante_waku_wire::{
    PubsubTopic, WakuMessageView,
    rpc::store::{KeyValue, StoreQueryRequest, StoreQueryResponse},
};
use tokio::{
    task::JoinError,
    time::{sleep, timeout},
};
use tracing::debug;

use super::{Shared, StorePeer, metrics::RunResult, window::Window};
use crate::{
    intake::IntakeError,
    large,
    node::{AskError, ConnectError},
    store::{PAGE_ROWS_MAX, StoreClientError, TOO_MANY_REQUESTS, hash_of},
    validate::{Rules, validate},
};

/// A slice of time has so many pages at most: about 2,200 messages a second. It ends pages that go round in a circle, too.
pub(super) const SLICE_PAGES_MAX: usize = 20_000;
/// The messages of one answer are no longer than this, unless a single one is.
const FETCH_BYTES_MAX: usize = 16 << 20;
/// A peer may fail to give so many of the messages whose hashes it told, because its retention removed them meanwhile. One
/// with more has its run ended.
const WRONG_MAX: u64 = 1_000;
/// A peer that says that it is asked too often is asked again after this, so many times for one page.
const TOO_OFTEN_PAUSE: Duration = Duration::from_secs(1);
const TOO_OFTEN_MAX: usize = 30;
/// How long to wait for a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(30);

/// Why a run was ended before it was done.
#[derive(Debug, thiserror::Error)]
pub(super) enum SyncError {
    #[error("the peer is away: {0}")]
    Connect(#[from] ConnectError),
    #[error("the peer is away: no connection in time")]
    ConnectTimedOut,
    #[error(transparent)]
    Ask(#[from] StoreClientError),
    #[error("the peer's answers make no sense: {0}")]
    Wrong(&'static str),
    #[error("the peer does not give the messages whose hashes it tells")]
    NotGiven,
    #[error("the peer's messages could not be looked at: {0}")]
    Judge(#[from] JoinError),
    #[error("the peer says that it is asked too often")]
    TooOften,
    #[error("its answer is longer than the messages that were asked for may be")]
    TooLong,
    #[error("the own archive failed: {0}")]
    Archive(#[from] restante_archive::Error),
    #[error(transparent)]
    Intake(#[from] IntakeError),
    #[error("there is more than a run has time for")]
    TimedOut,
}

impl SyncError {
    pub(super) fn result(&self) -> RunResult {
        match self {
            Self::Connect(_) | Self::ConnectTimedOut | Self::Ask(StoreClientError::Ask(_)) => RunResult::Away,
            Self::Ask(StoreClientError::Refused { .. }) | Self::TooOften => RunResult::Refused,
            Self::Ask(StoreClientError::Malformed(_))
            | Self::Wrong(_)
            | Self::NotGiven
            | Self::Judge(_)
            | Self::TooLong => RunResult::Wrong,
            Self::Archive(_) | Self::Intake(_) => RunResult::Archive,
            Self::TimedOut => RunResult::Unfinished,
        }
    }

    /// Whether the next run goes on where this one has stopped. What the peer refused, or answered with nonsense, may be the
    /// place itself: it may have removed the message that is the cursor.
    pub(super) fn keeps_place(&self) -> bool {
        match self {
            Self::Ask(StoreClientError::Refused { .. } | StoreClientError::Malformed(_)) => false,
            Self::Wrong(_) | Self::Judge(_) | Self::TooLong => false,
            Self::Connect(_) | Self::ConnectTimedOut | Self::Ask(StoreClientError::Ask(_)) => true,
            Self::TooOften | Self::NotGiven | Self::TimedOut => true,
            Self::Archive(_) | Self::Intake(_) => true,
        }
    }
}

/// Where a run has come to. It is always one from which another run can go on: a wanted message is wanted until it is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// What is left of the run's window, from the start of the slice that is walked.
    pub(super) rest: Window,
    /// Which of the pubsub topics is walked in that slice.
    pub(super) topic: usize,
    /// How many pages of it were walked, and behind which message the next begins.
    pub(super) pages: usize,
    pub(super) cursor: Option<Bytes>,
    /// Messages of the pages before that the own archive lacks, and that were not fetched yet.
    pub(super) wanted: BTreeSet<MessageHash>,
}

impl Place {
    pub(super) fn at_start_of(rest: Window, topic: usize) -> Self {
        Self { rest, topic, pages: 0, cursor: None, wanted: BTreeSet::new() }
    }
}

/// A run and what it has done so far.
pub(super) struct Run<'r> {
    shared: &'r Shared,
    peer: &'r StorePeer,
    /// What this node takes, of any age.
    rules: Arc<Rules>,
    /// Where it is; at first where the run before has stopped, if that was in its middle.
    pub(super) place: Place,
    /// How many messages are asked for at once, so that the answer is bounded; fewer while one of them is too long.
    fetch_rows: usize,
    fetch_rows_max: usize,
    /// Hashes that were looked up in the own archive.
    pub(super) hashes: u64,
    /// Messages that were new.
    pub(super) messages: u64,
    /// Messages that the peer did not give, or whose hash is another one than it told.
    pub(super) wrong: u64,
}

impl<'r> Run<'r> {
    pub(super) fn new(shared: &'r Shared, peer: &'r StorePeer) -> Self {
        let rules = Rules { timestamp_window_seconds: 0, ..shared.intake.rules().clone() };
        let fetch_rows = FETCH_BYTES_MAX / rules.max_message_bytes.max(1);
        let fetch_rows = fetch_rows.clamp(1, PAGE_ROWS_MAX as usize);
        let place = std::mem::take(&mut peer.state.lock().place);
        Self {
            shared,
            peer,
            rules: Arc::new(rules),
            place,
            fetch_rows,
            fetch_rows_max: fetch_rows,
            hashes: 0,
            messages: 0,
            wrong: 0,
        }
    }

    pub(super) async fn go(&mut self) -> Result<(), SyncError> {
        self.connect().await?;
        self.begin().await?;
        let pubsub_topics = pubsub_topics(&self.rules);
        while let Some(slice) = self.place.rest.slices().next() {
            while let Some(pubsub_topic) = pubsub_topics.get(self.place.topic) {
                self.walk(pubsub_topic.clone(), slice).await?;
                self.place = Place::at_start_of(self.place.rest, self.place.topic + 1);
            }
            self.place = Place::at_start_of(Window { start: slice.end, ..self.place.rest }, 0);
            let mut state = self.peer.state.lock();
            state.synced_until = state.synced_until.max(Some(slice.end));
        }
        Ok(())
    }

    /// Connects by the first of the peer's addresses that leads to it.
    async fn connect(&self) -> Result<(), SyncError> {
        let mut outcome = Err(SyncError::ConnectTimedOut);
        for address in &self.peer.addresses {
            outcome = match timeout(CONNECT_TIME_MAX, self.shared.node.connect(address.clone())).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => Err(error.into()),
                Err(_) => Err(SyncError::ConnectTimedOut),
            };
        }
        outcome
    }

    /// Takes up what the run before has left, or a new window. A place or a progress in the future is of a time when the clock
    /// was wrong.
    async fn begin(&mut self) -> Result<(), SyncError> {
        let now = self.shared.clock.now();
        let is_resumed = self.place.rest.slices().next().is_some() && self.place.rest.end <= now;
        let synced_until = {
            let mut state = self.peer.state.lock();
            state.synced_until = state.synced_until.filter(|until| *until <= now);
            state.synced_until
        };
        if !is_resumed {
            let floor = self.shared.floor.find(&*self.shared.archive, now).await?;
            let window = Window::next(now, synced_until, floor, &self.shared.config);
            self.place = Place::at_start_of(window, 0);
        }
        Ok(())
    }

    /// Walks the peer's pages of hashes to the end of a slice, and fetches what the own archive lacks.
    async fn walk(&mut self, pubsub_topic: Option<String>, slice: Window) -> Result<(), SyncError> {
        let mut request = hashes_request(pubsub_topic, slice);
        while self.place.pages < SLICE_PAGES_MAX {
            request.pagination_cursor = self.place.cursor.clone();
            let page = self.ask(&request).await?;
            let hashes: Vec<MessageHash> = hashes_of(&page).collect();
            self.want_lacking(&hashes).await?;
            while self.place.wanted.len() >= self.fetch_rows {
                self.fetch_some().await?;
            }
            if page.pagination_cursor.is_none() {
                while !self.place.wanted.is_empty() {
                    self.fetch_some().await?;
                }
                return Ok(());
            }
            if hashes.is_empty() {
                return Err(SyncError::Wrong("an empty page with a cursor"));
            }
            self.place.cursor = page.pagination_cursor;
            self.place.pages += 1;
        }
        Err(SyncError::Wrong("more pages than a slice of time can have"))
    }

    /// Asks the peer, and again after a pause when it says that this node asks too often: a walk asks more at once than users
    /// do.
    async fn ask(&self, request: &StoreQueryRequest) -> Result<StoreQueryResponse, SyncError> {
        for _ in 0..TOO_OFTEN_MAX {
            match self.shared.client.query(self.peer.id, request).await {
                Err(StoreClientError::Ask(AskError::TooLong(_))) => return Err(SyncError::TooLong),
                Err(StoreClientError::Refused { status: TOO_MANY_REQUESTS, .. }) => {
                    sleep(TOO_OFTEN_PAUSE).await
                }
                answer => return Ok(answer?),
            }
        }
        Err(SyncError::TooOften)
    }

    /// Wants those of the hashes that the own archive lacks, but for those that are not worth asking for.
    async fn want_lacking(&mut self, hashes: &[MessageHash]) -> Result<(), SyncError> {
        if hashes.is_empty() {
            return Ok(()); // no hashes would ask for everything
        }
        let query = Query { hashes: hashes.to_vec(), limit: hashes.len(), bodies: false, ..Query::default() };
        let mut here = HashSet::with_capacity(hashes.len());
        let mut walk = Walk::new(query);
        while let Some(page) = walk.next(&*self.shared.archive).await? {
            here.extend(page.rows().map(|row| row.message_hash));
        }
        self.hashes += hashes.len() as u64;
        self.shared.metrics.hashes.inc_by(hashes.len() as u64);
        let state = self.peer.state.lock();
        let is_wanted = |hash: &&MessageHash| !here.contains(hash) && !state.declined.contains(hash);
        self.place.wanted.extend(hashes.iter().filter(is_wanted));
        Ok(())
    }

    /// Fetches the first of the wanted messages. A server may give fewer than were asked for; as long as it gives any, the
    /// others are asked for again. Those that came are wanted until they are durable.
    async fn fetch_some(&mut self) -> Result<(), SyncError> {
        let asked: BTreeSet<MessageHash> = self.place.wanted.iter().take(self.fetch_rows).copied().collect();
        let answer = match self.ask(&messages_request(&asked)).await {
            Err(SyncError::TooLong) => {
                self.split(&asked);
                return Ok(());
            }
            answer => answer?,
        };
        let mut missing = asked.clone();
        let given = self.sort_out(answer.messages, &mut missing);
        let taken = self.judge(given).await?;
        self.keep(taken).await?;
        if missing.len() < asked.len() {
            self.place.wanted.retain(|hash| missing.contains(hash) || !asked.contains(hash));
            self.fetch_rows = (self.fetch_rows * 2).min(self.fetch_rows_max);
        } else {
            self.give_up(&missing);
        }
        if self.wrong > WRONG_MAX { Err(SyncError::NotGiven) } else { Ok(()) }
    }

    /// Among the messages that were asked for is one that is longer than this node takes. It is found by asking for fewer.
    fn split(&mut self, asked: &BTreeSet<MessageHash>) {
        if let (1, Some(hash)) = (asked.len(), asked.first()) {
            self.decline(*hash);
            self.place.wanted.remove(hash);
        }
        self.fetch_rows = (asked.len() / 2).max(1);
    }

    /// The peer gives none of these. Were they asked for again in each run, none would come further than the first thousand.
    fn give_up(&mut self, missing: &BTreeSet<MessageHash>) {
        self.count_wrong(missing.len());
        for hash in missing {
            self.peer.state.lock().decline(*hash);
            self.place.wanted.remove(hash);
        }
    }

    /// Takes what was given out of `missing`. What nobody has asked for is left out.
    fn sort_out(&mut self, entries: Vec<KeyValue>, missing: &mut BTreeSet<MessageHash>) -> Vec<Given> {
        let mut given = Vec::with_capacity(entries.len());
        for entry in entries {
            let told = entry.message_hash.as_ref().and_then(hash_of).filter(|hash| missing.contains(hash));
            let (Some(told), Some(wire), Some(pubsub_topic)) = (told, entry.message, entry.pubsub_topic)
            else {
                self.count_wrong(1); // nobody asked for it, or it is none
                continue;
            };
            missing.remove(&told);
            given.push(Given { told, pubsub_topic, wire });
        }
        given
    }

    /// What this node takes of what was given. Each message is looked at once, many of them on the blocking pool.
    async fn judge(&mut self, given: Vec<Given>) -> Result<Vec<Message>, SyncError> {
        let bytes = given.iter().map(|given| given.wire.len()).sum();
        let (now, rules) = (self.shared.clock.now(), self.rules.clone());
        let judge_all = move || -> Vec<(MessageHash, Judgement)> {
            given.into_iter().map(|given| (given.told, given.judge(now, &rules))).collect()
        };
        let mut taken = Vec::new();
        for (told, judgement) in large::work(bytes, judge_all).await? {
            match judgement {
                Judgement::Taken(message) => taken.push(message),
                Judgement::Declined => self.decline(told),
                Judgement::Wrong => {
                    self.count_wrong(1);
                    self.peer.state.lock().decline(told);
                }
            }
        }
        Ok(taken)
    }

    fn decline(&self, hash: MessageHash) {
        self.shared.metrics.declined.inc();
        self.peer.state.lock().decline(hash);
    }

    fn count_wrong(&mut self, messages: usize) {
        self.wrong += messages as u64;
        self.shared.metrics.wrong.inc_by(messages as u64);
    }

    async fn keep(&mut self, taken: Vec<Message>) -> Result<(), SyncError> {
        if taken.is_empty() {
            return Ok(());
        }
        let timestamps: Vec<Timestamp> = taken.iter().map(|message| message.timestamp).collect();
        let appended = self.shared.intake.append_fetched(taken).await?;
        for (timestamp, appended) in timestamps.into_iter().zip(appended) {
            let is_new = appended != Appended::Duplicate;
            self.messages += u64::from(is_new);
            self.shared.metrics.messages.inc_by(u64::from(is_new));
            if appended != Appended::Spooled {
                self.shared.floor.note(timestamp); // what is spooled can't be seen in the archive yet
            }
        }
        Ok(())
    }
}

/// A message that was asked for by the hash that the peer had told, as the peer gave it.
struct Given {
    told: MessageHash,
    pubsub_topic: String,
    wire: Bytes,
}

/// What to do with a message that a peer gave.
enum Judgement {
    Taken(Message),
    /// This node does not keep such messages.
    Declined,
    /// It is another message than the one that was told.
    Wrong,
}

impl Given {
    fn judge(self, now: Timestamp, rules: &Rules) -> Judgement {
        match validate(&self.pubsub_topic, self.wire, now, rules) {
            Ok(message) if message.message_hash != self.told => Judgement::Wrong,
            Ok(message) if is_ephemeral(&message.body) => Judgement::Declined,
            Ok(message) => Judgement::Taken(message),
            Err(invalid) => {
                debug!(%invalid, "a message of a store peer was declined");
                Judgement::Declined
            }
        }
    }
}

/// The pubsub topics that are asked for one by one; `None` stands for all, where the rules make no list.
fn pubsub_topics(rules: &Rules) -> Vec<Option<String>> {
    let Some(cluster) = rules.cluster_id.filter(|_| !rules.shards.is_empty()) else { return vec![None] };
    let topic = |shard: &u16| Some(PubsubTopic::Shard { cluster, shard: *shard }.to_string());
    rules.shards.iter().map(topic).collect()
}

fn hashes_request(pubsub_topic: Option<String>, slice: Window) -> StoreQueryRequest {
    StoreQueryRequest {
        pubsub_topic,
        time_start: Some(slice.start.nanos()),
        time_end: Some(slice.end.nanos()),
        pagination_forward: true,
        pagination_limit: Some(PAGE_ROWS_MAX),
        ..StoreQueryRequest::default()
    }
}

fn messages_request(hashes: &BTreeSet<MessageHash>) -> StoreQueryRequest {
    let message_hashes = hashes.iter().map(|hash| Bytes::copy_from_slice(hash.as_bytes())).collect();
    StoreQueryRequest {
        include_data: true,
        message_hashes,
        pagination_forward: true,
        pagination_limit: Some(hashes.len() as u64),
        ..StoreQueryRequest::default()
    }
}

fn hashes_of(page: &StoreQueryResponse) -> impl Iterator<Item = MessageHash> {
    page.messages.iter().filter_map(|entry| entry.message_hash.as_ref().and_then(hash_of))
}

/// `14/WAKU2-MESSAGE`: ephemeral messages are not archived.
fn is_ephemeral(wire: &[u8]) -> bool {
    WakuMessageView::parse(wire).is_ok_and(|view| view.ephemeral == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_topics_that_are_served_are_asked_for() {
        let all = Rules::default();
        assert_eq!(pubsub_topics(&all), [None]);
        let cluster = Rules { cluster_id: Some(42), ..Rules::default() };
        assert_eq!(pubsub_topics(&cluster), [None]);
        let shards = Rules { shards: vec![0, 7], ..cluster };
        let topics = pubsub_topics(&shards);
        assert_eq!(topics, [Some("/waku/2/rs/42/0".into()), Some("/waku/2/rs/42/7".into())]);
    }
}
