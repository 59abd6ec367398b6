//! Tests are named by the rules of `docs/design/mail-rules.md`.

use std::{io::Read, net::IpAddr, sync::Arc};

use flate2::read::GzDecoder;
use quick_xml::{Reader, events::Event};
use restante_blobs::Blobs;
use restante_checks::{
    Authentication, Disposition, DkimSignature, DmarcSeen, Outcome, PolicyOverride, ReportSink, ReportsConfig,
};
use restante_core::{ManualClock, Timestamp};
use restante_mail::{
    dmarc::DmarcRows,
    kinds, message,
    queue::{ListFilter, Queue, QueuedRecipient, SourceKind},
};
use restante_net::dns::{Answer, FixedResolver};
use restante_records::{Config, EngineUrl, Schema, open};

use super::*;

const DAY: u64 = 19_675;
const FROM: &str = "postmaster@example.org";

fn seen(domain: &str, source: [u8; 4], is_pass: bool) -> DmarcSeen {
    let authentication = Authentication {
        spf: Outcome::SoftFail,
        spf_domain: "Bounces.example".into(),
        dkim: vec![DkimSignature {
            domain: domain.into(),
            selector: "s<&>\u{1}".into(),
            signature: "abc".into(),
            outcome: if is_pass { Outcome::Pass } else { Outcome::Fail },
        }],
        dmarc: if is_pass { Outcome::Pass } else { Outcome::Fail },
        is_dkim_aligned: is_pass,
        from: Some(domain.into()),
        from_fields: 1,
        dmarc_domain: Some(domain.into()),
        dmarc_record: Some(format!(
            "v=DMARC1; p=reject; pct=50; adkim=s; rua=mailto:a@{domain},mailto:out@reports.example!10m"
        )),
        ..Authentication::UNKNOWN
    };
    DmarcSeen {
        address: IpAddr::from(source),
        sender: "x@Bounces.example".into(),
        received: DAY * DAY_SECONDS + 5,
        authentication,
        disposition: if is_pass { Disposition::None } else { Disposition::Reject },
        overridden: None,
    }
}

struct Server {
    collector: DmarcCollector,
    rows: DmarcRows,
    queue: Queue,
    blobs: Arc<dyn Blobs>,
    clock: Arc<ManualClock>,
    resolver: Arc<FixedResolver>,
}

impl Server {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds((DAY * DAY_SECONDS) as i64)));
        let records = open(Config::new(EngineUrl::Memory, Schema::new(kinds()).unwrap())).await.unwrap();
        let blobs = restante_blobs::Config::new(restante_blobs::EngineUrl::Memory);
        let blobs = restante_blobs::open(blobs).await.unwrap().blobs;
        let rows = DmarcRows::new(records.records.clone(), 10_000);
        Self {
            collector: DmarcCollector::new(rows.clone(), AggregateMetrics::default()),
            rows,
            queue: Queue::new(records.records, clock.clone()),
            blobs,
            clock,
            resolver: Arc::default(),
        }
    }

    fn reporter(&self, config: ReportsConfig) -> Reporter {
        Reporter::new(ReporterParts {
            rows: self.rows.clone(),
            queue: self.queue.clone(),
            blobs: self.blobs.clone(),
            resolver: self.resolver.clone(),
            clock: self.clock.clone(),
            config,
            hostname: "mail.example.org".into(),
            from: FROM.into(),
            metrics: AggregateMetrics::default(),
        })
    }

    async fn turn(&self) -> u64 {
        self.reporter(ReportsConfig { send: true, ..Default::default() }).turn().await.unwrap()
    }

    fn set_time(&self, seconds: u64) {
        self.clock.set(Timestamp::from_seconds(seconds as i64));
    }

    async fn note(&self, domain: &str) {
        self.collector.note(seen(domain, [192, 0, 2, 1], true));
        self.collector.write().await.unwrap();
    }

    /// The recipients in the queue.
    async fn queued(&self) -> Vec<QueuedRecipient> {
        let mut queued = self.queue.list(&ListFilter::default(), None, 100).await.unwrap().recipients;
        queued.sort_by(|a, b| a.recipient.address.cmp(&b.recipient.address));
        queued
    }

    async fn addresses(&self) -> Vec<String> {
        self.queued().await.into_iter().map(|queued| queued.recipient.address).collect()
    }

    async fn raw(&self, queued: &QueuedRecipient) -> Vec<u8> {
        let mut source = self.blobs.read(queued.message.blob, 0..u64::MAX).await.unwrap();
        let mut raw = Vec::new();
        while let Some(chunk) = source.next().await.unwrap() {
            raw.extend_from_slice(&chunk);
        }
        raw
    }

    async fn xml(&self, domain: &str) -> String {
        let feedback = feedback_of(&self.rows, DAY, domain, "mail.example.org", FROM).await.unwrap();
        write_xml(&feedback.unwrap())
    }
}

/// An element with its text or its children.
#[derive(Debug, Default)]
struct Element {
    name: String,
    text: String,
    children: Vec<Element>,
}

impl Element {
    fn names(&self) -> Vec<&str> {
        self.children.iter().map(|child| child.name.as_str()).collect()
    }

    fn child(&self, path: &str) -> &Self {
        path.split('/').fold(self, |at, name| {
            at.children.iter().find(|child| child.name == name).unwrap_or_else(|| panic!("{path}"))
        })
    }

    fn text(&self, path: &str) -> &str {
        &self.child(path).text
    }
}

/// Reads XML with an independent parser.
fn parse(xml: &str) -> Element {
    let mut reader = Reader::from_str(xml);
    let mut open = vec![Element::default()];
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) => {
                let name = String::from_utf8(start.name().as_ref().to_vec()).unwrap();
                open.push(Element { name, ..Element::default() });
            }
            Event::End(_) => {
                let mut element = open.pop().unwrap();
                element.text = element.text.trim().to_owned();
                open.last_mut().unwrap().children.push(element);
            }
            Event::Text(text) => open.last_mut().unwrap().text.push_str(&text.decode().unwrap()),
            Event::GeneralRef(name) => {
                let name = name.decode().unwrap();
                let text = quick_xml::escape::resolve_predefined_entity(&name).unwrap();
                open.last_mut().unwrap().text.push_str(text);
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(open.len(), 1);
    open.remove(0).children.remove(0)
}

/// Checks that the elements are those of RFC 7489 appendix C, in its order, with its values.
fn check_schema(feedback: &Element) {
    assert_eq!(feedback.name, "feedback");
    assert_eq!(feedback.names()[..3], ["version", "report_metadata", "policy_published"]);
    assert!(feedback.names()[3..].iter().all(|name| *name == "record") && feedback.children.len() > 3);
    assert_eq!(feedback.child("report_metadata").names(), ["org_name", "email", "report_id", "date_range"]);
    assert_eq!(feedback.child("report_metadata/date_range").names(), ["begin", "end"]);
    assert_eq!(
        feedback.child("policy_published").names(),
        ["domain", "adkim", "aspf", "p", "sp", "pct", "fo"]
    );
    for record in &feedback.children[3..] {
        assert_eq!(record.names(), ["row", "identifiers", "auth_results"]);
        assert_eq!(record.child("row").names(), ["source_ip", "count", "policy_evaluated"]);
        record.text("row/source_ip").parse::<IpAddr>().unwrap();
        assert!(record.text("row/count").parse::<u64>().unwrap() > 0);
        let evaluated = record.child("row/policy_evaluated");
        assert_eq!(evaluated.names()[..3], ["disposition", "dkim", "spf"]);
        assert!(evaluated.names()[3..].iter().all(|name| *name == "reason"));
        assert!(["none", "quarantine", "reject"].contains(&evaluated.text("disposition")));
        assert_eq!(record.child("identifiers").names(), ["envelope_from", "header_from"]);
        for result in &record.child("auth_results").children {
            let results = ["none", "pass", "fail", "neutral", "temperror", "permerror"];
            match result.name.as_str() {
                "dkim" => {
                    assert_eq!(result.names(), ["domain", "selector", "result"]);
                    assert!(results.contains(&result.text("result")));
                }
                "spf" => {
                    assert_eq!(result.names(), ["domain", "scope", "result"]);
                    assert!(["helo", "mfrom"].contains(&result.text("scope")));
                    let value = result.text("result");
                    assert!(results.contains(&value) || value == "softfail");
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[tokio::test]
async fn chk21_a_report_is_well_formed_and_counts_each_message_once() {
    let server = Server::new().await;
    for _ in 0..3 {
        server.collector.note(seen("a.example", [192, 0, 2, 1], true));
    }
    server.collector.write().await.unwrap();
    server.collector.note(seen("a.example", [192, 0, 2, 1], true));
    server.collector.note(DmarcSeen {
        overridden: Some(PolicyOverride::LocalPolicy),
        sender: String::new(),
        ..seen("a.example", [192, 0, 2, 2], false)
    });
    server.collector.note(seen("b.example", [192, 0, 2, 2], false));
    server.collector.write().await.unwrap();
    server.collector.write().await.unwrap();

    let report = parse(&server.xml("a.example").await);
    check_schema(&report);
    assert_eq!(report.text("report_metadata/report_id"), "19675.a.example");
    assert_eq!(report.text("report_metadata/date_range/begin"), (DAY * DAY_SECONDS).to_string());
    assert_eq!(report.text("report_metadata/date_range/end"), ((DAY + 1) * DAY_SECONDS - 1).to_string());
    for (name, value) in
        [("p", "reject"), ("sp", "reject"), ("pct", "50"), ("adkim", "s"), ("aspf", "r"), ("fo", "0")]
    {
        assert_eq!(report.text(&format!("policy_published/{name}")), value, "{name}");
    }
    let (four, one) = (&report.children[3], &report.children[4]);
    assert_eq!((report.children.len(), four.text("row/count"), one.text("row/count")), (5, "4", "1"));
    assert_eq!(four.text("identifiers/envelope_from"), "bounces.example");
    assert_eq!(four.text("auth_results/dkim/selector"), "s<&>\u{fffd}", "senders write no XML");
    assert_eq!(one.text("identifiers/envelope_from"), "");
    assert_eq!(one.text("auth_results/spf/scope"), "helo");
    assert_eq!(one.text("row/policy_evaluated/reason/type"), "local_policy");
}

#[tokio::test]
async fn chk21_names_of_any_length_are_cut() {
    let server = Server::new().await;
    server.note(&"ü".repeat(500)).await;
    let domains = server.rows.domains(DAY).await.unwrap();
    assert_eq!((domains.len(), domains[0].passed), (1, 1));
    server.collector.note(DmarcSeen {
        authentication: Authentication::UNKNOWN,
        ..seen("a.example", [192, 0, 2, 1], true)
    });
    server.collector.write().await.unwrap();
    assert_eq!(server.rows.domains(DAY).await.unwrap().len(), 1, "no record, no row");
}

#[tokio::test]
async fn chk22_a_report_is_sent_once_after_its_day() {
    let server = Server::new().await;
    server.note("a.example").await;
    server.set_time((DAY + 1) * DAY_SECONDS + 3_500);
    assert_eq!(server.turn().await, 0, "not within the first hour");
    server.set_time((DAY + 1) * DAY_SECONDS + 20_000);
    let off = server.reporter(ReportsConfig::default()).turn().await.unwrap();
    assert_eq!(off, 0, "not unless it is enabled");
    assert_eq!((server.turn().await, server.turn().await), (1, 0));
    assert_eq!(server.addresses().await, ["a@a.example"], "the other address was not verified");

    let queued = server.queued().await.remove(0);
    assert_eq!(
        (queued.message.source.kind, queued.message.sender.as_str()),
        (SourceKind::AggregateReport, FROM)
    );
    let notify = queued.recipient.notify;
    assert!(!notify.on_failure && !notify.on_delay && !notify.on_success);
    let raw = server.raw(&queued).await;
    let header = String::from_utf8_lossy(&raw).replace("\r\n ", " ");
    let subject =
        "Subject: Report Domain: a.example Submitter: mail.example.org Report-ID: <19675.a.example>\r\n";
    assert!(header.contains(subject) && header.contains("From: postmaster@example.org\r\n"), "{header}");
    let structure = message::structure(&raw);
    let parts: Vec<_> = structure.children(1).collect();
    assert_eq!(structure.part(1).unwrap().media_type, "multipart/mixed");
    assert_eq!((parts.len(), parts[1].media_type.as_str()), (2, "application/gzip"));
    let name =
        format!("mail.example.org!a.example!{}!{}.xml.gz", DAY * DAY_SECONDS, (DAY + 1) * DAY_SECONDS - 1);
    assert!(header.contains(&name), "{header}");
    let mut xml = String::new();
    let file = message::decoded(&raw, parts[1]).into_owned();
    GzDecoder::new(&file[..]).read_to_string(&mut xml).unwrap();
    check_schema(&parse(&xml));
}

/// If a server ends after it has queued a report and before it has recorded that, neither it nor another server queues the report again.
#[tokio::test]
async fn chk22_servers_that_report_at_once_send_one_report() {
    let server = Server::new().await;
    for domain in ["a.example", "b.example", "c.example"] {
        server.note(domain).await;
    }
    server.set_time((DAY + 1) * DAY_SECONDS + 20_000);
    let turns: Vec<_> = (0..3)
        .map(|_| {
            let reporter = server.reporter(ReportsConfig { send: true, ..Default::default() });
            tokio::spawn(async move { reporter.turn().await.unwrap() })
        })
        .collect();
    for turn in turns {
        turn.await.unwrap();
    }
    assert_eq!(server.addresses().await, ["a@a.example", "a@b.example", "a@c.example"]);
}

#[tokio::test]
async fn chk22_reports_go_to_verified_addresses_only() {
    let server = Server::new().await;
    for domain in ["a.example", "b.example", "c.example"] {
        server.note(domain).await;
    }
    let txt = |name: &str, text: &str| server.resolver.set_txt(name, Answer::Found(vec![text.into()]));
    txt("a.example._report._dmarc.reports.example", "v=DMARC1");
    txt(
        "b.example._report._dmarc.reports.example",
        "v=DMARC1; rua=mailto:b@reports.example,mailto:x@b.example",
    );
    server.resolver.set_txt("c.example._report._dmarc.reports.example", Answer::Temporary("slow".into()));
    server.set_time((DAY + 1) * DAY_SECONDS + 20_000);
    assert_eq!(server.turn().await, 2);
    let expected = ["a@a.example", "a@b.example", "b@reports.example", "out@reports.example"];
    assert_eq!(server.addresses().await, expected);
    // A result that is not known now is looked up again.
    txt("c.example._report._dmarc.reports.example", "v=DMARC2");
    assert_eq!(server.turn().await, 1);
    assert_eq!(server.addresses().await.len(), 5);
    assert_eq!(server.turn().await, 0);
}

#[tokio::test]
async fn chk22_a_domain_above_vouches_by_its_policy_and_a_public_suffix_does_not() {
    let resolver = FixedResolver::new();
    resolver.set_txt("_dmarc.example", Answer::Found(vec!["v=DMARC1; p=none; psd=y".into()]));
    resolver.set_txt("_dmarc.b.example", Answer::Found(vec!["v=DMARC1; p=none".into()]));
    let allowed = async |domain: &str, rua: &str| {
        let published = Published::parse(&format!("v=DMARC1; p=none; rua={rua}")).unwrap();
        let verified = destinations::verified(&resolver, domain, &published).await.unwrap();
        verified.into_iter().map(|destination| destination.address).collect::<Vec<_>>()
    };
    assert_eq!(allowed("b.example", "mailto:a@b.example").await, ["a@b.example"]);
    assert_eq!(allowed("b.example", "mailto:a@c.b.example").await, ["a@c.b.example"]);
    assert_eq!(allowed("c.b.example", "mailto:a@b.example").await, ["a@b.example"]);
    assert_eq!(allowed("c.b.example", "mailto:a@example").await, [""; 0]);
    assert_eq!(allowed("xb.example", "mailto:a@b.example").await, [""; 0]);
    let three = "mailto:1@b.example,mailto:1@b.example,mailto:2@b.example,mailto:3@b.example";
    assert_eq!(allowed("b.example", three).await, ["1@b.example", "2@b.example"], "two at most, each once");
}

#[test]
fn chk22_the_addresses_of_a_record_are_read_with_their_limits() {
    let rua = |value: &str| {
        let published = Published::parse(&format!("v=DMARC1; p=none; rua={value}")).unwrap();
        published.rua.into_iter().map(|it| (it.address, it.bytes_max)).collect::<Vec<_>>()
    };
    let of = |address: &str, limit| vec![(address.to_owned(), limit)];
    assert_eq!(rua("mailto:a@b.example"), of("a@b.example", None));
    assert_eq!(rua("MAILTO:a@b.example!10m"), of("a@b.example", Some(10 << 20)));
    assert_eq!(rua("mailto:a@b.example!500"), of("a@b.example", Some(500)));
    assert_eq!(rua("mailto:a%21b@b.example?subject=x"), of("a!b@b.example", None));
    for wrong in
        ["https://b.example/", "mailto:", "mailto:a", "mailto:a@b.example!10x", "mailto:%zz@b.example"]
    {
        assert_eq!(rua(wrong), [], "{wrong}");
    }
    assert_eq!(Published::parse("v=DMARC10; p=none"), None);
    assert_eq!(Published::parse("p=none; v=DMARC1"), None);
}

#[tokio::test]
async fn chk22_an_address_that_takes_less_gets_none() {
    let server = Server::new().await;
    let mut small = seen("a.example", [192, 0, 2, 1], true);
    small.authentication.dmarc_record = Some("v=DMARC1; p=none; rua=mailto:a@a.example!20".into());
    server.collector.note(small);
    server.collector.write().await.unwrap();
    server.set_time((DAY + 1) * DAY_SECONDS + 20_000);
    assert_eq!(server.turn().await, 0);
    assert!(server.rows.is_reported(DAY, "a.example").await.unwrap());
    server.set_time((DAY + 20) * DAY_SECONDS);
    server.turn().await;
    assert!(server.rows.days(10).await.unwrap().is_empty(), "old days are forgotten");
}
