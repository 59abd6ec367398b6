//! What `Upkeep::erase` promises.

use restante_core::ErrorKind;
use restante_records::{
    AccountId, CHANGES_MAX, ChangesSince, Checkpoint, Commit, Erased, FeedRequest, Opened, Position, Query,
    RecordId, Revision,
};

use crate::{
    Subject,
    common::{
        A, B, BY_MAILBOX, EMAIL, LAST, MAILBOX, accounts_after, commit, destroy, email, get_one, ids,
        mailbox,
        mirror::{Mirror, all_of},
        revision, thread,
    },
};

crate::promises! {
    any: [
        an_erased_account_is_empty,
        ids_and_revisions_go_on_after_an_erasure,
        others_keep_what_they_have,
        an_erasure_stops_at_its_limit_and_is_continued,
        commits_in_an_account_that_is_being_erased_are_refused,
        erasing_again_or_where_nothing_is_changes_nothing,
        changes_since_before_an_erasure_can_not_be_calculated,
        an_erasure_is_in_the_feed_and_announced,
        a_follower_drops_an_erased_account,
        a_closed_store_erases_nothing,
    ],
    disk: [an_erasure_that_was_broken_off_is_continued_after_reopening]
}

const ALL: usize = usize::MAX;

/// Two kinds of records, with changes and tombstones, in two accounts.
async fn filled(subject: &Subject) -> Opened {
    let opened = subject.open().await;
    for account in [A, B] {
        let ids = commit(&*opened.records, account, (0..10).map(email)).await.created;
        commit(&*opened.records, account, [mailbox("Inbox"), destroy(EMAIL, ids[3])]).await;
        commit(&*opened.records, account, [destroy(EMAIL, ids[4]), thread()]).await;
    }
    opened
}

fn since(since: u64) -> ChangesSince {
    ChangesSince { kind: None, since: Revision(since), limit: CHANGES_MAX }
}

async fn assert_sound(opened: &Opened) {
    assert_eq!(opened.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
}

async fn an_erased_account_is_empty(subject: Subject) {
    let opened = filled(&subject).await;
    let erased = opened.upkeep.erase(A, ALL).await.unwrap();
    assert_eq!(erased, Erased { records: 10, tombstones: 2, has_more: false });
    assert!(all_of(&*opened.upkeep, A).await.is_empty());
    assert_eq!(get_one(&*opened.records, A, EMAIL, RecordId(1)).await, None);
    assert_eq!(ids(&*opened.records, A, &Query::new(EMAIL, BY_MAILBOX)).await, []);
    let now = revision(&*opened.records, A).await;
    let changes = opened.records.changes(A, &since(now.0)).await.unwrap();
    assert_eq!((changes.revision, changes.has_more), (now, false));
    assert_sound(&opened).await;
}

async fn ids_and_revisions_go_on_after_an_erasure(subject: Subject) {
    let opened = filled(&subject).await;
    let before = revision(&*opened.records, A).await;
    opened.upkeep.erase(A, ALL).await.unwrap();
    let erased = revision(&*opened.records, A).await;
    assert!(erased > before);
    let made = commit(&*opened.records, A, [email(1)]).await;
    assert_eq!((made.revision, made.created), (Revision(erased.0 + 1), vec![RecordId(13)]));
    assert_sound(&opened).await;
}

async fn others_keep_what_they_have(subject: Subject) {
    let opened = filled(&subject).await;
    let (before, states) = (all_of(&*opened.upkeep, B).await, opened.records.states(B).await.unwrap());
    opened.upkeep.erase(A, ALL).await.unwrap();
    assert_eq!(all_of(&*opened.upkeep, B).await, before);
    assert_eq!(opened.records.states(B).await.unwrap(), states);
    let emails = ids(&*opened.records, B, &Query::new(EMAIL, BY_MAILBOX)).await;
    assert_eq!(emails.len(), 8);
}

async fn an_erasure_stops_at_its_limit_and_is_continued(subject: Subject) {
    let opened = filled(&subject).await;
    assert_eq!(opened.upkeep.erase(A, 0).await.unwrap(), Erased { has_more: true, ..Erased::default() });
    let first = opened.upkeep.erase(A, 4).await.unwrap();
    assert_eq!(first, Erased { records: 4, tombstones: 0, has_more: true });
    assert_eq!(all_of(&*opened.upkeep, A).await.len(), 6, "each record that is left is whole");
    assert_sound(&opened).await;
    let second = opened.upkeep.erase(A, 7).await.unwrap();
    assert_eq!(second, Erased { records: 6, tombstones: 1, has_more: true });
    let last = opened.upkeep.erase(A, 1).await.unwrap();
    assert_eq!(last, Erased { records: 0, tombstones: 1, has_more: false });
}

async fn commits_in_an_account_that_is_being_erased_are_refused(subject: Subject) {
    let opened = filled(&subject).await;
    opened.upkeep.erase(A, 1).await.unwrap();
    for refused in [Commit::of([email(1)]), Commit::default()] {
        let error = opened.records.commit(A, refused).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    commit(&*opened.records, B, [email(1)]).await;
    opened.upkeep.erase(A, ALL).await.unwrap();
    commit(&*opened.records, A, [email(1)]).await;
}

async fn erasing_again_or_where_nothing_is_changes_nothing(subject: Subject) {
    let opened = filled(&subject).await;
    opened.upkeep.erase(A, ALL).await.unwrap();
    let before =
        (opened.records.states(A).await.unwrap(), accounts_after(&*opened.feed, Position::default()).await);
    for account in [A, LAST] {
        assert_eq!(opened.upkeep.erase(account, ALL).await.unwrap(), Erased::default());
    }
    let after =
        (opened.records.states(A).await.unwrap(), accounts_after(&*opened.feed, Position::default()).await);
    assert_eq!(after, before);
}

async fn changes_since_before_an_erasure_can_not_be_calculated(subject: Subject) {
    let opened = filled(&subject).await;
    let before = revision(&*opened.records, A).await;
    let between = {
        opened.upkeep.erase(A, 3).await.unwrap();
        revision(&*opened.records, A).await
    };
    opened.upkeep.erase(A, ALL).await.unwrap();
    for old in [Revision(0), Revision(2), before, between] {
        let error = opened.records.changes(A, &since(old.0)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{old:?}");
        for kind in [EMAIL, MAILBOX] {
            let asked = ChangesSince { kind: Some(kind), ..since(old.0) };
            assert_eq!(opened.records.changes(A, &asked).await.unwrap_err().kind(), ErrorKind::NotFound);
        }
    }
    let states = opened.records.states(A).await.unwrap();
    assert_eq!((states.of(EMAIL), states.of(MAILBOX)), (states.revision, states.revision));
}

async fn an_erasure_is_in_the_feed_and_announced(subject: Subject) {
    let opened = filled(&subject).await;
    let mut watch = opened.records.watch();
    opened.upkeep.erase(A, ALL).await.unwrap();
    let now = revision(&*opened.records, A).await;
    assert_eq!(accounts_after(&*opened.feed, Position::default()).await.last(), Some(&(A, now)));
    loop {
        let announced = watch.next().await.unwrap().unwrap();
        assert_eq!(announced.account, A);
        if announced.revision == now {
            return;
        }
    }
}

async fn a_follower_drops_an_erased_account(subject: Subject) {
    let opened = filled(&subject).await;
    let mut follower = Mirror::default();
    follower.follow(&*opened.records, &*opened.feed, A, 3).await;
    let accounts = vec![(A, follower.revision)];
    opened.feed.save("search", &Checkpoint { position: Position::default(), accounts }).await.unwrap();
    for limit in [3, ALL] {
        opened.upkeep.erase(A, limit).await.unwrap();
        let request = FeedRequest { since: follower.revision, began: Revision(0), limit: 3 };
        let error = opened.feed.follow(A, &request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        follower = Mirror::default();
        follower.follow(&*opened.records, &*opened.feed, A, 3).await;
        follower.assert_equals(&*opened.upkeep, A).await;
    }
    assert!(follower.records.is_empty());
    assert_sound(&opened).await;
}

async fn a_closed_store_erases_nothing(subject: Subject) {
    let opened = filled(&subject).await;
    opened.upkeep.close().await.unwrap();
    assert_eq!(opened.upkeep.erase(A, ALL).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

async fn an_erasure_that_was_broken_off_is_continued_after_reopening(subject: Subject) {
    let opened = filled(&subject).await;
    opened.upkeep.erase(A, 5).await.unwrap();
    let opened = subject.reopen(opened).await;
    let error = opened.records.commit(A, Commit::of([email(1)])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let rest = opened.upkeep.erase(A, ALL).await.unwrap();
    assert_eq!(rest, Erased { records: 5, tombstones: 2, has_more: false });
    let opened = subject.reopen(opened).await;
    assert_eq!(commit(&*opened.records, A, [email(1)]).await.created, [RecordId(13)]);
    commit(&*opened.records, AccountId(77), [email(1)]).await;
    assert_sound(&opened).await;
}
