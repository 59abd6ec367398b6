use restante_core::ErrorKind;

use super::*;
use crate::layout::testing;

fn layout(data: &str, records: &str, blobs: &str, archive: &str) -> Layout {
    testing::layout(Path::new(data), [records, blobs, archive], None)
}

/// Disks by path prefix; other paths are on the first.
fn mount_among(disks: &'static [(&'static str, u64, u32)]) -> impl Fn(&Path) -> Option<Mount> {
    move |path| {
        let found = disks.iter().rev().find(|(begin, ..)| path.starts_with(begin));
        found.map(|(_, mount, disk)| Mount::of_test(*mount, *disk))
    }
}

const ONE_DISK: &[(&str, u64, u32)] = &[("/", 1, 1)];

fn no_space(_: &Path) -> Result<DiskSpace, Error> {
    Ok(DiskSpace { free_bytes: 0, all_bytes: 0 })
}

fn refused(layout: &Layout) -> Option<String> {
    let mount_of = mount_among(ONE_DISK);
    let disks = Disks { mount_of: &mount_of, space: &no_space };
    targets(layout, &disks).err().map(|error| error.to_string())
}

#[test]
fn places_in_one_another_are_refused() {
    assert_eq!(refused(&layout("/d", "", "", "")), None);
    assert_eq!(refused(&layout("/d", "lmdb:/a/records", "files:/a/blobs", "log:/a/archive")), None);
    for (layout, what) in [
        (
            layout("/d", "", "", "log:/d/blobs/archive"),
            "the place of the archive, /d/blobs/archive, lies in that of the blobs, /d/blobs: give each a folder of its own \
             (archive.url, blobs.url)",
        ),
        (
            layout("/d", "", "", "sqlite:/d/records/a.db"),
            "archive, /d/records/a.db, lies in that of the records",
        ),
        (layout("/d", "lmdb:/x", "files:/x", ""), "is also that of the blobs, /x"),
        (
            layout("/x/d", "", "", "log:/x"),
            "the place of the data folder, /x/d, lies in that of the archive, /x",
        ),
        (layout("/d", "lmdb:/d", "", ""), "the data folder, /d, is also that of the records, /d"),
        (
            layout("/d", "", "", "log:/d/restore.partial"),
            "has a name that a restore needs for itself: set archive.url",
        ),
        (layout("/d", "", "files:/d/before-restore-x/b", ""), "has a name that a restore needs"),
        (layout("/d", "lmdb:/x/a.partial", "", "log:/x/a"), "set records.url to another one"),
    ] {
        let why = refused(&layout).unwrap_or_default();
        assert!(why.contains(what), "{what}\n{why}");
    }
}

#[test]
fn places_are_compared_by_where_links_lead() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::create_dir(at("real")).unwrap();
    std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
    let why = refused(&layout(
        &at("data"),
        &format!("lmdb:{}", at("real")),
        &format!("files:{}", at("link/b")),
        "",
    ));
    assert!(why.unwrap_or_default().contains("lies in that of the records"));
}

#[test]
fn a_backup_lies_apart_from_where_it_is_restored() {
    let mount_of = mount_among(ONE_DISK);
    let disks = Disks { mount_of: &mount_of, space: &no_space };
    let layout = layout("/d", "", "", "log:/a/archive");
    let targets = targets(&layout, &disks).unwrap();
    check_outside(Path::new("/b"), &targets).unwrap();
    for (backup, what) in [
        ("/d/b", "/d/b lies in /d: "),
        ("/a/archive/b", "/a/archive/b lies in /a/archive: "),
        ("/a", "/a/archive lies in /a: "),
    ] {
        let why = check_outside(Path::new(backup), &targets).unwrap_err().to_string();
        assert!(why.starts_with(what), "{why}");
    }
}

#[test]
fn a_place_is_filled_by_the_disk_that_it_is_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["data/archive", "data/spool", "other/blobs", "data/own/records"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    let begins = [at("data/archive"), at("data/spool"), at("other/blobs")];
    let mount_of = |path: &Path| {
        let location = begins.iter().position(|begin| path.starts_with(begin));
        Some(Mount::of_test(location.map_or(0, |location| location as u64 + 1), 1))
    };
    let disks = Disks { mount_of: &mount_of, space: &no_space };
    let at_text = |name: &str| at(name).display().to_string();
    let blobs = format!("files:{}", at_text("other/blobs"));
    let targets = targets(&layout(&at_text("data"), "", &blobs, ""), &disks).unwrap();
    let kind = |part: Part| targets.iter().find(|target| target.part == part).unwrap().kind;
    assert_eq!([Part::Files, Part::Records].map(kind), [Kind::Within; 2]);
    assert_eq!([Part::Archive, Part::Blobs].map(kind), [Kind::Disk; 2]);
    assert_eq!([Part::Spool, Part::SecondSpool].map(kind), [Kind::Beside; 2], "in the folder of a disk");
    let is_movable = |name: &str| {
        let moved = check_movable(&at(name), &at("data"), &targets, &disks);
        moved.map_err(|error| error.to_string())
    };
    assert_eq!(
        (is_movable("data/own"), is_movable("data/archive"), is_movable("data/spool")),
        (Ok(true), Ok(false), Ok(false))
    );
    let why = is_movable("data").unwrap_err();
    assert!(why.contains("can't be moved aside"), "{why}");

    let mount_of = |path: &Path| Some(Mount::of_test(u64::from(path.starts_with(at("data/own"))), 1));
    let disks = Disks { mount_of: &mount_of, space: &no_space };
    let why = check_movable(&at("data/own"), &at("data"), &targets, &disks).unwrap_err().to_string();
    assert!(why.contains("no place of the settings is on it: unmount it"), "{why}");
}

/// Once, the archive's disk was not checked when one location was outside of the data folder.
#[test]
fn the_room_of_each_disk_is_looked_at() {
    // The same disk is mounted at two places.
    let mount_of = mount_among(&[("/", 1, 1), ("/proc", 2, 2), ("/sys", 3, 2), ("/dev", 4, 3)]);
    let space = |path: &Path| {
        let free_bytes = if path.starts_with("/proc") || path.starts_with("/sys") { 10 } else { 100 };
        Ok(DiskSpace { free_bytes, all_bytes: 1_000 })
    };
    let disks = Disks { mount_of: &mount_of, space: &space };
    let check = |wanted: &[(&str, u64)]| {
        let wanted: Vec<(&Path, u64)> =
            wanted.iter().map(|(path, bytes)| (Path::new(path), *bytes)).collect();
        check_space(&wanted, &disks).map_err(|error| (error.kind(), error.to_string()))
    };
    assert_eq!(check(&[("/", 60), ("/dev", 100), ("/", 40), ("/proc", 5), ("/sys", 5)]), Ok(()));
    for (wanted, what) in [
        (&[("/", 60), ("/dev", 1), ("/", 41)][..], "takes 101 bytes on the disk of /, and 100 are free"),
        (&[("/", 1), ("/proc", 5), ("/sys", 6)], "takes 11 bytes on the disk of /proc, and 10 are free"),
        (&[("/dev/not there yet", 101)], "on the disk of /dev/not there yet"),
        (&[("/", u64::MAX), ("/", u64::MAX)], "make room there"),
    ] {
        let (kind, why) = check(wanted).unwrap_err();
        assert!(kind == ErrorKind::Full && why.contains(what), "{why}");
    }
}
