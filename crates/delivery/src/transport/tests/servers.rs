//! Several servers of a domain, and a smarthost for all.

use std::io::Write;

use super::{fake::Action, *};

const BOB: &str = "bob@example.net";

/// A domain with servers at 192.0.2.1, 192.0.2.2 and so on, preferred in this order.
fn several(fakes: &[&Fake]) -> SmtpRemote {
    let resolver = FixedResolver::new();
    let names: Vec<String> = (1..=fakes.len()).map(|n| format!("mx{n}.example.net")).collect();
    let records: Vec<(u16, &str)> = (1_u16..).zip(names.iter().map(String::as_str)).collect();
    resolver.add_mx(DOMAIN, &records);
    let mut servers = Vec::new();
    for (n, name) in (1..).zip(&names) {
        let address: std::net::IpAddr = format!("192.0.2.{n}").parse().unwrap();
        resolver.set_addresses(name, Answer::Found(vec![address]));
        servers.push(format!("192.0.2.{n}:25"));
    }
    let servers: Vec<(&str, &Fake)> = servers.iter().map(String::as_str).zip(fakes.iter().copied()).collect();
    let network = Arc::new(FakeNetwork::of(&servers));
    let parts = RemoteParts { resolver: Arc::new(resolver), network, ..parts(&Fake::new(&[])) };
    SmtpRemote::new(&RemoteConfig::default(), parts).unwrap()
}

async fn refused(remote: &SmtpRemote, domain: &str) -> (u16, String) {
    code(&remote.connect(domain).await.err().unwrap())
}

#[tokio::test(start_paused = true)]
async fn out6_the_next_server_is_tried_when_one_is_not_ready() {
    let (hanging, closed, refusing) =
        (Action::Hang, Action::Close, Action::Say("554 5.7.1 go away\r\n".into()));
    for first in [hanging, closed, refusing, Action::Say("421 4.3.2 busy\r\n".into())] {
        let (first, second) = (Fake::new(&[]).at("connect", first), Fake::new(&[]));
        let remote = several(&[&first, &second]);
        let attempted = remote.connect(DOMAIN).await.ok().unwrap().send(&plain(), &recipients(&[BOB])).await;
        assert_eq!(codes(&attempted), [is(250, "2.0.0")]);
        assert_eq!((first.log.lock().connections, second.messages().len()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn out14_a_domain_fails_for_good_only_when_all_of_its_servers_say_so() {
    let for_good = || Fake::new(&[]).says("connect", "554 5.7.1 go away");
    let for_now = || Fake::new(&[]).says("connect", "451 4.3.0 later");
    assert_eq!(refused(&several(&[&for_good(), &for_good()]), DOMAIN).await, is(554, "5.7.1"));
    assert_eq!(refused(&several(&[&for_good(), &for_now()]), DOMAIN).await, is(451, "4.3.0"));
    assert_eq!(refused(&several(&[&for_now(), &for_good()]), DOMAIN).await, is(451, "4.3.0"));
}

/// The preferred server could not be looked up, and the other one was a spam trap that refused all mail: that returned the mail.
#[tokio::test(start_paused = true)]
async fn out14_a_domain_does_not_fail_for_good_when_a_server_could_not_be_tried() {
    let resolver = FixedResolver::new();
    resolver.add_mx(DOMAIN, &[(10, "down.example.net"), (20, SERVER)]);
    resolver.set_addresses("down.example.net", Answer::Temporary("no answer".into()));
    resolver.set_addresses(SERVER, Answer::Found(vec!["192.0.2.1".parse().unwrap()]));
    let fake = Fake::new(&[]).says("connect", "554 5.7.1 go away");
    let parts = RemoteParts { resolver: Arc::new(resolver), ..parts(&fake) };
    let remote = SmtpRemote::new(&RemoteConfig::default(), parts).unwrap();
    let reply = remote.connect(DOMAIN).await.err().unwrap();
    assert_eq!(code(&reply), is(450, "4.4.3"));
    assert!(reply.text.contains("the server mx.example.net replied 554 "), "{}", reply.text);
}

#[tokio::test(start_paused = true)]
async fn out14_servers_that_can_not_be_reached_are_tried_again() {
    let remote = SmtpRemote::new(
        &RemoteConfig::default(),
        RemoteParts { network: Arc::new(FakeNetwork::of(&[])), ..parts(&Fake::new(&[])) },
    );
    assert_eq!(refused(&remote.unwrap(), DOMAIN).await, is(451, "4.4.1"));
    let silent = Fake::new(&[]).at("socket", Action::Hang);
    assert_eq!(refused(&remote_of(&silent), DOMAIN).await, is(451, "4.4.1"));
}

fn remote_of(fake: &Fake) -> SmtpRemote {
    super::remote(fake)
}

/// Five servers that each take almost five minutes to greet would hold a domain's mail for half an hour.
#[tokio::test(start_paused = true)]
async fn out14_all_servers_together_have_ten_minutes() {
    let slow = Fake::new(&[]).at("connect", Action::Hang);
    let before = tokio::time::Instant::now();
    assert_eq!(refused(&several(&[&slow, &slow, &slow, &slow]), DOMAIN).await, is(451, "4.4.1"));
    assert_eq!(before.elapsed().as_secs(), 600);
}

#[tokio::test(start_paused = true)]
async fn out8_a_server_with_our_own_name_is_this_one() {
    let fake = Fake::new(&[]).says("ehlo", "250 Mail.example.org");
    assert_eq!(refused(&super::remote(&fake), DOMAIN).await, is(554, "5.4.6"));
}

#[tokio::test(start_paused = true)]
async fn out9_a_domain_without_an_answer_of_the_dns_waits() {
    let resolver = FixedResolver::new();
    resolver.set_mx(DOMAIN, Answer::Temporary("no answer".into()));
    let parts = RemoteParts { resolver: Arc::new(resolver), ..parts(&Fake::new(&[])) };
    let remote = SmtpRemote::new(&RemoteConfig::default(), parts).unwrap();
    assert_eq!(refused(&remote, DOMAIN).await, is(450, "4.4.3"));
}

fn smarthost(config: &RemoteConfig, fake: &Fake, port: u16) -> SmtpRemote {
    let resolver = FixedResolver::new();
    resolver.set_addresses("smart.example.com", Answer::Found(vec!["192.0.2.9".parse().unwrap()]));
    let network = Arc::new(FakeNetwork::of(&[(&format!("192.0.2.9:{port}"), fake)]));
    let parts = RemoteParts { resolver: Arc::new(resolver), network, ..parts(fake) };
    SmtpRemote::new(config, parts).unwrap()
}

#[tokio::test(start_paused = true)]
async fn out12_a_smarthost_takes_mail_for_all_domains() {
    let config = RemoteConfig { smarthost: "smart.example.com:2525".into(), ..RemoteConfig::default() };
    let fake = Fake::new(&[]);
    let remote = smarthost(&config, &fake, 2_525);
    for domain in [DOMAIN, "missing.example"] {
        let attempted = remote.connect(domain).await.ok().unwrap().send(&plain(), &recipients(&[BOB])).await;
        assert_eq!(codes(&attempted), [is(250, "2.0.0")]);
    }
    assert_eq!(fake.messages().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn out12_what_a_smarthost_says_before_a_message_ends_no_mail() {
    let config = RemoteConfig { smarthost: "smart.example.com:2525".into(), ..RemoteConfig::default() };
    let fake = Fake::new(&[]).says("connect", "554 5.7.1 not you");
    assert_eq!(refused(&smarthost(&config, &fake, 2_525), DOMAIN).await, is(451, "4.7.1"));
    let other = RemoteConfig { smarthost: "missing.example.com:25".into(), ..RemoteConfig::default() };
    assert_eq!(refused(&smarthost(&other, &fake, 25), DOMAIN).await, is(450, "4.4.4"));
}

/// Passwords never go over a connection that is not encrypted.
#[tokio::test(start_paused = true)]
async fn out12_a_smarthost_without_tls_gets_no_password() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"anna:secret\n").unwrap();
    let config = RemoteConfig {
        smarthost: "smart.example.com:587".into(),
        smarthost_credentials: file.path().to_owned(),
        authorities: super::tls::Authority::new().file().to_owned(),
        ..RemoteConfig::default()
    };
    let fake = Fake::new(&["AUTH PLAIN LOGIN"]);
    let found = refused(&smarthost(&config, &fake, 587), DOMAIN).await;
    assert_eq!(found.0, 451, "{found:?}");
    assert_eq!(fake.count("AUTH"), 0);
    std::fs::write(file.path(), "no password\n").unwrap();
    assert_eq!(refused(&smarthost(&config, &fake, 587), DOMAIN).await, is(451, "4.7.8"));
}

#[tokio::test(start_paused = true)]
async fn out12_a_smarthost_with_tls_gets_the_password() {
    let authority = super::tls::Authority::new();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"anna:se:cret\n").unwrap();
    for (port, offer, expected) in [
        (587, "AUTH PLAIN LOGIN", vec!["AUTH PLAIN AGFubmEAc2U6Y3JldA=="]),
        (587, "AUTH LOGIN", vec!["AUTH LOGIN", "YW5uYQ==", "c2U6Y3JldA=="]),
    ] {
        let config = RemoteConfig {
            smarthost: format!("smart.example.com:{port}"),
            smarthost_credentials: file.path().to_owned(),
            authorities: authority.file().to_owned(),
            ..RemoteConfig::default()
        };
        let fake = Fake::new(&["STARTTLS", offer])
            .with_tls(authority.server("smart.example.com"))
            .says("AUTH", "235 2.7.0 welcome")
            .says("YW5uYQ==", "334 UGFzc3dvcmQ6")
            .says("c2U6Y3JldA==", "235 2.7.0 welcome");
        let fake = if expected.len() > 1 { fake.says("AUTH", "334 VXNlcm5hbWU6") } else { fake };
        let remote = smarthost(&config, &fake, port);
        let attempted = remote.connect(DOMAIN).await.map_err(|reply| format!("{reply:?}"));
        let attempted = attempted.unwrap().send(&plain(), &recipients(&[BOB])).await;
        assert_eq!(codes(&attempted), [is(250, "2.0.0")]);
        let commands = fake.commands();
        let begin = commands.iter().position(|line| line.starts_with("AUTH")).unwrap();
        assert_eq!(commands[begin..begin + expected.len()], expected);
        let refusing = fake.says("AUTH", "535 5.7.8 wrong");
        assert_eq!(refused(&smarthost(&config, &refusing, port), DOMAIN).await, is(454, "4.7.8"));
    }
}
