//! What a filter learns from moves into and out of Junk, on the memory engines.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use bytes::Bytes;
use prometheus_client::{encoding::text::encode, registry::Registry};
use restante_checks::{Envelope, Filter, FilterVerdict, Lesson};
use restante_core::{Error, ManualClock, Timestamp};
use restante_delivery::{FollowerMetrics, LearningFollower};
use restante_follow::{Follower, Handler, HandlerError, Metrics, Settings};
use restante_mail::{
    Delivered, Delivery, EmailUpdate, Mail, MailConfig, MailMetrics, Patch, Role, StoredMessage, learned,
};
use restante_records::{AccountId, ChangesSince, Opened, Query, RecordId, Revision, Schema};

const ACCOUNT: AccountId = AccountId(1_000);
const START: i64 = 1_800_000_000;
const BYTES_MAX: u64 = 2_000;

/// A filter that notes what it learns, and fails when it is asked to.
#[derive(Default)]
struct Noting {
    learned: Mutex<Vec<(Lesson, String)>>,
    failures: Mutex<VecDeque<Error>>,
}

#[async_trait]
impl Filter for Noting {
    fn takes(&self, bytes: u64) -> bool {
        bytes <= BYTES_MAX
    }

    async fn judge(&self, _envelope: Envelope<'_>, _raw: Bytes) -> Result<FilterVerdict, Error> {
        Err(Error::unavailable("it only learns"))
    }

    async fn learn(&self, lesson: Lesson, raw: Bytes) -> Result<(), Error> {
        if let Some(error) = self.failures.lock().unwrap().pop_front() {
            return Err(error);
        }
        self.learned.lock().unwrap().push((lesson, name_in(&raw)));
        Ok(())
    }
}

/// The name of a message of these tests; what the filter gets must be all of it.
fn name_in(raw: &[u8]) -> String {
    let text = String::from_utf8(raw.to_vec()).unwrap();
    let (header, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(body.ends_with("the end\r\n"), "{body}");
    header.split_once("Subject: ").unwrap().1.to_owned()
}

fn handler(
    mail: &Mail,
    filter: &Arc<Noting>,
    per_hour_max: u32,
    metrics: &FollowerMetrics,
) -> LearningFollower {
    let per_hour_max = per_hour_max.try_into().unwrap();
    LearningFollower::new(mail.clone(), filter.clone(), per_hour_max, metrics.clone())
}

struct Scene {
    opened: Opened,
    account: AccountId,
    mail: Mail,
    clock: Arc<ManualClock>,
    filter: Arc<Noting>,
    metrics: FollowerMetrics,
    handler: LearningFollower,
    seen: Revision,
}

impl Scene {
    async fn new() -> Self {
        Self::with_limit(1_000).await
    }

    /// A filter that learns so many messages of an account in an hour.
    async fn with_limit(per_hour_max: u32) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(START)));
        let schema = Schema::new(restante_mail::kinds()).unwrap();
        let records = restante_records::Config::new(restante_records::EngineUrl::Memory, schema);
        let opened = restante_records::open(records).await.unwrap();
        let blobs = restante_blobs::Config::new(restante_blobs::EngineUrl::Memory);
        let blobs = restante_blobs::open(blobs).await.unwrap().blobs;
        let (config, metrics) = (MailConfig::default(), MailMetrics::default());
        let mail = Mail::new(opened.records.clone(), blobs, clock.clone(), config, metrics);
        mail.prepare(ACCOUNT).await.unwrap();
        let (filter, metrics) = (Arc::new(Noting::default()), FollowerMetrics::default());
        let handler = handler(&mail, &filter, per_hour_max, &metrics);
        Self { opened, account: ACCOUNT, mail, clock, filter, metrics, handler, seen: Revision(0) }
    }

    async fn deliver(&self, name: &str, to_junk: bool) -> RecordId {
        self.deliver_bytes(name, to_junk, 100).await
    }

    async fn deliver_bytes(&self, name: &str, to_junk: bool, bytes: usize) -> RecordId {
        let filling = "x".repeat(bytes);
        let raw =
            Bytes::from(format!("From: bob@example.net\r\nSubject: {name}\r\n\r\n{filling}\r\nthe end\r\n"));
        let blob = self.mail.blobs().put(&mut raw.clone()).await.unwrap().id;
        let message = StoredMessage::new(&restante_mail::message::read(&raw), blob);
        let mut key = [0; 32];
        key[..name.len()].copy_from_slice(name.as_bytes());
        let delivery = Delivery { message, key, to_junk, received: START, quota: None };
        match self.mail.deliver(self.account, delivery).await.unwrap() {
            Delivered::New(id) => id,
            Delivered::Repeated => panic!("each message of a test has another name"),
        }
    }

    async fn mailbox(&self, role: Role) -> RecordId {
        let mailboxes = self.mail.mailboxes(self.account).await.unwrap().0;
        mailboxes.iter().find(|mailbox| mailbox.role == Some(role)).unwrap().id
    }

    async fn move_to(&self, email: RecordId, role: Role) {
        let mailboxes = Patch::Whole([self.mailbox(role).await].into());
        let update = EmailUpdate { if_in_state: None, mailboxes, keywords: Patch::Keep };
        self.mail.update_email(self.account, email, update).await.unwrap();
    }

    async fn flag(&self, email: RecordId, keyword: &str) {
        let keywords = Patch::Parts { add: [keyword.to_owned()].into(), remove: [].into() };
        let update = EmailUpdate { if_in_state: None, mailboxes: Patch::Keep, keywords };
        self.mail.update_email(self.account, email, update).await.unwrap();
    }

    /// Passes what is new, as a follower does, and again what failed.
    async fn look(&mut self) -> Result<(), HandlerError> {
        if self.seen == Revision(0) {
            self.handler.reset(self.account).await?;
        }
        let since = ChangesSince { kind: None, since: self.seen, limit: 4_096 };
        let changes = self.opened.records.changes(self.account, &since).await.unwrap();
        self.handler.handle(self.account, &changes).await?;
        self.seen = changes.revision;
        Ok(())
    }

    /// What the filter has learned since the last call.
    fn lessons(&self) -> Vec<(Lesson, String)> {
        std::mem::take(&mut *self.filter.learned.lock().unwrap())
    }

    fn fail_with(&self, errors: impl IntoIterator<Item = Error>) {
        self.filter.failures.lock().unwrap().extend(errors);
    }

    /// The emails that are noted.
    async fn noted(&self) -> usize {
        let query = Query::new(learned::KIND, learned::BY_EMAIL);
        self.opened.records.query(self.account, &query).await.unwrap().ids.len()
    }

    fn counted(&self, lesson: &str, result: &str) -> u64 {
        let mut registry = Registry::default();
        self.metrics.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let name = format!("restante_learning_messages_total{{lesson=\"{lesson}\",result=\"{result}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    }
}

fn junk(name: &str) -> (Lesson, String) {
    (Lesson::Junk, name.to_owned())
}

fn not_junk(name: &str) -> (Lesson, String) {
    (Lesson::NotJunk, name.to_owned())
}

#[tokio::test]
async fn chk18_moves_into_and_out_of_junk_are_learned_once_each() {
    let mut scene = Scene::new().await;
    let email = scene.deliver("one", false).await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), []);
    scene.move_to(email, Role::Junk).await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [junk("one")]);
    scene.flag(email, "$flagged").await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [], "it has not moved");
    scene.move_to(email, Role::Inbox).await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [not_junk("one")]);
    scene.flag(email, "$answered").await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), []);
    assert_eq!(scene.noted().await, 0);
    scene.move_to(email, Role::Junk).await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [junk("one")]);
    assert_eq!((scene.counted("junk", "learned"), scene.counted("not_junk", "learned")), (2, 1));
}

#[tokio::test]
async fn chk18_what_the_server_placed_is_not_learned_as_junk() {
    let mut scene = Scene::new().await;
    let placed = scene.deliver("placed", true).await;
    scene.look().await.unwrap();
    scene.flag(placed, "$flagged").await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), []);
    // The user corrects the server.
    scene.move_to(placed, Role::Inbox).await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [not_junk("placed")]);
}

#[tokio::test]
async fn chk18_junk_that_is_thrown_away_is_no_lesson() {
    let mut scene = Scene::new().await;
    let (trashed, destroyed) = (scene.deliver("trashed", true).await, scene.deliver("destroyed", true).await);
    scene.look().await.unwrap();
    assert_eq!(scene.noted().await, 2);
    scene.move_to(trashed, Role::Trash).await;
    scene.mail.destroy_email(ACCOUNT, destroyed, None).await.unwrap();
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), []);
    assert_eq!(scene.noted().await, 0);
    scene.move_to(trashed, Role::Inbox).await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [], "out of the trash");
}

#[tokio::test]
async fn chk18_a_filter_that_is_away_is_asked_again() {
    let mut scene = Scene::new().await;
    let (one, two) = (scene.deliver("one", false).await, scene.deliver("two", true).await);
    scene.look().await.unwrap();
    scene.move_to(one, Role::Junk).await;
    scene.move_to(two, Role::Inbox).await;
    for _ in 0..5 {
        scene.fail_with([Error::unavailable("away")]);
        assert!(scene.look().await.is_err());
    }
    assert_eq!(scene.lessons(), []);
    // The server is started again meanwhile.
    scene.handler = handler(&scene.mail, &scene.filter, 1_000, &scene.metrics);
    // Others that come meanwhile are learned, too.
    let three = scene.deliver("three", false).await;
    scene.fail_with([Error::unavailable("away")]);
    assert!(scene.look().await.is_err());
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [junk("one"), not_junk("two")]);
    scene.move_to(three, Role::Junk).await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [junk("three")]);
}

#[tokio::test]
async fn chk18_the_last_move_counts_while_the_filter_is_away() {
    let mut scene = Scene::new().await;
    let email = scene.deliver("one", false).await;
    scene.look().await.unwrap();
    for role in [Role::Junk, Role::Inbox, Role::Junk] {
        scene.move_to(email, role).await;
        scene.fail_with([Error::unavailable("away")]);
        assert!(scene.look().await.is_err());
    }
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [junk("one")]);
}

#[tokio::test]
async fn chk18_messages_that_the_filter_can_not_learn_are_left_out() {
    let mut scene = Scene::new().await;
    let refused = scene.deliver("refused", false).await;
    let broken = scene.deliver("broken", false).await;
    let good = scene.deliver("good", false).await;
    let large = scene.deliver_bytes("large", false, 3_000).await;
    scene.look().await.unwrap();
    scene.move_to(refused, Role::Junk).await;
    scene.fail_with([Error::invalid("too short")]);
    scene.look().await.unwrap();
    for email in [broken, good, large] {
        scene.move_to(email, Role::Junk).await;
    }
    for expected in [vec![junk("good")], vec![]] {
        scene.fail_with([Error::internal("it breaks")]);
        assert!(scene.look().await.is_err());
        assert_eq!(scene.lessons(), expected, "the first one does not hold up the others");
    }
    scene.fail_with([Error::internal("it breaks")]);
    scene.look().await.unwrap();
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), []);
    let counted = ["learned", "refused", "failed", "too_large", "gone"];
    assert_eq!(counted.map(|result| scene.counted("junk", result)), [1, 1, 1, 1, 0]);
}

#[tokio::test]
async fn chk18_an_account_that_is_begun_again_teaches_nothing() {
    let mut scene = Scene::new().await;
    let (placed, moved) = (scene.deliver("placed", true).await, scene.deliver("moved", false).await);
    scene.look().await.unwrap();
    scene.move_to(moved, Role::Junk).await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [junk("moved")]);
    scene.mail.destroy_email(ACCOUNT, placed, None).await.unwrap();
    scene.seen = Revision(0);
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), []);
    assert_eq!(scene.noted().await, 1);
    scene.move_to(moved, Role::Inbox).await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [not_junk("moved")]);
}

#[tokio::test]
async fn chk18_a_follower_learns_while_it_runs() {
    let scene = Scene::new().await;
    let email = scene.deliver("one", false).await;
    let (settings, metrics) = (Settings::new(LearningFollower::NAME), Metrics::default());
    let handler = handler(&scene.mail, &scene.filter, 1_000, &scene.metrics);
    let follower = Follower::new(settings, &scene.opened, handler, scene.clock.clone(), &metrics).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(follower.run(async { drop(stopped.await) }));
    // It has seen the email in the inbox when it has noted the next one.
    scene.deliver("placed", true).await;
    while scene.noted().await == 0 {
        tokio::task::yield_now().await;
    }
    scene.move_to(email, Role::Junk).await;
    while scene.filter.learned.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(*scene.filter.learned.lock().unwrap(), [junk("one")]);
}

#[tokio::test(start_paused = true)]
async fn chk18_an_account_teaches_so_many_messages_in_an_hour() {
    let mut scene = Scene::with_limit(3).await;
    let names = ["a", "b", "c", "d", "e"];
    let mut emails = Vec::new();
    for name in names {
        emails.push(scene.deliver(name, false).await);
    }
    scene.look().await.unwrap();
    // A filter that is away takes nothing of what it may learn.
    scene.move_to(emails[0], Role::Junk).await;
    for _ in 0..5 {
        scene.fail_with([Error::unavailable("away")]);
        assert!(scene.look().await.is_err());
    }
    // A client moves everything back and forth.
    for role in [Role::Junk, Role::Inbox, Role::Junk] {
        for email in &emails {
            scene.move_to(*email, role).await;
        }
        scene.look().await.unwrap();
    }
    assert_eq!(scene.lessons(), ["a", "b", "c"].map(junk));
    let limited = |scene: &Scene| ["junk", "not_junk"].map(|lesson| scene.counted(lesson, "limited"));
    assert_eq!((limited(&scene), scene.noted().await), ([7, 5], 5));
    // What was left out is not caught up with; after a third of an hour there is one more.
    tokio::time::advance(std::time::Duration::from_secs(1_200)).await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), []);
    for email in &emails {
        scene.move_to(*email, Role::Inbox).await;
    }
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [not_junk("a")]);
    assert_eq!((limited(&scene), scene.noted().await), ([7, 9], 0));
    // Another account has its own bound.
    scene.account = AccountId(1_001);
    scene.mail.prepare(scene.account).await.unwrap();
    scene.seen = Revision(0);
    let email = scene.deliver("other", false).await;
    scene.look().await.unwrap();
    scene.move_to(email, Role::Junk).await;
    scene.look().await.unwrap();
    assert_eq!(scene.lessons(), [junk("other")]);
}
