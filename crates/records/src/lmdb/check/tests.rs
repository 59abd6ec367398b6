use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use restante_core::Timestamp;
use restante_lmdb::{Batch, Store, key::KeyBuf};
use tempfile::TempDir;

use super::*;
use crate::{
    Body, Change, Checkpoint, Commit, Position,
    lmdb::{
        commit::commit,
        schema::{
            BODY, KindRow, encode_feed, encode_number, follower_account_key, follower_key, index_prefix,
            tombstone_key,
        },
        testing::{
            ACCOUNT as OURS, BY_MAILBOX, BY_MESSAGE_ID, EMAIL, MAILBOX_KIND, create, destroy, email, engine,
            make, update,
        },
    },
};

const OTHER: AccountId = AccountId(9);

/// Emails 1 to 4 are created by revision 1. Revision 2 changed the properties of 2, revision 3 the body of 3, and revision 4
/// destroyed 4. Another account has one mailbox. A follower has seen some of it.
async fn filled() -> (TempDir, Arc<Engine>) {
    let (folder, engine) = engine();
    make(&engine, (1..=4).map(|n| create(email(1, n)))).await;
    make(&engine, [update(RecordId(2), email(2, 2))]).await;
    let body = Some(Body::new("another body ".repeat(20)));
    make(&engine, [Change::Update { kind: EMAIL, id: RecordId(3), body, properties: None }]).await;
    make(&engine, [destroy(RecordId(4))]).await;
    let mailbox =
        Change::Create { kind: MAILBOX_KIND, body: Body::new("inbox"), properties: Properties::default() };
    commit(&engine, OTHER, Commit::of([mailbox])).await.unwrap();
    let seen = Checkpoint { position: Position(4), accounts: vec![(OURS, Revision(3))] };
    engine.save("search", &seen).await.unwrap();
    (folder, engine)
}

fn feed_row(account: AccountId, revision: u64) -> KeyBuf {
    let (position, committed_at) = (Position(0), Timestamp(0));
    encode_feed(&Touched { position, account, revision: Revision(revision), committed_at })
}

fn check(engine: &Engine) -> Report {
    engine.check(&|_, _| {}).unwrap()
}

async fn write(store: &Store, damage: impl FnOnce(&mut Batch<'_>) + Send + 'static) {
    let done = store.write(|batch| {
        damage(batch);
        Ok(())
    });
    done.await.unwrap();
}

/// The findings after a damage, as texts.
async fn findings(damage: impl FnOnce(&mut Batch<'_>) + Send + 'static) -> Vec<String> {
    let (_folder, engine) = filled().await;
    write(&engine.store, damage).await;
    let report = check(&engine);
    assert_eq!(report.wrong, report.findings.len() as u64);
    report.findings.iter().map(|finding| format!("{}: {}", finding.place, finding.what)).collect()
}

/// Asserts that a damage is found exactly once, with this text.
async fn assert_found(expected: &str, damage: impl FnOnce(&mut Batch<'_>) + Send + 'static) {
    let findings = findings(damage).await;
    assert!(findings.len() == 1 && findings[0].contains(expected), "{expected:?}, found {findings:#?}");
}

fn state_of(batch: &Batch<'_>, id: RecordId) -> Vec<u8> {
    batch.view().get(STATE, &state_key(OURS, EMAIL, id)).unwrap().unwrap().to_vec()
}

fn body_of(batch: &Batch<'_>, id: RecordId) -> BodyNumber {
    StateRow::decode(&state_of(batch, id)).unwrap().body
}

fn change_state(batch: &mut Batch<'_>, id: RecordId, change: impl FnOnce(&mut StateRow<'_>)) {
    let value = state_of(batch, id);
    let mut row = StateRow::decode(&value).unwrap();
    change(&mut row);
    batch.put(STATE, &state_key(OURS, EMAIL, id), &row.encode());
}

fn change_account(batch: &mut Batch<'_>, change: impl FnOnce(&mut AccountRow)) {
    let mut row = AccountRow::read(batch.view(), OURS).unwrap();
    change(&mut row);
    batch.put(ACCOUNT, &account_key(OURS), &row.encode());
}

fn change_kind(batch: &mut Batch<'_>, change: impl FnOnce(&mut KindRow)) {
    change_account(batch, |row| change(row.kind_mut(EMAIL)));
}

/// The keys of the entries of a record in an index.
fn entries_of(batch: &Batch<'_>, index: Index, id: RecordId) -> Vec<Vec<u8>> {
    let prefix = index_prefix(OURS, EMAIL, index);
    let mut rows =
        batch.view().range(INDEX, Bound::Included(&prefix), Bound::Unbounded, Direction::Ascending).unwrap();
    let mut keys = Vec::new();
    while let Some((key, _)) = rows.next().unwrap() {
        if key.starts_with(&prefix) && key.ends_with(&encode_number(id.0)) {
            keys.push(key.to_vec());
        }
    }
    keys
}

#[tokio::test]
async fn a_sound_store_has_no_findings_and_the_progress_ends_at_its_end() {
    let (_folder, engine) = filled().await;
    let (done, calls) = (AtomicU64::new(0), AtomicU64::new(0));
    let report = engine.check(&|now, total| {
        assert!(done.swap(now, Ordering::SeqCst) <= now && now <= total);
        calls.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(report.unwrap(), Report { records: 4, ..Report::default() });
    assert!(calls.into_inner() > 0 && done.into_inner() > 20);
}

#[tokio::test]
async fn damage_of_bodies_is_found() {
    assert_found("account 7 kind 1 record 3: its body", |batch| {
        let body = body_of(batch, RecordId(3));
        batch.delete(BODY, &body_key(body));
    })
    .await;
    assert_found("account 7 kind 1 record 2: its body 2 can't be read", |batch| {
        let body = body_of(batch, RecordId(2));
        batch.put(BODY, &body_key(body), &[1, 1, 0, 0xff, 0xff]);
    })
    .await;
    assert_found("body 99: it belongs to no record", |batch| {
        batch.put(BODY, &body_key(BodyNumber(99)), &[0, 0])
    })
    .await;
    assert_found("table body key 01: it is no key", |batch| batch.put(BODY, &[1], &[0, 0])).await;
}

#[tokio::test]
async fn damage_of_records_is_found() {
    assert_found("account 7 kind 1 record 3: its properties are damaged", |batch| {
        change_state(batch, RecordId(3), |row| row.properties = &[1]);
    })
    .await;
    assert_found("account 7 kind 1 record 1: it was created by 0", |batch| {
        // Its history is checked only from the record, so there is one finding.
        change_state(batch, RecordId(1), |row| row.created = Revision(0));
    })
    .await;
    assert_found("table state key 07: it is no key", |batch| batch.put(STATE, &[7], &[0])).await;
    let findings = findings(|batch| batch.put(STATE, &state_key(OURS, EMAIL, RecordId(1)), &[9])).await;
    assert_eq!(
        findings,
        [
            "account 7 kind 1 record 1: its row is damaged".to_owned(),
            "body 1: it belongs to no record that can be read".to_owned(),
        ]
    );
}

#[tokio::test]
async fn whatever_a_lost_record_leaves_behind_is_found() {
    let findings = findings(|batch| batch.delete(STATE, &state_key(OURS, EMAIL, RecordId(2)))).await;
    for what in [
        "body 2: it belongs to no record",
        "record 2: the history has it at revision 1, and it is not there",
        "record 2: the history has it at revision 2, and it is not there",
        "record 2: the index mailbox has an entry of it, and it is not there",
        "record 2: the index message_id has an entry of it, and it is not there",
        "account 7 kind 1: it counts 3 records, and has 2",
    ] {
        assert_eq!(
            findings.iter().filter(|finding| finding.contains(what)).count(),
            1,
            "{what}: {findings:#?}"
        );
    }
    assert_eq!(findings.len(), 6, "{findings:#?}");
}

#[tokio::test]
async fn a_body_that_two_records_claim_is_found() {
    let findings = findings(|batch| {
        let body = body_of(batch, RecordId(1));
        change_state(batch, RecordId(2), |row| row.body = body);
    })
    .await;
    assert_eq!(findings.len(), 2, "{findings:#?}");
    assert!(findings[0].contains("record 2: its body 1 belongs to another record too"), "{findings:#?}");
    assert!(findings[1].contains("body 2: it belongs to no record"), "{findings:#?}");
}

#[tokio::test]
async fn damage_of_the_history_is_found() {
    let live = |revision, id| live_key(OURS, EMAIL, Revision(revision), RecordId(id));
    let gone = |revision, id| tombstone_key(OURS, EMAIL, Revision(revision), RecordId(id));
    assert_found("record 1: its creation is not in the history", move |batch| {
        batch.delete(HISTORY, &live(1, 1))
    })
    .await;
    assert_found("record 2: its creation is not in the history", move |batch| {
        batch.delete(HISTORY, &live(1, 2))
    })
    .await;
    assert_found("record 2: its last change is not in the history", move |batch| {
        batch.delete(HISTORY, &live(2, 2))
    })
    .await;
    assert_found("record 2: the row of its last change", move |batch| {
        let wrong = LiveRow::Change { created: Revision(2) };
        batch.put(HISTORY, &live(2, 2), &wrong.encode());
    })
    .await;
    assert_found("record 1: the row of its creation", move |batch| batch.put(HISTORY, &live(1, 1), &[0xff]))
        .await;
    assert_found("record 1: the history has it at revision 3", move |batch| {
        batch.put(HISTORY, &live(3, 1), &[])
    })
    .await;
    assert_found("record 8: the history has it at revision 1, and it is not there", move |batch| {
        batch.put(HISTORY, &live(1, 8), &[]);
    })
    .await;
    assert_found("record 4: its tombstone of revision 4 is damaged", move |batch| {
        batch.put(HISTORY, &gone(4, 4), &[])
    })
    .await;
    assert_found("account 7 kind 1: it counts 1 tombstones, and has 0", move |batch| {
        batch.delete(HISTORY, &gone(4, 4));
        change_kind(batch, |share| share.floor = Revision(4)); // as if the tombstone had been forgotten, except for the count
    })
    .await;
    assert_found("table history key 07: it is no key", |batch| batch.put(HISTORY, &[7], &[])).await;
    let findings = findings(move |batch| {
        let row = TombstoneRow { created: Revision(1), second: 5 };
        batch.put(HISTORY, &gone(2, 2), &row.encode());
    })
    .await;
    assert_eq!(findings.len(), 2, "{findings:#?}");
    assert!(findings[0].contains("record 2: it was destroyed by 2, and is there"), "{findings:#?}");
    assert!(findings[1].contains("counts 1 tombstones, and has 2"), "{findings:#?}");
}

#[tokio::test]
async fn damage_of_indexes_is_found() {
    for index in [BY_MAILBOX, BY_MESSAGE_ID] {
        assert_found("record 1: an entry of it in the index m", move |batch| {
            let entries = entries_of(batch, index, RecordId(1));
            batch.delete(INDEX, &entries[0]);
        })
        .await;
        assert_found("record 1: its entry in the index m", move |batch| {
            let entries = entries_of(batch, index, RecordId(1));
            batch.put(INDEX, &entries[0], &[7]);
        })
        .await;
        assert_found("has an entry of it that its properties don't give", move |batch| {
            let mut key = entries_of(batch, index, RecordId(1)).remove(0);
            *key.last_mut().unwrap() = 3; // as if record 3 had the values of record 1
            batch.put(INDEX, &key, &[]);
        })
        .await;
        assert_found("record 200: the index m", move |batch| {
            let mut key = entries_of(batch, index, RecordId(1)).remove(0);
            *key.last_mut().unwrap() = 200;
            batch.put(INDEX, &key, &[]);
        })
        .await;
    }
    assert_found("no key of an entry of the index message_id", |batch| {
        let mut key = entries_of(batch, BY_MESSAGE_ID, RecordId(1)).remove(0);
        let generation = index_prefix(OURS, EMAIL, BY_MESSAGE_ID).len();
        assert_eq!(key[generation], 0, "the first generation is packed as one byte");
        key.splice(generation..=generation, [1, 5]);
        batch.put(INDEX, &key, &[]);
    })
    .await;
    assert_found("its index is not in the schema", |batch| {
        batch.put(INDEX, &index_prefix(OURS, EMAIL, Index(99)), &[]);
    })
    .await;
    assert_found("its index is not in the schema", |batch| {
        batch.put(INDEX, &index_prefix(OURS, Kind(99), BY_MAILBOX), &[]);
    })
    .await;
    assert_found("table index key 07: it is no key", |batch| batch.put(INDEX, &[7], &[])).await;
}

#[tokio::test]
async fn damage_of_accounts_is_found() {
    assert_found("account 7 kind 1: it counts 4 records, and has 3", |batch| {
        change_kind(batch, |share| share.records += 1)
    })
    .await;
    assert_found("account 7 kind 1: it counts 0 tombstones, and has 1", |batch| {
        change_kind(batch, |share| share.tombstones -= 1);
    })
    .await;
    assert_found("account 7 kind 1: its state is 3", |batch| {
        change_kind(batch, |share| share.state = Revision(3))
    })
    .await;
    assert_found("account 7 kind 1: its state is 4", |batch| {
        change_kind(batch, |share| share.floor = Revision(5))
    })
    .await;
    assert_found("account 7: its revision is 5", |batch| {
        change_account(batch, |row| row.revision = Revision(5))
    })
    .await;
    assert_found("account 7: its next id is 4, and 4 is taken", |batch| {
        change_account(batch, |row| row.next_id = RecordId(4))
    })
    .await;
    assert_found("account 7: its last commit is not in the feed", |batch| {
        change_account(batch, |row| row.position = Position(77));
    })
    .await;
    assert_found("account 7: the feed has account 9", |batch| {
        let other = AccountRow::read(batch.view(), OTHER).unwrap().position;
        change_account(batch, |row| row.position = other);
    })
    .await;
    assert_found("it is no row of an account", |batch| batch.put(ACCOUNT, &account_key(OURS), &[9])).await;
    assert_found("account 7: other tables have rows of it", |batch| {
        batch.delete(ACCOUNT, &account_key(OURS))
    })
    .await;
    assert_found("account 7 kind 3: it counts 1 records, and has 0", |batch| {
        change_account(batch, |row| row.kind_mut(Kind(3)).records = 1);
    })
    .await;
}

#[tokio::test]
async fn damage_of_the_feed_is_found() {
    let ours = feed_key(Position(4));
    let key = ours.clone();
    assert_found("account 7: its last commit is not in the feed", move |batch| batch.delete(FEED, &key))
        .await;
    let key = ours.clone();
    assert_found("it is no row of the feed", move |batch| batch.put(FEED, &key, &[9])).await;
    let key = ours;
    assert_found("account 7: the feed has its revision 3", move |batch| {
        batch.put(FEED, &key, &feed_row(OURS, 3));
    })
    .await;
    assert_found("feed position 2: its account 7 has its last commit elsewhere", |batch| {
        batch.put(FEED, &feed_key(Position(2)), &feed_row(OURS, 2));
    })
    .await;
    assert_found("account 11: other tables have rows of it", |batch| {
        batch.put(FEED, &feed_key(Position(2)), &feed_row(AccountId(11), 2));
    })
    .await;
}

#[tokio::test]
async fn damage_of_followers_is_found() {
    assert_found("follower search: it is at 6, ahead", |batch| {
        batch.put(FOLLOWER, &follower_key("search"), &encode_number(6));
    })
    .await;
    assert_found("follower search: it is at revision 5 of account 7", |batch| {
        batch.put(FOLLOWER, &follower_account_key("search", OURS), &encode_number(5));
    })
    .await;
    assert_found("it is no row of a follower", |batch| batch.put(FOLLOWER, &follower_key("search"), &[9]))
        .await;
}

#[tokio::test]
async fn damage_of_what_is_true_of_the_whole_store_is_found() {
    for (name, row) in
        [("format", &[1, 77][..]), ("schema", &[9]), ("dictionary epochs", &[9]), ("mystery", &[])]
    {
        assert_found(&format!("the row {name} is damaged"), move |batch| {
            batch.put(META, name.as_bytes(), row)
        })
        .await;
    }
    for name in ["format", "schema"] {
        assert_found(&format!("the row {name} is not there"), move |batch| {
            batch.delete(META, name.as_bytes())
        })
        .await;
    }
    assert_found("the row dictionary/\\x01\\x02 is damaged", |batch| {
        batch.put(META, &dictionary_key(2), b"1234dictionary")
    })
    .await;
}

#[tokio::test]
async fn bodies_of_all_windows_are_looked_at() {
    let (_folder, engine) = engine();
    for n in 0..5 {
        make(&engine, (0..100).map(|m| create(email(1, n * 100 + m)))).await;
    }
    let sound = engine.check_with(&|_, _| {}, 64).unwrap();
    assert_eq!(sound, Report { records: 500, ..Report::default() });
    write(&engine.store, |batch| {
        for number in [130, 131, 499] {
            let key = state_key(OURS, EMAIL, RecordId(number));
            let value = batch.view().get(STATE, &key).unwrap().unwrap().to_vec();
            let row = StateRow { body: BodyNumber::EMPTY, ..StateRow::decode(&value).unwrap() };
            batch.put(STATE, &key, &row.encode());
        }
        batch.put(BODY, &body_key(BodyNumber(1 << 60)), &[0, 0]);
    })
    .await;
    let report = engine.check_with(&|_, _| {}, 64).unwrap();
    let places: Vec<_> = report.findings.iter().map(|finding| finding.place.clone()).collect();
    assert_eq!(places, ["body 130", "body 131", "body 499", &format!("body {}", 1_u64 << 60)]);
}

#[test]
fn a_window_knows_its_marks() {
    let mut window = BodyWindow::new(BodyNumber(100), BodyNumber(1_000_000), 128);
    assert!(window.mark(BodyNumber(100)) && window.mark(BodyNumber(227)) && !window.mark(BodyNumber(227)));
    assert!(
        window.covers(BodyNumber(227)) && !window.covers(BodyNumber(228)) && !window.covers(BodyNumber(99))
    );
    assert!(window.is_marked(BodyNumber(100)) && !window.is_marked(BodyNumber(101)));
    for outside in [0, 99, 228, u64::MAX] {
        assert!(window.mark(BodyNumber(outside)) && window.mark(BodyNumber(outside)), "{outside}");
        assert!(!window.is_marked(BodyNumber(outside)), "{outside}");
    }
}

/// Creates, changes and destroys emails in some accounts until `is_over`.
async fn keep_committing(engine: &Arc<Engine>, is_over: &AtomicBool) {
    for round in 0_u64.. {
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        let account = AccountId((round % 3) as u32);
        let creates = (0..5).map(|n| create(email(n, round)));
        let ids = commit(engine, account, Commit::of(creates)).await.unwrap().created;
        let body = Some(Body::new(format!("body {round}")));
        let changes = [
            update(ids[0], email(9, round)),
            Change::Update { kind: EMAIL, id: ids[1], body, properties: None },
            destroy(ids[2]),
        ];
        commit(engine, account, Commit::of(changes)).await.unwrap();
        if round % 50 == 0 {
            let engine = engine.clone();
            tokio::task::spawn_blocking(move || engine.clean(Timestamp::MAX, 20)).await.unwrap().unwrap();
        }
    }
}

#[test]
fn commits_during_a_check_look_like_no_damage() {
    let (_folder, engine) = engine();
    let is_over = Arc::new(AtomicBool::new(false));
    let committing = {
        let (engine, is_over) = (engine.clone(), is_over.clone());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(keep_committing(&engine, &is_over));
        })
    };
    let mut records = 0;
    while records < 500 {
        let report = engine.check_with(&|_, _| {}, 256).unwrap();
        assert_eq!(report.findings, []);
        records = report.records;
        assert!(!committing.is_finished(), "it goes on until it is asked to stop");
    }
    is_over.store(true, Ordering::SeqCst);
    committing.join().unwrap();
}
