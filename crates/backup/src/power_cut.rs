//! Power cuts while a backup of all roles is taken and while it is restored, during commits, puts, sweeps and appends. What looks
//! finished is complete and contains what was acknowledged before; what is not finished is detected and can be done again; and the
//! stores that were backed up have lost nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use restante_archive::{LogConfig, Message, Query, Walk};
use restante_blobs::{References, sweep};
use restante_core::{BlobId, Error, Identity, MessageHash, SystemClock, Timestamp, nonzero};
use restante_power_cut::{Child, Cut, child, cuts, record};
use restante_records::{AccountId, Body, Change, Commit, Kind, Properties, RecordId};

use super::{
    ArchiveFiles, EventSender, Layout, Manifest, Removing, RestoreOptions, Sources, Store, check_not_halfway,
    disk, layout::testing::schema, manifest::Role, restore, take, target::ASIDE, verify,
};

const THREAD: Kind = restante_mail::thread::KIND;
const ACCOUNT: AccountId = AccountId(1);
/// Backups that are taken in one run, each of more data and restored in another way.
const BACKUPS: u32 = 3;
/// The backup that is restored into a folder that contains another one, which is moved aside.
const FORCED: u32 = 1;
/// The backup whose archive and blobs are restored to locations outside the data folder.
const OUTSIDE: u32 = 2;
/// The items that are stored before each backup, and not meanwhile.
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

/// Some are in packs, and some in files of their own.
fn blob(number: u32) -> Bytes {
    let bytes = if number.is_multiple_of(5) { 2_000 } else { 100 };
    Bytes::from(vec![number as u8; bytes + number as usize])
}

/// The locations of a server's data.
#[derive(Clone)]
struct Settings {
    data: PathBuf,
    records: restante_records::EngineUrl,
    blobs: restante_blobs::EngineUrl,
    archive: restante_archive::EngineUrl,
}

impl Settings {
    /// Archive and blobs are below `outside`, if there is one.
    fn new(data: &Path, outside: Option<&Path>) -> Self {
        let outside = outside.unwrap_or(data);
        Self {
            data: data.to_owned(),
            records: restante_records::EngineUrl::Lmdb(data.join("records")),
            blobs: restante_blobs::EngineUrl::Files(outside.join("blobs")),
            archive: restante_archive::EngineUrl::Log(outside.join("archive")),
        }
    }

    fn layout(&self, open: Option<&Stores>) -> Layout {
        let archive = ArchiveFiles {
            url: self.archive.clone(),
            spool: self.data.join("spool/archive"),
            second: None,
            second_spool: self.data.join("spool/tandem"),
        };
        Layout::new(&self.data)
            .with_store(Store::records(&self.records, open.map(|open| open.records.upkeep.clone())))
            .with_store(Store::blobs(&self.blobs, open.map(|open| open.blobs.upkeep.clone())))
            .with_store(Store::archive(archive, open.map(|open| open.archive.upkeep.clone())))
    }
}

/// All stores of a server in a folder.
struct Stores {
    settings: Settings,
    archive: restante_archive::Opened,
    records: restante_records::Opened,
    blobs: restante_blobs::Opened,
    removing: Removing,
    next: AtomicU32,
}

/// The references of the records.
struct OfRecords(Arc<dyn restante_records::Upkeep>);

#[async_trait]
impl References for OfRecords {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    async fn page(&self, after: Option<u64>) -> Result<(Vec<BlobId>, Option<u64>), Error> {
        let page = self.0.referenced(after).await?;
        Ok((page.blobs, page.next))
    }
}

/// The locations to which the child, or a check, restores a backup.
fn settings_of(folder: &Path, backup: u32) -> Settings {
    let outside = folder.join(format!("outside-{backup}"));
    Settings::new(&folder.join(format!("restored-{backup}")), (backup == OUTSIDE).then_some(&outside))
}

fn options(is_forced: bool) -> RestoreOptions {
    RestoreOptions { is_forced, keep_node_key: true }
}

fn copy_of(folder: &Path, backup: u32) -> PathBuf {
    folder.join(format!("copy-{backup}"))
}

impl Stores {
    async fn open(settings: Settings, next: u32) -> Self {
        let mut archive = restante_archive::Config::new(settings.archive.clone());
        archive.log = LogConfig {
            window_seconds: nonzero!(4),
            segment_messages: nonzero!(4),
            open_segments: nonzero!(2),
            ..archive.log
        };
        let mut records = restante_records::Config::new(settings.records.clone(), schema());
        records.lmdb.log_bytes = 64 << 10;
        let mut blobs = restante_blobs::Config::new(settings.blobs.clone());
        blobs.files = restante_blobs::FilesConfig { packed_bytes_max: 1_000, pack_bytes: nonzero!(4_000) };
        Self {
            archive: restante_archive::open(archive).await.unwrap(),
            records: restante_records::open(records).await.unwrap(),
            blobs: restante_blobs::open(blobs).await.unwrap(),
            removing: Removing::default(),
            next: AtomicU32::new(next),
            settings,
        }
    }

    async fn close(&self) {
        self.archive.upkeep.close().await.unwrap();
        self.records.upkeep.close().await.unwrap();
        self.blobs.upkeep.close().await.unwrap();
    }

    /// Stores a blob, a record that refers to it, and a message; numbers are ids.
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
        let layout = self.settings.layout(Some(self));
        Sources::new(layout, String::new(), Arc::new(SystemClock), self.removing.clone())
    }

    /// Puts an unreferenced blob, and sweeps unless a backup prevents that: packs are rewritten.
    async fn sweep(&self, number: u32) {
        let mut refuse = Bytes::from(vec![number as u8; 900]);
        self.blobs.blobs.put(&mut refuse).await.unwrap();
        if let Ok(_guard) = self.removing.try_lock() {
            let (records, blobs) = (&self.records.upkeep, &self.blobs.upkeep);
            if blobs.owner().await.unwrap().is_none() {
                blobs.set_owner(records.identity()).await.unwrap();
            }
            sweep(&**blobs, &OfRecords(records.clone()), Timestamp::MAX).await.unwrap();
        }
    }

    async fn back_up(&self, copy: &Path) {
        let (sender, mut events) = EventSender::new();
        let listening = tokio::spawn(async move { while events.recv().await.is_some() {} });
        take(Arc::new(self.sources()), copy.to_owned(), sender).await.unwrap();
        listening.await.unwrap();
    }

    /// The messages that exist.
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

    /// The numbers of the records that exist, each of which has its blob.
    async fn records(&self) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for dumped in self.records.upkeep.dump(None, 4_096).await.unwrap() {
            let record = dumped.record.unwrap();
            let number: u32 = std::str::from_utf8(&record.body.bytes).unwrap().parse().unwrap();
            assert!(record.id >= RecordId(1));
            let id = record.body.blobs[0];
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

/// Stores items all the time, takes backups, and restores each. Each step is acknowledged before it begins and when it is done.
async fn run(child: Arc<Child>) {
    let folder = child.folder();
    let stores = Arc::new(Stores::open(Settings::new(&folder.join("data"), None), 1).await);
    for backup in 0..BACKUPS {
        for _ in 0..AT_REST {
            let number = stores.keep_next().await;
            child.acknowledge(&format!("kept {number}")).unwrap();
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (busy, over, acknowledging) = (stores.clone(), is_over.clone(), child.clone());
        let traffic = tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let number = busy.keep_next().await;
                acknowledging.acknowledge(&format!("kept {number}")).unwrap();
                if number.is_multiple_of(8) {
                    busy.sweep(number).await;
                }
            }
        });
        child.acknowledge(&format!("begin {backup}")).unwrap();
        stores.back_up(&copy_of(folder, backup)).await;
        child.acknowledge(&format!("taken {backup}")).unwrap();
        is_over.store(true, Ordering::Relaxed);
        traffic.await.unwrap();
        restore_in_child(&child, backup);
    }
    stores.close().await;
}

fn restore_in_child(child: &Child, backup: u32) {
    let layout = settings_of(child.folder(), backup).layout(None);
    let restore_now = |backup: u32, is_forced: bool| {
        let copy = copy_of(child.folder(), backup);
        restore(&layout, &copy, options(is_forced), Timestamp(0), &mut |_, _| {}).unwrap();
    };
    if backup == FORCED {
        restore_now(0, false);
    }
    child.acknowledge(&format!("restoring {backup}")).unwrap();
    restore_now(backup, backup == FORCED);
    child.acknowledge(&format!("restored {backup}")).unwrap();
}

/// What a check knows about a cut.
struct Found<'c> {
    cut: &'c Cut<'c>,
    /// The last backup that was begun, and the last whose restore was begun.
    begun: Option<u32>,
    restoring: Option<u32>,
}

impl<'c> Found<'c> {
    fn new(cut: &'c Cut<'c>) -> Self {
        let last = |what: &str| {
            let lines = cut.acknowledged().iter().rev();
            lines
                .filter_map(|line| line.strip_prefix(what)?.strip_prefix(' '))
                .find_map(|number| number.parse().ok())
        };
        Self { cut, begun: last("begin"), restoring: last("restoring") }
    }

    fn was(&self, what: &str, backup: u32) -> bool {
        self.cut.acknowledged().contains(&format!("{what} {backup}").as_str())
    }

    /// What was stored before a backup was begun, or until the cut.
    fn kept_before(&self, backup: Option<u32>) -> BTreeSet<u32> {
        let end = backup.map(|backup| format!("begin {backup}"));
        let before = self.cut.acknowledged().iter().take_while(|line| Some(**line) != end.as_deref());
        before.filter_map(|line| line.strip_prefix("kept ")?.parse().ok()).collect()
    }

    /// The step during which the cut happened, so that a test that never reaches some steps fails.
    fn moment(&self) -> &'static str {
        let steps = self.cut.acknowledged().iter().rev();
        let step = steps.copied().find(|line| !line.starts_with("kept ")).unwrap_or_default();
        match step.split_once(' ') {
            None => "before the first backup",
            Some(("begin", number)) => {
                let copy = copy_of(self.cut.folder(), number.parse().unwrap());
                let partial = copy.with_extension("partial");
                let has = |role: Role| partial.join(role.name()).exists();
                match () {
                    () if copy.exists() => "a backup that has its name",
                    () if partial.join("backup.json").exists() => "a backup with its manifest",
                    () if has(Role::Archive) => "a backup at the archive and the sums",
                    () if has(Role::Blobs) => "a backup at the blobs",
                    () if has(Role::Records) => "a backup at the records",
                    () => "a backup that is just begun",
                }
            }
            Some(("restoring", number)) => {
                let data = self.cut.folder().join(format!("restored-{number}"));
                let stage = data.join("restore.partial");
                let is_naming = fs::read_dir(&stage).is_ok_and(|entries| entries.count() < 5)
                    && ["node.key", "records", "blobs"].iter().any(|name| data.join(name).exists());
                match () {
                    () if !stage.exists() => "a restore at its beginning or its end",
                    () if is_naming => "a restore that gives names",
                    () => "a restore that copies",
                }
            }
            Some(_) => "between backup and restore",
        }
    }
}

async fn check_has_all(settings: Settings, expected: &BTreeSet<u32>) -> Stores {
    let stores = Box::pin(Stores::open(settings, 1_000_000)).await; // the future that opens three stores is large
    let (messages, records) = (stores.messages().await, stores.records().await);
    for (what, found) in [("messages", messages), ("records", records)] {
        let lost: Vec<&u32> = expected.difference(&found).collect();
        assert!(lost.is_empty(), "{what} that were acknowledged before are not there: {lost:?}");
    }
    assert!(stores.archive.upkeep.check(&|_, _| {}).await.unwrap().is_sound());
    assert_eq!(stores.records.upkeep.check(&|_, _| {}).await.unwrap().findings, []);
    assert_eq!(stores.blobs.upkeep.check(&|_, _| {}).await.unwrap().findings, []);
    // Records and blobs belong together: a sweep removes nothing that a record refers to. Records without any commit
    // might be the wrong ones.
    if !expected.is_empty() {
        stores.sweep(7).await;
    }
    assert!(stores.records().await.is_superset(expected));
    stores
}

/// A backup matches its manifest.
fn check_is_whole(copy: &Path) -> Manifest {
    let manifest = Manifest::read(copy).unwrap();
    assert_eq!(verify(copy, &manifest, &mut |_, _| {}).unwrap(), []);
    for role in [Role::Records, Role::Blobs, Role::Archive] {
        assert!(manifest.role(role).unwrap().omitted.is_none(), "{role:?}");
    }
    manifest
}

/// A backup is complete, and after a restore it has all that is expected.
async fn check_backup(copy: &Path, expected: &BTreeSet<u32>) {
    check_is_whole(copy);
    let elsewhere = copy.with_file_name(format!("checked-{}", copy.file_name().unwrap().display()));
    restore(
        &Settings::new(&elsewhere, None).layout(None),
        copy,
        options(false),
        Timestamp(0),
        &mut |_, _| {},
    )
    .unwrap();
    check_has_all(Settings::new(&elsewhere, None), expected).await.close().await;
}

/// The stores that were backed up have all that was acknowledged, and work; the next backup replaces one that was cut off.
async fn check_source(found: &Found<'_>) {
    let folder = found.cut.folder();
    let mut expected = found.kept_before(None);
    let stores = check_has_all(Settings::new(&folder.join("data"), None), &expected).await;
    expected.insert(stores.keep_next().await);
    let Some(backup) = found.begun.filter(|backup| !copy_of(folder, *backup).exists()) else {
        return stores.close().await;
    };
    let copy = copy_of(folder, backup);
    let partial = copy.with_extension("partial");
    if partial.join("backup.json").exists() && !partial.join("UNFINISHED").exists() {
        // It is complete and only lacks its name, and is not removed: the user is asked to rename it.
        check_backup(&partial, &found.kept_before(Some(backup))).await;
        fs::remove_dir_all(&partial).unwrap();
    }
    stores.back_up(&copy).await;
    stores.close().await;
    assert!(!partial.exists());
    check_backup(&copy, &expected).await;
}

/// The backups that have their final names. The last is restored; the earlier ones have not changed since they were the last.
async fn check_backups(found: &Found<'_>) {
    let named = |backup: &u32| copy_of(found.cut.folder(), *backup).exists();
    for backup in (0..BACKUPS).filter(|backup| found.was("taken", *backup)) {
        assert!(named(&backup), "a backup that was taken is there");
    }
    let last = (0..BACKUPS).filter(named).max();
    for backup in (0..BACKUPS).filter(named) {
        let copy = copy_of(found.cut.folder(), backup);
        if Some(backup) == last {
            check_backup(&copy, &found.kept_before(Some(backup))).await;
        } else {
            check_is_whole(&copy);
        }
    }
}

/// A restore that was cut off is detected, or has not begun; then it is run again. The data that a server would start
/// with is complete.
async fn check_restore(found: &Found<'_>, backup: u32) {
    let (folder, was_restored) = (found.cut.folder(), found.was("restored", backup));
    let settings = settings_of(folder, backup);
    let (layout, copy) = (settings.layout(None), copy_of(folder, backup));
    let restore_again = |is_forced: bool| {
        let now = Timestamp::from_seconds(1);
        restore(&layout, &copy, options(is_forced), now, &mut |_, _| {}).unwrap()
    };
    match check_not_halfway(&layout) {
        Err(why) => {
            assert!(!was_restored, "{why}");
            assert!(why.to_string().contains("was not finished: run it again with --force"), "{why}");
            restore_again(true);
        }
        Ok(()) if !settings.data.join(Role::Records.name()).exists() => {
            assert!(!was_restored && backup != FORCED, "what was restored is there");
            restore_again(false); // its files are not in the way
        }
        // Until the restore was acknowledged, the unchanged old content is valid, too.
        Ok(()) if backup == FORCED && !was_restored && asides(&settings.data).is_empty() => {
            check_is_in_one_of(std::slice::from_ref(&settings.data), &copy_of(folder, 0));
            restore_again(true);
        }
        Ok(()) => {}
    }
    if backup == FORCED {
        check_is_in_one_of(&asides(&settings.data), &copy_of(folder, 0));
    }
    check_has_all(settings, &found.kept_before(Some(backup))).await.close().await;
}

/// The folders into which restores have moved the former content.
fn asides(data: &Path) -> Vec<PathBuf> {
    let names = disk::names(data).unwrap().into_iter();
    names.filter(|name| name.starts_with(ASIDE)).map(|name| data.join(name)).collect()
}

/// Every file of the former content is in one of these folders.
fn check_is_in_one_of(folders: &[PathBuf], before: &Path) {
    for file in check_is_whole(before).files.iter().filter(|file| file.path.contains('/')) {
        let path = file.path.strip_prefix("files/").unwrap_or(&file.path);
        let is_there = |folder: &PathBuf| {
            disk::digest(&folder.join(path), |_| Ok(())).is_ok_and(|(_, sha256)| sha256 == file.sha256)
        };
        assert!(folders.iter().any(is_there), "{path} was there before, and is in none of {folders:?}");
    }
}

/// All steps during which a cut may happen.
const MOMENTS: [&str; 11] = [
    "before the first backup",
    "a backup that is just begun",
    "a backup at the records",
    "a backup at the blobs",
    "a backup at the archive and the sums",
    "a backup with its manifest",
    "a backup that has its name",
    "between backup and restore",
    "a restore at its beginning or its end",
    "a restore that copies",
    "a restore that gives names",
];
/// With this many cuts, each step is hit.
const CUTS_FOR_ALL: usize = 1_000;
/// Enough to hit a backup and a restore each time, and few enough for every day.
const CUTS: usize = 40;

#[test]
fn what_looks_finished_is_whole_after_any_power_cut() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Some(child) = child().unwrap() {
        return runtime.block_on(run(Arc::new(child)));
    }
    let log = record("power_cut::what_looks_finished_is_whole_after_any_power_cut").unwrap();
    let (count, mut moments) = (cuts(CUTS), BTreeMap::new());
    let replayed = log.replay(count, 3, |cut| {
        let found = Found::new(cut);
        *moments.entry(found.moment()).or_insert(0) += 1;
        runtime.block_on(async {
            check_backups(&found).await;
            check_source(&found).await;
            if let Some(backup) = found.restoring {
                check_restore(&found, backup).await;
            }
        });
    });
    replayed.unwrap();
    println!("{count} cuts came in the midst of {moments:#?}");
    for begin in ["a backup", "a restore"] {
        let is_seen = moments.keys().any(|moment| moment.starts_with(begin));
        assert!(is_seen || count < CUTS, "no cut came in the midst of {begin}");
    }
    let missed: Vec<&&str> = MOMENTS.iter().filter(|moment| !moments.contains_key(**moment)).collect();
    assert!(count < CUTS_FOR_ALL || missed.is_empty(), "no cut came in the midst of {missed:?}");
}
