//! Who may submit mail, and how they log in.

use std::num::NonZero;

use restante_directory::{NewPassword, Operation, State};
use ring::{digest, hmac, pbkdf2};

use crate::{
    support::Client,
    users::{PASSWORD, Users, base64, plain},
};

const ANNA: &str = "anna@example.org";

#[tokio::test]
async fn sub1_plain_takes_its_response_with_the_command_or_after_it() {
    let users = Users::start().await;
    for identity in ["", ANNA, "Anna@Example.ORG"] {
        let response = plain(identity, ANNA, PASSWORD);
        let mut client = users.client().await;
        client.dialogue(&[(format!("AUTH PLAIN {response}").as_str(), "235 2.7.0")]).await;
        let mut client = users.client().await;
        client.dialogue(&[("auth plain", "334"), (response.as_str(), "235 2.7.0")]).await;
    }
    for wrong in [
        plain("bob@example.org", ANNA, PASSWORD),
        plain("", ANNA, "wrong"),
        plain("", "nobody@example.org", PASSWORD),
        plain("", "anna", PASSWORD),
        base64("anna@example.org"),
        base64(b"\xff\0a\0b"),
        "=".to_owned(),
    ] {
        let mut client = users.client().await;
        client.dialogue(&[(format!("AUTH PLAIN {wrong}").as_str(), "535 5.7.8")]).await;
        client.dialogue(&[("MAIL FROM:<anna@example.org>", "530 5.7.0")]).await;
    }
}

#[tokio::test]
async fn sub1_login_asks_for_the_name_and_the_password() {
    let users = Users::start().await;
    let (name, password) = (base64(ANNA), base64(PASSWORD));
    let mut client = users.client().await;
    client
        .dialogue(&[
            ("AUTH LOGIN", "334 VXNlcm5hbWU6"),
            (name.as_str(), "334 UGFzc3dvcmQ6"),
            (password.as_str(), "235 2.7.0"),
        ])
        .await;
    let mut client = users.client().await;
    let with_name = format!("AUTH LOGIN {name}");
    client.dialogue(&[(with_name.as_str(), "334 UGFzc3dvcmQ6"), (password.as_str(), "235 2.7.0")]).await;
    let mut client = users.client().await;
    client.dialogue(&[(with_name.as_str(), "334"), ("d3Jvbmc=", "535 5.7.8")]).await;
}

/// The client's last message, and the correct reply of the server.
fn scram_last(bare: &str, server: &str, password: &str) -> (String, String) {
    let field = |name: &str| server.split(',').find_map(|part| part.strip_prefix(name)).unwrap().to_owned();
    let salt = base64_simd::STANDARD.decode_to_vec(field("s=")).unwrap();
    let rounds = NonZero::new(field("i=").parse().unwrap()).unwrap();
    let mut salted = [0; 32];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, &salt, password.as_bytes(), &mut salted);
    let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text);
    let client_key = sign(&salted, b"Client Key");
    let stored_key = digest::digest(&digest::SHA256, client_key.as_ref());
    let without_proof = format!("c=biws,r={}", field("r="));
    let signed = format!("{bare},{server},{without_proof}");
    let signature = sign(stored_key.as_ref(), signed.as_bytes());
    let proof: Vec<u8> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
    let server_key = sign(&salted, b"Server Key");
    let answer = sign(server_key.as_ref(), signed.as_bytes());
    (format!("{without_proof},p={}", base64(proof)), format!("v={}", base64(answer)))
}

/// Runs the exchange up to the reply to the last message; returns it, and the correct reply.
async fn scram(client: &mut Client, password: &str) -> (String, String) {
    let bare = format!("n={ANNA},r=rOprNGfwEbeRWgbNEkqO");
    let reply = client.say(&format!("AUTH SCRAM-SHA-256 {}", base64(format!("n,,{bare}")))).await;
    let challenge = base64_simd::STANDARD.decode_to_vec(reply.strip_prefix("334 ").unwrap()).unwrap();
    let (last, answer) = scram_last(&bare, &String::from_utf8(challenge).unwrap(), password);
    (client.say(&base64(last)).await, answer)
}

#[tokio::test]
async fn sub1_scram_proves_the_password_on_both_sides() {
    let users = Users::start().await;
    let mut client = users.client().await;
    let (reply, answer) = scram(&mut client, PASSWORD).await;
    assert_eq!(reply, format!("334 {}", base64(answer)));
    client.dialogue(&[("", "235 2.7.0"), ("MAIL FROM:<anna@example.org>", "250")]).await;
    let mut client = users.client().await;
    assert!(scram(&mut client, "wrong").await.0.starts_with("535 5.7.8"));
    client.dialogue(&[("MAIL FROM:<anna@example.org>", "530")]).await;
    for wrong in ["AUTH SCRAM-SHA-256 =", "AUTH SCRAM-SHA-256 AAAA"] {
        client.dialogue(&[(wrong, "535 5.7.8")]).await;
    }
}

#[tokio::test]
async fn sub1_an_exchange_is_given_up_or_broken_off_without_a_log_in() {
    let users = Users::start().await;
    let mut client = users.client().await;
    client
        .dialogue(&[
            ("AUTH PLAIN", "334"),
            ("*", "501 5.7.0"),
            ("AUTH LOGIN", "334"),
            ("not base64", "501 5.5.2"),
            ("AUTH PLAIN a=b", "501 5.5.2"),
            ("AUTH CRAM-MD5", "504 5.5.4"),
            ("AUTH", "501 5.5.4"),
        ])
        .await;
    client.dialogue(&[("AUTH PLAIN", "334")]).await;
    let long = "A".repeat(5_000);
    client.dialogue(&[(long.as_str(), "500 5.5.6"), ("MAIL FROM:<anna@example.org>", "530")]).await;
}

#[tokio::test]
async fn sub1_an_application_password_logs_in_and_does_not_when_it_was_removed() {
    let users = Users::start().await;
    let (address, application) = (ANNA.parse().unwrap(), Some("phone".to_owned()));
    let password = NewPassword::Given("of the phone".to_owned());
    let set = Operation::SetPassword { address, application: application.clone(), password };
    users.operate(set).await;
    let line = format!("AUTH PLAIN {}", plain("", ANNA, "of the phone"));
    let mut client = users.client().await;
    client.dialogue(&[(line.as_str(), "235 2.7.0")]).await;
    users.operate(Operation::RemovePassword { address: ANNA.parse().unwrap(), application }).await;
    client.expect("421 4.7.0").await;
    let mut client = users.client().await;
    client.dialogue(&[(line.as_str(), "535 5.7.8")]).await;
}

#[tokio::test]
async fn sub1_one_log_in_for_a_connection_and_none_in_a_message() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    client.dialogue(&[("AUTH LOGIN", "503 5.5.1")]).await;
    let mut client = users.client().await;
    client.dialogue(&[("HELO client.example.net", "250"), ("AUTH LOGIN", "503 5.5.1")]).await;
}

#[tokio::test]
async fn sub2_nothing_is_submitted_without_a_log_in_and_no_password_is_asked_for_without_tls() {
    let users = Users::start().await;
    let mut client = users.plain().await;
    assert!(!client.say("EHLO client.example.net").await.contains("AUTH"));
    let line = format!("AUTH PLAIN {}", plain("", ANNA, PASSWORD));
    client
        .dialogue(&[
            ("AUTH LOGIN", "538 5.7.11"),
            (line.as_str(), "538 5.7.11"),
            ("MAIL FROM:<anna@example.org>", "530 5.7.0"),
            ("RCPT TO:<bob@example.org>", "503"),
        ])
        .await;
    let mut client = users.smtp().await;
    assert!(!client.say("EHLO client.example.net").await.contains("AUTH"));
    client
        .dialogue(&[
            ("AUTH LOGIN", "502 5.5.1"),
            ("MAIL FROM:<a@example.net> RET=FULL", "555 5.5.4"),
            ("MAIL FROM:<a@example.net> AUTH=<>", "555 5.5.4"),
            ("MAIL FROM:<a@example.net>", "250"),
            ("RCPT TO:<anna@example.org> NOTIFY=NEVER", "555 5.5.4"),
            ("RCPT TO:<x@example.net>", "554 5.7.1"),
        ])
        .await;
}

#[tokio::test]
async fn sub2_on_loopback_a_setting_allows_passwords_without_tls() {
    let users = Users::with(|_, submission| submission.allow_plaintext_loopback = true).await;
    let mut client = users.plain().await;
    assert!(client.say("EHLO client.example.net").await.contains("AUTH PLAIN LOGIN SCRAM-SHA-256"));
    let line = format!("AUTH PLAIN {}", plain("", ANNA, PASSWORD));
    client.dialogue(&[(line.as_str(), "235"), ("MAIL FROM:<anna@example.org>", "250")]).await;
}

#[tokio::test]
async fn sub2_what_was_said_before_tls_is_forgotten_with_the_log_in() {
    let users = Users::with(|_, submission| submission.allow_plaintext_loopback = true).await;
    let mut client = users.plain().await;
    let line = format!("AUTH PLAIN {}", plain("", ANNA, PASSWORD));
    client.dialogue(&[(line.as_str(), "235")]).await;
    client.send("STARTTLS\r\nMAIL FROM:<anna@example.org>\r\n").await;
    client.expect("503 5.5.1").await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn sub3_port_587_offers_what_submission_needs() {
    let users = Users::start().await;
    let mut client = users.client().await;
    let reply = client.say("EHLO client.example.net").await;
    let offered: Vec<&str> = reply.lines().map(|line| &line[4..]).collect();
    assert_eq!(
        offered,
        [
            "mail.example.org",
            "PIPELINING",
            "SIZE 70000000",
            "8BITMIME",
            "SMTPUTF8",
            "ENHANCEDSTATUSCODES",
            "CHUNKING",
            "AUTH PLAIN LOGIN SCRAM-SHA-256",
            "DSN",
            "FUTURERELEASE 2592000 2027-02-14T08:00:00Z",
        ]
    );
    let mut client = users.plain().await;
    assert!(client.say("EHLO client.example.net").await.contains("\r\n250-STARTTLS\r\n250-DSN\r\n"));
    client.dialogue(&[("LHLO client.example.net", "500")]).await;
}

#[tokio::test]
async fn sub4_port_465_begins_with_tls() {
    let users = Users::start().await;
    let mut client = users.immediate().await;
    let reply = client.say("EHLO client.example.net").await;
    assert!(reply.contains("AUTH PLAIN LOGIN SCRAM-SHA-256") && !reply.contains("STARTTLS"), "{reply}");
    client.dialogue(&[("STARTTLS", "503 5.5.1")]).await;
    let line = format!("AUTH PLAIN {}", plain("", ANNA, PASSWORD));
    client.dialogue(&[(line.as_str(), "235"), ("MAIL FROM:<anna@example.org>", "250")]).await;
}

#[tokio::test]
async fn sub5_log_ins_that_fail_are_limited_and_end_the_connection() {
    let users = Users::with(|smtp, _| smtp.errors_max = NonZero::new(3).unwrap()).await;
    let wrong = format!("AUTH PLAIN {}", plain("", ANNA, "wrong"));
    let mut replies = Vec::new();
    for _ in 0..5 {
        let mut client = users.client().await;
        for _ in 0..3 {
            replies.push(client.say(&wrong).await[..9].to_owned());
        }
        client.expect("421 4.7.0").await;
        assert!(client.is_closed().await);
    }
    assert_eq!(replies[..10], ["535 5.7.8"; 10], "an account has 10 failures at once");
    assert_eq!(replies[10..], ["454 4.7.0"; 5]);
    // The correct password isn't checked then, either: a client that guesses learns nothing.
    let right = format!("AUTH PLAIN {}", plain("", ANNA, PASSWORD));
    users.client().await.dialogue(&[(right.as_str(), "454 4.7.0")]).await;
}

#[tokio::test]
async fn sub8_a_log_in_that_does_not_hold_any_more_ends_the_connection() {
    let users = Users::start().await;
    let (mut anna, mut bob) = (users.anna().await, users.client().await);
    let line = format!("AUTH PLAIN {}", plain("", "bob@example.org", PASSWORD));
    bob.dialogue(&[(line.as_str(), "235")]).await;
    users.operate(Operation::SetState { address: ANNA.parse().unwrap(), state: State::Disabled }).await;
    anna.expect("421 4.7.0").await;
    assert!(anna.is_closed().await);
    bob.dialogue(&[("MAIL FROM:<bob@example.org>", "250")]).await;
}

#[tokio::test]
async fn sub8_a_message_is_not_queued_when_the_log_in_ends_while_it_comes() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    client
        .dialogue(&[
            ("MAIL FROM:<anna@example.org>", "250"),
            ("RCPT TO:<x@example.net>", "250"),
            ("DATA", "354"),
        ])
        .await;
    let password = NewPassword::Given("another one".to_owned());
    let set = Operation::SetPassword { address: ANNA.parse().unwrap(), application: None, password };
    users.operate(set).await;
    client.send("From: anna@example.org\r\n\r\ntext\r\n.\r\n").await;
    client.expect("421 4.7.0").await;
    assert!(client.is_closed().await);
    assert_eq!(users.sent.count(), 0);
}
