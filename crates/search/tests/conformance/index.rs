//! Promises of the writer.

use std::time::Duration;

use bytes::Bytes;
use restante_core::ErrorKind;
use restante_search::{
    AccountId, BATCH_BYTES_MAX, BATCH_DOCUMENTS_MAX, Batch, CHECKPOINT_BYTES_MAX, DOCUMENT_BYTES_MAX, Filter,
    Revision, open,
};

use crate::{
    Subject,
    common::{A, B, anywhere, batch, begin, checkpoint, email, found, id, index, page, removal},
};

crate::promises! {
    any: [
        what_is_written_is_visible_after_a_commit,
        documents_of_accounts_without_a_revision_are_visible_after_a_commit_as_well,
        a_document_replaces_the_one_with_its_id,
        writing_twice_has_the_effect_of_writing_once,
        removed_documents_are_gone_and_removing_again_is_no_error,
        documents_are_removed_before_others_are_added,
        erasing_an_account_removes_all_of_it_and_nothing_else,
        an_erased_account_can_be_written_again_in_the_same_commit,
        revisions_are_those_that_were_written_in_a_commit_or_not,
        a_batch_without_revision_leaves_it,
        the_last_checkpoint_that_was_committed_is_the_one_that_begins,
        there_is_no_checkpoint_before_the_first,
        a_series_ends_when_another_begins,
        a_series_that_goes_on_has_not_ended,
        batches_and_checkpoints_out_of_bounds_are_refused_and_nothing_is_written,
        many_accounts_have_their_own_revisions,
    ],
    disk: [
        what_was_committed_survives_a_close,
        what_was_committed_survives_an_end_without_close,
        closing_commits_what_was_written,
        what_is_in_no_commit_is_dropped_by_the_next_series,
        a_commit_has_all_that_was_written_before_it_and_its_checkpoint,
        commits_come_by_themselves_after_their_time,
    ]
}

async fn what_is_written_is_visible_after_a_commit(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "word")]).await;
    assert_eq!(found(&opened, A, anywhere("word")).await, [1]);
}

/// A commit that only makes the accounts, or the parts of an index, visible for which it writes a revision leaves others out.
async fn documents_of_accounts_without_a_revision_are_visible_after_a_commit_as_well(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    let others = 11..=18; // in all shards of the index
    for revision in 1..=2 {
        opened.index.write(series, A, batch([email(revision, "word")], revision)).await.unwrap();
        for account in others.clone() {
            let documents = vec![email(revision, "word")];
            opened
                .index
                .write(series, AccountId(account), Batch { documents, ..Batch::default() })
                .await
                .unwrap();
        }
        opened.index.commit(series).await.unwrap();
        let expected: Vec<u64> = (1..=revision).collect();
        assert_eq!(found(&opened, A, anywhere("word")).await, expected);
        for account in others.clone() {
            assert_eq!(found(&opened, AccountId(account), anywhere("word")).await, expected, "{account}");
        }
    }
}

async fn a_document_replaces_the_one_with_its_id(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "first"), email(2, "first")]).await;
    index(&opened, B, [email(1, "first")]).await;
    index(&opened, A, [email(1, "second")]).await;
    assert_eq!(found(&opened, A, anywhere("first")).await, [2]);
    assert_eq!(found(&opened, A, anywhere("second")).await, [1]);
    assert_eq!(found(&opened, B, anywhere("first")).await, [1]);
}

async fn writing_twice_has_the_effect_of_writing_once(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    for _ in 0..2 {
        opened.index.write(series, A, batch([email(1, "word"), email(2, "word")], 1)).await.unwrap();
        opened.index.write(series, A, removal([2], 2)).await.unwrap();
    }
    opened.index.commit(series).await.unwrap();
    assert_eq!(found(&opened, A, anywhere("word")).await, [1]);
    index(&opened, A, [email(1, "word")]).await;
    assert_eq!(found(&opened, A, anywhere("word")).await, [1]);
    assert_eq!(opened.upkeep.stats().await.unwrap().documents, 1);
}

async fn removed_documents_are_gone_and_removing_again_is_no_error(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "word"), email(2, "word")]).await;
    index(&opened, B, [email(1, "word")]).await;
    let series = begin(&opened).await;
    for _ in 0..2 {
        opened.index.write(series, A, removal([1, 99], 2)).await.unwrap();
        opened.index.commit(series).await.unwrap();
        assert_eq!(found(&opened, A, anywhere("word")).await, [2]);
        assert_eq!(found(&opened, A, Filter::And(vec![])).await, [2]);
        assert_eq!(found(&opened, B, anywhere("word")).await, [1]);
    }
}

async fn documents_are_removed_before_others_are_added(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    let both = Batch { removed: vec![id(1)], documents: vec![email(1, "word")], revision: None };
    opened.index.write(series, A, both).await.unwrap();
    opened.index.commit(series).await.unwrap();
    assert_eq!(found(&opened, A, anywhere("word")).await, [1]);
}

async fn erasing_an_account_removes_all_of_it_and_nothing_else(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "word"), email(2, "word")]).await;
    index(&opened, B, [email(1, "word")]).await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([email(3, "word")], 5)).await.unwrap();
    opened.index.erase(series, A).await.unwrap();
    assert_eq!(opened.index.revisions(series, &[A, B]).await.unwrap(), [Revision(0), Revision(1)]);
    opened.index.commit(series).await.unwrap();
    let erased = page(&opened, A, Filter::And(vec![])).await;
    assert_eq!((erased.hits, erased.revision), (vec![], Revision(0)));
    assert_eq!(found(&opened, B, anywhere("word")).await, [1]);
}

async fn an_erased_account_can_be_written_again_in_the_same_commit(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "word"), email(2, "word")]).await;
    let series = begin(&opened).await;
    opened.index.erase(series, A).await.unwrap();
    opened.index.write(series, A, batch([email(2, "again")], 9)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    let page = page(&opened, A, Filter::And(vec![])).await;
    assert_eq!((page.hits.len(), page.revision), (1, Revision(9)));
    assert_eq!(found(&opened, A, anywhere("again")).await, [2]);
}

async fn revisions_are_those_that_were_written_in_a_commit_or_not(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([email(1, "x")], 3)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    opened.index.write(series, B, batch([], 8)).await.unwrap();
    let accounts = [B, AccountId(99), A, B];
    let expected = [8, 0, 3, 8].map(Revision);
    assert_eq!(opened.index.revisions(series, &accounts).await.unwrap(), expected);
    opened.index.commit(series).await.unwrap();
    assert_eq!(opened.index.revisions(series, &accounts).await.unwrap(), expected);
    assert_eq!(page(&opened, B, Filter::And(vec![])).await.revision, Revision(8));
}

async fn a_batch_without_revision_leaves_it(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "x")]).await;
    let series = begin(&opened).await;
    let part = Batch { documents: vec![email(2, "x")], ..Batch::default() };
    opened.index.write(series, A, part).await.unwrap();
    opened.index.commit(series).await.unwrap();
    assert_eq!(page(&opened, A, anywhere("x")).await.revision, Revision(1));
    assert_eq!(opened.index.revisions(series, &[A]).await.unwrap(), [Revision(1)]);
}

async fn the_last_checkpoint_that_was_committed_is_the_one_that_begins(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    opened.index.save(series, checkpoint("first")).await.unwrap();
    opened.index.commit(series).await.unwrap();
    let begun = opened.index.begin().await.unwrap();
    assert_eq!(begun.checkpoint, Some(checkpoint("first")));
    opened.index.save(begun.series, checkpoint("second")).await.unwrap();
    opened.index.save(begun.series, checkpoint("\0third")).await.unwrap();
    opened.index.write(begun.series, A, batch([email(1, "x")], 1)).await.unwrap();
    opened.index.commit(begun.series).await.unwrap();
    // A commit that saves none keeps it.
    opened.index.write(begun.series, A, batch([email(2, "x")], 1)).await.unwrap();
    opened.index.commit(begun.series).await.unwrap();
    assert_eq!(opened.index.begin().await.unwrap().checkpoint, Some(checkpoint("\0third")));
}

async fn there_is_no_checkpoint_before_the_first(subject: Subject) {
    let opened = subject.open().await;
    assert_eq!(opened.index.begin().await.unwrap().checkpoint, None);
    index(&opened, A, [email(1, "x")]).await;
    assert_eq!(opened.index.begin().await.unwrap().checkpoint, None);
}

async fn a_series_ends_when_another_begins(subject: Subject) {
    let opened = subject.open().await;
    let first = begin(&opened).await;
    let second = begin(&opened).await;
    opened.index.ended(first).await;
    let outcomes = [
        opened.index.write(first, A, batch([email(1, "word")], 1)).await,
        opened.index.erase(first, A).await,
        opened.index.save(first, checkpoint("x")).await,
        opened.index.commit(first).await,
        opened.index.revisions(first, &[A]).await.map(drop),
    ];
    for outcome in outcomes {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Conflict);
    }
    opened.index.write(second, A, batch([email(2, "word")], 1)).await.unwrap();
    opened.index.commit(second).await.unwrap();
    assert_eq!(found(&opened, A, anywhere("word")).await, [2]);
}

async fn a_series_that_goes_on_has_not_ended(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([email(1, "word")], 1)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    tokio::select! {
        biased;
        () = opened.index.ended(series) => panic!("it has not ended"),
        () = std::future::ready(()) => {}
    }
}

async fn batches_and_checkpoints_out_of_bounds_are_refused_and_nothing_is_written(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    let long = "word ".repeat(DOCUMENT_BYTES_MAX / 5);
    let batches = [
        batch([email(1, &format!("{long}words"))], 1),
        batch((0..=BATCH_DOCUMENTS_MAX as u64).map(|n| email(n, "word")), 1),
        removal(0..=BATCH_DOCUMENTS_MAX as u64, 1),
        batch((0..=(BATCH_BYTES_MAX / long.len()) as u64).map(|n| email(n, &long)), 1),
    ];
    for batch in batches {
        let error = opened.index.write(series, A, batch).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let long = Bytes::from(vec![0; CHECKPOINT_BYTES_MAX + 1]);
    assert_eq!(opened.index.save(series, long).await.unwrap_err().kind(), ErrorKind::Invalid);
    opened.index.commit(series).await.unwrap();
    assert_eq!(page(&opened, A, Filter::And(vec![])).await, Default::default());
    opened.index.save(series, Bytes::from(vec![0xff; CHECKPOINT_BYTES_MAX])).await.unwrap();
}

async fn many_accounts_have_their_own_revisions(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    let accounts: Vec<AccountId> = (1..=50).map(AccountId).collect();
    for round in 1..=2 {
        for account in &accounts {
            let revision = u64::from(account.0) * round;
            opened.index.write(series, *account, batch([], revision)).await.unwrap();
        }
        opened.index.commit(series).await.unwrap();
    }
    let revisions: Vec<Revision> =
        accounts.iter().map(|account| Revision(u64::from(account.0) * 2)).collect();
    assert_eq!(opened.index.revisions(series, &accounts).await.unwrap(), revisions);
}

async fn what_was_committed_survives_a_close(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "word")]).await;
    let opened = subject.reopen(opened).await;
    let page = page(&opened, A, anywhere("word")).await;
    assert_eq!((page.hits.len(), page.revision), (1, Revision(1)));
}

async fn what_was_committed_survives_an_end_without_close(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([email(1, "word")], 1)).await.unwrap();
    opened.index.save(series, checkpoint("one")).await.unwrap();
    opened.index.commit(series).await.unwrap();
    opened.index.write(series, A, batch((2..100).map(|n| email(n, "word")), 2)).await.unwrap();
    drop(opened);
    let opened = subject.open_again().await;
    let begun = opened.index.begin().await.unwrap();
    assert_eq!(begun.checkpoint, Some(checkpoint("one")));
    let page = page(&opened, A, anywhere("word")).await;
    let is_second = page.revision == Revision(2);
    assert_eq!(page.hits.len(), if is_second { 99 } else { 1 }, "all of a write or nothing");
}

async fn closing_commits_what_was_written(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([email(1, "word")], 4)).await.unwrap();
    opened.index.save(series, checkpoint("one")).await.unwrap();
    let opened = subject.reopen(opened).await;
    assert_eq!(page(&opened, A, anywhere("word")).await.revision, Revision(4));
    assert_eq!(opened.index.begin().await.unwrap().checkpoint, Some(checkpoint("one")));
}

async fn what_is_in_no_commit_is_dropped_by_the_next_series(subject: Subject) {
    let opened = open(subject.config_with(3_600_000)).await.unwrap();
    index(&opened, A, [email(1, "word")]).await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([email(2, "word")], 2)).await.unwrap();
    opened.index.write(series, A, removal([1], 3)).await.unwrap();
    opened.index.save(series, checkpoint("lost")).await.unwrap();
    let begun = opened.index.begin().await.unwrap();
    assert_eq!(begun.checkpoint, None);
    assert_eq!(opened.index.revisions(begun.series, &[A]).await.unwrap(), [Revision(1)]);
    opened.index.write(begun.series, A, batch([email(3, "word")], 2)).await.unwrap();
    opened.index.commit(begun.series).await.unwrap();
    assert_eq!(found(&opened, A, anywhere("word")).await, [1, 3]);
}

async fn a_commit_has_all_that_was_written_before_it_and_its_checkpoint(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    for number in 1..=30_u64 {
        opened.index.write(series, A, batch([email(number, "word")], number)).await.unwrap();
        let bytes = Bytes::copy_from_slice(&number.to_be_bytes());
        opened.index.save(series, bytes).await.unwrap();
        if number % 10 == 7 {
            opened.index.commit(series).await.unwrap();
        }
    }
    drop(opened);
    let opened = subject.open_again().await;
    let saved = opened.index.begin().await.unwrap().checkpoint.unwrap();
    let saved = u64::from_be_bytes(saved.as_ref().try_into().unwrap());
    let page = page(&opened, A, anywhere("word")).await;
    assert!(saved >= 27 && page.revision.0 >= saved, "{saved} {:?}", page.revision);
    assert_eq!(page.hits.len() as u64, page.revision.0);
}

async fn commits_come_by_themselves_after_their_time(subject: Subject) {
    let opened = open(subject.config_with(20)).await.unwrap();
    let series = begin(&opened).await;
    for number in 1..=2 {
        opened.index.write(series, A, batch([email(number, "word")], number)).await.unwrap();
        while found(&opened, A, anywhere("word")).await.len() as u64 != number {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    opened.index.save(series, checkpoint("alone")).await.unwrap();
    while opened.upkeep.stats().await.unwrap().uncommitted > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    opened.index.commit(series).await.unwrap();
    assert_eq!(opened.index.begin().await.unwrap().checkpoint, Some(checkpoint("alone")));
}
