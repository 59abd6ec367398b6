//! What a restore promises: nothing that was assigned before it is assigned again.

use std::collections::BTreeSet;

use restante_core::ErrorKind;
use restante_records::{
    AccountId, CHANGES_MAX, Change, ChangesSince, Config, FeedRequest, Opened, Position, RESTORE_JUMP,
    RecordId, Revision, open,
};

use crate::{
    Subject,
    common::{
        A, B, EMAIL, LAST, MAILBOX, NAME, UID_NEXT, accounts_after, commit, create_one, destroy, email,
        get_one, last_position, mailbox, mirror::Mirror, none, revision, rewrite,
    },
};

crate::promises! {
    any: [],
    disk: [
        a_restored_store_gives_nothing_twice,
        states_that_a_restore_left_out_are_not_found,
        states_of_before_the_backup_stay_good_after_a_restore,
        counters_jump_whether_anything_is_committed_or_not,
        each_restore_jumps_again,
        a_store_that_is_opened_again_where_it_was_does_not_jump,
        a_store_that_is_moved_as_a_whole_does_not_jump,
        a_follower_goes_on_after_a_restore,
        an_erasure_goes_on_after_a_restore,
    ]
}

async fn backed_up(subject: &Subject, opened: &Opened) -> Config {
    subject.copy(&subject.config, opened).await
}

fn since(since: Revision) -> ChangesSince {
    ChangesSince { kind: None, since, limit: CHANGES_MAX }
}

/// A mailbox whose next UID is `uid_next`.
fn with_uid_next(id: RecordId, uid_next: u64) -> Change {
    let properties = none().with(NAME, "Inbox").with(UID_NEXT, uid_next);
    Change::Update { kind: MAILBOX, id, body: None, properties: Some(properties) }
}

async fn uid_next(opened: &Opened, id: RecordId) -> u64 {
    let mailbox = get_one(&*opened.records, A, MAILBOX, id).await.unwrap();
    let values: Vec<_> = mailbox.properties.values(UID_NEXT).cloned().collect();
    let [restante_records::Value::Number(uid_next)] = values[..] else { panic!("{values:?}") };
    uid_next
}

/// What an account assigns in a few commits: ids, revisions and UIDs.
async fn give(opened: &Opened, account: AccountId, inbox: Option<RecordId>) -> BTreeSet<(&'static str, u64)> {
    let mut given = BTreeSet::new();
    for n in 0..5 {
        let mut changes = vec![email(n), email(n)];
        if let Some(inbox) = inbox {
            let uid = uid_next(opened, inbox).await;
            given.insert(("uid", uid));
            changes.push(with_uid_next(inbox, uid + 1));
        }
        let made = commit(&*opened.records, account, changes).await;
        given.insert(("revision", made.revision.0));
        given.extend(made.created.iter().map(|id| ("id", id.0)));
    }
    given
}

async fn a_restored_store_gives_nothing_twice(subject: Subject) {
    let opened = subject.open().await;
    let inbox = create_one(&*opened.records, A, mailbox("Inbox")).await;
    commit(&*opened.records, A, [with_uid_next(inbox, 1)]).await;
    give(&opened, A, Some(inbox)).await;
    let backup = backed_up(&subject, &opened).await;
    // B has its first commits after the backup.
    let lost = [give(&opened, A, Some(inbox)).await, give(&opened, B, None).await];
    let lost_position = last_position(&*opened.feed).await;
    let restored = open(backup).await.unwrap();
    let given = [give(&restored, A, Some(inbox)).await, give(&restored, B, None).await];
    for (lost, given) in lost.iter().zip(&given) {
        assert_eq!(lost.len(), given.len());
        assert_eq!(lost.intersection(given).next(), None, "{lost:?} {given:?}");
    }
    assert_eq!(accounts_after(&*restored.feed, lost_position).await.len(), 2, "positions jump, too");
    assert_eq!(restored.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
}

async fn states_that_a_restore_left_out_are_not_found(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    let backup = backed_up(&subject, &opened).await;
    let restored = open(backup.clone()).await.unwrap();
    for round in 0..3 {
        for lost in [2, 3, RESTORE_JUMP] {
            for kind in [None, Some(EMAIL), Some(MAILBOX)] {
                let asked = ChangesSince { kind, ..since(Revision(lost)) };
                let error = restored.records.changes(A, &asked).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotFound, "round {round}, since {lost}");
            }
        }
        let now = revision(&*restored.records, A).await;
        assert_eq!(now, Revision(1 + RESTORE_JUMP + round));
        let error = restored.records.changes(A, &since(Revision(now.0 + 1))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        commit(&*restored.records, A, [email(1)]).await;
    }
    restored.upkeep.close().await.unwrap();
    drop(restored);
    let restored = open(backup).await.unwrap();
    let error = restored.records.changes(A, &since(Revision(2))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "it is recorded");
    let error = restored.records.changes(LAST, &since(Revision(1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "also for accounts that the backup didn't have");
}

async fn states_of_before_the_backup_stay_good_after_a_restore(subject: Subject) {
    let opened = subject.open().await;
    let ids = commit(&*opened.records, A, (0..4).map(email)).await.created;
    let mut client = Mirror::default();
    client.keep_up(&*opened.records, A, 3).await;
    commit(&*opened.records, A, [destroy(EMAIL, ids[0]), rewrite(EMAIL, ids[1], "new")]).await;
    let backup = backed_up(&subject, &opened).await;
    let restored = open(backup).await.unwrap();
    let mut other = client.clone();
    other.keep_up(&*restored.records, A, 3).await;
    other.assert_equals(&*restored.upkeep, A).await;
    commit(&*restored.records, A, [email(9)]).await;
    for mut client in [client, other] {
        client.keep_up(&*restored.records, A, 3).await;
        client.assert_equals(&*restored.upkeep, A).await;
    }
}

async fn counters_jump_whether_anything_is_committed_or_not(subject: Subject) {
    let opened = subject.open().await;
    let inbox = create_one(&*opened.records, A, mailbox("Inbox")).await;
    let other = create_one(&*opened.records, A, mailbox("Other")).await;
    for (id, uid_next) in [(inbox, 7), (other, 9)] {
        commit(&*opened.records, A, [with_uid_next(id, uid_next)]).await;
    }
    let backup = backed_up(&subject, &opened).await;
    let restored = open(backup).await.unwrap();
    let before = get_one(&*restored.records, A, MAILBOX, other).await;
    for _ in 0..2 {
        assert_eq!(uid_next(&restored, inbox).await, 7 + RESTORE_JUMP);
        assert_eq!(uid_next(&restored, other).await, 9 + RESTORE_JUMP);
        commit(&*restored.records, A, [rewrite(MAILBOX, inbox, "new body")]).await;
    }
    assert_eq!(get_one(&*restored.records, A, MAILBOX, other).await, before, "it is no change");
    assert_eq!(restored.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
}

async fn each_restore_jumps_again(subject: Subject) {
    let opened = subject.open().await;
    let inbox = create_one(&*opened.records, A, mailbox("Inbox")).await;
    commit(&*opened.records, A, [with_uid_next(inbox, 1)]).await;
    let (mut opened, mut place) = (opened, subject.config.clone());
    for round in 1..4 {
        place = subject.copy(&place, &opened).await;
        opened = open(place.clone()).await.unwrap();
        assert_eq!(revision(&*opened.records, A).await.0, 2 + round * RESTORE_JUMP);
        assert_eq!(uid_next(&opened, inbox).await, 1 + round * RESTORE_JUMP);
        assert_eq!(opened.upkeep.restores(), round);
    }
    let made = commit(&*opened.records, A, [email(1)]).await;
    assert_eq!((made.revision.0, made.created[0].0), (3 + 3 * RESTORE_JUMP, 2 + 3 * RESTORE_JUMP));
    assert_eq!(uid_next(&opened, inbox).await, 1 + 3 * RESTORE_JUMP);
    assert_eq!(opened.upkeep.stats().await.unwrap().commits, 3);
}

async fn a_store_that_is_opened_again_where_it_was_does_not_jump(subject: Subject) {
    let backup = {
        let opened = subject.open().await;
        commit(&*opened.records, A, [email(1)]).await;
        backed_up(&subject, &opened).await
    };
    for round in 2..5 {
        let restored = open(backup.clone()).await.unwrap();
        assert_eq!(commit(&*restored.records, A, [email(1)]).await.revision.0, round + RESTORE_JUMP);
        restored.upkeep.close().await.unwrap();
    }
}

async fn a_store_that_is_moved_as_a_whole_does_not_jump(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    let moved = open(subject.moved().await).await.unwrap();
    assert_eq!(commit(&*moved.records, A, [email(1)]).await.revision, Revision(2));
}

async fn a_follower_goes_on_after_a_restore(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, (0..4).map(email)).await;
    let mut follower = Mirror::default();
    follower.follow(&*opened.records, &*opened.feed, A, 3).await;
    let backup = backed_up(&subject, &opened).await;
    commit(&*opened.records, A, [email(7)]).await;
    let mut ahead = follower.clone();
    ahead.follow(&*opened.records, &*opened.feed, A, 3).await;

    let restored = open(backup).await.unwrap();
    commit(&*restored.records, A, [email(8)]).await;
    follower.follow(&*restored.records, &*restored.feed, A, 3).await;
    follower.assert_equals(&*restored.upkeep, A).await;
    let request = FeedRequest { since: ahead.revision, began: Revision(0), limit: 3 };
    let error = restored.feed.follow(A, &request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "it has seen a commit that the restore took back");
    assert_eq!(accounts_after(&*restored.feed, Position::default()).await.len(), 1);
}

async fn an_erasure_goes_on_after_a_restore(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, (0..4).map(email)).await;
    opened.upkeep.erase(A, 1).await.unwrap();
    let backup = backed_up(&subject, &opened).await;
    let restored = open(backup).await.unwrap();
    for _ in 0..3 {
        restored.upkeep.erase(A, 1).await.unwrap();
        assert_eq!(restored.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    }
    assert_eq!(commit(&*restored.records, A, [email(1)]).await.created, [RecordId(5 + RESTORE_JUMP)]);
}
