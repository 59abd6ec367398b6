use restante_net::dns::{Answer, FixedResolver, SrvRecord};

use super::*;
use crate::dkim::Algorithm;

fn key(selector: &str, state: KeyState, public_key: &str) -> KeyInfo {
    let (domain, selector) = ("example.org".parse().unwrap(), selector.to_owned());
    let (algorithm, public_key) = (Algorithm::Rsa, public_key.to_owned());
    KeyInfo { domain, selector, algorithm, state, created: 0, changed: 0, public_key }
}

fn facts() -> DomainFacts {
    DomainFacts {
        domain: "example.org".parse().unwrap(),
        host: "mail.example.org".to_owned(),
        keys: vec![key("one", KeyState::Active, "AAAA"), key("two", KeyState::Waiting, &"B".repeat(300))],
        jmap: Some(("jmap.example.org".to_owned(), 443)),
        submission_port: Some(587),
        submissions_port: Some(465),
        mta_sts_policy: Some("version: STSv1\r\nmode: testing\r\n".to_owned()),
    }
}

fn srv(port: u16, target: &str) -> Answer<SrvRecord> {
    Answer::Found(vec![SrvRecord { priority: 0, weight: 1, port, target: target.to_owned() }])
}

/// A name server that has all records of [`facts`] as they are printed.
fn right() -> FixedResolver {
    let resolver = FixedResolver::new();
    let address = vec!["192.0.2.1".parse().unwrap()];
    for record in expected(&facts()) {
        match record.content {
            Content::Mx { preference, host } => resolver.add_mx(&record.name, &[(preference, &host)]),
            Content::Txt(text) => {
                let texts = vec!["google-site-verification=x".to_owned(), text];
                // Keys have no other texts at their name.
                let texts = texts.into_iter().skip(usize::from(record.purpose == Purpose::Dkim)).collect();
                resolver.set_txt(&record.name, Answer::Found(texts));
            }
            Content::Srv { port, target } => resolver.set_srv(&record.name, srv(port, &target)),
            Content::Cname(_) | Content::Address => {
                resolver.set_addresses(&record.name, Answer::Found(address.clone()));
            }
        }
    }
    resolver
}

async fn status(resolver: &FixedResolver, purpose: Purpose) -> Status {
    let found = check(&facts(), resolver).await;
    found.into_iter().find(|finding| finding.purpose == purpose).unwrap().status
}

#[test]
fn dns1_the_records_of_a_domain_are_lines_of_a_zone_file() {
    let lines: Vec<String> = expected(&facts()).iter().map(ToString::to_string).collect();
    let (b, rest) =
        ("B".repeat(255 - "v=DKIM1; k=rsa; p=".len()), "B".repeat(300 - 255 + "v=DKIM1; k=rsa; p=".len()));
    let expected = [
        "example.org. 3600 IN MX 10 mail.example.org.".to_owned(),
        "; mail.example.org. 3600 IN A the address of this server".to_owned(),
        "example.org. 3600 IN TXT \"v=spf1 mx -all\"".to_owned(),
        "one._domainkey.example.org. 3600 IN TXT \"v=DKIM1; k=rsa; p=AAAA\"".to_owned(),
        format!("two._domainkey.example.org. 3600 IN TXT \"v=DKIM1; k=rsa; p={b}\" \"{rest}\""),
        "_dmarc.example.org. 3600 IN TXT \"v=DMARC1; p=quarantine; rua=mailto:postmaster@example.org\""
            .to_owned(),
        "_jmap._tcp.example.org. 3600 IN SRV 0 1 443 jmap.example.org.".to_owned(),
        "_submission._tcp.example.org. 3600 IN SRV 0 1 587 mail.example.org.".to_owned(),
        "_submissions._tcp.example.org. 3600 IN SRV 0 1 465 mail.example.org.".to_owned(),
        "_smtp._tls.example.org. 3600 IN TXT \"v=TLSRPTv1; rua=mailto:postmaster@example.org\"".to_owned(),
        format!(
            "_mta-sts.example.org. 3600 IN TXT \"v=STSv1; id={}\"",
            policy_id("version: STSv1\r\nmode: testing\r\n")
        ),
        "mta-sts.example.org. 3600 IN CNAME mail.example.org.".to_owned(),
    ];
    assert_eq!(lines, expected);
    assert_eq!(quoted("a\"b\\c\u{e4}"), "\"a\\\"b\\\\c\\195\\164\"");
    // What is not offered is not announced.
    let bare = DomainFacts {
        jmap: None,
        submission_port: None,
        submissions_port: None,
        mta_sts_policy: None,
        ..facts()
    };
    assert!(
        super::expected(&bare)
            .iter()
            .all(|record| !matches!(record.content, Content::Srv { .. } | Content::Cname(_)))
    );
    assert_ne!(policy_id("a"), policy_id("b"));
}

#[tokio::test]
async fn dns2_right_missing_and_other_records_are_distinguished() {
    let all = check(&facts(), &right()).await;
    assert!(all.iter().all(|finding| finding.status == Status::Ok), "{all:#?}");
    let advised: Vec<&str> =
        all.iter().filter(|finding| finding.advice.is_some()).map(|finding| finding.name.as_str()).collect();
    assert_eq!(advised, ["two._domainkey.example.org"]);
    let nothing = check(&facts(), &FixedResolver::new()).await;
    assert_eq!(nothing.len(), 12);
    assert!(
        nothing.iter().all(|finding| finding.status == Status::Missing && finding.advice.is_some()),
        "{nothing:#?}"
    );
    let resolver = right();
    resolver.add_mx("example.org", &[(20, "mx.example.net"), (30, "MAIL.example.org.")]);
    assert_eq!(status(&resolver, Purpose::Mx).await, Status::Ok);
    for servers in [&[(10, "mx.example.net")][..], &[(0, ".")]] {
        resolver.add_mx("example.org", servers);
        assert_eq!(status(&resolver, Purpose::Mx).await, Status::Differs);
    }
    for (port, target) in [(444, "jmap.example.org"), (443, "example.org")] {
        resolver.set_srv("_jmap._tcp.example.org", srv(port, target));
        assert_eq!(status(&resolver, Purpose::Jmap).await, Status::Differs);
    }
    for (purpose, name, text, expected) in [
        (Purpose::Spf, "example.org", "v=spf1 a:mail.example.org ~all", Status::Ok),
        (Purpose::Spf, "example.org", "V=SPF1 +mx include:example.net -all", Status::Ok),
        (Purpose::Spf, "example.org", "v=spf1 include:example.net -all", Status::Unknown),
        (Purpose::Spf, "example.org", "v=spf1 mx +all", Status::Differs),
        (Purpose::Spf, "example.org", "v=spf1 -all", Status::Differs),
        (Purpose::Spf, "example.org", "v=spf10 mx", Status::Missing),
        (Purpose::Dmarc, "_dmarc.example.org", "v=DMARC1;p=none", Status::Ok),
        (Purpose::Dmarc, "_dmarc.example.org", "v=DMARC1; p=maybe", Status::Differs),
        (Purpose::Dmarc, "_dmarc.example.org", "p=reject", Status::Missing),
        (Purpose::TlsReports, "_smtp._tls.example.org", "v=TLSRPTv1;rua=https://x.example", Status::Ok),
        (Purpose::TlsReports, "_smtp._tls.example.org", "v=TLSRPTv1;", Status::Differs),
        (Purpose::MtaSts, "_mta-sts.example.org", "v=STSv1; id=1", Status::Differs),
        (Purpose::Dkim, "one._domainkey.example.org", "p=AA AA", Status::Ok),
        (Purpose::Dkim, "one._domainkey.example.org", "v=DKIM1; k=ed25519; p=AAAA", Status::Differs),
        (Purpose::Dkim, "one._domainkey.example.org", "v=DKIM1; p=", Status::Differs),
        (Purpose::Dkim, "one._domainkey.example.org", "v=DKIM1; p=BBBB", Status::Differs),
    ] {
        resolver.set_txt(name, Answer::Found(vec![text.to_owned()]));
        assert_eq!(status(&resolver, purpose).await, expected, "{text}");
    }
    let twice = vec!["v=spf1 mx -all".to_owned(), "v=spf1 mx ~all".to_owned()];
    resolver.set_txt("example.org", Answer::Found(twice));
    assert_eq!(status(&resolver, Purpose::Spf).await, Status::Differs);
    resolver.set_addresses("mta-sts.example.org", Answer::Found(vec!["192.0.2.9".parse().unwrap()]));
    assert_eq!(status(&resolver, Purpose::MtaStsHost).await, Status::Unknown);
}

#[tokio::test]
async fn dns3_without_an_answer_nothing_is_called_missing() {
    let resolver = FixedResolver::new();
    for record in expected(&facts()) {
        let why = || "no server answered".to_owned();
        resolver.set_mx(&record.name, Answer::Temporary(why()));
        resolver.set_txt(&record.name, Answer::Temporary(why()));
        resolver.set_srv(&record.name, Answer::Temporary(why()));
        resolver.set_addresses(&record.name, Answer::Temporary(why()));
    }
    let all = check(&facts(), &resolver).await;
    assert!(all.iter().all(|finding| finding.status == Status::Unknown), "{all:#?}");
    assert!(all.iter().all(|finding| finding.advice.as_ref().unwrap().contains("no server answered")));
}
