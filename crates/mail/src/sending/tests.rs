use restante_core::{ManualClock, Timestamp};
use restante_records::{Config, EngineUrl, Schema, open};

use super::*;

const ACCOUNT: AccountId = AccountId(2_000);
const START: i64 = 1_800_000_000;
const RATES: SendingRates = SendingRates { messages_per_hour_max: 100, recipients_per_day_max: 1_000 };

struct Fixture {
    records: Arc<dyn Records>,
    clock: Arc<ManualClock>,
}

impl Fixture {
    async fn new() -> Self {
        let schema = Schema::new(crate::kinds()).unwrap();
        let opened = open(Config::new(EngineUrl::Memory, schema)).await.unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(START)));
        Self { records: opened.records, clock }
    }

    /// The limits of a server that has just started.
    fn limits(&self, rates: SendingRates) -> SendingLimits {
        SendingLimits::new(self.records.clone(), self.clock.clone(), rates, SendingMetrics::default())
    }

    fn pass(&self, seconds: i64) {
        self.clock.set(Timestamp::from_seconds(self.clock.now().seconds() + seconds));
    }
}

fn limit_of(result: Result<(), SendingRefused>) -> Option<SendingLimit> {
    match result {
        Ok(()) => None,
        Err(SendingRefused::Limited { limit, .. }) => Some(limit),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn sub5_the_message_after_the_hundredth_of_an_hour_is_refused_also_after_a_restart() {
    let fixture = Fixture::new().await;
    for number in 0..100 {
        assert_eq!(limit_of(fixture.limits(RATES).admit(ACCOUNT, 1).await), None, "{number}");
        fixture.pass(if number % 3 == 0 { 60 } else { 0 });
    }
    let limits = fixture.limits(RATES);
    assert_eq!(limit_of(limits.admit(ACCOUNT, 1).await), Some(SendingLimit::Messages));
    assert_eq!(limit_of(limits.admit(AccountId(2_001), 1).await), None, "another account sends on");
    let listed = limits.limited();
    assert_eq!((listed.len(), listed[0].account, listed[0].refused), (1, ACCOUNT, 1));
    let (limit, until) = limits.reached(ACCOUNT).unwrap();
    assert_eq!(limit, SendingLimit::Messages);
    fixture.clock.set(Timestamp::from_seconds(i64::try_from(until).unwrap()));
    assert_eq!(limits.reached(ACCOUNT), None);
    assert_eq!(limit_of(limits.admit(ACCOUNT, 1).await), None);
}

#[tokio::test]
async fn sub5_no_hour_has_more_messages_than_the_limit() {
    let fixture = Fixture::new().await;
    let limits = fixture.limits(SendingRates { recipients_per_day_max: 0, ..RATES });
    let mut admitted: Vec<i64> = Vec::new();
    for _ in 0..400 {
        let now = fixture.clock.now().seconds();
        if limits.admit(ACCOUNT, 1).await.is_ok() {
            admitted.push(now);
        }
        fixture.pass(17);
    }
    assert!(admitted.len() > 150);
    for (index, first) in admitted.iter().enumerate() {
        let in_hour = admitted[index..].iter().take_while(|time| **time < first + 3_600).count();
        assert!(in_hour <= 100, "{in_hour} in an hour");
    }
}

#[tokio::test]
async fn sub5_recipients_are_limited_by_day() {
    let fixture = Fixture::new().await;
    let limits = fixture.limits(RATES);
    assert!(matches!(
        limits.admit(ACCOUNT, 1_001).await,
        Err(SendingRefused::TooManyRecipients { max: 1_000 })
    ));
    assert_eq!(limit_of(limits.admit(ACCOUNT, 900).await), None);
    assert_eq!(limit_of(limits.admit(ACCOUNT, 101).await), Some(SendingLimit::Recipients));
    assert_eq!(limit_of(limits.admit(ACCOUNT, 100).await), None, "what fits is sent");
    fixture.pass(23 * 3_600);
    assert_eq!(limit_of(limits.admit(ACCOUNT, 1).await), Some(SendingLimit::Recipients));
    fixture.pass(2 * 3_600);
    assert_eq!(limit_of(limits.admit(ACCOUNT, 1_000).await), None);
}

#[tokio::test]
async fn sub5_messages_at_the_same_time_are_all_counted() {
    let fixture = Fixture::new().await;
    let servers = [fixture.limits(RATES), fixture.limits(RATES)];
    let sending = (0..300).map(|number| {
        let limits = servers[number % 2].clone();
        tokio::spawn(async move { limits.admit(ACCOUNT, 1).await })
    });
    let mut admitted = 0;
    for task in sending.collect::<Vec<_>>() {
        match task.await.unwrap() {
            Ok(()) => admitted += 1,
            Err(SendingRefused::Limited { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(admitted, 100);
}

#[tokio::test]
async fn sub5_without_limits_nothing_is_counted() {
    let fixture = Fixture::new().await;
    let none = SendingRates { messages_per_hour_max: 0, recipients_per_day_max: 0 };
    fixture.limits(none).admit(ACCOUNT, 1_000_000).await.unwrap();
    assert_eq!(fixture.records.states(ACCOUNT).await.unwrap().revision, Revision(0));
}
