//! Tests are named by the rules of `docs/design/mail-rules.md`.

use std::sync::Arc;

use bytes::Bytes;
use restante_blobs::Blobs;
use restante_core::{Clock, ErrorKind, ManualClock, Timestamp};
use restante_records::{Config, EngineUrl, Opened, RecordId, Schema, open};

use super::*;
use crate::kinds;

const START: u64 = 1_700_000_000;
const DAY: u64 = 86_400;

struct Store {
    opened: Opened,
    blobs: restante_blobs::Opened,
    clock: Arc<ManualClock>,
    quarantine: Quarantine,
}

impl Store {
    async fn new(config: QuarantineConfig) -> Self {
        Self::on(EngineUrl::Memory, restante_blobs::EngineUrl::Memory, config).await
    }

    async fn on(records: EngineUrl, blobs: restante_blobs::EngineUrl, config: QuarantineConfig) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(START as i64)));
        let mut records = Config::new(records, Schema::new(kinds()).unwrap());
        records.clock = clock.clone();
        let opened = open(records).await.unwrap();
        let blobs = restante_blobs::open(restante_blobs::Config::new(blobs)).await.unwrap();
        let quarantine = handle(&opened, &blobs.blobs, &clock, config);
        Self { opened, blobs, clock, quarantine }
    }

    /// Another server on the same stores.
    fn second(&self) -> Quarantine {
        handle(&self.opened, &self.blobs.blobs, &self.clock, QuarantineConfig::default())
    }

    async fn ids(&self) -> Vec<u64> {
        let page = self.quarantine.list(&ListFilter::default(), None, 500).await.unwrap();
        page.items.iter().map(|item| item.at - START).collect()
    }
}

fn handle(
    opened: &Opened,
    blobs: &Arc<dyn Blobs>,
    clock: &Arc<ManualClock>,
    config: QuarantineConfig,
) -> Quarantine {
    Quarantine::new(
        opened.records.clone(),
        blobs.clone(),
        clock.clone(),
        config,
        QuarantineMetrics::default(),
    )
}

/// A message that is received so many seconds after the start.
fn message(n: u8, recipients: &[&str]) -> NewQuarantined {
    let raw = format!(
        "Return-Path: <x@example.net>\r\nFrom: =?utf-8?q?J=C3=BCrgen?= <x@example.net>\r\nSubject: offer {n}\r\nMessage-ID: <m{n}@x>\r\n\r\ntext\r\n"
    );
    NewQuarantined {
        peer: Some("192.0.2.1".parse().unwrap()),
        hello: "mail.example.net".into(),
        reply_id: format!("reply-{n}"),
        sender: format!("x{n}@Example.net"),
        recipients: recipients.iter().map(|it| (*it).to_owned()).collect(),
        reason: "DMARC failed".into(),
        received: START + u64::from(n),
        is_utf8: false,
        digest: [n; 32],
        raw: Bytes::from(raw),
    }
}

#[tokio::test]
async fn chk20_a_message_is_kept_once_however_often_it_is_repeated() {
    let store = Store::new(QuarantineConfig::default()).await;
    let first = store.quarantine.keep(message(1, &["a@example.org", "b@example.org"])).await.unwrap();
    let again = store.second().keep(message(1, &["a@example.org", "b@example.org"])).await.unwrap();
    assert_eq!(first, again);
    let other = store.quarantine.keep(message(1, &["c@example.org"])).await.unwrap();
    assert_ne!(first, other, "for other recipients it is another one");
    assert_eq!(store.quarantine.totals().await.unwrap().messages, 2);
    let nobody = store.quarantine.keep(message(2, &[])).await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn chk20_several_servers_that_keep_the_same_at_once_keep_it_once() {
    let store = Store::new(QuarantineConfig::default()).await;
    let servers: Vec<Quarantine> = (0..4).map(|_| store.second()).collect();
    let keep = |n: usize| {
        let server = servers[n % 4].clone();
        tokio::spawn(async move { server.keep(message((n / 4) as u8, &["a@example.org"])).await.unwrap() })
    };
    let tasks: Vec<_> = (0..32).map(keep).collect();
    for task in tasks {
        assert_eq!(task.await.unwrap().len(), 1);
    }
    assert_eq!(store.quarantine.totals().await.unwrap().messages, 8);
}

#[tokio::test]
async fn chk20_what_is_kept_can_be_looked_into() {
    let store = Store::new(QuarantineConfig::default()).await;
    let ids = store.quarantine.keep(message(1, &["A@example.org"])).await.unwrap();
    let kept = store.quarantine.get(ids[0]).await.unwrap().unwrap();
    assert_eq!((kept.subject.as_deref(), kept.at), (Some("offer 1"), START + 1));
    assert_eq!(kept.from.as_deref(), Some("Jürgen <x@example.net>"));
    assert_eq!((kept.reason.as_str(), kept.hello.as_str()), ("DMARC failed", "mail.example.net"));
    assert_eq!((kept.reply_id.as_str(), kept.message_id.as_deref()), ("reply-1", Some("m1@x")));
    assert_eq!((kept.digest, kept.recipients), ([1; 32], vec!["A@example.org".to_owned()]));
    let raw = store.quarantine.read(kept.blob).await.unwrap();
    assert_eq!((raw.clone(), kept.size), (message(1, &[]).raw, raw.len() as u64));
    let referenced = store.opened.upkeep.referenced(None).await.unwrap().blobs;
    assert_eq!(referenced, [kept.blob], "a sweep leaves it");
}

#[tokio::test]
async fn chk20_lists_are_in_pages_and_by_domain_and_recipient() {
    let store = Store::new(QuarantineConfig::default()).await;
    for n in 1..=5 {
        store.quarantine.keep(message(n, &["a@example.org"])).await.unwrap();
    }
    let mut other = message(6, &["B@example.org"]);
    other.sender = String::new();
    store.quarantine.keep(other).await.unwrap();
    assert_eq!(store.ids().await, [6, 5, 4, 3, 2, 1], "the newest first");
    let all = ListFilter::default();
    let first = store.quarantine.list(&all, None, 4).await.unwrap();
    let second = store.quarantine.list(&all, first.next.as_deref(), 4).await.unwrap();
    assert_eq!((first.items.len(), second.items.len(), second.next), (4, 2, None));
    let of = |domain: Option<&str>, recipient: Option<&str>| {
        let filter = ListFilter { domain: domain.map(Into::into), recipient: recipient.map(Into::into) };
        let quarantine = store.quarantine.clone();
        async move { quarantine.list(&filter, None, 100).await.unwrap().items.len() }
    };
    assert_eq!(of(Some("EXAMPLE.net"), None).await, 5);
    assert_eq!(of(Some(""), None).await, 1);
    assert_eq!(of(None, Some("b@EXAMPLE.org")).await, 1);
    assert_eq!(of(Some("example.net"), Some("b@example.org")).await, 0);
    assert_eq!(store.quarantine.list(&all, Some("zz"), 1).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn chk20_many_recipients_are_all_kept_in_one_commit() {
    let store = Store::new(QuarantineConfig::default()).await;
    let recipients: Vec<String> =
        (0..1_000).map(|n| format!("user{n}@{}.example", "x".repeat(230))).collect();
    let recipients: Vec<&str> = recipients.iter().map(String::as_str).collect();
    let ids = store.quarantine.keep(message(1, &recipients)).await.unwrap();
    assert_eq!(ids.len(), 10);
    let mut found = Vec::new();
    for id in &ids {
        found.extend(store.quarantine.get(*id).await.unwrap().unwrap().recipients);
    }
    assert_eq!(found, recipients);
    let mut again = store.quarantine.keep(message(1, &recipients)).await.unwrap();
    again.sort();
    assert_eq!(again, ids);
}

#[tokio::test]
async fn chk20_what_is_dropped_is_gone_and_a_second_time_changes_nothing() {
    let store = Store::new(QuarantineConfig::default()).await;
    let ids = store.quarantine.keep(message(1, &["a@example.org"])).await.unwrap();
    store.quarantine.keep(message(2, &["a@example.org"])).await.unwrap();
    let twice = [ids[0], ids[0], RecordId(99)];
    assert_eq!(store.quarantine.remove(&twice, Leaving::Dropped).await.unwrap(), twice[..1]);
    assert_eq!(store.quarantine.remove(&ids, Leaving::Dropped).await.unwrap(), []);
    assert_eq!(store.quarantine.get(ids[0]).await.unwrap(), None);
    assert_eq!(store.ids().await, [2]);
}

#[tokio::test]
async fn chk20_the_oldest_go_after_their_days_and_when_there_are_too_many() {
    let config = QuarantineConfig { messages_max: restante_core::nonzero!(3), ..Default::default() };
    let store = Store::new(config).await;
    for n in 1..=5 {
        store.quarantine.keep(message(n, &["a@example.org"])).await.unwrap();
    }
    assert_eq!(store.ids().await, [5, 4, 3]);
    store.clock.set(store.clock.now().plus_seconds((30 * DAY + 4) as i64));
    assert_eq!(store.quarantine.expire().await.unwrap(), 1);
    assert_eq!(store.ids().await, [5, 4], "one that has exactly its days stays");

    let bytes = message(1, &[]).raw.len() as u64;
    let config = QuarantineConfig { bytes_max: (2 * bytes + 1).try_into().unwrap(), ..Default::default() };
    let store = Store::new(config).await;
    for n in [3, 2, 1] {
        store.quarantine.keep(message(n, &["a@example.org"])).await.unwrap();
    }
    assert_eq!(store.ids().await, [3, 1], "what was just kept never goes");
}

/// What other servers have kept counts from the next hour on.
#[tokio::test]
async fn chk20_expiry_counts_what_others_have_kept() {
    let config = QuarantineConfig { messages_max: restante_core::nonzero!(2), ..Default::default() };
    let store = Store::new(config).await;
    store.quarantine.keep(message(1, &["a@example.org"])).await.unwrap();
    for n in 2..=4 {
        store.second().keep(message(n, &["a@example.org"])).await.unwrap();
    }
    assert_eq!(store.quarantine.expire().await.unwrap(), 2);
    assert_eq!(store.ids().await, [4, 3]);
}

#[tokio::test]
async fn chk20_what_is_acknowledged_is_there_after_a_restart_on_lmdb() {
    let folder = tempfile::tempdir().unwrap();
    let records: EngineUrl = format!("lmdb:{}", folder.path().join("records").display()).parse().unwrap();
    let blobs: restante_blobs::EngineUrl =
        format!("files:{}", folder.path().join("blobs").display()).parse().unwrap();
    let store = Store::on(records.clone(), blobs.clone(), QuarantineConfig::default()).await;
    let ids = store.quarantine.keep(message(1, &["a@example.org"])).await.unwrap();
    store.opened.upkeep.close().await.unwrap();
    store.blobs.upkeep.close().await.unwrap();
    drop(store);
    let store = Store::on(records, blobs, QuarantineConfig::default()).await;
    let kept = store.quarantine.get(ids[0]).await.unwrap().unwrap();
    assert_eq!(store.quarantine.read(kept.blob).await.unwrap(), message(1, &[]).raw);
    assert_eq!(store.quarantine.keep(message(1, &["a@example.org"])).await.unwrap(), ids);
}
