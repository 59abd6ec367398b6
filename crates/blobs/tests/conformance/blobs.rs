//! Promises of `Blobs` and `Source`.

use bytes::Bytes;
use restante_blobs::{BlobId, CHUNK_BYTES_MAX, Config, Error, Put, PutHook, Source, TOUCH_BLOBS_MAX, open};
use restante_core::{ErrorKind, nonzero};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::{
    Subject,
    common::{Chunks, at, bytes, list, put, put_unsynced, read, read_all},
};

crate::promises! {
    any: [
        the_id_is_the_sha256_of_the_bytes,
        what_was_put_reads_back_whatever_its_length,
        the_same_bytes_again_take_no_more_space_and_count_as_put_now,
        of_many_puts_of_one_blob_at_the_same_time_one_is_new,
        puts_at_the_same_time_keep_apart,
        a_hook_is_called_when_its_blob_is_durable,
        a_hook_is_dropped_when_its_source_fails,
        a_blob_that_is_put_unsynced_can_be_read,
        a_source_that_fails_leaves_nothing,
        a_put_that_is_given_up_leaves_nothing,
        a_long_blob_goes_through_chunk_by_chunk,
        chunks_may_come_in_any_lengths,
        a_blob_longer_than_is_taken_is_refused_and_leaves_nothing,
        any_range_can_be_read,
        reading_what_is_not_there_is_not_found,
        a_range_that_ends_before_it_begins_is_invalid,
        the_size_needs_no_reading,
        what_is_touched_counts_as_put_now,
        a_touch_tells_of_each_blob_whether_it_is_there,
        a_touch_at_the_same_time_as_a_removal_tells_the_truth,
        more_touches_than_are_taken_are_refused,
        bytes_give_chunks_of_the_allowed_length,
        a_closed_store_refuses,
    ],
    durable: [
        what_was_put_is_there_after_reopening,
        what_was_put_is_there_after_a_store_that_was_not_closed,
        what_was_put_unsynced_is_there_after_a_sync_and_reopening,
    ],
    files: [
        only_one_process_may_have_the_store_open,
        settings_beyond_what_the_engine_can_are_refused,
    ],
}

/// Lengths for each way to store a blob.
const UNSYNCED_LENGTHS: [usize; 4] = [0, 10, 2_000, 400_000];

/// Lengths around the limits of packs and of parts of files.
const LENGTHS: [usize; 12] = [
    0,
    1,
    999,
    1_000,
    1_001,
    4_096,
    262_143,
    262_144,
    262_145,
    CHUNK_BYTES_MAX - 1,
    CHUNK_BYTES_MAX,
    2 * CHUNK_BYTES_MAX + 7,
];

async fn the_id_is_the_sha256_of_the_bytes(subject: Subject) {
    let opened = subject.open().await;
    // FIPS 180-2, appendix B.1.
    let id = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".parse::<BlobId>().unwrap();
    let answer = put(&*opened.blobs, &Bytes::from_static(b"abc")).await;
    assert_eq!((answer.id, answer.bytes, answer.is_new), (id, 3, true));
}

async fn what_was_put_reads_back_whatever_its_length(subject: Subject) {
    let opened = subject.open().await;
    for len in LENGTHS {
        let blob = bytes(1, len);
        let answer = put(&*opened.blobs, &blob).await;
        assert_eq!(answer.bytes, len as u64);
        assert_eq!(read_all(&*opened.blobs, answer.id).await.unwrap(), blob, "{len} bytes");
    }
}

async fn what_is_touched_counts_as_put_now(subject: Subject) {
    let mut opened = subject.open().await;
    let mut ids = Vec::new();
    for (n, len) in [10, 700, 5_000, 300_000].into_iter().enumerate() {
        ids.push(put(&*opened.blobs, &bytes(n as u32, len)).await.id);
    }
    subject.tick(5);
    assert_eq!(opened.blobs.touch(&ids[1..]).await.unwrap(), [true; 3]);
    subject.tick(3);
    assert_eq!(opened.blobs.touch(&ids[1..]).await.unwrap(), [true; 3], "no touch makes a blob older");
    assert_eq!(opened.upkeep.remove(&ids, at(5)).await.unwrap(), 1);
    for listed in list(&*opened.upkeep).await {
        assert_eq!(listed.put_at, at(5));
    }
    if !subject.engine.is_volatile() {
        opened = subject.reopen(opened).await;
    }
    for (n, len) in [700, 5_000, 300_000].into_iter().enumerate() {
        assert_eq!(read_all(&*opened.blobs, ids[n + 1]).await.unwrap(), bytes(n as u32 + 1, len));
    }
    assert_eq!(opened.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    assert_eq!(opened.upkeep.stats().await.unwrap().blobs, 3);
    assert_eq!(opened.upkeep.remove(&ids, at(6)).await.unwrap(), 3);
}

async fn a_touch_tells_of_each_blob_whether_it_is_there(subject: Subject) {
    let opened = subject.open().await;
    let (one, other) = (put(&*opened.blobs, &bytes(1, 10)).await.id, BlobId([7; 32]));
    let found = opened.blobs.touch(&[one, other, one, other, other]).await.unwrap();
    assert_eq!(found, [true, false, true, false, false]);
    assert_eq!(opened.blobs.touch(&[]).await.unwrap(), [true; 0]);
    assert_eq!(list(&*opened.upkeep).await.len(), 1);
}

async fn a_touch_at_the_same_time_as_a_removal_tells_the_truth(subject: Subject) {
    let opened = subject.open().await;
    for round in 0..50 {
        subject.tick(2 * round);
        let id = put(&*opened.blobs, &bytes(1, 500)).await.id;
        subject.tick(2 * round + 1);
        let upkeep = opened.upkeep.clone();
        let removing = tokio::spawn(async move { upkeep.remove(&[id], at(2 * round + 1)).await.unwrap() });
        let blobs = opened.blobs.clone();
        let touching = tokio::spawn(async move { blobs.touch(&[id]).await.unwrap() });
        let (removed, found) = (removing.await.unwrap(), touching.await.unwrap());
        assert_eq!(found, [removed == 0]);
        assert_eq!(opened.blobs.size(id).await.unwrap().is_some(), removed == 0);
    }
}

async fn more_touches_than_are_taken_are_refused(subject: Subject) {
    let opened = subject.open().await;
    let mut ids = vec![BlobId([7; 32]); TOUCH_BLOBS_MAX];
    assert_eq!(opened.blobs.touch(&ids).await.unwrap().len(), TOUCH_BLOBS_MAX);
    ids.push(BlobId([7; 32]));
    assert_eq!(opened.blobs.touch(&ids).await.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn what_was_put_is_there_after_reopening(subject: Subject) {
    let mut opened = subject.open().await;
    for round in 0..3 {
        for len in LENGTHS {
            put(&*opened.blobs, &bytes(round, len)).await;
        }
        opened = subject.reopen(opened).await;
    }
    for round in 0..3 {
        for len in LENGTHS {
            let answer = put(&*opened.blobs, &bytes(round, len)).await;
            assert!(!answer.is_new, "blob {round} of {len} bytes is there");
            assert_eq!(read_all(&*opened.blobs, answer.id).await.unwrap(), bytes(round, len));
        }
    }
}

async fn the_same_bytes_again_take_no_more_space_and_count_as_put_now(subject: Subject) {
    let opened = subject.open().await;
    let (short, long) = (bytes(1, 500), bytes(2, 300_000));
    let first = [put(&*opened.blobs, &short).await, put(&*opened.blobs, &long).await];
    list(&*opened.upkeep).await; // so that nothing is pending
    let before = opened.upkeep.stats().await.unwrap();
    for second in 1..4 {
        subject.tick(second);
        let again = [put(&*opened.blobs, &short).await, put(&*opened.blobs, &long).await];
        for (first, again) in first.iter().zip(again) {
            assert_eq!((first.id, first.bytes, false), (again.id, again.bytes, again.is_new));
        }
        for blob in list(&*opened.upkeep).await {
            assert_eq!(blob.put_at, at(second));
        }
        let stats = opened.upkeep.stats().await.unwrap();
        assert_eq!((stats.blobs, stats.bytes), (2, 300_500));
        let of_blobs = |stats: &restante_blobs::Stats| {
            let figures =
                stats.engine.iter().filter(|(name, _)| name == "pack_bytes" || name == "file_bytes");
            figures.cloned().collect::<Vec<_>>()
        };
        assert_eq!(of_blobs(&stats), of_blobs(&before));
    }
}

async fn of_many_puts_of_one_blob_at_the_same_time_one_is_new(subject: Subject) {
    let opened = subject.open().await;
    for len in [10, 2_000, 400_000] {
        let mut puts = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let blobs = opened.blobs.clone();
            puts.spawn(async move { put(&*blobs, &bytes(7, len)).await });
        }
        let answers = puts.join_all().await;
        assert!(answers.iter().all(|answer| answer.id == answers[0].id && answer.bytes == len as u64));
        assert_eq!(answers.iter().filter(|answer| answer.is_new).count(), 1, "{len} bytes");
        assert_eq!(read_all(&*opened.blobs, answers[0].id).await.unwrap(), bytes(7, len));
    }
    assert_eq!(opened.upkeep.stats().await.unwrap().blobs, 3);
}

async fn puts_at_the_same_time_keep_apart(subject: Subject) {
    let opened = subject.open().await;
    let mut puts = tokio::task::JoinSet::new();
    for n in 0..200 {
        let blobs = opened.blobs.clone();
        puts.spawn(async move {
            let blob = bytes(n, 20 * n as usize);
            let answer = put(&*blobs, &blob).await;
            assert!(answer.is_new, "blob {n}");
            assert_eq!(read_all(&*blobs, answer.id).await.unwrap(), blob, "blob {n} right after its put");
        });
    }
    puts.join_all().await;
    assert_eq!(list(&*opened.upkeep).await.len(), 200);
}

async fn a_hook_is_called_when_its_blob_is_durable(subject: Subject) {
    let opened = subject.open().await;
    for (n, len) in [10, 2_000, 400_000].into_iter().enumerate() {
        let blob = bytes(n as u32, len);
        let id = BlobId(Sha256::digest(&blob).into());
        for is_new in [true, false] {
            let (ended, put) = oneshot::channel();
            opened.blobs.put_then(&mut blob.clone(), hook(ended)).await.unwrap();
            assert_eq!(put.await.unwrap().unwrap(), Put { id, bytes: len as u64, is_new });
            assert_eq!(opened.blobs.size(id).await.unwrap(), Some(len as u64));
        }
    }
}

async fn a_blob_that_is_put_unsynced_can_be_read(subject: Subject) {
    let opened = subject.open().await;
    for (n, len) in UNSYNCED_LENGTHS.into_iter().enumerate() {
        let blob = bytes(n as u32, len);
        for is_new in [true, false] {
            let put = put_unsynced(&*opened.blobs, &blob).await;
            assert_eq!((put.bytes, put.is_new), (len as u64, is_new));
            assert_eq!(read_all(&*opened.blobs, put.id).await.unwrap(), blob);
        }
    }
    opened.blobs.sync().await.unwrap();
    assert_eq!(opened.upkeep.stats().await.unwrap().blobs, UNSYNCED_LENGTHS.len() as u64);
    assert!(opened.upkeep.check(&|_, _| ()).await.unwrap().findings.is_empty());
}

/// Power cuts have a test of their own.
async fn what_was_put_unsynced_is_there_after_a_sync_and_reopening(subject: Subject) {
    let opened = subject.open().await;
    let mut blobs = Vec::new();
    for (n, len) in UNSYNCED_LENGTHS.into_iter().enumerate() {
        let blob = bytes(n as u32, len);
        blobs.push((put_unsynced(&*opened.blobs, &blob).await.id, blob));
    }
    opened.blobs.sync().await.unwrap();
    let opened = subject.reopen(opened).await;
    for (id, blob) in blobs {
        assert_eq!(read_all(&*opened.blobs, id).await.unwrap(), blob);
    }
}

async fn a_hook_is_dropped_when_its_source_fails(subject: Subject) {
    let opened = subject.open().await;
    for len in [10, 2_000, 400_000] {
        let (ended, put) = oneshot::channel();
        let mut source = Chunks::new([bytes(1, len)]).then_fails();
        let failed = opened.blobs.put_then(&mut source, hook(ended)).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Conflict);
        assert!(put.await.is_err(), "nothing was sent");
    }
    assert_eq!(list(&*opened.upkeep).await, []);
}

/// Passes on the result of a put.
fn hook(ended: oneshot::Sender<Result<Put, Error>>) -> PutHook {
    Box::new(move |put| ended.send(put).unwrap())
}

async fn a_source_that_fails_leaves_nothing(subject: Subject) {
    let opened = subject.open().await;
    for len in [0, 10, 2_000, 400_000] {
        let mut source =
            Chunks::new([bytes(1, len)].into_iter().filter(|chunk| !chunk.is_empty())).then_fails();
        let error = opened.blobs.put(&mut source).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Conflict, "the source broke"));
    }
    assert_eq!(list(&*opened.upkeep).await, []);
    let stats = opened.upkeep.stats().await.unwrap();
    assert_eq!((stats.blobs, stats.bytes), (0, 0));
    assert!(opened.upkeep.check(&|_, _| ()).await.unwrap().findings.is_empty());
}

/// Gives a chunk and then hangs.
struct Stuck(Option<Bytes>);

#[async_trait::async_trait]
impl Source for Stuck {
    async fn next(&mut self) -> Result<Option<Bytes>, restante_blobs::Error> {
        match self.0.take() {
            Some(chunk) => Ok(Some(chunk)),
            None => std::future::pending().await,
        }
    }
}

async fn a_put_that_is_given_up_leaves_nothing(subject: Subject) {
    let opened = subject.open().await;
    for len in [10, 2_000, 400_000] {
        let blobs = opened.blobs.clone();
        let put = tokio::spawn(async move { blobs.put(&mut Stuck(Some(bytes(1, len)))).await.map(|_| ()) });
        tokio::task::yield_now().await;
        put.abort();
        assert!(put.await.unwrap_err().is_cancelled());
    }
    let opened = if subject.engine.is_volatile() { opened } else { subject.reopen(opened).await };
    assert_eq!(list(&*opened.upkeep).await, []);
    assert!(opened.upkeep.check(&|_, _| ()).await.unwrap().findings.is_empty());
}

async fn a_long_blob_goes_through_chunk_by_chunk(subject: Subject) {
    let opened = subject.open().await;
    let chunks: Vec<Bytes> = (0..12).map(|n| bytes(n, 700_001)).collect();
    let answer = opened.blobs.put(&mut Chunks::new(chunks.clone())).await.unwrap();
    assert_eq!(answer.bytes, 12 * 700_001);
    let whole: Vec<u8> = chunks.concat();
    assert_eq!(read_all(&*opened.blobs, answer.id).await.unwrap(), whole);
    assert!(
        !put(&*opened.blobs, &whole.into()).await.is_new,
        "the same bytes in other chunks are the same blob"
    );
}

async fn chunks_may_come_in_any_lengths(subject: Subject) {
    let opened = subject.open().await;
    let blob = bytes(3, 5_000);
    let mut ids = Vec::new();
    for len in [1, 7, 999, 1_000, 1_001, 5_000] {
        let chunks = blob.chunks(len).map(Bytes::copy_from_slice);
        ids.push(opened.blobs.put(&mut Chunks::new(chunks)).await.unwrap().id);
    }
    assert!(ids.iter().all(|id| *id == ids[0]));
    assert_eq!(read_all(&*opened.blobs, ids[0]).await.unwrap(), blob);
}

async fn a_blob_longer_than_is_taken_is_refused_and_leaves_nothing(subject: Subject) {
    for max in [100, 5_000, 300_000] {
        let url = subject.another(&max.to_string());
        let opened = open(Config { url, blob_bytes_max: max.try_into().unwrap(), ..subject.config.clone() })
            .await
            .unwrap();
        let longer = bytes(1, max as usize + 1);
        let error = opened.blobs.put(&mut longer.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(&max.to_string()), "{error}");
        let mut endless = Chunks::new(std::iter::repeat_n(bytes(1, 50), max as usize));
        assert_eq!(opened.blobs.put(&mut endless).await.unwrap_err().kind(), ErrorKind::Invalid);
        assert!(endless.chunks.len() as u64 >= max - max / 50 - 1, "it is not read to its end");
        assert_eq!(list(&*opened.upkeep).await, []);
        assert!(put(&*opened.blobs, &bytes(1, max as usize)).await.is_new, "the longest is taken");
    }
}

async fn any_range_can_be_read(subject: Subject) {
    let opened = subject.open().await;
    for len in [0, 10, 900, 5_000, 300_000, 2 * CHUNK_BYTES_MAX + 100] {
        let blob = bytes(4, len);
        let id = put(&*opened.blobs, &blob).await.id;
        let len = len as u64;
        let part = CHUNK_BYTES_MAX as u64;
        let places = [
            0,
            1,
            len / 2,
            part - 1,
            part,
            part + 1,
            2 * part,
            len.saturating_sub(1),
            len,
            len + 1,
            u64::MAX,
        ];
        for start in places {
            for end in places.into_iter().filter(|end| *end >= start) {
                let expected = &blob[start.min(len) as usize..end.min(len) as usize];
                let found = read(&*opened.blobs, id, start..end).await.unwrap();
                assert!(found == expected, "{start}..{end} of {len}");
            }
        }
    }
}

async fn reading_what_is_not_there_is_not_found(subject: Subject) {
    let opened = subject.open().await;
    put(&*opened.blobs, &bytes(1, 10)).await;
    let error = read_all(&*opened.blobs, BlobId([7; 32])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[expect(clippy::reversed_empty_ranges, reason = "that is what is tested")]
async fn a_range_that_ends_before_it_begins_is_invalid(subject: Subject) {
    let opened = subject.open().await;
    for len in [10, 2_000, 400_000] {
        let id = put(&*opened.blobs, &bytes(1, len)).await.id;
        for range in [1..0, u64::MAX..1] {
            let error = read(&*opened.blobs, id, range).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }
}

async fn the_size_needs_no_reading(subject: Subject) {
    let opened = subject.open().await;
    for len in LENGTHS {
        let id = put(&*opened.blobs, &bytes(1, len)).await.id;
        assert_eq!(opened.blobs.size(id).await.unwrap(), Some(len as u64));
    }
    assert_eq!(opened.blobs.size(BlobId([7; 32])).await.unwrap(), None);
}

async fn bytes_give_chunks_of_the_allowed_length(_: Subject) {
    let blob = bytes(1, 2 * CHUNK_BYTES_MAX + 1);
    let mut source = blob.clone();
    let mut lengths = Vec::new();
    while let Some(chunk) = source.next().await.unwrap() {
        lengths.push(chunk.len());
    }
    assert_eq!(lengths, [CHUNK_BYTES_MAX, CHUNK_BYTES_MAX, 1]);
    assert!(source.next().await.unwrap().is_none(), "the end stays the end");
    assert!(Bytes::new().next().await.unwrap().is_none());
}

async fn a_closed_store_refuses(subject: Subject) {
    let opened = subject.open().await;
    let id = put(&*opened.blobs, &bytes(1, 10)).await.id;
    opened.upkeep.close().await.unwrap();
    opened.upkeep.close().await.unwrap(); // closing twice is not an error
    let blobs = &*opened.blobs;
    assert_eq!(blobs.put(&mut bytes(2, 10)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(blobs.put(&mut bytes(2, 400_000)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(read_all(blobs, id).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(blobs.size(id).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let upkeep = &*opened.upkeep;
    assert_eq!(upkeep.health().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(upkeep.list(None, 1).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(upkeep.remove(&[id], at(1)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(upkeep.stats().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(upkeep.check(&|_, _| ()).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

async fn what_was_put_is_there_after_a_store_that_was_not_closed(subject: Subject) {
    let opened = subject.open().await;
    for len in LENGTHS {
        put(&*opened.blobs, &bytes(1, len)).await;
    }
    drop(opened);
    let opened = loop {
        match open(subject.config.clone()).await {
            Ok(opened) => break opened,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"), // its threads have not ended yet
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    };
    for len in LENGTHS {
        let blob = bytes(1, len);
        let again = put(&*opened.blobs, &blob).await;
        assert!(!again.is_new);
        assert_eq!(read_all(&*opened.blobs, again.id).await.unwrap(), blob);
    }
}

async fn only_one_process_may_have_the_store_open(subject: Subject) {
    let opened = subject.open().await;
    let error = open(subject.config.clone()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    put(&*opened.blobs, &bytes(1, 10)).await;
    subject.reopen(opened).await;
}

async fn settings_beyond_what_the_engine_can_are_refused(subject: Subject) {
    let mut config = subject.config.clone();
    config.files.packed_bytes_max = (1 << 20) + 1;
    assert_eq!(open(config).await.map(|_| ()).unwrap_err().kind(), ErrorKind::Invalid);
    let config = Config { blob_bytes_max: nonzero!((64 << 30) + 1), ..subject.config.clone() };
    assert_eq!(open(config).await.map(|_| ()).unwrap_err().kind(), ErrorKind::Invalid);
}
