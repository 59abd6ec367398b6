//! What holds while several clients commit and read at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use restante_core::ErrorKind;
use restante_records::{
    AccountId, Body, Change, ChangesSince, Commit, Get, Position, Query, RecordId, Records, Revision,
};
use tokio::task::JoinHandle;

use crate::{
    Subject,
    common::{
        A, B, BY_KEYWORD, BY_MAILBOX, EMAIL, KEYWORD, commit, create, create_one, destroy, email, in_mailbox,
        mirror::Mirror, move_to, none, rewrite, walk,
    },
};

crate::promises! {
    any: [
        committers_of_one_account_get_every_revision_once,
        committers_of_several_accounts_do_not_disturb_each_other,
        ids_are_given_once,
        of_two_commits_that_expect_the_same_state_one_is_made,
        readers_never_see_half_a_commit,
        a_get_reads_all_records_at_one_moment,
        no_smaller_revision_appears_after_a_larger_one,
        a_walk_gives_every_entry_once_while_others_commit,
        who_follows_the_changes_while_others_commit_has_all,
    ],
    disk: []
}

const TASKS: u64 = 4;
const COMMITS: u64 = 40;

type Task<T> = JoinHandle<T>;

/// Starts tasks that commit one record after the other, and return the revisions and ids that they got.
fn committers(
    records: &Arc<dyn Records>,
    account_of: fn(u64) -> AccountId,
) -> Vec<Task<Vec<(Revision, RecordId)>>> {
    let start = |task: u64| {
        let records = records.clone();
        tokio::spawn(async move {
            let mut got = Vec::new();
            for n in 0..COMMITS {
                let committed = commit(&*records, account_of(task), [email(n)]).await;
                got.push((committed.revision, committed.created[0]));
            }
            got
        })
    };
    (0..TASKS).map(start).collect()
}

async fn all<T>(tasks: Vec<Task<T>>) -> Vec<T> {
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

async fn committers_of_one_account_get_every_revision_once(subject: Subject) {
    let records = subject.open().await.records;
    let mut revisions = BTreeSet::new();
    for of_task in all(committers(&records, |_| A)).await {
        assert!(of_task.is_sorted(), "who commits again gets a larger revision");
        revisions.extend(of_task.into_iter().map(|(revision, _)| revision.0));
    }
    assert_eq!(revisions, (1..=TASKS * COMMITS).collect());
}

async fn committers_of_several_accounts_do_not_disturb_each_other(subject: Subject) {
    let opened = subject.open().await;
    let of_tasks = all(committers(&opened.records, |task| AccountId(task as u32))).await;
    for of_task in of_tasks {
        let revisions: Vec<u64> = of_task.iter().map(|(revision, _)| revision.0).collect();
        assert_eq!(revisions, (1..=COMMITS).collect::<Vec<_>>());
    }
    let touched = opened.feed.touched(Position::default(), 10).await.unwrap();
    assert_eq!(touched.len() as u64, TASKS);
}

async fn ids_are_given_once(subject: Subject) {
    let records = subject.open().await.records;
    let of_tasks = all(committers(&records, |_| A)).await;
    let ids: BTreeSet<RecordId> = of_tasks.iter().flatten().map(|(_, id)| *id).collect();
    assert_eq!(ids.len() as u64, TASKS * COMMITS);
    let in_order_of_revisions: BTreeMap<Revision, RecordId> = of_tasks.into_iter().flatten().collect();
    assert!(in_order_of_revisions.values().is_sorted(), "ids rise with revisions");
}

async fn of_two_commits_that_expect_the_same_state_one_is_made(subject: Subject) {
    let records = subject.open().await.records;
    for round in 0..20 {
        let start = |_| {
            let records = records.clone();
            let next = Commit::of([email(round)]).if_in_state(EMAIL, Revision(round));
            tokio::spawn(async move { records.commit(A, next).await })
        };
        let answers = all((0..TASKS).map(start).collect()).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
        let refused = answers.into_iter().filter_map(Result::err);
        assert!(refused.into_iter().all(|error| error.kind() == ErrorKind::Conflict));
    }
}

/// Makes commits that each change all of these records to the same text, until asked to stop. The first one is made when it
/// returns.
async fn rewriter(records: &Arc<dyn Records>, ids: &[RecordId], stop: &Arc<AtomicBool>) -> Task<()> {
    let (records, ids, stop) = (records.clone(), ids.to_vec(), stop.clone());
    let (begun, begins) = tokio::sync::oneshot::channel();
    let mut begun = Some(begun);
    let rewriter = tokio::spawn(async move {
        let mut n = 0;
        while !stop.load(Ordering::SeqCst) {
            n += 1;
            let text = n.to_string();
            let body = Body::new(text.clone());
            let properties = none().with(KEYWORD, Bytes::from(text));
            let update = |id: &RecordId| Change::Update {
                kind: EMAIL,
                id: *id,
                body: Some(body.clone()),
                properties: Some(properties.clone()),
            };
            commit(&*records, A, ids.iter().map(update)).await;
            if let Some(begun) = begun.take() {
                begun.send(()).unwrap();
            }
            tokio::task::yield_now().await; // the task ends here when the test fails
        }
    });
    begins.await.unwrap();
    rewriter
}

async fn readers_never_see_half_a_commit(subject: Subject) {
    let records = subject.open().await.records;
    let first = (0..20).map(|_| create(EMAIL, "0", none().with(KEYWORD, "0")));
    let ids = commit(&*records, A, first).await.created;
    let stop = Arc::new(AtomicBool::new(false));
    let rewriter = rewriter(&records, &ids, &stop).await;
    for _ in 0..200 {
        // The index and the state are read as of one moment: all entries have one keyword, and it is that of the state.
        let page = records.query(A, &Query::new(EMAIL, BY_KEYWORD)).await.unwrap();
        assert_eq!(page.ids.len(), ids.len());
        let keyword = Bytes::from((page.state.0 - 1).to_string());
        let of_state = records.query(A, &Query::new(EMAIL, BY_KEYWORD).equals(keyword)).await.unwrap();
        let expected = if of_state.state == page.state { ids.len() } else { 0 };
        assert_eq!(of_state.ids.len(), expected, "at {:?}, then {:?}", page.state, of_state.state);
        let since = ChangesSince { kind: None, since: Revision(1), limit: 100 };
        let changes = records.changes(A, &since).await.unwrap();
        assert!(changes.updated.is_empty() || changes.updated.len() == ids.len());
        tokio::task::yield_now().await;
    }
    stop.store(true, Ordering::SeqCst);
    rewriter.await.unwrap();
}

async fn a_get_reads_all_records_at_one_moment(subject: Subject) {
    let records = subject.open().await.records;
    let first = (0..20).map(|_| create(EMAIL, "0", none().with(KEYWORD, "0")));
    let ids = commit(&*records, A, first).await.created;
    let stop = Arc::new(AtomicBool::new(false));
    let rewriter = rewriter(&records, &ids, &stop).await;
    for _ in 0..200 {
        let got = records.get(A, &Get::whole(EMAIL, ids.clone())).await.unwrap();
        let got: Vec<_> = got.into_iter().map(Option::unwrap).collect();
        let of_first = (got[0].revision, got[0].body.clone(), got[0].properties.clone());
        let text = (of_first.0.0 - 1).to_string();
        assert_eq!(of_first.1.bytes, text);
        for record in got {
            assert_eq!((record.revision, record.body, record.properties), of_first);
        }
        tokio::task::yield_now().await;
    }
    stop.store(true, Ordering::SeqCst);
    rewriter.await.unwrap();
}

async fn no_smaller_revision_appears_after_a_larger_one(subject: Subject) {
    let records = subject.open().await.records;
    let committers = committers(&records, |_| A);
    let mut seen = BTreeSet::new();
    let mut last = Revision(0);
    while last.0 < TASKS * COMMITS {
        let since = ChangesSince { kind: None, since: last, limit: 1_000 };
        let page = records.changes(A, &since).await.unwrap();
        // One record for each revision: what was announced so far has no gap, so nothing can appear below it later.
        seen.extend(page.created.iter().map(|changed| changed.id));
        assert_eq!(seen.len() as u64, page.revision.0);
        last = page.revision;
        tokio::task::yield_now().await;
    }
    all(committers).await;
}

async fn a_walk_gives_every_entry_once_while_others_commit(subject: Subject) {
    let records = subject.open().await.records;
    let resting =
        commit(&*records, A, (0..60).map(|n| create(EMAIL, "", in_mailbox(n % 5, n)))).await.created;
    let moving = commit(&*records, A, (0..30).map(|n| create(EMAIL, "", in_mailbox(n % 5, n)))).await.created;
    let stop = Arc::new(AtomicBool::new(false));
    let mover = {
        let (records, stop, moving) = (records.clone(), stop.clone(), moving.clone());
        tokio::spawn(async move {
            let mut n = 0_u64;
            while !stop.load(Ordering::SeqCst) {
                n += 1;
                let moved = moving[n as usize % moving.len()];
                let gone = create_one(&*records, A, create(EMAIL, "", in_mailbox(n % 5, n % 60))).await;
                commit(&*records, A, [move_to(moved, n * 3 % 5, n * 7 % 60), destroy(EMAIL, gone)]).await;
                tokio::task::yield_now().await; // the task ends here when the test fails
            }
        })
    };
    for round in 0..20 {
        let query = Query::new(EMAIL, BY_MAILBOX).limit(round % 7 + 1);
        let query = if round % 2 == 0 { query } else { query.descending() };
        let mut seen = walk(&*records, A, &query).await;
        seen.retain(|id| resting.contains(id));
        assert_eq!(seen.len(), resting.len(), "each once");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), resting.iter().copied().collect());
    }
    stop.store(true, Ordering::SeqCst);
    mover.await.unwrap();
}

async fn who_follows_the_changes_while_others_commit_has_all(subject: Subject) {
    let opened = subject.open().await;
    let start = |task: u64| {
        let records = opened.records.clone();
        tokio::spawn(async move {
            for n in 0..COMMITS {
                let created =
                    commit(&*records, if n % 3 == 0 { B } else { A }, [email(task), email(n)]).await.created;
                let account = if n % 3 == 0 { B } else { A };
                commit(&*records, account, [rewrite(EMAIL, created[0], "new"), destroy(EMAIL, created[1])])
                    .await;
            }
        })
    };
    let tasks: Vec<Task<()>> = (0..TASKS).map(start).collect();
    let (mut mirror, mut follower) = (Mirror::default(), Mirror::default());
    while tasks.iter().any(|task| !task.is_finished()) {
        mirror.keep_up(&*opened.records, A, 5).await;
        follower.follow(&*opened.records, &*opened.feed, A, 5).await;
        tokio::task::yield_now().await;
    }
    all(tasks).await;
    mirror.keep_up(&*opened.records, A, 5).await;
    mirror.assert_equals(&*opened.upkeep, A).await;
    follower.follow(&*opened.records, &*opened.feed, A, 5).await;
    follower.assert_equals(&*opened.upkeep, A).await;
}
