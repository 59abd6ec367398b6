//! One sync run with one peer.

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

/// The most pages of a time slice: about 2,200 messages a second. It also ends pages whose cursors form a loop.
pub(super) const SLICE_PAGES_MAX: usize = 20_000;
/// The most bytes of messages to request in one answer, unless a single message is longer.
const FETCH_BYTES_MAX: usize = 16 << 20;
/// The most announced messages in a run that a peer may fail to send, because its retention removed them. The run fails with
/// more.
const WRONG_MAX: u64 = 1_000;
/// The pause after an answer with status 429, and the most retries for one page.
const TOO_OFTEN_PAUSE: Duration = Duration::from_secs(1);
const TOO_OFTEN_MAX: usize = 30;
/// How long to wait for a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(30);

/// Why a run was ended before it was done.
#[derive(Debug, thiserror::Error)]
pub(super) enum SyncError {
    #[error("the peer can't be reached: {0}")]
    Connect(#[from] ConnectError),
    #[error("the peer can't be reached: no connection in time")]
    ConnectTimedOut,
    #[error(transparent)]
    Ask(#[from] StoreClientError),
    #[error("the peer's answers are invalid: {0}")]
    Wrong(&'static str),
    #[error("the peer does not send the messages whose hashes it announced")]
    NotSent,
    #[error("the peer's messages could not be checked: {0}")]
    Check(#[from] JoinError),
    #[error("the peer answered too often with status 429")]
    TooOften,
    #[error("the answer is longer than the requested messages may be")]
    TooLong,
    #[error("this node's archive failed: {0}")]
    Archive(#[from] restante_archive::Error),
    #[error(transparent)]
    Intake(#[from] IntakeError),
    #[error("the time for a run is over")]
    TimedOut,
}

impl SyncError {
    pub(super) fn result(&self) -> RunResult {
        match self {
            Self::Connect(_) | Self::ConnectTimedOut | Self::Ask(StoreClientError::Ask(_)) => RunResult::Away,
            Self::Ask(StoreClientError::Refused { .. }) | Self::TooOften => RunResult::Refused,
            Self::Ask(StoreClientError::Malformed(_))
            | Self::Wrong(_)
            | Self::NotSent
            | Self::Check(_)
            | Self::TooLong => RunResult::Wrong,
            Self::Archive(_) | Self::Intake(_) => RunResult::Archive,
            Self::TimedOut => RunResult::Unfinished,
        }
    }

    /// Whether the next run continues where this one stopped. After a refusal or an invalid answer it does not, because the
    /// position itself may be invalid: the peer may have removed the message of the cursor.
    pub(super) fn keeps_position(&self) -> bool {
        match self {
            Self::Ask(StoreClientError::Refused { .. } | StoreClientError::Malformed(_)) => false,
            Self::Wrong(_) | Self::Check(_) | Self::TooLong => false,
            Self::Connect(_) | Self::ConnectTimedOut | Self::Ask(StoreClientError::Ask(_)) => true,
            Self::TooOften | Self::NotSent | Self::TimedOut => true,
            Self::Archive(_) | Self::Intake(_) => true,
        }
    }
}

/// The position of a run, from which another run can continue: a missing message is removed only when it is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The rest of the run's window, from the start of the current slice.
    pub(super) rest: Window,
    /// The index of the pubsub topic in that slice.
    pub(super) topic: usize,
    /// The number of pages of it that were read, and the cursor of the next page.
    pub(super) pages: usize,
    pub(super) cursor: Option<Bytes>,
    /// Messages of these pages that this node lacks and has not fetched yet.
    pub(super) missing: BTreeSet<MessageHash>,
}

impl Position {
    pub(super) fn start_of(rest: Window, topic: usize) -> Self {
        Self { rest, topic, pages: 0, cursor: None, missing: BTreeSet::new() }
    }
}

/// A run and its results so far.
pub(super) struct Run<'r> {
    shared: &'r Shared,
    peer: &'r StorePeer,
    /// What this node accepts, of any age.
    rules: Arc<Rules>,
    /// The current position; at first that of the previous run if it was not finished.
    pub(super) position: Position,
    /// The number of messages to request at once, so that the answer is bounded; fewer while one of them is too long.
    fetch_rows: usize,
    fetch_rows_max: usize,
    /// Hashes that were looked up in this node's archive.
    pub(super) hashes: u64,
    /// Messages that were new.
    pub(super) messages: u64,
    /// Messages that the peer did not send, or sent with a wrong hash.
    pub(super) wrong: u64,
}

impl<'r> Run<'r> {
    pub(super) fn new(shared: &'r Shared, peer: &'r StorePeer) -> Self {
        let rules = Rules { timestamp_window_seconds: 0, ..shared.intake.rules().clone() };
        let fetch_rows = FETCH_BYTES_MAX / rules.max_message_bytes;
        let fetch_rows = fetch_rows.clamp(1, PAGE_ROWS_MAX as usize);
        let position = std::mem::take(&mut peer.state.lock().position);
        Self {
            shared,
            peer,
            rules: Arc::new(rules),
            position,
            fetch_rows,
            fetch_rows_max: fetch_rows,
            hashes: 0,
            messages: 0,
            wrong: 0,
        }
    }

    pub(super) async fn execute(&mut self) -> Result<(), SyncError> {
        self.connect().await?;
        self.begin().await?;
        let pubsub_topics = pubsub_topics(&self.rules);
        while let Some(slice) = self.position.rest.slices().next() {
            while let Some(pubsub_topic) = pubsub_topics.get(self.position.topic) {
                self.walk(pubsub_topic.clone(), slice).await?;
                self.position = Position::start_of(self.position.rest, self.position.topic + 1);
            }
            self.position = Position::start_of(Window { start: slice.end, ..self.position.rest }, 0);
            let mut state = self.peer.state.lock();
            state.synced_until = state.synced_until.max(Some(slice.end));
        }
        Ok(())
    }

    /// Connects at the first of the peer's addresses that answers.
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

    /// Continues at the position of the previous run, or starts a new window. A position or a progress in the future is ignored:
    /// the clock was wrong then.
    async fn begin(&mut self) -> Result<(), SyncError> {
        let now = self.shared.clock.now();
        let is_resumed = self.position.rest.slices().next().is_some() && self.position.rest.end <= now;
        let synced_until = {
            let mut state = self.peer.state.lock();
            state.synced_until = state.synced_until.filter(|until| *until <= now);
            state.synced_until
        };
        if !is_resumed {
            let floor = self.shared.floor.find(&*self.shared.archive, now).await?;
            let window = Window::next(now, synced_until, floor, &self.shared.config);
            self.position = Position::start_of(window, 0);
        }
        Ok(())
    }

    /// Reads the peer's pages of hashes to the end of a slice, and fetches missing messages.
    async fn walk(&mut self, pubsub_topic: Option<String>, slice: Window) -> Result<(), SyncError> {
        let mut request = hashes_request(pubsub_topic, slice);
        while self.position.pages < SLICE_PAGES_MAX {
            request.pagination_cursor = self.position.cursor.clone();
            let page = self.ask(&request).await?;
            let hashes: Vec<MessageHash> = hashes_of(&page).collect();
            self.find_missing(&hashes).await?;
            while self.position.missing.len() >= self.fetch_rows {
                self.fetch_some().await?;
            }
            if page.pagination_cursor.is_none() {
                while !self.position.missing.is_empty() {
                    self.fetch_some().await?;
                }
                return Ok(());
            }
            if hashes.is_empty() {
                return Err(SyncError::Wrong("an empty page with a cursor"));
            }
            self.position.cursor = page.pagination_cursor;
            self.position.pages += 1;
        }
        Err(SyncError::Wrong("more pages than a slice of time can have"))
    }

    /// Queries the peer, and retries after a pause when it answers with status 429: a run sends more requests than users do.
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

    /// Adds the hashes that this node's archive lacks to the missing ones, except for declined messages.
    async fn find_missing(&mut self, hashes: &[MessageHash]) -> Result<(), SyncError> {
        if hashes.is_empty() {
            return Ok(()); // a query without hashes would return everything
        }
        let query = Query { hashes: hashes.to_vec(), limit: hashes.len(), bodies: false, ..Query::default() };
        let mut archived = HashSet::with_capacity(hashes.len());
        let mut walk = Walk::new(query);
        while let Some(page) = walk.next(&*self.shared.archive).await? {
            archived.extend(page.rows().map(|row| row.message_hash));
        }
        self.hashes += hashes.len() as u64;
        self.shared.metrics.hashes.inc_by(hashes.len() as u64);
        let state = self.peer.state.lock();
        let is_missing = |hash: &&MessageHash| !archived.contains(hash) && !state.declined.contains(hash);
        self.position.missing.extend(hashes.iter().filter(is_missing));
        Ok(())
    }

    /// Fetches the first missing messages. A server may send fewer than requested; as long as it sends any, the others are
    /// requested again. Received messages stay in the position until they are durable.
    async fn fetch_some(&mut self) -> Result<(), SyncError> {
        let asked: BTreeSet<MessageHash> =
            self.position.missing.iter().take(self.fetch_rows).copied().collect();
        let answer = match self.ask(&messages_request(&asked)).await {
            Err(SyncError::TooLong) => {
                self.split(&asked);
                return Ok(());
            }
            answer => answer?,
        };
        let mut not_received = asked.clone();
        let received = self.match_requested(answer.messages, &mut not_received);
        let accepted = self.check(received).await?;
        self.archive(accepted).await?;
        if not_received.len() < asked.len() {
            self.position.missing.retain(|hash| not_received.contains(hash) || !asked.contains(hash));
            self.fetch_rows = (self.fetch_rows * 2).min(self.fetch_rows_max);
        } else {
            self.skip(&not_received);
        }
        if self.wrong > WRONG_MAX { Err(SyncError::NotSent) } else { Ok(()) }
    }

    /// One of the requested messages is longer than this node accepts. It is found by requesting fewer.
    fn split(&mut self, asked: &BTreeSet<MessageHash>) {
        if let (1, Some(hash)) = (asked.len(), asked.first()) {
            self.decline(*hash);
            self.position.missing.remove(hash);
        }
        self.fetch_rows = (asked.len() / 2).max(1);
    }

    /// Declines messages that the peer does not send. Otherwise each run would request them again and fail at [`WRONG_MAX`].
    fn skip(&mut self, not_received: &BTreeSet<MessageHash>) {
        self.count_wrong(not_received.len());
        for hash in not_received {
            self.peer.state.lock().decline(*hash);
            self.position.missing.remove(hash);
        }
    }

    /// Returns the requested messages and removes their hashes from `not_received`. Other messages are dropped.
    fn match_requested(
        &mut self,
        entries: Vec<KeyValue>,
        not_received: &mut BTreeSet<MessageHash>,
    ) -> Vec<ReceivedMessage> {
        let mut received = Vec::with_capacity(entries.len());
        for entry in entries {
            let hash =
                entry.message_hash.as_ref().and_then(hash_of).filter(|hash| not_received.contains(hash));
            let (Some(hash), Some(wire), Some(pubsub_topic)) = (hash, entry.message, entry.pubsub_topic)
            else {
                self.count_wrong(1); // not requested, or incomplete
                continue;
            };
            not_received.remove(&hash);
            received.push(ReceivedMessage { hash, pubsub_topic, wire });
        }
        received
    }

    /// Validates messages and returns the accepted ones. Many bytes are checked on the blocking pool.
    async fn check(&mut self, received: Vec<ReceivedMessage>) -> Result<Vec<Message>, SyncError> {
        let bytes = received.iter().map(|received| received.wire.len()).sum();
        let (now, rules) = (self.shared.clock.now(), self.rules.clone());
        let check_all = move || -> Vec<(MessageHash, CheckResult)> {
            received.into_iter().map(|received| (received.hash, received.check(now, &rules))).collect()
        };
        let mut accepted = Vec::new();
        for (hash, result) in large::work(bytes, check_all).await? {
            match result {
                CheckResult::Accepted(message) => accepted.push(message),
                CheckResult::Declined => self.decline(hash),
                CheckResult::Wrong => {
                    self.count_wrong(1);
                    self.peer.state.lock().decline(hash);
                }
            }
        }
        Ok(accepted)
    }

    fn decline(&self, hash: MessageHash) {
        self.shared.metrics.declined.inc();
        self.peer.state.lock().decline(hash);
    }

    fn count_wrong(&mut self, messages: usize) {
        self.wrong += messages as u64;
        self.shared.metrics.wrong.inc_by(messages as u64);
    }

    async fn archive(&mut self, accepted: Vec<Message>) -> Result<(), SyncError> {
        if accepted.is_empty() {
            return Ok(());
        }
        let timestamps: Vec<Timestamp> = accepted.iter().map(|message| message.timestamp).collect();
        let appended = self.shared.intake.append_fetched(accepted).await?;
        for (timestamp, appended) in timestamps.into_iter().zip(appended) {
            let is_new = appended != Appended::Duplicate;
            self.messages += u64::from(is_new);
            self.shared.metrics.messages.inc_by(u64::from(is_new));
            if appended != Appended::Spooled {
                self.shared.floor.note(timestamp); // queries don't return spooled messages yet
            }
        }
        Ok(())
    }
}

/// A message that the peer sent for a requested hash.
struct ReceivedMessage {
    hash: MessageHash,
    pubsub_topic: String,
    wire: Bytes,
}

/// What to do with a received message.
enum CheckResult {
    Accepted(Message),
    /// This node does not archive such messages.
    Declined,
    /// The message has another hash than the requested one.
    Wrong,
}

impl ReceivedMessage {
    fn check(self, now: Timestamp, rules: &Rules) -> CheckResult {
        match validate(&self.pubsub_topic, self.wire, now, rules) {
            Ok(message) if message.message_hash != self.hash => CheckResult::Wrong,
            Ok(message) if is_ephemeral(&message.body) => CheckResult::Declined,
            Ok(message) => CheckResult::Accepted(message),
            Err(invalid) => {
                debug!(%invalid, "a message of a store peer was declined");
                CheckResult::Declined
            }
        }
    }
}

/// The pubsub topics to query one by one; a single `None` means all topics, when the rules have no list.
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
    fn only_served_topics_are_queried() {
        let all = Rules::default();
        assert_eq!(pubsub_topics(&all), [None]);
        let cluster = Rules { cluster_id: Some(42), ..Rules::default() };
        assert_eq!(pubsub_topics(&cluster), [None]);
        let shards = Rules { shards: vec![0, 7], ..cluster };
        let topics = pubsub_topics(&shards);
        assert_eq!(topics, [Some("/waku/2/rs/42/0".into()), Some("/waku/2/rs/42/7".into())]);
    }
}
