//! What `Upkeep` promises.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use restante_core::{BlobId, ErrorKind, Identity, Timestamp};
use restante_records::{
    AccountId, Body, Change, Changes, ChangesSince, Checkpoint, Cleaned, Commit, Config, DUMP_RECORDS_MAX,
    EngineUrl, KindStats, Opened, Query, RESTORE_JUMP, RecordId, RecordKey, Revision, States, Stats, Upkeep,
    open,
};

use crate::{
    Subject,
    common::{
        A, B, BY_MAILBOX, EMAIL, LAST, MAILBOX, PAGES_MAX, THREAD, blob, commit, create_one, destroy, email,
        engines::Engine,
        get_one, ids, last_position, mailbox,
        mirror::{Mirror, all_of, dump},
        move_to, none, revision, rewrite, thread,
    },
};

crate::promises! {
    any: [
        stats_count_accounts_kinds_and_commits,
        an_empty_store_has_stats,
        an_open_store_is_well,
        a_closed_store_is_not_well,
        a_sound_store_passes_its_check,
        a_check_changes_nothing,
        a_check_tells_how_far_it_is,
        what_was_destroyed_before_a_time_is_forgotten,
        what_was_destroyed_later_is_kept,
        forgetting_stops_at_its_limit,
        forgetting_raises_the_floor_to_the_last_revision_forgotten,
        forgetting_counts_the_accounts_whose_floor_rose,
        forgetting_takes_no_revision_and_no_position,
        others_go_on_while_much_is_forgotten,
        a_dump_is_by_account_kind_and_id,
        pages_of_a_dump_join,
        a_dump_goes_on_behind_a_place_that_is_gone,
        limits_of_a_dump_out_of_bounds_are_refused,
        references_are_returned_with_repeats,
        references_that_are_gone_are_not_returned,
        references_that_stay_while_others_come_and_go_are_returned,
        a_blob_that_is_taken_over_from_record_to_record_is_returned,
        a_store_keeps_its_identity_and_another_has_another,
        many_references_are_returned_by_pages,
        a_closed_store_takes_no_commits,
        closing_twice_is_no_error,
        closing_finishes_what_was_taken,
    ],
    disk: [
        what_was_forgotten_stays_forgotten,
        stats_survive_reopening,
        a_backup_has_everything,
        a_backup_of_an_empty_store_is_a_store,
        a_backup_can_be_written_to,
        everything_acknowledged_before_closing_survives,
    ],
    files: [
        a_store_on_disk_tells_its_size,
        a_backup_into_a_folder_with_something_in_it_is_refused,
        a_backup_into_a_folder_that_is_not_there_is_refused,
    ],
    no_files: [an_engine_without_files_refuses_a_backup],
    moment: [a_backup_while_others_commit_has_what_was_acknowledged]
}

fn seconds(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(seconds)
}

fn no_progress(_: u64, _: u64) {}

async fn assert_sound(upkeep: &dyn Upkeep) {
    let report = upkeep.check(&no_progress).await.unwrap();
    assert_eq!((report.findings, report.wrong), (vec![], 0));
}

/// Ten emails in A: one moves, one changes and two go; a mailbox and an email in B; the last account is empty again.
async fn make_a_history(opened: &Opened) {
    let records = &*opened.records;
    let created = commit(records, A, (0..10).map(email)).await.created;
    commit(records, A, [move_to(created[0], 8, 8), rewrite(EMAIL, created[1], "new")]).await;
    commit(records, A, [destroy(EMAIL, created[2])]).await;
    commit(records, A, [destroy(EMAIL, created[3])]).await;
    commit(records, B, [mailbox("Inbox"), email(1)]).await;
    let gone = create_one(records, LAST, thread()).await;
    commit(records, LAST, [destroy(THREAD, gone)]).await;
}

fn kind_stats(stats: &Stats) -> Vec<(u8, u64, u64)> {
    stats.kinds.iter().map(|stats| (stats.kind.0, stats.records, stats.tombstones)).collect()
}

async fn stats_count_accounts_kinds_and_commits(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&opened).await;
    let stats = opened.upkeep.stats().await.unwrap();
    assert_eq!((stats.accounts, stats.commits), (3, 7));
    assert_eq!(kind_stats(&stats), [(EMAIL.0, 9, 2), (MAILBOX.0, 1, 0), (THREAD.0, 0, 1)]);
    subject.set_seconds(100);
    opened.upkeep.clean(seconds(50), 1_000).await.unwrap();
    let stats = opened.upkeep.stats().await.unwrap();
    assert_eq!((stats.accounts, stats.commits), (3, 7));
    assert_eq!(kind_stats(&stats), [(EMAIL.0, 9, 0), (MAILBOX.0, 1, 0), (THREAD.0, 0, 0)]);
}

async fn an_empty_store_has_stats(subject: Subject) {
    let stats = subject.open().await.upkeep.stats().await.unwrap();
    assert_eq!((stats.accounts, stats.commits), (0, 0));
    let nothing = |kind: &KindStats| kind.records == 0 && kind.tombstones == 0;
    assert!(stats.kinds.iter().all(nothing));
    let knows_disk = !subject.engine.is_volatile() && subject.engine != Engine::Cassandra;
    assert_eq!(stats.disk_bytes > 0, knows_disk);
}

async fn an_open_store_is_well(subject: Subject) {
    let opened = subject.open().await;
    opened.upkeep.health().unwrap();
    commit(&*opened.records, A, [email(1)]).await;
    opened.records.commit(A, Commit::of([destroy(EMAIL, RecordId(99))])).await.unwrap_err();
    opened.upkeep.health().unwrap();
}

async fn a_closed_store_is_not_well(subject: Subject) {
    let opened = subject.open().await;
    opened.upkeep.close().await.unwrap();
    assert_eq!(opened.upkeep.health().unwrap_err().kind(), ErrorKind::Unavailable);
}

async fn a_sound_store_passes_its_check(subject: Subject) {
    let opened = subject.open().await;
    assert_sound(&*opened.upkeep).await;
    make_a_history(&opened).await;
    let report = opened.upkeep.check(&no_progress).await.unwrap();
    assert_eq!((report.records, report.findings, report.wrong), (10, vec![], 0));
    subject.set_seconds(100);
    opened.upkeep.clean(seconds(50), 1).await.unwrap();
    opened.feed.save("search", &Checkpoint::default()).await.unwrap();
    assert_sound(&*opened.upkeep).await;
}

async fn a_check_changes_nothing(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&opened).await;
    let before = (dump(&*opened.upkeep, 100).await, opened.upkeep.stats().await.unwrap().kinds);
    assert_sound(&*opened.upkeep).await;
    assert_eq!((dump(&*opened.upkeep, 100).await, opened.upkeep.stats().await.unwrap().kinds), before);
    assert_eq!(revision(&*opened.records, A).await, Revision(4));
}

async fn a_check_tells_how_far_it_is(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&opened).await;
    let (calls, wrong) = (AtomicU64::new(0), AtomicU64::new(0));
    let progress = |done: u64, all: u64| {
        calls.fetch_add(1, Ordering::SeqCst);
        wrong.fetch_add(u64::from(done > all), Ordering::SeqCst);
    };
    opened.upkeep.check(&progress).await.unwrap();
    assert!(calls.into_inner() > 0);
    assert_eq!(wrong.into_inner(), 0, "no more is done than there is");
}

/// Emails, each destroyed by a commit of its own, a second apart and starting at second 10: revisions 2, 3, ...
async fn destroyed_one_by_one(
    subject: &Subject,
    opened: &Opened,
    account: AccountId,
    count: u64,
) -> Vec<RecordId> {
    let ids = commit(&*opened.records, account, (0..count).map(email)).await.created;
    for (n, id) in ids.iter().enumerate() {
        subject.set_seconds(10 + n as i64);
        commit(&*opened.records, account, [destroy(EMAIL, *id)]).await;
    }
    ids
}

async fn tombstones(opened: &Opened) -> u64 {
    let stats = opened.upkeep.stats().await.unwrap();
    stats.kinds.iter().map(|kind| kind.tombstones).sum()
}

/// The first revision since which changes of an account can be calculated.
async fn floor(opened: &Opened, account: AccountId) -> u64 {
    let last = revision(&*opened.records, account).await;
    for since in 0..last.0 {
        let asked = ChangesSince { kind: None, since: Revision(since), limit: 10 };
        match opened.records.changes(account, &asked).await {
            Ok(_) => return since,
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
        }
    }
    last.0
}

async fn what_was_destroyed_before_a_time_is_forgotten(subject: Subject) {
    let opened = subject.open().await;
    destroyed_one_by_one(&subject, &opened, A, 5).await;
    let cleaned = opened.upkeep.clean(seconds(13), 1_000).await.unwrap();
    assert_eq!(cleaned, Cleaned { tombstones: 3, accounts: 1, has_more: false });
    assert_eq!(tombstones(&opened).await, 2);
    assert_eq!(floor(&opened, A).await, 4);
    assert_eq!(
        opened.upkeep.clean(seconds(13), 1_000).await.unwrap(),
        Cleaned::default(),
        "nothing is left to forget"
    );
    assert_sound(&*opened.upkeep).await;
}

async fn what_was_destroyed_later_is_kept(subject: Subject) {
    let opened = subject.open().await;
    let ids = destroyed_one_by_one(&subject, &opened, A, 5).await;
    opened.upkeep.clean(seconds(13), 1_000).await.unwrap();
    let asked = ChangesSince { kind: None, since: Revision(4), limit: 10 };
    let found: Vec<RecordId> =
        opened.records.changes(A, &asked).await.unwrap().destroyed.iter().map(|gone| gone.id).collect();
    assert_eq!(found, ids[3..]);
    for before in [Timestamp(0), Timestamp::MIN, seconds(13)] {
        assert_eq!(opened.upkeep.clean(before, 1_000).await.unwrap(), Cleaned::default());
    }
    assert_eq!(opened.upkeep.clean(Timestamp::MAX, 1_000).await.unwrap().tombstones, 2);
}

async fn forgetting_stops_at_its_limit(subject: Subject) {
    let opened = subject.open().await;
    destroyed_one_by_one(&subject, &opened, A, 5).await;
    destroyed_one_by_one(&subject, &opened, B, 2).await;
    let mut all = 0;
    for (limit, has_more) in [(0, true), (2, true), (1, true), (3, true), (1, false), (1, false)] {
        let cleaned = opened.upkeep.clean(seconds(100), limit).await.unwrap();
        all += cleaned.tombstones;
        assert!(cleaned.tombstones <= limit as u64);
        assert_eq!(cleaned.has_more, has_more, "limit {limit}, {all} in all");
        assert_eq!(tombstones(&opened).await, 7 - all);
    }
    assert_eq!(all, 7);
    assert_sound(&*opened.upkeep).await;
}

async fn forgetting_raises_the_floor_to_the_last_revision_forgotten(subject: Subject) {
    let opened = subject.open().await;
    destroyed_one_by_one(&subject, &opened, A, 5).await;
    commit(&*opened.records, A, [email(1)]).await;
    assert_eq!(floor(&opened, A).await, 0);
    for expected in 2..=6 {
        opened.upkeep.clean(seconds(100), 1).await.unwrap();
        assert_eq!(floor(&opened, A).await, expected);
    }
    opened.upkeep.clean(seconds(100), 1).await.unwrap();
    assert_eq!(floor(&opened, A).await, 6, "a commit that destroyed nothing is not forgotten");
}

async fn forgetting_counts_the_accounts_whose_floor_rose(subject: Subject) {
    let opened = subject.open().await;
    for account in [A, B, LAST] {
        destroyed_one_by_one(&subject, &opened, account, 3).await;
    }
    assert_eq!(opened.upkeep.clean(seconds(11), 1_000).await.unwrap().accounts, 3);
    assert_eq!(opened.upkeep.clean(seconds(12), 1).await.unwrap().accounts, 1);
    let cleaned = opened.upkeep.clean(seconds(100), 1_000).await.unwrap();
    assert_eq!(cleaned, Cleaned { tombstones: 5, accounts: 3, has_more: false });
}

async fn forgetting_takes_no_revision_and_no_position(subject: Subject) {
    let opened = subject.open().await;
    destroyed_one_by_one(&subject, &opened, A, 3).await;
    let before = (opened.records.states(A).await.unwrap(), last_position(&*opened.feed).await);
    opened.upkeep.clean(seconds(100), 1_000).await.unwrap();
    assert_eq!((opened.records.states(A).await.unwrap(), last_position(&*opened.feed).await), before);
    assert_eq!(commit(&*opened.records, A, [email(1)]).await.revision, Revision(5));
}

async fn others_go_on_while_much_is_forgotten(subject: Subject) {
    let opened = subject.open().await;
    for account in [A, B] {
        let ids = commit(&*opened.records, account, (0..3_000).map(|_| thread())).await.created;
        commit(&*opened.records, account, ids.into_iter().map(|id| destroy(THREAD, id))).await;
    }
    subject.set_seconds(100);
    let committer = {
        let records = opened.records.clone();
        tokio::spawn(async move {
            for n in 0..100 {
                let ids = commit(&*records, A, [email(n), thread()]).await.created;
                commit(&*records, A, [destroy(THREAD, ids[1])]).await;
            }
        })
    };
    let mut cleaned = 0;
    for n in 0.. {
        assert!(n < 50, "the clean-up doesn't end");
        let step = opened.upkeep.clean(seconds(50), 700).await.unwrap();
        assert!(step.tombstones <= 700);
        cleaned += step.tombstones;
        if !step.has_more {
            break;
        }
    }
    assert_eq!(cleaned, 6_000, "what was destroyed since is kept");
    committer.await.unwrap();
    assert_eq!(tombstones(&opened).await, 100);
    let mut follower = Mirror::default();
    follower.follow(&*opened.records, &*opened.feed, A, 50).await;
    follower.assert_equals(&*opened.upkeep, A).await;
    assert_sound(&*opened.upkeep).await;
}

async fn a_dump_is_by_account_kind_and_id(subject: Subject) {
    let opened = subject.open().await;
    let records = &*opened.records;
    for account in [LAST, B, A, AccountId(256), AccountId(0)] {
        commit(records, account, [thread(), email(1), mailbox("Inbox"), email(2)]).await;
    }
    let all = dump(&*opened.upkeep, DUMP_RECORDS_MAX).await;
    assert_eq!(all.len(), 20);
    assert!(all.is_sorted_by(|(a, _), (b, _)| a < b));
    for (place, record) in all {
        assert_eq!(get_one(records, place.account, place.kind, place.id).await, Some(record));
    }
}

async fn pages_of_a_dump_join(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&opened).await;
    let all = dump(&*opened.upkeep, DUMP_RECORDS_MAX).await;
    assert_eq!(all.len(), 10);
    for limit in 1..12 {
        assert_eq!(dump(&*opened.upkeep, limit).await, all, "by {limit}");
        let page = opened.upkeep.dump(None, limit).await.unwrap();
        assert_eq!(page.len(), limit.min(10), "a page is full while there is more");
    }
}

async fn a_dump_goes_on_behind_a_place_that_is_gone(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&opened).await;
    let all = dump(&*opened.upkeep, DUMP_RECORDS_MAX).await;
    let between = [
        RecordKey { account: AccountId(0), kind: EMAIL, id: RecordId(0) },
        RecordKey { account: A, kind: EMAIL, id: RecordId(3) },
        RecordKey { account: A, kind: EMAIL, id: RecordId(u64::MAX) },
        RecordKey { account: A, kind: THREAD, id: RecordId(0) },
        RecordKey { account: LAST, kind: THREAD, id: RecordId(1) },
    ];
    for after in all.iter().map(|(place, _)| *place).chain(between) {
        let page = opened.upkeep.dump(Some(after), DUMP_RECORDS_MAX).await.unwrap();
        let expected = all.iter().filter(|(place, _)| *place > after).count();
        assert_eq!(page.len(), expected, "{after:?}");
    }
}

async fn limits_of_a_dump_out_of_bounds_are_refused(subject: Subject) {
    let upkeep = subject.open().await.upkeep;
    for limit in [0, DUMP_RECORDS_MAX + 1] {
        assert_eq!(upkeep.dump(None, limit).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

fn with_blobs(blobs: &[u64]) -> Change {
    let blobs = blobs.iter().map(|n| blob(*n)).collect();
    Change::Create { kind: THREAD, body: Body { bytes: "x".into(), blobs }, properties: none() }
}

/// All blobs that are returned, page after page; `between` runs between two pages.
async fn references(upkeep: &dyn Upkeep, mut between: impl AsyncFnMut()) -> Vec<BlobId> {
    let (mut all, mut after) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let page = upkeep.referenced(after).await.unwrap();
        all.extend(page.blobs);
        match page.next {
            Some(next) => {
                assert!(after != Some(next), "a page leads on");
                after = Some(next);
            }
            None => return all,
        }
        between().await;
    }
    panic!("the references don't end");
}

async fn sorted_references(upkeep: &dyn Upkeep) -> Vec<BlobId> {
    let mut all = references(upkeep, async || ()).await;
    all.sort();
    all
}

async fn references_are_returned_with_repeats(subject: Subject) {
    let opened = subject.open().await;
    assert_eq!(sorted_references(&*opened.upkeep).await, []);
    commit(&*opened.records, A, [with_blobs(&[1, 2]), thread(), with_blobs(&[2])]).await;
    commit(&*opened.records, B, [with_blobs(&[3]), email(1)]).await;
    assert_eq!(sorted_references(&*opened.upkeep).await, [1, 2, 2, 3].map(blob));
}

async fn references_that_are_gone_are_not_returned(subject: Subject) {
    let opened = subject.open().await;
    let ids =
        commit(&*opened.records, A, [with_blobs(&[1]), with_blobs(&[2]), with_blobs(&[3])]).await.created;
    let body = Some(Body { bytes: "y".into(), blobs: vec![blob(4)] });
    let update = Change::Update { kind: THREAD, id: ids[1], body, properties: None };
    commit(&*opened.records, A, [destroy(THREAD, ids[0]), update]).await;
    assert_eq!(sorted_references(&*opened.upkeep).await, [3, 4].map(blob));
}

async fn references_that_stay_while_others_come_and_go_are_returned(subject: Subject) {
    let opened = subject.open().await;
    let records = &*opened.records;
    let many = |from: u64| (0..500).map(move |n| with_blobs(&[from + 2 * n, from + 2 * n + 1]));
    let ids = commit(records, A, many(0).chain(many(10_000))).await.created;
    let staying: BTreeSet<BlobId> = (0..1_000).chain(10_000..11_000).map(blob).collect();
    let mut n = 0;
    // A new body with the same references may be returned at another position than the old one.
    let found = references(&*opened.upkeep, async || {
        for _ in 0..20 {
            n = (n + 7) % 500;
            let blobs = vec![blob(2 * n as u64), blob(2 * n as u64 + 1)];
            let body = Some(Body { bytes: format!("again {n}").into(), blobs });
            let update = Change::Update { kind: THREAD, id: ids[n], body, properties: None };
            let gone = create_one(records, A, with_blobs(&[99_999])).await;
            commit(records, A, [update, destroy(THREAD, gone)]).await;
        }
    })
    .await;
    let found: BTreeSet<BlobId> = found.into_iter().collect();
    assert!(staying.is_subset(&found));
}

/// Even if the reference to it moves from record to record ahead of the pages: in one commit, and in two.
async fn a_blob_that_is_taken_over_from_record_to_record_is_returned(subject: Subject) {
    let opened = subject.open().await;
    let records = &*opened.records;
    for is_one_commit in [true, false] {
        let mut carrier = create_one(records, A, with_blobs(&[77_777])).await;
        commit(records, A, (0..3_000).map(|n| with_blobs(&[2 * n, 2 * n + 1]))).await;
        commit(records, B, (0..3_000).map(|n| with_blobs(&[2 * n, 2 * n + 1]))).await;
        let mut pages = 1;
        let found = references(&*opened.upkeep, async || {
            pages += 1;
            let (new, old) = (with_blobs(&[77_777]), destroy(THREAD, carrier));
            carrier = if is_one_commit {
                commit(records, A, [new, old]).await.created[0]
            } else {
                let new = create_one(records, A, new).await;
                commit(records, A, [old]).await;
                new
            };
        })
        .await;
        assert!(pages > 2, "{pages} pages");
        assert!(found.contains(&blob(77_777)));
        commit(records, A, [destroy(THREAD, carrier)]).await;
    }
}

async fn a_store_keeps_its_identity_and_another_has_another(subject: Subject) {
    let opened = subject.open().await;
    let identity = opened.upkeep.identity();
    assert_eq!(identity, subject.config.identity, "it is given to what is made");
    let other = open(Config { identity: Identity::random(), ..subject.other() }).await.unwrap();
    assert_ne!(other.upkeep.identity(), identity);
    if subject.engine.is_volatile() {
        return;
    }
    let backup = subject.copy(&subject.config, &opened).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    for config in [subject.config.clone(), backup] {
        let config = Config { identity: Identity::random(), ..config };
        assert_eq!(open(config).await.unwrap().upkeep.identity(), identity);
    }
}

async fn many_references_are_returned_by_pages(subject: Subject) {
    let opened = subject.open().await;
    for n in 0..4 {
        let with = |m: u64| with_blobs(&[n * 10_000 + m, n * 10_000 + m + 5_000]);
        commit(&*opened.records, AccountId(n as u32), (0..4_000).map(with)).await;
    }
    let mut pages = 1;
    let found = references(&*opened.upkeep, async || pages += 1).await;
    assert_eq!(found.len(), 32_000);
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>().len(), 32_000);
    assert!(pages > 1, "a page has a bound");
}

async fn a_closed_store_takes_no_commits(subject: Subject) {
    let opened = subject.open().await;
    destroyed_one_by_one(&subject, &opened, A, 1).await;
    opened.upkeep.close().await.unwrap();
    let error = opened.records.commit(A, Commit::of([email(2)])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = opened.upkeep.clean(Timestamp::MAX, 10).await;
    assert!(error.is_err_and(|error| error.kind() == ErrorKind::Unavailable));
}

async fn closing_twice_is_no_error(subject: Subject) {
    let opened = subject.open().await;
    commit(&*opened.records, A, [email(1)]).await;
    opened.upkeep.close().await.unwrap();
    opened.upkeep.close().await.unwrap();
}

/// Commits until the store is closed, and returns what was acknowledged.
async fn commit_until_closed(opened: &Opened, account: AccountId) -> u64 {
    for n in 0.. {
        match opened.records.commit(account, Commit::of([email(n)])).await {
            Ok(committed) => assert_eq!(committed.revision, Revision(n + 1)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                return n;
            }
        }
        tokio::task::yield_now().await; // the task ends here when the test fails
    }
    unreachable!("it ends when the store is closed")
}

/// Closes the store while several commit. Returns what was acknowledged in each account.
async fn close_under_load(opened: &Opened) -> Vec<u64> {
    let start = |account: u32| {
        let opened = opened.clone();
        tokio::spawn(async move { commit_until_closed(&opened, AccountId(account)).await })
    };
    let tasks: Vec<_> = (0..4).map(start).collect();
    while opened.upkeep.stats().await.unwrap().commits < 50 {
        tokio::task::yield_now().await;
    }
    opened.upkeep.close().await.unwrap();
    let mut acknowledged = Vec::new();
    for task in tasks {
        acknowledged.push(task.await.unwrap());
    }
    acknowledged
}

async fn closing_finishes_what_was_taken(subject: Subject) {
    let opened = subject.open().await;
    let acknowledged = close_under_load(&opened).await;
    assert!(acknowledged.iter().sum::<u64>() >= 50);
}

async fn everything_acknowledged_before_closing_survives(subject: Subject) {
    let opened = subject.open().await;
    let acknowledged = close_under_load(&opened).await;
    drop(opened);
    let opened = subject.open().await;
    for (account, revision) in acknowledged.into_iter().enumerate() {
        let account = AccountId(account as u32);
        let there = opened.records.states(account).await.unwrap().revision;
        // A commit that was in flight when the store closed may have been made or not.
        assert!(there == Revision(revision) || there == Revision(revision + 1));
        assert_eq!(all_of(&*opened.upkeep, account).await.len() as u64, there.0);
    }
    assert_sound(&*opened.upkeep).await;
}

async fn what_was_forgotten_stays_forgotten(subject: Subject) {
    let opened = subject.open().await;
    destroyed_one_by_one(&subject, &opened, A, 5).await;
    opened.upkeep.clean(seconds(13), 1_000).await.unwrap();
    let opened = subject.reopen(opened).await;
    assert_eq!((floor(&opened, A).await, tombstones(&opened).await), (4, 2));
    assert_eq!(opened.upkeep.clean(seconds(100), 1_000).await.unwrap().tombstones, 2);
}

async fn stats_survive_reopening(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&opened).await;
    let before = opened.upkeep.stats().await.unwrap();
    let opened = subject.reopen(opened).await;
    let after = opened.upkeep.stats().await.unwrap();
    assert_eq!(
        (after.accounts, &after.kinds, after.commits),
        (before.accounts, &before.kinds, before.commits)
    );
}

async fn a_store_on_disk_tells_its_size(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&opened).await;
    let EngineUrl::Lmdb(folder) = &subject.config.url else { panic!("an engine on disk has a folder") };
    let files = std::fs::read_dir(folder).unwrap();
    let on_disk: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    let reported = opened.upkeep.stats().await.unwrap().disk_bytes;
    assert!(reported > 0 && reported <= on_disk, "reported {reported}, found {on_disk}");
}

/// Opens a backup of an open store.
async fn open_backup(subject: &Subject, opened: &Opened) -> Opened {
    open(subject.copy(&subject.config, opened).await).await.unwrap()
}

fn empty_folder(subject: &Subject, name: &str) -> PathBuf {
    let folder = subject.beside(name);
    std::fs::create_dir(&folder).unwrap();
    folder
}

async fn a_backup_has_everything(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&opened).await;
    opened.feed.save("search", &Checkpoint::default()).await.unwrap();
    let copy = open_backup(&subject, &opened).await;
    assert_eq!(dump(&*copy.upkeep, 100).await, dump(&*opened.upkeep, 100).await);
    for account in [A, B, LAST] {
        let states = opened.records.states(account).await.unwrap();
        let restored = Revision(states.revision.0 + RESTORE_JUMP);
        let expected = States { revision: restored, kinds: states.kinds };
        assert_eq!(copy.records.states(account).await.unwrap(), expected);
        let since = ChangesSince { kind: None, since: Revision(1), limit: 100 };
        let changes = opened.records.changes(account, &since).await.unwrap();
        let expected = Changes { revision: restored, ..changes };
        assert_eq!(copy.records.changes(account, &since).await.unwrap(), expected);
        let query = Query::new(EMAIL, BY_MAILBOX);
        assert_eq!(ids(&*copy.records, account, &query).await, ids(&*opened.records, account, &query).await);
    }
    assert_eq!(last_position(&*copy.feed).await, last_position(&*opened.feed).await);
    assert_eq!(copy.feed.followers().await.unwrap(), opened.feed.followers().await.unwrap());
    assert_sound(&*copy.upkeep).await;
    assert_sound(&*opened.upkeep).await;
}

async fn a_backup_of_an_empty_store_is_a_store(subject: Subject) {
    let opened = subject.open().await;
    let copy = open_backup(&subject, &opened).await;
    assert_eq!(dump(&*copy.upkeep, 100).await, []);
    assert_eq!(commit(&*copy.records, A, [email(1)]).await.revision, Revision(RESTORE_JUMP + 1));
}

async fn a_backup_can_be_written_to(subject: Subject) {
    let opened = subject.open().await;
    make_a_history(&opened).await;
    let place = subject.copy(&subject.config, &opened).await;
    let copy = open(place.clone()).await.unwrap();
    let before = dump(&*copy.upkeep, 100).await.len();
    let made = commit(&*copy.records, A, [email(50)]).await;
    copy.upkeep.close().await.unwrap();
    drop(copy);
    let copy = open(place).await.unwrap();
    assert_eq!(dump(&*copy.upkeep, 100).await.len(), before + 1);
    assert_eq!(copy.records.states(A).await.unwrap().revision, made.revision);
}

async fn a_backup_while_others_commit_has_what_was_acknowledged(subject: Subject) {
    let opened = subject.open().await;
    let stop = Arc::new(AtomicBool::new(false));
    let start = |account: u32| {
        let (records, stop) = (opened.records.clone(), stop.clone());
        tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::SeqCst) {
                n += 1;
                commit(&*records, AccountId(account), [email(n), thread()]).await;
                tokio::task::yield_now().await; // the task ends here when the test fails
            }
            n
        })
    };
    let tasks: Vec<_> = (0..3).map(start).collect();
    for _ in 0..5 {
        let before = last_position(&*opened.feed).await;
        let mut acknowledged = Vec::new();
        for account in 0..3 {
            acknowledged.push(revision(&*opened.records, AccountId(account)).await);
        }
        let copy = open_backup(&subject, &opened).await;
        assert!(last_position(&*copy.feed).await >= before);
        for (account, revision_before) in acknowledged.into_iter().enumerate() {
            let account = AccountId(account as u32);
            let there = Revision(revision(&*copy.records, account).await.0 - RESTORE_JUMP);
            assert!(there >= revision_before);
            let all = all_of(&*copy.upkeep, account).await;
            assert_eq!(all.len() as u64, 2 * there.0, "each commit is whole");
        }
        assert_sound(&*copy.upkeep).await;
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
}

async fn a_backup_into_a_folder_with_something_in_it_is_refused(subject: Subject) {
    let opened = subject.open().await;
    let folder = empty_folder(&subject, "backup");
    std::fs::write(folder.join("letter"), "dear").unwrap();
    assert_eq!(opened.upkeep.backup(&folder).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    std::fs::remove_file(folder.join("letter")).unwrap();
    opened.upkeep.backup(&folder).await.unwrap();
    assert_eq!(
        opened.upkeep.backup(&folder).await.unwrap_err().kind(),
        ErrorKind::Conflict,
        "a backup is there"
    );
}

async fn a_backup_into_a_folder_that_is_not_there_is_refused(subject: Subject) {
    let opened = subject.open().await;
    assert!(opened.upkeep.backup(&subject.beside("nowhere")).await.is_err());
    assert!(!subject.beside("nowhere").exists());
}

async fn an_engine_without_files_refuses_a_backup(subject: Subject) {
    let opened = subject.open().await;
    let folder = empty_folder(&subject, "backup");
    assert_eq!(opened.upkeep.backup(&folder).await.unwrap_err().kind(), ErrorKind::Invalid);
}
