//! Backups that were made by an attacker: only files of ours are written, and the process does not crash.

use std::{
    os::unix::fs::{PermissionsExt, symlink},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::*;
use crate::{layout::testing::schema, manifest::FILE_NAME, verify};

/// More time than any of these tests takes.
const LIMIT: Duration = Duration::from_secs(60);
/// A text outside of the backup that must not be copied into the data folder.
const SECRET: &str = "the secret of somebody else";

/// A folder with a backup, and the manifest that its files are written into.
struct Made {
    guard: tempfile::TempDir,
    files: Vec<Value>,
}

impl Made {
    fn new() -> Self {
        let guard = tempfile::tempdir().unwrap();
        fs::create_dir(guard.path().join("backup")).unwrap();
        fs::write(guard.path().join("outside"), SECRET).unwrap();
        Self { guard, files: Vec::new() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.guard.path().join(name)
    }

    fn backup(&self) -> PathBuf {
        self.at("backup")
    }

    /// Lists a file with the checksum of a content, which may differ from the file in the folder.
    fn list(&mut self, path: &str, content: &str) {
        let (bytes, sum) = (content.len(), self.at("sum of a content"));
        fs::write(&sum, content).unwrap();
        let sha256 = disk::digest(&sum, |_| Ok(())).unwrap().1;
        fs::remove_file(sum).unwrap();
        self.files.push(json!({ "path": path, "bytes": bytes, "sha256": sha256 }));
    }

    /// Writes a file, and lists it.
    fn add(&mut self, path: &str, content: &str) {
        let file = self.backup().join(path);
        fs::create_dir_all(disk::parent(&file)).unwrap();
        fs::write(&file, content).unwrap();
        self.list(path, content);
    }

    fn manifest(&self) -> Value {
        json!({
            "format": 1, "version": "1", "takenAt": "2026-01-31T12:00:00Z", "files": self.files,
            "roles": [
                { "role": "records", "engine": "lmdb", "url": "", "counts": {}, "files": 1, "bytes": 1 },
                { "role": "archive", "engine": "log", "url": "", "counts": {}, "files": 1, "bytes": 1 },
            ],
        })
    }

    fn write_manifest(&self, manifest: &Value) {
        fs::write(self.backup().join(FILE_NAME), manifest.to_string()).unwrap();
    }

    /// Restores it; an error is returned as its text. Fails when that takes too long, or when more is copied than is listed.
    fn restore(&self) -> Result<Restored, String> {
        let (done, outcome) = mpsc::channel();
        let (backup, data) = (self.backup(), self.at("data"));
        thread::spawn(move || {
            let layout = testing::layout(&data, ["", "", ""], None);
            let mut progress = |done: u64, _: u64| assert!(done < 1 << 30, "it is copied on and on");
            let restored = restore_all(&layout, &backup, &mut progress);
            let _ = done.send(restored.map_err(|error| error.to_string()));
        });
        outcome.recv_timeout(LIMIT).expect("it ends")
    }

    fn restore_listed(&self) -> Result<Restored, String> {
        self.write_manifest(&self.manifest());
        self.restore()
    }

    /// All files that the restore has written.
    fn written(&self) -> Vec<String> {
        let all = files(self.guard.path()).into_iter();
        all.filter(|path| !path.starts_with("backup/") && path != "outside").collect()
    }
}

#[test]
fn names_that_no_engine_writes_are_not_restored() {
    let mut made = Made::new();
    let id = "0a".repeat(32);
    let known = [
        "archive/00000001.idx",
        "archive/00000001.log",
        "archive/second-spool/GAP",
        "archive/spool/00000001/00000001.log",
        "archive/spool/refused/00000001.log",
        "blobs/OWNER",
        &format!("blobs/blobs/0a/0a/{id}"),
        "blobs/packs/00000001.pack",
        "files/sync.state",
    ];
    let unknown = [
        "archive/00000001.LOG",
        "archive/0000000１.log",
        "archive/LOCK",
        "archive/restante.toml",
        "archive/spool/.profile",
        "archive/spool/x/y/z",
        "blobs/OWNER.new",
        "blobs/owner",
        "blobs/packs/1.pack",
        "files/.ssh/authorized_keys",
        "files/RESTANTE.toml",
        "files/before-restore-x/y",
        "files/last-backup.json",
        "files/restante.toml",
        "files/restore.partial/y",
        "records/lock.mdb",
        "records/x",
        "restante.toml",
    ];
    for path in known.iter().chain(&unknown) {
        made.add(path, &format!("content of {path}"));
    }
    let restored = made.restore_listed().unwrap();
    let locations = [
        "data/archive/00000001.idx",
        "data/archive/00000001.log",
        "data/blobs/OWNER",
        &format!("data/blobs/blobs/0a/0a/{id}"),
        "data/blobs/packs/00000001.pack",
        "data/spool/archive/00000001/00000001.log",
        "data/spool/archive/refused/00000001.log",
        "data/spool/tandem/GAP",
        "data/sync.state",
    ];
    assert_eq!(made.written(), locations);
    assert!(restored.notes.iter().any(|note| note.contains("are not restored")), "{:?}", restored.notes);
}

#[test]
fn paths_that_lead_elsewhere_and_names_given_twice_are_refused() {
    for path in
        ["/etc/passwd", "../outside", "archive/../../outside", "archive//00000001.log", "./x", "a\u{1b}[2J"]
    {
        let mut made = Made::new();
        made.add("archive/00000001.log", "sound");
        made.list(path, SECRET);
        let error = made.restore_listed().unwrap_err();
        assert!(error.contains("outside of itself") && !error.contains('\u{1b}'), "{path}: {error}");
        assert_eq!(made.written(), Vec::<String>::new());
    }
    let mut made = Made::new();
    made.add("archive/00000001.log", "sound");
    made.list("archive/00000001.log", "sound");
    assert!(made.restore_listed().unwrap_err().contains("twice"));
    assert_eq!(made.written(), Vec::<String>::new());
}

#[test]
fn links_pipes_and_devices_are_not_followed() {
    let path = "archive/spool/00000001/00000001.log";
    let begin = |made: &mut Made, file: &str| {
        made.list(path, SECRET);
        // The target of the link has the right content.
        let target = if file.is_empty() { made.at("outside") } else { made.at("elsewhere").join(file) };
        fs::create_dir_all(disk::parent(&target)).unwrap();
        fs::write(&target, SECRET).unwrap();
    };
    for (link, behind) in [
        ("archive", "spool/00000001/00000001.log"),
        ("archive/spool", "00000001/00000001.log"),
        ("archive/spool/00000001", "00000001.log"),
        ("archive/spool/00000001/00000001.log", ""),
    ] {
        let mut made = Made::new();
        begin(&mut made, behind);
        let link = made.backup().join(link);
        fs::create_dir_all(disk::parent(&link)).unwrap();
        let target = if behind.is_empty() { "outside" } else { "elsewhere" };
        symlink(made.at(target), &link).unwrap();
        let error = made.restore_listed().unwrap_err();
        assert!(error.contains("can't read"), "{}: {error}", link.display());
        assert!(!made.at("data").join("spool").exists());
        // A check of the backup is not misled either.
        let manifest = Manifest::read(&made.backup()).unwrap();
        assert_eq!(verify_all(&made.backup(), &manifest), [path]);
    }
    for kind in [FileType::Fifo, FileType::Socket, FileType::CharacterDevice] {
        let mut made = Made::new();
        made.list(path, SECRET);
        let file = made.backup().join(path);
        fs::create_dir_all(disk::parent(&file)).unwrap();
        // The device is /dev/zero, which never ends.
        let Ok(()) = mknodat(CWD, &file, kind, Mode::RUSR, rustix::fs::makedev(1, 5)) else { continue };
        assert!(made.restore_listed().is_err(), "{kind:?}");
        assert_eq!(verify_all(&made.backup(), &Manifest::read(&made.backup()).unwrap()), [path]);
    }
    // The manifest itself.
    for kind in [FileType::Fifo, FileType::Socket] {
        let made = Made::new();
        mknodat(CWD, made.backup().join(FILE_NAME), kind, Mode::RUSR, 0).unwrap();
        assert!(made.restore().is_err(), "{kind:?}");
    }
    let made = Made::new();
    symlink("/dev/zero", made.backup().join(FILE_NAME)).unwrap();
    assert!(made.restore().is_err());
}

#[test]
fn modes_are_those_of_a_server_whatever_the_backup_has() {
    let mut made = Made::new();
    for path in ["archive/00000001.log", "files/sync.state", "files/node.key"] {
        made.add(path, "content");
        let file = made.backup().join(path);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o7777)).unwrap();
        fs::set_permissions(disk::parent(&file), fs::Permissions::from_mode(0o3777)).unwrap();
    }
    made.restore_listed().unwrap();
    let mode = |path: &str| fs::metadata(made.at("data").join(path)).unwrap().permissions().mode() & 0o7777;
    // The mask of the process may remove further bits.
    assert_eq!(mode("archive/00000001.log") & !0o640, 0);
    assert_eq!(mode("sync.state") & !0o640, 0);
    assert_eq!(mode("node.key"), 0o600);
    assert_eq!(mode("archive") & !0o750, 0);
}

#[test]
fn a_file_that_is_longer_than_listed_ends_the_restore() {
    let mut made = Made::new();
    made.add("archive/00000001.log", "short");
    let file = fs::OpenOptions::new().write(true).open(made.backup().join("archive/00000001.log")).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = made.restore_listed().unwrap_err();
    assert!(error.contains("more than the 5 bytes"), "{error}");
}

#[test]
fn numbers_and_lengths_without_measure_are_refused() {
    let mut made = Made::new();
    made.add("archive/00000001.log", "a");
    made.add("archive/00000002.log", "b");
    let mut manifest = made.manifest();
    for number in 0..2 {
        manifest["files"][number]["bytes"] = json!(u64::MAX);
    }
    made.write_manifest(&manifest);
    assert!(made.restore().unwrap_err().contains("make room there"));
    // A manifest that is too long to be read.
    let file = fs::OpenOptions::new().write(true).open(made.backup().join(FILE_NAME)).unwrap();
    file.set_len(1 << 40).unwrap();
    assert!(made.restore().unwrap_err().contains("at most can be read"));
    for text in [
        "",
        "null",
        "[]",
        "{",
        "\"\"",
        "[[[[[[[[[[",
        &"[".repeat(100_000),
        "{\"format\":1,\"version\":\"x\"}",
    ] {
        fs::write(made.backup().join(FILE_NAME), text).unwrap();
        assert!(made.restore().is_err(), "{text:.20}");
    }
    assert_eq!(made.written(), Vec::<String>::new());
}

#[test]
fn nothing_that_a_terminal_acts_on_is_shown() {
    let mut made = Made::new();
    made.add("archive/00000001.log", "a");
    let mut manifest = made.manifest();
    let bad = "\u{1b}]0;owned\u{7}\u{202e}";
    manifest["takenAt"] = json!(bad);
    manifest["roles"][0]["omitted"] = json!(bad);
    manifest["roles"][0]["url"] = json!(bad);
    manifest["roles"][0]["counts"] = json!({ bad: 1 });
    made.write_manifest(&manifest);
    let restored = made.restore().unwrap();
    let shown = format!("{} {:?} {}", restored.taken_at, restored.counts.keys(), restored.notes.join(" "));
    assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{shown:?}");
    manifest["roles"][1]["engine"] = json!(bad);
    made.write_manifest(&manifest);
    let error = made.restore().unwrap_err();
    assert!(!error.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{error:?}");
}

/// LMDB maps its file: once, a page number beyond its end crashed the server that opened the restored file.
#[test]
fn an_lmdb_file_that_lmdb_could_not_follow_is_refused() {
    let whole = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let url = restante_records::EngineUrl::Lmdb(whole.path().to_owned());
        let config = restante_records::Config::new(url, schema());
        restante_records::open(config).await.unwrap().upkeep.close().await.unwrap();
    });
    let sound = fs::read(whole.path().join("data.mdb")).unwrap();
    let put = |made: &mut Made, bytes: &[u8]| {
        let path = "records/data.mdb";
        made.files.clear();
        made.add(path, "");
        let file = made.backup().join(path);
        fs::write(&file, bytes).unwrap();
        let (bytes, sha256) = disk::digest(&file, |_| Ok(())).unwrap();
        made.files = vec![json!({ "path": path, "bytes": bytes, "sha256": sha256 })];
    };
    for len in [0, 100, 4_096, 8_192, sound.len() - 4_096, sound.len() - 1] {
        let mut made = Made::new();
        put(&mut made, &sound[..len]);
        let error = made.restore_listed().unwrap_err();
        assert!(error.contains("records/data.mdb is damaged"), "{len}: {error}");
        assert_eq!(made.written(), Vec::<String>::new());
        assert_eq!(
            verify_all(&made.backup(), &Manifest::read(&made.backup()).unwrap()),
            ["records/data.mdb"]
        );
    }
    let mut made = Made::new();
    put(&mut made, &sound);
    made.restore_listed().unwrap();
    assert_eq!(made.written(), ["data/records/data.mdb"]);
}

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) as usize % bound
    }
}

/// Stores of each role in a folder, closed.
async fn fill(folder: &Path) {
    let (records, blobs) = open_two(folder).await.unwrap();
    for number in 0..120_usize {
        let bytes = vec![number as u8; if number % 20 == 0 { 200_000 } else { 300 + number }];
        let id = blobs.blobs.put(&mut bytes::Bytes::from(bytes)).await.unwrap().id;
        let body = restante_records::Body { bytes: vec![1; number * 7].into(), blobs: vec![id] };
        let properties = restante_records::Properties::default();
        let email = restante_records::Change::Create { kind: restante_mail::email::KIND, body, properties };
        let account = restante_records::AccountId(number as u32 % 5);
        records.records.commit(account, restante_records::Commit::of([email])).await.unwrap();
    }
    records.upkeep.close().await.unwrap();
    blobs.upkeep.close().await.unwrap();
}

async fn open_two(folder: &Path) -> Result<(restante_records::Opened, restante_blobs::Opened), String> {
    let url = restante_records::EngineUrl::Lmdb(folder.join("records"));
    let records = restante_records::open(restante_records::Config::new(url, schema())).await;
    let url = restante_blobs::EngineUrl::Files(folder.join("blobs"));
    let blobs = restante_blobs::open(restante_blobs::Config::new(url)).await;
    Ok((records.map_err(|error| error.to_string())?, blobs.map_err(|error| error.to_string())?))
}

/// Reads everything that can be read, and writes; errors are allowed.
async fn use_two(folder: &Path) -> Result<(), String> {
    let (records, blobs) = open_two(folder).await?;
    let _ = records.upkeep.check(&|_, _| {}).await;
    let _ = blobs.upkeep.check(&|_, _| {}).await;
    let _ = records.upkeep.dump(None, 64).await;
    for listed in blobs.upkeep.list(None, 1_000).await.unwrap_or_default() {
        let Ok(mut source) = blobs.blobs.read(listed.id, 0..u64::MAX).await else { continue };
        while let Ok(Some(_)) = source.next().await {}
    }
    for number in 0..30_u8 {
        let bytes = bytes::Bytes::from(vec![number ^ 0x55; 500]);
        let _ = blobs.blobs.put(&mut bytes.clone()).await;
        let body = restante_records::Body { bytes, blobs: Vec::new() };
        let properties = restante_records::Properties::default();
        let email = restante_records::Change::Create { kind: restante_mail::email::KIND, body, properties };
        let commit = restante_records::Commit::of([email]);
        let _ = records.records.commit(restante_records::AccountId(u32::from(number) % 5), commit).await;
    }
    let _ = records.upkeep.close().await;
    let _ = blobs.upkeep.close().await;
    Ok(())
}

/// The checksums are right: the author of a backup can compute them.
#[test]
fn stores_that_were_mangled_with_a_plan_end_no_process() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let source = tempfile::tempdir().unwrap();
    runtime.block_on(fill(source.path()));
    let all = files(source.path());
    let (mut restored, mut refused) = (0, 0);
    for seed in 0..150 {
        eprintln!("seed {seed}"); // if the process crashes, this is the seed
        let (mut made, mut random) = (Made::new(), Random(seed));
        let wanted: Vec<&String> = all.iter().filter(|path| !disk::is_lock(path)).collect();
        let mangled = random.below(wanted.len());
        for (number, path) in wanted.into_iter().enumerate() {
            let mut bytes = fs::read(source.path().join(path)).unwrap();
            let is_lmdb = path.ends_with("data.mdb");
            if (number == mangled || is_lmdb) && !bytes.is_empty() {
                for _ in 0..=random.below(4) {
                    let at = random.below(bytes.len());
                    bytes[at] ^= 1 << random.below(8);
                }
                if random.below(4) == 0 && !is_lmdb {
                    bytes.truncate(random.below(bytes.len()));
                }
            }
            let file = made.backup().join(path);
            fs::create_dir_all(disk::parent(&file)).unwrap();
            fs::write(&file, bytes).unwrap();
            let (bytes, sha256) = disk::digest(&file, |_| Ok(())).unwrap();
            made.files.push(json!({ "path": path, "bytes": bytes, "sha256": sha256 }));
        }
        match made.restore_listed() {
            Ok(_) => {
                restored += 1;
                let _ = runtime.block_on(use_two(&made.at("data")));
            }
            Err(_) => refused += 1,
        }
    }
    assert!(restored > 20 && refused > 20, "{restored} were restored, {refused} refused");
}

fn restore_all(layout: &Layout, backup: &Path, progress: Progress<'_>) -> Result<Restored, Error> {
    let options = RestoreOptions { keep_node_key: true, ..RestoreOptions::default() };
    restore(layout, backup, options, Timestamp(0), progress)
}

/// The paths of the defects in a backup.
fn verify_all(backup: &Path, manifest: &Manifest) -> Vec<String> {
    verify(backup, manifest, &mut |_, _| {}).unwrap().into_iter().map(|wrong| wrong.path).collect()
}
