//! Files that were truncated or overwritten: the process survives them.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

use restante_core::ErrorKind;

use super::{FIRST, SECOND, open, put, try_open, wait};
use crate::{Direction, Error, check_pages};

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % bound
    }
}

/// A closed store with rows of all lengths. Some were removed again: it has branches, large values and free pages.
fn fill(folder: &Path, random: &mut Random) {
    let store = open(folder, 64 << 10);
    for round in 0..6 {
        for _ in 0..300 {
            let table = if random.below(3) == 0 { SECOND } else { FIRST };
            let key = random.below(900).to_be_bytes()[5..].to_vec();
            let len = [10, 100, 1_500, 20_000][random.below(4) as usize];
            if random.below(4) == 0 {
                let removed = store.write_blocking(move |batch| {
                    batch.delete(table, &key);
                    Ok(())
                });
                removed.unwrap();
            } else {
                put(&store, table, &key, &vec![round; random.below(len) as usize]).unwrap();
            }
        }
        wait(store.settle()).unwrap();
    }
    wait(store.close()).unwrap();
}

fn data(folder: &Path) -> std::path::PathBuf {
    folder.join("data.mdb")
}

/// Reading a page that the file no longer has ended the process by SIGBUS.
#[test]
fn a_store_whose_file_was_cut_is_refused() {
    let whole = tempfile::tempdir().unwrap();
    let mut random = Random(1);
    fill(whole.path(), &mut random);
    let bytes = fs::read(data(whole.path())).unwrap();
    for _ in 0..60 {
        let folder = tempfile::tempdir().unwrap();
        let len = random.below(bytes.len() as u64 * 9 / 10);
        fs::write(data(folder.path()), &bytes[..len as usize]).unwrap();
        let error = try_open(folder.path(), 0).err().unwrap_or_else(|| panic!("cut to {len} bytes"));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "cut to {len} bytes: {error}");
    }
}

fn check(path: &Path) -> Result<(), Error> {
    check_pages(&File::open(path).unwrap())
}

#[test]
fn stores_as_they_are_written_have_sound_pages() {
    for seed in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), &mut Random(seed));
        check(&data(folder.path())).unwrap();
        let store = open(folder.path(), 0);
        check(&data(folder.path())).unwrap();
        let copy = tempfile::tempdir().unwrap();
        wait(store.backup(copy.path())).unwrap();
        check(&data(copy.path())).unwrap();
        // All rows are removed, one table after the other.
        for table in [FIRST, SECOND] {
            store
                .write_blocking(move |batch| {
                    for number in 0..900_u64 {
                        batch.delete(table, &number.to_be_bytes()[5..]);
                    }
                    Ok(())
                })
                .unwrap();
            wait(store.settle()).unwrap();
            check(&data(folder.path())).unwrap();
        }
        wait(store.close()).unwrap();
        check(&data(folder.path())).unwrap();
    }
    let empty = tempfile::tempdir().unwrap();
    wait(open(empty.path(), 0).close()).unwrap();
    check(&data(empty.path())).unwrap();
}

/// Overwrites a file as a broken disk or an attacker may do.
fn mangle(path: &Path, random: &mut Random) {
    const PAGE: u64 = 4_096;
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    let pages = len / PAGE;
    let page = random.below(pages);
    match random.below(7) {
        0 => {
            let mut byte = [0];
            let at = random.below(len);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << random.below(8))], at).unwrap();
        }
        // In the header of a page, or in its list of rows.
        1 | 2 => {
            let at = page * PAGE + random.below(40);
            file.write_all_at(&[random.below(256) as u8], at).unwrap();
        }
        // In a meta page.
        3 => {
            let at = random.below(2) * PAGE + random.below(152);
            file.write_all_at(&[random.below(256) as u8], at).unwrap();
        }
        // A small number where a page, a length or an offset may be.
        4 => {
            let number = random.below(pages + 10).to_ne_bytes();
            file.write_all_at(&number[..2], page * PAGE + random.below(PAGE / 2) * 2).unwrap();
        }
        5 => {
            let mut bytes = [0; PAGE as usize];
            file.read_exact_at(&mut bytes, random.below(pages) * PAGE).unwrap();
            file.write_all_at(&bytes, page * PAGE).unwrap();
        }
        _ => {
            let bytes: Vec<u8> = (0..random.below(600)).map(|_| random.below(256) as u8).collect();
            file.write_all_at(&bytes, random.below(len)).unwrap();
        }
    }
}

/// Reads everything, and writes until pages were split, merged and reused.
fn use_all(folder: &Path, random: &mut Random) -> Result<(), Error> {
    let store = try_open(folder, 0)?;
    let _ = store.check();
    for table in [FIRST, SECOND] {
        store.read(|view| {
            let unbounded = std::ops::Bound::Unbounded;
            let mut rows = view.range(table, unbounded, unbounded, Direction::Descending)?;
            while let Some((key, value)) = rows.next()? {
                std::hint::black_box((key.to_vec(), value.to_vec()));
            }
            Ok(())
        })?;
    }
    for round in 0..4 {
        let seed = random.below(u64::MAX);
        store.write_blocking(move |batch| {
            let mut random = Random(seed);
            for _ in 0..300 {
                let table = if random.below(3) == 0 { SECOND } else { FIRST };
                let key = random.below(900).to_be_bytes();
                match random.below(2) {
                    0 => batch.delete(table, &key[5..]),
                    _ => batch.put(table, &key[5..], &vec![round; random.below(9_000) as usize]),
                }
            }
            Ok(())
        })?;
    }
    wait(store.close())
}

/// An overwritten page number or offset ended the process by SIGBUS, SIGSEGV or SIGABRT.
#[test]
fn what_passes_the_check_of_pages_ends_no_process() {
    let whole = tempfile::tempdir().unwrap();
    fill(whole.path(), &mut Random(7));
    let (mut passed, mut refused) = (0, 0);
    for seed in 0..400 {
        eprintln!("seed {seed}"); // it is the last one when the process ends
        let mut random = Random(seed);
        let folder = tempfile::tempdir().unwrap();
        fs::copy(data(whole.path()), data(folder.path())).unwrap();
        for _ in 0..=random.below(3) {
            mangle(&data(folder.path()), &mut random);
        }
        match check(&data(folder.path())) {
            Ok(()) => {
                passed += 1;
                let _ = use_all(folder.path(), &mut random); // an error is fine: it does not end the process
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            }
        }
    }
    assert!(passed > 50 && refused > 100, "{passed} passed, {refused} were refused");
}
