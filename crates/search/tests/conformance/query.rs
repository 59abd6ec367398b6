//! What `query` promises of its pages.

use restante_core::ErrorKind;
use restante_search::{Filter, Hit, QUERY_HITS_MAX, Query, Revision};

use crate::{
    Subject,
    common::{A, B, anywhere, batch, begin, email, found, id, index, page, removal},
};

crate::promises! {
    any: [
        hits_ascend_by_id_and_have_their_time,
        accounts_are_apart,
        a_page_has_its_limit_and_says_whether_there_is_more,
        walking_pages_gives_each_hit_once,
        an_account_that_was_never_indexed_is_empty_at_revision_0,
        a_page_is_complete_up_to_its_revision,
        limits_and_filters_out_of_bounds_are_refused,
        a_common_word_finds_all_of_many_documents,
    ],
    disk: []
}

async fn hits_ascend_by_id_and_have_their_time(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(9, "word"), email(2, "word"), email(5, "other")]).await;
    index(&opened, A, [email(1, "word")]).await;
    let page = page(&opened, A, anywhere("word")).await;
    let expected = [1, 2, 9].map(|number| Hit { id: id(number), received: number as i64 * 10 });
    assert_eq!((page.hits.as_slice(), page.has_more), (expected.as_slice(), false));
}

async fn accounts_are_apart(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "word"), email(2, "word")]).await;
    index(&opened, B, [email(2, "word here"), email(3, "other")]).await;
    assert_eq!(found(&opened, A, anywhere("word")).await, [1, 2]);
    assert_eq!(found(&opened, B, anywhere("word")).await, [2]);
    assert_eq!(found(&opened, B, Filter::And(vec![])).await, [2, 3]);
    assert_eq!(found(&opened, A, Filter::Not(vec![anywhere("other")])).await, [1, 2]);
}

async fn a_page_has_its_limit_and_says_whether_there_is_more(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, (1..=5).map(|n| email(n, "word"))).await;
    for (after, limit, expected, has_more) in [
        (None, 2, vec![1, 2], true),
        (Some(2), 2, vec![3, 4], true),
        (Some(3), 2, vec![4, 5], false),
        (Some(5), 2, vec![], false),
    ] {
        let query = Query { filter: anywhere("word"), after: after.map(id), limit };
        let page = opened.search.query(A, &query).await.unwrap();
        let ids: Vec<u64> = page.hits.iter().map(|hit| hit.id.0).collect();
        assert_eq!((ids, page.has_more), (expected, has_more), "{query:?}");
    }
}

async fn walking_pages_gives_each_hit_once(subject: Subject) {
    let opened = subject.open().await;
    for part in 0..4 {
        // Each commit has ids from all over.
        index(&opened, A, (0..50).map(|n| email(n * 4 + part + 1, if n % 3 == 0 { "odd" } else { "word" })))
            .await;
    }
    let all = found(&opened, A, anywhere("word")).await;
    assert!(all.len() > 100 && all.is_sorted());
    let (mut walked, mut after) = (Vec::new(), None);
    loop {
        let page =
            opened.search.query(A, &Query { filter: anywhere("word"), after, limit: 7 }).await.unwrap();
        walked.extend(page.hits.iter().map(|hit| hit.id.0));
        after = page.hits.last().map(|hit| hit.id);
        if !page.has_more {
            break;
        }
    }
    assert_eq!(walked, all);
}

async fn an_account_that_was_never_indexed_is_empty_at_revision_0(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(1, "word")]).await;
    let page = page(&opened, B, Filter::And(vec![])).await;
    assert_eq!((page.hits, page.has_more, page.revision), (vec![], false, Revision(0)));
}

async fn a_page_is_complete_up_to_its_revision(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    for number in 1..=20 {
        opened.index.write(series, A, batch([email(number, "word")], number)).await.unwrap();
        if number % 5 == 0 {
            opened.index.commit(series).await.unwrap();
        }
        let page = page(&opened, A, anywhere("word")).await;
        let ids: Vec<u64> = page.hits.iter().map(|hit| hit.id.0).collect();
        assert!((1..=page.revision.0).all(|number| ids.contains(&number)), "{ids:?} at {:?}", page.revision);
        assert!(page.revision.0 >= number / 5 * 5, "a commit makes it visible");
    }
    opened.index.write(series, A, removal([4], 21)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    assert_eq!(page(&opened, A, anywhere("word")).await.revision, Revision(21));
}

async fn limits_and_filters_out_of_bounds_are_refused(subject: Subject) {
    let opened = subject.open().await;
    let mut deep = anywhere("word");
    for _ in 0..40 {
        deep = Filter::Not(vec![deep]);
    }
    let wide = Filter::Or(vec![anywhere("word"); 300]);
    let words: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let long = Filter::Or(vec![anywhere(&words.join(" ")); 3]);
    for (filter, limit) in
        [(anywhere("x"), 0), (anywhere("x"), QUERY_HITS_MAX + 1), (deep, 1), (wide, 1), (long, 1)]
    {
        let error = opened.search.query(A, &Query { filter, after: None, limit }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

async fn a_common_word_finds_all_of_many_documents(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    for part in 0..3_u64 {
        let documents = (0..1_000).map(|n| email(part * 1_000 + n + 1, "the common word"));
        opened.index.write(series, A, batch(documents, part + 1)).await.unwrap();
    }
    opened.index.commit(series).await.unwrap();
    assert_eq!(found(&opened, A, anywhere("common")).await.len(), 3_000);
    assert_eq!(found(&opened, A, anywhere("'common word'")).await.len(), 3_000);
}
