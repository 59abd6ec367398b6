use std::{collections::BTreeMap, fs};

use proptest::prelude::*;
use rusty_leveldb::{CompressorId, DB, Options, compressor::SnappyCompressor};
use tempfile::TempDir;

use super::*;

/// Files that goleveldb v1.0.0 wrote: 300 pairs `key 0000` to `key 0299`, each put twice, every third deleted afterwards, in
/// tables of several levels with snappy, the last writes in a journal.
const GOLEVELDB: &str = "tests/fixtures/goleveldb";

fn read(folder: &Path, after: Option<&[u8]>) -> (BTreeMap<Vec<u8>, Vec<u8>>, Findings) {
    let mut reader = Reader::open(folder, after.map(<[u8]>::to_vec)).unwrap();
    let mut pairs = BTreeMap::new();
    while let Some((key, value)) = reader.next() {
        assert!(pairs.last_key_value().is_none_or(|(last, _)| *last < key), "pairs come in order");
        pairs.insert(key, value);
    }
    (pairs, reader.take_damage())
}

fn options(is_compressed: bool) -> Options {
    // Small, so that a few hundred writes create tables on several levels.
    let compressor = if is_compressed { SnappyCompressor::ID } else { 0 };
    Options {
        write_buffer_size: 4_000,
        max_file_size: 4_000,
        block_size: 500,
        compressor,
        ..Options::default()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u16, u8),
    Delete(u16),
    /// Closes the database and opens it again, which moves the journal into a table.
    Reopen,
}

fn apply(folder: &Path, steps: &[Step], is_compressed: bool) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut expected = BTreeMap::new();
    let mut db = DB::open(folder, options(is_compressed)).unwrap();
    for step in steps {
        match step {
            Step::Put(key, value) => {
                let (key, value) = (key.to_be_bytes().to_vec(), vec![*value; usize::from(*value)]);
                db.put(&key, &value).unwrap();
                expected.insert(key, value);
            }
            Step::Delete(key) => {
                db.delete(&key.to_be_bytes()).unwrap();
                expected.remove(&key.to_be_bytes()[..]);
            }
            Step::Reopen => {
                db.close().unwrap();
                drop(db);
                db = DB::open(folder, options(is_compressed)).unwrap();
            }
        }
    }
    db.close().unwrap();
    expected
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        20 => (0_u16..300, any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
        5 => (0_u16..300).prop_map(Step::Delete),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_another_library_writes_is_read(steps in steps(), is_compressed: bool, after in 0_u16..300) {
        let folder = tempfile::tempdir().unwrap();
        let expected = apply(folder.path(), &steps, is_compressed);
        let (pairs, damage) = read(folder.path(), None);
        prop_assert_eq!(&pairs, &expected);
        prop_assert_eq!(damage, Findings::default());
        let after = after.to_be_bytes();
        let later: BTreeMap<_, _> = expected.into_iter().filter(|(key, _)| key[..] > after[..]).collect();
        prop_assert_eq!(read(folder.path(), Some(&after)).0, later);
    }
}

/// The pairs of the fixture.
fn goleveldb_pairs() -> BTreeMap<Vec<u8>, Vec<u8>> {
    let pair = |number: u32| {
        let value = format!("second value of {number} {}", "x".repeat(number as usize % 50));
        (format!("key {number:04}").into_bytes(), value.into_bytes())
    };
    (0..300).filter(|number| number % 3 != 0).map(pair).collect()
}

#[test]
fn what_goleveldb_wrote_is_read() {
    let (pairs, damage) = read(GOLEVELDB.as_ref(), None);
    assert_eq!(damage, Findings::default());
    assert_eq!(pairs, goleveldb_pairs());
    let files: Vec<String> =
        fs::read_dir(GOLEVELDB).unwrap().map(|entry| name_of(&entry.unwrap().path())).collect();
    assert!(files.iter().filter(|name| name.ends_with(".ldb")).count() > 1, "{files:?}");
}

fn copy_of(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

fn files_of(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

#[test]
fn reading_changes_no_file() {
    let folder = copy_of(GOLEVELDB.as_ref());
    let before = files_of(folder.path());
    read(folder.path(), None);
    assert_eq!(files_of(folder.path()), before);
}

/// Whichever byte of a file is damaged, all returned pairs are correct, and missing ones are reported.
#[test]
fn a_damaged_byte_is_reported_and_never_returned() {
    let whole = goleveldb_pairs();
    let mut was_noted = 0;
    for (path, bytes) in files_of(GOLEVELDB.as_ref()) {
        for at in (0..bytes.len()).step_by(bytes.len() / 60 + 1) {
            let folder = copy_of(GOLEVELDB.as_ref());
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            fs::write(folder.path().join(path.file_name().unwrap()), damaged).unwrap();
            let Ok(mut reader) = Reader::open(folder.path(), None) else { continue };
            let mut pairs = BTreeMap::new();
            while let Some((key, value)) = reader.next() {
                pairs.insert(key, value);
            }
            let damage = reader.take_damage();
            was_noted += damage.count;
            assert!(damage.count > 0 || pairs == whole, "{} byte {at}", path.display());
            // A deletion or a second value may be lost with its block: then the first value is returned.
            for value in pairs.values() {
                let text = std::str::from_utf8(value).unwrap();
                assert!(
                    text.starts_with("first value of ") || text.starts_with("second value of "),
                    "{text}"
                );
            }
        }
    }
    assert!(was_noted > 100, "{was_noted}");
}

#[test]
fn missing_tables_are_reported() {
    let folder = copy_of(GOLEVELDB.as_ref());
    let tables =
        files_of(folder.path()).into_keys().filter(|path| path.extension().is_some_and(|e| e == "ldb"));
    let tables: Vec<PathBuf> = tables.collect();
    for table in &tables {
        fs::remove_file(table).unwrap();
    }
    let (_, damage) = read(folder.path(), None);
    assert_eq!(damage.count, tables.len() as u64);
    assert!(damage.listed[0].contains("can't read"), "{damage:?}");
}

#[test]
fn a_truncated_journal_ends_before_the_damage() {
    let folder = tempfile::tempdir().unwrap();
    let steps: Vec<Step> = (0..20).map(|number| Step::Put(number, 9)).collect();
    apply(folder.path(), &steps, false);
    let files = files_of(folder.path());
    let (journal, bytes) =
        files.iter().find(|(path, _)| path.extension().is_some_and(|e| e == "log")).unwrap();
    for len in 0..bytes.len() {
        fs::write(journal, &bytes[..len]).unwrap();
        let (pairs, damage) = read(folder.path(), None);
        let is_between_writes = len % (bytes.len() / 20) == 0;
        assert_eq!(damage.count, u64::from(!is_between_writes), "{len}: {damage:?}");
        assert_eq!(pairs.len(), len / (bytes.len() / 20), "{len}");
        let all_before = pairs.keys().zip(0_u16..).all(|(key, number)| key[..] == number.to_be_bytes());
        assert!(all_before, "{len}");
    }
}

#[test]
fn what_is_no_leveldb_is_refused() {
    for (current, why) in [
        ("", "names no manifest"),
        ("../../etc/passwd", "names no manifest"),
        ("MANIFEST-", "names no manifest"),
        ("MANIFEST-000009", "can't read"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("CURRENT"), current).unwrap();
        let error = Reader::open(folder.path(), None).err().unwrap().to_string();
        assert!(error.contains(why), "{current}: {error}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(file in prop::collection::vec(any::<u8>(), 0..300), keep in 0_usize..48) {
        let folder = copy_of(GOLEVELDB.as_ref());
        for (path, bytes) in files_of(folder.path()) {
            // Random bytes with the footer of a table.
            let end = &bytes[bytes.len().saturating_sub(keep)..];
            if !path.ends_with("CURRENT") && !name_of(&path).starts_with("MANIFEST") {
                fs::write(&path, [&file[..], end].concat()).unwrap();
            }
        }
        read_any(folder.path());
        let _ = Manifest::read(folder.path());
        let mut written = BTreeMap::new();
        journal::replay(&file, "x", &mut written, &Notes::default());
        if let Some(mut block) = block::Block::new(file) {
            while let Ok(Some(_)) = block.next() {}
        }
    }
}

fn read_any(folder: &Path) {
    if let Ok(mut reader) = Reader::open(folder, None) {
        while reader.next().is_some() {}
    }
}
