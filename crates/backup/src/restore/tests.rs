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

#[test]
fn a_missing_key_of_secrets_is_noted_with_where_it_may_be() {
    let guard = tempfile::tempdir().unwrap();
    let (data, backup) = (guard.path().join("data"), backup(guard.path(), &["blobs/OWNER"]));
    let layout = || testing::layout(&data, ["", "", ""], None).with_secrets(&data.join("secrets.key"));
    let restore_now = |is_forced| {
        let now = Timestamp::from_seconds(1_554_076_800);
        let options = RestoreOptions { is_forced, keep_node_key: false };
        restore(&layout(), &backup, options, now, &mut |_, _| {}).unwrap()
    };
    assert_eq!(restore_now(false).notes, [""; 0], "the server that was backed up had none");
    let manifest = Manifest { secrets_left_out: true, ..Manifest::read(&backup).unwrap() };
    manifest.write(&backup).unwrap();
    fs::remove_dir_all(&data).unwrap();
    let notes = restore_now(false).notes;
    assert!(notes.len() == 1 && notes[0].contains("put your copy of it there, with mode 0600"), "{notes:?}");
    // An existing one stays, and does not prevent a restore without force.
    fs::remove_dir_all(&data).unwrap();
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("secrets.key"), "a key").unwrap();
    let restored = restore_now(false);
    assert_eq!((&restored.notes[..], &restored.aside[..]), (&[][..], &[][..]));
    assert!(restore_now(true).notes.is_empty());
    assert_eq!(fs::read_to_string(data.join("secrets.key")).unwrap(), "a key");
}

/// An archive on a disk of its own: its folder can be neither moved aside nor replaced.
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

    // Within the same second: what was moved aside first stays there.
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

/// The disk of the data folder has enough space, and that of the archive does not.
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

/// A data folder and a folder outside, and the URL of an archive in the latter.
fn two_folders() -> (tempfile::TempDir, PathBuf, PathBuf, String) {
    let guard = tempfile::tempdir().unwrap();
    let (data, other) = (guard.path().join("data"), guard.path().join("other"));
    fs::create_dir(&other).unwrap();
    let archive = format!("log:{}", other.join("archive").display());
    (guard, data, other, archive)
}

const FORCED: RestoreOptions = RestoreOptions { is_forced: true, keep_node_key: true };

#[test]
fn a_second_restore_into_the_same_folders_is_refused_while_one_runs() {
    let (guard, data, other, archive) = two_folders();
    let backup = backup(guard.path(), &["archive/00000001.log", "blobs/OWNER"]);
    let first = testing::layout(&data, ["", "", &archive], None);
    // The second has another data folder, and the same archive.
    let second = testing::layout(&guard.path().join("data 2"), ["", "", &archive], None);
    let refused = |layout: &Layout| {
        let error = restore(layout, &backup, FORCED, Timestamp(0), &mut |_, _| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        error.to_string()
    };
    let mut seen = 0;
    let mut progress = |_, _| {
        seen += 1;
        let running =
            |place: &Path| format!("a restore into {} is running: wait until it is done", place.display());
        assert_eq!(refused(&second), running(&other.join("archive")));
        assert!(refused(&first).contains("is running"));
        assert_eq!(check_not_halfway(&first).unwrap_err().to_string(), running(&data), "no server starts");
    };
    restore(&first, &backup, FORCED, Timestamp(0), &mut progress).unwrap();
    assert_eq!(seen, 2, "each file is copied at once");
    check_not_halfway(&first).unwrap();
    assert_eq!(
        (files(&data), files(&other)),
        (vec!["blobs/OWNER".to_owned()], vec!["archive/00000001.log".to_owned()])
    );
    assert!(!guard.path().join("data 2").join(STAGE).exists());
}

/// A restore that begins when another one ends may lock a file that the other removes.
#[test]
fn the_lock_of_a_folder_that_was_removed_is_none() {
    let guard = tempfile::tempdir().unwrap();
    let stage = guard.path().join(STAGE);
    let (first, was_there) = lock_stage(&stage, guard.path()).unwrap();
    assert!(!was_there && is_at(&first, &stage.join(MARK)));
    remove_stage(&stage).unwrap();
    assert!(!is_at(&first, &stage.join(MARK)));
    let (second, _) = lock_stage(&stage, guard.path()).unwrap();
    assert!(!is_at(&first, &stage.join(MARK)) && is_at(&second, &stage.join(MARK)));
    drop(first);
    assert!(lock_stage(&stage, guard.path()).is_err(), "the second has it");
}

#[test]
fn no_store_is_opened_or_made_while_a_restore_copies() {
    let (guard, data, ..) = two_folders();
    let backup = backup(guard.path(), &["archive/00000001.log"]);
    let layout = testing::layout(&data, ["", "", ""], None);
    fs::create_dir_all(data.join("records")).unwrap();
    let lock = File::create(data.join("records/lock")).unwrap();
    let mut progress = |_, _| {
        assert!(matches!(lock.try_lock(), Err(TryLockError::WouldBlock)), "an engine would not open it");
        let _ = fs::create_dir(data.join("archive"));
    };
    let error = restore(&layout, &backup, FORCED, Timestamp(0), &mut progress).unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("has appeared"), "{error}");
    assert_eq!(files(&data), ["records/lock"], "nothing was moved, and no copy is left");
    check_not_halfway(&layout).unwrap();
    restore(&layout, &backup, FORCED, Timestamp(0), &mut |_, _| {}).unwrap();
}

#[test]
fn a_place_that_is_a_link_is_named_before_anything_is_moved() {
    let (guard, data, other, archive) = two_folders();
    let backup = backup(guard.path(), &["archive/00000001.log", "blobs/OWNER"]);
    fs::create_dir(&data).unwrap();
    fs::write(data.join("old"), "old").unwrap();
    fs::create_dir(other.join("real")).unwrap();
    let below = format!("files:{}", data.join("link/blobs").display());
    for (link, urls, what) in [
        (data.join("archive"), ["", "", ""], "the place of the archive, "),
        (other.join("archive"), ["", "", &archive], "the place of the archive, "),
        (data.join("link"), ["", &below, ""], "the place of the blobs, "),
        (data.join(STAGE), ["", "", ""], "is in the way"),
        (other.join("archive.partial"), ["", "", &archive], "is in the way"),
    ] {
        std::os::unix::fs::symlink(other.join("real"), &link).unwrap();
        fs::write(other.join("real/mine"), "mine").unwrap();
        let layout = testing::layout(&data, urls, None);
        let error = restore(&layout, &backup, FORCED, Timestamp(0), &mut |_, _| {}).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(what), "{error}");
        assert!(error.to_string().contains(&link.display().to_string()), "{error}");
        assert_eq!(disk::names(&other.join("real")).unwrap(), ["mine"], "what it leads to is not touched");
        fs::remove_file(&link).unwrap();
        assert_eq!(disk::names(&data).unwrap(), ["old"]);
    }
}

#[test]
fn a_data_folder_may_be_a_link() {
    let (guard, data, other, _) = two_folders();
    let backup = backup(guard.path(), &["archive/00000001.log"]);
    std::os::unix::fs::symlink(other.join("missing"), &data).unwrap();
    let layout = testing::layout(&data, ["", "", ""], None);
    let error = restore(&layout, &backup, FORCED, Timestamp(0), &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("leads to no folder"), "{error}");
    fs::create_dir(other.join("missing")).unwrap();
    fs::write(data.join("old"), "old").unwrap();
    let restored = restore(&layout, &backup, FORCED, Timestamp(0), &mut |_, _| {}).unwrap();
    assert!(data.is_symlink());
    assert_eq!(files(&restored.aside[0]), ["old"]);
    assert!(other.join("missing/archive/00000001.log").is_file());
}

/// A mount point can't be renamed: once, that was only noticed in the middle of moving.
#[test]
fn a_mount_in_a_place_is_named_before_anything_is_moved() {
    let (guard, data, other, _) = two_folders();
    let backup = backup(guard.path(), &["archive/00000001.log"]);
    let archive = format!("log:{}", other.display());
    let layout = testing::layout(&data, ["", "", &archive], None);
    for (name, what) in [("old", "something is mounted at"), (STAGE, "is in the way")] {
        fs::create_dir_all(other.join(name)).unwrap();
        fs::create_dir_all(data.join("old")).unwrap();
        // The archive is a disk, and another disk is mounted inside it.
        let depth = |path: &Path| 1 + u64::from(path.starts_with(other.join(name)));
        let mount_of =
            |path: &Path| Some(Mount::of_test(if path.starts_with(&other) { depth(path) } else { 0 }, 1));
        let disks = Disks { mount_of: &mount_of, space: &disk::space };
        let error = restore_on(&disks, &layout, &backup, FORCED, Timestamp(0), &mut |_, _| {}).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(what), "{error}");
        assert_eq!(
            (disk::names(&data).unwrap(), disk::names(&other).unwrap()),
            (vec!["old".to_owned()], vec![name.to_owned()])
        );
        fs::remove_dir(other.join(name)).unwrap();
    }
}

#[test]
fn copies_that_were_left_leave_their_space_to_the_next_restore() {
    let (guard, data, ..) = two_folders();
    let backup = backup(guard.path(), &["archive/00000001.log"]);
    let layout = testing::layout(&data, ["", "", ""], None);
    let left = data.join(STAGE).join("archive/00000001.log");
    fs::create_dir_all(disk::parent(&left)).unwrap();
    fs::write(&left, "left").unwrap();
    let space = |_: &Path| {
        let free_bytes = if left.exists() { 0 } else { 1 << 30 };
        Ok(disk::DiskSpace { free_bytes, all_bytes: 1 << 30 })
    };
    let disks = Disks { space: &space, ..Disks::real() };
    restore_on(&disks, &layout, &backup, FORCED, Timestamp(0), &mut |_, _| {}).unwrap();
    assert_eq!(files(&data), ["archive/00000001.log"]);
}

/// A database is locked by a file beside it, and a folder by a file in it.
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

/// After an unfinished restore, its location may contain half of it.
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
