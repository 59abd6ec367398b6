//! Subscribers as sessions, also when the table of sessions is slow or fails.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::{StreamExt, stream::BoxStream};
use restante_core::ErrorKind;
use restante_sessions::{
    Answer as Later, Counts, Error, Found, InfoChange, InfoKey, InfoValue, NewSession, SessionId, Sessions,
};
use tokio::sync::Semaphore;

use super::*;

/// A table before which one waits, or which fails.
struct Gate {
    table: Arc<dyn Sessions>,
    /// Calls that go through.
    permits: Semaphore,
    is_broken: bool,
    /// An operator closes what is opened, before anybody knows its id.
    ends_at_once: AtomicBool,
    opened: AtomicUsize,
}

impl Gate {
    fn before(table: Arc<dyn Sessions>, permits: usize, is_broken: bool) -> Arc<Self> {
        let permits = Semaphore::new(permits);
        let (ends_at_once, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
        Arc::new(Self { table, permits, is_broken, ends_at_once, opened })
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    async fn pass(&self) -> Result<(), Error> {
        self.permits.acquire().await.unwrap().forget();
        let broken = || Error::new(ErrorKind::Internal, "a test's failure");
        if self.is_broken { Err(broken()) } else { Ok(()) }
    }
}

impl Sessions for Gate {
    fn open<'a>(&'a self, new: NewSession<'a>) -> Later<'a, Result<SessionId, Error>> {
        Later::later(async move {
            self.pass().await?;
            let opened = self.table.open(new).await;
            if let (Ok(id), true) = (&opened, self.ends_at_once.load(Ordering::SeqCst)) {
                assert!(self.table.close(*id, Ended::Operator).await.unwrap());
            }
            self.opened.fetch_add(1, Ordering::SeqCst);
            opened
        })
    }

    fn close(&self, id: SessionId, why: Ended) -> Later<'_, Result<bool, Error>> {
        self.table.close(id, why)
    }

    fn set_presence<'a>(
        &'a self,
        id: SessionId,
        priority: Option<i8>,
        changes: &'a [InfoChange<'a>],
    ) -> Later<'a, Result<bool, Error>> {
        self.table.set_presence(id, priority, changes)
    }

    fn merge_info<'a>(
        &'a self,
        id: SessionId,
        changes: &'a [InfoChange<'a>],
    ) -> Later<'a, Result<bool, Error>> {
        self.table.merge_info(id, changes)
    }

    fn by_user<'a>(&'a self, user: &'a str) -> Later<'a, Result<Found, Error>> {
        self.table.by_user(user)
    }

    fn by_address<'a>(&'a self, user: &'a str, resource: &'a str) -> Later<'a, Result<Found, Error>> {
        self.table.by_address(user, resource)
    }

    fn by_id(&self, id: SessionId) -> Later<'_, Result<Found, Error>> {
        self.table.by_id(id)
    }

    fn all(&self) -> BoxStream<'_, Result<Found, Error>> {
        self.table.all()
    }

    fn counts(&self) -> Later<'_, Result<Counts, Error>> {
        self.table.counts()
    }
}

/// A stage whose table lets so many opens through.
fn gated(permits: usize, is_broken: bool) -> (Arc<Stage>, Arc<Gate>) {
    let mut live = live(HubConfig::default());
    let gate = Gate::before(live.sessions.clone(), permits, is_broken);
    live.sessions = gate.clone();
    (Arc::new(Stage::over(FilterConfig::default(), Rules::default(), live)), gate)
}

impl Stage {
    async fn session_of(&self, peer: PeerId) -> Found {
        self.live.sessions.by_user(&peer.to_string()).await.unwrap()
    }

    async fn topics_of(&self, peer: PeerId) -> Option<i64> {
        let found = self.session_of(peer).await;
        match found.first()?.info.get(InfoKey::TOPICS) {
            Some(InfoValue::Number(topics)) => Some(topics),
            other => panic!("no number of topics: {other:?}"),
        }
    }

    async fn sessions(&self) -> u64 {
        assert!(self.live.sessions.all().all(async |found| found.is_ok()).await);
        self.live.sessions.counts().await.unwrap().sessions
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_is_a_session_that_says_what_it_is() {
    let stage = Stage::new(FilterConfig::default());
    let (peer, _) = stage.subscribed(Manner::ReadsOn).await;
    let found = stage.session_of(peer).await;
    let session = found.first().unwrap();
    assert_eq!((session.user(), session.priority), (&*peer.to_string(), None));
    assert_eq!(session.resource(), format!("filter/{}", stage.live.nodes.here()));
    assert_eq!(session.info.get(InfoKey::DOOR), Some(InfoValue::Text("waku_filter")));
    assert_eq!(session.info.get(InfoKey::ADDRESS), Some(InfoValue::Address(ADDRESS.parse().unwrap())));
    assert_eq!(stage.topics_of(peer).await, Some(1));
    stage.subscribe(peer, PUBSUB, &["/a/1/x/proto", "/b/1/x/proto", CHAT]).await;
    assert_eq!(stage.topics_of(peer).await, Some(3));
    stage.ask_of(SubscribeType::Unsubscribe, peer, PUBSUB, &[CHAT]).await;
    assert_eq!(stage.topics_of(peer).await, Some(2));
    stage.ask_of(SubscribeType::UnsubscribeAll, peer, "", &[]).await;
    until_async(async || stage.sessions().await == 0).await;
}

async fn until_async(holds: impl AsyncFn() -> bool) {
    for _ in 0..10_000 {
        if holds().await {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came to that");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_an_operator_closes_is_a_subscription_no_more() {
    let stage = Stage::new(FilterConfig::default());
    let (peer, client) = stage.subscribed(Manner::ReadsOn).await;
    let id = stage.session_of(peer).await.first().unwrap().id;
    assert!(stage.live.sessions.close(id, Ended::Operator).await.unwrap());
    stage.hear(1);
    until(|| stage.metrics.removed_for(Removed::Closed) == 1).await;
    assert_eq!((stage.ping(peer).await, stage.metrics.subscribers.get()), (404, 0));
    assert!(!stage.live.hub.is_wanted(PUBSUB, CHAT));
    assert_eq!(stage.subscribe(peer, PUBSUB, &[CHAT]).await, 200, "it may come back");
    stage.hear(2);
    stage.settled(1).await;
    assert_eq!((numbers(&client), stage.sessions().await), (vec![2], 1));
}

/// It was answered that all was well until its pusher came by.
#[tokio::test(start_paused = true)]
async fn who_asks_right_after_its_session_was_closed_is_no_subscriber_any_more() {
    let stage = Stage::new(FilterConfig::default());
    let (peer, client) = stage.subscribed(Manner::ReadsOn).await;
    let close = async || {
        let id = stage.session_of(peer).await.first().unwrap().id;
        assert!(stage.live.sessions.close(id, Ended::Operator).await.unwrap());
    };
    close().await;
    assert_eq!(stage.ping(peer).await, 404);
    assert_eq!(stage.subscribe(peer, PUBSUB, &[CHAT]).await, 200);
    close().await;
    assert_eq!(stage.ask_of(SubscribeType::Unsubscribe, peer, PUBSUB, &[CHAT]).await, 404);
    assert_eq!(stage.subscribe(peer, PUBSUB, &[CHAT]).await, 200);
    close().await;
    assert_eq!(stage.subscribe(peer, PUBSUB, &["/a/1/x/proto"]).await, 200, "it begins anew");
    assert_eq!((stage.topics_of(peer).await, stage.metrics.removed_for(Removed::Closed)), (Some(1), 3));
    stage.hear(1);
    stage.hear_of("/a/1/x/proto", 2);
    stage.settled(1).await;
    assert_eq!((numbers(&client), stage.metrics.subscribers.get()), (vec![2], 1));
}

#[tokio::test(start_paused = true)]
async fn who_was_closed_before_it_had_its_seat_is_not_told_that_it_has_subscribed() {
    let (stage, gate) = gated(9, false);
    gate.ends_at_once.store(true, Ordering::SeqCst);
    let (peer, client) = stage.client(Manner::ReadsOn);
    assert_eq!(stage.subscribe(peer, PUBSUB, &[CHAT]).await, 503);
    assert_eq!((stage.metrics.subscribers.get(), stage.metrics.removed_for(Removed::Closed)), (0, 1));
    assert!(!stage.live.hub.is_wanted(PUBSUB, CHAT));
    gate.ends_at_once.store(false, Ordering::SeqCst);
    assert_eq!(stage.subscribe(peer, PUBSUB, &[CHAT]).await, 200, "it may come back");
    stage.hear(1);
    stage.settled(1).await;
    assert_eq!((numbers(&client), stage.sessions().await), (vec![1], 1));
}

/// Its session stayed in the table, with nobody to close it.
#[tokio::test(start_paused = true)]
async fn who_subscribes_while_the_filter_ends_leaves_no_session_behind() {
    let (stage, gate) = gated(0, false);
    let (peer, _) = stage.client(Manner::ReadsOn);
    assert!(stage.subscribe(peer, PUBSUB, &[CHAT]).now_or_never().is_none());
    sleep(Duration::from_millis(10)).await;
    let Stage { filter, live, metrics, .. } = Arc::into_inner(stage).unwrap();
    drop(filter);
    gate.permits.add_permits(1);
    until(|| gate.opened() == 1).await;
    until_async(async || live.sessions.counts().await.unwrap().sessions == 0).await;
    assert_eq!((metrics.subscribers.get(), live.hub.is_wanted(PUBSUB, CHAT)), (0, false));
}

#[tokio::test(start_paused = true)]
async fn sessions_end_with_their_subscriptions() {
    let stage = Stage::new(FilterConfig { subscribers_max: 2, failures_max: 1, ..FilterConfig::default() });
    let (away, client) = stage.subscribed(Manner::ReadsOn).await;
    client.connect(false);
    stage.events.send(NodeEvent::Gone { peer: away }).unwrap();
    sleep(Duration::from_secs(1)).await;
    let (refusing, _) = stage.client(Manner::Refuses);
    stage.subscribe(refusing, PUBSUB, &["/a/1/x/proto"]).await;
    let (third, _) = stage.subscribed(Manner::ReadsOn).await;
    until_async(async || stage.session_of(away).await.is_empty()).await;
    assert_eq!(stage.metrics.removed_for(Removed::Replaced), 1);
    stage.hear_of("/a/1/x/proto", 1);
    until_async(async || stage.session_of(refusing).await.is_empty()).await;
    assert_eq!((stage.metrics.removed_for(Removed::Failed), stage.sessions().await), (1, 1));
    sleep(Duration::from_secs(400)).await;
    assert_eq!((stage.session_of(third).await.len(), stage.metrics.removed_for(Removed::Expired)), (0, 1));
    stage.subscribed(Manner::ReadsOn).await;
    let Stage { filter, live, .. } = stage;
    drop(filter);
    until_async(async || live.sessions.counts().await.unwrap().sessions == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_table_that_fails_stops_nobody() {
    let (stage, _) = gated(9, true);
    let (peer, client) = stage.subscribed(Manner::ReadsOn).await;
    let (other, other_client) = stage.subscribed(Manner::ReadsOn).await;
    assert_eq!((stage.sessions().await, stage.metrics.subscribers.get()), (0, 2));
    stage.hear(1);
    stage.settled(2).await;
    assert_eq!((numbers(&client), numbers(&other_client)), (vec![1], vec![1]));
    assert_eq!(stage.subscribe(peer, PUBSUB, &["/a/1/x/proto"]).await, 200);
    for peer in [peer, other] {
        assert_eq!(stage.ask_of(SubscribeType::UnsubscribeAll, peer, "", &[]).await, 200);
    }
}

/// Requests of others, and pushes, don't wait for a session that is being opened.
#[tokio::test(start_paused = true)]
async fn a_table_that_hangs_stops_nobody() {
    let (stage, gate) = gated(1, false);
    let (well, client) = stage.subscribed(Manner::ReadsOn).await;
    let (peer, waiting) = stage.client(Manner::ReadsOn);
    let mut subscribing = pin!(stage.subscribe(peer, PUBSUB, &[CHAT]));
    assert!(subscribing.as_mut().now_or_never().is_none());
    assert_eq!(stage.ping(well).await, 200);
    stage.hear(1);
    assert_eq!(subscribing.await, 200, "it is served without a session in the table");
    assert!(stage.session_of(peer).await.is_empty());
    stage.hear(2);
    stage.settled(3).await;
    assert_eq!((numbers(&client), numbers(&waiting)), (vec![1, 2], vec![2]));
    gate.permits.add_permits(1);
    until(|| gate.opened() == 2).await;
    until_async(async || stage.session_of(peer).await.is_empty()).await;
    assert_eq!(stage.ping(peer).await, 200, "what is opened too late is closed, and nobody's end");
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_peer_are_served_in_turn() {
    let (stage, gate) = gated(0, false);
    let (peer, client) = stage.client(Manner::ReadsOn);
    let ask = |kind, topics: &'static [&'static str]| {
        let stage = stage.clone();
        tokio::spawn(async move { stage.ask_of(kind, peer, PUBSUB, topics).await })
    };
    let first = ask(SubscribeType::Subscribe, &[CHAT]);
    let second = ask(SubscribeType::Subscribe, &["/a/1/x/proto"]);
    let third = ask(SubscribeType::Unsubscribe, &[CHAT]);
    tokio::task::yield_now().await;
    gate.permits.add_permits(9);
    assert_eq!((first.await.unwrap(), second.await.unwrap(), third.await.unwrap()), (200, 200, 200));
    assert_eq!((gate.opened(), stage.sessions().await), (1, 1), "one session, and none that took its place");
    assert_eq!(stage.topics_of(peer).await, Some(1));
    stage.hear(1);
    stage.hear_of("/a/1/x/proto", 2);
    stage.settled(1).await;
    assert_eq!(numbers(&client), [2]);
}

/// The client's stream broke while its session was being opened: the session would have stayed in the table for ever.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_leaves_no_session_without_a_subscriber() {
    let (stage, gate) = gated(0, false);
    let (peer, client) = stage.client(Manner::ReadsOn);
    assert!(stage.subscribe(peer, PUBSUB, &[CHAT]).now_or_never().is_none());
    client.connect(false);
    stage.events.send(NodeEvent::Gone { peer }).unwrap();
    sleep(Duration::from_millis(10)).await;
    gate.permits.add_permits(1);
    until(|| stage.metrics.subscribers.get() == 1).await;
    stage.hear(1);
    assert_eq!(stage.counts(), [0, 0, 0, 1], "it is known to be away");
    assert_eq!(stage.sessions().await, 1);
    sleep(Duration::from_secs(400)).await;
    assert_eq!((stage.sessions().await, stage.metrics.subscribers.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn there_may_be_no_room_any_more_when_a_session_is_opened() {
    let mut live = live(HubConfig::default());
    let gate = Gate::before(live.sessions.clone(), 0, false);
    live.sessions = gate.clone();
    let config = FilterConfig { subscribers_max: 1, ..FilterConfig::default() };
    let stage = Stage::over(config, Rules::default(), live);
    let [(one, _), (other, _)] = [(); 2].map(|()| stage.client(Manner::ReadsOn));
    let subscribe = async |peer| stage.subscribe(peer, PUBSUB, &[CHAT]).await;
    let let_in = async || gate.permits.add_permits(2);
    let (first, second, ()) = tokio::join!(subscribe(one), subscribe(other), let_in());
    let mut answers = [first, second];
    answers.sort_unstable();
    assert_eq!(answers, [200, 503]);
    until_async(async || stage.sessions().await == 1).await;
    assert_eq!(gate.opened(), 2);
}
