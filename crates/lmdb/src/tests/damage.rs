//! Files of a store that are removed, emptied or cut: nothing is taken for an empty store, and nothing ends the process.

use std::{
    fs::{self, OpenOptions},
    path::Path,
};

use restante_core::ErrorKind;

use super::{FIRST, open, put, try_open, wait};
use crate::Error;

const ROWS: u16 = 400;

/// A closed store with rows in LMDB.
fn closed_store() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 64 << 10);
    for number in 0..ROWS {
        put(&store, FIRST, &number.to_be_bytes(), &[number as u8; 300]).unwrap();
    }
    wait(store.close()).unwrap();
    folder
}

fn assert_refused(folder: &Path, what: &str) {
    let error = try_open(folder, 64 << 10).err().unwrap_or_else(|| panic!("{what}: an empty store was made"));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
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
fn a_store_that_was_cut_serves_what_is_left_and_the_check_tells() {
    let folder = closed_store();
    let file = folder.path().join("data.mdb");
    let bytes = fs::read(&file).unwrap();
    let mut with_losses = 0;
    for len in (8_192..bytes.len()).step_by(4_000) {
        fs::write(&file, &bytes[..len]).unwrap();
        for name in ["commit-0.log", "commit-1.log"] {
            OpenOptions::new().write(true).open(folder.path().join(name)).unwrap().set_len(0).unwrap();
        }
        let Ok(store) = try_open(folder.path(), 64 << 10) else { continue };
        let mut lost = 0;
        for number in 0..ROWS {
            let found = store.read(|view| {
                Ok::<_, Error>(view.get(FIRST, &number.to_be_bytes())?.map(|value| value.to_vec()))
            });
            match found {
                Ok(Some(value)) => assert_eq!(value, [number as u8; 300], "cut at {len}"),
                Ok(None) => panic!("cut at {len}: row {number} is said never to have been there"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "cut at {len}: {error}");
                    lost += 1;
                }
            }
        }
        let is_told = store.check().map_or(true, |wrong| !wrong.is_empty());
        assert!(lost == 0 || is_told, "cut at {len}: {lost} rows are lost and the check is content");
        with_losses += u64::from(lost > 0);
    }
    assert!(with_losses > 0);
}

#[test]
fn a_file_of_the_commit_log_that_is_gone_is_told() {
    let folder = closed_store();
    fs::remove_file(folder.path().join("commit-0.log")).unwrap();
    let error = try_open(folder.path(), 64 << 10).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("commit-0.log"), "{error}");
    fs::write(folder.path().join("commit-0.log"), b"").unwrap();
    open(folder.path(), 64 << 10);
}
