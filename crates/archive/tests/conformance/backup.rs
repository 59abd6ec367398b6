//! The promises of `Upkeep::backup`. An engine that stores nothing on this machine must return `Invalid` in every test.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use restante_archive::{Archive, Comparison, Message, Opened, Query, Scope, TimeRange};
use restante_core::{ErrorKind, Timestamp};

use crate::{
    Subject,
    common::{message, sorted, walk},
};

crate::promises! {
    any: [
        a_copy_has_all_that_was_acknowledged,
        a_copy_is_an_archive_of_its_own,
        a_copy_taken_while_appends_go_on_is_of_one_moment,
        a_copy_taken_during_prunes_has_all_that_is_kept,
        a_copy_of_an_empty_archive_is_empty,
        a_copy_needs_a_folder_with_nothing_in_it,
        a_copy_whose_folder_is_removed_ends_and_takes_nothing_with_it,
        a_closed_archive_is_not_copied,
    ],
    disk: []
}

const SECOND: i64 = 1_000_000_000;

fn every_second(numbers: std::ops::Range<i64>) -> Vec<Message> {
    numbers.map(|n| message(n * SECOND, n as u8, &format!("topic {}", n % 7))).collect()
}

/// Copies an archive and opens the copy; `None` when the engine reports that it has nothing to copy.
async fn backed_up(subject: &Subject, opened: &Opened, folder: &Path) -> Option<Opened> {
    match opened.upkeep.backup(folder).await {
        Ok(()) => {
            assert!(subject.engine.has_files(), "{} has no files", subject.engine.name());
            Some(subject.open_copy(folder).await)
        }
        Err(error) => {
            assert!(!subject.engine.has_files(), "{error}");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "nothing was written");
            None
        }
    }
}

async fn assert_equal(a: &dyn Archive, b: &dyn Archive) {
    let mut comparison = Comparison::new(a, b, Scope { range: TimeRange::default(), bodies: true, seed: 11 });
    while comparison.step().await.unwrap() {}
    assert_eq!(comparison.differing(), []);
}

async fn a_copy_has_all_that_was_acknowledged(subject: Subject) {
    let folder = tempfile::tempdir().unwrap();
    let opened = subject.open().await;
    // Before and after a restart, so that an engine has parts of both kinds.
    opened.archive.append(every_second(0..20)).await.unwrap();
    let opened = subject.reopen(opened).await;
    opened.archive.append(every_second(20..40)).await.unwrap();
    let Some(copy) = backed_up(&subject, &opened, folder.path()).await else { return };
    assert_equal(&*opened.archive, &*copy.archive).await;
    let (whole, copied) = (opened.upkeep.stats().await.unwrap(), copy.upkeep.stats().await.unwrap());
    assert_eq!((whole.messages, whole.topics, whole.body_bytes), (40, 7, copied.body_bytes));
    assert_eq!((copied.messages, copied.topics), (40, 7));
    assert!(copy.upkeep.check(&|_, _| {}).await.unwrap().is_sound());
}

/// Changes to one do not affect the other, though they may share files.
async fn a_copy_is_an_archive_of_its_own(subject: Subject) {
    let folder = tempfile::tempdir().unwrap();
    let opened = subject.open().await;
    opened.archive.append(every_second(0..30)).await.unwrap();
    let Some(copy) = backed_up(&subject, &opened, folder.path()).await else { return };
    copy.archive.append(every_second(100..103)).await.unwrap();
    copy.upkeep.prune(&"capacity:5".parse().unwrap(), Timestamp(0)).await.unwrap();
    copy.upkeep.close().await.unwrap();
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&every_second(0..30)));
    opened.archive.append(every_second(30..40)).await.unwrap();
    opened.upkeep.rebuild(&|_, _| {}).await.unwrap();
    let opened = subject.reopen(opened).await;
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&every_second(0..40)));
    assert!(opened.upkeep.check(&|_, _| {}).await.unwrap().is_sound());
}

/// Messages of a batch, in several windows.
const BATCH: i64 = 3;
const APPENDERS: i64 = 4;

fn batch(appender: i64, number: i64) -> Vec<Message> {
    let message = |place| {
        let second = (number * BATCH + place) * APPENDERS + appender;
        message(second * SECOND, appender as u8, &format!("{appender} {number}"))
    };
    (0..BATCH).map(message).collect()
}

async fn a_copy_taken_while_appends_go_on_is_of_one_moment(subject: Subject) {
    let opened = subject.open().await;
    let (is_over, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut appenders = Vec::new();
    for appender in 0..APPENDERS {
        let (archive, is_over, acknowledged) =
            (opened.archive.clone(), is_over.clone(), acknowledged.clone());
        appenders.push(tokio::spawn(async move {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                archive.append(batch(appender, number)).await.unwrap();
                acknowledged.fetch_add(1, Ordering::SeqCst);
                number += 1;
            }
        }));
    }
    for round in 1..=4 {
        while acknowledged.load(Ordering::SeqCst) < round * 20 {
            tokio::task::yield_now().await;
        }
        let folder = tempfile::tempdir().unwrap();
        let before = acknowledged.load(Ordering::SeqCst);
        let Some(copy) = backed_up(&subject, &opened, folder.path()).await else { break };
        let has = batches_of(&copy).await;
        let in_all: i64 = has.values().sum();
        assert!(in_all >= before as i64, "{before} batches were acknowledged, and {in_all} are there");
        assert!(copy.upkeep.check(&|_, _| {}).await.unwrap().is_sound());
    }
    is_over.store(true, Ordering::Relaxed);
    for appender in appenders {
        appender.await.unwrap();
    }
}

/// How many batches there are of each appender: each with all of its messages, and none without the one before it.
async fn batches_of(copy: &Opened) -> BTreeMap<i64, i64> {
    let mut messages: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    for row in walk(&*copy.archive, Query::default()).await.concat() {
        let (appender, number) = row.topic.split_once(' ').unwrap();
        *messages.entry((appender.parse().unwrap(), number.parse().unwrap())).or_default() += 1;
    }
    let mut batches = BTreeMap::new();
    for ((appender, number), count) in messages {
        assert_eq!(count, BATCH, "batch {number} of appender {appender} is whole");
        let next = batches.entry(appender).or_insert(0);
        assert_eq!(number, *next, "appender {appender} had waited for the one before");
        *next += 1;
    }
    batches
}

async fn a_copy_taken_during_prunes_has_all_that_is_kept(subject: Subject) {
    const KEPT: usize = 20;
    let opened = subject.open().await;
    let is_over = Arc::new(AtomicBool::new(false));
    let (upkeep, over) = (opened.upkeep.clone(), is_over.clone());
    let pruner = tokio::spawn(async move {
        while !over.load(Ordering::Relaxed) {
            upkeep.prune(&format!("capacity:{KEPT}").parse().unwrap(), Timestamp(0)).await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    for round in 1..=5 {
        let messages = every_second((round - 1) * 40..round * 40);
        opened.archive.append(messages.clone()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let Some(copy) = backed_up(&subject, &opened, folder.path()).await else { break };
        let rows = walk(&*copy.archive, Query::default()).await.concat();
        assert!(rows.len() >= KEPT, "round {round}: {} messages", rows.len());
        assert_eq!(rows[rows.len() - KEPT..], sorted(&messages)[40 - KEPT..], "round {round}");
        assert!(copy.upkeep.check(&|_, _| {}).await.unwrap().is_sound());
    }
    is_over.store(true, Ordering::Relaxed);
    pruner.await.unwrap();
}

async fn a_copy_of_an_empty_archive_is_empty(subject: Subject) {
    let folder = tempfile::tempdir().unwrap();
    let opened = subject.open().await;
    let Some(copy) = backed_up(&subject, &opened, folder.path()).await else { return };
    assert!(copy.archive.query(&Query::default()).await.unwrap().is_empty());
    copy.archive.append(every_second(0..3)).await.unwrap();
}

async fn a_copy_needs_a_folder_with_nothing_in_it(subject: Subject) {
    let folder = tempfile::tempdir().unwrap();
    let opened = subject.open().await;
    opened.archive.append(every_second(0..3)).await.unwrap();
    if !subject.engine.has_files() {
        return;
    }
    fs::write(folder.path().join("mine"), "mine").unwrap();
    let error = opened.upkeep.backup(folder.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let error = opened.upkeep.backup(&folder.path().join("missing")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    opened.archive.append(every_second(3..6)).await.unwrap();
}

/// This is how a copy that is no longer wanted is cancelled.
async fn a_copy_whose_folder_is_removed_ends_and_takes_nothing_with_it(subject: Subject) {
    let opened = subject.open().await;
    opened.archive.append(every_second(0..20)).await.unwrap();
    let opened = subject.reopen(opened).await;
    opened.archive.append(every_second(20..40)).await.unwrap();
    let before = walk(&*opened.archive, Query::default()).await;
    for waits in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let (upkeep, copy) = (opened.upkeep.clone(), folder.path().to_owned());
        let copying = tokio::spawn(async move { upkeep.backup(&copy).await });
        for _ in 0..waits {
            tokio::task::yield_now().await;
        }
        // Files created meanwhile may make the first tries fail.
        while fs::remove_dir_all(folder.path()).is_err() && folder.path().exists() {}
        let _ = copying.await.unwrap(); // it may have finished first
    }
    assert_eq!(walk(&*opened.archive, Query::default()).await, before);
    assert!(opened.upkeep.check(&|_, _| {}).await.unwrap().is_sound());
    let folder = tempfile::tempdir().unwrap();
    let Some(copy) = backed_up(&subject, &opened, folder.path()).await else { return };
    assert_equal(&*opened.archive, &*copy.archive).await;
}

async fn a_closed_archive_is_not_copied(subject: Subject) {
    let folder = tempfile::tempdir().unwrap();
    let opened = subject.open().await;
    opened.archive.append(every_second(0..3)).await.unwrap();
    opened.upkeep.close().await.unwrap();
    let kind = opened.upkeep.backup(folder.path()).await.unwrap_err().kind();
    let expected = if subject.engine.has_files() { ErrorKind::Unavailable } else { ErrorKind::Invalid };
    assert_eq!(kind, expected);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
