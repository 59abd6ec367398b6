//! What `watch` promises.

use std::{collections::BTreeMap, time::Duration};

use restante_records::{AccountId, Announcement, Commit, Lagged, RecordId, Revision, Watch};
use tokio::time::timeout;

use crate::{
    Subject,
    common::{A, B, EMAIL, commit, create_one, destroy, email, revision, thread},
};

crate::promises! {
    any: [
        every_commit_is_announced,
        what_was_before_is_not_announced,
        a_commit_is_announced_after_it_is_visible,
        every_watcher_gets_announcements,
        what_changes_nothing_is_not_announced,
        commits_made_at_once_are_announced_up_to_the_last_in_rising_order,
        a_commit_is_announced_before_it_is_answered,
        a_commit_whose_committer_gave_up_is_announced_if_it_is_made,
        a_slow_watcher_learns_how_much_it_missed,
        a_watch_ends_with_its_store,
    ],
    disk: []
}

/// How long an expected event may take.
const PATIENCE: Duration = Duration::from_secs(60);

async fn next(watch: &mut Watch) -> Announcement {
    timeout(PATIENCE, watch.next())
        .await
        .expect("an announcement comes")
        .expect("the store is there")
        .unwrap()
}

async fn every_commit_is_announced(subject: Subject) {
    let records = subject.open().await.records;
    let mut watch = records.watch();
    let id = create_one(&*records, A, email(1)).await;
    commit(&*records, B, [thread()]).await;
    commit(&*records, A, [destroy(EMAIL, id)]).await;
    for (account, revision) in [(A, 1), (B, 1), (A, 2)] {
        assert_eq!(next(&mut watch).await, Announcement { account, revision: Revision(revision) });
    }
}

async fn what_was_before_is_not_announced(subject: Subject) {
    let records = subject.open().await.records;
    commit(&*records, A, [email(1)]).await;
    let mut watch = records.watch();
    commit(&*records, A, [email(2)]).await;
    assert_eq!(next(&mut watch).await.revision, Revision(2));
}

async fn a_commit_is_announced_after_it_is_visible(subject: Subject) {
    let records = subject.open().await.records;
    let mut watch = records.watch();
    let committer = records.clone();
    let commits = tokio::spawn(async move {
        for n in 0..50 {
            commit(&*committer, A, [email(n)]).await;
        }
    });
    for expected in 1..=50 {
        let announced = next(&mut watch).await.revision;
        assert_eq!(announced, Revision(expected));
        assert!(revision(&*records, A).await >= announced);
    }
    commits.await.unwrap();
}

async fn every_watcher_gets_announcements(subject: Subject) {
    let records = subject.open().await.records;
    let mut watches = [records.watch(), records.watch(), records.watch()];
    commit(&*records, A, [email(1)]).await;
    for watch in &mut watches {
        assert_eq!(next(watch).await, Announcement { account: A, revision: Revision(1) });
    }
}

async fn what_changes_nothing_is_not_announced(subject: Subject) {
    let records = subject.open().await.records;
    let mut watch = records.watch();
    records.commit(A, Commit::default()).await.unwrap();
    records.commit(A, Commit::of([destroy(EMAIL, RecordId(9))])).await.unwrap_err();
    commit(&*records, B, [email(1)]).await;
    assert_eq!(next(&mut watch).await, Announcement { account: B, revision: Revision(1) });
}

async fn commits_made_at_once_are_announced_up_to_the_last_in_rising_order(subject: Subject) {
    let records = subject.open().await.records;
    let mut watch = records.watch();
    let mut tasks = Vec::new();
    for task in 0..8 {
        let records = records.clone();
        tasks.push(tokio::spawn(async move {
            for n in 0..25 {
                commit(&*records, if task % 2 == 0 { A } else { B }, [email(n)]).await;
            }
        }));
    }
    let mut newest = BTreeMap::from([(A, Revision(0)), (B, Revision(0))]);
    while newest.values().any(|revision| *revision < Revision(100)) {
        let Announcement { account, revision: announced } = next(&mut watch).await;
        assert!(newest[&account] < announced, "{announced:?} after {:?}", newest[&account]);
        assert!(revision(&*records, account).await >= announced);
        newest.insert(account, announced);
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn a_commit_is_announced_before_it_is_answered(subject: Subject) {
    let records = subject.open().await.records;
    let mut watch = records.watch();
    for n in 0..20 {
        let committed = commit(&*records, A, [email(n)]).await;
        // A timeout of zero polls it once.
        let announced =
            timeout(Duration::ZERO, watch.next()).await.expect("it waits already").unwrap().unwrap();
        assert_eq!(announced, Announcement { account: A, revision: committed.revision });
    }
}

async fn a_commit_whose_committer_gave_up_is_announced_if_it_is_made(subject: Subject) {
    let records = subject.open().await.records;
    let mut watch = records.watch();
    for n in 0..50 {
        let committer = {
            let records = records.clone();
            tokio::spawn(async move { commit(&*records, A, [email(n), thread()]).await })
        };
        for _ in 0..n % 7 {
            tokio::task::yield_now().await;
        }
        committer.abort();
        let _ = committer.await; // it was made, or it was not
    }
    let made = revision(&*records, A).await;
    let mut newest = Revision(0);
    while newest < made {
        let announced = next(&mut watch).await;
        assert!(announced.account == A && announced.revision > newest, "{announced:?} after {newest:?}");
        newest = announced.revision;
    }
}

async fn a_slow_watcher_learns_how_much_it_missed(subject: Subject) {
    let records = subject.open().await.records;
    let mut watch = records.watch();
    // Committed together, so that a device with slow syncs syncs only a few times; each in its own account, so that none is
    // announced with another.
    for hundred in 0..30_u32 {
        let start = |n: u32| {
            let records = records.clone();
            tokio::spawn(
                async move { commit(&*records, AccountId(1_000 + 100 * hundred + n), [thread()]).await },
            )
        };
        for commit in (0..100_u32).map(start).collect::<Vec<_>>() {
            commit.await.unwrap();
        }
    }
    commit(&*records, B, [thread()]).await;
    let first = timeout(PATIENCE, watch.next()).await.expect("it is announced").expect("the store is there");
    let Lagged(missed) = first.expect_err("it was too slow for 3,000");
    let mut followed = 0;
    while next(&mut watch).await.account != B {
        followed += 1;
    }
    assert!(followed > 0);
    assert_eq!(missed + followed, 3_000);
}

async fn a_watch_ends_with_its_store(subject: Subject) {
    let opened = subject.open().await;
    let mut watch = opened.records.watch();
    commit(&*opened.records, A, [email(1)]).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    assert_eq!(next(&mut watch).await.revision, Revision(1));
    let end = timeout(PATIENCE, watch.next()).await.expect("the watch ends");
    assert_eq!(end, None);
}
