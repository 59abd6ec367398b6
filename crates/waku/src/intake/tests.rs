use restante_archive::{Config, Query, open};
use restante_core::{NANOS_PER_SECOND, SystemClock, nonzero};
use restante_waku_wire::WakuMessage;

use super::*;

const TOPIC: &str = "/waku/2/rs/42/0";

/// Records the events that it receives, once each.
#[derive(Default)]
struct Recorder(parking_lot::Mutex<Vec<Arc<Event>>>);

impl Listener for Recorder {
    fn on_message(&self, event: &Arc<Event>, stage: Stage) {
        if matches!(stage, Stage::Published | Stage::Relayed) {
            self.0.lock().push(event.clone());
        }
    }
}

struct Setup {
    intake: Intake,
    archive: Arc<dyn Archive>,
    recorder: Arc<Recorder>,
}

impl Setup {
    async fn new() -> Self {
        Self::with_listeners(|_| Vec::new()).await
    }

    /// With further listeners beside the recorder.
    async fn with_listeners(others: impl FnOnce(&Intake) -> Vec<Arc<dyn Listener>>) -> Self {
        let archive = open(Config::new("memory:".parse().unwrap())).await.unwrap().archive;
        let rules = Rules { cluster_id: Some(42), max_message_bytes: nonzero!(10_000), ..Rules::default() };
        let (clock, config) = (Arc::new(SystemClock), HandoverConfig::default());
        let intake = Intake::new(archive.clone(), clock, rules, config, IntakeMetrics::default());
        let recorder = Arc::new(Recorder::default());
        let mut listeners = others(&intake);
        listeners.push(recorder.clone());
        intake.connect(listeners, None);
        Self { intake, archive, recorder }
    }

    async fn archived(&self) -> usize {
        self.archive.query(&Query::default()).await.unwrap().len()
    }

    fn received(&self) -> usize {
        self.recorder.0.lock().len()
    }

    fn relayed(&self, topic: &str, message: &WakuMessage) -> Verdict {
        self.intake.take_relayed(topic, message.to_wire())
    }
}

fn message(age_seconds: i64) -> WakuMessage {
    WakuMessage {
        payload: "p".into(),
        content_topic: "/toy/1/chat/proto".into(),
        timestamp: Some(SystemClock.now().nanos() - age_seconds * NANOS_PER_SECOND),
        ..WakuMessage::default()
    }
}

#[tokio::test]
async fn relay_forwards_messages_that_are_too_old_to_be_archived() {
    let setup = Setup::new().await;
    assert_eq!(setup.relayed(TOPIC, &message(0)), Verdict::Accept);
    for unarchived in [message(3_600), message(-3_600), WakuMessage { timestamp: None, ..message(0) }] {
        assert_eq!(setup.relayed(TOPIC, &unarchived), Verdict::Accept);
    }
    assert_eq!(setup.relayed(TOPIC, &WakuMessage { ephemeral: Some(true), ..message(0) }), Verdict::Accept);
    setup.intake.close().await;
    assert_eq!((setup.received(), setup.archived().await), (5, 1));
}

#[tokio::test]
async fn senders_are_not_penalised_for_messages_that_only_we_refuse() {
    let setup = Setup::new().await;
    let ignored = [
        (TOPIC, WakuMessage { payload: vec![0; 20_000].into(), ..message(0) }),
        (TOPIC, WakuMessage { content_topic: String::new(), ..message(0) }),
        (TOPIC, WakuMessage { content_topic: "x".repeat(5_000), ..message(0) }),
        ("/waku/2/rs/43/0", message(0)),
    ];
    for (topic, message) in &ignored {
        assert_eq!(setup.relayed(topic, message), Verdict::Ignore, "{topic}");
    }
    let undecodable = setup.intake.take_relayed(TOPIC, Bytes::from_static(b"\xff\xff"));
    assert_eq!(undecodable, Verdict::Reject);
    let long_meta = WakuMessage { meta: Some(vec![0; 65].into()), ..message(0) };
    assert_eq!(setup.relayed(TOPIC, &long_meta), Verdict::Reject);
    setup.intake.close().await;
    assert_eq!((setup.received(), setup.archived().await), (0, 0));
}

/// When a client disconnected, its message was archived and never delivered.
#[tokio::test]
async fn a_message_is_delivered_after_its_client_has_disconnected() {
    let setup = Setup::new().await;
    let wire = message(0).to_wire();
    {
        let mut publish = Box::pin(setup.intake.publish(TOPIC, wire));
        assert!(futures_util::FutureExt::now_or_never(&mut publish).is_none(), "it is being archived");
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((setup.received(), setup.archived().await), (1, 1));
}

/// Records for each stage whether the intake was settled.
struct SettledProbe(Intake, parking_lot::Mutex<Vec<(Stage, bool)>>);

impl Listener for SettledProbe {
    fn on_message(&self, _: &Arc<Event>, stage: Stage) {
        let is_settled = futures_util::FutureExt::now_or_never(self.0.settled()).is_some();
        self.1.lock().push((stage, is_settled));
    }
}

/// A stream that subscribed in between missed the message: it was announced before it counted as in flight.
#[tokio::test]
async fn a_message_announced_before_it_is_archived_is_waited_for() {
    let mut probe = None;
    let setup = Setup::with_listeners(|intake| {
        let one = Arc::new(SettledProbe(intake.clone(), parking_lot::Mutex::default()));
        probe = Some(one.clone());
        vec![one]
    });
    let setup = setup.await;
    assert_eq!(setup.relayed(TOPIC, &message(0)), Verdict::Accept);
    setup.intake.settled().await;
    assert_eq!(setup.archived().await, 1);
    setup.intake.publish(TOPIC, message(1).to_wire()).await.unwrap();
    let ephemeral = WakuMessage { ephemeral: Some(true), ..message(2) };
    setup.intake.publish(TOPIC, ephemeral.to_wire()).await.unwrap();
    use Stage::{Accepted, Published, Relayed};
    assert_eq!(
        *probe.unwrap().1.lock(),
        [(Relayed, false), (Published, false), (Accepted, true), (Published, true), (Accepted, true)]
    );
}

/// An archive whose appends wait for a permit.
struct Stalling {
    inner: Arc<dyn Archive>,
    disk: tokio::sync::Semaphore,
    is_broken: std::sync::atomic::AtomicBool,
}

#[async_trait::async_trait]
impl Archive for Stalling {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, restante_archive::Error> {
        self.disk.acquire().await.unwrap().forget();
        if self.is_broken.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(restante_archive::Error::unavailable("the disk is gone"));
        }
        self.inner.append(messages).await
    }

    async fn query(&self, query: &Query) -> Result<restante_archive::Page, restante_archive::Error> {
        self.inner.query(query).await
    }
}

/// Records stages.
#[derive(Default)]
struct Stages(parking_lot::Mutex<Vec<Stage>>);

impl Listener for Stages {
    fn on_message(&self, _: &Arc<Event>, stage: Stage) {
        self.0.lock().push(stage);
    }
}

/// Otherwise each retry would be announced, and a client that subscribes between two of them would miss the message.
#[tokio::test]
async fn after_a_failed_append_messages_are_announced_when_they_are_archived() {
    let inner = open(Config::new("memory:".parse().unwrap())).await.unwrap().archive;
    let disk = tokio::sync::Semaphore::new(100);
    let archive = Arc::new(Stalling { inner, disk, is_broken: true.into() });
    let (clock, config, metrics) = (Arc::new(SystemClock), HandoverConfig::default(), Default::default());
    let intake = Intake::new(archive.clone(), clock, Rules::default(), config, metrics);
    let stages = Arc::new(Stages::default());
    intake.connect(vec![stages.clone()], None);
    let wire = message(0).to_wire();
    for _ in 0..3 {
        assert!(intake.publish(TOPIC, wire.clone()).await.is_err());
    }
    use Stage::{Accepted, Published, Refused};
    assert_eq!(*stages.0.lock(), [Published, Refused], "the first alone");
    archive.is_broken.store(false, std::sync::atomic::Ordering::SeqCst);
    intake.publish(TOPIC, wire).await.unwrap();
    intake.publish(TOPIC, message(1).to_wire()).await.unwrap();
    assert_eq!(stages.0.lock()[2..], [Published, Accepted, Published, Accepted]);
}

/// A stalled disk delayed live delivery: messages were announced only when they were durable.
#[tokio::test]
async fn publishers_wait_for_the_disk_and_subscribers_do_not() {
    let inner = open(Config::new("memory:".parse().unwrap())).await.unwrap().archive;
    let (disk, is_broken) = (tokio::sync::Semaphore::new(0), Default::default());
    let archive = Arc::new(Stalling { inner, disk, is_broken });
    let (clock, config, metrics) = (Arc::new(SystemClock), HandoverConfig::default(), Default::default());
    let intake = Intake::new(archive.clone(), clock, Rules::default(), config, metrics);
    let recorder = Arc::new(Recorder::default());
    intake.connect(vec![recorder.clone()], None);
    let publish = |wire: Bytes| {
        let intake = intake.clone();
        tokio::spawn(async move { intake.publish(TOPIC, wire).await })
    };
    let wire = message(0).to_wire();
    let published = publish(wire.clone());
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(recorder.0.lock().len() == 1 && !published.is_finished(), "announced, and not acknowledged");
    archive.is_broken.store(true, std::sync::atomic::Ordering::SeqCst);
    archive.disk.add_permits(1);
    assert!(published.await.unwrap().is_err());
    intake.settled().await; // a refused message is not waited for
    assert!(archive.query(&Query::default()).await.unwrap().is_empty());
    archive.is_broken.store(false, std::sync::atomic::Ordering::SeqCst);
    archive.disk.add_permits(1);
    assert!(publish(wire).await.unwrap().is_ok());
    assert_eq!(archive.query(&Query::default()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_hub_delivers_each_message_once_whether_it_is_archived_or_not() {
    use restante_sessions::{
        NodeId, SessionId,
        hub::{Interest, Next, Overflow, SubscriptionConfig, TopicMatch},
    };
    let hub = crate::live::standalone().await.unwrap().hub;
    let config =
        SubscriptionConfig { events_max: 9, bytes_max: 10_000, interests_max: 9, overflow: Overflow::End };
    let subscriber = hub.join(SessionId { opened_us: 1, node: NodeId(1), user_hash: 0 }, config).unwrap();
    let topics = TopicMatch::Exact("/toy/1/chat/proto".into());
    subscriber.subscribe(&[Interest { channel: Some(TOPIC.into()), topics }]).unwrap();
    let setup = Setup::with_listeners(|_| vec![Arc::new(hub.clone())]).await;
    let (archived, timeless) = (message(0), WakuMessage { timestamp: None, ..message(0) });
    for message in [&archived, &timeless, &archived, &timeless] {
        assert_eq!(setup.relayed(TOPIC, message), Verdict::Accept);
    }
    let Next::Events(events) = subscriber.next().await else { panic!("the subscription has ended") };
    let bodies: Vec<&Bytes> = events.iter().map(|event| &event.body).collect();
    assert_eq!(bodies, [&archived.to_wire(), &timeless.to_wire()]);
    assert_ne!(events[0].message_hash, events[1].message_hash);
    assert_eq!((events[0].timestamp.nanos(), events[1].timestamp.nanos()), (archived.timestamp.unwrap(), 0));
    let ephemeral = WakuMessage { ephemeral: Some(true), payload: "e".into(), ..message(0) };
    let published = setup.intake.publish(TOPIC, ephemeral.to_wire()).await.unwrap();
    assert!(!published.is_lost, "it has a subscriber");
    drop(subscriber);
    let ephemeral = WakuMessage { payload: "f".into(), ..ephemeral };
    assert!(setup.intake.publish(TOPIC, ephemeral.to_wire()).await.unwrap().is_lost);
}
