//! Promises about an index on a server: when it is missing, foreign or old, and about several processes.

use std::time::Duration;

use restante_core::ErrorKind;
use restante_search::{Filter, Opened, Query, Revision, open};
use serde_json::json;
use tokio::time::sleep;

use crate::{
    Subject,
    common::{
        A, B, anywhere, batch, begin, checkpoint, email, found, index, page, removal,
        server::{behind, change_alias, indexes, must},
    },
};

crate::promises! {
    any: [],
    server: [
        an_index_that_is_gone_begins_from_zero,
        an_index_that_is_removed_while_it_is_written_begins_from_zero,
        a_query_that_finds_no_index_ends_the_series,
        an_index_of_another_version_is_replaced,
        a_foreign_index_behind_the_alias_is_left_alone,
        an_index_that_has_the_name_of_the_alias_is_refused,
        of_two_indexes_one_is_kept,
        a_writer_that_another_process_replaced_can_not_write,
        a_commit_that_was_broken_off_leaves_no_revision_that_is_not_complete,
        queries_are_answered_from_the_old_index_while_another_is_built,
        an_index_that_is_built_goes_on_after_a_restart,
        clearing_removes_an_index_that_is_built_as_well,
        an_erased_account_of_many_emails_is_gone,
    ]
}

async fn written(subject: &Subject) -> Opened {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([email(1, "word"), email(2, "word")], 5)).await.unwrap();
    opened.index.save(series, checkpoint("saved")).await.unwrap();
    opened.index.commit(series).await.unwrap();
    opened
}

/// Whether an index is empty, has no checkpoint, and works.
async fn begins_from_zero(opened: &Opened) {
    let page = page(opened, A, Filter::And(vec![])).await;
    assert_eq!((page.hits, page.revision), (vec![], Revision(0)));
    let begun = opened.index.begin().await.unwrap();
    assert_eq!(begun.checkpoint, None);
    opened.index.write(begun.series, A, batch([email(1, "again")], 1)).await.unwrap();
    opened.index.commit(begun.series).await.unwrap();
    assert_eq!(found(opened, A, anywhere("again")).await, [1]);
}

fn remove_index(subject: &Subject) {
    let [live] = &behind(subject.prefix())[..] else { panic!("one index") };
    must("DELETE", &format!("/{live}"), None);
}

async fn an_index_that_is_gone_begins_from_zero(subject: Subject) {
    written(&subject).await.upkeep.close().await.unwrap();
    remove_index(&subject);
    begins_from_zero(&subject.open().await).await;
}

async fn an_index_that_is_removed_while_it_is_written_begins_from_zero(subject: Subject) {
    let opened = written(&subject).await;
    let series = begin(&opened).await;
    remove_index(&subject);
    let mut outcome = opened.index.write(series, A, batch([email(3, "word")], 6)).await;
    if outcome.is_ok() {
        outcome = opened.index.commit(series).await;
    }
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(opened.upkeep.health().unwrap_err().kind(), ErrorKind::Unavailable);
    opened.index.ended(series).await;
    assert_eq!(indexes(subject.prefix()), [""; 0], "a write makes no index");
    assert_eq!(opened.index.begin().await.unwrap().checkpoint, None);
    opened.upkeep.health().unwrap();
    begins_from_zero(&opened).await;
}

async fn a_query_that_finds_no_index_ends_the_series(subject: Subject) {
    let opened = written(&subject).await;
    let series = begin(&opened).await;
    remove_index(&subject);
    let error = opened.search.query(A, &Query::new(anywhere("word"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    opened.index.ended(series).await;
    assert_eq!(opened.index.begin().await.unwrap().checkpoint, None);
    begins_from_zero(&opened).await;
}

async fn an_index_of_another_version_is_replaced(subject: Subject) {
    written(&subject).await.upkeep.close().await.unwrap();
    let [live] = &behind(subject.prefix())[..] else { panic!("one index") };
    let mapping = json!({"_meta": {"restante": {"format": 0}}});
    must("PUT", &format!("/{live}/_mapping"), Some(&mapping));
    begins_from_zero(&subject.open().await).await;
    assert!(!indexes(subject.prefix()).contains(live));
}

async fn a_foreign_index_behind_the_alias_is_left_alone(subject: Subject) {
    let foreign = format!("{}-letters", subject.prefix());
    must("PUT", &format!("/{foreign}/_doc/1?refresh=true"), Some(&json!({"text": "Dear"})));
    change_alias("add", &foreign, subject.prefix());
    begins_from_zero(&subject.open().await).await;
    let letter = must("GET", &format!("/{foreign}/_doc/1"), None);
    assert_eq!(letter["_source"]["text"], "Dear");
    assert!(!behind(subject.prefix()).contains(&foreign));
}

async fn an_index_that_has_the_name_of_the_alias_is_refused(subject: Subject) {
    must("PUT", &format!("/{}/_doc/1", subject.prefix()), Some(&json!({"text": "Dear"})));
    let error = open(subject.config.clone()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("search.opensearch.prefix"), "{error}");
    must("GET", &format!("/{}/_doc/1", subject.prefix()), None);
}

/// Two servers that start at the same time may create one each.
async fn of_two_indexes_one_is_kept(subject: Subject) {
    let opened = written(&subject).await;
    let [live] = &behind(subject.prefix())[..] else { panic!("one index") };
    let made = must("GET", &format!("/{live}"), None)[live].clone();
    let other = format!("{}-zzz", subject.prefix());
    let body = json!({
        "mappings": made["mappings"],
        "settings": {"index": {"analysis": made["settings"]["index"]["analysis"]}},
        "aliases": {subject.prefix(): {}},
    });
    must("PUT", &format!("/{other}"), Some(&body));
    let begun = opened.index.begin().await.unwrap();
    assert_eq!(begun.checkpoint, Some(checkpoint("saved")));
    assert_eq!(behind(subject.prefix()), [live.as_str()]);
    assert!(!indexes(subject.prefix()).contains(&other));
}

async fn a_writer_that_another_process_replaced_can_not_write(subject: Subject) {
    let one = written(&subject).await;
    let series = begin(&one).await;
    let other = subject.open().await;
    let begun = other.index.begin().await.unwrap();
    assert_eq!(begun.checkpoint, Some(checkpoint("saved")));
    other.index.write(begun.series, A, removal([1], 6)).await.unwrap();
    other.index.commit(begun.series).await.unwrap();

    let mut outcome = one.index.write(series, A, batch([email(1, "word")], 5)).await;
    if outcome.is_ok() {
        outcome = one.index.commit(series).await;
    }
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Conflict);
    one.index.ended(series).await;
    for opened in [&one, &other] {
        let page = page(opened, A, anywhere("word")).await;
        assert_eq!((page.hits.len(), page.revision), (1, Revision(6)));
    }
    other.index.write(begun.series, B, batch([email(7, "word")], 1)).await.unwrap();
    other.index.commit(begun.series).await.unwrap();
    assert_eq!(found(&one, B, anywhere("word")).await, [7]);
}

/// The state after a process ended between removing documents and writing the revision.
async fn a_commit_that_was_broken_off_leaves_no_revision_that_is_not_complete(subject: Subject) {
    let opened = written(&subject).await;
    index(&opened, B, [email(1, "word")]).await;
    let [live] = &behind(subject.prefix())[..] else { panic!("one index") };
    let version = (40_i64 << 32) + 2;
    let parameters = format!("routing={}&version_type=external&version={version}", A.0);
    let state = json!({
        "account": "7", "state": 7, "number": i64::MIN, "received": i64::MAX, "revision": 5, "unfinished": true,
    });
    must("PUT", &format!("/{live}/_doc/state-7?{parameters}"), Some(&state));
    must("DELETE", &format!("/{live}/_doc/7-2?{parameters}"), None);
    let meta = format!("routing=meta&version_type=external&version={}", 40_i64 << 32);
    must("PUT", &format!("/{live}/_doc/meta?{meta}"), Some(&json!({"checkpoint": "00"})));
    let begun = opened.index.begin().await.unwrap();
    assert_eq!(opened.index.revisions(begun.series, &[A, B]).await.unwrap(), [Revision(0), Revision(1)]);
    let page_of_a = page(&opened, A, anywhere("word")).await;
    assert_eq!((page_of_a.hits.len(), page_of_a.revision), (1, Revision(0)));
    assert_eq!(page(&opened, B, anywhere("word")).await.revision, Revision(1));
    opened.index.write(begun.series, A, batch([email(1, "word"), email(2, "word")], 5)).await.unwrap();
    opened.index.commit(begun.series).await.unwrap();
    let page_of_a = page(&opened, A, anywhere("word")).await;
    assert_eq!((page_of_a.hits.len(), page_of_a.revision), (2, Revision(5)));
    let begun = opened.index.begin().await.unwrap();
    assert_eq!(opened.index.revisions(begun.series, &[A]).await.unwrap(), [Revision(5)], "the mark is gone");
}

async fn queries_are_answered_from_the_old_index_while_another_is_built(subject: Subject) {
    let opened = open(subject.config_with(10)).await.unwrap();
    index(&opened, A, [email(1, "word"), email(2, "word")]).await;
    index(&opened, B, [email(1, "word")]).await;
    let old = behind(subject.prefix());
    opened.upkeep.rebuild().await.unwrap();
    let begun = opened.index.begin().await.unwrap();
    opened.index.write(begun.series, A, batch([email(1, "word"), email(2, "new")], 1)).await.unwrap();
    opened.index.commit(begun.series).await.unwrap();
    sleep(Duration::from_millis(1_500)).await; // by now it would have been replaced
    assert_eq!(found(&opened, A, anywhere("word")).await, [1, 2]);
    assert_eq!(found(&opened, B, anywhere("word")).await, [1]);
    assert_eq!(behind(subject.prefix()), old);
    opened.index.write(begun.series, B, batch([], 1)).await.unwrap();
    opened.index.save(begun.series, checkpoint("new")).await.unwrap();
    opened.index.commit(begun.series).await.unwrap();
    while found(&opened, A, anywhere("new")).await != [2] {
        assert_eq!(found(&opened, A, Filter::And(vec![])).await, [1, 2], "the old one or the new one");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(found(&opened, B, anywhere("word")).await, [0; 0]);
    while indexes(subject.prefix()) != behind(subject.prefix()) {
        sleep(Duration::from_millis(10)).await; // until the old one is gone
    }
    opened.index.write(begun.series, B, batch([email(3, "word")], 2)).await.unwrap();
    opened.index.commit(begun.series).await.unwrap();
    assert_eq!(found(&opened, B, anywhere("word")).await, [3], "the series goes on");
}

async fn an_index_that_is_built_goes_on_after_a_restart(subject: Subject) {
    let opened = written(&subject).await;
    // As a command does it, next to the server that writes.
    let series = begin(&opened).await;
    let command = subject.open().await;
    command.upkeep.rebuild().await.unwrap();
    command.upkeep.close().await.unwrap();
    let mut outcome = opened.index.write(series, A, batch([email(3, "word")], 6)).await;
    if outcome.is_ok() {
        outcome = opened.index.commit(series).await;
    }
    if outcome.is_ok() {
        // The replacing server wrote none of the documents that this one wrote, but it wrote the checkpoint.
        opened.index.save(series, checkpoint("late")).await.ok();
        outcome = opened.index.commit(series).await;
    }
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Conflict);
    let begun = opened.index.begin().await.unwrap();
    assert_eq!(begun.checkpoint, None);
    opened.index.write(begun.series, A, batch([email(1, "word")], 1)).await.unwrap();
    opened.index.save(begun.series, checkpoint("half")).await.unwrap();
    let opened = subject.reopen(opened).await;
    assert_eq!(found(&opened, A, anywhere("word")).await[..2], [1, 2]);
    let begun = opened.index.begin().await.unwrap();
    assert_eq!(begun.checkpoint, Some(checkpoint("half")));
    assert_eq!(opened.index.revisions(begun.series, &[A]).await.unwrap(), [Revision(1)]);
}

async fn clearing_removes_an_index_that_is_built_as_well(subject: Subject) {
    let opened = written(&subject).await;
    opened.upkeep.rebuild().await.unwrap();
    opened.upkeep.rebuild().await.unwrap();
    assert_eq!(indexes(subject.prefix()).len(), 2);
    opened.upkeep.clear().await.unwrap();
    assert_eq!(indexes(subject.prefix()), behind(subject.prefix()));
    begins_from_zero(&opened).await;
}

async fn an_erased_account_of_many_emails_is_gone(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    for part in 0..2_u64 {
        let emails = (1..=3_000).map(|n| email(part * 3_000 + n, "word"));
        opened.index.write(series, A, batch(emails, part + 1)).await.unwrap();
    }
    opened.index.write(series, B, batch([email(1, "word")], 1)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    opened.index.erase(series, A).await.unwrap();
    opened.index.commit(series).await.unwrap();
    let page_of_a = page(&opened, A, Filter::And(vec![])).await;
    assert_eq!((page_of_a.hits, page_of_a.revision), (vec![], Revision(0)));
    assert_eq!(opened.upkeep.stats().await.unwrap().documents, 1);
}
