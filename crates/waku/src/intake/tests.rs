use restante_archive::{Config, Query, open};
use restante_core::{NANOS_PER_SECOND, SystemClock};
use restante_waku_wire::WakuMessage;

use super::*;

const TOPIC: &str = "/waku/2/rs/42/0";

/// Remembers what it heard, once each.
#[derive(Default)]
struct Ear(parking_lot::Mutex<Vec<Arc<Event>>>);

impl Listener for Ear {
    fn hear(&self, event: &Arc<Event>, stage: Stage) {
        if matches!(stage, Stage::Published | Stage::Relayed) {
            self.0.lock().push(event.clone());
        }
    }
}

struct Way {
    intake: Intake,
    archive: Arc<dyn Archive>,
    ear: Arc<Ear>,
}

impl Way {
    async fn new() -> Self {
        Self::with_listeners(|_| Vec::new()).await
    }

    /// A way in that tells others beside the ear.
    async fn with_listeners(others: impl FnOnce(&Intake) -> Vec<Arc<dyn Listener>>) -> Self {
        let archive = open(Config::new("memory:".parse().unwrap())).await.unwrap().archive;
        let rules = Rules { cluster_id: Some(42), max_message_bytes: 10_000, ..Rules::default() };
        let (clock, config) = (Arc::new(SystemClock), HandoverConfig::default());
        let intake = Intake::new(archive.clone(), clock, rules, config, IntakeMetrics::default());
        let ear = Arc::new(Ear::default());
        let mut listeners = others(&intake);
        listeners.push(ear.clone());
        intake.connect(listeners, None);
        Self { intake, archive, ear }
    }

    async fn archived(&self) -> usize {
        self.archive.query(&Query::default()).await.unwrap().len()
    }

    fn heard(&self) -> usize {
        self.ear.0.lock().len()
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
async fn relay_accepts_what_others_may_want_and_the_archive_what_is_of_now() {
    let way = Way::new().await;
    assert_eq!(way.relayed(TOPIC, &message(0)), Verdict::Accept);
    for unarchived in [message(3_600), message(-3_600), WakuMessage { timestamp: None, ..message(0) }] {
        assert_eq!(way.relayed(TOPIC, &unarchived), Verdict::Accept);
    }
    assert_eq!(way.relayed(TOPIC, &WakuMessage { ephemeral: Some(true), ..message(0) }), Verdict::Accept);
    way.intake.close().await;
    assert_eq!((way.heard(), way.archived().await), (5, 1));
}

#[tokio::test]
async fn nobody_is_blamed_for_what_only_we_do_not_take() {
    let way = Way::new().await;
    let ignored = [
        (TOPIC, WakuMessage { payload: vec![0; 20_000].into(), ..message(0) }),
        (TOPIC, WakuMessage { content_topic: String::new(), ..message(0) }),
        (TOPIC, WakuMessage { content_topic: "x".repeat(5_000), ..message(0) }),
        ("/waku/2/rs/43/0", message(0)),
    ];
    for (topic, message) in &ignored {
        assert_eq!(way.relayed(topic, message), Verdict::Ignore, "{topic}");
    }
    let undecodable = way.intake.take_relayed(TOPIC, Bytes::from_static(b"\xff\xff"));
    assert_eq!(undecodable, Verdict::Reject);
    let long_meta = WakuMessage { meta: Some(vec![0; 65].into()), ..message(0) };
    assert_eq!(way.relayed(TOPIC, &long_meta), Verdict::Reject);
    way.intake.close().await;
    assert_eq!((way.heard(), way.archived().await), (0, 0));
}

/// A client that hung up took its message with it: it was archived, and nobody heard of it.
#[tokio::test]
async fn a_message_goes_on_when_its_client_has_left() {
    let way = Way::new().await;
    let wire = message(0).to_wire();
    {
        let mut publish = Box::pin(way.intake.publish(TOPIC, wire));
        assert!(futures_util::FutureExt::now_or_never(&mut publish).is_none(), "it is on its way");
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((way.heard(), way.archived().await), (1, 1));
}

/// Looks, whenever it is told of a message, whether the archive is said to have it.
struct Doubter(Intake, parking_lot::Mutex<Vec<(Stage, bool)>>);

impl Listener for Doubter {
    fn hear(&self, _: &Arc<Event>, stage: Stage) {
        let is_settled = futures_util::FutureExt::now_or_never(self.0.settled()).is_some();
        self.1.lock().push((stage, is_settled));
    }
}

/// A stream that joined between the two missed the message: it was told too early, and not yet waited for.
#[tokio::test]
async fn what_is_told_before_it_is_archived_is_waited_for() {
    let mut doubter = None;
    let way = Way::with_listeners(|intake| {
        let one = Arc::new(Doubter(intake.clone(), parking_lot::Mutex::default()));
        doubter = Some(one.clone());
        vec![one]
    });
    let way = way.await;
    assert_eq!(way.relayed(TOPIC, &message(0)), Verdict::Accept);
    way.intake.settled().await;
    assert_eq!(way.archived().await, 1);
    way.intake.publish(TOPIC, message(1).to_wire()).await.unwrap();
    let ephemeral = WakuMessage { ephemeral: Some(true), ..message(2) };
    way.intake.publish(TOPIC, ephemeral.to_wire()).await.unwrap();
    use Stage::{Accepted, Published, Relayed};
    assert_eq!(
        *doubter.unwrap().1.lock(),
        [(Relayed, false), (Published, false), (Accepted, true), (Published, true), (Accepted, true)]
    );
}

/// An archive that answers when it is told to.
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
            return Err(restante_archive::Error::new(ErrorKind::Unavailable, "the disk is gone"));
        }
        self.inner.append(messages).await
    }

    async fn query(&self, query: &Query) -> Result<restante_archive::Page, restante_archive::Error> {
        self.inner.query(query).await
    }
}

/// Remembers the stages that it heard of.
#[derive(Default)]
struct Stages(parking_lot::Mutex<Vec<Stage>>);

impl Listener for Stages {
    fn hear(&self, _: &Arc<Event>, stage: Stage) {
        self.0.lock().push(stage);
    }
}

/// Each try of a publisher would be told, and those who come between two tries would miss the message for good.
#[tokio::test]
async fn what_is_refused_is_taken_back_and_what_comes_then_is_told_when_it_is_archived() {
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

/// A stall of the disk kept messages from those who read live: publishing is durable, and they were told behind it.
#[tokio::test]
async fn those_who_are_here_do_not_wait_for_the_disk_and_those_who_publish_do() {
    let inner = open(Config::new("memory:".parse().unwrap())).await.unwrap().archive;
    let (disk, is_broken) = (tokio::sync::Semaphore::new(0), Default::default());
    let archive = Arc::new(Stalling { inner, disk, is_broken });
    let (clock, config, metrics) = (Arc::new(SystemClock), HandoverConfig::default(), Default::default());
    let intake = Intake::new(archive.clone(), clock, Rules::default(), config, metrics);
    let ear = Arc::new(Ear::default());
    intake.connect(vec![ear.clone()], None);
    let publish = |wire: Bytes| {
        let intake = intake.clone();
        tokio::spawn(async move { intake.publish(TOPIC, wire).await })
    };
    let wire = message(0).to_wire();
    let published = publish(wire.clone());
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(ear.0.lock().len() == 1 && !published.is_finished(), "told, and not acknowledged");
    archive.is_broken.store(true, std::sync::atomic::Ordering::SeqCst);
    archive.disk.add_permits(1);
    assert!(published.await.unwrap().is_err());
    intake.settled().await; // what was refused is waited for no longer
    assert!(archive.query(&Query::default()).await.unwrap().is_empty());
    archive.is_broken.store(false, std::sync::atomic::Ordering::SeqCst);
    archive.disk.add_permits(1);
    assert!(publish(wire).await.unwrap().is_ok());
    assert_eq!(archive.query(&Query::default()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_hub_hands_out_what_is_archived_and_what_is_not_once() {
    use restante_sessions::{
        NodeId, SessionId,
        hub::{Interest, Next, Overflow, SeatConfig, TopicMatch},
    };
    let hub = crate::live::alone().await.unwrap().hub;
    let config = SeatConfig { events_max: 9, bytes_max: 10_000, interests_max: 9, overflow: Overflow::End };
    let seat = hub.join(SessionId { opened_us: 1, node: NodeId(1), place: 0 }, config).unwrap();
    let topics = TopicMatch::Exact("/toy/1/chat/proto".into());
    seat.want(&[Interest { channel: Some(TOPIC.into()), topics }]).unwrap();
    let way = Way::with_listeners(|_| vec![Arc::new(hub.clone())]).await;
    let (archived, timeless) = (message(0), WakuMessage { timestamp: None, ..message(0) });
    for message in [&archived, &timeless, &archived, &timeless] {
        assert_eq!(way.relayed(TOPIC, message), Verdict::Accept);
    }
    let Next::Events(events) = seat.next().await else { panic!("the seat has ended") };
    let bodies: Vec<&Bytes> = events.iter().map(|event| &event.body).collect();
    assert_eq!(bodies, [&archived.to_wire(), &timeless.to_wire()]);
    assert_ne!(events[0].message_hash, events[1].message_hash);
    assert_eq!((events[0].timestamp.nanos(), events[1].timestamp.nanos()), (archived.timestamp.unwrap(), 0));
    let ephemeral = WakuMessage { ephemeral: Some(true), payload: "e".into(), ..message(0) };
    let published = way.intake.publish(TOPIC, ephemeral.to_wire()).await.unwrap();
    assert!(!published.is_lost, "somebody is there to get it");
    drop(seat);
    let ephemeral = WakuMessage { payload: "f".into(), ..ephemeral };
    assert!(way.intake.publish(TOPIC, ephemeral.to_wire()).await.unwrap().is_lost);
}
