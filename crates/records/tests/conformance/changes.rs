//! What `changes` promises.

use restante_core::{ErrorKind, Timestamp};
use restante_records::{
    AccountId, CHANGES_MAX, Changed, Changes, ChangesSince, Commit, Kind, Opened, RecordId, Records, Revision,
};

use crate::{
    Subject,
    common::{
        A, B, EMAIL, MAILBOX, NO_KIND, THREAD, commit, commit_one, create_one, destroy, email, mailbox,
        mirror::Mirror, move_to, revision, rewrite, thread,
    },
};

crate::promises! {
    any: [
        a_new_record_is_created,
        a_new_record_that_changed_is_created_only,
        an_old_record_that_changed_is_updated,
        an_old_record_that_changed_twice_is_updated_once,
        an_old_record_that_went_is_destroyed,
        a_record_that_came_and_went_is_not_returned,
        what_was_before_is_not_returned,
        each_list_is_in_the_order_of_revisions_kinds_and_ids,
        a_new_record_stands_at_its_creation,
        changes_of_a_kind_leave_out_the_others,
        changes_of_all_kinds_are_returned_together,
        a_page_never_cuts_a_revision_in_two,
        a_page_is_longer_than_its_limit_for_a_single_revision_only,
        a_page_without_more_is_at_the_revision_of_the_account,
        a_page_with_more_is_at_its_last_revision,
        changes_that_are_not_returned_leave_no_more,
        an_update_of_what_was_returned_as_created_may_follow,
        who_applies_all_pages_has_what_the_store_has,
        a_client_that_is_up_to_date_gets_nothing,
        an_account_without_commits_has_no_changes,
        below_the_floor_changes_cannot_be_calculated,
        the_floor_is_that_of_the_kind,
        a_revision_that_was_not_reached_is_refused,
        an_unknown_kind_is_refused,
        limits_out_of_bounds_are_refused,
        the_longest_page_is_answered,
        accounts_are_apart,
    ],
    disk: [changes_survive_reopening, floors_survive_reopening]
}

fn since(kind: Option<Kind>, since: u64, limit: usize) -> ChangesSince {
    ChangesSince { kind, since: Revision(since), limit }
}

async fn all_since(records: &dyn Records, revision: u64) -> Changes {
    let page = records.changes(A, &since(None, revision, CHANGES_MAX)).await.unwrap();
    assert!(!page.has_more);
    page
}

async fn refusal(records: &dyn Records, account: AccountId, since: ChangesSince) -> ErrorKind {
    records.changes(account, &since).await.unwrap_err().kind()
}

fn changed(kind: Kind, ids: &[RecordId]) -> Vec<Changed> {
    ids.iter().map(|id| Changed { kind, id: *id }).collect()
}

fn page(created: Vec<Changed>, updated: Vec<Changed>, destroyed: Vec<Changed>, revision: u64) -> Changes {
    Changes { created, updated, destroyed, revision: Revision(revision), has_more: false }
}

async fn a_new_record_is_created(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    assert_eq!(all_since(&*records, 0).await, page(changed(EMAIL, &[id]), vec![], vec![], 1));
}

async fn a_new_record_that_changed_is_created_only(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    commit(&*records, A, [rewrite(EMAIL, id, "new")]).await;
    commit(&*records, A, [move_to(id, 5, 5)]).await;
    assert_eq!(all_since(&*records, 0).await, page(changed(EMAIL, &[id]), vec![], vec![], 3));
}

async fn an_old_record_that_changed_is_updated(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    commit(&*records, A, [rewrite(EMAIL, id, "new")]).await;
    assert_eq!(all_since(&*records, 1).await, page(vec![], changed(EMAIL, &[id]), vec![], 2));
}

async fn an_old_record_that_changed_twice_is_updated_once(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    commit(&*records, A, [rewrite(EMAIL, id, "new")]).await;
    commit(&*records, A, [move_to(id, 5, 5)]).await;
    for revision in [1, 2] {
        assert_eq!(all_since(&*records, revision).await, page(vec![], changed(EMAIL, &[id]), vec![], 3));
    }
}

async fn an_old_record_that_went_is_destroyed(subject: Subject) {
    let records = subject.open().await.records;
    let id = create_one(&*records, A, email(1)).await;
    commit(&*records, A, [rewrite(EMAIL, id, "new")]).await;
    commit(&*records, A, [destroy(EMAIL, id)]).await;
    for revision in [1, 2] {
        assert_eq!(all_since(&*records, revision).await, page(vec![], vec![], changed(EMAIL, &[id]), 3));
    }
}

async fn a_record_that_came_and_went_is_not_returned(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, A, [thread()]).await;
    let id = create_one(&*records, A, email(1)).await;
    commit(&*records, A, [rewrite(EMAIL, id, "new")]).await;
    commit(&*records, A, [destroy(EMAIL, id)]).await;
    assert_eq!(all_since(&*records, 1).await, page(vec![], vec![], vec![], 4));
    assert_eq!(all_since(&*records, 2).await.destroyed, changed(EMAIL, &[id]));
}

async fn what_was_before_is_not_returned(subject: Subject) {
    let records = subject.open().await.records;
    let created = commit(&*records, A, [email(1), email(2), email(3)]).await.created;
    commit(&*records, A, [rewrite(EMAIL, created[0], "new"), destroy(EMAIL, created[1])]).await;
    let last = create_one(&*records, A, email(4)).await;
    assert_eq!(all_since(&*records, 2).await, page(changed(EMAIL, &[last]), vec![], vec![], 3));
}

async fn each_list_is_in_the_order_of_revisions_kinds_and_ids(subject: Subject) {
    let records = subject.open().await.records;
    let old =
        commit(&*records, A, [thread(), email(1), thread(), email(2), mailbox("a"), email(3)]).await.created;
    let of = |kind: Kind, place: usize| Changed { kind, id: old[place] };
    let created =
        vec![of(EMAIL, 1), of(EMAIL, 3), of(EMAIL, 5), of(MAILBOX, 4), of(THREAD, 0), of(THREAD, 2)];
    assert_eq!(all_since(&*records, 0).await.created, created);
    commit(&*records, A, [rewrite(THREAD, old[2], "2"), rewrite(EMAIL, old[3], "2")]).await;
    commit(&*records, A, [rewrite(THREAD, old[0], "3"), rewrite(EMAIL, old[5], "3")]).await;
    commit(&*records, A, [rewrite(EMAIL, old[3], "4"), rewrite(EMAIL, old[1], "4")]).await;
    let updated = vec![of(THREAD, 2), of(EMAIL, 5), of(THREAD, 0), of(EMAIL, 1), of(EMAIL, 3)];
    assert_eq!(all_since(&*records, 1).await.updated, updated);
    commit(&*records, A, [destroy(THREAD, old[2]), destroy(EMAIL, old[5])]).await;
    commit(&*records, A, [destroy(MAILBOX, old[4]), destroy(EMAIL, old[3]), destroy(EMAIL, old[1])]).await;
    let destroyed = vec![of(EMAIL, 5), of(THREAD, 2), of(EMAIL, 1), of(EMAIL, 3), of(MAILBOX, 4)];
    assert_eq!(all_since(&*records, 4).await.destroyed, destroyed);
}

async fn a_new_record_stands_at_its_creation(subject: Subject) {
    let records = subject.open().await.records;
    let first = create_one(&*records, A, email(1)).await;
    let second = create_one(&*records, A, email(2)).await;
    commit(&*records, A, [rewrite(EMAIL, first, "new")]).await;
    assert_eq!(all_since(&*records, 0).await.created, changed(EMAIL, &[first, second]));
    let one = records.changes(A, &since(None, 0, 1)).await.unwrap();
    assert_eq!((one.created, one.revision, one.has_more), (changed(EMAIL, &[first]), Revision(1), true));
}

async fn changes_of_a_kind_leave_out_the_others(subject: Subject) {
    let records = subject.open().await.records;
    let created = commit(&*records, A, [email(1), mailbox("a"), thread()]).await.created;
    commit(&*records, A, [rewrite(MAILBOX, created[1], "b")]).await;
    let of =
        async |kind: Kind, revision: u64| records.changes(A, &since(Some(kind), revision, 10)).await.unwrap();
    assert_eq!(of(EMAIL, 0).await, page(changed(EMAIL, &created[..1]), vec![], vec![], 2));
    assert_eq!(of(EMAIL, 1).await, page(vec![], vec![], vec![], 2));
    assert_eq!(of(MAILBOX, 1).await, page(vec![], changed(MAILBOX, &created[1..2]), vec![], 2));
}

async fn changes_of_all_kinds_are_returned_together(subject: Subject) {
    let records = subject.open().await.records;
    let old = commit(&*records, A, [email(1), mailbox("a"), thread()]).await.created;
    let changes = [rewrite(EMAIL, old[0], "new"), destroy(THREAD, old[2]), mailbox("b")];
    let new = commit(&*records, A, changes).await.created;
    let expected = page(changed(MAILBOX, &new), changed(EMAIL, &old[..1]), changed(THREAD, &old[2..]), 2);
    assert_eq!(all_since(&*records, 1).await, expected);
}

async fn a_page_never_cuts_a_revision_in_two(subject: Subject) {
    let records = subject.open().await.records;
    for _ in 0..4 {
        commit(&*records, A, (0..3).map(email)).await;
    }
    for (limit, revisions) in [(3, 1), (4, 1), (5, 1), (6, 2), (8, 2), (9, 3), (11, 3)] {
        let got = records.changes(A, &since(None, 0, limit)).await.unwrap();
        let expected = (3 * revisions, Revision(revisions as u64), true);
        assert_eq!((got.created.len(), got.revision, got.has_more), expected, "limit {limit}");
    }
    let got = records.changes(A, &since(None, 0, 12)).await.unwrap();
    assert_eq!((got.created.len(), got.revision, got.has_more), (12, Revision(4), false));
}

async fn a_page_is_longer_than_its_limit_for_a_single_revision_only(subject: Subject) {
    let records = subject.open().await.records;
    let first = create_one(&*records, A, email(0)).await;
    commit(&*records, A, (0..50).map(email).chain([destroy(EMAIL, first)])).await;
    commit(&*records, A, [email(0)]).await;
    let page = records.changes(A, &since(None, 1, 10)).await.unwrap();
    assert_eq!((page.created.len(), page.destroyed.len()), (50, 1));
    assert_eq!((page.revision, page.has_more), (Revision(2), true));
    let page = records.changes(A, &since(None, 0, 10)).await.unwrap();
    assert_eq!(
        (page.created.len(), page.revision, page.has_more),
        (50, Revision(2), true),
        "the first is gone"
    );
}

async fn a_page_without_more_is_at_the_revision_of_the_account(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, A, [email(1)]).await;
    for _ in 0..5 {
        commit(&*records, A, [thread()]).await;
    }
    for limit in [1, 2] {
        let page = records.changes(A, &since(Some(EMAIL), 0, limit)).await.unwrap();
        assert_eq!((page.created.len(), page.revision, page.has_more), (1, Revision(6), false));
    }
}

async fn a_page_with_more_is_at_its_last_revision(subject: Subject) {
    let records = subject.open().await.records;
    for n in 0..6 {
        commit(&*records, A, [if n % 2 == 0 { email(n) } else { thread() }]).await;
    }
    let page = records.changes(A, &since(Some(EMAIL), 0, 2)).await.unwrap();
    assert_eq!((page.created.len(), page.has_more), (2, true));
    assert!((3..5).contains(&page.revision.0), "what it tells goes to 3, what it does not begins with 5");
}

async fn changes_that_are_not_returned_leave_no_more(subject: Subject) {
    let records = subject.open().await.records;
    let first = create_one(&*records, A, email(1)).await;
    let second = create_one(&*records, A, email(2)).await;
    for _ in 0..5 {
        commit(&*records, A, [rewrite(EMAIL, first, "again")]).await;
    }
    let gone = create_one(&*records, A, email(3)).await;
    commit(&*records, A, [destroy(EMAIL, gone)]).await;
    let page = records.changes(A, &since(None, 0, 2)).await.unwrap();
    assert_eq!(page.created, changed(EMAIL, &[first, second]));
    assert_eq!((page.revision, page.has_more), (Revision(9), false));
}

async fn an_update_of_what_was_returned_as_created_may_follow(subject: Subject) {
    let records = subject.open().await.records;
    let first = create_one(&*records, A, email(1)).await;
    let second = create_one(&*records, A, email(2)).await;
    commit(&*records, A, [rewrite(EMAIL, first, "new")]).await;
    let one = records.changes(A, &since(None, 0, 1)).await.unwrap();
    assert_eq!((one.created, one.updated), (changed(EMAIL, &[first]), vec![]));
    let rest = records.changes(A, &ChangesSince { kind: None, since: one.revision, limit: 9 }).await.unwrap();
    assert_eq!((rest.created, rest.updated), (changed(EMAIL, &[second]), changed(EMAIL, &[first])));
}

/// Commits of all sorts.
async fn make_a_history(records: &dyn Records, rounds: u64) {
    let mut known = Vec::new();
    for n in 0..rounds {
        let new = commit(records, A, (0..n % 4 + 1).map(email).chain([thread()])).await.created;
        known.extend_from_slice(&new[..new.len() - 1]);
        let pick = |of: &[RecordId]| of[(n * 7) as usize % of.len()];
        commit_one(records, A, rewrite(EMAIL, pick(&known), "new")).await;
        let (moved, gone) = (pick(&known), known[known.len() / 2]);
        if moved != gone {
            commit(records, A, [move_to(moved, n, n), destroy(EMAIL, gone)]).await;
            known.retain(|id| *id != gone);
        }
    }
}

async fn who_applies_all_pages_has_what_the_store_has(subject: Subject) {
    let opened = subject.open().await;
    for limit in [1, 2, 7, CHANGES_MAX] {
        let mut mirror = Mirror::default();
        let mut late = mirror.clone();
        for _ in 0..4 {
            make_a_history(&*opened.records, 4).await;
            mirror.keep_up(&*opened.records, A, limit).await;
            mirror.assert_equals(&*opened.upkeep, A).await;
        }
        late.keep_up(&*opened.records, A, limit).await;
        late.assert_equals(&*opened.upkeep, A).await;
    }
}

async fn a_client_that_is_up_to_date_gets_nothing(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, A, [email(1)]).await;
    assert_eq!(all_since(&*records, 1).await, page(vec![], vec![], vec![], 1));
    let nothing = records.changes(A, &since(Some(THREAD), 0, 1)).await.unwrap();
    assert_eq!(nothing, page(vec![], vec![], vec![], 1));
}

async fn an_account_without_commits_has_no_changes(subject: Subject) {
    let records = subject.open().await.records;
    assert_eq!(all_since(&*records, 0).await, Changes::default());
}

/// Three emails and a thread; two emails and the thread are destroyed one by one, a second apart (revisions 2, 3 and 4),
/// and forgotten up to `forgotten_seconds`.
async fn destroyed_and_forgotten(subject: &Subject, forgotten_seconds: i64) -> (Opened, Vec<RecordId>) {
    let opened = subject.open().await;
    let ids = commit(&*opened.records, A, [email(1), email(2), email(3), thread()]).await.created;
    for (second, change) in
        [destroy(EMAIL, ids[0]), destroy(EMAIL, ids[1]), destroy(THREAD, ids[3])].into_iter().enumerate()
    {
        subject.set_seconds(100 + second as i64);
        commit(&*opened.records, A, [change]).await;
    }
    opened.upkeep.clean(Timestamp::from_seconds(forgotten_seconds), 1_000).await.unwrap();
    (opened, ids)
}

async fn below_the_floor_changes_cannot_be_calculated(subject: Subject) {
    let (opened, ids) = destroyed_and_forgotten(&subject, 101).await; // the first is forgotten: revision 2
    let records = &*opened.records;
    for revision in [0, 1] {
        assert_eq!(refusal(records, A, since(Some(EMAIL), revision, 10)).await, ErrorKind::NotFound);
        assert_eq!(refusal(records, A, since(None, revision, 10)).await, ErrorKind::NotFound);
    }
    let page = records.changes(A, &since(Some(EMAIL), 2, 10)).await.unwrap();
    assert_eq!(page.destroyed, changed(EMAIL, &[ids[1]]));
    assert_eq!(all_since(records, 2).await.destroyed.len(), 2);
}

async fn the_floor_is_that_of_the_kind(subject: Subject) {
    let (opened, ids) = destroyed_and_forgotten(&subject, 101).await;
    let page = opened.records.changes(A, &since(Some(THREAD), 1, 10)).await.unwrap();
    assert_eq!(page.destroyed, changed(THREAD, &[ids[3]]));
    assert!(opened.records.changes(A, &since(Some(MAILBOX), 0, 10)).await.is_ok());
    opened.upkeep.clean(Timestamp::from_seconds(200), 1_000).await.unwrap();
    assert_eq!(refusal(&*opened.records, A, since(Some(THREAD), 3, 10)).await, ErrorKind::NotFound);
    assert!(opened.records.changes(A, &since(Some(EMAIL), 3, 10)).await.is_ok());
    assert_eq!(
        refusal(&*opened.records, A, since(None, 3, 10)).await,
        ErrorKind::NotFound,
        "of all the highest"
    );
    assert!(opened.records.changes(A, &since(None, 4, 10)).await.is_ok());
}

async fn a_revision_that_was_not_reached_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, A, [email(1)]).await;
    for revision in [2, u64::MAX] {
        assert_eq!(refusal(&*records, A, since(None, revision, 10)).await, ErrorKind::Invalid);
        assert_eq!(refusal(&*records, A, since(Some(EMAIL), revision, 10)).await, ErrorKind::Invalid);
    }
    assert_eq!(refusal(&*records, B, since(None, 1, 10)).await, ErrorKind::Invalid);
}

async fn an_unknown_kind_is_refused(subject: Subject) {
    let records = subject.open().await.records;
    assert_eq!(refusal(&*records, A, since(Some(NO_KIND), 0, 10)).await, ErrorKind::Invalid);
}

async fn limits_out_of_bounds_are_refused(subject: Subject) {
    let records = subject.open().await.records;
    for limit in [0, CHANGES_MAX + 1, usize::MAX] {
        assert_eq!(refusal(&*records, A, since(None, 0, limit)).await, ErrorKind::Invalid);
    }
}

async fn the_longest_page_is_answered(subject: Subject) {
    let records = subject.open().await.records;
    for _ in 0..2 {
        commit(&*records, A, (0..CHANGES_MAX).map(|_| thread())).await;
    }
    let page = records.changes(A, &since(None, 0, CHANGES_MAX)).await.unwrap();
    assert_eq!((page.created.len(), page.revision, page.has_more), (CHANGES_MAX, Revision(1), true));
}

async fn accounts_are_apart(subject: Subject) {
    let (opened, _) = destroyed_and_forgotten(&subject, 200).await;
    let id = create_one(&*opened.records, B, email(1)).await;
    let theirs = opened.records.changes(B, &since(None, 0, 10)).await.unwrap();
    assert_eq!(theirs, page(changed(EMAIL, &[id]), vec![], vec![], 1));
    assert_eq!(revision(&*opened.records, A).await, Revision(4));
}

async fn changes_survive_reopening(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&*opened.records, 8).await;
    let last = revision(&*opened.records, A).await.0;
    let mut before = Vec::new();
    for revision in 0..=last {
        before.push(all_since(&*opened.records, revision).await);
    }
    let opened = subject.reopen(opened).await;
    for (revision, page) in before.into_iter().enumerate() {
        assert_eq!(all_since(&*opened.records, revision as u64).await, page);
    }
    let next = Commit::of([thread()]);
    assert_eq!(opened.records.commit(A, next).await.unwrap().revision, Revision(last + 1));
}

async fn floors_survive_reopening(subject: Subject) {
    let (opened, ids) = destroyed_and_forgotten(&subject, 101).await;
    let opened = subject.reopen(opened).await;
    assert_eq!(refusal(&*opened.records, A, since(Some(EMAIL), 1, 10)).await, ErrorKind::NotFound);
    let page = opened.records.changes(A, &since(Some(EMAIL), 2, 10)).await.unwrap();
    assert_eq!(page.destroyed, changed(EMAIL, &[ids[1]]));
    assert!(opened.records.changes(A, &since(Some(THREAD), 1, 10)).await.is_ok());
}
