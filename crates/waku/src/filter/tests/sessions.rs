//! Tests the sessions of subscribers, also when the session table is slow or fails.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::{StreamExt, stream::BoxStream};
use restante_core::nonzero;
use restante_sessions::{
    Answer as Later, Counts, Error, Found, InfoChange, InfoKey, InfoValue, NewSession, SessionId, Sessions,
};
use tokio::sync::Semaphore;

use super::*;

/// A table whose calls wait for permits or fail.
struct Gate {
    table: Arc<dyn Sessions>,
    /// Permits for calls.
    permits: Semaphore,
    is_broken: bool,
    /// Closes a session before its id is returned, as an operator may.
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
        let broken = || Error::internal("a test's failure");
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

/// A setup whose table has a number of permits.
fn gated(permits: usize, is_broken: bool) -> (Arc<Setup>, Arc<Gate>) {
    let mut live = live(HubConfig::default());
    let gate = Gate::before(live.sessions.clone(), permits, is_broken);
    live.sessions = gate.clone();
    (Arc::new(Setup::over(FilterConfig::default(), Rules::default(), live)), gate)
}

impl Setup {
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
async fn a_subscriber_has_a_session_with_its_details() {
    let setup = Setup::new(FilterConfig::default());
    let (peer, _) = setup.subscribed(Manner::ReadsOn).await;
    let found = setup.session_of(peer).await;
    let session = found.first().unwrap();
    assert_eq!((session.user(), session.priority), (&*peer.to_string(), None));
    assert_eq!(session.resource(), format!("filter/{}", setup.live.nodes.here()));
    assert_eq!(session.info.get(InfoKey::DOOR), Some(InfoValue::Text("waku_filter")));
    assert_eq!(session.info.get(InfoKey::ADDRESS), Some(InfoValue::Address(ADDRESS.parse().unwrap())));
    assert_eq!(setup.topics_of(peer).await, Some(1));
    setup.subscribe(peer, PUBSUB, &["/a/1/x/proto", "/b/1/x/proto", CHAT]).await;
    assert_eq!(setup.topics_of(peer).await, Some(3));
    setup.ask_of(SubscribeType::Unsubscribe, peer, PUBSUB, &[CHAT]).await;
    assert_eq!(setup.topics_of(peer).await, Some(2));
    setup.ask_of(SubscribeType::UnsubscribeAll, peer, "", &[]).await;
    until_async(async || setup.sessions().await == 0).await;
}

async fn until_async(condition: impl AsyncFn() -> bool) {
    for _ in 0..10_000 {
        if condition().await {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition never held");
}

#[tokio::test(start_paused = true)]
async fn closing_a_session_ends_the_subscription() {
    let setup = Setup::new(FilterConfig::default());
    let (peer, client) = setup.subscribed(Manner::ReadsOn).await;
    let id = setup.session_of(peer).await.first().unwrap().id;
    assert!(setup.live.sessions.close(id, Ended::Operator).await.unwrap());
    setup.publish(1);
    until(|| setup.metrics.removed_for(Removed::Closed) == 1).await;
    assert_eq!((setup.ping(peer).await, setup.metrics.subscribers.get()), (404, 0));
    assert!(!setup.live.hub.has_subscribers(PUBSUB, CHAT));
    assert_eq!(setup.subscribe(peer, PUBSUB, &[CHAT]).await, 200, "it may subscribe again");
    setup.publish(2);
    setup.settled(1).await;
    assert_eq!((numbers(&client), setup.sessions().await), (vec![2], 1));
}

/// Its requests succeeded until its pusher noticed.
#[tokio::test(start_paused = true)]
async fn requests_fail_right_after_the_session_was_closed() {
    let setup = Setup::new(FilterConfig::default());
    let (peer, client) = setup.subscribed(Manner::ReadsOn).await;
    let close = async || {
        let id = setup.session_of(peer).await.first().unwrap().id;
        assert!(setup.live.sessions.close(id, Ended::Operator).await.unwrap());
    };
    close().await;
    assert_eq!(setup.ping(peer).await, 404);
    assert_eq!(setup.subscribe(peer, PUBSUB, &[CHAT]).await, 200);
    close().await;
    assert_eq!(setup.ask_of(SubscribeType::Unsubscribe, peer, PUBSUB, &[CHAT]).await, 404);
    assert_eq!(setup.subscribe(peer, PUBSUB, &[CHAT]).await, 200);
    close().await;
    assert_eq!(setup.subscribe(peer, PUBSUB, &["/a/1/x/proto"]).await, 200, "it is a new subscription");
    assert_eq!((setup.topics_of(peer).await, setup.metrics.removed_for(Removed::Closed)), (Some(1), 3));
    setup.publish(1);
    setup.publish_to("/a/1/x/proto", 2);
    setup.settled(1).await;
    assert_eq!((numbers(&client), setup.metrics.subscribers.get()), (vec![2], 1));
}

#[tokio::test(start_paused = true)]
async fn subscribing_fails_when_the_session_is_closed_before_it_has_a_subscription() {
    let (setup, gate) = gated(9, false);
    gate.ends_at_once.store(true, Ordering::SeqCst);
    let (peer, client) = setup.client(Manner::ReadsOn);
    assert_eq!(setup.subscribe(peer, PUBSUB, &[CHAT]).await, 503);
    assert_eq!((setup.metrics.subscribers.get(), setup.metrics.removed_for(Removed::Closed)), (0, 1));
    assert!(!setup.live.hub.has_subscribers(PUBSUB, CHAT));
    gate.ends_at_once.store(false, Ordering::SeqCst);
    assert_eq!(setup.subscribe(peer, PUBSUB, &[CHAT]).await, 200, "it may subscribe again");
    setup.publish(1);
    setup.settled(1).await;
    assert_eq!((numbers(&client), setup.sessions().await), (vec![1], 1));
}

/// Its session stayed in the table for ever.
#[tokio::test(start_paused = true)]
async fn subscribing_while_the_filter_ends_leaves_no_session() {
    let (setup, gate) = gated(0, false);
    let (peer, _) = setup.client(Manner::ReadsOn);
    assert!(setup.subscribe(peer, PUBSUB, &[CHAT]).now_or_never().is_none());
    sleep(Duration::from_millis(10)).await;
    let Setup { filter, live, metrics, .. } = Arc::into_inner(setup).unwrap();
    drop(filter);
    gate.permits.add_permits(1);
    until(|| gate.opened() == 1).await;
    until_async(async || live.sessions.counts().await.unwrap().sessions == 0).await;
    assert_eq!((metrics.subscribers.get(), live.hub.has_subscribers(PUBSUB, CHAT)), (0, false));
}

#[tokio::test(start_paused = true)]
async fn sessions_end_with_their_subscriptions() {
    let setup = Setup::new(FilterConfig {
        subscribers_max: nonzero!(2),
        failures_max: nonzero!(1),
        ..FilterConfig::default()
    });
    let (away, client) = setup.subscribed(Manner::ReadsOn).await;
    client.connect(false);
    setup.events.send(NodeEvent::Gone { peer: away }).unwrap();
    sleep(Duration::from_secs(1)).await;
    let (refusing, _) = setup.client(Manner::Refuses);
    setup.subscribe(refusing, PUBSUB, &["/a/1/x/proto"]).await;
    let (third, _) = setup.subscribed(Manner::ReadsOn).await;
    until_async(async || setup.session_of(away).await.is_empty()).await;
    assert_eq!(setup.metrics.removed_for(Removed::Replaced), 1);
    setup.publish_to("/a/1/x/proto", 1);
    until_async(async || setup.session_of(refusing).await.is_empty()).await;
    assert_eq!((setup.metrics.removed_for(Removed::Failed), setup.sessions().await), (1, 1));
    sleep(Duration::from_secs(400)).await;
    assert_eq!((setup.session_of(third).await.len(), setup.metrics.removed_for(Removed::Expired)), (0, 1));
    setup.subscribed(Manner::ReadsOn).await;
    let Setup { filter, live, .. } = setup;
    drop(filter);
    until_async(async || live.sessions.counts().await.unwrap().sessions == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_table_does_not_stop_subscribers() {
    let (setup, _) = gated(9, true);
    let (peer, client) = setup.subscribed(Manner::ReadsOn).await;
    let (other, other_client) = setup.subscribed(Manner::ReadsOn).await;
    assert_eq!((setup.sessions().await, setup.metrics.subscribers.get()), (0, 2));
    setup.publish(1);
    setup.settled(2).await;
    assert_eq!((numbers(&client), numbers(&other_client)), (vec![1], vec![1]));
    assert_eq!(setup.subscribe(peer, PUBSUB, &["/a/1/x/proto"]).await, 200);
    for peer in [peer, other] {
        assert_eq!(setup.ask_of(SubscribeType::UnsubscribeAll, peer, "", &[]).await, 200);
    }
}

/// Requests of other peers, and pushes, don't wait for a session that is being opened.
#[tokio::test(start_paused = true)]
async fn a_hanging_table_does_not_stop_others() {
    let (setup, gate) = gated(1, false);
    let (healthy, client) = setup.subscribed(Manner::ReadsOn).await;
    let (peer, waiting) = setup.client(Manner::ReadsOn);
    let mut subscribing = pin!(setup.subscribe(peer, PUBSUB, &[CHAT]));
    assert!(subscribing.as_mut().now_or_never().is_none());
    assert_eq!(setup.ping(healthy).await, 200);
    setup.publish(1);
    assert_eq!(subscribing.await, 200, "it is served without a session in the table");
    assert!(setup.session_of(peer).await.is_empty());
    setup.publish(2);
    setup.settled(3).await;
    assert_eq!((numbers(&client), numbers(&waiting)), (vec![1, 2], vec![2]));
    gate.permits.add_permits(1);
    until(|| gate.opened() == 2).await;
    until_async(async || setup.session_of(peer).await.is_empty()).await;
    assert_eq!(
        setup.ping(peer).await,
        200,
        "a session that is opened too late is closed, and the subscription stays"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_peer_are_served_one_after_the_other() {
    let (setup, gate) = gated(0, false);
    let (peer, client) = setup.client(Manner::ReadsOn);
    let ask = |kind, topics: &'static [&'static str]| {
        let setup = setup.clone();
        tokio::spawn(async move { setup.ask_of(kind, peer, PUBSUB, topics).await })
    };
    let first = ask(SubscribeType::Subscribe, &[CHAT]);
    let second = ask(SubscribeType::Subscribe, &["/a/1/x/proto"]);
    let third = ask(SubscribeType::Unsubscribe, &[CHAT]);
    tokio::task::yield_now().await;
    gate.permits.add_permits(9);
    assert_eq!((first.await.unwrap(), second.await.unwrap(), third.await.unwrap()), (200, 200, 200));
    assert_eq!((gate.opened(), setup.sessions().await), (1, 1), "one session, and it was not replaced");
    assert_eq!(setup.topics_of(peer).await, Some(1));
    setup.publish(1);
    setup.publish_to("/a/1/x/proto", 2);
    setup.settled(1).await;
    assert_eq!(numbers(&client), [2]);
}

/// The client's stream broke while its session was being opened: the session would have stayed in the table for ever.
#[tokio::test(start_paused = true)]
async fn a_cancelled_request_leaves_no_session_without_a_subscriber() {
    let (setup, gate) = gated(0, false);
    let (peer, client) = setup.client(Manner::ReadsOn);
    assert!(setup.subscribe(peer, PUBSUB, &[CHAT]).now_or_never().is_none());
    client.connect(false);
    setup.events.send(NodeEvent::Gone { peer }).unwrap();
    sleep(Duration::from_millis(10)).await;
    gate.permits.add_permits(1);
    until(|| setup.metrics.subscribers.get() == 1).await;
    setup.publish(1);
    assert_eq!(setup.counts(), [0, 0, 0, 1], "it is known to be disconnected");
    assert_eq!(setup.sessions().await, 1);
    sleep(Duration::from_secs(400)).await;
    assert_eq!((setup.sessions().await, setup.metrics.subscribers.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn limits_are_checked_again_when_a_session_is_opened() {
    let mut live = live(HubConfig::default());
    let gate = Gate::before(live.sessions.clone(), 0, false);
    live.sessions = gate.clone();
    let config = FilterConfig { subscribers_max: nonzero!(1), ..FilterConfig::default() };
    let setup = Setup::over(config, Rules::default(), live);
    let [(one, _), (other, _)] = [(); 2].map(|()| setup.client(Manner::ReadsOn));
    let subscribe = async |peer| setup.subscribe(peer, PUBSUB, &[CHAT]).await;
    let release = async || gate.permits.add_permits(2);
    let (first, second, ()) = tokio::join!(subscribe(one), subscribe(other), release());
    let mut answers = [first, second];
    answers.sort_unstable();
    assert_eq!(answers, [200, 503]);
    until_async(async || setup.sessions().await == 1).await;
    assert_eq!(gate.opened(), 2);
}
