//! What holds when a store is moved to another engine.

use restante_core::{ErrorKind, Identity, Timestamp};
use restante_records::{
    AccountHead, Body, CHANGES_MAX, Changes, ChangesSince, Checkpoint, Config, EngineUrl, KindHead, Moving,
    Opened, RESTORE_JUMP, RecordId, Revision, RevisionGap, Row, TRANSFER_ACCOUNTS_MAX, TRANSFER_BYTES,
    TRANSFER_ROWS_MAX, copy, open, open_moving,
};

use crate::{
    Subject,
    common::{
        A, B, EMAIL, LAST, MAILBOX, NAME, THREAD, UID_NEXT, at, blob, commit, create, create_one, destroy,
        email,
        engines::{Engine, TestStore},
        get_one, mailbox, move_to,
        moving::{close, copy_interrupted, differences, move_store, open_both},
        none, revision, rewrite, thread,
    },
};

crate::promises! {
    any: [
        a_comparison_finds_each_difference,
        pages_of_rows_are_in_order_and_bounded,
        a_change_during_the_copy_is_noticed,
    ],
    disk: [
        clients_and_followers_go_on_after_a_move,
        what_a_restore_left_out_stays_left_out_after_a_move,
        an_interrupted_copy_is_gone_on_with,
        an_interrupted_copy_from_elsewhere_is_gone_on_with,
        accounts_that_changed_after_an_interrupted_copy_are_copied_again,
        other_records_are_not_written_over,
        a_store_that_is_in_use_is_not_moved,
    ]
}

/// Another place on an engine of another kind, where the store itself can't be.
fn elsewhere(subject: &Subject) -> Config {
    let url = match &subject.config.url {
        EngineUrl::Lmdb(_) => return subject.other(),
        _ => EngineUrl::Lmdb(subject.beside("moved")),
    };
    Config { url, ..subject.config.clone() }
}

/// Some of everything: records of several kinds that were changed and destroyed, forgotten history, an unfinished erasure,
/// followers.
pub(crate) async fn fill(subject: &Subject, opened: &Opened) {
    let records = &*opened.records;
    subject.set_seconds(100);
    let ids = commit(records, A, (0..300).map(email)).await.created;
    commit(records, A, ids[..40].iter().map(|id| destroy(EMAIL, *id))).await;
    subject.set_seconds(200);
    opened.upkeep.clean(Timestamp::from_seconds(150), 30).await.unwrap();
    commit(records, A, [mailbox("Inbox"), mailbox("Sent"), thread(), thread()]).await;
    commit(records, A, ids[150..].iter().map(|id| destroy(EMAIL, *id))).await;
    commit(records, A, [move_to(ids[50], 7, 7), rewrite(EMAIL, ids[51], "")]).await;
    let body = Body { bytes: vec![7; 100_000].into(), blobs: vec![blob(1), blob(2)] };
    let large = restante_records::Change::Create { kind: EMAIL, body, properties: none() };
    commit(records, A, vec![large; 15]).await;
    let gone = create_one(records, B, mailbox("Gone")).await;
    commit(records, B, [destroy(MAILBOX, gone), create(EMAIL, "kept", none())]).await;
    commit(records, LAST, (0..4).map(email)).await;
    opened.upkeep.erase(LAST, 2).await.unwrap();
    let accounts = vec![(A, Revision(3)), (LAST, Revision(1))];
    opened.feed.save("search", &Checkpoint { position: at(2), accounts }).await.unwrap();
    opened.feed.save("push", &Checkpoint { position: at(1), accounts: vec![] }).await.unwrap();
}

/// A filled store on this engine, open to be moved.
async fn filled(subject: &Subject) -> Moving {
    if subject.config.url == EngineUrl::Memory {
        let store = open_moving(subject.config.clone()).await.unwrap();
        fill(subject, &store.opened).await;
        return store;
    }
    let opened = subject.open().await;
    fill(subject, &opened).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    open_moving(subject.config.clone()).await.unwrap()
}

async fn all_rows(store: &Moving, account: restante_records::AccountId, limit: usize) -> Vec<Row> {
    let mut all: Vec<Row> = Vec::new();
    loop {
        let page = store.transfer.rows(account, all.last().map(Row::key), limit).await.unwrap();
        if page.is_empty() {
            return all;
        }
        assert!(page.len() <= limit);
        all.extend(page);
    }
}

async fn pages_of_rows_are_in_order_and_bounded(subject: Subject) {
    let store = filled(&subject).await;
    let heads = store.transfer.heads(None, TRANSFER_ACCOUNTS_MAX).await.unwrap();
    assert_eq!(heads.iter().map(|head| head.account).collect::<Vec<_>>(), [A, B, LAST]);
    assert_eq!(store.transfer.heads(Some(A), 1).await.unwrap(), heads[1..2]);
    assert!(heads[2].is_erasing && !heads[0].is_erasing);
    for head in &heads {
        let rows = all_rows(&store, head.account, TRANSFER_ROWS_MAX).await;
        assert_eq!(rows.len() as u64, head.rows());
        assert!(rows.is_sorted_by(|one, other| one.key() < other.key()));
        assert_eq!(rows, all_rows(&store, head.account, 7).await);
    }
    let mut after = None;
    loop {
        let page = store.transfer.rows(A, after, TRANSFER_ROWS_MAX).await.unwrap();
        let bytes = |row: &Row| match row {
            Row::Record(record) => record.body.bytes.len(),
            Row::Tombstone(_) | Row::Damaged(..) => 0,
        };
        let without_last: usize = page.iter().rev().skip(1).map(bytes).sum();
        assert!(without_last < TRANSFER_BYTES);
        let Some(last) = page.last() else { break };
        after = Some(last.key());
    }
    for limit in [0, TRANSFER_ROWS_MAX + 1] {
        let error = store.transfer.rows(A, None, limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    for limit in [0, TRANSFER_ACCOUNTS_MAX + 1] {
        assert_eq!(store.transfer.heads(None, limit).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

/// Rewrites an account, with something changed.
async fn plant(store: &Moving, change: impl FnOnce(&mut Vec<Row>, &mut AccountHead)) {
    let mut head = store.transfer.heads(None, 1).await.unwrap().remove(0);
    let mut rows = all_rows(store, A, TRANSFER_ROWS_MAX).await;
    change(&mut rows, &mut head);
    store.transfer.clear(A).await.unwrap();
    for rows in rows.chunks(TRANSFER_ROWS_MAX / 8) {
        store.transfer.put(A, rows.to_vec(), None).await.unwrap();
    }
    store.transfer.put(A, vec![], Some(head)).await.unwrap();
}

/// A change of a record and of its index entries.
async fn plant_record(store: &Moving, change: impl Fn(&mut restante_records::Record)) {
    plant(store, |rows, _| {
        let Some(Row::Record(record)) = rows.get_mut(20) else { panic!("{rows:?}") };
        change(record);
    })
    .await;
}

async fn plant_tombstone(store: &Moving, change: impl Fn(&mut restante_records::Tombstone)) {
    plant(store, |rows, _| {
        let Some(Row::Tombstone(gone)) = rows.last_mut() else { panic!("{rows:?}") };
        change(gone);
    })
    .await;
}

async fn plant_head(store: &Moving, change: impl Fn(&mut AccountHead)) {
    plant(store, |_, head| change(head)).await;
}

async fn plant_kind(store: &Moving, change: impl Fn(&mut KindHead)) {
    plant(store, |_, head| change(&mut head.kinds[0])).await;
}

/// Two stores that are the same until something is changed in the second.
async fn twins(subject: &Subject) -> (Moving, Moving) {
    let source = filled(subject).await;
    let identity = source.opened.upkeep.identity();
    let target = open_moving(Config { identity, ..subject.other() }).await.unwrap();
    let copied = copy(&source, &target, &|_, _| ()).await.unwrap();
    assert_eq!((copied.accounts, copied.kept, copied.followers), (3, 0, 2));
    assert_eq!(differences(&source, &target).await, Vec::<String>::new());
    (source, target)
}

async fn a_comparison_finds_each_difference(subject: Subject) {
    let (source, target) = twins(&subject).await;
    let is_memory = subject.config.url == EngineUrl::Memory;
    let original = all_rows(&source, A, TRANSFER_ROWS_MAX).await;
    let head = source.transfer.heads(None, 1).await.unwrap().remove(0);
    let expect = async |what: &str| {
        let found = differences(&source, &target).await;
        assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
        plant(&target, |rows, there| (*rows, *there) = (original.clone(), head.clone())).await;
        assert_eq!(differences(&source, &target).await, Vec::<String>::new());
    };
    plant_record(&target, |record| record.revision.0 += 1).await;
    expect("its revision is").await;
    plant_record(&target, |record| record.created.0 += 1).await;
    expect("its revision of creation").await;
    plant_record(&target, |record| record.properties.add(restante_records::Property(255), 9.into())).await;
    expect("its properties differ").await;
    plant_record(&target, |record| record.body.bytes = "x".into()).await;
    expect("its body differs").await;
    plant_record(&target, |record| record.body.blobs = vec![blob(3)]).await;
    expect("the blobs that it refers to differ").await;
    plant_tombstone(&target, |gone| gone.created.0 += 1).await;
    expect("its revision of creation").await;
    plant_tombstone(&target, |gone| gone.destroyed_seconds += 1).await;
    expect("its time is").await;
    plant(&target, |rows, _| drop(rows.remove(20))).await;
    assert!(differences(&source, &target).await.iter().any(|found| found.ends_with("only in the first")));
    plant(&target, |rows, there| (*rows, *there) = (original.clone(), head.clone())).await;
    plant_head(&target, |head| head.revision.0 += 1).await;
    expect("its revision is").await;
    plant_head(&target, |head| head.next_id.0 += 1).await;
    expect("its next id is").await;
    plant_head(&target, |head| head.position = at(1_000)).await;
    expect("its position in the feed is").await;
    plant_head(&target, |head| head.committed_at = Timestamp::from_seconds(7)).await;
    expect("its time of the last commit is").await;
    if !is_memory {
        plant_head(&target, |head| head.restores += 1).await;
        expect("its number of restores is").await;
    }
    plant_head(&target, |head| head.is_erasing = true).await;
    expect("its erasing is").await;
    plant_kind(&target, |kind| kind.state.0 += 1).await;
    expect("its state is").await;
    plant_kind(&target, |kind| kind.floor.0 += 1).await;
    expect("its floor is").await;
    if !is_memory {
        // The model counts its records, and has no gaps.
        plant_kind(&target, |kind| kind.records += 1).await;
        expect("its number of records is").await;
        plant_kind(&target, |kind| kind.tombstones += 1).await;
        expect("its number of tombstones is").await;
        let gap = RevisionGap { after: Revision(1), until: Revision(2) };
        plant_head(&target, |head| head.gaps = vec![gap]).await;
        expect("its list of revisions that restores left out").await;
    }
    stores_that_differ(&source, &target).await;
}

/// Differences that are not in an account.
async fn stores_that_differ(source: &Moving, target: &Moving) {
    let feed = &target.opened.feed;
    feed.save("push", &Checkpoint { position: at(2), accounts: vec![(B, Revision(1))] }).await.unwrap();
    let found = differences(source, target).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("follower \"push\": its position") && found[1].contains("account 2"));
    feed.forget("push").await.unwrap();
    feed.save("other", &Checkpoint::default()).await.unwrap();
    let found = differences(source, target).await;
    assert!(found[0].ends_with("only in the second") && found[1].ends_with("only in the first"), "{found:?}");
    target.transfer.clear(B).await.unwrap();
    assert_eq!(differences(source, target).await[0], "account 2: only in the first");
    assert_eq!(differences(target, source).await[0], "account 2: only in the second");
    target.transfer.begin(0).await.unwrap();
    assert_eq!(differences(source, target).await[0], "the second store: it is an incomplete copy");
}

/// Every answer to a client, for each state that it can have.
async fn answers(opened: &Opened) -> Vec<Result<Changes, ErrorKind>> {
    let mut answers = Vec::new();
    for account in [A, B, LAST] {
        for kind in [None, Some(EMAIL), Some(MAILBOX), Some(THREAD)] {
            for since in 0..=revision(&*opened.records, account).await.0 + 1 {
                let since = ChangesSince { kind, since: Revision(since), limit: CHANGES_MAX };
                answers.push(opened.records.changes(account, &since).await.map_err(|error| error.kind()));
            }
        }
    }
    answers
}

async fn clients_and_followers_go_on_after_a_move(subject: Subject) {
    let opened = subject.open().await;
    fill(&subject, &opened).await;
    let before = answers(&opened).await;
    let states = opened.records.states(A).await.unwrap();
    let touched = opened.feed.touched(at(0), 10).await.unwrap();
    opened.upkeep.close().await.unwrap();
    drop(opened);
    let (middle, end) = (elsewhere(&subject), subject.other());
    let copied = move_store(&subject.config, &middle, &[]).await;
    assert_eq!((copied.accounts, copied.kept, copied.followers), (3, 0, 2));
    move_store(&middle, &end, &[]).await;
    for place in [middle, end] {
        let moved = open(place).await.unwrap();
        assert_eq!(moved.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
        assert_eq!(answers(&moved).await, before);
        assert_eq!(moved.records.states(A).await.unwrap(), states);
        assert_eq!(moved.feed.touched(at(0), 10).await.unwrap(), touched);
        let checkpoint = moved.feed.checkpoint("search", &[A, B, LAST]).await.unwrap();
        let accounts = vec![(A, Revision(3)), (B, Revision(0)), (LAST, Revision(1))];
        assert_eq!(checkpoint, Checkpoint { position: at(2), accounts });
        // It continues where the source was.
        let made = commit(&*moved.records, A, [email(1)]).await;
        assert_eq!((made.revision, made.created[0]), (Revision(states.revision.0 + 1), RecordId(320)));
        let newest = moved.feed.touched(touched.last().unwrap().position, 10).await.unwrap();
        assert_eq!(newest.iter().map(|one| one.account).collect::<Vec<_>>(), [A]);
        while moved.upkeep.erase(LAST, 1).await.unwrap().has_more {}
        assert_eq!(moved.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
        moved.upkeep.close().await.unwrap();
    }
}

async fn what_a_restore_left_out_stays_left_out_after_a_move(subject: Subject) {
    let opened = subject.open().await;
    let uid_next = none().with(NAME, "Inbox").with(UID_NEXT, 7);
    let inbox = create_one(&*opened.records, A, create(MAILBOX, "", uid_next)).await;
    commit(&*opened.records, B, [email(1)]).await;
    let backup = subject.copy(&subject.config, &opened).await;
    let restored = open(backup.clone()).await.unwrap();
    commit(&*restored.records, B, [email(2)]).await;
    let touched = restored.feed.touched(at(0), 10).await.unwrap();
    restored.upkeep.close().await.unwrap();
    drop(restored);
    let end = elsewhere(&subject);
    move_store(&backup, &end, &[]).await;
    let moved = open(end).await.unwrap();
    assert_eq!(moved.upkeep.restores(), 1);
    assert_eq!(moved.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    let record = get_one(&*moved.records, A, MAILBOX, inbox).await.unwrap();
    let uid_next: Vec<_> = record.properties.values(UID_NEXT).cloned().collect();
    assert_eq!(uid_next, [(7 + RESTORE_JUMP).into()]);
    for (account, lost) in [(A, 2), (B, 2), (LAST, 1)] {
        let since = ChangesSince { kind: None, since: Revision(lost), limit: 10 };
        let error = moved.records.changes(account, &since).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    let made = commit(&*moved.records, A, [email(1)]).await;
    assert_eq!((made.revision, made.created[0]), (Revision(2 + RESTORE_JUMP), RecordId(2 + RESTORE_JUMP)));
    let newest = moved.feed.touched(touched.last().unwrap().position, 10).await.unwrap();
    assert_eq!(newest.len(), 1, "positions go on behind those of the restored store");
}

async fn an_interrupted_copy_is_gone_on_with(subject: Subject) {
    let source = filled(&subject).await;
    close([source.clone(), source]).await;
    let end = elsewhere(&subject);
    let copied = move_store(&subject.config, &end, &[0, 1, 2, 3, 4, 5, 7, 9, 11]).await;
    assert!(copied.kept > 0, "{copied:?}");
    let moved = open(end).await.unwrap();
    assert_eq!(moved.upkeep.check(&|_, _| ()).await.unwrap().findings, [], "no body is left over");
}

async fn an_interrupted_copy_from_elsewhere_is_gone_on_with(subject: Subject) {
    let source = filled(&subject).await;
    close([source.clone(), source]).await;
    let (middle, end) = (elsewhere(&subject), subject.other());
    move_store(&subject.config, &middle, &[]).await;
    let copied = move_store(&middle, &end, &[0, 1, 2, 3, 4, 5, 7, 9, 11]).await;
    assert!(copied.kept > 0, "{copied:?}");
    let moved = open(end).await.unwrap();
    assert_eq!(moved.upkeep.check(&|_, _| ()).await.unwrap().findings, [], "no body is left over");
}

/// From LMDB to Cassandra, PostgreSQL and LMDB again; each copy is interrupted and continued.
pub(crate) async fn a_store_that_went_through_all_engines_is_the_same(subject: Subject) {
    let opened = subject.open().await;
    fill(&subject, &opened).await;
    let before = answers(&opened).await;
    let touched = opened.feed.touched(at(0), 10).await.unwrap();
    opened.upkeep.close().await.unwrap();
    drop(opened);
    let (cassandra, postgres) = (TestStore::new(Engine::Cassandra), TestStore::new(Engine::Postgres));
    let end = subject.other();
    let places = [&subject.config, &cassandra.config, &postgres.config, &end];
    for places in places.windows(2) {
        let copied = move_store(places[0], places[1], &[1, 2, 3, 4, 5, 7, 9]).await;
        assert!(copied.kept > 0, "{copied:?}");
    }
    let (source, target) = open_both(&subject.config, &end).await;
    assert_eq!(differences(&source, &target).await, Vec::<String>::new());
    close([source, target]).await;
    let moved = open(end).await.unwrap();
    assert_eq!(moved.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    assert_eq!(answers(&moved).await, before);
    assert_eq!(moved.feed.touched(at(0), 10).await.unwrap(), touched);
}

async fn accounts_that_changed_after_an_interrupted_copy_are_copied_again(subject: Subject) {
    let source = filled(&subject).await;
    close([source.clone(), source]).await;
    let end = elsewhere(&subject);
    let (source, target) = open_both(&subject.config, &end).await;
    // All accounts but one, which may be there in part.
    let writes = 5;
    assert_eq!(copy_interrupted(&source, &target, writes).await, None);
    close([source, target]).await;
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    commit(&*opened.records, B, [email(1)]).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    let copied = move_store(&subject.config, &end, &[]).await;
    assert!(copied.accounts >= 2, "{copied:?}");
    let moved = open(end).await.unwrap();
    assert_eq!(moved.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
}

async fn a_change_during_the_copy_is_noticed(subject: Subject) {
    let (source, target) = twins(&subject).await;
    target.transfer.begin(0).await.unwrap();
    plant_head(&target, |head| head.next_id.0 += 1).await;
    // The account is removed after everything that is missing was counted.
    let progress = |_, _| {
        let transfer = source.transfer.clone();
        let gone = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(transfer.clear(LAST))
        });
        gone.join().unwrap().unwrap();
    };
    let error = copy(&source, &target, &progress).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(target.transfer.state().await.unwrap().is_incomplete);
}

async fn other_records_are_not_written_over(subject: Subject) {
    let source = filled(&subject).await;
    let other = Config { identity: Identity::random(), ..elsewhere(&subject) };
    open(other.clone()).await.unwrap().upkeep.close().await.unwrap();
    let target = open_moving(other.clone()).await.unwrap();
    let error = copy(&source, &target, &|_, _| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    target.opened.upkeep.close().await.unwrap();
    drop(target);
    open(other).await.unwrap();
    source.opened.upkeep.close().await.unwrap();
    drop(source);
    // The same records, after they were moved and changed further.
    let end = subject.other();
    move_store(&subject.config, &end, &[]).await;
    let (source, target) = open_both(&subject.config, &end).await;
    let error = copy(&source, &target, &|_, _| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(!target.transfer.state().await.unwrap().is_incomplete);
    // An incomplete copy is no source.
    target.transfer.begin(0).await.unwrap();
    assert_eq!(copy(&target, &source, &|_, _| ()).await.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn a_store_that_is_in_use_is_not_moved(subject: Subject) {
    let opened = subject.open().await;
    let error = open_moving(subject.config.clone()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    commit(&*opened.records, A, [email(1)]).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    let moving = open_moving(subject.config.clone()).await.unwrap();
    assert!(open(subject.config.clone()).await.is_err());
    moving.opened.upkeep.close().await.unwrap();
    drop(moving);
    subject.open().await;
}
