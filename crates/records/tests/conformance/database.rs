//! What holds on a store in a database whose rows others can access.

use restante_core::ErrorKind;
use restante_records::{
    AccountId, Body, Change, Checkpoint, Commit, EngineUrl, Get, Opened, Query, RESTORE_JUMP, Revision, open,
};

use crate::{
    Subject,
    common::{
        A, B, BY_MAILBOX, EMAIL, THREAD, at, blob, commit, create_one, destroy, email, mailbox, none,
        revision, rewrite,
    },
    shared::findings,
};

crate::promises! {
    any: [],
    disk: [],
    sql: [
        a_check_finds_each_damage,
        a_damaged_record_is_corrupt_and_others_are_read,
        a_new_record_replaces_no_row_and_only_the_commits_of_its_account_are_refused,
        a_removed_origin_counts_as_a_restore,
        a_server_whose_indexes_are_not_those_of_the_store_any_more_stops,
        tables_of_another_format_are_refused,
    ]
}

fn schema_of(subject: &Subject) -> String {
    let EngineUrl::Postgres(url) = &subject.config.url else { panic!("the engine has no database") };
    url.schema().to_owned()
}

async fn sql(subject: &Subject, sql: &str) {
    subject.sql(&format!("SET search_path = {}; {sql}", schema_of(subject))).await;
}

/// Some records with bodies, blobs, entries, changes and tombstones.
async fn fill(opened: &Opened) {
    let ids = commit(&*opened.records, A, (0..4).map(email)).await.created;
    commit(&*opened.records, A, [rewrite(EMAIL, ids[1], "new")]).await;
    commit(&*opened.records, A, [destroy(EMAIL, ids[0]), mailbox("Inbox")]).await;
    let body = Body { bytes: "with a blob".into(), blobs: vec![blob(1)] };
    create_one(&*opened.records, B, Change::Create { kind: THREAD, body, properties: none() }).await;
    let checkpoint = Checkpoint { position: at(1), accounts: vec![(A, Revision(1))] };
    opened.feed.save("search", &checkpoint).await.unwrap();
}

const TABLES: [&str; 7] = ["meta", "account", "entry", "body", "feed", "feed_head", "follower"];

async fn a_check_finds_each_damage(subject: Subject) {
    let opened = subject.open().await;
    fill(&opened).await;
    assert_eq!(findings(&*opened.upkeep).await, Vec::<String>::new());
    for table in TABLES {
        sql(&subject, &format!("CREATE TABLE saved_{table} AS TABLE {table}")).await;
    }
    // The first byte of a key says what its row is.
    let account = format!("account = {}", A.0);
    let one = |table: u8| {
        format!(
            "ctid = (SELECT ctid FROM entry WHERE {account} AND get_byte(key, 0) = {table} LIMIT 1) AND {account}"
        )
    };
    let damages = [
        (format!("DELETE FROM entry WHERE {}", one(3)), "is missing"),
        (format!("DELETE FROM entry WHERE {}", one(1)), "it is not there"),
        (format!("DELETE FROM entry WHERE {}", one(2)), "is not in the history"),
        (format!("UPDATE entry SET value = '' WHERE {}", one(1)), "its row is damaged"),
        (format!("UPDATE entry SET value = '\\x01' WHERE {}", one(3)), "that its properties don't give"),
        (format!("INSERT INTO entry VALUES ({}, '\\x0977', '')", A.0), "it is no key of ours"),
        (
            format!("INSERT INTO entry VALUES ({}, '\\x03ffff01', '')", A.0),
            "no entry of an index of the schema",
        ),
        ("INSERT INTO entry VALUES (77, '\\x0977', '')".to_owned(), "it has no row of its own"),
        (format!("DELETE FROM body WHERE {account}"), "is not there"),
        (format!("INSERT INTO body VALUES (1000, {}, NULL, 'x')", A.0), "it belongs to no record"),
        (format!("UPDATE body SET blobs = '\\x01' WHERE {account}"), "can't be read"),
        (format!("UPDATE account SET head = '\\xff' WHERE {account}"), "its row is damaged"),
        (format!("DELETE FROM feed WHERE {account}"), "it is not in the feed"),
        (format!("UPDATE feed SET revision = 99 WHERE {account}"), "the feed has it at revision 99"),
        ("INSERT INTO feed VALUES (77, 1000, 1, 0)".to_owned(), "is in the feed, and has no row"),
        ("UPDATE feed_head SET position = 0".to_owned(), "it is ahead of the feed"),
        ("UPDATE follower SET number = '\\x0109'".to_owned(), "it is ahead of"),
        ("UPDATE follower SET number = '\\x0909'".to_owned(), "its row is damaged"),
        ("DELETE FROM meta WHERE key = 'schema'".to_owned(), "it is not there"),
    ];
    for (damage, expected) in damages {
        sql(&subject, &damage).await;
        let found = findings(&*opened.upkeep).await;
        assert!(found.iter().any(|finding| finding.contains(expected)), "{damage}: {found:?}");
        for table in TABLES {
            sql(&subject, &format!("TRUNCATE {table}; INSERT INTO {table} SELECT * FROM saved_{table}"))
                .await;
        }
        assert_eq!(findings(&*opened.upkeep).await, Vec::<String>::new(), "after {damage}");
    }
}

async fn a_damaged_record_is_corrupt_and_others_are_read(subject: Subject) {
    let opened = subject.open().await;
    let ids = commit(&*opened.records, A, (0..3).map(email)).await.created;
    sql(&subject, "DELETE FROM body WHERE id = (SELECT min(id) FROM body)").await;
    let get = |ids: Vec<_>| {
        let records = opened.records.clone();
        async move { records.get(A, &Get::whole(EMAIL, ids)).await }
    };
    assert_eq!(get(vec![ids[0]]).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(get(vec![ids[1], ids[2]]).await.unwrap().iter().all(Option::is_some));
    let dumped = opened.upkeep.dump(None, 10).await.unwrap();
    let read: Vec<_> = dumped.iter().map(|dumped| (dumped.key.id, dumped.record.is_ok())).collect();
    assert_eq!(read, [(ids[0], false), (ids[1], true), (ids[2], true)]);
}

async fn a_new_record_replaces_no_row_and_only_the_commits_of_its_account_are_refused(subject: Subject) {
    let opened = subject.open().await;
    // Commits of these accounts share transactions with any number of connections up to four.
    let (damaged, sound) = (A, AccountId(A.0 + 12));
    let head_of_damaged = format!("SELECT * FROM account WHERE account = {}", damaged.0);
    commit(&*opened.records, damaged, [email(1)]).await;
    sql(&subject, &format!("CREATE TABLE old_head AS {head_of_damaged}")).await;
    let later = create_one(&*opened.records, damaged, email(2)).await;
    let before = opened.records.get(damaged, &Get::whole(EMAIL, vec![later])).await.unwrap();
    let put_back =
        "UPDATE account a SET head = o.head, made_by = o.made_by FROM old_head o WHERE a.account = o.account";
    sql(&subject, put_back).await;
    let commits = (0..64).map(|number| {
        let account = if number % 2 == 0 { damaged } else { sound };
        let create = Commit::of([email(number)]);
        opened.records.commit(account, create)
    });
    for (number, made) in futures_util::future::join_all(commits).await.into_iter().enumerate() {
        match made {
            Ok(_) => assert_eq!(number % 2, 1, "a row was replaced"),
            Err(error) => assert_eq!((number % 2, error.kind()), (0, ErrorKind::Corrupt), "{error}"),
        }
    }
    assert_eq!(opened.records.get(damaged, &Get::whole(EMAIL, vec![later])).await.unwrap(), before);
}

async fn a_removed_origin_counts_as_a_restore(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    opened.upkeep.close().await.unwrap();
    sql(&subject, "DELETE FROM meta WHERE key = 'origin'").await;
    let opened = subject.open().await;
    assert_eq!(opened.upkeep.restores(), 1);
    assert_eq!(revision(&*opened.records, A).await, Revision(1 + RESTORE_JUMP));
    assert_eq!(findings(&*opened.upkeep).await, Vec::<String>::new());
}

async fn a_server_whose_indexes_are_not_those_of_the_store_any_more_stops(subject: Subject) {
    let opened = subject.open().await;
    let before = commit(&*opened.records, A, [email(1)]).await.revision;
    // As a server does that changes the indexes after this one's lock was lost with its connection.
    sql(&subject, "UPDATE feed_head SET epoch = epoch + 1").await;
    let error = opened.records.commit(A, Commit::of([email(2)])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = opened.records.query(A, &Query::new(EMAIL, BY_MAILBOX)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(opened.upkeep.health().unwrap_err().kind(), ErrorKind::Unavailable);
    drop(opened);
    let again = subject.open().await;
    assert_eq!(revision(&*again.records, A).await, before);
    commit(&*again.records, A, [email(2)]).await;
}

async fn tables_of_another_format_are_refused(subject: Subject) {
    subject.open().await.upkeep.close().await.unwrap();
    sql(&subject, "UPDATE meta SET value = '\\x0163' WHERE key = 'format'").await;
    let Err(error) = open(subject.config.clone()).await else { panic!("it was opened") };
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("version 99"), "{error}");
}
