use bytes::Bytes;
use restante_blobs::Source;
use restante_core::{ErrorKind, ManualClock};
use restante_directory::{DirectoryConfig, DirectoryMetrics};
use restante_mail::{Delivered, Delivery, MailConfig, MailMetrics, StoredMessage};
use restante_records::{AccountId, Body, Change, ChangesSince, Commit, Kind, Properties, Revision};
use tokio::sync::watch;

use super::*;
use crate::doors::mail::records;

const THREAD: Kind = restante_mail::thread::KIND;
const ACCOUNT: AccountId = AccountId(1);
const START: Timestamp = Timestamp::from_seconds(1_700_000_000);
const HOUR: u64 = 3_600;

/// Records and blobs in memory, on a manual clock.
struct Fixture {
    clock: Arc<ManualClock>,
    stores: Stores,
    mail: Mail,
    directory: Directory,
    metrics: TidyMetrics,
    account_removed: Arc<Notify>,
}

impl Fixture {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let url = restante_records::EngineUrl::Memory;
        let records = restante_records::Config {
            clock: clock.clone(),
            ..restante_records::Config::new(url, records::schema())
        };
        let url = restante_blobs::EngineUrl::Memory;
        let blobs = restante_blobs::Config { clock: clock.clone(), ..restante_blobs::Config::new(url) };
        let stores = Stores {
            records: restante_records::open(records).await.unwrap(),
            blobs: restante_blobs::open(blobs).await.unwrap(),
            removing: Removing::default(),
            mismatch: None,
            key_file: Default::default(),
        };
        let limits = MailConfig { vault_seconds: 10 * HOUR, ..MailConfig::default() };
        let mail = Mail::new(
            stores.records.records.clone(),
            stores.blobs.blobs.clone(),
            clock.clone(),
            limits,
            MailMetrics::default(),
        );
        let (settings, metrics) = (DirectoryConfig::default(), DirectoryMetrics::default());
        let opened = Directory::open(&stores.records, settings, clock.clone(), metrics).await;
        let (directory, _) = opened.unwrap();
        let (metrics, account_removed) = (TidyMetrics::default(), Arc::default());
        Self { clock, stores, mail, directory, metrics, account_removed }
    }

    fn tidying(&self) -> Tidying {
        let mut config = Config::default();
        config.records.keep_destroyed_seconds = HOUR.try_into().unwrap();
        config.records.clean_interval_seconds = 60.try_into().unwrap();
        config.blobs.sweep_grace_seconds = HOUR.try_into().unwrap();
        config.blobs.sweep_interval_seconds = 120.try_into().unwrap();
        let removed = self.account_removed.clone();
        let tidying = Tidying::new(&config, &self.stores, self.eraser(), removed, self.metrics.clone());
        Tidying { clock: self.clock.clone(), ..tidying }
    }

    fn eraser(&self) -> Eraser {
        Eraser {
            mail: self.mail.clone(),
            directory: self.directory.clone(),
            records: self.stores.records.upkeep.clone(),
            clock: self.clock.clone(),
            actor: Actor("the server".to_owned()),
            journal: None,
            journal_erased: Arc::default(),
        }
    }

    /// Adds accounts of a new domain; returns their numbers.
    async fn add_accounts(&self, names: &[&str]) -> Vec<AccountId> {
        let domain = "example.org".parse().unwrap();
        self.operate(Operation::AddDomain { domain, separator: None, catch_all: None }).await;
        let mut accounts = Vec::new();
        for name in names {
            let address = format!("{name}@example.org").parse().unwrap();
            let (password, role) = (None, Default::default());
            let add = Operation::AddAccount { address, password, role, quota_bytes: None };
            let Answer::Password { account: Some(account), .. } = self.operate(add).await else { panic!() };
            accounts.push(AccountId(account));
        }
        accounts
    }

    async fn remove_account(&self, name: &str) {
        let address = format!("{name}@example.org").parse().unwrap();
        self.operate(Operation::RemoveAccount { address }).await;
    }

    async fn emails_and_vault(&self, account: AccountId) -> (u64, usize) {
        let emails = self.mail.usage(account).await.unwrap().emails;
        (emails, self.mail.vault(account, None, 10).await.unwrap().entries.len())
    }

    /// The operators' log, the newest first.
    async fn log(&self) -> Vec<(String, String)> {
        let Answer::Log(log) = self.operate(Operation::Log { limit: 100 }).await else { panic!() };
        log.into_iter().map(|line| (line.who, line.what)).collect()
    }

    fn pass(&self, seconds: i64) {
        self.clock.set(self.clock.now().plus_seconds(seconds));
    }

    async fn commit(&self, changes: Vec<Change>) -> Vec<restante_records::RecordId> {
        self.stores.records.records.commit(ACCOUNT, Commit::of(changes)).await.unwrap().created
    }

    async fn put(&self, text: &'static str) -> BlobId {
        let mut bytes = Bytes::from_static(text.as_bytes());
        self.stores.blobs.blobs.put(&mut bytes as &mut dyn Source).await.unwrap().id
    }

    async fn has(&self, id: BlobId) -> bool {
        self.stores.blobs.blobs.size(id).await.unwrap().is_some()
    }

    async fn operate(&self, operation: Operation) -> Answer {
        self.directory.operate(&Actor("a test".to_owned()), operation).await.unwrap()
    }

    /// Delivers `count` emails and destroys them.
    async fn destroy_emails(&self, account: AccountId, count: usize) {
        for number in 0..count {
            let email = self.deliver(account, number).await;
            self.mail.destroy_email(account, email, None).await.unwrap();
        }
    }

    /// Delivers an email, a different one for each second and each number.
    async fn deliver(&self, account: AccountId, number: usize) -> restante_records::RecordId {
        let raw = format!("Subject: {number} at {}\r\n\r\n", self.clock.now().seconds());
        let message = restante_mail::message::read(raw.as_bytes());
        let name = format!("{raw:x<32}").into_bytes();
        let blob = BlobId(std::array::from_fn(|at| name[at]));
        let message = StoredMessage::new(&message, blob);
        let received = self.clock.now().seconds();
        let delivery = Delivery { message, key: blob.0, to_junk: false, received, quota: None };
        let Delivered::New(email) = self.mail.deliver(account, delivery).await.unwrap() else { panic!() };
        email
    }

    async fn tombstones(&self) -> u64 {
        self.stores.records.upkeep.stats().await.unwrap().kinds.iter().map(|kind| kind.tombstones).sum()
    }
}

fn create(blobs: Vec<BlobId>) -> Change {
    let body = Body { bytes: Bytes::new(), blobs };
    Change::Create { kind: THREAD, body, properties: Properties::default() }
}

#[tokio::test]
async fn what_was_destroyed_long_ago_is_forgotten() {
    let fixture = Fixture::new().await;
    // More than one step removes.
    let count = CLEAN_STEP + 10;
    let mut ids = Vec::new();
    for _ in 0..count.div_ceil(1_000) {
        ids.extend(fixture.commit(vec![create(Vec::new()); 1_000]).await);
    }
    let (old, young) = ids.split_at(count);
    for ids in [old, young] {
        for ids in ids.chunks(1_000) {
            fixture.commit(ids.iter().map(|id| Change::Destroy { kind: THREAD, id: *id }).collect()).await;
        }
        fixture.pass(HOUR as i64 / 2 + 60);
    }
    fixture.tidying().clean_and_tell().await;
    assert_eq!(fixture.tombstones().await, young.len() as u64);
    assert_eq!(fixture.metrics.runs(), [1, 0, 0, 0]);
    let since = ChangesSince { kind: None, since: Revision(1), limit: 100 };
    let error = fixture.stores.records.records.changes(ACCOUNT, &since).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn blobs_that_nobody_refers_to_are_removed_after_the_grace_time() {
    let fixture = Fixture::new().await;
    let (kept, refuse) = (fixture.put("kept").await, fixture.put("refuse").await);
    fixture.commit(vec![create(vec![kept])]).await;
    fixture.pass(HOUR as i64 - 1);
    fixture.tidying().sweep_and_tell().await;
    assert!(fixture.has(refuse).await, "its hour is not over");

    fixture.pass(2);
    let young = fixture.put("young").await;
    fixture.tidying().sweep_and_tell().await;
    assert_eq!(
        [fixture.has(kept).await, fixture.has(refuse).await, fixture.has(young).await],
        [true, false, true]
    );
    assert_eq!(fixture.metrics.runs(), [0, 0, 2, 0]);
}

/// Records at another location than the blobs', or lost ones: all blobs would look like garbage. New commits to such records do not
/// make them the right ones.
#[tokio::test]
async fn nothing_is_swept_while_records_refer_to_nothing_that_is_there() {
    let empty = Fixture::new().await;
    empty.tidying().sweep_and_tell().await;
    assert_eq!(empty.metrics.runs(), [0, 0, 1, 0], "without blobs nothing is wrong");

    let fixture = Fixture::new().await;
    let blob = fixture.put("somebody's").await;
    fixture.pass(HOUR as i64 * 2);
    for other in [Vec::new(), vec![BlobId([1; 32])]] {
        let swept = sweep(&fixture.stores.records.upkeep, &fixture.stores.blobs, fixture.clock.now()).await;
        let error = swept.unwrap_err();
        assert!(matches!(error, SweepError::WrongRecords), "{error}");
        assert!(error.to_string().contains("`restante blobs sweep --adopt`"), "{error}");
        fixture.commit(vec![create(other)]).await;
    }
    fixture.tidying().sweep_and_tell().await;
    assert!(fixture.has(blob).await);
    assert_eq!(fixture.metrics.runs(), [0, 0, 0, 1]);

    let known = fixture.put("known").await;
    fixture.commit(vec![create(vec![known])]).await;
    fixture.pass(HOUR as i64 * 2);
    fixture.tidying().sweep_and_tell().await;
    assert_eq!([fixture.has(blob).await, fixture.has(known).await], [false, true]);
}

#[tokio::test]
async fn vaults_of_all_accounts_forget_what_is_old() {
    let fixture = Fixture::new().await;
    let accounts = fixture.add_accounts(&["anna", "bert", "carl"]).await;
    // More than one step purges for the first account, one for the second, nothing for the third.
    for (account, count) in accounts.iter().zip([PURGE_STEP + 1, 1, 0]) {
        fixture.destroy_emails(*account, count).await;
    }
    fixture.pass(10 * HOUR as i64 + 1);
    fixture.destroy_emails(accounts[0], 2).await;
    fixture.tidying().purge_and_tell().await;
    assert_eq!(fixture.metrics.purges(), ([1, 0], PURGE_STEP as u64 + 2));
    for (account, left) in accounts.into_iter().zip([2, 0, 0]) {
        assert_eq!(fixture.mail.vault(account, None, 10).await.unwrap().entries.len(), left);
    }
    fixture.tidying().purge_and_tell().await;
    assert_eq!(fixture.metrics.purges(), ([2, 0], PURGE_STEP as u64 + 2));

    // Closed records accept no commits.
    fixture.pass(10 * HOUR as i64 + 1);
    fixture.stores.records.upkeep.close().await.unwrap();
    fixture.tidying().purge_and_tell().await;
    assert_eq!(fixture.metrics.purges().0, [2, 1]);
}

#[tokio::test]
async fn mail_is_erased_with_its_account_and_what_comes_late_too() {
    let fixture = Fixture::new().await;
    let [anna, bert] = fixture.add_accounts(&["anna", "bert"]).await[..] else { panic!() };
    for account in [anna, bert] {
        fixture.deliver(account, 7).await;
        fixture.destroy_emails(account, 2).await;
    }
    fixture.remove_account("anna").await;
    let erase = async || fixture.tidying().erase_and_tell().await;
    erase().await;
    assert_eq!(
        (fixture.emails_and_vault(anna).await, fixture.emails_and_vault(bert).await),
        ((0, 0), (1, 2))
    );
    assert_eq!(fixture.metrics.erasures(), ([1, 0], 1));
    let begin = format!("erased the mail of anna@example.org with number {}: ", anna.0);
    let log = fixture.log().await;
    assert!(log.iter().any(|(who, what)| who == "the server" && what.starts_with(&begin)), "{log:?}");

    // A delivery whose recipient was accepted before the removal.
    fixture.pass(60);
    fixture.deliver(anna, 1).await;
    erase().await;
    assert_eq!(fixture.emails_and_vault(anna).await, (0, 0));
    assert_eq!(fixture.metrics.erasures(), ([2, 0], 2));
    assert_eq!(fixture.directory.removed_accounts(None, 10).await.unwrap().items.len(), 1);
    fixture.pass(24 * HOUR as i64);
    erase().await;
    assert_eq!(fixture.directory.removed_accounts(None, 10).await.unwrap().items, []);
    assert_eq!(fixture.metrics.erasures(), ([3, 0], 2));
    assert_eq!(fixture.emails_and_vault(bert).await, (1, 2));

    // Closed records accept no commits.
    fixture.remove_account("bert").await;
    fixture.stores.records.upkeep.close().await.unwrap();
    erase().await;
    assert_eq!(fixture.metrics.erasures().0, [3, 1]);
}

/// The state after a crash: some records are erased, and commits in the account are refused until the rest is.
#[tokio::test(start_paused = true)]
async fn erasing_that_was_interrupted_goes_on_at_the_start() {
    let fixture = Fixture::new().await;
    let [anna] = fixture.add_accounts(&["anna"]).await[..] else { panic!() };
    fixture.destroy_emails(anna, 10).await;
    fixture.remove_account("anna").await;
    assert!(fixture.stores.records.upkeep.erase(anna, 3).await.unwrap().has_more);
    let commit = fixture.stores.records.records.commit(anna, Commit::of([create(Vec::new())])).await;
    assert_eq!(commit.unwrap_err().kind(), ErrorKind::Conflict);

    let (tell, stop) = watch::channel(false);
    let running = tokio::spawn(fixture.tidying().run(Stop::of(stop)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.metrics.erasures(), ([1, 0], 1), "the first turn comes at once");
    assert_eq!(fixture.emails_and_vault(anna).await, (0, 0));
    fixture.deliver(anna, 1).await;
    fixture.account_removed.notify_one();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.metrics.erasures(), ([2, 0], 2), "a removal does not wait for its turn");
    tokio::time::sleep(ERASE_INTERVAL).await;
    assert_eq!(fixture.metrics.erasures(), ([3, 0], 2));
    tell.send(true).unwrap();
    running.await.unwrap();
}

#[test]
fn blobs_that_outlast_the_records_are_not_swept() {
    let check = |records: &str, blobs: &str| {
        let mut config = Config::default();
        config.records.url = (!records.is_empty()).then(|| records.parse().unwrap());
        config.blobs.url = (!blobs.is_empty()).then(|| blobs.parse().unwrap());
        check_records_last(&config)
    };
    for (records, blobs) in [("", ""), ("lmdb:x", "memory:"), ("memory:", "memory:")] {
        check(records, blobs).unwrap();
    }
    let error = check("memory:", "").unwrap_err();
    assert!(error.to_string().contains("set blobs.url to memory:"), "{error}");
}

/// New commits to such records do not make them the right ones.
#[tokio::test]
async fn blobs_are_swept_with_their_own_records_alone() {
    let (ours, theirs) = (Fixture::new().await, Fixture::new().await);
    settle_owner(&*ours.stores.records.upkeep, &ours.stores.blobs).await.unwrap();
    let blob = ours.put("ours").await;
    theirs.commit(vec![create(Vec::new())]).await;
    ours.pass(HOUR as i64 * 2);
    let now = ours.clock.now();
    let error = sweep(&theirs.stores.records.upkeep, &ours.stores.blobs, now).await.unwrap_err();
    assert!(matches!(error, SweepError::OtherRecords { .. }), "{error}");
    assert!(error.to_string().contains("--adopt"), "{error}");
    assert!(ours.has(blob).await);

    // Nothing was ever committed here, and that is known.
    let swept = sweep(&ours.stores.records.upkeep, &ours.stores.blobs, now).await.unwrap();
    assert_eq!(swept.removed, 1);
}

/// Regression test: an unmounted disk looked like a new folder for blobs, and was assigned to these records.
#[tokio::test]
async fn an_empty_place_does_not_become_that_of_records_that_refer_to_blobs() {
    let (ours, empty) = (Fixture::new().await, Fixture::new().await);
    let blob = ours.put("ours").await;
    ours.commit(vec![create(vec![blob])]).await;
    let error = settle_owner(&*ours.stores.records.upkeep, &empty.stores.blobs).await.unwrap_err();
    assert!(matches!(error, SweepError::NoBlobs), "{error}");
    assert_eq!(empty.stores.blobs.upkeep.owner().await.unwrap(), None);
    settle_owner(&*ours.stores.records.upkeep, &ours.stores.blobs).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn turns_come_at_their_time_and_end_with_the_server() {
    let fixture = Fixture::new().await;
    let (tell, stop) = watch::channel(false);
    let running = tokio::spawn(fixture.tidying().run(Stop::of(stop)));
    for (seconds, runs) in [(59, [0, 0, 0, 0]), (2, [1, 0, 0, 0]), (60, [2, 0, 1, 0])] {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!(fixture.metrics.runs(), runs, "{seconds} s later");
    }
    tell.send(true).unwrap();
    running.await.unwrap();
    assert_eq!(fixture.metrics.runs(), [2, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_first_turn_waits_for_ten_minutes_at_most() {
    let (_tell, stop) = watch::channel(false);
    let turns = std::sync::atomic::AtomicU64::new(0);
    let turn = || async {
        turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let day = Duration::from_secs(86_400);
    let limit = Duration::from_secs(601);
    let _ = tokio::time::timeout(limit, repeat(day, Stop::of(stop), turn)).await;
    assert_eq!(turns.into_inner(), 1);
}
