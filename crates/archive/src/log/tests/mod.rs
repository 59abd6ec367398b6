//! What can't be seen from outside: failing disks and power cuts, through the [`Disk`](super::disk::Disk) seam.

pub(super) mod faults;
mod power_cut;

use std::{ffi::OsString, io::Write, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use restante_core::{ManualClock, MessageHash, Timestamp, nonzero};

use super::{
    disk::{Disk, Folder},
    open::open_on,
};
use crate::{Config, LogConfig, Message, Opened, Query, Walk};

const SECOND: i64 = 1_000_000_000;

/// Windows of a second and segments of twenty messages, so that a small workload crosses many.
pub(super) fn config() -> Config {
    let mut config = Config::new("memory:".parse().unwrap());
    config.clock = Arc::new(ManualClock::new(Timestamp(100 * SECOND)));
    config.log = LogConfig {
        window_seconds: nonzero!(1),
        segment_messages: nonzero!(20),
        open_segments: nonzero!(2),
        ..LogConfig::default()
    };
    config
}

fn open(disk: Arc<dyn Disk>) -> Result<Opened, crate::Error> {
    open_on(disk, &config(), None)
}

/// Message number `n`, a few in each second; the body repeats its number.
pub(super) fn message(n: u32, body_len: usize) -> Message {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&n.wrapping_mul(2_654_435_761).to_be_bytes());
    hash[4..8].copy_from_slice(&n.to_be_bytes());
    Message {
        message_hash: MessageHash(hash),
        channel: "chan".into(),
        topic: format!("topic {}", n % 11).into(),
        timestamp: Timestamp(i64::from(n) * SECOND / 32),
        body: n.to_le_bytes().iter().copied().cycle().take(body_len).collect::<Vec<u8>>().into(),
    }
}

/// Everything that the archive serves.
async fn everything(opened: &Opened) -> Vec<Message> {
    let mut walk = Walk::new(Query { limit: 100, ..Query::default() });
    let mut messages = Vec::new();
    while let Some(page) = walk.next(&*opened.archive).await.unwrap() {
        messages.extend(page.rows().map(|row| Message {
            message_hash: row.message_hash,
            channel: row.channel.into(),
            topic: row.topic.into(),
            timestamp: row.timestamp,
            body: row.body.to_vec().into(),
        }));
    }
    messages
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The files of a folder with their bytes.
fn content(folder: &Path) -> Vec<(OsString, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let mut content: Vec<_> =
        entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap())).collect();
    content.sort();
    content
}

#[test]
fn a_segment_that_has_lost_its_index_does_not_change_its_backup() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let opened = || open(Arc::new(Folder::new(folder.path()))).unwrap();
    let is_index = |path: &Path| path.extension().is_some_and(|extension| extension == "idx");
    runtime().block_on(async {
        let first = opened();
        first.archive.append((0..100).map(|n| message(n, 40)).collect()).await.unwrap();
        first.upkeep.close().await.unwrap();
    });
    // Full segments are sealed at the latest when the archive is opened again.
    runtime().block_on(async {
        let second = opened();
        while !content(folder.path()).iter().any(|(name, _)| is_index(Path::new(name))) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        second.upkeep.backup(copy.path()).await.unwrap();
        second.upkeep.close().await.unwrap();
    });
    let backed_up = content(copy.path());
    let linked = |path: &Path| std::fs::metadata(path).unwrap().nlink() > 1;
    let mut torn = 0;
    for (name, _) in content(folder.path()) {
        let path = folder.path().join(&name);
        if is_index(&path) && linked(&path) {
            std::fs::remove_file(&path).unwrap();
            // A torn end of the backup's file would be truncated too.
            let mut log = std::fs::OpenOptions::new().append(true).open(path.with_extension("log")).unwrap();
            log.write_all(b"torn").unwrap();
            torn += 1;
        }
    }
    assert!(torn > 0, "segments were sealed");
    let backed_up_torn = content(copy.path());
    assert_ne!(backed_up_torn, backed_up, "the backup's files are the archive's");
    runtime().block_on(async {
        let third = opened();
        third.archive.append((100..200).map(|n| message(n % 100, 50 + n as usize)).collect()).await.unwrap();
        assert!(everything(&third).await.len() >= 100);
        third.upkeep.close().await.unwrap();
    });
    assert_eq!(content(copy.path()), backed_up_torn);
}
