//! Every file of a store is removed, emptied, cut and changed: undamaged blobs are served, lost ones are reported, and no file is
//! removed.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use restante_core::BlobId;

use super::{blob, copy_folder, open_folder, put, read_all, runtime};
use crate::files::schema::INDEX;

/// Cuts of each file, and a third of the changed bytes, unless `RESTANTE_TEST_DAMAGES` is set.
const DAMAGES_DEFAULT: u64 = 3;

#[derive(Clone, Copy, Debug)]
enum Damage {
    Removed,
    Cut(u64),
    Changed(u64),
}

impl Damage {
    fn inflict(self, file: &Path) {
        match self {
            Self::Removed => fs::remove_file(file).unwrap(),
            Self::Cut(len) => OpenOptions::new().write(true).open(file).unwrap().set_len(len).unwrap(),
            Self::Changed(offset) => {
                let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, offset).unwrap();
                file.write_all_at(&[byte[0] ^ 16], offset).unwrap();
            }
        }
    }
}

/// The kinds of damage to a file of `len` bytes. LMDB's files are not changed in place: LMDB trusts its pages.
fn damages(name: &Path, len: u64, seed: u64) -> Vec<Damage> {
    let count = std::env::var("RESTANTE_TEST_DAMAGES").ok().and_then(|count| count.parse().ok());
    let count: u64 = count.unwrap_or(DAMAGES_DEFAULT);
    let mut state = seed;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 16) % bound
    };
    let mut all = vec![Damage::Removed, Damage::Cut(0)];
    if len > 0 {
        all.extend((0..count).map(|_| Damage::Cut(below(len))));
    }
    if len > 0 && !name.starts_with(INDEX) {
        all.extend((0..3 * count).map(|_| Damage::Changed(below(len))));
    }
    all
}

/// The files below a folder and their lengths.
fn files(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(folder).unwrap().to_owned();
                found.insert(name, entry.metadata().unwrap().len());
            }
        }
    }
    found
}

/// Opens the damaged store; returns how many blobs can't be read.
async fn check_damaged(dir: &Path, damaged: &Path, blobs: &BTreeMap<BlobId, Bytes>, what: &str) -> u64 {
    let before = files(dir);
    let opened = open_folder(dir);
    let mut lost = Vec::new();
    for (id, bytes) in blobs {
        match read_all(&*opened.blobs, *id).await {
            Ok(found) => assert_eq!(&found, bytes, "{what}"),
            Err(_) => lost.push(*id),
        }
    }
    let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
    for id in &lost {
        let is_found = report.findings.iter().any(|finding| finding.place.contains(&id.to_string()));
        assert!(is_found, "{what}: blob {id} is lost, and the check says {:?}", report.findings);
    }
    put(&opened, &Bytes::from_static(b"one more")).await;
    opened.upkeep.close().await.unwrap();
    drop(opened);
    let after = files(dir);
    for (name, len) in before {
        let is_log = name.starts_with(INDEX); // commit logs are emptied by closing, a damaged index is renamed
        let kept = after.get(&name).copied();
        assert!(
            is_log || kept.is_some_and(|kept| kept >= len),
            "{what}: {} is gone or was cut",
            name.display()
        );
    }
    if damaged.starts_with(INDEX) {
        assert_eq!(lost, [], "{what}: the index can be rebuilt");
    }
    lost.len() as u64
}

#[test]
fn any_damage_of_any_file_is_found_and_costs_no_more_than_it_hit() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let mut blobs = BTreeMap::new();
        for n in 0..40 {
            let bytes = blob(n, if n % 8 == 7 { 3_000 } else { 100 + 37 * (n as usize % 20) });
            blobs.insert(put(&opened, &bytes).await, bytes);
        }
        opened.upkeep.set_owner(restante_core::Identity([1; 16])).await.unwrap();
        opened.upkeep.close().await.unwrap();
        drop(opened);
        let (mut tried, mut losses) = (0, 0);
        for (number, (name, len)) in files(dir.path()).into_iter().enumerate() {
            for damage in damages(&name, len, number as u64) {
                let copy = tempfile::tempdir().unwrap();
                copy_folder(dir.path(), copy.path(), &|_| true);
                damage.inflict(&copy.path().join(&name));
                let what = format!("{} {damage:?}", name.display());
                losses += check_damaged(copy.path(), &name, &blobs, &what).await;
                tried += 1;
            }
        }
        assert!(tried > 50 && losses > 20, "{tried} damages, {losses} blobs lost");
    });
}
