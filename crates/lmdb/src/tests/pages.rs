//! Files that were cut or written over: whatever lies in the folder, the process goes on.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

use restante_core::ErrorKind;

use super::{FIRST, SECOND, get, open, put, try_open, wait};

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % bound
    }
}

/// A closed store with rows of all lengths, some of which were removed again: it has branches, large values and free pages.
fn fill(folder: &Path, random: &mut Random) {
    let store = open(folder, 64 << 10);
    for round in 0..6 {
        for _ in 0..300 {
            let table = if random.below(3) == 0 { SECOND } else { FIRST };
            let key = random.below(900).to_be_bytes()[5..].to_vec();
            let len = [10, 100, 1_500, 20_000][random.below(4) as usize];
            if random.below(4) == 0 {
                store.write_blocking(move |batch| Ok::<_, crate::Error>(batch.delete(table, &key))).unwrap();
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
