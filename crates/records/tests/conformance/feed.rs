//! What `Feed` promises.

use std::collections::BTreeMap;

use restante_core::{ErrorKind, Timestamp};
use restante_records::{
    AccountId, CHANGES_MAX, Changed, Checkpoint, Commit, FOLLOWER_NAME_BYTES_MAX, FeedRequest, Kind, Opened,
    Position, RecordId, Revision, TOUCHED_MAX,
};

use crate::{
    Subject,
    common::{
        A, B, EMAIL, LAST, THREAD, accounts_after, at, commit, create_one, destroy, email, last_position,
        mailbox, mirror::Mirror, move_to, rewrite, thread,
    },
};

crate::promises! {
    any: [
        accounts_are_touched_in_the_order_of_their_last_commits,
        an_account_that_changes_again_moves_to_the_end,
        a_page_of_accounts_keeps_to_its_limit,
        every_commit_has_a_larger_position_than_those_before,
        positions_read_back_from_their_bytes_which_have_their_order,
        a_touched_account_has_the_time_of_its_last_commit,
        what_changes_nothing_has_no_position,
        accounts_that_are_touched_while_a_follower_walks_come_again,
        limits_of_accounts_out_of_bounds_are_refused,
        a_follower_gets_what_changes_return,
        a_follower_gets_everything_that_was_destroyed,
        pages_of_a_follower_never_cut_a_revision_in_two,
        who_begins_at_0_walks_through_all_that_exists,
        forgotten_history_is_no_obstacle_to_who_began_behind_it,
        a_floor_above_both_is_one,
        a_follower_that_is_ahead_of_the_account_is_refused,
        limits_of_a_follower_out_of_bounds_are_refused,
        who_saved_nothing_is_at_0,
        a_checkpoint_is_what_was_saved_last,
        accounts_that_are_not_named_keep_what_they_have,
        the_longest_checkpoint_is_kept,
        followers_are_apart,
        a_follower_that_is_forgotten_begins_from_zero,
        followers_are_listed_by_name,
        names_out_of_bounds_are_refused,
        too_many_accounts_are_refused,
        a_checkpoint_is_no_commit,
        a_closed_store_saves_and_forgets_nothing,
    ],
    disk: [the_feed_survives_reopening, checkpoints_survive_reopening, what_was_forgotten_stays_forgotten]
}

fn touched(account: AccountId, revision: u64) -> (AccountId, Revision) {
    (account, Revision(revision))
}

async fn accounts_are_touched_in_the_order_of_their_last_commits(subject: Subject) {
    let opened = subject.open().await;
    assert_eq!(accounts_after(&*opened.feed, Position::default()).await, []);
    for account in [B, LAST, A] {
        commit(&*opened.records, account, [email(1)]).await;
    }
    let expected = [touched(B, 1), touched(LAST, 1), touched(A, 1)];
    assert_eq!(accounts_after(&*opened.feed, Position::default()).await, expected);
    let all = opened.feed.touched(Position::default(), TOUCHED_MAX).await.unwrap();
    assert_eq!(accounts_after(&*opened.feed, all[0].position).await, expected[1..]);
    assert_eq!(accounts_after(&*opened.feed, all[2].position).await, []);
    assert_eq!(opened.feed.touched(at(u64::MAX), TOUCHED_MAX).await.unwrap(), []);
}

async fn an_account_that_changes_again_moves_to_the_end(subject: Subject) {
    let opened = subject.open().await;
    for account in [A, B, A] {
        commit(&*opened.records, account, [email(1)]).await;
    }
    let before = last_position(&*opened.feed).await;
    commit(&*opened.records, A, [email(1)]).await;
    let expected = [touched(B, 1), touched(A, 3)];
    assert_eq!(accounts_after(&*opened.feed, Position::default()).await, expected);
    assert_eq!(accounts_after(&*opened.feed, before).await, expected[1..]);
}

async fn a_page_of_accounts_keeps_to_its_limit(subject: Subject) {
    let opened = subject.open().await;
    for account in 0..10 {
        commit(&*opened.records, AccountId(account), [thread()]).await;
    }
    let mut after = Position::default();
    for expected in [0..4, 4..8, 8..10] {
        let page = opened.feed.touched(after, 4).await.unwrap();
        assert_eq!(
            page.iter().map(|touched| touched.account.0).collect::<Vec<_>>(),
            expected.collect::<Vec<_>>()
        );
        after = page.last().unwrap().position;
    }
}

async fn every_commit_has_a_larger_position_than_those_before(subject: Subject) {
    let opened = subject.open().await;
    let mut last = Position::default();
    for account in [A, B, B, LAST, A] {
        commit(&*opened.records, account, [email(1), thread()]).await;
        let next = last_position(&*opened.feed).await;
        assert!(next > last);
        assert_eq!(accounts_after(&*opened.feed, last).await.len(), 1);
        last = next;
    }
}

async fn positions_read_back_from_their_bytes_which_have_their_order(subject: Subject) {
    let opened = subject.open().await;
    let mut bytes = vec![Position::default().to_bytes()];
    for n in 0..300 {
        commit(&*opened.records, AccountId(n), [thread()]).await;
        bytes.push(last_position(&*opened.feed).await.to_bytes());
    }
    assert!(bytes.is_sorted_by(|one, other| one < other));
    let middle = Position::from_bytes(bytes[200]);
    assert_eq!(accounts_after(&*opened.feed, middle).await.len(), 100);
}

async fn a_touched_account_has_the_time_of_its_last_commit(subject: Subject) {
    let opened = subject.open().await;
    for (millis, account) in [(5_000, A), (5_250, B), (6_001, A)] {
        subject.clock.set(Timestamp(millis * 1_000_000 + 999_999));
        commit(&*opened.records, account, [thread()]).await;
    }
    let touched = opened.feed.touched(Position::default(), 10).await.unwrap();
    let times: Vec<i64> = touched.iter().map(|touched| touched.committed_at.nanos()).collect();
    assert_eq!(times, [5_250_000_000, 6_001_000_000]);
}

async fn what_changes_nothing_has_no_position(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    let before = last_position(&*opened.feed).await;
    opened.records.commit(B, Commit::default()).await.unwrap();
    opened.records.commit(B, Commit::of([email(1), destroy(EMAIL, RecordId(9))])).await.unwrap_err();
    opened.records.commit(A, Commit::of([email(1)]).if_in_state(EMAIL, Revision(0))).await.unwrap_err();
    assert_eq!(last_position(&*opened.feed).await, before);
    assert_eq!(accounts_after(&*opened.feed, Position::default()).await, [touched(A, 1)]);
    commit(&*opened.records, B, [email(1)]).await;
    assert_eq!(accounts_after(&*opened.feed, before).await, [touched(B, 1)]);
}

async fn accounts_that_are_touched_while_a_follower_walks_come_again(subject: Subject) {
    let opened = subject.open().await;
    for account in 0..6 {
        commit(&*opened.records, AccountId(account), [thread()]).await;
    }
    let (mut after, mut seen) = (Position::default(), BTreeMap::new());
    for n in 0..20 {
        let page = opened.feed.touched(after, 2).await.unwrap();
        after = page.last().map_or(after, |last| last.position);
        for touched in page {
            seen.insert(touched.account, touched.revision);
        }
        if n < 4 {
            commit(&*opened.records, AccountId(n), [thread()]).await;
        }
    }
    for account in 0..6 {
        let account = AccountId(account);
        assert_eq!(seen[&account], opened.records.states(account).await.unwrap().revision);
    }
}

async fn limits_of_accounts_out_of_bounds_are_refused(subject: Subject) {
    let feed = subject.open().await.feed;
    for limit in [0, TOUCHED_MAX + 1] {
        assert_eq!(feed.touched(Position::default(), limit).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

fn request(since: u64, began: u64, limit: usize) -> FeedRequest {
    FeedRequest { since: Revision(since), began: Revision(began), limit }
}

fn changed(kind: Kind, ids: &[RecordId]) -> Vec<Changed> {
    ids.iter().map(|id| Changed { kind, id: *id }).collect()
}

/// Emails 0, 1 and 2 are created at revision 1; email 0 changes at 2; email 3 is created at 3 and destroyed at
/// 4; email 1 is destroyed at 5.
async fn a_history(subject: &Subject) -> (Opened, Vec<RecordId>) {
    let opened = subject.open().await;
    let records = &*opened.records;
    let mut ids = commit(records, A, (0..3).map(email)).await.created;
    commit(records, A, [rewrite(EMAIL, ids[0], "new")]).await;
    ids.push(create_one(records, A, email(3)).await);
    for (second, id) in [(4, ids[3]), (5, ids[1])] {
        subject.set_seconds(second);
        commit(records, A, [destroy(EMAIL, id)]).await;
    }
    (opened, ids)
}

async fn a_follower_gets_what_changes_return(subject: Subject) {
    let (opened, ids) = a_history(&subject).await;
    let page = opened.feed.follow(A, &request(0, 0, 10)).await.unwrap();
    assert_eq!((page.created, page.updated), (changed(EMAIL, &[ids[0], ids[2]]), vec![]));
    assert_eq!((page.revision, page.has_more), (Revision(5), false));
    let page = opened.feed.follow(A, &request(1, 0, 10)).await.unwrap();
    assert_eq!((page.created, page.updated), (vec![], changed(EMAIL, &[ids[0]])));
    let page = opened.feed.follow(A, &request(3, 0, 10)).await.unwrap();
    assert_eq!(
        (page.created, page.updated, page.destroyed),
        (vec![], vec![], changed(EMAIL, &[ids[3], ids[1]]))
    );
    let page = opened.feed.follow(A, &request(5, 0, 10)).await.unwrap();
    assert_eq!((page.destroyed, page.revision, page.has_more), (vec![], Revision(5), false));
    commit(&*opened.records, A, [mailbox("Inbox"), thread(), destroy(EMAIL, ids[2])]).await;
    let page = opened.feed.follow(A, &request(5, 0, 10)).await.unwrap();
    assert_eq!((page.created.len(), page.destroyed.len()), (2, 1), "of all kinds");
}

async fn a_follower_gets_everything_that_was_destroyed(subject: Subject) {
    let (opened, ids) = a_history(&subject).await;
    for since in 0..=3 {
        let page = opened.feed.follow(A, &request(since, 0, 10)).await.unwrap();
        assert_eq!(page.destroyed, changed(EMAIL, &[ids[3], ids[1]]), "since {since}");
    }
    let page = opened.feed.follow(A, &request(4, 0, 10)).await.unwrap();
    assert_eq!(page.destroyed, changed(EMAIL, &[ids[1]]));
}

async fn pages_of_a_follower_never_cut_a_revision_in_two(subject: Subject) {
    let opened = subject.open().await;
    for n in 0..3 {
        let ids = commit(&*opened.records, A, [email(n), email(n), thread()]).await.created;
        commit(&*opened.records, A, [destroy(EMAIL, ids[0]), destroy(THREAD, ids[2])]).await;
    }
    // Revisions 1, 3 and 5 each have one record that still exists; 2, 4 and 6 have destroyed two.
    for (limit, revision) in [(1, 1), (2, 1), (3, 2), (4, 3), (5, 3), (6, 4), (7, 5), (8, 5)] {
        let page = opened.feed.follow(A, &request(0, 0, limit)).await.unwrap();
        assert_eq!((page.revision, page.has_more), (Revision(revision), true), "limit {limit}");
        assert_eq!(page.created.len() as u64, revision.div_ceil(2));
        assert_eq!(page.destroyed.len() as u64, revision / 2 * 2);
    }
    let page = opened.feed.follow(A, &request(0, 0, 9)).await.unwrap();
    assert_eq!((page.revision, page.has_more), (Revision(6), false));
    let page = opened.feed.follow(A, &request(1, 0, 1)).await.unwrap();
    assert_eq!((page.destroyed.len(), page.revision, page.has_more), (2, Revision(2), true));
}

async fn who_begins_at_0_walks_through_all_that_exists(subject: Subject) {
    let (opened, ids) = a_history(&subject).await;
    let records = &*opened.records;
    for n in 0..10 {
        let new = commit(records, A, [email(n), thread()]).await.created;
        commit(records, A, [move_to(ids[0], n, n), destroy(THREAD, new[1])]).await;
    }
    subject.set_seconds(100);
    opened.upkeep.clean(Timestamp::from_seconds(50), 1_000).await.unwrap();
    for limit in [1, 3, CHANGES_MAX] {
        let mut follower = Mirror::default();
        follower.follow(records, &*opened.feed, A, limit).await;
        follower.assert_equals(&*opened.upkeep, A).await;
    }
    let began = records.states(A).await.unwrap().revision;
    let first =
        opened.feed.follow(A, &FeedRequest { since: Revision(0), began, limit: CHANGES_MAX }).await.unwrap();
    assert_eq!(
        (first.created.len(), first.updated),
        (12, vec![]),
        "what changed since it came is returned as created"
    );
}

async fn forgotten_history_is_no_obstacle_to_who_began_behind_it(subject: Subject) {
    let (opened, ids) = a_history(&subject).await;
    subject.set_seconds(100);
    opened.upkeep.clean(Timestamp::from_seconds(5), 1_000).await.unwrap(); // 4 is forgotten, 5 is not
    for (since, began) in [(0, 4), (0, 5), (3, 4), (4, 0), (4, 1), (5, 0)] {
        let page = opened.feed.follow(A, &request(since, began, 10)).await.unwrap();
        let expected = if since < 5 { changed(EMAIL, &[ids[1]]) } else { vec![] };
        assert_eq!(page.destroyed, expected, "since {since}, began {began}");
    }
}

async fn a_floor_above_both_is_one(subject: Subject) {
    let (opened, _) = a_history(&subject).await;
    assert!(opened.feed.follow(A, &request(0, 0, 10)).await.is_ok());
    subject.set_seconds(100);
    opened.upkeep.clean(Timestamp::from_seconds(5), 1_000).await.unwrap();
    for (since, began) in [(0, 0), (3, 0), (0, 3), (3, 3)] {
        let error = opened.feed.follow(A, &request(since, began, 10)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "since {since}, began {began}");
    }
    commit(&*opened.records, A, [thread()]).await;
    let error = opened.feed.follow(A, &request(3, 0, 10)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "the floor of any kind");
}

async fn a_follower_that_is_ahead_of_the_account_is_refused(subject: Subject) {
    let (opened, _) = a_history(&subject).await;
    for since in [6, u64::MAX] {
        let error = opened.feed.follow(A, &request(since, 0, 10)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let error = opened.feed.follow(B, &request(1, 0, 10)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(opened.feed.follow(B, &request(0, 0, 10)).await.unwrap().revision, Revision(0));
}

async fn limits_of_a_follower_out_of_bounds_are_refused(subject: Subject) {
    let feed = subject.open().await.feed;
    for limit in [0, CHANGES_MAX + 1] {
        assert_eq!(feed.follow(A, &request(0, 0, limit)).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

fn checkpoint(position: u64, accounts: &[(AccountId, u64)]) -> Checkpoint {
    let accounts = accounts.iter().map(|(account, revision)| (*account, Revision(*revision))).collect();
    Checkpoint { position: at(position), accounts }
}

async fn who_saved_nothing_is_at_0(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    assert_eq!(opened.feed.checkpoint("search", &[A, B]).await.unwrap(), checkpoint(0, &[(A, 0), (B, 0)]));
    opened.feed.save("search", &checkpoint(1, &[(A, 1)])).await.unwrap();
    assert_eq!(opened.feed.checkpoint("search", &[A, B]).await.unwrap(), checkpoint(1, &[(A, 1), (B, 0)]));
}

async fn a_checkpoint_is_what_was_saved_last(subject: Subject) {
    let feed = subject.open().await.feed;
    for saved in
        [checkpoint(5, &[(A, 3), (B, 4)]), checkpoint(7, &[(A, 9), (B, 5)]), checkpoint(0, &[(A, 0), (B, 1)])]
    {
        feed.save("search", &saved).await.unwrap();
        assert_eq!(feed.checkpoint("search", &[A, B]).await.unwrap(), saved);
    }
    let far = checkpoint(u64::MAX, &[(LAST, u64::MAX)]);
    feed.save("search", &far).await.unwrap();
    assert_eq!(feed.checkpoint("search", &[LAST]).await.unwrap(), far);
    assert_eq!(
        feed.checkpoint("search", &[B, A, B]).await.unwrap().accounts.len(),
        3,
        "in the order asked for"
    );
}

async fn accounts_that_are_not_named_keep_what_they_have(subject: Subject) {
    let feed = subject.open().await.feed;
    feed.save("search", &checkpoint(5, &[(A, 3), (B, 4)])).await.unwrap();
    feed.save("search", &checkpoint(6, &[(LAST, 1)])).await.unwrap();
    let expected = checkpoint(6, &[(A, 3), (B, 4), (LAST, 1)]);
    assert_eq!(feed.checkpoint("search", &[A, B, LAST]).await.unwrap(), expected);
    feed.save("search", &checkpoint(7, &[])).await.unwrap();
    assert_eq!(feed.checkpoint("search", &[A]).await.unwrap(), checkpoint(7, &[(A, 3)]));
}

async fn the_longest_checkpoint_is_kept(subject: Subject) {
    let feed = subject.open().await.feed;
    let accounts: Vec<(AccountId, u64)> =
        (0..TOUCHED_MAX as u32).map(|n| (AccountId(n), u64::from(n) + 1)).collect();
    let saved = checkpoint(9, &accounts);
    let name = "x".repeat(FOLLOWER_NAME_BYTES_MAX);
    feed.save(&name, &saved).await.unwrap();
    let asked: Vec<AccountId> = accounts.iter().map(|(account, _)| *account).collect();
    assert_eq!(feed.checkpoint(&name, &asked).await.unwrap(), saved);
}

async fn followers_are_apart(subject: Subject) {
    let feed = subject.open().await.feed;
    // Names that are prefixes of others, that contain a zero, and that look like the end of one.
    let names = ["a", "ab", "a\0", "a\0\0", "a\u{ff}", "A"];
    for (n, name) in names.iter().enumerate() {
        feed.save(name, &checkpoint(n as u64 + 1, &[(A, n as u64 + 10)])).await.unwrap();
    }
    feed.forget("a").await.unwrap();
    for (n, name) in names.iter().enumerate().skip(1) {
        let expected = checkpoint(n as u64 + 1, &[(A, n as u64 + 10)]);
        assert_eq!(feed.checkpoint(name, &[A]).await.unwrap(), expected, "{name:?}");
    }
    assert_eq!(feed.checkpoint("a", &[A]).await.unwrap(), checkpoint(0, &[(A, 0)]));
}

async fn a_follower_that_is_forgotten_begins_from_zero(subject: Subject) {
    let feed = subject.open().await.feed;
    let accounts: Vec<(AccountId, u64)> = (0..TOUCHED_MAX as u32).map(|n| (AccountId(n), 7)).collect();
    feed.save("search", &checkpoint(5, &accounts)).await.unwrap();
    feed.save("search", &checkpoint(6, &[(LAST, 8)])).await.unwrap();
    feed.save("push", &checkpoint(4, &[(A, 1)])).await.unwrap();
    feed.forget("search").await.unwrap();
    let asked: Vec<AccountId> = (0..TOUCHED_MAX as u32 - 1).map(AccountId).chain([LAST]).collect();
    let forgotten = feed.checkpoint("search", &asked).await.unwrap();
    assert_eq!(forgotten.position, Position::default());
    assert!(forgotten.accounts.iter().all(|(_, revision)| *revision == Revision(0)));
    assert_eq!(feed.followers().await.unwrap(), [("push".to_owned(), at(4))]);
    feed.save("search", &checkpoint(1, &[(A, 1)])).await.unwrap();
    assert_eq!(feed.checkpoint("search", &[A, B]).await.unwrap(), checkpoint(1, &[(A, 1), (B, 0)]));
    feed.forget("nobody").await.unwrap();
}

async fn followers_are_listed_by_name(subject: Subject) {
    let feed = subject.open().await.feed;
    assert_eq!(feed.followers().await.unwrap(), []);
    for (name, position) in [("search", 3), ("push", 0), ("sea", 9), ("search\0", 1)] {
        feed.save(name, &checkpoint(position, &[(A, 1), (B, 2)])).await.unwrap();
    }
    let expected = [("push", 0), ("sea", 9), ("search", 3), ("search\0", 1)];
    assert_eq!(
        feed.followers().await.unwrap(),
        expected.map(|(name, position)| (name.to_owned(), at(position)))
    );
}

async fn names_out_of_bounds_are_refused(subject: Subject) {
    let feed = subject.open().await.feed;
    for name in ["", &"x".repeat(FOLLOWER_NAME_BYTES_MAX + 1)] {
        assert_eq!(feed.checkpoint(name, &[]).await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(feed.save(name, &checkpoint(1, &[])).await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(feed.forget(name).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(feed.followers().await.unwrap(), []);
}

async fn too_many_accounts_are_refused(subject: Subject) {
    let feed = subject.open().await.feed;
    let accounts = vec![A; TOUCHED_MAX + 1];
    assert_eq!(feed.checkpoint("search", &accounts).await.unwrap_err().kind(), ErrorKind::Invalid);
    let saved = checkpoint(1, &vec![(A, 1); TOUCHED_MAX + 1]);
    assert_eq!(feed.save("search", &saved).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(feed.followers().await.unwrap(), []);
}

async fn a_checkpoint_is_no_commit(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    let before = last_position(&*opened.feed).await;
    opened.feed.save("search", &checkpoint(1, &[(A, 1), (B, 1)])).await.unwrap();
    opened.feed.forget("search").await.unwrap();
    assert_eq!(last_position(&*opened.feed).await, before);
    assert_eq!(accounts_after(&*opened.feed, Position::default()).await, [touched(A, 1)]);
    assert_eq!(opened.records.states(A).await.unwrap().revision, Revision(1));
}

async fn a_closed_store_saves_and_forgets_nothing(subject: Subject) {
    let opened = subject.open().await;
    opened.feed.save("search", &checkpoint(1, &[(A, 1)])).await.unwrap();
    opened.upkeep.close().await.unwrap();
    let error = opened.feed.save("search", &checkpoint(2, &[])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(opened.feed.forget("search").await.unwrap_err().kind(), ErrorKind::Unavailable);
}

async fn the_feed_survives_reopening(subject: Subject) {
    let opened = subject.open().await;
    for account in [A, B, A] {
        commit(&*opened.records, account, [email(1)]).await;
    }
    let before = last_position(&*opened.feed).await;
    let opened = subject.reopen(opened).await;
    assert_eq!(last_position(&*opened.feed).await, before);
    assert_eq!(accounts_after(&*opened.feed, Position::default()).await, [touched(B, 1), touched(A, 2)]);
    commit(&*opened.records, B, [email(1)]).await;
    assert_eq!(accounts_after(&*opened.feed, before).await, [touched(B, 2)]);
}

async fn checkpoints_survive_reopening(subject: Subject) {
    let opened = subject.open().await;
    let saved = checkpoint(5, &[(A, 3), (LAST, 4)]);
    opened.feed.save("search", &saved).await.unwrap();
    let opened = subject.reopen(opened).await;
    assert_eq!(opened.feed.checkpoint("search", &[A, LAST]).await.unwrap(), saved);
    assert_eq!(opened.feed.followers().await.unwrap(), [("search".to_owned(), at(5))]);
}

async fn what_was_forgotten_stays_forgotten(subject: Subject) {
    let opened = subject.open().await;
    opened.feed.save("search", &checkpoint(5, &[(A, 3), (LAST, 4)])).await.unwrap();
    opened.feed.forget("search").await.unwrap();
    let opened = subject.reopen(opened).await;
    assert_eq!(
        opened.feed.checkpoint("search", &[A, LAST]).await.unwrap(),
        checkpoint(0, &[(A, 0), (LAST, 0)])
    );
    assert_eq!(opened.feed.followers().await.unwrap(), []);
}
