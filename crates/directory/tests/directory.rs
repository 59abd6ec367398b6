//! The promises of the directory, on each engine of records.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{collections::BTreeSet, net::IpAddr, num::NonZero, sync::Arc, time::Duration};

use prometheus_client::registry::Registry;
use restante_core::{ErrorKind, ManualClock, Timestamp};
use restante_directory::{
    Access, AccountChange, AccountInfo, Actor, Answer, ChannelBinding, Directory, DirectoryConfig,
    DirectoryMetrics, Domain, EmailAddress, Error, FIRST_ACCOUNT, Login, LoginError, Mechanism, NewPassword,
    NewToken, Operation, PAGE_MAX, Page, RemovedAccount, Resolution, Role, Scope, ScramExchange, State,
    StoredKeys, Target,
};
use restante_records::{AccountId, Config, EngineUrl, Opened, Schema};
use tokio::task::JoinSet;

const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
/// How long a test waits for something before it gives up. It is not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// The location of the records, and the time.
struct Fixture {
    folder: Option<tempfile::TempDir>,
    opened: Opened,
    clock: Arc<ManualClock>,
}

impl Fixture {
    async fn memory() -> Self {
        Self::of(None).await
    }

    async fn lmdb() -> Self {
        Self::of(Some(tempfile::tempdir().unwrap())).await
    }

    async fn of(folder: Option<tempfile::TempDir>) -> Self {
        let opened = Self::open_records(folder.as_ref()).await;
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_800_000_000)));
        Self { folder, opened, clock }
    }

    async fn open_records(folder: Option<&tempfile::TempDir>) -> Opened {
        Self::try_open_records(folder).await.unwrap()
    }

    async fn try_open_records(folder: Option<&tempfile::TempDir>) -> Result<Opened, restante_records::Error> {
        let url = folder.map_or(EngineUrl::Memory, |folder| EngineUrl::Lmdb(folder.path().join("records")));
        let schema = Schema::new(restante_directory::kinds()).unwrap();
        restante_records::open(Config::new(url, schema)).await
    }

    /// Closes the records and opens them again; records in memory are kept.
    async fn reopen(&mut self) {
        if self.folder.is_some() {
            self.opened.upkeep.close().await.unwrap();
            self.opened = Self::open_records(None).await;
            // The folder is locked until the last task that used it has ended.
            let is_free = || async { Self::try_open_records(self.folder.as_ref()).await.is_ok() };
            wait_until("the folder is free", is_free).await;
            self.opened = Self::open_records(self.folder.as_ref()).await;
        }
    }

    fn pass(&self, seconds: i64) {
        use restante_core::Clock;
        self.clock.set(self.clock.now().plus_seconds(seconds));
    }

    async fn server(&self) -> Server {
        self.server_with(config()).await
    }

    async fn server_with(&self, config: DirectoryConfig) -> Server {
        let metrics = DirectoryMetrics::default();
        let opened = Directory::open(&self.opened, config, self.clock.clone(), metrics.clone()).await;
        let (directory, follower) = opened.unwrap();
        let task = tokio::spawn(follower.run());
        Server { directory, metrics, task }
    }
}

fn config() -> DirectoryConfig {
    let rounds = NonZero::new(DirectoryConfig::ROUNDS_MIN).unwrap();
    DirectoryConfig { rounds, ..DirectoryConfig::default() }
}

/// A server's directory, with the follower that a server has.
struct Server {
    directory: Directory,
    metrics: DirectoryMetrics,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn address(text: &str) -> EmailAddress {
    text.parse().unwrap()
}

fn domain(text: &str) -> Domain {
    text.parse().unwrap()
}

impl Server {
    async fn operate(&self, operation: Operation) -> Result<Answer, Error> {
        self.directory.operate(&Actor("a test".into()), operation).await
    }

    async fn done(&self, operation: Operation) {
        self.operate(operation).await.unwrap();
    }

    async fn refused(&self, operation: Operation, kind: ErrorKind) -> String {
        let error = self.operate(operation).await.err().expect("it is refused");
        assert_eq!(error.kind(), kind, "{error}");
        error.to_string()
    }

    async fn add_domain(&self, name: &str) {
        self.done(add_domain(name, None)).await;
    }

    async fn add_account(&self, name: &str, password: Option<&str>) -> u32 {
        match self.operate(add_account(name, password)).await.unwrap() {
            Answer::Password { account: Some(account), password: None } => account,
            _ => panic!("an account was not added"),
        }
    }

    async fn add_alias(&self, name: &str, targets: &[&str]) {
        self.done(add_alias(name, targets)).await;
    }

    async fn set_password(&self, name: &str, application: Option<&str>, password: &str) {
        let (application, password) = (application.map(str::to_owned), NewPassword::Given(password.into()));
        self.done(Operation::SetPassword { address: address(name), application, password }).await;
    }

    async fn account(&self, name: &str) -> AccountInfo {
        match self.operate(Operation::Account { address: address(name) }).await.unwrap() {
            Answer::Account(info) => *info,
            _ => panic!("no account"),
        }
    }

    async fn log_in(&self, name: &str, password: &str) -> Result<Arc<Login>, LoginError> {
        self.directory.check_password(IP, name, password).await
    }

    async fn is_refused(&self, name: &str, password: &str) {
        let refused = self.log_in(name, password).await;
        assert!(matches!(refused, Err(LoginError::Refused)), "{name}: {refused:?}");
    }

    async fn token(&self, name: &str, scopes: &[Scope], expires_in: Option<u64>) -> (String, String) {
        let token = NewToken { name: "a script".into(), scopes: scopes.to_vec(), expires_in };
        match self.operate(Operation::CreateToken { address: address(name), token }).await.unwrap() {
            Answer::Token { token, info } => (token, info.id),
            _ => panic!("no token"),
        }
    }

    /// The accounts and foreign addresses that mail goes to, with details.
    async fn targets(&self, name: &str) -> Vec<String> {
        match self.directory.resolve(&address(name)).await.unwrap() {
            Resolution::Targets(targets) => targets.iter().map(shown).collect(),
            other => panic!("{name}: {other:?}"),
        }
    }

    async fn resolve(&self, name: &str) -> Resolution {
        self.directory.resolve(&address(name)).await.unwrap()
    }

    /// The value of a line of the metrics.
    fn metric(&self, line: &str) -> f64 {
        let mut registry = Registry::default();
        self.metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let value = text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{line} is not in\n{text}"))
    }

    fn derivations(&self) -> f64 {
        self.metric("restante_directory_check_seconds_count ")
    }
}

fn shown(target: &Target) -> String {
    match target {
        Target::Account { address, detail: None, .. } => address.to_string(),
        Target::Account { address, detail: Some(detail), .. } => format!("{address} {detail}"),
        Target::Foreign(address) => format!("to {address}"),
    }
}

fn add_domain(name: &str, catch_all: Option<&str>) -> Operation {
    Operation::AddDomain { domain: domain(name), separator: Some('+'), catch_all: catch_all.map(address) }
}

fn add_account(name: &str, password: Option<&str>) -> Operation {
    Operation::AddAccount {
        address: address(name),
        password: password.map(|password| NewPassword::Given(password.into())),
        role: Role::User,
        quota_bytes: None,
    }
}

fn add_alias(name: &str, targets: &[&str]) -> Operation {
    Operation::AddAlias {
        address: address(name),
        targets: targets.iter().map(|target| address(target)).collect(),
    }
}

async fn wait_until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "{what} did not happen");
}

macro_rules! on_each_engine {
    ($($name:ident,)*) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                Box::pin(super::$name(super::Fixture::memory().await)).await;
            })*
        }
        mod lmdb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                Box::pin(super::$name(super::Fixture::lmdb().await)).await;
            })*
        }
    };
}

on_each_engine! {
    domains_are_added_changed_and_removed,
    an_address_is_there_once,
    numbers_rise_and_are_never_given_twice,
    many_at_once_make_one_account_of_an_address,
    everything_is_there_after_a_restart,
    mail_goes_to_accounts_details_and_catch_alls,
    aliases_lead_to_several_targets,
    aliases_that_lead_in_circles_are_refused,
    lists_are_read_page_by_page,
    a_password_lets_in_and_nothing_else_does,
    a_log_in_of_an_operator_ends_with_the_role,
    application_passwords_are_revoked_one_by_one,
    a_password_that_was_right_is_remembered,
    an_unknown_name_costs_what_a_wrong_password_costs,
    changes_end_log_ins_on_every_server,
    a_removed_account_is_noted_until_it_is_forgotten,
    a_removed_account_is_announced,
    failures_are_limited_by_account_and_by_address,
    more_checks_than_may_wait_are_refused_as_busy,
    connections_of_one_account_share_a_check,
    scram_lets_in_by_each_password,
    scram_hides_who_is_unknown,
    scram_sees_a_password_that_changed_meanwhile,
    tokens_have_scopes_and_expire,
    what_a_user_has_left_ends_with_its_credential,
    grants_end_with_either_account,
    operations_are_logged_and_the_log_is_bounded,
}

async fn domains_are_added_changed_and_removed(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("Example.org").await;
    server.refused(add_domain("example.ORG", None), ErrorKind::Conflict).await;
    let wrong = Operation::AddDomain { domain: domain("x.org"), separator: Some('@'), catch_all: None };
    server.refused(wrong, ErrorKind::Invalid).await;
    let found = server.directory.domain(&domain("EXAMPLE.org")).await.unwrap().unwrap();
    assert_eq!((found.separator, found.catch_all, found.created), (Some('+'), None, 1_800_000_000));
    let catch_all = |name| {
        let catch_all = Some(Some(address(name)));
        Operation::SetDomain { domain: domain("example.org"), separator: None, catch_all }
    };
    server.refused(catch_all("anna@example.org"), ErrorKind::Invalid).await; // it does not exist
    server.add_account("anna@example.org", None).await;
    server.done(catch_all("away@example.net")).await;
    server.refused(catch_all("bert@example.org"), ErrorKind::Invalid).await;
    server.done(catch_all("anna@example.org")).await;
    server
        .done(Operation::SetDomain { domain: domain("example.org"), separator: Some(None), catch_all: None })
        .await;
    let found = server.directory.domain(&domain("example.org")).await.unwrap().unwrap();
    assert_eq!((found.separator, found.catch_all), (None, Some(address("anna@example.org"))));
    assert!(server.directory.domain(&domain("example.com")).await.unwrap().is_none());

    let remove = || Operation::RemoveDomain { domain: domain("example.org") };
    let error = server.refused(remove(), ErrorKind::Conflict).await;
    assert!(error.contains("remove them first"), "{error}");
    server.done(Operation::RemoveAccount { address: address("anna@example.org") }).await;
    server.done(remove()).await;
    server.refused(remove(), ErrorKind::NotFound).await;
    let set = Operation::SetDomain { domain: domain("example.org"), separator: None, catch_all: None };
    server.refused(set, ErrorKind::NotFound).await;
}

async fn an_address_is_there_once(fixture: Fixture) {
    let server = fixture.server().await;
    let error = server.refused(add_account("anna@example.org", None), ErrorKind::NotFound).await;
    assert!(error.contains("restante domain add example.org"), "{error}");
    server.add_domain("example.org").await;
    server.add_account("Anna@Example.org", None).await;
    server.refused(add_account("anna@example.org", None), ErrorKind::Conflict).await;
    server.refused(add_alias("ANNA@example.org", &["bert@example.org"]), ErrorKind::Conflict).await;
    server.add_alias("info@example.org", &["anna@example.org"]).await;
    let error = server.refused(add_account("info@example.org", None), ErrorKind::Conflict).await;
    assert!(error.contains("is an alias"), "{error}");
    server.refused(Operation::Account { address: address("info@example.org") }, ErrorKind::NotFound).await;
    let disable = Operation::SetState { address: address("info@example.org"), state: State::Disabled };
    server.refused(disable, ErrorKind::NotFound).await;
    server.refused(add_alias("x@example.com", &["anna@example.org"]), ErrorKind::NotFound).await;
    server.refused(add_alias("x@example.org", &[]), ErrorKind::Invalid).await;
}

async fn numbers_rise_and_are_never_given_twice(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    let mut last = FIRST_ACCOUNT - 1;
    for round in 0..5 {
        for name in ["anna@example.org", "bert@example.org"] {
            let account = server.add_account(name, None).await;
            assert!(account > last, "{name} in round {round}: {account} after {last}");
            let found = server.directory.address_of(AccountId(account)).await.unwrap();
            assert_eq!(found, Some(address(name)));
            assert_eq!(
                server.directory.address_of(AccountId(last)).await.unwrap().is_some(),
                name.starts_with('b')
            );
            last = account;
        }
        for name in ["anna@example.org", "bert@example.org"] {
            server.done(Operation::RemoveAccount { address: address(name) }).await;
        }
    }
}

async fn many_at_once_make_one_account_of_an_address(fixture: Fixture) {
    let (one, other) = (fixture.server().await, fixture.server().await);
    one.add_domain("example.org").await;
    let mut tasks = JoinSet::new();
    for n in 0..64 {
        let directory = if n % 2 == 0 { one.directory.clone() } else { other.directory.clone() };
        // Eight tasks for each address, on two servers.
        let add = add_account(&format!("user{}@example.org", n / 8), None);
        tasks.spawn(async move { directory.operate(&Actor(format!("task {n}")), add).await });
    }
    let mut numbers = BTreeSet::new();
    while let Some(done) = tasks.join_next().await {
        match done.unwrap() {
            Ok(Answer::Password { account: Some(account), .. }) => assert!(numbers.insert(account)),
            Ok(_) => panic!("no account"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
        }
    }
    assert_eq!(numbers.len(), 8);
    for n in 0..8 {
        assert!(numbers.contains(&one.account(&format!("user{n}@example.org")).await.summary.account));
    }
}

async fn everything_is_there_after_a_restart(mut fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_account("anna@example.org", Some("secret")).await;
    server.add_alias("info@example.org", &["anna@example.org", "x@example.net"]).await;
    server.set_password("anna@example.org", Some("phone"), "other").await;
    server
        .done(Operation::SetQuota { address: address("anna@example.org"), quota_bytes: Some(5_000_000) })
        .await;
    server.done(Operation::SetRole { address: address("anna@example.org"), role: Role::Operator }).await;
    let (token, _) = server.token("anna@example.org", &[Scope::Mail], None).await;
    let before = server.account("anna@example.org").await;
    assert_eq!((before.summary.quota_bytes, before.summary.role), (Some(5_000_000), Role::Operator));
    drop(server);
    fixture.reopen().await;
    let server = fixture.server().await;
    assert_eq!(server.account("anna@example.org").await, before);
    assert_eq!(server.targets("info@example.org").await, ["anna@example.org", "to x@example.net"]);
    for password in ["secret", "other"] {
        let login = server.log_in("anna@example.org", password).await.unwrap();
        assert_eq!((login.account.0, login.role), (before.summary.account, Role::Operator));
    }
    assert!(server.directory.check_token(IP, &token).await.is_ok());
}

async fn mail_goes_to_accounts_details_and_catch_alls(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.done(add_domain("all.org", Some("anna@example.org"))).await;
    server.done(Operation::AddDomain { domain: domain("plain.org"), separator: None, catch_all: None }).await;
    for name in ["anna@example.org", "bert@all.org", "carl@plain.org", "anna+x@example.org"] {
        server.add_account(name, None).await;
    }
    for (name, targets) in [
        ("ANNA@example.org", &["anna@example.org"][..]),
        ("anna+shop+y@example.org", &["anna@example.org shop+y"]),
        ("anna+x@example.org", &["anna+x@example.org"]), // the address itself is tried first
        ("anna+x+y@example.org", &["anna@example.org x+y"]),
        ("bert@all.org", &["bert@all.org"]),
        ("bert+x@all.org", &["bert@all.org x"]),
        ("nobody@all.org", &["anna@example.org"]),
        ("carl@plain.org", &["carl@plain.org"]),
    ] {
        assert_eq!(server.targets(name).await, targets, "{name}");
    }
    for name in ["nobody@example.org", "nobody+x@example.org", "carl+x@plain.org", "bert@example.org"] {
        assert_eq!(server.resolve(name).await, Resolution::Unknown, "{name}");
    }
    assert_eq!(server.resolve("anna@example.com").await, Resolution::Foreign);

    server.done(Operation::SetState { address: address("bert@all.org"), state: State::Disabled }).await;
    let Resolution::Targets(targets) = server.resolve("bert@all.org").await else { panic!("it exists") };
    assert!(matches!(targets[0], Target::Account { state: State::Disabled, .. }), "{targets:?}");
}

async fn aliases_lead_to_several_targets(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    for name in ["anna@example.org", "bert@example.org"] {
        server.add_account(name, None).await;
    }
    server.add_alias("info@example.org", &["anna@example.org"]).await;
    server.add_alias("info@example.org", &["x@example.net", "anna@example.org"]).await;
    server
        .add_alias("all@example.org", &["info@example.org", "bert+all@example.org", "anna@example.org"])
        .await;
    assert_eq!(server.targets("info@example.org").await, ["anna@example.org", "to x@example.net"]);
    assert_eq!(
        server.targets("all+y@example.org").await,
        ["anna@example.org", "to x@example.net", "bert@example.org all"],
        "each is there once"
    );
    server.done(Operation::RemoveAccount { address: address("anna@example.org") }).await;
    assert_eq!(server.targets("info@example.org").await, ["to x@example.net"], "what is gone is left out");
    let remove = |targets: &[&str]| Operation::RemoveAlias {
        address: address("info@example.org"),
        targets: targets.iter().map(|target| address(target)).collect(),
    };
    server.refused(remove(&["y@example.net"]), ErrorKind::NotFound).await;
    server.done(remove(&["x@example.net"])).await;
    assert_eq!(server.resolve("info@example.org").await, Resolution::Unknown, "nobody is left");
    server.done(remove(&["anna@example.org"])).await;
    server.refused(remove(&[]), ErrorKind::NotFound).await;
}

async fn aliases_that_lead_in_circles_are_refused(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_account("end@example.org", None).await;
    server.add_alias("a@example.org", &["b@example.org", "end@example.org"]).await;
    server.add_alias("b@example.org", &["c@example.org"]).await;
    let error = server.refused(add_alias("c@example.org", &["a@example.org"]), ErrorKind::Conflict).await;
    assert!(error.contains("in a circle"), "{error}");
    server.refused(add_alias("self@example.org", &["self@example.org"]), ErrorKind::Conflict).await;
    // Two lists with the same member are no circle.
    server.add_alias("c@example.org", &["end@example.org"]).await;
    assert_eq!(server.targets("a@example.org").await, ["end@example.org"]);
    // A circle that two servers made at the same time, or that a catch-all has closed, is found when mail arrives.
    server.done(add_domain("one.org", Some("nobody@two.org"))).await;
    server.done(add_domain("two.org", Some("nobody@one.org"))).await;
    let error = server.directory.resolve(&address("x@one.org")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");

    server.add_alias("deep0@example.org", &["end@example.org"]).await;
    for n in 1..8 {
        server.add_alias(&format!("deep{n}@example.org"), &[&format!("deep{}@example.org", n - 1)]).await;
    }
    assert_eq!(server.targets("deep7@example.org").await, ["end@example.org"]);
    let error =
        server.refused(add_alias("deep8@example.org", &["deep7@example.org"]), ErrorKind::Conflict).await;
    assert!(error.contains("more than 8 aliases"), "{error}");
    // The chain can't be made longer at its end either: mail for its first alias would be refused for good.
    server.add_alias("tail@example.org", &["end@example.org"]).await;
    let longer = add_alias("deep0@example.org", &["tail@example.org"]);
    let error = server.refused(longer, ErrorKind::Conflict).await;
    assert!(error.contains("deep7@example.org would lead through more than 8 aliases"), "{error}");
    server.add_alias("deep1@example.org", &["tail@example.org"]).await;
    assert_eq!(server.targets("deep7@example.org").await, ["end@example.org"]);
    let many: Vec<String> = (0..257).map(|n| format!("t{n}@example.net")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    server.refused(add_alias("many@example.org", &many), ErrorKind::Invalid).await;
}

async fn lists_are_read_page_by_page(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_domain("other.org").await;
    let names: BTreeSet<String> = (0..50).map(|n| format!("user{n}@example.org")).collect();
    for name in &names {
        server.add_account(name, None).await;
    }
    server.add_account("anna@other.org", None).await;
    server.add_alias("info@example.org", &["anna@other.org"]).await;
    for limit in [1, 7, PAGE_MAX, usize::MAX] {
        let (mut seen, mut after) = (BTreeSet::new(), None);
        loop {
            let list = Operation::Accounts { domain: Some(domain("example.org")), after, limit };
            let Answer::Accounts(page) = server.operate(list).await.unwrap() else { panic!("no page") };
            assert!(page.items.len() <= limit);
            for account in page.items {
                assert!(seen.insert(account.address.to_string()), "{} stands there twice", account.address);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, names, "with {limit} a page");
    }
    let aliases = Operation::Aliases { domain: None, after: None, limit: PAGE_MAX };
    let Answer::Aliases(page) = server.operate(aliases).await.unwrap() else { panic!("no page") };
    assert_eq!(page.items.len(), 1);
    let domains = Operation::Domains { after: None, limit: PAGE_MAX };
    let Answer::Domains(page) = server.operate(domains).await.unwrap() else { panic!("no page") };
    assert_eq!(page.items.len(), 2);
    for after in ["", "x", "64.", "1.xx", "1.00"] {
        let list = Operation::Domains { after: Some(after.into()), limit: 1 };
        server.refused(list, ErrorKind::Invalid).await;
    }
}

async fn a_password_lets_in_and_nothing_else_does(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    let number = server.add_account("anna@example.org", Some("secr\u{e9}t")).await;
    server.add_account("none@example.org", None).await;
    let login = server.log_in("Anna@EXAMPLE.org", "secr\u{e9}t").await.unwrap();
    assert_eq!((login.account.0, login.role, &login.scopes), (number, Role::User, &None));
    assert!(
        server.log_in("anna@example.org", "secre\u{301}t").await.is_ok(),
        "the same password, typed otherwise"
    );
    assert!(server.directory.holds(&login).await.unwrap());
    for (name, password) in [
        ("anna@example.org", "secret"),
        ("anna@example.org", ""),
        ("anna@example.org", "\u{7}"),
        ("anna", "secr\u{e9}t"),
        ("none@example.org", ""),
        ("none@example.org", "\u{0}"),
        ("nobody@example.org", "secr\u{e9}t"),
    ] {
        server.is_refused(name, password).await;
    }
    server.is_refused("anna@example.org", &"x".repeat(100_000)).await;

    server.done(Operation::SetState { address: address("anna@example.org"), state: State::Disabled }).await;
    assert!(!server.directory.holds(&login).await.unwrap());
    wait_until("the remembered log-in ends", || async {
        server.log_in("anna@example.org", "secr\u{e9}t").await.is_err()
    })
    .await;
    server.done(Operation::SetState { address: address("anna@example.org"), state: State::Active }).await;
    assert!(server.log_in("anna@example.org", "secr\u{e9}t").await.is_ok());
    assert!(server.directory.holds(&login).await.unwrap());
    server.done(Operation::RemoveAccount { address: address("anna@example.org") }).await;
    server.add_account("anna@example.org", Some("secr\u{e9}t")).await;
    assert!(!server.directory.holds(&login).await.unwrap(), "another account has the address");
    for password in ["", "\u{7}", "\u{627}1"] {
        let set = NewPassword::Given(password.into());
        let set =
            Operation::SetPassword { address: address("anna@example.org"), application: None, password: set };
        server.refused(set, ErrorKind::Invalid).await;
    }
}

async fn a_log_in_of_an_operator_ends_with_the_role(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_account("anna@example.org", Some("secret")).await;
    let as_user = server.log_in("anna@example.org", "secret").await.unwrap();
    let set_role = |role| Operation::SetRole { address: address("anna@example.org"), role };
    server.done(set_role(Role::Operator)).await;
    wait_until("the role is known", || async {
        server.log_in("anna@example.org", "secret").await.unwrap().allows(Scope::Operate)
    })
    .await;
    let as_operator = server.log_in("anna@example.org", "secret").await.unwrap();
    assert!(server.directory.holds(&as_operator).await.unwrap());
    assert!(server.directory.holds(&as_user).await.unwrap(), "it may do more than before");
    assert!(!as_user.allows(Scope::Operate) && as_user.allows(Scope::Mail));
    server.done(set_role(Role::User)).await;
    assert!(!server.directory.holds(&as_operator).await.unwrap());
    assert!(server.directory.holds(&as_user).await.unwrap());
}

async fn application_passwords_are_revoked_one_by_one(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_account("anna@example.org", Some("main")).await;
    let anna = || address("anna@example.org");
    server.set_password("anna@example.org", Some("phone"), "first").await;
    server.set_password("anna@example.org", Some("tablet"), "second").await;
    server.set_password("anna@example.org", Some("phone"), "third").await;
    for password in ["main", "second", "third"] {
        assert!(server.log_in("anna@example.org", password).await.is_ok(), "{password}");
    }
    server.is_refused("anna@example.org", "first").await;
    let names: Vec<Option<String>> =
        server.account("anna@example.org").await.passwords.into_iter().map(|known| known.name).collect();
    assert_eq!(names, [None, Some("tablet".into()), Some("phone".into())]);
    let phone = server.log_in("anna@example.org", "third").await.unwrap();
    let remove = |name: &str| Operation::RemovePassword { address: anna(), application: Some(name.into()) };
    server.done(remove("phone")).await;
    server.refused(remove("phone"), ErrorKind::NotFound).await;
    assert!(!server.directory.holds(&phone).await.unwrap());
    wait_until("its log-in ends", || async { server.log_in("anna@example.org", "third").await.is_err() })
        .await;
    assert!(server.log_in("anna@example.org", "main").await.is_ok());
    server.done(Operation::RemovePassword { address: anna(), application: None }).await;
    assert!(server.log_in("anna@example.org", "second").await.is_ok());
    for n in 0..31 {
        server.set_password("anna@example.org", Some(&format!("app {n}")), "x").await;
    }
    let password = NewPassword::Given("x".into());
    let one_more = Operation::SetPassword { address: anna(), application: Some("one more".into()), password };
    server.refused(one_more, ErrorKind::Conflict).await;
    for name in ["", " x", "a\nb", &"x".repeat(65)] {
        let password = NewPassword::Given("x".into());
        let set = Operation::SetPassword { address: anna(), application: Some(name.into()), password };
        server.refused(set, ErrorKind::Invalid).await;
    }
}

async fn a_password_that_was_right_is_remembered(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_account("anna@example.org", Some("secret")).await;
    let first = server.log_in("anna@example.org", "secret").await.unwrap();
    for _ in 0..10 {
        assert_eq!(server.log_in("ANNA@example.org", "secret").await.unwrap(), first);
    }
    assert_eq!(server.derivations(), 1.0);
    assert_eq!(
        server.metric("restante_directory_logins_total{mechanism=\"password\",result=\"accepted\"} "),
        1.0
    );
    assert_eq!(
        server.metric("restante_directory_logins_total{mechanism=\"password\",result=\"remembered\"} "),
        10.0
    );
    assert_eq!(server.metric("restante_directory_remembered_logins "), 1.0);
    fixture.pass(600);
    server.log_in("anna@example.org", "secret").await.unwrap();
    assert_eq!(server.derivations(), 2.0, "after ten minutes it is checked again");

    let forgetful = fixture.server_with(DirectoryConfig { remembered_seconds: 0, ..config() }).await;
    for _ in 0..3 {
        forgetful.log_in("anna@example.org", "secret").await.unwrap();
    }
    assert_eq!(forgetful.derivations(), 3.0);
}

/// Measuring time is not reliable in a test, but what takes the time can be counted.
async fn an_unknown_name_costs_what_a_wrong_password_costs(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_account("anna@example.org", Some("secret")).await;
    server.add_account("none@example.org", None).await;
    server.add_account("off@example.org", Some("secret")).await;
    server.done(Operation::SetState { address: address("off@example.org"), state: State::Disabled }).await;
    let tries = [
        ("anna@example.org", "wrong"),
        ("nobody@example.org", "wrong"),
        ("nobody@elsewhere.org", "wrong"),
        ("no address", "wrong"),
        ("none@example.org", "wrong"),
        ("off@example.org", "secret"),
        ("anna@example.org", "\u{7}"),
    ];
    for (count, (name, password)) in tries.into_iter().enumerate() {
        server.is_refused(name, password).await;
        assert_eq!(server.derivations(), count as f64 + 1.0, "{name}");
    }
}

async fn changes_end_log_ins_on_every_server(fixture: Fixture) {
    let (one, other) = (fixture.server().await, fixture.server().await);
    one.add_domain("example.org").await;
    let number = one.add_account("anna@example.org", Some("secret")).await;
    let mut changes = other.directory.changes();
    let login = other.log_in("anna@example.org", "secret").await.unwrap();
    one.set_password("anna@example.org", None, "changed").await;
    let change = tokio::time::timeout(PATIENCE, changes.next()).await.unwrap();
    assert_eq!(change, Some(AccountChange::Account(AccountId(number))));
    assert!(!other.directory.holds(&login).await.unwrap());
    wait_until("the remembered log-in ends", || async {
        other.log_in("anna@example.org", "secret").await.is_err()
    })
    .await;

    let login = other.log_in("anna@example.org", "changed").await.unwrap();
    one.done(Operation::SetQuota { address: address("anna@example.org"), quota_bytes: Some(1) }).await;
    let change = tokio::time::timeout(PATIENCE, changes.next()).await.unwrap();
    assert_eq!(change, Some(AccountChange::Account(AccountId(number))));
    assert!(other.directory.holds(&login).await.unwrap(), "a quota ends no connection");
}

async fn a_removed_account_is_announced(fixture: Fixture) {
    let (one, other) = (fixture.server().await, fixture.server().await);
    one.add_domain("example.org").await;
    let number = one.add_account("anna@example.org", Some("secret")).await;
    let (token, _) = one.token("anna@example.org", &[Scope::Mail], None).await;
    let by_token = one.directory.check_token(IP, &token).await.unwrap();
    let by_password = other.log_in("anna@example.org", "secret").await.unwrap();
    let mut changes = [one.directory.changes(), other.directory.changes()];
    one.done(Operation::RemoveAccount { address: address("anna@example.org") }).await;
    for changes in &mut changes {
        let change = tokio::time::timeout(PATIENCE, changes.next()).await.unwrap();
        assert_eq!(change, Some(AccountChange::Account(AccountId(number))));
    }
    assert!(!one.directory.holds(&by_token).await.unwrap());
    assert!(!other.directory.holds(&by_password).await.unwrap());
    wait_until("the remembered log-in ends", || async {
        other.log_in("anna@example.org", "secret").await.is_err()
    })
    .await;
    assert!(matches!(other.directory.check_token(IP, &token).await, Err(LoginError::Refused)));
}

async fn failures_are_limited_by_account_and_by_address(fixture: Fixture) {
    let number = |number| NonZero::new(number).unwrap();
    let limits = DirectoryConfig {
        failures_per_account_max: number(3),
        failures_per_ip_max: number(5),
        failure_seconds: NonZero::new(300).unwrap(),
        ..config()
    };
    let server = fixture.server_with(limits).await;
    server.add_domain("example.org").await;
    server.add_account("anna@example.org", Some("secret")).await;
    server.add_account("bert@example.org", Some("secret")).await;
    server.log_in("anna@example.org", "secret").await.unwrap();
    for _ in 0..3 {
        server.is_refused("anna@example.org", "wrong").await;
    }
    let elsewhere = IpAddr::from([198, 51, 100, 1]);
    for ip in [IP, elsewhere] {
        let limited = server.directory.check_password(ip, "Anna@example.org", "wrong").await;
        assert!(matches!(limited, Err(LoginError::Limited { wait_seconds: 100 })), "{limited:?}");
    }
    assert!(server.log_in("anna@example.org", "secret").await.is_ok(), "who is remembered comes in");
    // Log-ins that succeed cost nothing.
    for n in 0..10 {
        server.log_in("bert@example.org", "secret").await.unwrap();
        server.set_password("bert@example.org", Some("app"), &format!("{n}")).await;
    }
    for _ in 0..2 {
        server.is_refused("nobody@example.org", "wrong").await;
    }
    let limited = server.log_in("carl@example.org", "wrong").await;
    assert!(
        matches!(limited, Err(LoginError::Limited { .. })),
        "the address has failed five times: {limited:?}"
    );
    let token = server.directory.check_token(IP, "rst_x").await;
    assert!(matches!(token, Err(LoginError::Limited { .. })), "{token:?}");
    assert!(matches!(scram_first(&server, "carl@example.org").await, Err(LoginError::Limited { .. })));
    let other = server.directory.check_password(elsewhere, "carl@example.org", "wrong").await;
    assert!(matches!(other, Err(LoginError::Refused)), "{other:?}");
    fixture.pass(100);
    server.is_refused("anna@example.org", "wrong").await;
    assert!(
        server.metric("restante_directory_logins_total{mechanism=\"password\",result=\"limited\"} ") >= 3.0
    );
}

async fn more_checks_than_may_wait_are_refused_as_busy(fixture: Fixture) {
    let waiting = DirectoryConfig { checks_waiting_max: NonZero::new(2).unwrap(), ..config() };
    let server = fixture.server_with(waiting).await;
    server.add_domain("example.org").await;
    let mut tasks = JoinSet::new();
    for n in 0..32_u8 {
        let directory = server.directory.clone();
        let ip = IpAddr::from([10, 0, 0, n]);
        tasks.spawn(async move { directory.check_password(ip, &format!("u{n}@example.org"), "wrong").await });
    }
    let (mut busy, mut refused) = (0, 0);
    while let Some(done) = tasks.join_next().await {
        match done.unwrap() {
            Err(LoginError::Refused) => refused += 1,
            Err(LoginError::Failed(error)) if error.kind() == ErrorKind::Unavailable => busy += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(busy > 0 && refused > 0, "{busy} busy, {refused} refused");
    server.is_refused("anna@example.org", "wrong").await;
}

async fn connections_of_one_account_share_a_check(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_account("anna@example.org", Some("secret")).await;
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let directory = server.directory.clone();
        tasks.spawn(async move { directory.check_password(IP, "anna@example.org", "secret").await.is_ok() });
    }
    while let Some(done) = tasks.join_next().await {
        assert!(done.unwrap(), "more at once than may fail");
    }
    assert_eq!(server.derivations(), 1.0);
    assert_eq!(server.metric("restante_directory_checks_waiting "), 0.0);
}

const NO_BINDING: (&[ChannelBinding], bool) = (&[], false);

async fn scram_first(server: &Server, name: &str) -> Result<ScramExchange, LoginError> {
    let first = format!("n,,n={name},r=clientnonce");
    server.directory.begin_scram(IP, Mechanism::ScramSha256, first.as_bytes(), NO_BINDING).await
}

/// The last message of a client in answer to a challenge.
fn client_last(mechanism: Mechanism, name: &str, password: &str, challenge: &str) -> String {
    use ring::{digest, hmac, pbkdf2};
    let (derivation, signing, hash) = match mechanism {
        Mechanism::ScramSha1 => {
            (pbkdf2::PBKDF2_HMAC_SHA1, hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &digest::SHA1_FOR_LEGACY_USE_ONLY)
        }
        Mechanism::ScramSha256 => (pbkdf2::PBKDF2_HMAC_SHA256, hmac::HMAC_SHA256, &digest::SHA256),
    };
    let fields: Vec<&str> = challenge.split(',').map(|field| &field[2..]).collect();
    let salt = base64_simd::STANDARD.decode_to_vec(fields[1]).unwrap();
    let mut salted = vec![0; hash.output_len()];
    pbkdf2::derive(derivation, fields[2].parse().unwrap(), &salt, password.as_bytes(), &mut salted);
    let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(signing, key), text).as_ref().to_vec();
    let key = sign(&salted, b"Client Key");
    let without_proof = format!("c=biws,r={}", fields[0]);
    let signed = format!("n={name},r=clientnonce,{challenge},{without_proof}");
    let signature = sign(digest::digest(hash, &key).as_ref(), signed.as_bytes());
    let proof: Vec<u8> = key.iter().zip(&signature).map(|(key, signature)| key ^ signature).collect();
    format!("{without_proof},p={}", base64_simd::STANDARD.encode_to_string(proof))
}

async fn scram(
    server: &Server,
    mechanism: Mechanism,
    name: &str,
    password: &str,
) -> Result<(Arc<Login>, String), LoginError> {
    let first = format!("n,,n={name},r=clientnonce");
    let exchange = server.directory.begin_scram(IP, mechanism, first.as_bytes(), NO_BINDING).await?;
    let last = client_last(mechanism, name, password, exchange.message());
    exchange.finish(last.as_bytes()).await
}

async fn scram_lets_in_by_each_password(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    let number = server.add_account("anna@example.org", Some("main")).await;
    server.set_password("anna@example.org", Some("phone"), "other").await;
    for mechanism in [Mechanism::ScramSha1, Mechanism::ScramSha256] {
        for password in ["main", "other"] {
            let (login, message) = scram(&server, mechanism, "Anna@example.org", password).await.unwrap();
            assert_eq!(login.account.0, number);
            assert!(message.starts_with("v="), "{message}");
            assert!(server.directory.holds(&login).await.unwrap());
        }
        let error = scram(&server, mechanism, "anna@example.org", "wrong").await.unwrap_err();
        assert_eq!(error.scram_message(), "e=invalid-proof");
    }
    server.done(Operation::SetState { address: address("anna@example.org"), state: State::Disabled }).await;
    let error = scram(&server, Mechanism::ScramSha256, "anna@example.org", "main").await.unwrap_err();
    assert_eq!(error.scram_message(), "e=invalid-proof");
    let accepted = "restante_directory_logins_total{mechanism=\"scram_sha_1\",result=\"accepted\"} ";
    assert_eq!(server.metric(accepted), 2.0);
}

async fn scram_hides_who_is_unknown(mut fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_account("anna@example.org", Some("secret")).await;
    let salt = async |server: &Server, name: &str| {
        let exchange = scram_first(server, name).await.unwrap();
        exchange.message().split_once(",s=").unwrap().1.to_owned()
    };
    let unknown = salt(&server, "nobody@example.org").await;
    assert_eq!(salt(&server, "NOBODY@example.org").await, unknown);
    assert_ne!(salt(&server, "another@example.org").await, unknown);
    assert_eq!(unknown.len(), salt(&server, "anna@example.org").await.len());
    let error = scram(&server, Mechanism::ScramSha256, "nobody@example.org", "x").await.unwrap_err();
    assert_eq!(error.scram_message(), "e=invalid-proof");
    drop(server);
    fixture.reopen().await;
    let server = fixture.server().await;
    assert_eq!(salt(&server, "nobody@example.org").await, unknown, "after a restart, and on other servers");
}

async fn scram_sees_a_password_that_changed_meanwhile(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_account("anna@example.org", Some("secret")).await;
    let exchange = scram_first(&server, "anna@example.org").await.unwrap();
    let last = client_last(Mechanism::ScramSha256, "anna@example.org", "secret", exchange.message());
    server.set_password("anna@example.org", None, "changed").await;
    assert!(matches!(exchange.finish(last.as_bytes()).await, Err(LoginError::Refused)));
}

async fn tokens_have_scopes_and_expire(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_account("anna@example.org", None).await;
    let check = async |token: &str| server.directory.check_token(IP, token).await;
    let (forever, id) =
        server.token("anna@example.org", &[Scope::Send, Scope::Mail, Scope::Send], None).await;
    let (hour, _) = server.token("anna@example.org", &[Scope::Chat], Some(3_600)).await;
    assert!(forever.starts_with("rst_") && forever != hour);
    let login = check(&forever).await.unwrap();
    assert_eq!((&login.scopes, login.expires), (&Some(vec![Scope::Mail, Scope::Send]), None));
    let token = NewToken { name: "far".into(), scopes: vec![Scope::Mail], expires_in: Some(u64::MAX) };
    let far = Operation::CreateToken { address: address("anna@example.org"), token };
    server.refused(far, ErrorKind::Invalid).await;
    let short = check(&hour).await.unwrap();
    assert_eq!(short.expires, Some(1_800_000_000 + 3_600));
    let mut other = forever.clone();
    other.replace_range(10..11, if &forever[10..11] == "A" { "B" } else { "A" });
    for wrong in ["", "rst_", &forever[1..], &forever[..forever.len() - 1], &format!("{forever}A"), &other] {
        assert!(matches!(check(wrong).await, Err(LoginError::Refused)), "{wrong}");
    }
    fixture.pass(3_600);
    assert!(matches!(check(&hour).await, Err(LoginError::Refused)));
    assert!(!server.directory.holds(&short).await.unwrap());
    assert!(server.directory.holds(&login).await.unwrap());
    server.done(Operation::RevokeToken { address: address("anna@example.org"), id: id.clone() }).await;
    assert!(matches!(check(&forever).await, Err(LoginError::Refused)));
    let again = Operation::RevokeToken { address: address("anna@example.org"), id };
    server.refused(again, ErrorKind::NotFound).await;

    let operate = || Operation::CreateToken {
        address: address("anna@example.org"),
        token: NewToken { name: "x".into(), scopes: vec![Scope::Operate], expires_in: None },
    };
    let error = server.refused(operate(), ErrorKind::Invalid).await;
    assert!(error.contains("is no operator"), "{error}");
    server.done(Operation::SetRole { address: address("anna@example.org"), role: Role::Operator }).await;
    server.done(operate()).await;
    let Answer::Tokens(tokens) =
        server.operate(Operation::Tokens { address: address("anna@example.org") }).await.unwrap()
    else {
        panic!("no tokens")
    };
    assert_eq!(tokens.len(), 1, "what has expired is gone");
    for _ in 1..64 {
        server.token("anna@example.org", &[Scope::Mail], None).await;
    }
    server.refused(operate(), ErrorKind::Conflict).await;
}

async fn what_a_user_has_left_ends_with_its_credential(mut fixture: Fixture) {
    let secret = fixture.server().await.directory.server_secret("a test", b"one").await.unwrap();
    fixture.reopen().await;
    let server = fixture.server().await;
    assert_eq!(server.directory.server_secret("a test", b"two").await.unwrap(), secret);
    assert_eq!(secret, b"one");

    server.add_domain("example.org").await;
    let account = AccountId(server.add_account("anna@example.org", Some("secret")).await);
    let by = async |credential| server.directory.login_by_credential(account, credential).await.unwrap();
    let password = server.log_in("anna@example.org", "secret").await.unwrap();
    let (token, id) = server.token("anna@example.org", &[Scope::Mail], None).await;
    let token = server.directory.check_token(IP, &token).await.unwrap();
    let (hour, _) = server.token("anna@example.org", &[Scope::Mail], Some(3_600)).await;
    let hour = server.directory.check_token(IP, &hour).await.unwrap();
    for login in [&password, &token, &hour] {
        assert_eq!(by(login.credential()).await.as_ref(), Some(login));
    }
    let (url, expires) = server.directory.make_url_token(&hour, 86_400);
    assert_eq!(expires, 1_800_003_600, "not longer than the token that makes it");
    assert_eq!(server.directory.check_url_token(IP, &url).await.unwrap(), hour);
    fixture.pass(3_600);
    assert_eq!(by(hour.credential()).await, None);
    assert!(matches!(server.directory.check_url_token(IP, &url).await, Err(LoginError::Refused)));
    server.done(Operation::RevokeToken { address: address("anna@example.org"), id }).await;
    assert_eq!(by(token.credential()).await, None);
    let (url, _) = server.directory.make_url_token(&password, 60);
    server.directory.check_url_token(IP, &url).await.unwrap();
    let mut changes = server.directory.changes();
    assert!(by(password.credential()).await.is_some());
    server.set_password("anna@example.org", None, "changed").await;
    assert_eq!(by(password.credential()).await, None);
    assert!(matches!(server.directory.check_url_token(IP, &url).await, Err(LoginError::Refused)));
    let announced = tokio::time::timeout(PATIENCE, changes.next()).await.unwrap();
    assert_eq!(announced, Some(AccountChange::Account(account)));
    let changed = server.log_in("anna@example.org", "changed").await.unwrap();
    server.done(Operation::SetState { address: address("anna@example.org"), state: State::Disabled }).await;
    assert_eq!(by(changed.credential()).await, None);
    server.done(Operation::RemoveAccount { address: address("anna@example.org") }).await;
    assert_eq!(by(changed.credential()).await, None);
}

async fn grants_end_with_either_account(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    let shared = server.add_account("shared@example.org", None).await;
    server.add_account("anna@example.org", Some("secret")).await;
    server.add_account("bert@example.org", None).await;
    let pair = |owner: &str, user: &str| (address(owner), address(user));
    let grant = |owner, user, access| {
        let (owner, user) = pair(owner, user);
        Operation::Grant { owner, user, access }
    };
    server.done(grant("shared@example.org", "anna@example.org", Access::Read)).await;
    server.done(grant("shared@example.org", "anna@example.org", Access::Write)).await;
    server.done(grant("shared@example.org", "bert@example.org", Access::Read)).await;
    server.refused(grant("anna@example.org", "anna@example.org", Access::Read), ErrorKind::Invalid).await;
    server.refused(grant("nobody@example.org", "anna@example.org", Access::Read), ErrorKind::NotFound).await;
    server.refused(grant("anna@example.org", "nobody@example.org", Access::Read), ErrorKind::NotFound).await;
    let login = server.log_in("anna@example.org", "secret").await.unwrap();
    assert_eq!(login.grants.len(), 1);
    assert_eq!((login.grants[0].owner.0, login.grants[0].access), (shared, Access::Write));
    assert!(server.directory.holds(&login).await.unwrap());
    server.done(grant("shared@example.org", "anna@example.org", Access::Read)).await;
    assert!(!server.directory.holds(&login).await.unwrap(), "it could do more than it may");
    server.done(grant("shared@example.org", "anna@example.org", Access::Write)).await;
    assert!(server.directory.holds(&login).await.unwrap());
    let info = server.account("shared@example.org").await;
    let users: BTreeSet<String> = info.used_by.iter().map(|user| user.address.to_string()).collect();
    assert_eq!(users, BTreeSet::from(["anna@example.org".into(), "bert@example.org".into()]));
    assert_eq!(server.account("anna@example.org").await.may_use[0].address, address("shared@example.org"));

    let revoke = || {
        let (owner, user) = pair("shared@example.org", "bert@example.org");
        Operation::Revoke { owner, user }
    };
    server.done(revoke()).await;
    server.refused(revoke(), ErrorKind::NotFound).await;
    server.done(Operation::RemoveAccount { address: address("shared@example.org") }).await;
    assert_eq!(server.account("anna@example.org").await.may_use, []);
    wait_until("the remembered log-in ends", || async {
        server.log_in("anna@example.org", "secret").await.unwrap().grants.is_empty()
    })
    .await;
}

async fn a_removed_account_is_noted_until_it_is_forgotten(mut fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    let anna = server.add_account("anna@example.org", None).await;
    server.add_account("bert@example.org", None).await;
    let (owner, user) = (address("anna@example.org"), address("bert@example.org"));
    server.done(Operation::Grant { owner, user, access: Access::Read }).await;
    let removed =
        async |server: &Server| server.directory.removed_accounts(None, PAGE_MAX).await.unwrap().items;
    assert_eq!(removed(&server).await, []);
    server.done(Operation::RemoveAccount { address: address("anna@example.org") }).await;
    drop(server);
    fixture.reopen().await;

    let server = fixture.server().await;
    let noted = RemovedAccount {
        account: AccountId(anna),
        address: address("anna@example.org"),
        removed: 1_800_000_000,
    };
    assert_eq!(removed(&server).await, std::slice::from_ref(&noted));
    // Its address is free, and the new account is not the one that was removed.
    let again = server.add_account("anna@example.org", None).await;
    assert!(again > anna);
    server.done(Operation::RemoveAccount { address: address("anna@example.org") }).await;
    let page = server.directory.removed_accounts(None, 1).await.unwrap();
    let rest = server.directory.removed_accounts(page.next.as_deref(), PAGE_MAX).await.unwrap();
    let both = |page: Page<RemovedAccount>| page.items.into_iter().map(|removed| removed.account.0);
    assert_eq!(both(page).chain(both(rest)).collect::<Vec<_>>(), [anna, again]);

    let actor = Actor("a test".into());
    server.directory.forget_removed(&actor, &noted).await.unwrap();
    server.directory.forget_removed(&actor, &noted).await.unwrap();
    assert_eq!(removed(&server).await.len(), 1);
    server
        .directory
        .note(&actor, &noted.address, "erased the mail of anna@example.org".into())
        .await
        .unwrap();
    let Answer::Log(log) = server.operate(Operation::Log { limit: PAGE_MAX }).await.unwrap() else {
        panic!("no log")
    };
    assert!(
        log.iter().any(|line| line.who == "a test" && line.what == "erased the mail of anna@example.org")
    );
}

/// The state that a crash after the first commit of the removal leaves.
#[tokio::test]
async fn what_a_removal_left_is_removed_when_the_account_is_forgotten() {
    let fixture = Fixture::memory().await;
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    let anna = AccountId(server.add_account("anna@example.org", None).await);
    server.add_account("bert@example.org", None).await;
    let (owner, user) = (address("anna@example.org"), address("bert@example.org"));
    server.done(Operation::Grant { owner, user, access: Access::Read }).await;
    let removed = RemovedAccount { account: anna, address: address("anna@example.org"), removed: 0 };
    server.directory.forget_removed(&Actor("a test".into()), &removed).await.unwrap();
    assert_eq!(server.account("bert@example.org").await.may_use, []);
    assert_eq!(server.directory.address_of(anna).await.unwrap(), None);
}

async fn operations_are_logged_and_the_log_is_bounded(fixture: Fixture) {
    let server = fixture.server().await;
    server.add_domain("example.org").await;
    server.add_account("anna@example.org", Some("secret")).await;
    for n in 0..300 {
        fixture.pass(1);
        server.done(Operation::SetQuota { address: address("anna@example.org"), quota_bytes: Some(n) }).await;
    }
    server.refused(add_domain("example.org", None), ErrorKind::Conflict).await;
    let Answer::Log(log) = server.operate(Operation::Log { limit: PAGE_MAX }).await.unwrap() else {
        panic!("no log")
    };
    assert_eq!(log[0].what, "set the quota of anna@example.org to 299 bytes");
    assert_eq!((log[0].who.as_str(), log[0].at), ("a test", 1_800_000_300 * 1_000_000_000));
    let quotas = log.iter().filter(|line| line.what.starts_with("set the quota")).count();
    assert_eq!(quotas, 256, "a shard keeps its last operations");
    assert!(log.iter().any(|line| line.what == "added domain example.org"), "another shard has its own");
    assert!(!log.iter().any(|line| line.what.contains("secret")));
    let Answer::Log(log) = server.operate(Operation::Log { limit: 3 }).await.unwrap() else {
        panic!("no log")
    };
    assert_eq!(log.len(), 3);
}

#[test]
fn operations_and_answers_read_back() {
    let none = Operation::SetDomain { domain: domain("example.org"), separator: Some(None), catch_all: None };
    for operation in [none, add_account("anna@example.org", Some("secret")), Operation::Log { limit: 7 }] {
        let json = serde_json::to_string(&operation).unwrap();
        assert!(serde_json::from_str::<Operation>(&json).unwrap() == operation, "{json}");
    }
    for json in [
        "{}",
        "{\"do\": \"log\"}",
        "{\"do\": \"account\", \"address\": \"no address\"}",
        "{\"do\": \"account\", \"address\": \"a@b.org\", \"more\": 1}",
        "{\"do\": \"fly\"}",
    ] {
        assert!(serde_json::from_str::<Operation>(json).is_err(), "{json}");
    }
}

#[test]
fn keys_are_not_shown() {
    let rounds = NonZero::new(16).unwrap();
    let keys = StoredKeys::derive(Mechanism::ScramSha256, "secret", b"salt", rounds);
    assert_eq!(format!("{keys:?}"), "StoredKeys(..)");
}
