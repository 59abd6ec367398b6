use std::num::NonZeroU64;

use restante_core::ErrorKind;

use super::{testing::FakeFilter, *};
use crate::{ClientFacts, Envelope, Peer, Reverse};

const MESSAGE: &[u8] = b"Subject: Lunch\r\n\r\nA text.\r\n";

fn config(url: String) -> FilterConfig {
    FilterConfig { url, timeout_ms: NonZeroU64::new(200).unwrap(), ..FilterConfig::default() }
}

async fn judge(config: FilterConfig) -> Result<FilterVerdict, Error> {
    let filter = Rspamd::open(config)?.unwrap();
    let peer =
        Peer { address: "192.0.2.1".parse().unwrap(), hello: "mx.example.com".to_owned(), is_tls: false };
    let facts =
        ClientFacts { reverse: Reverse::Confirmed("mx.example.com".to_owned()), listings: Vec::new() };
    let recipients = ["anna@example.org", "bob@example.org"];
    let envelope = Envelope {
        peer: &peer,
        facts: &facts,
        id: "a-1",
        sender: "",
        recipients: &recipients,
        received: 1_700_000_000,
    };
    filter.judge(envelope, Bytes::from_static(MESSAGE)).await
}

#[tokio::test]
async fn chk17_a_filter_is_shown_the_envelope_and_its_answer_is_read() {
    let answer = r#"{"action": "add header", "score": 7.5, "required_score": 15.0, "symbols": {"A": {"score": 1.0},
        "B": {"score": -6.5}, "bad name": {"score": 9}}, "messages": {"smtp_message": "Spam\r\n message"}}"#;
    let fake = FakeFilter::start(Some((200, answer))).await;
    let said = judge(config(fake.url())).await.unwrap();
    assert_eq!((said.action, said.score, said.required), (FilterAction::Junk, 7.5, Some(15.0)));
    assert_eq!(
        (said.symbols, said.text.as_deref()),
        (vec!["B".to_owned(), "A".to_owned()], Some("Spam   message"))
    );
    let request = fake.requests.lock()[0].to_lowercase();
    assert!(request.starts_with("post /checkv2 http/1.1\r\n"), "{request}");
    for line in [
        "ip: 192.0.2.1",
        "helo: mx.example.com",
        "hostname: mx.example.com",
        "from: <>",
        "rcpt: anna@example.org",
        "rcpt: bob@example.org",
        "queue-id: a-1",
    ] {
        assert!(request.contains(&format!("\r\n{line}\r\n")), "{line}: {request}");
    }
    assert!(request.ends_with("subject: lunch\r\n\r\na text.\r\n"), "{request}");
}

#[tokio::test]
async fn chk16_a_filter_that_is_dead_slow_or_wrong_is_unavailable() {
    let closed = FakeFilter::start(None).await;
    let mut answers = vec![
        judge(config("http://127.0.0.1:1".to_owned())).await,
        judge(config(closed.url())).await, // never answers
    ];
    let long = "x".repeat(8 << 20);
    for (status, body) in [
        (500, "{}"),
        (403, ""),
        (200, ""),
        (200, "no json"),
        (200, r#"{"score": 1}"#),
        (200, r#"{"action": "dance", "score": 1}"#),
        (200, long.as_str()),
    ] {
        let fake = FakeFilter::start(Some((status, body))).await;
        answers.push(judge(config(fake.url())).await);
    }
    for answer in answers {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn chk18_lessons_go_to_the_controller_with_its_password() {
    let folder = tempfile::tempdir().unwrap();
    let password_file = folder.path().join("password");
    std::fs::write(&password_file, "secret\n").unwrap();
    for (status, body, expected) in [
        (200, r#"{"success":true}"#, None),
        (208, "{}", None), // it already knows the message
        (404, r#"{"error":"<x@y> has been already learned as spam, ignore it"}"#, None),
        (404, "Not found", Some(ErrorKind::Unavailable)),
        (204, "", Some(ErrorKind::Invalid)),
        (400, r#"{"error":"Empty body is not permitted"}"#, Some(ErrorKind::Invalid)),
        (401, "{}", Some(ErrorKind::Unavailable)),
        (403, "{}", Some(ErrorKind::Unavailable)),
        (503, "{}", Some(ErrorKind::Unavailable)),
        (500, r#"{"error":"invalid command"}"#, Some(ErrorKind::Unavailable)),
        (500, "{}", Some(ErrorKind::Internal)),
    ] {
        let fake = FakeFilter::start(Some((status, body))).await;
        let config = FilterConfig {
            learn_url: fake.url(),
            password_file: password_file.clone(),
            ..config(String::new())
        };
        let filter = Rspamd::open(config).unwrap().unwrap();
        for (lesson, path) in [(Lesson::Junk, "/learnspam"), (Lesson::NotJunk, "/learnham")] {
            let learned = filter.learn(lesson, Bytes::from_static(MESSAGE)).await;
            assert_eq!(learned.err().map(|error| error.kind()), expected, "{status} {body}");
            let request = fake.requests.lock().last().unwrap().clone();
            assert!(request.starts_with(&format!("POST {path} ")), "{request}");
            assert!(request.to_lowercase().contains("\r\npassword: secret\r\n"), "{request}");
        }
    }
}

#[test]
fn settings_that_can_not_work_are_named() {
    let problem = |config: FilterConfig| config.problem().map(|(setting, _)| setting);
    assert_eq!(problem(FilterConfig::default()), None);
    assert_eq!(
        problem(FilterConfig { url: "ftp://x".to_owned(), ..FilterConfig::default() }),
        Some("filter.url")
    );
    let password_file = "p".into();
    assert_eq!(
        problem(FilterConfig { password_file, ..FilterConfig::default() }),
        Some("filter.password_file")
    );
    assert!(Rspamd::open(FilterConfig::default()).unwrap().is_none());
}
