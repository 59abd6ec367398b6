//! Files of a store that are removed, emptied or truncated: none of them counts as an empty store, and none ends the process.

use std::{fs, os::unix::fs::FileExt, path::Path};

use restante_core::ErrorKind;

use super::{FIRST, get, open, put, try_open, wait};
use crate::{Options, Store, Table};

const ROWS: u16 = 400;

/// A closed store with rows in LMDB.
fn closed_store() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 64 << 10);
    for number in 0..ROWS {
        put(&store, FIRST, &number.to_be_bytes(), &[number as u8; 300]).unwrap();
    }
    wait(store.close()).unwrap();
    drop(store);
    // So that its roots are in pages that were free, before those of the rows.
    for _ in 0..6 {
        let store = open(folder.path(), 64 << 10);
        put(&store, FIRST, &0_u16.to_be_bytes(), &[0; 300]).unwrap();
        wait(store.close()).unwrap();
    }
    folder
}

fn assert_refused(folder: &Path, what: &str) {
    let error = try_open(folder, 64 << 10).err().unwrap_or_else(|| panic!("{what}: an empty store was made"));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
}

#[test]
fn a_store_of_a_newer_format_is_refused_and_left_alone() {
    let folder = closed_store();
    let own = Table::new(9, "store"); // the table of the store itself
    let store = Store::open(folder.path(), &[own], Options::default()).unwrap();
    put(&store, own, b"format", &2_u64.to_be_bytes()).unwrap();
    wait(store.close()).unwrap();
    drop(store);
    let contents =
        || ["data.mdb", "commit-0.log", "commit-1.log"].map(|name| fs::read(folder.path().join(name)).ok());
    let before = contents();
    let error = try_open(folder.path(), 64 << 10).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let refusal = "the LMDB store has format version 2, and this program knows version 1";
    assert!(error.to_string().contains(refusal), "{error}");
    assert!(contents() == before, "the store was changed");
}

#[test]
fn a_store_that_lost_its_file_is_not_taken_for_a_new_one() {
    let folder = closed_store();
    let file = folder.path().join("data.mdb");
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    assert_refused(folder.path(), "removed");
    fs::write(&file, b"").unwrap();
    assert_refused(folder.path(), "emptied");
    for len in [1, 100, 4_096, 5_000] {
        fs::write(&file, &bytes[..len]).unwrap();
        assert_refused(folder.path(), "cut within its head");
    }
    fs::write(&file, &bytes).unwrap();
    wait(open(folder.path(), 64 << 10).close()).unwrap();
}

#[test]
fn a_store_that_was_cut_is_refused_unless_it_lost_free_pages_only() {
    let folder = closed_store();
    let file = folder.path().join("data.mdb");
    let bytes = fs::read(&file).unwrap();
    let (mut refused, mut opened) = (0, 0);
    for len in (8_192..=bytes.len()).rev().step_by(1_000) {
        fs::write(&file, &bytes[..len]).unwrap();
        let store = match try_open(folder.path(), 64 << 10) {
            Ok(store) => store,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "cut at {len}: {error}");
                assert_eq!(fs::read(&file).unwrap(), bytes[..len], "a damaged file is left as it is");
                refused += 1;
                continue;
            }
        };
        for number in 0..ROWS {
            let value = get(&store, FIRST, &number.to_be_bytes());
            assert_eq!(value, Some(vec![number as u8; 300]), "cut at {len}: row {number}");
        }
        assert_eq!(store.check().unwrap(), [""; 0]);
        opened += 1;
    }
    assert!(refused > 10 && opened > 0, "{refused} refused, {opened} opened");
}

/// LMDB ends the process when it reads an invalid page, so the check reads the pages first.
#[test]
fn a_page_that_is_overwritten_is_found_by_the_check() {
    let folder = closed_store();
    let file = folder.path().join("data.mdb");
    let store = open(folder.path(), 64 << 10);
    assert_eq!(store.check().unwrap(), [""; 0]);
    let bytes = fs::read(&file).unwrap();
    let mut found = 0;
    for page in 2..bytes.len() / 4_096 {
        let target = fs::OpenOptions::new().write(true).open(&file).unwrap();
        let place = page as u64 * 4_096;
        target.write_all_at(&[0; 16], place).unwrap();
        found += store.check().unwrap().len();
        target.write_all_at(&bytes[page * 4_096..][..16], place).unwrap();
    }
    assert!(found > 10, "{found} of {} pages", bytes.len() / 4_096);
    assert_eq!(store.check().unwrap(), [""; 0]);
}

#[test]
fn a_missing_file_of_the_commit_log_is_reported() {
    let folder = closed_store();
    fs::remove_file(folder.path().join("commit-0.log")).unwrap();
    let error = try_open(folder.path(), 64 << 10).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("commit-0.log"), "{error}");
    fs::write(folder.path().join("commit-0.log"), b"").unwrap();
    open(folder.path(), 64 << 10);
}
