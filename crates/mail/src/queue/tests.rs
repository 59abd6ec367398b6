//! Tests are named by the rules of `docs/design/mail-rules.md`.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use restante_core::{BlobId, Clock, ManualClock, Timestamp};
use restante_records::{
    AccountId, Body, Change, Commit, Config, EngineUrl, Opened, RecordId, Schema, open,
    testing::{Hook, Hooked},
};

use super::*;
use crate::{kinds, schema::queued};

const START: u64 = 1_700_000_000;
const DAY: u64 = 86_400;

pub(super) struct Store {
    pub(super) opened: Opened,
    pub(super) clock: Arc<ManualClock>,
    pub(super) queue: Queue,
}

impl Store {
    pub(super) async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(START as i64)));
        let mut config = Config::new(EngineUrl::Memory, Schema::new(kinds()).unwrap());
        config.clock = clock.clone();
        let opened = open(config).await.unwrap();
        let queue = Queue::new(opened.records.clone(), clock.clone());
        Self { opened, clock, queue }
    }

    /// Another server on the same records.
    fn second(&self) -> Queue {
        Queue::new(self.opened.records.clone(), self.clock.clone())
    }

    fn pass(&self, seconds: u64) {
        self.clock.set(self.clock.now().plus_seconds(seconds as i64));
    }

    async fn blobs(&self) -> Vec<BlobId> {
        self.opened.upkeep.referenced(None).await.unwrap().blobs
    }

    async fn due(&self) -> Vec<QueuedId> {
        let mut due = Vec::new();
        for account in QueueAccount::all() {
            let page = self.queue.due(account, (0, self.queue.now()), None, 4_096).await.unwrap();
            due.extend(page.items.into_iter().map(|item| item.id));
        }
        due
    }

    async fn claim(&self, ids: &[QueuedId]) -> Vec<Claimed> {
        self.queue.claim(ids, self.queue.now() + 300).await.unwrap()
    }

    async fn end(&self, claimed: &Claimed, ending: Ending, notice: Option<NewMessage>) -> usize {
        let outcome = Outcome { endings: vec![(claimed.lease, ending)], notice };
        self.queue.end(&[outcome]).await.unwrap()
    }
}

pub(super) fn message(n: u8, kind: SourceKind, recipients: &[&str]) -> NewMessage {
    let recipients = recipients.iter().map(|address| NewRecipient {
        address: (*address).to_owned(),
        notify: Notify::default(),
        original: None,
    });
    NewMessage {
        source: Source {
            kind,
            account: Some(AccountId(2_000 + u32::from(n % 3))),
            record: RecordId(0),
            key: [n; 32],
        },
        blob: BlobId([n; 32]),
        size: 1_000,
        sender: "Anna@example.org".to_owned(),
        envelope_id: None,
        returned: None,
        transmission: Transmission::default(),
        due: START,
        recipients: recipients.collect(),
    }
}

pub(super) fn postponed(due: u64) -> Ending {
    let reply = Reply::own(451, "4.3.0", "later");
    Ending::Postponed { due, reply, is_delay_reported: false }
}

/// Accounts that can't be read.
struct Unreadable(BTreeSet<AccountId>);

#[async_trait]
impl Hook for Unreadable {
    async fn before_read(&self, account: AccountId) -> Result<(), Error> {
        match self.0.contains(&account) {
            true => Err(Error::corrupt("a page is damaged")),
            false => Ok(()),
        }
    }
}

#[tokio::test]
async fn qu1_a_message_is_added_once_however_often_it_is_repeated() {
    let store = Store::new().await;
    let first =
        store.queue.add(message(1, SourceKind::Smtp, &["a@example.net", "b@example.net"])).await.unwrap();
    let again =
        store.second().add(message(1, SourceKind::Smtp, &["b@example.net", "c@example.net"])).await.unwrap();
    assert_eq!(again[0], first[1]);
    assert_eq!(store.due().await.len(), 3);
    let twice = message(2, SourceKind::Smtp, &["a@example.net", "a@example.net"]);
    let ids = store.queue.add(twice).await.unwrap();
    assert_eq!(ids[0], ids[1]);
    let nobody = store.queue.add(message(3, SourceKind::Smtp, &[])).await.unwrap_err();
    assert_eq!(nobody.kind(), restante_core::ErrorKind::Invalid);
}

#[tokio::test]
async fn qu1_many_that_add_the_same_at_once_add_it_once() {
    let store = Store::new().await;
    let servers: Vec<Queue> = (0..4).map(|_| store.second()).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..40 {
        let queue = servers[n % 4].clone();
        tasks.spawn(
            async move { queue.add(message(1, SourceKind::Forward, &["a@example.net"])).await.unwrap() },
        );
    }
    let ids: BTreeSet<Vec<QueuedId>> = tasks.join_all().await.into_iter().collect();
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn qu1_what_a_forward_sent_is_not_sent_again_for_five_days() {
    let store = Store::new().await;
    for kind in [SourceKind::Forward, SourceKind::Submission, SourceKind::Vacation] {
        let new = || message(kind as u8, kind, &["a@example.net"]);
        let ids = store.queue.add(new()).await.unwrap();
        let claimed = store.claim(&ids).await;
        assert_eq!(store.end(&claimed[0], Ending::Delivered, None).await, 1);
        assert_eq!(store.queue.add(new()).await.unwrap(), ids, "{kind:?}");
        assert_eq!(store.due().await, []);
        assert_eq!(store.queue.get(ids[0]).await.unwrap(), None);
    }
    assert_eq!(store.queue.totals().await.unwrap().remembered, 3);
    assert_eq!(store.blobs().await, [], "what is remembered keeps no message");
    store.pass(5 * DAY);
    assert!(!store.queue.forget().await.unwrap());
    assert_eq!(store.queue.totals().await.unwrap().remembered, 3);
    store.pass(1);
    assert!(!store.queue.forget().await.unwrap());
    assert_eq!(store.queue.totals().await.unwrap(), Totals::default());
    let repeated =
        store.queue.add(message(SourceKind::Forward as u8, SourceKind::Forward, &["a@example.net"]));
    repeated.await.unwrap();
    assert_eq!(store.due().await.len(), 1);
}

#[tokio::test]
async fn qu2_recipients_of_a_message_are_in_one_reserved_account_and_keep_its_blob() {
    let store = Store::new().await;
    let mut accounts = BTreeSet::new();
    for n in 0..200 {
        let ids =
            store.queue.add(message(n, SourceKind::Smtp, &["a@example.net", "b@example.com"])).await.unwrap();
        assert_eq!(ids[0].account, ids[1].account);
        assert!((128..192).contains(&ids[0].account.0));
        accounts.insert(ids[0].account);
    }
    assert!(accounts.len() > 48, "they are spread: {}", accounts.len());
    assert_eq!(store.blobs().await.into_iter().collect::<BTreeSet<_>>().len(), 200);
    for id in store.due().await {
        let claimed = store.claim(&[id]).await;
        store.end(&claimed[0], Ending::Delivered, None).await;
    }
    assert_eq!(store.blobs().await, []);
}

#[tokio::test]
async fn qu2_a_message_with_very_many_recipients_is_added_whole() {
    let store = Store::new().await;
    let addresses: Vec<String> = (0..5_000).map(|n| format!("{n}@{}.example", "x".repeat(50))).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let ids = store.queue.add(message(1, SourceKind::Smtp, &addresses)).await.unwrap();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 5_000);
    assert_eq!(store.queue.add(message(1, SourceKind::Smtp, &addresses)).await.unwrap(), ids);
    assert_eq!(store.queue.get(ids[4_999]).await.unwrap().unwrap().recipient.address, addresses[4_999]);
}

#[tokio::test]
async fn qu3_one_of_several_senders_gets_a_recipient() {
    let store = Store::new().await;
    let ids =
        store.queue.add(message(1, SourceKind::Smtp, &["a@example.net", "b@example.net"])).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (queue, ids) = (store.second(), ids.clone());
        tasks.spawn(async move { queue.claim(&ids, START + 300).await.unwrap().len() });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), 2);
    assert_eq!(store.due().await, []);
}

#[tokio::test]
async fn qu3_a_lease_that_ends_without_an_outcome_is_due_again() {
    let store = Store::new().await;
    let ids = store.queue.add(message(1, SourceKind::Smtp, &["a@example.net"])).await.unwrap();
    let first = store.claim(&ids).await;
    assert_eq!((first[0].recipient.attempts, first[0].is_lease_lost), (1, false));
    store.pass(299);
    assert_eq!(store.claim(&ids).await, []);
    let renew = async |lease: Lease, until| store.queue.renew(&[lease], until, until).await.unwrap();
    assert_eq!(renew(first[0].lease, START + 700).await, [first[0].lease]);
    store.pass(300);
    assert_eq!(store.claim(&ids).await, []);
    store.pass(101);
    assert_eq!(store.due().await, ids);
    let second = store.claim(&ids).await;
    assert_eq!((second[0].recipient.attempts, second[0].is_lease_lost), (2, true));
    assert_eq!(renew(first[0].lease, START + 9_000).await, []);
}

/// A sender went on with a batch whose recipients others had got meanwhile, or an operator had dropped.
#[tokio::test]
async fn qu3_a_lease_is_valid_until_another_claims_or_an_operator_drops_or_holds() {
    let store = Store::new().await;
    let addresses = ["a@example.net", "b@example.net", "c@example.net"];
    let ids = store.queue.add(message(1, SourceKind::Smtp, &addresses)).await.unwrap();
    let account = ids[0].account;
    let leases: Vec<Lease> = store.claim(&ids).await.into_iter().map(|claimed| claimed.lease).collect();
    let before = store.opened.records.states(account).await.unwrap().revision;
    assert_eq!(store.queue.renew(&leases, START + 100, START + 600).await.unwrap(), leases);
    let after = store.opened.records.states(account).await.unwrap().revision;
    assert_eq!(before, after, "none ends so soon: nothing is committed");
    store.queue.drop_ids(&ids[..1]).await.unwrap();
    store.queue.hold(&Selection::Ids(vec![ids[1]]), "spam?").await.unwrap();
    store.pass(200);
    assert_eq!(store.queue.renew(&leases, START + 400, START + 600).await.unwrap(), leases[2..]);
    store.pass(399);
    assert_eq!(store.claim(&ids).await, [], "it was extended");
    store.pass(1);
    assert_eq!(store.claim(&ids).await.len(), 1);
    assert_eq!(store.queue.renew(&leases, START + 9_000, START + 9_000).await.unwrap(), []);
}

/// After a week in which the server was off, or the recipient held, the first refusal for now returned the mail.
#[tokio::test]
async fn qu4_time_in_which_nothing_was_tried_does_not_count_for_expiry() {
    let store = Store::new().await;
    let ids = store.queue.add(message(1, SourceKind::Smtp, &["a@example.net"])).await.unwrap();
    store.pass(3_600);
    let claimed = store.claim(&ids).await;
    assert_eq!(claimed[0].recipient.first_due, START, "an hour may be a long queue");
    let due = store.queue.now() + 300;
    store.end(&claimed[0], postponed(due), None).await;
    store.pass(300 + 7 * DAY);
    let claimed = store.claim(&ids).await;
    assert_eq!(claimed[0].recipient.first_due, START + 7 * DAY);
    let due = store.queue.now() + 300;
    store.end(&claimed[0], postponed(due), None).await;
    let all = Selection::Ids(ids.clone());
    store.queue.hold(&all, "wait").await.unwrap();
    store.pass(300 + 2 * DAY);
    store.queue.release(&all).await.unwrap();
    let recipient = store.queue.get(ids[0]).await.unwrap().unwrap();
    assert_eq!((recipient.first_due, recipient.due), (START + 9 * DAY, store.queue.now()));
}

#[tokio::test]
async fn qu4_returns_for_later_are_counted_until_an_attempt_is_noted() {
    let store = Store::new().await;
    let ids = store.queue.add(message(1, SourceKind::Smtp, &["a@example.net"])).await.unwrap();
    let returns = async || {
        let recipient = store.queue.get(ids[0]).await.unwrap().unwrap();
        assert_eq!(recipient.attempts, 0);
        recipient.returns
    };
    for expected in 0..3 {
        assert_eq!(returns().await, expected);
        let claimed = store.claim(&ids).await;
        assert_eq!(claimed[0].recipient.returns, expected);
        store.end(&claimed[0], Ending::Returned { due: store.queue.now() + 60 }, None).await;
        store.pass(60);
    }
    let claimed = store.claim(&ids).await;
    store.end(&claimed[0], Ending::Returned { due: store.queue.now() }, None).await;
    assert_eq!(returns().await, 3, "a server that stops returns it for now");
    let claimed = store.claim(&ids).await;
    store.end(&claimed[0], postponed(store.queue.now()), None).await;
    assert_eq!(store.queue.get(ids[0]).await.unwrap().unwrap().returns, 0);
}

/// A queue account that can't be changed kept those after it from being cleared.
#[tokio::test]
async fn qu1_what_has_ended_is_forgotten_though_another_account_can_not_be_read() {
    let store = Store::new().await;
    let ids = store.queue.add(message(1, SourceKind::Forward, &["a@example.net"])).await.unwrap();
    let claimed = store.claim(&ids).await;
    store.end(&claimed[0], Ending::Delivered, None).await;
    store.pass(5 * DAY + 1);
    let others = QueueAccount::all().map(QueueAccount::account);
    let unreadable = others.filter(|account| *account != ids[0].account).collect();
    let records = Arc::new(Hooked { inner: store.opened.records.clone(), hook: Unreadable(unreadable) });
    let queue = Queue::new(records, store.clock.clone());
    assert_eq!(queue.forget().await.unwrap_err().kind(), restante_core::ErrorKind::Corrupt);
    assert_eq!(store.queue.totals().await.unwrap().remembered, 0);
}

#[tokio::test]
async fn qu4_only_a_delivery_is_noted_after_the_lease_was_lost() {
    let store = Store::new().await;
    let ids = store.queue.add(message(1, SourceKind::Smtp, &["a@example.net"])).await.unwrap();
    let first = store.claim(&ids).await;
    store.pass(301);
    let second = store.claim(&ids).await;
    let notice = message(9, SourceKind::Report, &["anna@example.org"]);
    assert_eq!(store.end(&first[0], postponed(0), None).await, 0);
    assert_eq!(store.end(&first[0], Ending::Dropped, Some(notice)).await, 0);
    assert_eq!(store.queue.totals().await.unwrap().waiting, 1, "nothing was reported");
    assert_eq!(store.end(&first[0], Ending::Delivered, None).await, 1);
    assert_eq!(store.end(&second[0], postponed(0), None).await, 0, "it is gone");
    assert_eq!(store.queue.get(ids[0]).await.unwrap(), None);
}

#[tokio::test]
async fn qu4_an_outcome_and_its_report_are_one_commit() {
    let store = Store::new().await;
    let ids = store.queue.add(message(1, SourceKind::Smtp, &["a@example.net"])).await.unwrap();
    let claimed = store.claim(&ids).await;
    let account = ids[0].account;
    let before = store.opened.records.states(account).await.unwrap().revision;
    let notice = message(9, SourceKind::Report, &["anna@example.org"]);
    assert_eq!(store.end(&claimed[0], Ending::Dropped, Some(notice)).await, 1);
    let after = store.opened.records.states(account).await.unwrap().revision;
    assert_eq!(after.0, before.0 + 1);
    let due = store.due().await;
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].account, account);
    assert_eq!(store.queue.get(due[0]).await.unwrap().unwrap().message.source.kind, SourceKind::Report);
}

#[tokio::test]
async fn qu4_what_was_postponed_keeps_its_reply_and_its_first_time() {
    let store = Store::new().await;
    let mut new = message(1, SourceKind::Smtp, &["a@example.net"]);
    new.due = START + 7 * DAY;
    let ids = store.queue.add(new).await.unwrap();
    assert_eq!(store.claim(&ids).await, [], "it is delayed");
    store.pass(7 * DAY);
    let claimed = store.claim(&ids).await;
    let due = store.queue.now() + 300;
    assert_eq!(store.end(&claimed[0], postponed(due), None).await, 1);
    let recipient = store.queue.get(ids[0]).await.unwrap().unwrap();
    assert_eq!((recipient.due, recipient.first_due, recipient.attempts), (due, START + 7 * DAY, 1));
    assert_eq!(recipient.last.unwrap().reply.text, "later");
    assert!(!recipient.is_leased);
}

#[tokio::test]
async fn qu5_operators_hold_release_retry_and_drop() {
    let store = Store::new().await;
    let ids =
        store.queue.add(message(1, SourceKind::Smtp, &["a@example.net", "b@example.com"])).await.unwrap();
    let of_net =
        Selection::Matching(ListFilter { domain: Some("Example.NET".to_owned()), ..ListFilter::default() });
    assert_eq!(store.queue.hold(&of_net, "spam?").await.unwrap(), 1);
    assert_eq!(store.queue.hold(&of_net, "again").await.unwrap(), 0);
    assert_eq!(store.due().await, [ids[1]]);
    let held = store.queue.get(ids[0]).await.unwrap().unwrap();
    assert_eq!((held.state, held.reason.as_deref()), (QueuedState::Held, Some("spam?")));
    assert_eq!(store.claim(&ids[..1]).await, []);
    assert_eq!(store.queue.release(&Selection::Ids(ids.clone())).await.unwrap(), 1);
    assert_eq!(store.due().await.len(), 2);

    let claimed = store.claim(&ids[1..]).await;
    let all = Selection::Matching(ListFilter::default());
    assert_eq!(store.queue.retry(&all).await.unwrap(), 0, "what is being tried is not tried twice");
    // It is held while it is tried: its attempt counts, and then it stays.
    assert_eq!(store.queue.hold(&Selection::Ids(vec![ids[1]]), "wait").await.unwrap(), 1);
    assert_eq!(store.end(&claimed[0], postponed(START + 5_000), None).await, 1);
    assert_eq!(store.queue.get(ids[1]).await.unwrap().unwrap().state, QueuedState::Held);
    assert_eq!(store.queue.release(&all).await.unwrap(), 1);
    assert_eq!(store.due().await, [ids[0]], "its time has not come");
    assert_eq!(store.queue.retry(&all).await.unwrap(), 1);
    assert_eq!(store.due().await.len(), 2);
    assert_eq!(store.queue.drop_ids(&ids[..1]).await.unwrap(), ids[..1]);
    assert_eq!(store.queue.drop_ids(&ids).await.unwrap(), ids[1..], "the first one is gone");
    assert_eq!(store.queue.totals().await.unwrap(), Totals::default());
}

/// `retry --all` sent what its author had scheduled for next week.
#[tokio::test]
async fn qu5_what_is_scheduled_for_later_is_tried_now_only_when_it_is_named() {
    let store = Store::new().await;
    let mut new = message(1, SourceKind::Submission, &["a@example.net"]);
    new.due = START + 7 * DAY;
    let ids = store.queue.add(new).await.unwrap();
    let of_net =
        Selection::Matching(ListFilter { domain: Some("example.net".to_owned()), ..ListFilter::default() });
    for selection in [&of_net, &Selection::Matching(ListFilter::default())] {
        assert_eq!(store.queue.retry(selection).await.unwrap(), 0);
    }
    let recipient = store.queue.get(ids[0]).await.unwrap().unwrap();
    assert!(recipient.is_scheduled(START) && !recipient.is_scheduled(START + 7 * DAY));
    assert_eq!(store.queue.retry(&Selection::Ids(ids.clone())).await.unwrap(), 1);
    assert_eq!(store.due().await, ids);
}

#[tokio::test]
async fn qu6_lists_and_counts_give_each_recipient_once() {
    let store = Store::new().await;
    let mut all = BTreeSet::new();
    for n in 0..60 {
        let mut new = message(n, SourceKind::Smtp, &["a@example.net", "b@example.com", "c@example.net"]);
        new.sender = if n % 2 == 0 { "anna@example.org".to_owned() } else { String::new() };
        new.due = START + u64::from(n);
        all.extend(store.queue.add(new).await.unwrap());
    }
    let held: Vec<QueuedId> = all.iter().step_by(9).copied().collect();
    store.queue.hold(&Selection::Ids(held.clone()), "a test").await.unwrap();
    let domain = |domain: &str| ListFilter { domain: Some(domain.to_owned()), ..ListFilter::default() };
    let sender = |sender: &str| ListFilter { sender: Some(sender.to_owned()), ..ListFilter::default() };
    let account = ListFilter { account: Some(AccountId(2_001)), ..ListFilter::default() };
    let state = ListFilter { state: Some(QueuedState::Held), ..ListFilter::default() };
    let both = ListFilter { state: Some(QueuedState::Due), ..domain("example.net") };
    let held_net = {
        let mut count = 0;
        for id in &held {
            let recipient = store.queue.get(*id).await.unwrap().unwrap();
            count += usize::from(recipient.domain == "example.net");
        }
        count
    };
    for (filter, expected) in [
        (ListFilter::default(), 180),
        (domain("example.net"), 120),
        (domain("example.org"), 0),
        (sender("ANNA@example.org"), 90),
        (sender(""), 90),
        (account, 60),
        (state, held.len()),
        (both, 120 - held_net),
    ] {
        for limit in [1, 7, 1_000] {
            let mut found = Vec::new();
            let mut after: Option<ListCursor> = None;
            loop {
                let page = store.queue.list(&filter, after.as_ref(), limit).await.unwrap();
                assert!(page.recipients.len() <= limit);
                found.extend(page.recipients.iter().map(|recipient| recipient.id));
                let Some(next) = page.next else { break };
                let text = next.to_string();
                assert_eq!(text.parse::<ListCursor>().unwrap(), next);
                after = Some(next);
            }
            assert_eq!(found.len(), expected, "{filter:?}");
            assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), expected, "{filter:?}");
        }
    }
    let domains = store.queue.domains().await.unwrap();
    let counts: Vec<(&str, u64, u64)> =
        domains.iter().map(|domain| (domain.domain.as_str(), domain.recipients, domain.oldest_due)).collect();
    assert_eq!(counts, [("example.net", 120, START), ("example.com", 60, START)]);
    assert_eq!(domains.iter().map(|domain| domain.held).sum::<u64>(), held.len() as u64);
    let totals = store.queue.totals().await.unwrap();
    assert_eq!((totals.waiting, totals.held), (180 - held.len() as u64, held.len() as u64));
}

#[tokio::test]
async fn qu6_domains_that_are_too_long_for_an_index_stay_apart() {
    let store = Store::new().await;
    let long = |end: &str| format!("a@{}.{end}", vec!["x".repeat(60); 3].join("."));
    let (one, other) = (long("net"), long("org"));
    store.queue.add(message(1, SourceKind::Smtp, &[&one, &other])).await.unwrap();
    let filter = ListFilter { domain: one.split('@').nth(1).map(str::to_owned), ..ListFilter::default() };
    let page = store.queue.list(&filter, None, 10).await.unwrap();
    assert_eq!(
        page.recipients.iter().map(|found| found.recipient.address.as_str()).collect::<Vec<_>>(),
        [one]
    );
    assert_eq!(store.queue.domains().await.unwrap().len(), 2);
}

#[test]
fn qu6_texts_that_are_no_places_are_refused() {
    for text in ["", "1", "64-", "-", "1-0", "1-zz", "1-é", "a-00", "1-+1"] {
        assert!(text.parse::<ListCursor>().is_err(), "{text}");
    }
    for text in ["", "131", "127-1", "192-1", "131-x", "131--1"] {
        assert!(text.parse::<QueuedId>().is_err(), "{text}");
    }
    let id = QueuedId { account: AccountId(131), record: RecordId(17) };
    assert_eq!(id.to_string().parse::<QueuedId>().unwrap(), id);
}

#[tokio::test]
async fn qu7_a_restored_server_sends_nothing_until_it_is_released() {
    let store = Store::new().await;
    assert_eq!(store.queue.gate().await.unwrap(), None);
    let restored = store.second().restored(1);
    let held = restored.gate().await.unwrap().unwrap();
    assert_eq!(held.since, START);
    store.pass(60);
    assert_eq!(restored.gate().await.unwrap(), Some(held.clone()), "it is recorded");
    assert_eq!(store.second().restored(1).gate().await.unwrap(), Some(held));
    restored.release_all().await.unwrap();
    assert_eq!(restored.gate().await.unwrap(), None);
    assert!(store.second().restored(2).gate().await.unwrap().is_some(), "a second restore");
}

#[tokio::test]
async fn qu7_operators_hold_and_release_everything() {
    let store = Store::new().await;
    let held = store.queue.hold_all("maintenance").await.unwrap().unwrap();
    assert_eq!(held.why, "maintenance");
    assert!(store.queue.clone().was_held());
    assert_eq!(store.queue.hold_all("something else").await.unwrap(), Some(held.clone()));
    assert_eq!(store.second().gate().await.unwrap(), Some(held));
    store.second().release_all().await.unwrap();
    assert_eq!(store.queue.gate().await.unwrap(), None);
    assert!(!store.queue.was_held());
}

#[tokio::test]
async fn qu8_what_can_not_be_prepared_is_held_with_its_reason() {
    let store = Store::new().await;
    let ids = store.queue.add(message(1, SourceKind::Smtp, &["a@example.net"])).await.unwrap();
    for n in 1..=3 {
        let claimed = store.claim(&ids).await;
        let due = store.queue.now();
        store
            .end(
                &claimed[0],
                Ending::Faulted { due, why: "its blob is gone".to_owned(), faults_max: 3 },
                None,
            )
            .await;
        let recipient = store.queue.get(ids[0]).await.unwrap().unwrap();
        assert_eq!((recipient.faults, recipient.attempts), (n, 0));
        assert_eq!(recipient.state == QueuedState::Held, n == 3);
        assert_eq!(recipient.reason.as_deref(), Some("its blob is gone"));
    }
}

#[tokio::test]
async fn qu8_what_ends_the_server_again_and_again_is_held() {
    let store = Store::new().await;
    let ids = store.queue.add(message(1, SourceKind::Smtp, &["a@example.net"])).await.unwrap();
    for _ in 0..20 {
        assert_eq!(store.claim(&ids).await.len(), 1);
        store.pass(301);
    }
    assert_eq!(store.claim(&ids).await, []);
    let recipient = store.queue.get(ids[0]).await.unwrap().unwrap();
    assert_eq!(recipient.state, QueuedState::Held);
    assert!(recipient.reason.unwrap().contains("without an outcome"));
    // The operator may let it be tried again.
    assert_eq!(store.queue.release(&Selection::Ids(ids.clone())).await.unwrap(), 1);
    assert_eq!(store.claim(&ids).await.len(), 1);
}

#[tokio::test]
async fn qu8_a_record_that_can_not_be_read_is_held_and_harms_no_other() {
    let store = Store::new().await;
    let ids =
        store.queue.add(message(1, SourceKind::Smtp, &["a@example.net", "b@example.net"])).await.unwrap();
    let damaged = Change::Update {
        kind: queued::KIND,
        id: ids[0].record,
        body: Some(Body::new("{")),
        properties: None,
    };
    store.opened.records.commit(ids[0].account, Commit::of([damaged])).await.unwrap();
    let claimed = store.claim(&ids).await;
    assert_eq!(claimed.iter().map(|claim| claim.lease.id).collect::<Vec<_>>(), [ids[1]]);
    assert_eq!(store.due().await, []);
    assert_eq!(store.queue.totals().await.unwrap().held, 1);
    assert!(store.queue.get(ids[0]).await.is_err());
    assert_eq!(store.queue.list(&ListFilter::default(), None, 10).await.unwrap().recipients.len(), 1);
    let all = Selection::Ids(ids.clone());
    assert_eq!(store.queue.drop_all(&all).await.unwrap(), 2);
}

#[tokio::test]
async fn qu3_what_is_due_is_found_by_time_and_by_domain() {
    let store = Store::new().await;
    let mut new = message(1, SourceKind::Smtp, &["a@example.net", "b@example.com"]);
    new.due = START - 500;
    let ids = store.queue.add(new).await.unwrap();
    let account = QueueAccount::of_account(ids[0].account).unwrap();
    assert_eq!(store.queue.next_due(account, None).await.unwrap(), Some(START), "not before it was added");
    assert_eq!(store.queue.next_due(account, Some(START)).await.unwrap(), None);
    let found = store.queue.due_of(account, "example.com", START, 10).await.unwrap();
    assert_eq!(found, [ids[1]]);
    assert_eq!(store.queue.due_of(account, "example.com", START - 1, 10).await.unwrap(), []);
    let page = store.queue.due(account, (0, START), None, 1).await.unwrap();
    assert_eq!(page.items.len(), 1);
    let rest = store.queue.due(account, (0, START), page.next, 4_096).await.unwrap();
    let domains: Vec<String> = page.items.into_iter().chain(rest.items).map(|item| item.domain).collect();
    assert_eq!(domains, ["example.com", "example.net"]);
}
