//! Backups of a spool.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use restante_archive::{Config, Message, Query, SpoolConfig, backup::SPOOL, open_over};
use restante_core::{ErrorKind, Key};

use crate::{
    ROOM, Subject,
    common::{sorted, walk},
    config, numbered,
    switch::{Mode, Switch, wait_until},
};

/// The model stores nothing on disk, like a database on another machine: the spool is copied all the same.
async fn back_up(subject: &Subject, folder: &Path) {
    let error = subject.opened.upkeep.backup(folder).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// The messages that the spool of a copy drains to an engine.
async fn drained(copy: &Path) -> Arc<Switch> {
    let engine = Switch::new(Mode::On).await;
    let folder = tempfile::tempdir().unwrap();
    let spool = SpoolConfig { folder: copy.join(SPOOL), ..SpoolConfig::new("") };
    let config = Config { spool: Some(spool), ..config(folder.path(), ROOM) };
    let opened = open_over(engine.opened(), None, &config).await.unwrap();
    wait_until("the copy is drained", async || opened.upkeep.health().spooled_messages == 0).await;
    opened.upkeep.close().await.unwrap();
    engine
}

fn keys(messages: &[Message]) -> BTreeSet<Key> {
    messages.iter().map(Message::key).collect()
}

async fn stored(engine: &Switch) -> BTreeSet<Key> {
    walk(engine.archive(), Query::default()).await.concat().into_iter().map(|row| row.key).collect()
}

#[tokio::test]
async fn what_waits_is_copied_though_the_engine_is_not() {
    let copy = tempfile::tempdir().unwrap();
    let subject = Subject::new(Mode::Off).await;
    let messages = numbered(0..30);
    subject.spool(&messages[..10]).await;
    let subject = subject.crash().await; // earlier messages are in another generation
    subject.spool(&messages[10..20]).await;
    back_up(&subject, copy.path()).await;
    // The original continues.
    subject.spool(&messages[20..]).await;
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    subject.assert_stored(&messages).await;
    subject.wait_until_removed().await;

    let rows = walk(drained(copy.path()).await.archive(), Query::default()).await.concat();
    assert_eq!(rows, sorted(&messages[..20]));
}

#[tokio::test]
async fn an_empty_spool_is_copied_as_one() {
    let copy = tempfile::tempdir().unwrap();
    let subject = Subject::new(Mode::On).await;
    subject.append(&numbered(0..3)).await.unwrap();
    back_up(&subject, copy.path()).await;
    assert_eq!(drained(copy.path()).await.count().await, 0);
    let again = subject.opened.upkeep.backup(copy.path()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict, "the folder has a copy already");
}

#[tokio::test]
async fn what_the_engine_refused_is_copied() {
    let copy = tempfile::tempdir().unwrap();
    let subject = Subject::new(Mode::Off).await;
    let messages = numbered(0..3);
    subject.spool(&messages).await;
    subject.engine.set(Mode::Refuses(messages[1].key()));
    subject.wait_until_drained().await;
    back_up(&subject, copy.path()).await;
    let url = format!("log:{}", copy.path().join(SPOOL).join("refused").display());
    let refused = restante_archive::open(Config::new(url.parse().unwrap())).await.unwrap();
    assert_eq!(walk(&*refused.archive, Query::default()).await.concat(), sorted(&messages[1..2]));
}

/// Whatever the engine does meanwhile: what was acknowledged is in the spool's copy, or was in the engine when the copy was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_made_while_the_spool_is_drained_loses_nothing() {
    let subject = Subject::new(Mode::On).await;
    let (is_over, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let (archive, over, acks) = (subject.opened.archive.clone(), is_over.clone(), acknowledged.clone());
    let appender = tokio::spawn(async move {
        let mut number = 0;
        while !over.load(Ordering::Relaxed) {
            archive.append(numbered(number..number + 3)).await.unwrap();
            acks.lock().unwrap().extend(numbered(number..number + 3));
            number += 3;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    for round in 0..20 {
        let mode = [Mode::Off, Mode::LosesAnswers, Mode::OnFor(3), Mode::On][round % 4];
        subject.engine.set(mode);
        tokio::time::sleep(Duration::from_millis(5)).await;
        let before = keys(&acknowledged.lock().unwrap());
        let copy = tempfile::tempdir().unwrap();
        back_up(&subject, copy.path()).await;
        let mut found = stored(&subject.engine).await; // as the engine's own copy, which is made last
        found.extend(stored(&*drained(copy.path()).await).await);
        let lost: Vec<&Key> = before.difference(&found).collect();
        assert!(lost.is_empty(), "round {round} in {mode:?}: {lost:?}");
        assert!(fs::read_dir(copy.path()).unwrap().count() == 1, "the engine has written nothing");
    }
    is_over.store(true, Ordering::Relaxed);
    appender.await.unwrap();
    subject.engine.set(Mode::On);
    subject.wait_until_drained().await;
    let all = acknowledged.lock().unwrap().clone();
    subject.assert_stored(&all).await;
}
