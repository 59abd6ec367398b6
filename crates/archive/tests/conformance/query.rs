//! The promises of `query`.

use restante_archive::{
    Archive, Direction, HASHES_MAX, Message, PAGE_BYTES_MAX, PAGE_ROWS_MAX, Query, Topics, Walk,
};
use restante_core::{Bloom, Cursor, ErrorKind, Key, MessageHash, Timestamp};

use crate::{
    Subject,
    common::{OwnedRow, filter_of, message, message_in, rows, sorted, walk},
};

crate::promises! {
    any: [
        order_is_timestamp_then_hash,
        start_is_inclusive_and_end_exclusive,
        a_range_without_messages_is_empty,
        topics_are_matched_exactly,
        an_unknown_topic_matches_nothing,
        an_empty_list_of_topics_matches_nothing,
        any_number_of_topics_may_be_asked,
        a_bloom_filter_matches_topics_whose_bits_it_has,
        channels_are_distinguished,
        hashes_are_found,
        hashes_and_filters_are_both_applied,
        a_page_has_at_most_limit_rows,
        pages_are_ascending_in_both_directions,
        forward_walk_gives_each_match_once,
        backward_walk_gives_each_match_once,
        equal_timestamps_are_paged_without_loss,
        walking_hashes_pages_too,
        the_last_page_has_no_next,
        a_cursor_at_the_end_gives_an_empty_page,
        a_cursor_outside_the_range_is_no_error,
        a_cursor_at_the_timestamp_of_start_or_end_counts,
        a_cursor_may_name_a_message,
        a_cursor_needs_no_message_at_its_place,
        an_unknown_message_as_cursor_is_not_found,
        limits_out_of_bounds_are_refused,
        a_page_ends_when_its_bodies_are_large,
        without_bodies_rows_are_the_same_but_empty,
        a_walk_under_appends_gives_what_was_there_once,
        pages_stay_readable,
    ],
    disk: [a_cursor_survives_reopening, a_read_only_archive_answers_beside_the_writer]
}

const SECOND: i64 = 1_000_000_000;

/// Five seconds with several messages each, on four topics and two channels; some timestamps are equal.
async fn filled(archive: &dyn Archive) -> Vec<Message> {
    let mut messages = Vec::new();
    for second in 0..5_i64 {
        for n in 0..6_u8 {
            let timestamp = second * SECOND + i64::from(n / 2) * 1_000;
            let topic = ["apple", "beech", "cedar", "dates"][usize::from(n + second as u8) % 4];
            let channel = ["one", "two"][usize::from(n % 2)];
            messages.push(message_in(channel, timestamp, n, topic));
        }
    }
    for batch in messages.chunks(4) {
        archive.append(batch.to_vec()).await.unwrap();
    }
    messages
}

fn only(messages: &[Message], keep: impl Fn(&Message) -> bool) -> Vec<OwnedRow> {
    let kept: Vec<Message> = messages.iter().filter(|message| keep(message)).cloned().collect();
    sorted(&kept)
}

async fn all(archive: &dyn Archive, query: Query) -> Vec<OwnedRow> {
    walk(archive, query).await.concat()
}

async fn order_is_timestamp_then_hash(subject: Subject) {
    let archive = subject.open().await.archive;
    let batch = vec![message(7, 9, "a"), message(7, 1, "b"), message(-3, 200, "a"), message(7, 4, "a")];
    archive.append(batch.clone()).await.unwrap();
    let page = archive.query(&Query::default()).await.unwrap();
    let order: Vec<(i64, u8)> =
        page.rows().map(|row| (row.timestamp.0, row.message_hash.as_bytes()[0])).collect();
    assert_eq!(order, [(-3, 200), (7, 1), (7, 4), (7, 9)]);
}

async fn start_is_inclusive_and_end_exclusive(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    for (start, end) in [(SECOND, 3 * SECOND), (0, 1_000), (2_000, 2_001), (4 * SECOND + 1, i64::MAX)] {
        for direction in [Direction::Forward, Direction::Backward] {
            let query = Query {
                start: Some(Timestamp(start)),
                end: Some(Timestamp(end)),
                direction,
                ..Query::default()
            };
            let expected =
                only(&messages, |message| start <= message.timestamp.0 && message.timestamp.0 < end);
            assert_eq!(rows(&archive.query(&query).await.unwrap()), expected, "{start}..{end}");
        }
    }
}

async fn a_range_without_messages_is_empty(subject: Subject) {
    let archive = subject.open().await.archive;
    filled(&*archive).await;
    for (start, end) in [(3, 4), (10 * SECOND, 11 * SECOND), (5, 5), (3 * SECOND, SECOND), (i64::MIN, 0)] {
        let query = Query { start: Some(Timestamp(start)), end: Some(Timestamp(end)), ..Query::default() };
        let page = archive.query(&query).await.unwrap();
        assert!(page.is_empty() && page.next.is_none(), "{start}..{end}");
    }
}

async fn topics_are_matched_exactly(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    for wanted in
        [vec!["apple"], vec!["dates", "beech"], vec!["cedar", "cedar"], vec!["ced"], vec!["cedar", "none"]]
    {
        let topics = Topics::List(wanted.iter().map(|topic| (*topic).to_owned()).collect());
        let expected = only(&messages, |message| wanted.contains(&&*message.topic));
        assert_eq!(
            all(&*archive, Query { topics, limit: 4, ..Query::default() }).await,
            expected,
            "{wanted:?}"
        );
    }
}

async fn an_unknown_topic_matches_nothing(subject: Subject) {
    let archive = subject.open().await.archive;
    filled(&*archive).await;
    let query = Query { topics: Topics::List(vec!["no such topic".into()]), ..Query::default() };
    assert!(archive.query(&query).await.unwrap().is_empty());
    let query = Query { channel: Some("no such channel".into()), ..Query::default() };
    assert!(archive.query(&query).await.unwrap().is_empty());
}

async fn an_empty_list_of_topics_matches_nothing(subject: Subject) {
    let archive = subject.open().await.archive;
    filled(&*archive).await;
    let query = Query { topics: Topics::List(vec![]), ..Query::default() };
    assert!(archive.query(&query).await.unwrap().is_empty());
}

async fn any_number_of_topics_may_be_asked(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages: Vec<Message> =
        (0..300).map(|n| message(n * 50_000_000, 1, &format!("topic {}", n % 150))).collect();
    archive.append(messages.clone()).await.unwrap();
    let wanted: Vec<String> = (0..5_000).map(|n| format!("topic {}", n * 2)).collect();
    let expected = only(&messages, |message| wanted.iter().any(|topic| **topic == *message.topic));
    assert_eq!(expected.len(), 150);
    let topics = Topics::List(wanted);
    assert_eq!(all(&*archive, Query { topics, limit: 17, ..Query::default() }).await, expected);
}

async fn a_bloom_filter_matches_topics_whose_bits_it_has(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    let with = |filter: Box<Bloom>| Query { topics: Topics::Bloom(filter), limit: 4, ..Query::default() };
    let expected = only(&messages, |message| &*message.topic == "cedar" || &*message.topic == "apple");
    assert_eq!(all(&*archive, with(filter_of(&["cedar", "apple"]))).await, expected);
    assert_eq!(all(&*archive, with(Box::new(Bloom::FULL))).await, sorted(&messages));
    assert_eq!(all(&*archive, with(Box::new(Bloom::EMPTY))).await, []);
    let in_channel = Query { channel: Some("two".into()), ..with(filter_of(&["cedar"])) };
    let expected = only(&messages, |message| &*message.topic == "cedar" && &*message.channel == "two");
    assert_eq!(all(&*archive, in_channel).await, expected);
}

async fn channels_are_distinguished(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    let query = Query { channel: Some("two".into()), limit: 4, ..Query::default() };
    assert_eq!(all(&*archive, query.clone()).await, only(&messages, |message| &*message.channel == "two"));
    let query = Query { topics: Topics::List(vec!["beech".into()]), ..query };
    let expected = only(&messages, |message| &*message.channel == "two" && &*message.topic == "beech");
    assert!(!expected.is_empty());
    assert_eq!(all(&*archive, query).await, expected);
}

async fn hashes_are_found(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    let mut hashes: Vec<MessageHash> =
        messages.iter().step_by(3).map(|message| message.message_hash).collect();
    let expected = only(&messages, |message| hashes.contains(&message.message_hash));
    hashes.push(MessageHash::MAX);
    hashes.push(hashes[0]);
    assert_eq!(rows(&archive.query(&Query { hashes, ..Query::default() }).await.unwrap()), expected);
}

async fn hashes_and_filters_are_both_applied(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    let hashes: Vec<MessageHash> = messages.iter().map(|message| message.message_hash).collect();
    let query = Query {
        hashes,
        channel: Some("one".into()),
        topics: Topics::List(vec!["apple".into(), "cedar".into()]),
        start: Some(Timestamp(SECOND)),
        end: Some(Timestamp(4 * SECOND)),
        ..Query::default()
    };
    let expected = only(&messages, |message| {
        &*message.channel == "one"
            && ["apple", "cedar"].contains(&&*message.topic)
            && (SECOND..4 * SECOND).contains(&message.timestamp.0)
    });
    assert!(!expected.is_empty());
    assert_eq!(rows(&archive.query(&query).await.unwrap()), expected);
}

async fn a_page_has_at_most_limit_rows(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    for limit in [1, 2, 7, 30, 31] {
        let pages = walk(&*archive, Query { limit, ..Query::default() }).await;
        assert!(pages.iter().all(|page| page.len() <= limit));
        assert_eq!(pages.concat().len(), messages.len());
    }
}

async fn pages_are_ascending_in_both_directions(subject: Subject) {
    let archive = subject.open().await.archive;
    filled(&*archive).await;
    for direction in [Direction::Forward, Direction::Backward] {
        for page in walk(&*archive, Query { limit: 7, direction, ..Query::default() }).await {
            assert!(page.is_sorted_by_key(|row| row.key));
        }
    }
}

async fn forward_walk_gives_each_match_once(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    for limit in 1..8 {
        assert_eq!(all(&*archive, Query { limit, ..Query::default() }).await, sorted(&messages));
    }
}

async fn backward_walk_gives_each_match_once(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    for limit in 1..8 {
        let mut pages =
            walk(&*archive, Query { limit, direction: Direction::Backward, ..Query::default() }).await;
        pages.reverse();
        assert_eq!(pages.concat(), sorted(&messages));
    }
}

async fn equal_timestamps_are_paged_without_loss(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages: Vec<Message> = (0..200).map(|n| message(42, n, ["a", "b"][usize::from(n % 2)])).collect();
    archive.append(messages.iter().rev().cloned().collect()).await.unwrap();
    for direction in [Direction::Forward, Direction::Backward] {
        let mut pages = walk(&*archive, Query { limit: 3, direction, ..Query::default() }).await;
        if direction == Direction::Backward {
            pages.reverse();
        }
        assert_eq!(pages.concat(), sorted(&messages));
    }
}

async fn walking_hashes_pages_too(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    let hashes: Vec<MessageHash> = messages.iter().map(|message| message.message_hash).collect();
    for direction in [Direction::Forward, Direction::Backward] {
        let mut pages =
            walk(&*archive, Query { hashes: hashes.clone(), limit: 4, direction, ..Query::default() }).await;
        if direction == Direction::Backward {
            pages.reverse();
        }
        assert_eq!(pages.concat(), sorted(&messages));
    }
}

async fn the_last_page_has_no_next(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    for direction in [Direction::Forward, Direction::Backward] {
        let exact = Query { limit: messages.len(), direction, ..Query::default() };
        assert_eq!(archive.query(&exact).await.unwrap().next, None);
        let one_less = Query { limit: messages.len() - 1, ..exact };
        let page = archive.query(&one_less).await.unwrap();
        let edge = match direction {
            Direction::Forward => page.rows().next_back(),
            Direction::Backward => page.rows().next(),
        };
        assert_eq!(page.next, edge.map(|row| Cursor::At(row.key())));
    }
}

async fn a_cursor_at_the_end_gives_an_empty_page(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    let ends = [
        (Direction::Forward, sorted(&messages).pop()),
        (Direction::Backward, sorted(&messages).into_iter().next()),
    ];
    for (direction, end) in ends {
        let key = end.unwrap().key;
        for cursor in [Cursor::At(key), Cursor::Message(key.message_hash)] {
            let page =
                archive.query(&Query { cursor: Some(cursor), direction, ..Query::default() }).await.unwrap();
            assert!(page.is_empty() && page.next.is_none());
        }
    }
}

async fn a_cursor_outside_the_range_is_no_error(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    let in_range = |message: &Message| (SECOND..2 * SECOND).contains(&message.timestamp.0);
    for (timestamp, forward_sees_all) in [(0, true), (4 * SECOND, false)] {
        let key = Key { timestamp: Timestamp(timestamp), message_hash: MessageHash::MIN };
        for direction in [Direction::Forward, Direction::Backward] {
            let query = Query {
                start: Some(Timestamp(SECOND)),
                end: Some(Timestamp(2 * SECOND)),
                cursor: Some(Cursor::At(key)),
                direction,
                ..Query::default()
            };
            let sees_all = forward_sees_all == (direction == Direction::Forward);
            let expected = if sees_all { only(&messages, in_range) } else { vec![] };
            assert_eq!(rows(&archive.query(&query).await.unwrap()), expected);
        }
    }
}

/// Four messages share a timestamp, with which the range begins or ends.
async fn a_cursor_at_the_timestamp_of_start_or_end_counts(subject: Subject) {
    let archive = subject.open().await.archive;
    let batch: Vec<Message> = [(4, 1), (5, 1), (5, 2), (5, 3), (5, 4), (6, 1)]
        .map(|(timestamp, hash)| message(timestamp, hash, "a"))
        .into();
    archive.append(batch.clone()).await.unwrap();
    let second = Cursor::At(batch[2].key());
    let expected = [
        (Direction::Forward, Some(5), None, vec![(5, 3), (5, 4), (6, 1)]),
        (Direction::Forward, Some(5), Some(6), vec![(5, 3), (5, 4)]),
        (Direction::Backward, Some(5), None, vec![(5, 1)]),
        (Direction::Backward, Some(4), Some(6), vec![(4, 1), (5, 1)]),
        (Direction::Backward, None, Some(5), vec![(4, 1)]),
    ];
    for (direction, start, end, keys) in expected {
        let (start, end) = (start.map(Timestamp), end.map(Timestamp));
        let query = Query { start, end, direction, cursor: Some(second), ..Query::default() };
        let page = archive.query(&query).await.unwrap();
        let found: Vec<(i64, u8)> =
            page.rows().map(|row| (row.timestamp.0, row.message_hash.as_bytes()[0])).collect();
        assert_eq!(found, keys, "{query:?}");
    }
}

async fn a_cursor_may_name_a_message(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = sorted(&filled(&*archive).await);
    for (at, row) in messages.iter().enumerate() {
        let cursor = Some(Cursor::Message(row.key.message_hash));
        let page = archive.query(&Query { cursor, ..Query::default() }).await.unwrap();
        assert_eq!(rows(&page), messages[at + 1..]);
        let page = archive
            .query(&Query { cursor, direction: Direction::Backward, ..Query::default() })
            .await
            .unwrap();
        assert_eq!(rows(&page), messages[..at]);
    }
}

async fn a_cursor_needs_no_message_at_its_place(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    let key = Key { timestamp: Timestamp(2 * SECOND), message_hash: MessageHash([3; 32]) };
    let query = Query { cursor: Some(Cursor::At(key)), ..Query::default() };
    assert_eq!(rows(&archive.query(&query).await.unwrap()), only(&messages, |message| message.key() > key));
    let query = Query { direction: Direction::Backward, ..query };
    assert_eq!(rows(&archive.query(&query).await.unwrap()), only(&messages, |message| message.key() < key));
}

async fn an_unknown_message_as_cursor_is_not_found(subject: Subject) {
    let archive = subject.open().await.archive;
    filled(&*archive).await;
    let query = Query { cursor: Some(Cursor::Message(MessageHash::MAX)), ..Query::default() };
    assert_eq!(archive.query(&query).await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn limits_out_of_bounds_are_refused(subject: Subject) {
    let archive = subject.open().await.archive;
    filled(&*archive).await;
    for limit in [0, PAGE_ROWS_MAX + 1, usize::MAX] {
        let error = archive.query(&Query { limit, ..Query::default() }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert!(archive.query(&Query { limit: PAGE_ROWS_MAX, ..Query::default() }).await.is_ok());
    let hashes = vec![MessageHash::MIN; HASHES_MAX + 1];
    assert_eq!(
        archive.query(&Query { hashes, ..Query::default() }).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

async fn a_page_ends_when_its_bodies_are_large(subject: Subject) {
    let archive = subject.open().await.archive;
    let body = vec![1; PAGE_BYTES_MAX / 8];
    let mut messages = Vec::new();
    for n in 0..20 {
        let mut large = message(n, 1, ["a", "b"][n as usize % 2]);
        large.body = body.clone().into();
        archive.append(vec![large.clone()]).await.unwrap();
        messages.push(large);
    }
    for direction in [Direction::Forward, Direction::Backward] {
        let mut pages = walk(&*archive, Query { direction, ..Query::default() }).await;
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [8, 8, 4]);
        if direction == Direction::Backward {
            pages.reverse();
        }
        assert_eq!(pages.concat(), sorted(&messages));
    }
    let topics = Topics::List(vec!["b".into()]);
    let pages = walk(&*archive, Query { topics, ..Query::default() }).await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [8, 2]);
}

async fn without_bodies_rows_are_the_same_but_empty(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    let page = archive.query(&Query { bodies: false, ..Query::default() }).await.unwrap();
    let mut expected = sorted(&messages);
    for row in &mut expected {
        row.body.clear();
    }
    assert_eq!(rows(&page), expected);
}

async fn a_walk_under_appends_gives_what_was_there_once(subject: Subject) {
    let archive = subject.open().await.archive;
    let messages = filled(&*archive).await;
    for direction in [Direction::Forward, Direction::Backward] {
        let base = if direction == Direction::Forward { 100 } else { 150 };
        let mut walk = Walk::new(Query { limit: 2, direction, ..Query::default() });
        let (mut seen, mut round) = (Vec::new(), 0_u8);
        while let Some(page) = walk.next(&*archive).await.unwrap() {
            seen.extend(rows(&page));
            if round < 40 {
                // Some are stored before the walk's position, some after it.
                let second = i64::from(round % 5);
                archive.append(vec![message(second * SECOND + 500, base + round, "new")]).await.unwrap();
                round += 1;
            }
        }
        let mut keys: Vec<Key> = seen.iter().map(|row| row.key).collect();
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "no message came twice");
        for row in sorted(&messages) {
            assert!(seen.contains(&row), "{row:?} is missing");
        }
    }
}

async fn pages_stay_readable(subject: Subject) {
    let opened = subject.open().await;
    let messages = filled(&*opened.archive).await;
    let page = opened.archive.query(&Query::default()).await.unwrap();
    opened.upkeep.prune(&"capacity:1".parse().unwrap(), Timestamp(0)).await.unwrap();
    opened.upkeep.close().await.unwrap();
    drop(opened);
    assert_eq!(rows(&page), sorted(&messages));
}

async fn a_cursor_survives_reopening(subject: Subject) {
    let mut opened = subject.open().await;
    let messages = filled(&*opened.archive).await;
    let mut walk = Walk::new(Query { limit: 4, ..Query::default() });
    let mut seen = Vec::new();
    while let Some(page) = walk.next(&*opened.archive).await.unwrap() {
        seen.extend(rows(&page));
        opened = subject.reopen(opened).await;
    }
    assert_eq!(seen, sorted(&messages));
}

async fn a_read_only_archive_answers_beside_the_writer(subject: Subject) {
    let writer = subject.open().await;
    let messages = filled(&*writer.archive).await;
    let reader = subject.open_read_only().await;
    assert_eq!(all(&*reader.archive, Query { limit: 4, ..Query::default() }).await, sorted(&messages));
    let error = reader.archive.append(vec![message(1, 1, "a")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = reader.upkeep.prune(&"capacity:1".parse().unwrap(), Timestamp(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    writer.archive.append(vec![message(1, 200, "a")]).await.unwrap();
}
