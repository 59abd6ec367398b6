#![expect(clippy::disallowed_methods, reason = "no test is there after a power cut")]

mod hostile;

use std::os::unix::fs::MetadataExt;

use restante_core::ErrorKind;

use super::*;
use crate::{
    disk::Mount,
    layout::testing,
    manifest::{Role, RoleEntry},
};

#[test]
fn a_moment_can_stand_in_a_name() {
    assert_eq!(stamp(Timestamp::from_seconds(1_554_076_800)), "20190401T000000Z");
}

/// A backup of some files.
fn backup(folder: &Path, paths: &[&str]) -> PathBuf {
    let backup = folder.join("backup");
    let mut files = Vec::new();
    for path in paths {
        let file = backup.join(path);
        fs::create_dir_all(disk::parent(&file)).unwrap();
        fs::write(&file, format!("content of {path}")).unwrap();
        let (bytes, sha256) = disk::digest(&file, |_| Ok(())).unwrap();
        files.push(FileEntry { path: (*path).to_owned(), bytes, sha256 });
    }
    let role = |role, engine: &str| RoleEntry {
        role,
        engine: engine.to_owned(),
        url: String::new(),
        counts: BTreeMap::new(),
        files: 1,
        bytes: 1,
        omitted: None,
    };
    let roles = vec![role(Role::Records, "lmdb"), role(Role::Blobs, "files"), role(Role::Archive, "log")];
    Manifest::new("2026-01-31T12:00:00Z".into(), roles, files).write(&backup).unwrap();
    backup
}

/// Every file below a folder, by its path.
fn files(folder: &Path) -> Vec<String> {
    disk::walk(folder).unwrap().files.into_iter().map(|(path, _)| path).collect()
}

/// An archive on a disk of its own: the folder can neither be moved aside nor be replaced.
#[test]
fn a_place_that_is_a_disk_is_filled_from_within() {
    let guard = tempfile::tempdir().unwrap();
    let (data, disk) = (guard.path().join("data"), guard.path().join("disk"));
    let backup = backup(
        guard.path(),
        &["archive/00000001.log", "archive/00000001.idx", "blobs/OWNER", "files/node.key"],
    );
    fs::create_dir_all(disk.join("lost+found")).unwrap();
    let number = fs::metadata(&disk).unwrap().ino();
    let archive = format!("log:{}", disk.display());
    let layout = testing::layout(&data, ["", "", &archive], None);
    let mount_of = |path: &Path| Some(Mount::of_test(u64::from(path.starts_with(&disk)), 1));
    let disks = Disks { mount_of: &mount_of, space: &disk::space };
    let restore_now = |is_forced| {
        let now = Timestamp::from_seconds(1_554_076_800);
        let options = RestoreOptions { is_forced, keep_node_key: true };
        restore_on(&disks, &layout, &backup, options, now, &mut |_, _| {}).map_err(|error| error.to_string())
    };

    assert_eq!(restore_now(false).unwrap().aside, Vec::<PathBuf>::new());
    assert_eq!(files(&disk), ["00000001.idx", "00000001.log"]);
    assert_eq!(files(&data), ["blobs/OWNER", "node.key"]);
    let why = restore_now(false).unwrap_err();
    assert!(why.contains("is there already"), "{why}");
    fs::rename(&data, guard.path().join("data before")).unwrap();
    let why = restore_now(false).unwrap_err();
    assert!(why.contains("00000001.idx is there already"), "{why}");
    fs::rename(guard.path().join("data before"), &data).unwrap();
    fs::write(disk.join("00000002.log"), "newer").unwrap();

    let name = "before-restore-20190401T000000Z";
    let forced = restore_now(true).unwrap();
    assert_eq!(forced.aside, [data.join(name), disk.join(name)]);
    assert_eq!(files(&disk.join(name)), ["00000001.idx", "00000001.log", "00000002.log"]);
    assert_eq!(moved_aside(&layout), forced.aside);

    // Within the same second: what was put aside first stays where it is.
    let name_again = format!("{name}-2");
    let again = restore_now(true).unwrap();
    assert_eq!(again.aside, [data.join(&name_again), disk.join(&name_again)]);
    assert_eq!(files(&disk.join(name)), ["00000001.idx", "00000001.log", "00000002.log"]);
    assert_eq!(files(&disk.join(&name_again)), ["00000001.idx", "00000001.log"]);
    fs::remove_dir_all(disk.join(&name_again)).unwrap();
    fs::remove_dir_all(disk.join(name)).unwrap();
    assert_eq!(
        (files(&disk), disk.join("lost+found").is_dir()),
        (vec!["00000001.idx".to_owned(), "00000001.log".to_owned()], true)
    );
    assert_eq!(fs::metadata(&disk).unwrap().ino(), number, "it is the folder that it was");
    assert!(!disk.join(STAGE).exists() && !data.join(STAGE).exists());
}

/// The disk of the data folder has room, and that of the archive has not.
#[test]
fn without_room_on_a_disk_nothing_is_begun() {
    let guard = tempfile::tempdir().unwrap();
    let (data, other) = (guard.path().join("data"), guard.path().join("other"));
    let backup = backup(guard.path(), &["archive/00000001.log", "blobs/OWNER"]);
    fs::create_dir(&other).unwrap();
    let archive = format!("log:{}", other.join("archive").display());
    let layout = testing::layout(&data, ["", "", &archive], None);
    let is_other = |path: &Path| path.starts_with(&other);
    let mount_of = |path: &Path| Some(Mount::of_test(u64::from(is_other(path)), u32::from(is_other(path))));
    let space = |path: &Path| {
        let free_bytes = if is_other(path) { 5 } else { 1 << 30 };
        Ok(disk::DiskSpace { free_bytes, all_bytes: 1 << 30 })
    };
    let disks = Disks { mount_of: &mount_of, space: &space };
    let error = restore_on(&disks, &layout, &backup, RestoreOptions::default(), Timestamp(0), &mut |_, _| {})
        .unwrap_err();
    let expected = format!("on the disk of {}, and 5 are free", other.display());
    assert!(error.kind() == ErrorKind::Full && error.to_string().contains(&expected), "{error}");
    assert!(!data.exists() && disk::names(&other).unwrap().is_empty());
}

/// A database is locked beside its file, and a folder within.
#[test]
fn nothing_is_restored_over_what_is_in_use() {
    let guard = tempfile::tempdir().unwrap();
    let data = guard.path().join("data");
    let backup = backup(guard.path(), &["blobs/OWNER"]);
    let archive = format!("sqlite:{}", guard.path().join("messages.db").display());
    let layout = testing::layout(&data, ["", "", &archive], None);
    let restore_now = || {
        let options = RestoreOptions { is_forced: true, keep_node_key: true };
        restore(&layout, &backup, options, Timestamp(0), &mut |_, _| {})
    };
    for path in [guard.path().join("messages.db.lock"), data.join("blobs/LOCK")] {
        fs::create_dir_all(disk::parent(&path)).unwrap();
        let lock = File::create(&path).unwrap();
        lock.lock().unwrap();
        let error = restore_now().unwrap_err();
        assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("is in use"), "{error}");
    }
    restore_now().unwrap();
}

/// What is in its place then may be half of the earlier one.
#[test]
fn a_restore_that_fails_leaves_the_mark_of_one_that_was_not_finished() {
    let guard = tempfile::tempdir().unwrap();
    let data = guard.path().join("data");
    let backup = backup(guard.path(), &["archive/00000001.log"]);
    fs::write(backup.join("archive/00000001.log"), "damaged").unwrap();
    let layout = testing::layout(&data, [""; 3], None);
    for was_halfway in [false, true] {
        if was_halfway {
            fs::create_dir_all(data.join(STAGE)).unwrap();
        }
        let options = RestoreOptions { is_forced: true, keep_node_key: true };
        let error = restore(&layout, &backup, options, Timestamp(0), &mut |_, _| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(check_not_halfway(&layout).is_err(), was_halfway);
    }
}
