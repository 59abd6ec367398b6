//! The contents of an archive in Cassandra, and whether they are sound.

use std::collections::{BTreeMap, HashSet};

use foldhash::fast::RandomState;
use futures_util::{StreamExt, TryStreamExt, stream};
use restante_core::{Key, Timestamp};

use super::{
    Shared,
    append::{LOOKUP_KEYS, key_of},
    epochs::Epoch,
    page,
    retention::held,
    schema::{self, BoundKey, EpochId, KeyRow, Statement, TopicKey, WholeRow},
};
use crate::{Error, Finding, PartStats, Report, Stats};

/// Rows that are checked together.
const ROWS: i32 = 250;
const REQUESTS: usize = 16;

/// The contents of the archive.
pub(super) async fn stats(shared: &Shared) -> Result<Stats, Error> {
    shared.sync().await?;
    let mut stats = Stats { engine: "cassandra", damaged: shared.metrics.damaged.get(), ..Stats::default() };
    for held in held(shared).await? {
        let (Some(oldest), Some(newest)) = (held.count.oldest, held.count.newest) else { continue };
        stats.messages += held.count.messages;
        stats.body_bytes += held.count.body_bytes;
        stats.disk_bytes += held.count.disk_bytes();
        stats.oldest = stats.oldest.or(Some(Timestamp(oldest)));
        stats.newest = Some(Timestamp(newest));
        stats.parts.push(PartStats {
            name: schema::table(held.epoch.id),
            oldest: Timestamp(oldest),
            newest: Timestamp(newest),
            messages: held.count.messages,
            disk_bytes: held.count.disk_bytes(),
            is_open: true,
        });
    }
    stats.topics = shared.catalog.topics_len();
    Ok(stats)
}

/// A message as it is stored in its window.
struct Row {
    key: Key,
    value: Vec<u8>,
    size: Option<i32>,
}

/// Compares each window's messages with their keys, their topics and their long bodies.
pub(super) async fn check(
    shared: &Shared,
    is_repairing: bool,
    progress: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Report, Error> {
    shared.sync().await?;
    let mut report = Report::default();
    let total = held(shared).await?.iter().map(|held| held.count.body_bytes).sum();
    for epoch in shared.catalog.list().open() {
        for window in &shared.catalog.contents(epoch.id).windows {
            match check_window(shared, epoch, *window, is_repairing, &mut report).await {
                Err(error) if shared.is_open(epoch.id).await? => return Err(error),
                Err(_) => break, // retention is dropping it
                Ok(()) => {}
            }
            progress(report.bytes.min(total), total);
        }
    }
    Ok(report)
}

async fn check_window(
    shared: &Shared,
    epoch: &Epoch,
    window: i64,
    is_repairing: bool,
    report: &mut Report,
) -> Result<(), Error> {
    let part = schema::window_part(window);
    let (mut from, end) = ((i64::MIN, Vec::new()), schema::end_of_slice());
    loop {
        let values = (part.as_slice(), from.0, from.1.as_slice(), end.0, end.1.as_slice(), ROWS);
        let rows: Vec<WholeRow> =
            shared.database.read("check messages", Statement::Whole(epoch.id), values).await?;
        let is_last = rows.len() < ROWS as usize;
        if let Some((timestamp, hash, ..)) = rows.last() {
            from = (*timestamp, hash.clone());
        }
        let rows: Vec<Row> = rows
            .into_iter()
            .filter_map(|(timestamp, hash, value, size)| {
                // A row without a value was left by an interrupted append.
                Some(Row { key: key_of(timestamp, &hash)?, value: value?, size })
            })
            .collect();
        check_rows(shared, epoch, window, &rows, is_repairing, report).await?;
        if is_last {
            return Ok(());
        }
    }
}

async fn check_rows(
    shared: &Shared,
    epoch: &Epoch,
    window: i64,
    rows: &[Row],
    is_repairing: bool,
    report: &mut Report,
) -> Result<(), Error> {
    let part = format!("{} window {window}", schema::table(epoch.id));
    let mut sound: Vec<(Key, TopicKey)> = Vec::new();
    for row in rows {
        match problem_of(shared, epoch, row).await? {
            Ok((topic, bytes)) => {
                sound.push((row.key, topic));
                if !is_repairing && row.size.is_none_or(|size| u64::try_from(size) != Ok(bytes)) {
                    let what =
                        format!("message {} has a wrong size: rebuild the archive", row.key.message_hash);
                    report.add(Finding { part: part.clone(), offset: None, what });
                }
                report.messages += 1;
                report.bytes += bytes;
            }
            Err(what) => {
                report.lost += 1;
                let what = format!("message {}: {what}", row.key.message_hash);
                report.add(Finding { part: part.clone(), offset: None, what });
            }
        }
    }
    if is_repairing {
        return write_keys(shared, epoch, window, &sound, rows).await;
    }
    let (by_topic, by_hash) = tokio::try_join!(
        keys_by_topic(shared, epoch.id, window, &sound),
        keys_by_hash(shared, epoch.id, &sound)
    )?;
    for (name, found) in [("topic", &by_topic), ("hash", &by_hash)] {
        for (key, _) in sound.iter().filter(|(key, _)| !found.contains(key)) {
            let what = format!("message {} has no key by {name}: rebuild the archive", key.message_hash);
            report.add(Finding { part: part.clone(), offset: None, what });
        }
    }
    Ok(())
}

/// The topic of a message and the bytes of its body, or what is wrong with it.
async fn problem_of(
    shared: &Shared,
    epoch: &Epoch,
    row: &Row,
) -> Result<Result<(TopicKey, u64), &'static str>, Error> {
    let Some(value) = schema::decode_value(&row.value) else {
        return Ok(Err("its value is damaged"));
    };
    if page::body(shared, epoch.id, &value).await?.is_none() {
        return Ok(Err("its body is damaged or not whole"));
    }
    if !shared.catalog.has_topic(epoch.id, &value.topic) {
        return Ok(Err("its topic is not in the catalogue"));
    }
    Ok(Ok((value.topic, u64::from(value.body_bytes))))
}

async fn keys_by_topic(
    shared: &Shared,
    epoch: EpochId,
    window: i64,
    rows: &[(Key, TopicKey)],
) -> Result<HashSet<Key, RandomState>, Error> {
    let mut topics: BTreeMap<TopicKey, Vec<BoundKey<'_>>> = BTreeMap::new();
    for (key, topic) in rows {
        topics.entry(*topic).or_default().push((key.timestamp.0, key.message_hash.0.as_slice()));
    }
    let requests: Vec<_> =
        topics.iter().flat_map(|(topic, keys)| keys.chunks(LOOKUP_KEYS).map(|keys| (*topic, keys))).collect();
    let reads: Vec<_> = requests
        .into_iter()
        .map(|(topic, keys)| async move {
            let values = (schema::posting_part(&topic, Epoch::span(window)), keys);
            let found: Result<Vec<KeyRow>, Error> =
                shared.database.read("check keys by topic", Statement::Keys(epoch), values).await;
            found
        })
        .collect();
    let found: Vec<Vec<KeyRow>> = stream::iter(reads).buffer_unordered(REQUESTS).try_collect().await?;
    Ok(found.into_iter().flatten().filter_map(|(timestamp, hash)| key_of(timestamp, &hash)).collect())
}

async fn keys_by_hash(
    shared: &Shared,
    epoch: EpochId,
    rows: &[(Key, TopicKey)],
) -> Result<HashSet<Key, RandomState>, Error> {
    let parts: Vec<Vec<u8>> = rows.iter().map(|(key, _)| schema::hash_part(&key.message_hash.0)).collect();
    let reads: Vec<_> = parts
        .chunks(LOOKUP_KEYS / 2)
        .map(|parts| async move {
            let found: Result<Vec<KeyRow>, Error> =
                shared.database.read("check keys by hash", Statement::KeysOfParts(epoch), (parts,)).await;
            found
        })
        .collect();
    let found: Vec<Vec<KeyRow>> = stream::iter(reads).buffer_unordered(REQUESTS).try_collect().await?;
    Ok(found.into_iter().flatten().filter_map(|(timestamp, hash)| key_of(timestamp, &hash)).collect())
}

/// Rewrites the keys and sizes of messages.
async fn write_keys(
    shared: &Shared,
    epoch: &Epoch,
    window: i64,
    sound: &[(Key, TopicKey)],
    rows: &[Row],
) -> Result<(), Error> {
    // All servers write the same keys, so these may have a higher timestamp than those of appends and of deletions.
    let written = shared.micros();
    let mut keys = Vec::new();
    for (key, topic) in sound {
        for part in [schema::posting_part(topic, Epoch::span(window)), schema::hash_part(&key.message_hash.0)]
        {
            keys.push((part, key.timestamp.0, key.message_hash.0, written));
        }
    }
    let writes: Vec<_> = keys
        .into_iter()
        .map(|(part, timestamp, hash, written)| async move {
            let values = (part, timestamp, hash.to_vec(), written);
            shared.database.write("write keys anew", Statement::PutKey(epoch.id), values).await
        })
        .collect();
    let _: Vec<()> = stream::iter(writes).buffer_unordered(REQUESTS).try_collect().await?;
    let wrong = rows.iter().filter_map(|row| {
        let len = schema::decode_value(&row.value)?.body_bytes;
        let size = i32::try_from(len).unwrap_or(i32::MAX);
        (row.size != Some(size)).then_some((row.key, size))
    });
    for (key, size) in wrong {
        let hash = key.message_hash.0.as_slice();
        let values = (schema::window_part(window), key.timestamp.0, hash, size);
        shared.database.write("write a size anew", Statement::PutSize(epoch.id), values).await?;
    }
    Ok(())
}
