//! What holds on a store in Cassandra, whose rows and connections others can access.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use restante_core::{ErrorKind, Timestamp, nonzero};
use restante_records::{
    AccountId, Announcement, CassandraUrl, ChangesSince, Checkpoint, Commit, Config, DUMP_RECORDS_MAX,
    Dumped, EngineUrl, Metrics, Opened, Position, Query, RESTORE_JUMP, Revision, Schema, open,
};
use scylla::value::CqlValue;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    Subject,
    common::{
        A, B, BY_MAILBOX, EMAIL, KEYWORD, THREAD, accounts_after, at, blob,
        cassandra::{run_cql, session},
        commit, create, create_one, destroy, email, email_schema, in_mailbox, mailbox, mailbox_schema,
        mirror::all_of,
        none, revision, rewrite, schema, thread,
    },
    shared::{commit_numbered, findings},
};

crate::promises! {
    any: [],
    disk: [],
    cql: [
        cut_connections_lose_nothing_that_was_acknowledged_and_make_nothing_twice,
        a_position_whose_commit_was_never_made_stops_followers_for_a_while_only,
        an_account_whose_first_commit_was_never_made_is_listed_by_the_next_one,
        checkpoints_are_written_by_conditional_statements_alone,
        a_damaged_account_keeps_no_other_from_being_cleaned,
        a_check_finds_damage_in_each_table,
        a_removed_origin_is_a_restore,
        a_server_that_was_thought_to_be_gone_commits_by_no_old_indexes,
        a_commit_of_too_many_rows_is_refused,
        rows_of_another_format_are_refused,
    ]
}

/// How long an expected event may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn url(subject: &Subject) -> &CassandraUrl {
    let EngineUrl::Cassandra(url) = &subject.config.url else { panic!("the engine is another one") };
    url
}

/// Runs a statement whose first value is the name of the store.
pub(crate) async fn cql(
    subject: &Subject,
    statement: &str,
    mut values: Vec<CqlValue>,
) -> Vec<scylla::value::Row> {
    let session = session(url(subject)).await;
    values.insert(0, CqlValue::Text(url(subject).store().to_owned()));
    run_cql(&session, statement, values.into_iter().map(Some).collect()).await
}

/// Forwards connections to a node, until they are cut.
struct Proxy {
    port: u16,
    passing: Arc<Mutex<Vec<JoinHandle<()>>>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    async fn new(node: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let passing: Arc<Mutex<Vec<JoinHandle<()>>>> = Arc::default();
        let all = passing.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let node = node.clone();
                all.lock().push(tokio::spawn(async move {
                    if let Ok(mut to) = TcpStream::connect(node).await {
                        let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                    }
                }));
            }
        });
        Self { port, passing, accepting }
    }

    fn cut(&self) {
        for one in self.passing.lock().drain(..) {
            one.abort();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn cut_connections_lose_nothing_that_was_acknowledged_and_make_nothing_twice(subject: Subject) {
    let node = url(&subject).nodes()[0].clone();
    let proxy = Proxy::new(node.clone()).await;
    let nodes = url(&subject).nodes().join(",");
    let text = url(&subject).to_string().replace(&nodes, &format!("127.0.0.1:{}", proxy.port));
    let config = Config { url: EngineUrl::Cassandra(text.parse().unwrap()), ..subject.config.clone() };
    let (one, other) = (open(config.clone()).await.unwrap(), open(config).await.unwrap());
    let mut watch = one.records.watch();
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..6)
        .map(|task| {
            let opened = if task % 2 == 0 { one.clone() } else { other.clone() };
            tokio::spawn(commit_numbered(opened, task, stop.clone()))
        })
        .collect();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        proxy.cut();
    }
    // At the end it works again, and what was missed is announced.
    let mut last = None;
    for _ in 0..100 {
        if let Ok(made) = other.records.commit(B, Commit::of([thread()])).await {
            last = Some(made.revision);
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
    while newest.get(&B).is_none_or(|revision| *revision < last) {
        let next =
            timeout(PATIENCE, watch.next()).await.expect("it is announced").expect("the store is there");
        let Ok(Announcement { account, revision }) = next else { break };
        let before = newest.insert(account, revision);
        assert!(before < Some(revision), "{account:?} at {revision:?} after {before:?}");
    }
    let mut made: Vec<String> = Vec::new();
    for account in [A].into_iter().chain((1_000..1_006).map(AccountId)) {
        let records = all_of(&*one.upkeep, account).await;
        assert_eq!(
            records.len() as u64,
            revision(&*one.records, account).await.0,
            "each revision made one record"
        );
        made.extend(
            records.into_values().map(|record| String::from_utf8(record.body.bytes.to_vec()).unwrap()),
        );
    }
    let once: BTreeSet<&String> = made.iter().collect();
    assert_eq!(once.len(), made.len(), "nothing is made twice");
    assert!(acknowledged.iter().all(|text| once.contains(text)), "nothing that was acknowledged is lost");
    assert_eq!(findings(&*one.upkeep).await, Vec::<String>::new());
}

/// Takes position 2 for an account, as a server does that dies right afterwards.
async fn take_position_2(subject: &Subject, account: AccountId) {
    // Packed numbers: their length, then their bytes.
    let (before, after) = (vec![1, 2, 1, 1], vec![1, 3, 1, 1]);
    let count = "UPDATE feed SET value = ? WHERE store = ? AND segment = 0 AND slot = -1 IF value = ?";
    let take = "INSERT INTO feed (store, segment, slot, account) VALUES (?, 0, 2, ?) IF NOT EXISTS";
    let session = session(url(subject)).await;
    let store = || Some(CqlValue::Text(url(subject).store().to_owned()));
    run_cql(&session, take, vec![store(), Some(CqlValue::BigInt(i64::from(account.0)))]).await;
    let values = vec![Some(CqlValue::Blob(after)), store(), Some(CqlValue::Blob(before))];
    let moved = run_cql(&session, count, values).await;
    assert_eq!(moved[0].columns[0], Some(CqlValue::Boolean(true)), "{moved:?}");
}

async fn a_position_whose_commit_was_never_made_stops_followers_for_a_while_only(subject: Subject) {
    let mut config = subject.config.clone();
    config.cassandra.patience_ms = nonzero!(1_000);
    let opened = open(config).await.unwrap();
    commit(&*opened.records, A, [thread()]).await;
    take_position_2(&subject, B).await;
    commit(&*opened.records, A, [thread()]).await;
    let settled = async {
        while accounts_after(&*opened.feed, Position::default()).await != [(A, Revision(2))] {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, settled).await.expect("the position is settled");
    assert_eq!(revision(&*opened.records, B).await, Revision(0));
    assert_eq!(opened.upkeep.stats().await.unwrap().accounts, 1);
    assert_eq!(commit(&*opened.records, B, [thread()]).await.revision, Revision(1));
    assert_eq!(findings(&*opened.upkeep).await, Vec::<String>::new());
}

/// The head that settles such a position was mistaken for that of a listed account.
async fn an_account_whose_first_commit_was_never_made_is_listed_by_the_next_one(subject: Subject) {
    let mut config = subject.config.clone();
    config.cassandra.patience_ms = nonzero!(1_000);
    let opened = open(config).await.unwrap();
    commit(&*opened.records, A, [thread()]).await;
    take_position_2(&subject, B).await;
    let head = "SELECT value FROM account WHERE store = ? AND account = ? AND key = 0x00";
    let settled = async {
        while cql(&subject, head, vec![CqlValue::BigInt(i64::from(B.0))]).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, settled).await.expect("the position is settled");
    commit(&*opened.records, B, [thread()]).await;
    assert_eq!(opened.upkeep.stats().await.unwrap().accounts, 2);
    assert_eq!(all_of(&*opened.upkeep, B).await.len(), 1);
}

/// How many conditional requests were made.
fn conditional_requests(metrics: &Metrics) -> u64 {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let line = text.lines().find(|line| line.contains("cassandra_requests_total{request=\"conditional\"}"));
    line.and_then(|line| line.rsplit_once(' ')).unwrap().1.parse().unwrap()
}

/// A plain write has the time of a node's clock, and is invisible if it follows one by a node whose clock is ahead.
async fn checkpoints_are_written_by_conditional_statements_alone(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [thread()]).await;
    let checkpoint =
        |revision| Checkpoint { position: at(revision), accounts: vec![(A, Revision(revision))] };
    let before = conditional_requests(&subject.config.metrics);
    opened.feed.save("search", &checkpoint(1)).await.unwrap();
    opened.feed.save("search", &checkpoint(0)).await.unwrap();
    assert_eq!(opened.feed.checkpoint("search", &[A]).await.unwrap(), checkpoint(0), "the last one holds");
    opened.feed.forget("search").await.unwrap();
    opened.feed.forget("search").await.unwrap();
    assert_eq!(opened.feed.followers().await.unwrap(), []);
    opened.feed.save("search", &checkpoint(1)).await.unwrap();
    assert_eq!(opened.feed.followers().await.unwrap(), [("search".to_owned(), at(1))]);
    assert_eq!(conditional_requests(&subject.config.metrics) - before, 5);
}

/// The first account that failed ended the cleaning.
async fn a_damaged_account_keeps_no_other_from_being_cleaned(subject: Subject) {
    let opened = subject.open().await;
    for account in [A, B] {
        let id = create_one(&*opened.records, account, email(1)).await;
        commit(&*opened.records, account, [destroy(EMAIL, id)]).await;
    }
    let damage = "UPDATE account SET value = 0x63 WHERE store = ? AND account = ? AND key = 0x00";
    cql(&subject, damage, vec![CqlValue::BigInt(i64::from(A.0))]).await;
    let error = opened.upkeep.clean(Timestamp::from_seconds(10), 100).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let since = ChangesSince { kind: Some(EMAIL), since: Revision(1), limit: 10 };
    let error = opened.records.changes(B, &since).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "what was destroyed is forgotten");
}

/// Some records with bodies, blobs, entries, changes and tombstones.
async fn fill(opened: &Opened) {
    let ids = commit(&*opened.records, A, (0..4).map(email)).await.created;
    commit(&*opened.records, A, [rewrite(EMAIL, ids[1], "new")]).await;
    commit(&*opened.records, A, [destroy(EMAIL, ids[0]), mailbox("Inbox")]).await;
    let body = restante_records::Body { bytes: "with a blob".into(), blobs: vec![blob(1)] };
    let change = restante_records::Change::Create { kind: THREAD, body, properties: none() };
    create_one(&*opened.records, B, change).await;
    assert_eq!(opened.upkeep.referenced(None).await.unwrap().blobs, [blob(1)]);
}

async fn a_check_finds_damage_in_each_table(subject: Subject) {
    let opened = subject.open().await;
    fill(&opened).await;
    assert_eq!(findings(&*opened.upkeep).await, Vec::<String>::new());
    let account = CqlValue::BigInt(i64::from(A.0));
    let rows = "SELECT key, value FROM account WHERE store = ? AND account = ?";
    let rows = cql(&subject, rows, vec![account.clone()]).await;
    let find = |table: u8| {
        let is_of = |row: &&scylla::value::Row| matches!(&row.columns[0], Some(CqlValue::Blob(key)) if key[0] == table);
        let row = rows.iter().find(is_of).unwrap();
        (row.columns[0].clone().unwrap(), row.columns[1].clone().unwrap())
    };
    for (table, expected) in [(1, "it is not there"), (2, "is not in the history"), (3, "is missing")] {
        let (key, value) = find(table);
        let delete = "DELETE FROM account WHERE store = ? AND account = ? AND key = ?";
        cql(&subject, delete, vec![account.clone(), key.clone()]).await;
        let found = findings(&*opened.upkeep).await;
        assert!(found.iter().any(|finding| finding.contains(expected)), "{table}: {found:?}");
        let put = "INSERT INTO account (store, account, key, value) VALUES (?, ?, ?, ?)";
        cql(&subject, put, vec![account.clone(), key, value]).await;
        assert_eq!(findings(&*opened.upkeep).await, Vec::<String>::new());
    }
    let delete = "DELETE FROM body WHERE store = ? AND account = ? AND bucket = 0";
    cql(&subject, delete, vec![account]).await;
    let found = findings(&*opened.upkeep).await;
    assert!(found.iter().any(|finding| finding.contains("its body")), "{found:?}");
    let dumped = opened.upkeep.dump(None, DUMP_RECORDS_MAX).await.unwrap();
    let is_of_account = |of: &Dumped| of.key.account == A;
    assert!(dumped.iter().any(|of| of.record.is_err()), "damaged records are in a dump as damaged");
    assert!(dumped.iter().all(|of| of.record.is_ok() || is_of_account(of)));
    cql(&subject, "DELETE FROM feed WHERE store = ? AND segment = 0 AND slot >= 0", vec![]).await;
    let found = findings(&*opened.upkeep).await;
    assert!(found.iter().any(|finding| finding.contains("it is not in the feed")), "{found:?}");
}

async fn a_removed_origin_is_a_restore(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    opened.upkeep.close().await.unwrap();
    cql(&subject, "DELETE FROM meta WHERE store = ? AND key = 'origin'", vec![]).await;
    let opened = subject.open().await;
    assert_eq!(opened.upkeep.restores(), 1);
    assert_eq!(revision(&*opened.records, A).await, Revision(1 + RESTORE_JUMP));
    assert_eq!(findings(&*opened.upkeep).await, Vec::<String>::new());
}

async fn a_server_that_was_thought_to_be_gone_commits_by_no_old_indexes(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    // As if it had been paused for so long that others assumed it dead: it announces again and again that it is alive.
    let hiding = tokio::spawn({
        let subject = subject.clone();
        async move {
            let session = session(url(&subject)).await;
            let store = Some(CqlValue::Text(url(&subject).store().to_owned()));
            let hide = "DELETE FROM server WHERE store = ?";
            while run_cql(&session, hide, vec![store.clone()]).await.is_empty() {}
        }
    });
    let mut emails = email_schema();
    emails.indexes.retain(|index| index.index == BY_MAILBOX);
    let threads = schema().kinds().last().unwrap().clone();
    let fewer = Schema::new(vec![emails, mailbox_schema(), threads]).unwrap();
    let changed = open(Config { schema: fewer, ..subject.config.clone() }).await.unwrap();
    hiding.abort();
    let error = opened.records.commit(A, Commit::of([email(2)])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = opened.records.query(A, &Query::new(EMAIL, BY_MAILBOX)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(opened.upkeep.health().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(commit(&*changed.records, A, [email(2)]).await.revision, Revision(2));
    assert_eq!(findings(&*changed.upkeep).await, Vec::<String>::new());
}

async fn a_commit_of_too_many_rows_is_refused(subject: Subject) {
    let opened = subject.open().await;
    let many = |n: u64| {
        let keywords =
            ["a", "b", "c", "d"].into_iter().fold(in_mailbox(1, n), |all, word| all.with(KEYWORD, word));
        create(EMAIL, "", keywords)
    };
    let error = opened.records.commit(A, Commit::of((0..4_000).map(many))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(commit(&*opened.records, A, (0..1_000).map(many)).await.revision, Revision(1));
}

async fn rows_of_another_format_are_refused(subject: Subject) {
    subject.open().await.upkeep.close().await.unwrap();
    let change = "INSERT INTO meta (store, key, value) VALUES (?, 'format', 0x0163)";
    cql(&subject, change, vec![]).await;
    let Err(error) = open(subject.config.clone()).await else { panic!("it was opened") };
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("version 99"), "{error}");
}
