//! Promises of `query` about its pages.

use restante_core::ErrorKind;
use restante_search::{
    Document, FILTER_CONDITIONS_MAX, FILTER_DEPTH_MAX, Filter, Hit, Order, QUERY_HITS_MAX, Query, Revision,
    TEXT_WORDS_MAX,
};

use crate::{
    Subject,
    common::{A, B, anywhere, batch, begin, email, found, header, id, index, page, removal},
};

crate::promises! {
    any: [
        hits_ascend_by_id_and_have_their_time,
        the_newest_hits_come_first_when_they_are_asked_for,
        accounts_are_apart,
        a_page_has_its_limit_and_says_whether_there_is_more,
        walking_pages_gives_each_hit_once,
        an_account_that_was_never_indexed_is_empty_at_revision_0,
        a_page_is_complete_up_to_its_revision,
        limits_and_filters_out_of_bounds_are_refused,
        a_common_word_finds_all_of_many_documents,
        a_page_of_more_than_ten_thousand_hits_is_whole,
        filters_at_their_bounds_are_answered,
        the_first_and_the_last_of_all_numbers_and_times_are_found,
    ],
}

async fn hits_ascend_by_id_and_have_their_time(subject: Subject) {
    let opened = subject.open().await;
    index(&opened, A, [email(9, "word"), email(2, "word"), email(5, "other")]).await;
    index(&opened, A, [email(1, "word")]).await;
    let page = page(&opened, A, anywhere("word")).await;
    let expected = [1, 2, 9].map(|number| Hit { id: id(number), received: number as i64 * 10 });
    assert_eq!((page.hits.as_slice(), page.has_more), (expected.as_slice(), false));
}

async fn the_newest_hits_come_first_when_they_are_asked_for(subject: Subject) {
    let opened = subject.open().await;
    // More than one part of a segment: mostly in the order of their times, some not, and many with equal times.
    let received = |n: u64| if n.is_multiple_of(50) { 1_000_000 - n as i64 } else { (n / 3) as i64 };
    let mut all = Vec::new();
    for part in 0..7_u64 {
        let documents: Vec<_> = (0..1_000)
            .map(|n| part * 1_000 + n + 1)
            .map(|n| Document {
                received: received(n),
                ..email(n, if n.is_multiple_of(400) { "rare" } else { "word" })
            })
            .collect();
        all.extend(documents.iter().map(|document| Hit { id: document.id, received: document.received }));
        index(&opened, A, documents).await;
    }
    index(&opened, B, [email(9_999_999, "word rare")]).await;
    let series = begin(&opened).await;
    opened.index.write(series, A, removal([6_950, 400], 2)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    all.retain(|hit| ![6_950, 400].contains(&hit.id.0));
    all.sort_by_key(|hit| std::cmp::Reverse((hit.received, hit.id)));
    for word in ["word", "rare"] {
        let is_hit = |hit: &&Hit| hit.id.0.is_multiple_of(400) == (word == "rare");
        let expected: Vec<Hit> = all.iter().filter(is_hit).copied().collect();
        for (skipped, limit) in [(0, 1), (0, 5), (3, 20), (10, 5_000), (0, QUERY_HITS_MAX)] {
            let after = expected.get(skipped - 1.min(skipped)).copied().filter(|_| skipped > 0);
            let query = Query { filter: anywhere(word), order: Order::NewestFirst, after, limit };
            let page = opened.search.query(A, &query).await.unwrap();
            let rest = &expected[skipped..];
            assert_eq!(page.hits, rest[..limit.min(rest.len())], "{word} {skipped} {limit}");
            assert_eq!(page.has_more, limit < rest.len());
        }
    }
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
        let after = after.map(|number| Hit { id: id(number), received: 0 });
        let query = Query { after, limit, ..Query::new(anywhere("word")) };
        let page = opened.search.query(A, &query).await.unwrap();
        let ids: Vec<u64> = page.hits.iter().map(|hit| hit.id.0).collect();
        assert_eq!((ids, page.has_more), (expected, has_more), "{query:?}");
    }
}

async fn walking_pages_gives_each_hit_once(subject: Subject) {
    let opened = subject.open().await;
    for part in 0..4 {
        // Each commit has ids from the whole range.
        index(&opened, A, (0..50).map(|n| email(n * 4 + part + 1, if n % 3 == 0 { "odd" } else { "word" })))
            .await;
    }
    let all = found(&opened, A, anywhere("word")).await;
    assert!(all.len() > 100 && all.is_sorted());
    for order in [Order::ById, Order::NewestFirst] {
        let (mut walked, mut after) = (Vec::new(), None);
        loop {
            let query = Query { filter: anywhere("word"), order, after, limit: 7 };
            let page = opened.search.query(A, &query).await.unwrap();
            walked.extend(page.hits.iter().map(|hit| hit.id.0));
            after = page.hits.last().copied();
            if !page.has_more {
                break;
            }
        }
        if order == Order::NewestFirst {
            walked.reverse(); // these emails were received in the order of their ids
        }
        assert_eq!(walked, all);
    }
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
        let error = opened.search.query(A, &Query { limit, ..Query::new(filter) }).await.unwrap_err();
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

async fn a_page_of_more_than_ten_thousand_hits_is_whole(subject: Subject) {
    let opened = subject.open().await;
    let series = begin(&opened).await;
    for part in 0..6_u64 {
        let documents = (1..=4_000).map(|n| email(part * 4_000 + n, "x"));
        opened.index.write(series, A, batch(documents, part + 1)).await.unwrap();
    }
    opened.index.commit(series).await.unwrap();
    let all: Vec<u64> = (1..=24_000).collect();
    assert_eq!(found(&opened, A, anywhere("x")).await, all);
    let after = Some(Hit { id: id(20), received: 200 });
    for limit in [9_998, 9_999, 10_000, 20_001, 23_979, 23_980, 23_981] {
        let query = Query { after, limit, ..Query::new(anywhere("x")) };
        let page = opened.search.query(A, &query).await.unwrap();
        let ids: Vec<u64> = page.hits.iter().map(|hit| hit.id.0).collect();
        assert_eq!(ids, all[20..][..limit.min(23_980)], "{limit}");
        assert_eq!((page.has_more, page.revision), (limit < 23_980, Revision(6)), "{limit}");
    }
    let query = Query { order: Order::NewestFirst, after, ..Query::new(anywhere("x")) };
    let newest = opened.search.query(A, &query).await.unwrap();
    assert_eq!(newest.hits.iter().map(|hit| hit.id.0).collect::<Vec<_>>(), (1..20).rev().collect::<Vec<_>>());
    let query = Query { order: Order::NewestFirst, ..Query::new(anywhere("x")) };
    let newest = opened.search.query(A, &query).await.unwrap();
    assert_eq!(
        newest.hits.iter().map(|hit| hit.id.0).collect::<Vec<_>>(),
        (1..=24_000).rev().collect::<Vec<_>>()
    );
}

async fn filters_at_their_bounds_are_answered(subject: Subject) {
    let opened = subject.open().await;
    let words: Vec<String> = (0..TEXT_WORDS_MAX).map(|n| format!("w{n}")).collect();
    let all = words.join(" ");
    index(&opened, A, [email(1, &all), Document { subject: all.clone(), ..email(2, "x") }, email(3, "w1")])
        .await;
    let mut deep = anywhere("w1");
    for _ in 1..FILTER_DEPTH_MAX {
        deep = Filter::Not(vec![deep]);
    }
    let twice = Filter::And(vec![anywhere(&all), anywhere(&all)]);
    let names: Vec<Filter> = (2..FILTER_CONDITIONS_MAX).map(|n| header(&format!("x-{n}"), None)).collect();
    let wide = Filter::Or([vec![anywhere("w1")], names].concat());
    let pairs: Vec<String> = (0..TEXT_WORDS_MAX / 2).map(|n| format!("w{}.w{}", 2 * n, 2 * n + 1)).collect();
    let phrases = Filter::Or(vec![anywhere(&pairs.join(" ")), anywhere(&pairs.join(" "))]);
    for (filter, expected) in
        [(twice, vec![1, 2]), (deep, vec![]), (wide, vec![1, 2, 3]), (phrases, vec![1, 2])]
    {
        filter.check().unwrap();
        assert_eq!(found(&opened, A, filter).await, expected);
    }
}

async fn the_first_and_the_last_of_all_numbers_and_times_are_found(subject: Subject) {
    let opened = subject.open().await;
    let numbers = [0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX];
    let times = [i64::MAX, 0, i64::MIN, i64::MAX, 5];
    let of = |(number, received): (u64, i64)| Document { id: id(number), received, ..email(1, "x") };
    let documents: Vec<Document> = numbers.into_iter().zip(times).map(of).collect();
    index(&opened, A, documents.clone()).await;
    for order in [Order::ById, Order::NewestFirst] {
        let mut expected: Vec<Hit> =
            documents.iter().map(|one| Hit { id: one.id, received: one.received }).collect();
        expected.sort_by(|left, right| order.compare(left, right));
        for limit in [1, 2, 10] {
            let (mut walked, mut after) = (Vec::new(), None);
            loop {
                let query = Query { filter: anywhere("x"), order, after, limit };
                let page = opened.search.query(A, &query).await.unwrap();
                assert_eq!(page.revision, Revision(1));
                after = page.hits.last().copied();
                walked.extend(page.hits);
                if !page.has_more {
                    break;
                }
            }
            assert_eq!(walked, expected, "{order:?} by {limit}");
        }
    }
}
