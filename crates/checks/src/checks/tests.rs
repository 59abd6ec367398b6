use std::{num::NonZeroU64, sync::Arc, time::Duration};

use parking_lot::Mutex;
use restante_core::{ManualClock, Timestamp, nonzero};
use restante_net::dns::{Answer, FixedResolver};
use tokio::time::{Instant, sleep};

use super::*;
use crate::{Action, Disposition, FilterAction, Outcome, Reverse, Verdict};

const MESSAGE: &[u8] = b"From: a@example.com\r\nSubject: Lunch\r\n\r\nA text.\r\n";

/// A client whose checks take some time.
struct SlowClient(Duration);

#[async_trait]
impl ClientChecking for SlowClient {
    async fn client(&self, _address: IpAddr) -> ClientFacts {
        sleep(self.0).await;
        ClientFacts { reverse: Reverse::None, listings: Vec::new() }
    }

    async fn has_good_hello(&self, _peer: &Peer) -> bool {
        sleep(self.0).await;
        false
    }

    async fn sender(&self, _peer: &Peer, _facts: &ClientFacts, _sender: &str) -> Result<(), Refused> {
        Ok(())
    }

    async fn recipient(&self, _: &Peer, _: &ClientFacts, _: &str, _: &str) -> Result<(), Refused> {
        Ok(())
    }
}

/// How a filter responds.
#[derive(Clone, Copy)]
enum TestFilter {
    Slow(Duration),
    Panics,
    Says(FilterAction),
}

#[async_trait]
impl Filter for TestFilter {
    fn takes(&self, bytes: u64) -> bool {
        bytes < 1_000
    }

    async fn judge(&self, _envelope: Envelope<'_>, _raw: Bytes) -> Result<FilterVerdict, Error> {
        match self {
            Self::Slow(time) => {
                sleep(*time).await;
                Err(Error::unavailable("slow"))
            }
            Self::Panics => panic!("a test of a filter that panics"),
            Self::Says(action) => Ok(FilterVerdict {
                action: *action,
                score: 9.0,
                required: Some(6.0),
                symbols: vec!["A".to_owned(), "B".to_owned()],
                text: None,
            }),
        }
    }

    async fn learn(&self, _lesson: crate::Lesson, _raw: Bytes) -> Result<(), Error> {
        Ok(())
    }
}

#[derive(Default)]
struct Noted(Mutex<Vec<DmarcSeen>>);

impl ReportSink for Noted {
    fn note(&self, seen: DmarcSeen) {
        self.0.lock().push(seen);
    }
}

struct Setup {
    config: ChecksConfig,
    client: Duration,
    filter: Option<TestFilter>,
    names: AttachmentNames,
    resolver: Arc<FixedResolver>,
    reports: Arc<Noted>,
}

impl Setup {
    fn new() -> Self {
        let resolver = Arc::new(FixedResolver::new());
        Self {
            config: ChecksConfig { timeout_ms: nonzero!(1_000), ..ChecksConfig::default() },
            client: Duration::ZERO,
            filter: None,
            names: Arc::new(|_, _| Some(Vec::new())),
            resolver,
            reports: Arc::default(),
        }
    }

    fn checks(&self) -> Checks {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_700_000_000)));
        let timeout = Duration::from_millis(NonZeroU64::get(self.config.timeout_ms));
        let parts = Parts {
            hostname: "mx.example.org".to_owned(),
            authenticator: Authenticator::new(self.resolver.clone(), clock, timeout),
            client: Arc::new(SlowClient(self.client)),
            filter: self.filter.map(|filter| Arc::new(filter) as Arc<dyn Filter>),
            attachment_names: self.names.clone(),
            reports: Some(self.reports.clone()),
            metrics: ChecksMetrics::default(),
        };
        Checks::new(self.config.clone(), parts).unwrap()
    }

    async fn judge(&self) -> Judgement {
        self.judge_raw(Bytes::from_static(MESSAGE)).await
    }

    async fn judge_raw(&self, raw: Bytes) -> Judgement {
        let peer =
            Peer { address: "192.0.2.1".parse().unwrap(), hello: "mx.example.com".to_owned(), is_tls: false };
        let envelope = Envelope {
            peer: &peer,
            facts: &ClientFacts::UNKNOWN,
            id: "a-1",
            sender: "a@example.com",
            recipients: &["anna@example.org"],
            received: 1_700_000_000,
        };
        self.checks().message(envelope, raw).await
    }
}

#[tokio::test(start_paused = true)]
async fn chk19_all_checks_together_have_one_bound_in_time() {
    let day = Duration::from_secs(86_400);
    let names: AttachmentNames = Arc::new(|_, _| Some(vec!["a.exe".to_owned()]));
    let setup = Setup {
        client: day,
        filter: Some(TestFilter::Slow(day)),
        names,
        config: ChecksConfig { hello: Action::Junk, ..Setup::new().config },
        ..Setup::new()
    };
    let begun = Instant::now();
    let judged = setup.judge().await;
    assert!(begun.elapsed() < Duration::from_millis(1_100), "{:?}", begun.elapsed());
    assert_eq!(judged.verdict, Verdict::Accept);
    assert!(judged.fields.starts_with("Authentication-Results: mx.example.org"), "{}", judged.fields);
    let checks = setup.checks();
    assert_eq!(checks.client("192.0.2.1".parse().unwrap()).await, ClientFacts::UNKNOWN);
}

#[tokio::test]
async fn chk16_a_filter_that_fails_changes_nothing() {
    for fault in [TestFilter::Panics, TestFilter::Slow(Duration::ZERO)] {
        let judged = Setup { filter: Some(fault), ..Setup::new() }.judge().await;
        assert_eq!((judged.verdict, judged.filter), (Verdict::Accept, None));
        assert!(!judged.fields.contains("X-Spam-Status"), "{}", judged.fields);
    }
}

#[tokio::test]
async fn chk17_what_a_filter_says_stands_in_the_message_and_in_the_journal() {
    let setup = Setup { filter: Some(TestFilter::Says(FilterAction::Junk)), ..Setup::new() };
    let judged = setup.judge().await;
    assert_eq!(judged.verdict, Verdict::Junk("the filter's score is 9.0: A, B".to_owned()));
    assert_eq!(judged.filter.as_deref(), Some("the filter's score is 9.0: A, B"));
    let field = "X-Spam-Status: Yes, score=9.0 required=6.0\r\n\ttests=A,\r\n\tB\r\n";
    assert!(judged.fields.ends_with(field), "{}", judged.fields);
    let judged = Setup { filter: Some(TestFilter::Says(FilterAction::None)), ..Setup::new() }.judge().await;
    assert!(judged.fields.contains("X-Spam-Status: No, score=9.0"), "{}", judged.fields);
    let long = Bytes::from([MESSAGE, &[b'x'; 1_000]].concat());
    assert_eq!(setup.judge_raw(long).await.filter, None, "it takes no long messages");
}

#[tokio::test]
async fn chk15_attachments_are_looked_for() {
    let seen = Arc::<Mutex<usize>>::default();
    let count = seen.clone();
    let names: AttachmentNames = Arc::new(move |raw, _| {
        *count.lock() += 1;
        assert_eq!(raw, MESSAGE);
        Some(vec!["notes.txt".to_owned(), "Setup.EXE".to_owned()])
    });
    let config = ChecksConfig { attachments: vec!["*.exe".to_owned()], ..Setup::new().config };
    let judged = Setup { config, names: names.clone(), ..Setup::new() }.judge().await;
    let Verdict::Refuse(refused) = judged.verdict else { panic!("{judged:?}") };
    assert_eq!((refused.check, refused.code), ("attachment", 550));
    assert!(refused.text.contains("Setup.EXE"), "{}", refused.text);
    Setup { names, ..Setup::new() }.judge().await;
    assert_eq!(*seen.lock(), 1, "without patterns nothing is read");
}

#[tokio::test]
async fn chk15_an_attachment_is_not_hidden_by_more_parts_than_are_read() {
    let names: AttachmentNames = Arc::new(|_, _| None);
    let config = ChecksConfig { attachments: vec!["*.exe".to_owned()], ..Setup::new().config };
    let judged = Setup { config, names: names.clone(), ..Setup::new() }.judge().await;
    assert!(matches!(judged.verdict, Verdict::Refuse(_)), "{judged:?}");
    let judged = Setup { names, ..Setup::new() }.judge().await;
    assert_eq!(judged.verdict, Verdict::Accept, "nothing is asked for");
}

#[tokio::test]
async fn chk21_what_dmarc_found_is_noted_once_for_reports() {
    let setup = Setup::new();
    setup.judge().await;
    assert!(setup.reports.0.lock().is_empty(), "the domain has no record");
    let record = Answer::Found(vec!["v=DMARC1; p=reject".to_owned()]);
    setup.resolver.set_txt("_dmarc.example.com", record);
    let judged = setup.judge().await;
    let Verdict::Refuse(refused) = judged.verdict else { panic!("{judged:?}") };
    assert_eq!(refused.check, "dmarc");
    let noted = setup.reports.0.lock();
    assert_eq!(noted.len(), 1);
    assert_eq!((noted[0].disposition, noted[0].overridden), (Disposition::Reject, None));
    assert_eq!((noted[0].authentication.dmarc, noted[0].sender.as_str()), (Outcome::Fail, "a@example.com"));
}

#[test]
fn chk8_exempt_networks_are_those_of_the_setting() {
    let config = ChecksConfig { exempt: vec!["192.0.2.0/24".to_owned()], ..ChecksConfig::default() };
    let checks = Setup { config, ..Setup::new() }.checks();
    assert!(
        checks.is_exempt("192.0.2.200".parse().unwrap()) && !checks.is_exempt("127.0.0.1".parse().unwrap())
    );
    assert!(Setup::new().checks().is_exempt("127.3.2.1".parse().unwrap()));
    assert!(checks.claims_to_be_ours(b" mx.example.org; spf=pass"));
    let wrong = ChecksConfig { exempt: vec!["all".to_owned()], ..ChecksConfig::default() };
    let parts = checks.0.parts.clone();
    assert!(Checks::new(wrong, parts).err().unwrap().to_string().contains("checks.exempt"));
}
