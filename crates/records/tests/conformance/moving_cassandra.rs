//! What holds when a store is moved to Cassandra or from there.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use restante_core::{ErrorKind, Identity, Timestamp};
use restante_records::{
    AccountHead, AccountId, Body, Config, KindHead, Position, Record, RecordId, Revision, Row, open,
    open_moving,
};
use scylla::value::CqlValue;

use crate::{
    Subject,
    cassandra::{PATIENCE, cql},
    common::{
        A, B, EMAIL, LAST, accounts_after, at, blob, commit, email,
        engines::{Engine, TestStore},
        get_one, last_position,
        mirror::dump,
        moving::{close, move_store, open_both},
        none,
    },
    moving::fill,
    shared::findings,
};

crate::promises! {
    any: [],
    disk: [],
    cql: [
        an_interrupted_copy_leaves_no_bodies,
        a_write_that_was_broken_off_anywhere_is_cleared,
        commits_go_on_behind_the_positions_and_bodies_of_a_copy,
        a_target_with_commits_that_were_never_made_is_refused,
        a_copy_that_was_killed_at_its_beginning_keeps_servers_out,
        a_move_waits_for_one_that_has_crashed,
        a_move_that_lost_the_records_writes_nothing_more,
    ]
}

/// For each table of bodies, how many rows it has, and how many the records need.
async fn bodies(subject: &Subject) -> [(usize, usize); 2] {
    let opened = subject.open().await;
    let records = dump(&*opened.upkeep, 1_000).await;
    opened.upkeep.close().await.unwrap();
    let bodies: Vec<&Body> = records.iter().map(|(_, record)| &record.body).collect();
    let is_stored = |body: &&&Body| !body.bytes.is_empty() || !body.blobs.is_empty();
    let stored = bodies.iter().filter(is_stored).count();
    let referring = bodies.iter().filter(|body| !body.blobs.is_empty()).count();
    let rows = async |table: &str| {
        let select = format!("SELECT number FROM {table} WHERE store = ? ALLOW FILTERING");
        cql(subject, &select, vec![]).await.len()
    };
    [(rows("body").await, stored), (rows("reference").await, referring)]
}

async fn an_interrupted_copy_leaves_no_bodies(subject: Subject) {
    let source = Subject::new(TestStore::new(Engine::Lmdb));
    let opened = source.open().await;
    fill(&source, &opened).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    move_store(&source.config, &subject.config, &[1, 2, 3, 4, 6, 8]).await;
    let [(bodies, stored), (references, referring)] = bodies(&subject).await;
    assert!(stored > 100 && referring == 15, "{stored} {referring}");
    assert_eq!((bodies, references), (stored, referring));
}

/// One record, and the head of an account that has no other.
fn account(account: AccountId, position: Position) -> (Vec<Row>, AccountHead) {
    let body = Body { bytes: vec![7; 1_000].into(), blobs: vec![blob(u64::from(account.0))] };
    let (id, revision) = (RecordId(1), Revision(1));
    let record = Record { kind: EMAIL, id, revision, created: revision, body, properties: none() };
    let kind = KindHead { kind: EMAIL, state: revision, floor: Revision(0), records: 1, tombstones: 0 };
    let head = AccountHead {
        account,
        revision,
        next_id: RecordId(2),
        position,
        committed_at: Timestamp::from_seconds(100),
        restores: 0,
        is_erasing: false,
        gaps: vec![],
        kinds: vec![kind],
    };
    (vec![Row::Record(record)], head)
}

async fn a_write_that_was_broken_off_anywhere_is_cleared(subject: Subject) {
    let store = open_moving(subject.config.clone()).await.unwrap();
    store.transfer.begin(0).await.unwrap();
    for polls in 0..30 {
        let (rows, head) = account(A, at(1));
        let is_done = {
            let mut put = pin!(store.transfer.put(A, rows.clone(), Some(head.clone())));
            let mut left = polls;
            poll_fn(|context| {
                if left == 0 {
                    return Poll::Ready(false);
                }
                left -= 1;
                put.as_mut().poll(context).map(|done| done.is_ok())
            })
            .await
        };
        let heads = store.transfer.heads(None, 10).await.unwrap();
        assert!(heads.is_empty() || heads == [head.clone()], "{polls}: {heads:?}");
        assert!(!is_done || heads.len() == 1, "{polls}");
        store.transfer.clear(A).await.unwrap();
        assert_eq!(store.transfer.heads(None, 10).await.unwrap(), []);
        assert_eq!(store.transfer.rows(A, None, 10).await.unwrap(), []);
        store.transfer.put(A, rows.clone(), Some(head.clone())).await.unwrap();
        assert_eq!(store.transfer.heads(None, 10).await.unwrap(), [head]);
        assert_eq!(store.transfer.rows(A, None, 10).await.unwrap(), rows);
        store.transfer.clear(A).await.unwrap();
    }
    let (rows, head) = account(A, at(1));
    store.transfer.put(A, rows, Some(head)).await.unwrap();
    store.transfer.finish().await.unwrap();
    store.opened.upkeep.close().await.unwrap();
    assert_eq!(bodies(&subject).await, [(1, 1), (1, 1)]);
}

/// The blobs that bodies refer to.
async fn referenced(opened: &restante_records::Opened) -> Vec<restante_core::BlobId> {
    let (mut blobs, mut after) = (Vec::new(), None);
    loop {
        let page = opened.upkeep.referenced(after).await.unwrap();
        blobs.extend(page.blobs);
        after = page.next;
        if after.is_none() {
            blobs.sort();
            return blobs;
        }
    }
}

async fn commits_go_on_behind_the_positions_and_bodies_of_a_copy(subject: Subject) {
    let store = open_moving(subject.config.clone()).await.unwrap();
    store.transfer.begin(2).await.unwrap();
    // In several partitions of the feed: `full` is the last of its partition, and `late` is after the first restore.
    let (early, full, late) = (40_000, 3 * 16_384 - 1, (1 << 40) + 20_000);
    for (of, position) in [(A, early), (B, full), (LAST, late)] {
        let (rows, head) = account(of, at(position));
        store.transfer.put(of, rows, Some(head)).await.unwrap();
    }
    store.transfer.finish().await.unwrap();
    store.opened.upkeep.close().await.unwrap();
    drop(store);
    let opened = subject.open().await;
    let accounts = [(A, Revision(1)), (B, Revision(1)), (LAST, Revision(1))];
    assert_eq!(accounts_after(&*opened.feed, at(0)).await, accounts);
    assert_eq!(accounts_after(&*opened.feed, at(early)).await, accounts[1..]);
    assert_eq!(accounts_after(&*opened.feed, at(full)).await, accounts[2..]);
    assert_eq!(accounts_after(&*opened.feed, at(late)).await, []);
    let blobs = [A, B, LAST].map(|of| blob(u64::from(of.0)));
    let mut sorted = blobs.to_vec();
    sorted.sort();
    assert_eq!(referenced(&opened).await, sorted);
    let created = commit(&*opened.records, B, [email(1)]).await.created;
    assert_eq!(last_position(&*opened.feed).await, at(2 << 40));
    // The body of the new record has a new number.
    for (of, id) in [(A, RecordId(1)), (B, RecordId(1)), (LAST, RecordId(1))] {
        let record = get_one(&*opened.records, of, EMAIL, id).await.unwrap();
        assert_eq!(record.body.bytes.len(), 1_000);
    }
    assert!(get_one(&*opened.records, B, EMAIL, created[0]).await.is_some());
    assert_eq!(findings(&*opened.upkeep).await, Vec::<String>::new());
    opened.upkeep.clean(Timestamp::from_seconds(0), 10).await.unwrap();
    assert_eq!(accounts_after(&*opened.feed, at(0)).await.len(), 3);
}

async fn a_target_with_commits_that_were_never_made_is_refused(subject: Subject) {
    subject.open().await.upkeep.close().await.unwrap();
    // Packed numbers: their length, then their bytes. Position 1 was taken.
    let count = "INSERT INTO feed (store, segment, slot, value) VALUES (?, 0, -1, ?) IF NOT EXISTS";
    cql(&subject, count, vec![CqlValue::Blob(vec![1, 2, 1, 1])]).await;
    let store = open_moving(subject.config.clone()).await.unwrap();
    assert_eq!(store.transfer.begin(0).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(!store.transfer.state().await.unwrap().is_incomplete);
}

/// The mark was written after the tables and the settings of the store: a server that was started on what a killed copy had left
/// by then turned it into a store of its own.
async fn a_copy_that_was_killed_at_its_beginning_keeps_servers_out(subject: Subject) {
    let source = Subject::new(TestStore::new(Engine::Lmdb));
    let opened = source.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    open(subject.other()).await.unwrap().upkeep.close().await.unwrap(); // makes the tables
    let target = Config { identity: Identity::random(), ..subject.config.clone() };
    // What exists before the other tables, and after all of them.
    let mark = "INSERT INTO meta (store, key, value) VALUES (?, 'incomplete', 0x0101) IF NOT EXISTS";
    cql(&subject, mark, vec![]).await;
    for is_opened in [false, true] {
        if is_opened {
            let (source, target) = open_both(&source.config, &target).await;
            assert!(!target.transfer.state().await.unwrap().is_incomplete, "no copy has left anything");
            close([source, target]).await;
        }
        let error = open(target.clone()).await.err().expect("no server opens what a copy has begun");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    move_store(&source.config, &target, &[]).await;
    open(target).await.unwrap().upkeep.close().await.unwrap();
}

async fn a_move_waits_for_one_that_has_crashed(subject: Subject) {
    subject.open().await.upkeep.close().await.unwrap();
    let lease =
        "INSERT INTO lease (store, name, holder) VALUES (?, 'moving', 0x07) IF NOT EXISTS USING TTL 4";
    cql(&subject, lease, vec![]).await;
    let error = open(subject.config.clone()).await.err().expect("no server opens records that are moved");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let store = open_moving(subject.config.clone()).await.unwrap();
    store.opened.upkeep.close().await.unwrap();
    subject.open().await;
}

async fn a_move_that_lost_the_records_writes_nothing_more(subject: Subject) {
    let store = open_moving(subject.config.clone()).await.unwrap();
    store.transfer.begin(0).await.unwrap();
    cql(&subject, "DELETE FROM lease WHERE store = ? AND name = 'moving' IF EXISTS", vec![]).await;
    let refused = async {
        loop {
            match store.transfer.begin(0).await {
                Ok(()) => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(error) => return error,
            }
        }
    };
    let error = tokio::time::timeout(PATIENCE, refused).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let (rows, head) = account(A, at(1));
    assert!(store.transfer.put(A, rows, Some(head)).await.is_err());
    assert!(store.transfer.clear(A).await.is_err() && store.transfer.finish().await.is_err());
    assert_eq!(store.transfer.heads(None, 10).await.unwrap(), []);
    // What was written remains an incomplete copy, which can be continued.
    let source = Subject::new(TestStore::new(Engine::Lmdb));
    let opened = source.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    store.opened.upkeep.close().await.unwrap();
    let (source, target) = open_both(&source.config, &subject.config).await;
    assert!(target.transfer.state().await.unwrap().is_incomplete);
    close([source, target]).await;
}
