use restante_archive::{Config, Query, open};
use restante_core::{NANOS_PER_SECOND, SystemClock};
use restante_waku_wire::WakuMessage;

use super::*;

const TOPIC: &str = "/waku/2/rs/42/0";

/// Remembers what it heard.
#[derive(Default)]
struct Ear(parking_lot::Mutex<Vec<Arrival>>);

impl Listener for Ear {
    fn hear(&self, arrival: &Arrival) {
        self.0.lock().push(arrival.clone());
    }
}

struct Way {
    intake: Intake,
    archive: Arc<dyn Archive>,
    ear: Arc<Ear>,
}

impl Way {
    async fn new() -> Self {
        let archive = open(Config::new("memory:".parse().unwrap())).await.unwrap().archive;
        let rules = Rules { cluster_id: Some(42), max_message_bytes: 10_000, ..Rules::default() };
        let (clock, config) = (Arc::new(SystemClock), HandoverConfig::default());
        let intake = Intake::new(archive.clone(), clock, rules, config, IntakeMetrics::default());
        let ear = Arc::new(Ear::default());
        intake.connect(vec![ear.clone()], None);
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
