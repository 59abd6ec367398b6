use restante_operate::{Door, Status};
use restante_smtp::{LmtpAddress, LmtpConfig, Parts, SmtpConfig, SmtpDoor};

use crate::support::Server;

#[tokio::test]
async fn a_stopped_door_takes_the_message_that_has_begun() {
    let server = Server::start().await;
    let (mut idle, mut busy) = (server.smtp().await, server.smtp().await);
    busy.begin().await;
    busy.dialogue(&[("DATA", "354")]).await;
    let door = server.door.clone();
    let closing = tokio::spawn(async move { door.close().await });
    idle.expect("421 4.3.2").await;
    busy.send("a: 1\r\n\r\n.\r\n").await;
    busy.expect("250 2.0.0").await;
    busy.expect("421 4.3.2").await;
    assert!(busy.is_closed().await && idle.is_closed().await);
    drop((busy, idle));
    closing.await.unwrap();
    assert_eq!(server.messages().len(), 1);
}

/// A client that hung in DATA made the stop of the server fail, and idle ones were closed late.
#[tokio::test]
async fn a_stop_closes_idle_clients_at_once_and_cuts_a_message_that_hangs() {
    let server = Server::with(|smtp, _| smtp.stop_timeout_ms = 200).await;
    let (mut idle, mut hanging) = (server.smtp().await, server.smtp().await);
    hanging.begin().await;
    hanging.dialogue(&[("DATA", "354")]).await;
    hanging.send("a: 1\r\n").await;
    server.door.stop();
    idle.expect("421 4.3.2").await;
    let closed = tokio::time::timeout(std::time::Duration::from_secs(5), server.door.close()).await;
    closed.expect("it waits for no client");
    assert!(hanging.is_closed().await);
    assert!(server.messages().is_empty());
}

#[tokio::test]
async fn health_and_facts_say_what_is_served() {
    let server = Server::with(|smtp, _| smtp.listen.clear()).await;
    let health = server.door.health().await;
    assert_eq!(health[0].status, Status::NotMounted);
    assert_eq!((health[1].name, health[1].status), ("lmtp", Status::Ready));
    let services = server.door.facts("").services;
    assert_eq!((services[0]["isOn"].as_bool(), services[1]["isOn"].as_bool()), (Some(false), Some(true)));
}

#[tokio::test]
async fn an_address_that_is_in_use_and_settings_that_can_not_work_are_errors() {
    let server = Server::start().await;
    let parts = || Parts {
        recipients: server.recipients(),
        delivery: server.stored.clone(),
        journal: None,
        certificates: None,
        clock: std::sync::Arc::new(restante_core::SystemClock),
        submission: None,
        forwards: None,
        checks: None,
        quarantine: None,
        metrics: Default::default(),
        net: Default::default(),
    };
    let taken = SmtpConfig { listen: server.door.smtp_addresses().to_vec(), ..SmtpConfig::default() };
    let error = SmtpDoor::start(parts(), taken, LmtpConfig::default()).await.err().unwrap();
    assert!(error.to_string().contains("can't listen on 127.0.0.1:"), "{error}");
    let wrong = SmtpConfig { hostname: String::new(), ..SmtpConfig::default() };
    let error = SmtpDoor::start(parts(), wrong, LmtpConfig::default()).await.err().unwrap();
    assert!(error.to_string().contains("smtp.hostname"), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lmtp");
    let lmtp = LmtpConfig { listen: vec![LmtpAddress::Unix(path)], ..LmtpConfig::default() };
    let first = SmtpDoor::start(parts(), SmtpConfig::default(), lmtp.clone()).await.unwrap();
    let error = SmtpDoor::start(parts(), SmtpConfig::default(), lmtp).await.err().unwrap();
    assert!(error.to_string().contains("another process listens"), "{error}");
    first.close().await;
}
