//! Power cuts while backups are taken and restored: what looks finished is whole, and has what was acknowledged before.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use restante_archive::{LogConfig, Message, Query, Walk};
use restante_core::{MessageHash, Timestamp};
use restante_power_cut::{Child, child, cuts, record};
use restante_records::{AccountId, Body, Change, Commit, Id, Kind, Properties};

use super::{Manifest, Removing, Sources, Teller, restore, take, verify};
use crate::{
    config::{Effective, Origin, Setting, load},
    schema,
};

const THREAD: Kind = Kind(3);
const ACCOUNT: AccountId = AccountId(1);
/// Backups that are taken in one run, each with more in it.
const BACKUPS: u32 = 3;
/// What is kept before each backup, and not meanwhile.
const AT_REST: u32 = 12;

fn message(number: u32) -> Message {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_be_bytes());
    Message {
        message_hash: MessageHash(hash),
        channel: "channel".into(),
        topic: "topic".into(),
        timestamp: Timestamp::from_seconds(i64::from(number)),
        body: Bytes::from(vec![number as u8; 700]),
    }
}

/// Some lie in packs, and some in files of their own.
fn blob(number: u32) -> Bytes {
    let bytes = if number.is_multiple_of(5) { 2_000 } else { 100 };
    Bytes::from(vec![number as u8; bytes + number as usize])
}

/// All that a server keeps below a folder.
struct Kept {
    effective: Effective,
    archive: restante_archive::Opened,
    records: restante_records::Opened,
    blobs: restante_blobs::Opened,
    next: AtomicU32,
}

fn settings(data: &Path) -> Effective {
    let value = data.to_str().unwrap().into();
    load(
        None,
        [].into_iter(),
        vec![Setting { key: "server.data_dir".into(), value, origin: Origin::Flag("--data") }],
    )
    .unwrap()
}

impl Kept {
    async fn open(data: &Path) -> Self {
        let effective = settings(data);
        let config = &effective.config;
        let mut archive = restante_archive::Config::new(config.archive_url());
        archive.log = LogConfig { window_seconds: 4, segment_messages: 4, open_segments: 2, ..archive.log };
        let mut records = restante_records::Config::new(config.records_url(), schema::mail());
        records.lmdb.log_bytes = 64 << 10;
        let mut blobs = restante_blobs::Config::new(config.blobs_url());
        blobs.files = restante_blobs::FilesConfig { packed_bytes_max: 1_000, pack_bytes: 4_000 };
        Self {
            archive: restante_archive::open(archive).await.unwrap(),
            records: restante_records::open(records).await.unwrap(),
            blobs: restante_blobs::open(blobs).await.unwrap(),
            next: AtomicU32::new(1),
            effective,
        }
    }

    async fn close(&self) {
        self.archive.upkeep.close().await.unwrap();
        self.records.upkeep.close().await.unwrap();
        self.blobs.upkeep.close().await.unwrap();
    }

    /// Keeps a blob, a record that refers to it, and a message; numbers are ids.
    async fn keep_next(&self) -> u32 {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let id = self.blobs.blobs.put(&mut blob(number)).await.unwrap().id;
        let body = Body { bytes: number.to_string().into(), blobs: vec![id] };
        let create = Change::Create { kind: THREAD, body, properties: Properties::default() };
        self.records.records.commit(ACCOUNT, Commit::of([create])).await.unwrap();
        self.archive.archive.append(vec![message(number)]).await.unwrap();
        number
    }

    fn sources(&self) -> Sources {
        Sources::new(
            &self.effective,
            Some(self.records.upkeep.clone()),
            Some(self.blobs.upkeep.clone()),
            Some(self.archive.upkeep.clone()),
            Removing::default(),
        )
    }

    /// The messages that are there.
    async fn messages(&self) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        let mut walk = Walk::new(Query::default());
        while let Some(page) = walk.next(&*self.archive.archive).await.unwrap() {
            for row in page.rows() {
                let number = u32::try_from(row.timestamp.seconds()).unwrap();
                assert_eq!(row.body, message(number).body);
                found.insert(number);
            }
        }
        found
    }

    /// The numbers of the records that are there, each of which has its blob.
    async fn records(&self) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for dumped in self.records.upkeep.dump(None, 4_096).await.unwrap() {
            let number: u32 = std::str::from_utf8(&dumped.record.body.bytes).unwrap().parse().unwrap();
            assert!(dumped.record.id >= Id(1));
            let id = dumped.record.body.blobs[0];
            let mut source = self.blobs.blobs.read(id, 0..u64::MAX).await.unwrap();
            let mut bytes = Vec::new();
            while let Some(chunk) = source.next().await.unwrap() {
                bytes.extend_from_slice(&chunk);
            }
            assert_eq!(bytes, blob(number));
            found.insert(number);
        }
        found
    }
}

/// Keeps things all the time, takes backups, and restores each.
async fn run(child: Arc<Child>) {
    let kept = Arc::new(Kept::open(&child.folder().join("data")).await);
    for backup in 0..BACKUPS {
        for _ in 0..AT_REST {
            let number = kept.keep_next().await;
            child.acknowledge(&format!("kept {number}")).unwrap();
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (busy, over, acknowledging) = (kept.clone(), is_over.clone(), child.clone());
        let traffic = tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let number = busy.keep_next().await;
                acknowledging.acknowledge(&format!("kept {number}")).unwrap();
            }
        });
        child.acknowledge(&format!("begin {backup}")).unwrap();
        let copy = child.folder().join(format!("copy-{backup}"));
        let (teller, mut told) = Teller::new();
        let listening = tokio::spawn(async move { while told.recv().await.is_some() {} });
        take(Arc::new(kept.sources()), copy.clone(), teller).await.unwrap();
        child.acknowledge(&format!("taken {backup}")).unwrap();
        is_over.store(true, Ordering::Relaxed);
        traffic.await.unwrap();
        listening.await.unwrap();
        let config = settings(&child.folder().join(format!("restored-{backup}"))).config;
        restore(&config, &copy, false, Timestamp(0), &mut |_, _| {}).unwrap();
        child.acknowledge(&format!("restored {backup}")).unwrap();
    }
    kept.close().await;
}

/// What was kept before a backup was begun.
fn kept_before(acknowledged: &[&str], backup: u32) -> BTreeSet<u32> {
    let begin = format!("begin {backup}");
    let before = acknowledged.iter().take_while(|line| **line != begin);
    before.filter_map(|line| line.strip_prefix("kept ")?.parse().ok()).collect()
}

async fn check_has_all(data: &Path, expected: &BTreeSet<u32>) {
    let kept = Kept::open(data).await;
    let (messages, records) = (kept.messages().await, kept.records().await);
    for (what, found) in [("messages", messages), ("records", records)] {
        let lost: Vec<&u32> = expected.difference(&found).collect();
        assert!(lost.is_empty(), "{what} that were acknowledged before are not there: {lost:?}");
    }
    assert!(kept.archive.upkeep.check(&|_, _| {}).await.unwrap().is_sound());
    assert_eq!(kept.records.upkeep.check(&|_, _| {}).await.unwrap().findings, []);
    assert_eq!(kept.blobs.upkeep.check(&|_, _| {}).await.unwrap().findings, []);
    kept.close().await;
}

#[test]
fn what_looks_finished_is_whole_after_any_power_cut() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Some(child) = child().unwrap() {
        return runtime.block_on(run(Arc::new(child)));
    }
    let log = record("backup::power_cut::what_looks_finished_is_whole_after_any_power_cut").unwrap();
    let replayed = log.replay(cuts(24), 3, |cut| {
        runtime.block_on(async {
            for backup in 0..BACKUPS {
                let (copy, data) = (format!("copy-{backup}"), format!("restored-{backup}"));
                let (copy, data) = (cut.folder().join(copy), cut.folder().join(data));
                let expected = kept_before(cut.acknowledged(), backup);
                let was = |what: &str| cut.acknowledged().contains(&format!("{what} {backup}").as_str());
                assert!(copy.exists() || !was("taken"), "a backup that was taken is there");
                if copy.exists() {
                    let manifest = Manifest::read(&copy).unwrap();
                    assert_eq!(verify(&copy, &manifest, &mut |_, _| {}), []);
                    let elsewhere = cut.folder().join(format!("checked-{backup}"));
                    let config = settings(&elsewhere).config;
                    restore(&config, &copy, false, Timestamp(0), &mut |_, _| {}).unwrap();
                    check_has_all(&elsewhere, &expected).await;
                }
                let config = settings(&data).config;
                let is_halfway = super::check_not_halfway(&config).is_err();
                assert!(!(is_halfway && was("restored")));
                let is_whole = data.join("records").exists() && !is_halfway;
                assert!(is_whole || !was("restored"), "what was restored is there");
                if is_whole {
                    check_has_all(&data, &expected).await;
                }
            }
        });
    });
    replayed.unwrap();
}
