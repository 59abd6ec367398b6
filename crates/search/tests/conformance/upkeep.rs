//! Promises to operators.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use restante_core::ErrorKind;
use restante_search::{Filter, Query, Revision, open};
use tokio::time::sleep;

use crate::{
    Subject,
    common::{A, B, anywhere, batch, begin, checkpoint, email, found, index, page, removal},
};

crate::promises! {
    any: [
        stats_count_documents,
        clearing_removes_everything_and_ends_the_series,
        a_cleared_index_can_be_written_again,
        queries_are_answered_while_an_index_is_cleared,
        a_closed_index_answers_unavailable,
        closing_twice_is_no_error,
        an_index_in_use_is_healthy_and_passes_its_check,
        a_rebuild_ends_the_series_and_begins_from_zero,
    ],
    disk: [
        stats_know_the_disk,
        a_cleared_index_is_empty_after_reopening,
        a_check_reports_progress_to_the_end,
    ],
    files: [an_index_is_opened_once, memory_out_of_bounds_is_refused],
}

async fn stats_count_documents(subject: Subject) {
    let opened = subject.open().await;
    assert_eq!(opened.upkeep.stats().await.unwrap().documents, 0);
    index(&opened, A, [email(1, "x"), email(2, "x")]).await;
    index(&opened, B, [email(1, "x")]).await;
    let series = begin(&opened).await;
    opened.index.write(series, A, removal([1], 2)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    let stats = opened.upkeep.stats().await.unwrap();
    assert_eq!((stats.documents, stats.uncommitted), (2, 0));
}

async fn clearing_removes_everything_and_ends_the_series(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([email(1, "word")], 3)).await.unwrap();
    opened.index.save(series, checkpoint("old")).await.unwrap();
    opened.index.commit(series).await.unwrap();
    opened.upkeep.clear().await.unwrap();
    opened.index.ended(series).await;
    let error = opened.index.write(series, A, batch([], 4)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let page = page(&opened, A, Filter::And(vec![])).await;
    assert_eq!((page.hits, page.revision), (vec![], Revision(0)));
    assert_eq!(opened.index.begin().await.unwrap().checkpoint, None);
}

async fn a_cleared_index_can_be_written_again(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "word")]).await;
    for number in 2..4 {
        opened.upkeep.clear().await.unwrap();
        index(&opened, A, [email(number, "word")]).await;
        assert_eq!(found(&opened, A, anywhere("word")).await, [number]);
    }
}

/// Queries return the old contents, or nothing.
async fn queries_are_answered_while_an_index_is_cleared(subject: Subject) {
    let opened = subject.open().await;
    let query = Query::new(anywhere("word"));
    for _ in 0..10 {
        index(&opened, A, [email(1, "word")]).await;
        let mut clearing = std::pin::pin!(opened.upkeep.clear());
        loop {
            tokio::select! {
                biased;
                cleared = &mut clearing => break cleared.unwrap(),
                page = opened.search.query(A, &query) => {
                    let hits: Vec<u64> = page.unwrap().hits.iter().map(|hit| hit.id.0).collect();
                    assert!(hits.is_empty() || hits == [1], "{hits:?}");
                }
            }
        }
    }
}

async fn a_closed_index_answers_unavailable(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    opened.upkeep.close().await.unwrap();
    opened.index.ended(series).await;
    let outcomes = [
        opened.search.query(A, &Query::new(anywhere("x"))).await.map(drop),
        opened.index.begin().await.map(drop),
        opened.index.write(series, A, batch([], 1)).await,
        opened.index.commit(series).await,
        opened.upkeep.clear().await,
        opened.upkeep.stats().await.map(drop),
        opened.upkeep.check(&|_, _| {}).await.map(drop),
        opened.upkeep.health(),
    ];
    for outcome in outcomes {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

async fn closing_twice_is_no_error(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "x")]).await;
    opened.upkeep.close().await.unwrap();
    opened.upkeep.close().await.unwrap();
}

async fn an_index_in_use_is_healthy_and_passes_its_check(subject: Subject) {
    let opened = subject.open().await;
    opened.upkeep.health().unwrap();
    index(&opened, A, [email(1, "x")]).await;
    opened.upkeep.health().unwrap();
    assert!(opened.upkeep.check(&|_, _| {}).await.unwrap().damaged.is_empty());
}

async fn a_rebuild_ends_the_series_and_begins_from_zero(subject: Subject) {
    let opened = open(subject.config_with(10)).await.unwrap();
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([email(1, "word"), email(2, "word")], 3)).await.unwrap();
    opened.index.save(series, checkpoint("old")).await.unwrap();
    opened.index.commit(series).await.unwrap();
    opened.upkeep.rebuild().await.unwrap();
    opened.index.ended(series).await;
    let error = opened.index.write(series, A, batch([], 4)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let begun = opened.index.begin().await.unwrap();
    assert_eq!(begun.checkpoint, None);
    assert_eq!(opened.index.revisions(begun.series, &[A]).await.unwrap(), [Revision(0)]);
    opened.index.write(begun.series, A, batch([email(2, "word")], 3)).await.unwrap();
    opened.index.save(begun.series, checkpoint("new")).await.unwrap();
    opened.index.commit(begun.series).await.unwrap();
    while found(&opened, A, anywhere("word")).await != [2] {
        sleep(Duration::from_millis(10)).await;
    }
    if !subject.engine.is_volatile() {
        let opened = subject.reopen(opened).await;
        assert_eq!(opened.index.begin().await.unwrap().checkpoint, Some(checkpoint("new")));
    }
}

async fn stats_know_the_disk(subject: Subject) {
    let opened = subject.open().await;
    let empty = opened.upkeep.stats().await.unwrap();
    index(&opened, A, (1..500).map(|n| email(n, &format!("word{n} other{}", n * 7)))).await;
    loop {
        let stats = opened.upkeep.stats().await.unwrap();
        if stats.disk_bytes > empty.disk_bytes + 4_096 && stats.segments > 0 {
            return;
        }
        // A server updates the size of its files only now and then.
        assert!(subject.engine.has_server(), "{stats:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn a_cleared_index_is_empty_after_reopening(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "word")]).await;
    opened.upkeep.clear().await.unwrap();
    let opened = subject.reopen(opened).await;
    assert_eq!(page(&opened, A, anywhere("word")).await, Default::default());
}

async fn an_index_is_opened_once(subject: Subject) {
    let opened = subject.open().await;
    let error = open(subject.config.clone()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    subject.reopen(opened).await;
}

async fn memory_out_of_bounds_is_refused(subject: Subject) {
    let mut config = subject.config.clone();
    config.tantivy.memory_bytes = 1_000;
    assert_eq!(open(config).await.err().unwrap().kind(), ErrorKind::Invalid);
}

async fn a_check_reports_progress_to_the_end(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "x")]).await;
    let (last, total) = (AtomicU64::new(0), AtomicU64::new(0));
    let progress = |done, all| {
        last.store(done, Ordering::Relaxed);
        total.store(all, Ordering::Relaxed);
    };
    let report = opened.upkeep.check(&progress).await.unwrap();
    assert!(report.bytes > 0);
    assert_eq!((last.into_inner(), total.into_inner()), (report.bytes, report.bytes));
}
