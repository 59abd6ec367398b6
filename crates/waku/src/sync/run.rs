//! One run with one peer.

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

use bytes::Bytes;
use restante_archive::{Query, Walk};
use restante_core::MessageHash;
use restante_waku_wire::{
    PubsubTopic, WakuMessageView,
    rpc::store::{KeyValue, StoreQueryRequest, StoreQueryResponse},
};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::{DECLINED_MAX, Shared, StorePeer, metrics::RunResult, window::Window};
use crate::{
    intake::IntakeError,
    node::{AskError, ConnectError},
    store::{PAGE_ROWS_MAX, StoreClientError, TOO_MANY_REQUESTS, hash_of},
    validate::{Rules, validate},
};

/// A slice of time has so many pages at most: about 2,200 messages a second.
const SLICE_PAGES_MAX: usize = 20_000;
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
            Self::Ask(StoreClientError::Malformed(_)) | Self::Wrong(_) | Self::TooLong => RunResult::Wrong,
            Self::Archive(_) | Self::Intake(_) => RunResult::Archive,
            Self::TimedOut => RunResult::Unfinished,
        }
    }
}

/// A run and what it has done so far.
pub(super) struct Run<'r> {
    shared: &'r Shared,
    peer: &'r StorePeer,
    /// What this node takes, of any age.
    rules: Rules,
    /// How many messages are asked for at once, so that the answer is bounded.
    fetch_rows: usize,
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
        Self { shared, peer, rules, fetch_rows, hashes: 0, messages: 0, wrong: 0 }
    }

    pub(super) async fn go(&mut self) -> Result<(), SyncError> {
        self.connect().await?;
        let synced_until = self.peer.state.lock().synced_until;
        let window = Window::next(self.shared.clock.now(), synced_until, &self.shared.config);
        for slice in window.slices() {
            for pubsub_topic in pubsub_topics(&self.rules) {
                self.sync_slice(pubsub_topic, slice).await?;
            }
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

    /// Walks the peer's pages of hashes, and fetches what the own archive lacks.
    async fn sync_slice(&mut self, pubsub_topic: Option<String>, slice: Window) -> Result<(), SyncError> {
        let mut request = hashes_request(pubsub_topic, slice);
        let mut circle = CircleGuard::default();
        let mut wanted = BTreeSet::new();
        for _ in 0..SLICE_PAGES_MAX {
            let page = self.ask(&request).await?;
            let hashes: Vec<MessageHash> = hashes_of(&page).collect();
            self.add_lacking(&hashes, &mut wanted).await?;
            while wanted.len() >= self.fetch_rows {
                self.fetch_some(&mut wanted).await?;
            }
            if page.pagination_cursor.is_none() {
                while !wanted.is_empty() {
                    self.fetch_some(&mut wanted).await?;
                }
                return Ok(());
            }
            if hashes.is_empty() {
                return Err(SyncError::Wrong("an empty page with a cursor"));
            }
            request.pagination_cursor = page.pagination_cursor;
            if circle.is_closed_by(request.pagination_cursor.as_ref()) {
                return Err(SyncError::Wrong("the pages go round in a circle"));
            }
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

    /// Adds those of the hashes that the own archive lacks, but for those that this node has declined before.
    async fn add_lacking(
        &mut self,
        hashes: &[MessageHash],
        wanted: &mut BTreeSet<MessageHash>,
    ) -> Result<(), SyncError> {
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
        wanted.extend(hashes.iter().filter(|hash| !here.contains(hash) && !state.declined.contains(hash)));
        Ok(())
    }

    /// Fetches the first of the wanted messages. A server may answer with fewer than were asked for and say that there are
    /// more; then those are left for the next time. The others are no longer wanted, whether they came or not.
    async fn fetch_some(&mut self, wanted: &mut BTreeSet<MessageHash>) -> Result<(), SyncError> {
        let mut asked: BTreeSet<MessageHash> = wanted.iter().take(self.fetch_rows).copied().collect();
        let answer = match self.ask(&messages_request(&asked)).await {
            Err(SyncError::TooLong) => {
                self.split(&asked, wanted);
                return Ok(());
            }
            answer => answer?,
        };
        let has_more = answer.pagination_cursor.is_some();
        let asked_len = asked.len();
        wanted.retain(|hash| !asked.contains(hash));
        let kept = self.verify(answer.messages, &mut asked);
        let is_any_given = asked.len() < asked_len;
        if has_more && is_any_given {
            wanted.append(&mut asked);
        }
        self.count_wrong(asked.len());
        self.keep(kept).await?;
        if self.wrong > WRONG_MAX {
            return Err(SyncError::Wrong("it does not give the messages whose hashes it tells"));
        }
        Ok(())
    }

    /// Among the messages that were asked for is one that is longer than this node takes. It is found by asking for fewer.
    fn split(&mut self, asked: &BTreeSet<MessageHash>, wanted: &mut BTreeSet<MessageHash>) {
        if let (1, Some(hash)) = (asked.len(), asked.first()) {
            self.decline(*hash);
            wanted.remove(hash);
        }
        self.fetch_rows = (asked.len() / 2).max(1);
    }

    /// Sorts out what this node takes. What was given is taken out of `asked`.
    fn verify(&mut self, given: Vec<KeyValue>, asked: &mut BTreeSet<MessageHash>) -> Vec<(String, Bytes)> {
        let mut kept = Vec::with_capacity(given.len());
        for entry in given {
            let told = entry.message_hash.as_ref().and_then(hash_of).filter(|hash| asked.remove(hash));
            let (Some(told), Some(wire), Some(pubsub_topic)) = (told, entry.message, entry.pubsub_topic)
            else {
                self.count_wrong(1); // nobody asked for it, or it is none
                continue;
            };
            match self.judge(told, &pubsub_topic, &wire) {
                Judgement::Taken => kept.push((pubsub_topic, wire)),
                Judgement::Declined => self.decline(told),
                Judgement::Wrong => {
                    self.count_wrong(1);
                    self.decline(told);
                }
            }
        }
        kept
    }

    fn judge(&self, told: MessageHash, pubsub_topic: &str, wire: &Bytes) -> Judgement {
        match validate(pubsub_topic, wire.clone(), self.shared.clock.now(), &self.rules) {
            Ok(message) if message.message_hash != told => Judgement::Wrong,
            Ok(_) if is_ephemeral(wire) => Judgement::Declined,
            Ok(_) => Judgement::Taken,
            Err(invalid) => {
                debug!(peer = %self.peer.id, %invalid, "a message of a store peer was declined");
                Judgement::Declined
            }
        }
    }

    fn decline(&self, hash: MessageHash) {
        self.shared.metrics.declined.inc();
        let declined = &mut self.peer.state.lock().declined;
        if declined.len() >= DECLINED_MAX {
            declined.clear();
        }
        declined.insert(hash);
    }

    fn count_wrong(&mut self, messages: usize) {
        self.wrong += messages as u64;
        self.shared.metrics.wrong.inc_by(messages as u64);
    }

    async fn keep(&mut self, kept: Vec<(String, Bytes)>) -> Result<(), SyncError> {
        if kept.is_empty() {
            return Ok(());
        }
        let new = self.shared.intake.take_kept(kept).await? as u64;
        self.messages += new;
        self.shared.metrics.messages.inc_by(new);
        Ok(())
    }
}

/// What to do with a message that a peer gave.
enum Judgement {
    Taken,
    /// This node does not keep such messages.
    Declined,
    /// It is another message than the one that was told.
    Wrong,
}

/// Notices that a walk goes round in a circle, of whatever length, and remembers only one cursor for that: the one at the
/// last page whose number was a power of two.
#[derive(Debug, Default)]
struct CircleGuard {
    remembered: Option<Bytes>,
    pages: u64,
}

impl CircleGuard {
    fn is_closed_by(&mut self, cursor: Option<&Bytes>) -> bool {
        if self.remembered.is_some() && self.remembered.as_ref() == cursor {
            return true;
        }
        self.pages += 1;
        if self.pages.is_power_of_two() {
            self.remembered = cursor.cloned();
        }
        false
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

    /// After how many pages a walk is ended whose cursors go `lead` pages straight on and then round a circle.
    fn pages_until_noticed(lead: u64, circle: u64) -> u64 {
        let mut guard = CircleGuard::default();
        (0_u64..)
            .find(|page| {
                let place = if *page < lead { *page } else { lead + (page - lead) % circle };
                guard.is_closed_by(Some(&Bytes::copy_from_slice(&place.to_be_bytes())))
            })
            .unwrap()
    }

    #[test]
    fn circles_of_any_length_are_noticed() {
        for lead in 0..40 {
            for circle in 1..40 {
                let pages = pages_until_noticed(lead, circle);
                assert!(pages <= 4 * (lead + circle), "{lead} + {circle}: {pages} pages");
            }
        }
    }

    #[test]
    fn a_straight_walk_is_no_circle() {
        let mut guard = CircleGuard::default();
        assert!(
            !(0..10_000_u64)
                .any(|page| guard.is_closed_by(Some(&Bytes::copy_from_slice(&page.to_be_bytes()))))
        );
    }

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
