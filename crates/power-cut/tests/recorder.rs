//! Programs that forget a sync must lose acknowledged data in some cuts, and correct programs never.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "an assertion reports the failure")]

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use restante_power_cut::{Child, Cut, child, record};

/// Cuts of each program: enough to catch a missing sync reliably.
const CUTS: usize = 120;

/// `O_DSYNC` of Linux, on all machines of Rust's standard library but MIPS and SPARC.
const O_DSYNC: i32 = 0o10000;

/// Runs a program and returns the number of cuts in which something acknowledged is missing.
fn cuts_that_lose(test: &str, is_whole: impl Fn(&Cut<'_>) -> bool) -> usize {
    let log = record(test).unwrap();
    assert!(log.acknowledged().count() > 10, "too few acknowledgements");
    let (mut lost, mut seen) = (0, 0);
    log.replay(CUTS, 1, |cut| {
        seen += cut.acknowledged().len();
        if !is_whole(cut) {
            lost += 1;
        }
    })
    .unwrap();
    assert!(seen > CUTS, "nearly all cuts were before the first acknowledgement");
    lost
}

fn sync_folder(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// Appends lines to one file.
fn append_lines(child: &Child, is_synced: bool, is_folder_synced: bool) {
    let path = child.folder().join("lines");
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    if is_folder_synced {
        sync_folder(child.folder());
    }
    for line in 0..100 {
        writeln!(file, "line {line}").unwrap();
        if is_synced {
            file.sync_data().unwrap();
        }
        child.acknowledge(&format!("line {line}")).unwrap();
    }
}

fn has_lines(cut: &Cut<'_>) -> bool {
    let text = fs::read(cut.folder().join("lines")).unwrap_or_default();
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    cut.acknowledged().iter().enumerate().all(|(place, line)| lines.get(place) == Some(&line.as_bytes()))
}

#[test]
fn synced_lines_are_never_lost() {
    if let Some(child) = child().unwrap() {
        return append_lines(&child, true, true);
    }
    assert_eq!(cuts_that_lose("synced_lines_are_never_lost", has_lines), 0);
}

#[test]
fn a_file_that_is_not_synced_is_caught() {
    if let Some(child) = child().unwrap() {
        return append_lines(&child, false, true);
    }
    assert!(cuts_that_lose("a_file_that_is_not_synced_is_caught", has_lines) > CUTS / 4);
}

#[test]
fn a_folder_that_is_not_synced_is_caught() {
    if let Some(child) = child().unwrap() {
        return append_lines(&child, true, false);
    }
    assert!(cuts_that_lose("a_folder_that_is_not_synced_is_caught", has_lines) > CUTS / 4);
}

/// The content of a numbered file.
fn content(number: usize) -> Vec<u8> {
    format!("{number} ").repeat(1_000 + number).into_bytes()
}

/// Replaces a file repeatedly: writes a temporary file, syncs and renames it.
fn replace(child: &Child, is_synced: bool, is_folder_synced: bool) {
    let (new, path) = (child.folder().join("new"), child.folder().join("file"));
    for number in 0..60 {
        let mut file = File::create(&new).unwrap();
        file.write_all(&content(number)).unwrap();
        if is_synced {
            file.sync_all().unwrap();
        }
        #[expect(clippy::disallowed_methods, reason = "the test chooses whether to sync the folder")]
        fs::rename(&new, &path).unwrap();
        if is_folder_synced {
            sync_folder(child.folder());
        }
        child.acknowledge(&number.to_string()).unwrap();
    }
}

/// The file has one of the written contents, whole, and not older than the last acknowledged one.
fn is_replaced(cut: &Cut<'_>) -> bool {
    let acknowledged = cut.acknowledged().last().map(|number| number.parse().unwrap());
    let Ok(there) = fs::read(cut.folder().join("file")) else { return acknowledged.is_none() };
    let found = (0..60).find(|number| content(*number) == there);
    found.is_some() && found >= acknowledged
}

#[test]
fn a_file_that_is_replaced_in_order_is_always_whole() {
    if let Some(child) = child().unwrap() {
        return replace(&child, true, true);
    }
    assert_eq!(cuts_that_lose("a_file_that_is_replaced_in_order_is_always_whole", is_replaced), 0);
}

#[test]
fn a_rename_before_the_sync_is_caught() {
    if let Some(child) = child().unwrap() {
        return replace(&child, false, true);
    }
    assert!(cuts_that_lose("a_rename_before_the_sync_is_caught", is_replaced) > CUTS / 4);
}

#[test]
fn a_rename_without_a_sync_of_the_folder_is_caught() {
    if let Some(child) = child().unwrap() {
        return replace(&child, true, false);
    }
    assert!(cuts_that_lose("a_rename_without_a_sync_of_the_folder_is_caught", is_replaced) > CUTS / 4);
}

const SLOTS: usize = 64;
const SLOT_BYTES: usize = 1_000;

/// Threads write slots of one file and share syncs, in a folder of its own; each acknowledges only after a sync that began
/// after its write.
fn write_slots(child: &Child, is_shared_too_early: bool) {
    let folder = child.folder().join("deep");
    fs::create_dir(&folder).unwrap();
    let file = OpenOptions::new().write(true).create_new(true).open(folder.join("slots")).unwrap();
    file.set_len((SLOTS * SLOT_BYTES) as u64).unwrap();
    file.sync_all().unwrap();
    sync_folder(&folder);
    sync_folder(child.folder());
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let slot = next.fetch_add(1, Ordering::Relaxed);
                    if slot >= SLOTS {
                        return;
                    }
                    if is_shared_too_early {
                        file.sync_data().unwrap();
                    }
                    file.write_all_at(&[slot as u8 + 1; SLOT_BYTES], (slot * SLOT_BYTES) as u64).unwrap();
                    if !is_shared_too_early {
                        file.sync_data().unwrap();
                    }
                    child.acknowledge(&slot.to_string()).unwrap();
                }
            });
        }
    });
}

fn has_slots(cut: &Cut<'_>) -> bool {
    let there = fs::read(cut.folder().join("deep/slots")).unwrap_or_default();
    cut.acknowledged().iter().all(|slot| {
        let slot: usize = slot.parse().unwrap();
        there.get(slot * SLOT_BYTES..(slot + 1) * SLOT_BYTES) == Some(&[slot as u8 + 1; SLOT_BYTES])
    })
}

#[test]
fn threads_that_sync_after_they_wrote_lose_nothing() {
    if let Some(child) = child().unwrap() {
        return write_slots(&child, false);
    }
    assert_eq!(cuts_that_lose("threads_that_sync_after_they_wrote_lose_nothing", has_slots), 0);
}

#[test]
fn threads_that_sync_before_they_wrote_are_caught() {
    if let Some(child) = child().unwrap() {
        return write_slots(&child, true);
    }
    assert!(cuts_that_lose("threads_that_sync_before_they_wrote_are_caught", has_slots) > CUTS / 4);
}

#[test]
fn a_write_through_a_synced_descriptor_is_durable_by_itself_alone() {
    if let Some(child) = child().unwrap() {
        let path = child.folder().join("pages");
        let plain = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        sync_folder(child.folder());
        let synced = OpenOptions::new().write(true).custom_flags(O_DSYNC).open(&path).unwrap();
        for page in 0..40_u64 {
            synced.write_all_at(&[7; 4_096], page * 8_192).unwrap();
            plain.write_all_at(&[8; 4_096], page * 8_192 + 4_096).unwrap();
            child.acknowledge(&page.to_string()).unwrap();
        }
        return;
    }
    let page = |cut: &Cut<'_>, page: usize, byte: u8| {
        let there = fs::read(cut.folder().join("pages")).unwrap_or_default();
        there.get(page * 4_096..(page + 1) * 4_096) == Some(&[byte; 4_096])
    };
    let name = "a_write_through_a_synced_descriptor_is_durable_by_itself_alone";
    let has_synced = |cut: &Cut<'_>| (0..cut.acknowledged().len()).all(|number| page(cut, 2 * number, 7));
    assert_eq!(cuts_that_lose(name, has_synced), 0);
    let has_plain = |cut: &Cut<'_>| (0..cut.acknowledged().len()).all(|number| page(cut, 2 * number + 1, 8));
    assert!(cuts_that_lose(name, has_plain) > CUTS / 4);
}

/// Uses every supported operation, so that the last cut shows whether all were recorded.
fn do_everything(folder: &Path) {
    fs::create_dir_all(folder.join("a/b/c")).unwrap();
    fs::write(folder.join("a/one"), "one").unwrap();
    fs::copy(folder.join("a/one"), folder.join("a/b/copy")).unwrap();
    fs::hard_link(folder.join("a/one"), folder.join("a/b/linked")).unwrap();
    let mut file = OpenOptions::new().read(true).append(true).open(folder.join("a/one")).unwrap();
    file.write_all(b" and more").unwrap();
    let vectors = [std::io::IoSlice::new(b", in"), std::io::IoSlice::new(b" parts")];
    assert_eq!(file.write_vectored(&vectors).unwrap(), 10);
    let mut file = File::create(folder.join("a/b/c/cut")).unwrap();
    file.write_all(&[1; 10_000]).unwrap();
    file.seek(SeekFrom::Start(5_000)).unwrap();
    file.write_all(&[2; 100]).unwrap();
    file.set_len(5_050).unwrap();
    file.set_len(6_000).unwrap();
    file.try_clone().unwrap().write_all_at(&[3; 5], 5_990).unwrap();
    fs::write(folder.join("a/b/gone"), "gone").unwrap();
    fs::remove_file(folder.join("a/b/gone")).unwrap();
    fs::create_dir(folder.join("empty")).unwrap();
    fs::remove_dir(folder.join("empty")).unwrap();
    fs::create_dir_all(folder.join("full/of/things")).unwrap();
    fs::write(folder.join("full/of/things/thing"), "thing").unwrap();
    fs::remove_dir_all(folder.join("full")).unwrap();
    fs::write(folder.join("a/b/copy"), "shorter").unwrap();
    #[expect(clippy::disallowed_methods, reason = "all of it is synced at the end")]
    fs::rename(folder.join("a/b"), folder.join("moved")).unwrap();
}

/// Every file below a folder and its content.
fn all(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(all(&path).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
            found.insert(name, Vec::new());
        } else {
            let mut bytes = Vec::new();
            File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
            found.insert(name, bytes);
        }
    }
    found
}

/// Syncs everything below a folder.
fn sync_all(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sync_all(&path);
        } else {
            File::open(&path).unwrap().sync_all().unwrap();
        }
    }
    sync_folder(folder);
}

#[test]
fn what_is_synced_is_there_to_the_byte_whatever_it_was_made_by() {
    if let Some(child) = child().unwrap() {
        do_everything(child.folder());
        sync_all(child.folder());
        child.acknowledge("all").unwrap();
        return;
    }
    let log = record("what_is_synced_is_there_to_the_byte_whatever_it_was_made_by").unwrap();
    let expected = tempfile::tempdir().unwrap();
    do_everything(expected.path());
    let expected = all(expected.path());
    assert_eq!(expected["a/one"], b"one and more, in parts");
    let mut seen = 0;
    log.replay(40, 1, |cut| {
        if cut.acknowledged().contains(&"all") {
            seen += 1;
            assert_eq!(all(cut.folder()), expected);
        }
    })
    .unwrap();
    assert!(seen >= 20, "every second cut follows the acknowledgement");
    assert_eq!(log.mapped().count(), 0);
}

/// A rename is one record among thousands, and most faults are near one.
#[test]
fn every_rename_is_cut_around() {
    if let Some(child) = child().unwrap() {
        let file = File::create(child.folder().join("file")).unwrap();
        for byte in 0..5_000 {
            file.write_all_at(&[1], byte).unwrap();
        }
        for number in 0..3 {
            let named = child.folder().join(format!("named {number}"));
            fs::write(child.folder().join("new"), "content").unwrap();
            #[expect(clippy::disallowed_methods, reason = "the folder is synced afterwards")]
            fs::rename(child.folder().join("new"), named).unwrap();
            sync_folder(child.folder());
            file.write_all_at(&[2; 5], 0).unwrap();
        }
        for byte in 0..5_000 {
            file.write_all_at(&[3], byte).unwrap();
        }
        return;
    }
    let log = record("every_rename_is_cut_around").unwrap();
    let mut seen = BTreeMap::new();
    log.replay(200, 2, |cut| {
        let names: Vec<String> = all(cut.folder()).into_keys().collect();
        *seen.entry(names.join(" ")).or_insert(0) += 1;
    })
    .unwrap();
    for (number, names) in
        ["file named 0 new", "file named 0 named 1 new", "file named 0 named 1"].into_iter().enumerate()
    {
        assert!(seen.contains_key(names), "{number}: {seen:?}");
    }
}

#[test]
fn every_stage_has_its_share_of_the_cuts() {
    if let Some(child) = child().unwrap() {
        let file = File::create(child.folder().join("file")).unwrap();
        for byte in 0..400 {
            file.write_all_at(&[1], byte).unwrap();
            if byte == 200 {
                child.acknowledge("rare").unwrap();
            } else if byte == 201 || byte % 20 == 0 {
                child.acknowledge("often").unwrap();
            }
        }
        return;
    }
    let stage = |acknowledged: &[&str]| match acknowledged.last() {
        Some(&"rare") => "rare",
        Some(_) => "often",
        None => "first",
    };
    let log = record("every_stage_has_its_share_of_the_cuts").unwrap();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let counted = log.replay_stages(60, 3, stage, |cut| {
        *seen.entry(stage(cut.acknowledged())).or_default() += 1;
    });
    assert_eq!(counted.unwrap(), seen);
    assert_eq!(seen.values().sum::<usize>(), 60);
    assert!(seen.len() == 3 && seen.values().all(|cuts| *cuts >= 3), "{seen:?}");
}

#[test]
fn what_cannot_be_recorded_is_an_error() {
    if let Some(child) = child().unwrap() {
        std::os::unix::fs::symlink("here", child.folder().join("there")).unwrap();
        return;
    }
    let error = record("what_cannot_be_recorded_is_an_error").unwrap_err();
    assert!(error.to_string().contains("a symbolic link can't be recorded: there"), "{error}");
}

#[test]
fn a_program_that_fails_is_an_error() {
    if child().unwrap().is_some() {
        panic!("on purpose");
    }
    let error = record("a_program_that_fails_is_an_error").unwrap_err();
    assert!(error.to_string().contains("on purpose"), "{error}");
    let error = record("there_is_no_such_test").unwrap_err();
    assert!(error.to_string().contains("there is no test"), "{error}");
}
