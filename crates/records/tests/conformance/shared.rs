//! What holds when several processes have a store open.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use restante_core::ErrorKind;
use restante_records::{
    AccountId, Announcement, Body, Change, ChangesSince, Commit, Config, EngineUrl, Opened, PostgresUrl,
    Query, RecordId, Records, Revision, Schema, Upkeep, open,
};
use tokio::time::timeout;
use tokio_postgres::NoTls;

use crate::{
    Subject,
    common::{
        A, B, BY_MAILBOX, EMAIL, THREAD, commit, create, create_one, destroy, email, email_schema, get_one,
        ids, mailbox_schema,
        mirror::{Mirror, all_of},
        none, revision, schema, thread,
    },
};

crate::promises! {
    any: [],
    disk: [],
    shared: [
        servers_see_each_others_commits_at_once,
        commits_of_other_servers_are_announced,
        servers_on_one_account_get_every_revision_and_id_once,
        a_server_that_was_alone_for_long_notices_another_one,
        who_follows_one_server_has_what_all_have_committed,
        a_server_with_other_indexes_is_refused_while_others_have_the_store_open,
        bytes_that_texts_can_not_have_are_kept,
    ],
    sql: [
        lost_connections_lose_nothing_that_was_acknowledged_and_make_nothing_twice,
        a_commit_that_waits_too_long_for_another_transaction_is_not_made,
        a_server_that_forgets_what_it_acknowledged_is_refused,
        an_error_for_a_user_that_may_only_read_names_the_rights_it_lacks,
    ]
}

/// What a check finds.
pub(crate) async fn findings(upkeep: &dyn Upkeep) -> Vec<String> {
    let report = upkeep.check(&|_, _| ()).await.unwrap();
    report.findings.into_iter().map(|finding| format!("{}: {}", finding.place, finding.what)).collect()
}

/// How long an expected event may take.
const PATIENCE: Duration = Duration::from_secs(60);

async fn servers_see_each_others_commits_at_once(subject: Subject) {
    let (one, other) = (subject.open().await, subject.open().await);
    assert_eq!(one.upkeep.identity(), other.upkeep.identity());
    for n in 0..20 {
        let (writer, reader) = if n % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let id = create_one(&*writer.records, A, email(n)).await;
        assert_eq!(revision(&*reader.records, A).await, Revision(n + 1));
        assert!(get_one(&*reader.records, A, EMAIL, id).await.is_some());
        assert!(ids(&*reader.records, A, &Query::new(EMAIL, BY_MAILBOX)).await.contains(&id));
    }
    assert_eq!(one.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
}

async fn commits_of_other_servers_are_announced(subject: Subject) {
    let (one, other) = (subject.open().await, subject.open().await);
    let mut watch = one.records.watch();
    for n in 1..=10 {
        commit(&*other.records, A, [email(n)]).await;
        commit(&*one.records, B, [email(n)]).await;
    }
    // So many accounts that their list is too long for a notification.
    let many = (100..1_500).map(AccountId);
    let commits = many.clone().map(|account| {
        let records = other.records.clone();
        tokio::spawn(async move { commit(&*records, account, [thread()]).await })
    });
    for commit in commits.collect::<Vec<_>>() {
        commit.await.unwrap();
    }
    let mut newest: BTreeMap<AccountId, Revision> = BTreeMap::new();
    let all: BTreeSet<AccountId> = many.chain([A, B]).collect();
    let is_done = |newest: &BTreeMap<AccountId, Revision>| {
        newest.len() == all.len()
            && newest.get(&A) == Some(&Revision(10))
            && newest.get(&B) == Some(&Revision(10))
    };
    while !is_done(&newest) {
        let next = timeout(PATIENCE, watch.next())
            .await
            .expect("an announcement comes")
            .expect("the store is there");
        let Ok(Announcement { account, revision }) = next else {
            // It was too slow for all of them: a client would read what the watch missed.
            newest = all.iter().map(|account| (*account, Revision(10))).collect();
            continue;
        };
        let before = newest.insert(account, revision);
        assert!(before < Some(revision), "{account:?} at {revision:?} after {before:?}");
    }
}

async fn servers_on_one_account_get_every_revision_and_id_once(subject: Subject) {
    let servers = [subject.open().await, subject.open().await, subject.open().await];
    let start = |task: usize| {
        let records = servers[task % servers.len()].records.clone();
        tokio::spawn(async move {
            let mut got = Vec::new();
            for n in 0..30 {
                let made = commit(&*records, A, [email(n), thread()]).await;
                got.push((made.revision.0, made.created));
            }
            got
        })
    };
    let tasks: Vec<_> = (0..6).map(start).collect();
    let mut all = BTreeMap::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    assert_eq!(all.keys().copied().collect::<Vec<_>>(), (1..=180).collect::<Vec<_>>());
    let given: Vec<RecordId> = all.into_values().flatten().collect();
    assert_eq!(given, (1..=360).map(RecordId).collect::<Vec<_>>(), "ids rise with revisions");
    assert_eq!(servers[0].upkeep.check(&|_, _| ()).await.unwrap().findings, []);
}

/// A server may cache what it knows of an account, but must not answer from a cache that is out of date.
async fn a_server_that_was_alone_for_long_notices_another_one(subject: Subject) {
    let (one, other) = (subject.open().await, subject.open().await);
    let in_state = |state: u64| Commit::of([email(1)]).if_in_state(EMAIL, Revision(state));
    for round in 0..3 {
        let before = round * 10;
        for n in 0..5 {
            assert_eq!(commit(&*one.records, A, [email(n)]).await.revision, Revision(before + n + 1));
        }
        commit(&*other.records, A, [email(9)]).await; // the sixth
        let question = |since: u64| ChangesSince { kind: Some(EMAIL), since: Revision(since), limit: 100 };
        match round {
            // Its cache must not make it refuse a state that is right, nor accept one that is wrong.
            0 => {
                let refused = one.records.commit(A, in_state(before + 5)).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Conflict);
                assert_eq!(one.records.commit(A, in_state(before + 6)).await.unwrap().revision, Revision(7));
            }
            1 => {
                assert_eq!(commit(&*one.records, A, [email(1)]).await.revision, Revision(before + 7));
            }
            _ => {
                let changes = one.records.changes(A, &question(before + 5)).await.unwrap();
                assert_eq!((changes.created.len(), changes.revision), (1, Revision(before + 6)));
                commit(&*other.records, A, [email(1)]).await; // the seventh
                let changes = one.records.changes(A, &question(before + 7)).await.unwrap();
                assert_eq!((changes.created.len(), changes.revision), (0, Revision(before + 7)));
            }
        }
        for _ in 7..10 {
            commit(&*one.records, A, [thread()]).await;
        }
    }
    let emails = ids(&*one.records, A, &Query::new(EMAIL, BY_MAILBOX)).await;
    assert_eq!(emails.len(), 21);
    assert_eq!(one.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
}

async fn who_follows_one_server_has_what_all_have_committed(subject: Subject) {
    let (one, other) = (subject.open().await, subject.open().await);
    let stop = Arc::new(AtomicBool::new(false));
    let start = |records: Arc<dyn Records>| {
        let stop = stop.clone();
        tokio::spawn(async move {
            for n in 0..40 {
                let made = commit(&*records, A, [email(n), thread()]).await;
                commit(&*records, A, [destroy(THREAD, made.created[1])]).await;
            }
            stop.store(true, Ordering::SeqCst);
        })
    };
    let tasks = [start(one.records.clone()), start(other.records.clone())];
    let mut mirror = Mirror::default();
    while !stop.load(Ordering::SeqCst) {
        mirror.keep_up(&*one.records, A, 7).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    mirror.keep_up(&*one.records, A, 7).await;
    mirror.assert_equals(&*other.upkeep, A).await;
}

async fn a_server_with_other_indexes_is_refused_while_others_have_the_store_open(subject: Subject) {
    let opened = subject.open().await;
    let id = create_one(&*opened.records, A, email(1)).await;
    let mut emails = email_schema();
    emails.indexes.retain(|index| index.index == BY_MAILBOX);
    let threads = schema().kinds().last().unwrap().clone();
    let fewer = Schema::new(vec![emails, mailbox_schema(), threads]).unwrap();
    let with_fewer = || open(Config { schema: fewer.clone(), ..subject.config.clone() });
    let Err(error) = with_fewer().await else { panic!("the indexes of the other server went") };
    assert_eq!(error.kind(), ErrorKind::Conflict);
    commit(&*opened.records, A, [email(2)]).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    let changed = with_fewer().await.unwrap();
    assert!(ids(&*changed.records, A, &Query::new(EMAIL, BY_MAILBOX)).await.contains(&id));
}

/// The settings of a store with a name for its connections, and that name.
fn named(subject: &Subject) -> (Config, String) {
    let EngineUrl::Postgres(url) = &subject.config.url else { panic!("the engine has no database") };
    let name = format!("of_{}", url.schema());
    (with_parameter(subject, &format!("application_name={name}")), name)
}

fn with_parameter(subject: &Subject, parameter: &str) -> Config {
    let EngineUrl::Postgres(url) = &subject.config.url else { panic!("the engine has no database") };
    let joint = if url.connection().contains('?') { '&' } else { '?' };
    let text = format!("{}{joint}{parameter}&schema={}", url.connection(), url.schema());
    let url: PostgresUrl = text.parse().unwrap();
    Config { url: EngineUrl::Postgres(url), ..subject.config.clone() }
}

/// Each commit has its number, so that one that is made twice shows.
pub(crate) async fn commit_numbered(opened: Opened, task: u64, stop: Arc<AtomicBool>) -> (Vec<String>, u64) {
    let (mut acknowledged, mut refused) = (Vec::new(), 0);
    for n in 0..100_000 {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let text = format!("{task}/{n}");
        let change = create(THREAD, "", none());
        let Change::Create { kind, properties, .. } = change else { panic!("it creates") };
        let change = Change::Create { kind, body: Body::new(text.clone()), properties };
        let account = if n % 2 == 0 { A } else { AccountId(1_000 + task as u32) };
        match opened.records.commit(account, Commit::of([change])).await {
            Ok(_) => acknowledged.push(text),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                refused += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    (acknowledged, refused)
}

async fn lost_connections_lose_nothing_that_was_acknowledged_and_make_nothing_twice(subject: Subject) {
    let (config, name) = named(&subject);
    let (one, other) = (open(config.clone()).await.unwrap(), open(config).await.unwrap());
    let mut watch = one.records.watch();
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..6)
        .map(|task| {
            let opened = if task % 2 == 0 { one.clone() } else { other.clone() };
            tokio::spawn(commit_numbered(opened, task, stop.clone()))
        })
        .collect();
    let kill =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{name}'");
    for _ in 0..25 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        subject.sql(&kill).await;
    }
    // At the end it works again, and what was missed is announced.
    let mut last = None;
    for _ in 0..600 {
        match other.records.commit(B, Commit::of([thread()])).await {
            Ok(made) => last = Some(made.revision),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
        if last.is_some() {
            break;
        }
    }
    stop.store(true, Ordering::SeqCst);
    let mut acknowledged = Vec::new();
    for task in tasks {
        acknowledged.extend(task.await.unwrap().0);
    }
    assert!(!acknowledged.is_empty());
    let last = last.expect("it works again");
    let mut newest: BTreeMap<AccountId, Revision> = BTreeMap::new();
    loop {
        let next =
            timeout(PATIENCE, watch.next()).await.expect("it is announced").expect("the store is there");
        let Ok(Announcement { account, revision }) = next else { break };
        let before = newest.insert(account, revision);
        assert!(before < Some(revision), "{account:?} at {revision:?} after {before:?}");
        if (account, revision) == (B, last) {
            break;
        }
    }
    let mut made: Vec<String> = Vec::new();
    for account in [A].into_iter().chain((1_000..1_006).map(AccountId)) {
        let records = all_of(&*one.upkeep, account).await;
        let states = one.records.states(account).await.unwrap();
        assert_eq!(records.len() as u64, states.revision.0, "each revision made one record");
        made.extend(
            records.into_values().map(|record| String::from_utf8(record.body.bytes.to_vec()).unwrap()),
        );
    }
    let once: BTreeSet<&String> = made.iter().collect();
    assert_eq!(once.len(), made.len(), "nothing is made twice");
    assert!(acknowledged.iter().all(|text| once.contains(text)), "nothing that was acknowledged is lost");
    assert_eq!(one.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
}

async fn a_commit_that_waits_too_long_for_another_transaction_is_not_made(subject: Subject) {
    let mut config = subject.config.clone();
    config.postgres.lock_timeout_ms = restante_core::nonzero!(200);
    let opened = open(config).await.unwrap();
    commit(&*opened.records, A, [email(1)]).await;
    let EngineUrl::Postgres(url) = &subject.config.url else { panic!("the engine has no database") };
    let (holder, connection) = tokio_postgres::connect(url.connection(), NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let lock = format!("BEGIN; SELECT 1 FROM {}.account FOR UPDATE", url.schema());
    holder.batch_execute(&lock).await.unwrap();
    let error = opened.records.commit(A, Commit::of([email(2)])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    holder.batch_execute("ROLLBACK").await.unwrap(); // when it only disconnected, the server would release the lock some time later
    drop(holder);
    connection.await.unwrap().unwrap();
    assert_eq!(commit(&*opened.records, A, [email(3)]).await.revision, Revision(2));
}

async fn a_server_that_forgets_what_it_acknowledged_is_refused(subject: Subject) {
    let Err(error) = open(with_parameter(&subject, "options=-c%20synchronous_commit%3Doff")).await else {
        panic!("it was opened")
    };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("synchronous_commit"), "{error}");
}

async fn bytes_that_texts_can_not_have_are_kept(subject: Subject) {
    let opened = subject.open().await;
    let bytes: Vec<u8> = (0..=255).chain([0, 0, 255, 0]).collect();
    let change = Change::Create { kind: THREAD, body: Body::new(bytes.clone()), properties: none() };
    let id = create_one(&*opened.records, A, change).await;
    assert_eq!(get_one(&*opened.records, A, THREAD, id).await.unwrap().body.bytes, bytes);
    opened.feed.save("a\0b", &Default::default()).await.unwrap();
    assert_eq!(opened.feed.followers().await.unwrap()[0].0, "a\0b");
}

/// The error said that a restore can't be recorded, although nothing had been restored.
async fn an_error_for_a_user_that_may_only_read_names_the_rights_it_lacks(subject: Subject) {
    subject.open().await.upkeep.close().await.unwrap();
    let reader = with_parameter(&subject, "options=-c%20role%3Dpg_read_all_data");
    let error = open(reader).await.err().expect("it can't write").to_string();
    assert!(error.contains("can't look whether") && error.contains("permission denied"), "{error}");
    assert!(error.contains("grant it SELECT, INSERT, UPDATE and DELETE"), "{error}");
}
