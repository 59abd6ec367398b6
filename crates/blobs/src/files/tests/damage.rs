//! Damaged bytes are reported, and never served.

use std::{
    fs::OpenOptions,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use restante_core::{BlobId, ErrorKind, Timestamp};
use restante_lmdb::{Batch, Options, Store, Table};

use super::{
    assert_sound, blob, config, copy_folder, folder, open, open_folder, open_with, put, read, read_all,
    runtime,
};
use crate::{
    Error, Opened,
    files::schema::{
        INDEX, PACK_HEADER_BYTES, PART_BYTES, RECORD_HEADER_BYTES, RecordHeader, file_name, pack_header,
        pack_name,
    },
    hash::id_of,
};

/// Changes a bit of a file.
fn flip(file: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
}

fn pack(dir: &Path, number: u64) -> PathBuf {
    dir.join(pack_name(number))
}

fn file(dir: &Path, id: BlobId) -> PathBuf {
    dir.join(file_name(id).0)
}

async fn assert_corrupt(opened: &Opened, id: BlobId) {
    let error = read_all(&*opened.blobs, id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// The offset of record `n` of blobs of 100 bytes.
fn record(n: u64) -> u64 {
    PACK_HEADER_BYTES + n * (RECORD_HEADER_BYTES as u64 + 100)
}

#[test]
fn no_flipped_bit_of_a_record_is_served_and_a_new_put_heals_it() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let mut ids = Vec::new();
        for n in 0..3 {
            ids.push(put(&opened, &blob(n, 100)).await);
        }
        let record_bytes = RECORD_HEADER_BYTES as u64 + 100;
        for byte in 0..record_bytes {
            flip(&pack(dir.path(), 1), record(1) + byte);
            assert_corrupt(&opened, ids[1]).await;
            let error = read(&*opened.blobs, ids[1], 0..1).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "a range shows nothing that was not verified");
            if byte % 40 == 0 {
                let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
                assert_eq!((report.blobs, report.wrong), (3, 1));
                assert!(report.findings[0].place.contains(&ids[1].to_string()));
            }
            flip(&pack(dir.path(), 1), record(1) + byte);
            assert_eq!(read_all(&*opened.blobs, ids[1]).await.unwrap(), blob(1, 100));
        }
        flip(&pack(dir.path(), 1), record(1) + 70);
        let answer = opened.blobs.put(&mut blob(1, 100)).await.unwrap();
        assert!(!answer.is_new);
        assert_eq!(read_all(&*opened.blobs, ids[1]).await.unwrap(), blob(1, 100), "it was stored again");
        assert_sound(&opened).await;
        opened.upkeep.close().await.unwrap();
        drop(opened);
        let opened = open_folder(dir.path());
        assert_sound(&opened).await;
        assert_eq!(opened.upkeep.stats().await.unwrap().blobs, 3);
    });
}

#[test]
fn a_damaged_part_of_a_file_is_not_served_and_a_new_put_heals_it() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let bytes = blob(7, 3 * PART_BYTES as usize - 10);
        let id = put(&opened, &bytes).await;
        flip(&file(dir.path(), id), PART_BYTES + 5);
        assert_corrupt(&opened, id).await;
        let blobs = &*opened.blobs;
        let parts = [
            0..PART_BYTES,
            PART_BYTES..PART_BYTES + 1,
            2 * PART_BYTES - 1..2 * PART_BYTES,
            2 * PART_BYTES..u64::MAX,
        ];
        let expected = [true, false, false, true];
        for (range, is_sound) in parts.into_iter().zip(expected) {
            match read(blobs, id, range.clone()).await {
                Ok(found) => assert!(is_sound && found == bytes[range.start as usize..][..found.len()]),
                Err(error) => assert!(!is_sound && error.kind() == ErrorKind::Corrupt, "{range:?}: {error}"),
            }
        }
        assert_eq!(opened.upkeep.check(&|_, _| ()).await.unwrap().wrong, 1);
        assert!(!blobs.put(&mut bytes.clone()).await.unwrap().is_new);
        assert_eq!(read_all(blobs, id).await.unwrap(), bytes);
        assert_sound(&opened).await;
    });
}

#[test]
fn a_file_that_is_cut_or_lost_is_reported() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let long = put(&opened, &blob(7, 5_000)).await;
        OpenOptions::new().write(true).open(file(dir.path(), long)).unwrap().set_len(4_999).unwrap();
        assert_corrupt(&opened, long).await;
        std::fs::remove_file(file(dir.path(), long)).unwrap();
        assert_corrupt(&opened, long).await;
        let short = put(&opened, &blob(7, 100)).await;
        opened.upkeep.close().await.unwrap();
        drop(opened);

        std::fs::remove_file(pack(dir.path(), 1)).unwrap();
        let opened = open_folder(dir.path());
        assert_corrupt(&opened, short).await;
        let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
        assert_eq!((report.blobs, report.wrong), (2, 2));
        put(&opened, &blob(7, 100)).await;
        put(&opened, &blob(7, 5_000)).await;
        assert_sound(&opened).await;
        assert_eq!(read_all(&*opened.blobs, short).await.unwrap(), blob(7, 100));
    });
}

/// Checksums detect damage by a disk; the hash also detects changes by somebody who computes checksums.
#[test]
fn reading_all_of_a_blob_proves_its_hash() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let id = put(&opened, &blob(1, 100)).await;
        let mut forged = Vec::new();
        RecordHeader { id, ..RecordHeader::new(id, &blob(2, 100), Timestamp(0)) }.put_into(&mut forged);
        forged.extend_from_slice(&blob(2, 100));
        let target = OpenOptions::new().write(true).open(pack(dir.path(), 1)).unwrap();
        target.write_all_at(&forged, record(0)).unwrap();
        assert_corrupt(&opened, id).await;
        assert_eq!(opened.upkeep.check(&|_, _| ()).await.unwrap().wrong, 1);
    });
}

/// Copies a store without its index, changes the copy, and opens it.
async fn opened_without_index(dir: &Path, change: impl FnOnce(&Path)) -> (Opened, tempfile::TempDir) {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(dir, copy.path(), &|name| name != "index");
    change(copy.path());
    (open_folder(copy.path()), copy)
}

#[test]
fn without_its_index_a_store_is_read_across_damage() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let mut ids = Vec::new();
        for n in 0..40 {
            ids.push(put(&opened, &blob(n, 100)).await);
        }
        let long = put(&opened, &blob(99, 5_000)).await;
        assert!(opened.upkeep.stats().await.unwrap().engine.contains(&("packs".into(), 2)));

        for byte in [0, 5, 20, RECORD_HEADER_BYTES as u64 - 1, RECORD_HEADER_BYTES as u64, 120] {
            let damage = |copy: &Path| flip(&pack(copy, 1), record(10) + byte);
            let (copy, _dir) = opened_without_index(dir.path(), damage).await;
            for (n, id) in ids.iter().enumerate() {
                match read_all(&*copy.blobs, *id).await {
                    Ok(found) => assert!(n != 10 && found == blob(n as u32, 100)),
                    Err(error) => assert!(n == 10 && error.kind() == ErrorKind::NotFound, "{n}: {error}"),
                }
            }
            assert_eq!(read_all(&*copy.blobs, long).await.unwrap(), blob(99, 5_000));
            assert_sound(&copy).await;
            assert_eq!(copy.upkeep.stats().await.unwrap().blobs, 40);
            put(&copy, &blob(10, 100)).await;
        }
    });
}

#[test]
fn a_header_of_a_pack_is_not_needed_to_read_it() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let id = put(&opened, &blob(1, 100)).await;
        let (copy, _dir) = opened_without_index(dir.path(), |copy| flip(&pack(copy, 1), 3)).await;
        assert_eq!(read_all(&*copy.blobs, id).await.unwrap(), blob(1, 100));
        put(&copy, &blob(2, 100)).await;
        let stats = copy.upkeep.stats().await.unwrap();
        assert!(
            stats.engine.contains(&("packs".into(), 2)),
            "nothing is appended to a damaged pack: {stats:?}"
        );
    });
}

#[test]
fn a_file_with_other_bytes_than_its_name_says_is_no_blob() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let (kept, lost) = (put(&opened, &blob(1, 5_000)).await, put(&opened, &blob(2, 5_000)).await);
        let (copy, copy_dir) = opened_without_index(dir.path(), |copy| flip(&file(copy, lost), 77)).await;
        assert_eq!(read_all(&*copy.blobs, kept).await.unwrap(), blob(1, 5_000));
        assert_eq!(copy.blobs.size(lost).await.unwrap(), None);
        assert!(file(copy_dir.path(), lost).exists(), "it is left to the operator");
        let report = copy.upkeep.check(&|_, _| ()).await.unwrap();
        assert_eq!((report.blobs, report.wrong), (1, 1));
        assert!(report.findings[0].what.contains("belongs to no blob"), "{report:?}");
        put(&copy, &blob(2, 5_000)).await;
        assert_sound(&copy).await;
    });
}

/// A blob may contain bytes that look like records. They are found when the header of its own record is damaged; then bytes are
/// only used if their hash is their id.
#[test]
fn what_looks_like_a_record_inside_a_blob_changes_no_other_blob() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let (victim, honest) = (id_of(&blob(5, 100)), blob(6, 40));
        let mut hostile = Vec::new();
        RecordHeader { id: victim, ..RecordHeader::new(victim, b"not what it says", Timestamp(0)) }
            .put_into(&mut hostile);
        hostile.extend_from_slice(b"not what it says");
        RecordHeader::new(id_of(&honest), &honest, Timestamp(0)).put_into(&mut hostile);
        hostile.extend_from_slice(&honest);
        put(&opened, &Bytes::from(hostile)).await;
        let behind = put(&opened, &blob(7, 100)).await;
        let damage = |copy: &Path| flip(&pack(copy, 1), PACK_HEADER_BYTES + 8);
        let (copy, _dir) = opened_without_index(dir.path(), damage).await;
        assert_eq!(copy.blobs.size(victim).await.unwrap(), None);
        assert_eq!(read_all(&*copy.blobs, id_of(&honest)).await.unwrap(), honest);
        assert_eq!(read_all(&*copy.blobs, behind).await.unwrap(), blob(7, 100));
        assert_sound(&copy).await;
    });
}

#[test]
fn damaged_blobs_keep_their_pack_when_others_are_moved() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let mut ids = Vec::new();
        for n in 0..10 {
            ids.push(put(&opened, &blob(n, 100)).await);
        }
        flip(&pack(dir.path(), 1), record(9) + 80);
        assert_eq!(opened.upkeep.remove(&ids[..7], Timestamp::MAX).await.unwrap(), 7);
        assert!(pack(dir.path(), 1).exists(), "what is left of a damaged blob is not thrown away");
        assert_corrupt(&opened, ids[9]).await;
        for n in [7, 8] {
            assert_eq!(read_all(&*opened.blobs, ids[n]).await.unwrap(), blob(n as u32, 100));
        }
        put(&opened, &blob(9, 100)).await;
        assert_sound(&opened).await;
        assert_eq!(opened.upkeep.remove(&ids[..8], Timestamp::MAX).await.unwrap(), 1);
        assert!(!pack(dir.path(), 1).exists(), "once it was put again, the pack is removed");
        assert_sound(&opened).await;
    });
}

#[test]
fn a_lost_pack_does_not_keep_others_from_being_rewritten() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let mut ids = Vec::new();
        for n in 0..12 {
            ids.push(put(&opened, &blob(n, 900)).await); // four to a pack
        }
        opened.upkeep.close().await.unwrap();
        drop(opened);
        std::fs::remove_file(pack(dir.path(), 1)).unwrap();
        let opened = open_folder(dir.path());
        let going = [&ids[..3], &ids[4..7]].concat();
        assert_eq!(opened.upkeep.remove(&going, Timestamp::MAX).await.unwrap(), 6);
        assert!(!pack(dir.path(), 2).exists());
        assert_eq!(read_all(&*opened.blobs, ids[7]).await.unwrap(), blob(7, 900));
        assert_corrupt(&opened, ids[3]).await;
        put(&opened, &blob(3, 900)).await;
        opened.upkeep.remove(&ids[4..5], Timestamp::MAX).await.unwrap();
        assert_sound(&opened).await;
        let stats = opened.upkeep.stats().await.unwrap();
        assert_eq!(stats.blobs, 6);
    });
}

#[test]
fn a_pack_of_a_newer_version_is_not_touched() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        put(&opened, &blob(1, 100)).await;
        opened.upkeep.close().await.unwrap();
        drop(opened);
        let mut header = pack_header(1);
        header[8] = 2;
        let sum = crc32c::crc32c(&header[..28]);
        header[28..].copy_from_slice(&sum.to_le_bytes());
        OpenOptions::new().write(true).open(pack(dir.path(), 1)).unwrap().write_all_at(&header, 0).unwrap();
        let error = open(folder(dir.path())).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let refusal = "packs/00000001.pack has format version 2, and this program knows version 1";
        assert!(error.to_string().contains(refusal), "{error}");
    });
}

#[test]
fn an_index_of_a_newer_version_is_refused() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        put(&opened, &blob(1, 100)).await;
        opened.upkeep.close().await.unwrap();
        drop(opened);
        let meta = Table::new(5, "meta");
        let index = Store::open(&dir.path().join(INDEX), &[meta], Options::default()).unwrap();
        let version = move |batch: &mut Batch<'_>| {
            batch.put(meta, b"format", &2_u32.to_le_bytes());
            Ok::<_, Error>(())
        };
        index.write(version).await.unwrap();
        index.close().await.unwrap();
        drop(index);
        let error = open(folder(dir.path())).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let refusal = "the index of the blobs has format version 2, and this program knows version 1";
        assert!(error.to_string().contains(refusal), "{error}");
    });
}

/// The limit between packs and files is a setting, so that a file may hold a short blob, and a pack a long one.
#[test]
fn the_bound_between_packs_and_files_may_change() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let (short, long) = (blob(1, 600), blob(2, 1_500));
        let ids = [put(&opened, &short).await, put(&opened, &long).await];
        opened.upkeep.close().await.unwrap();
        drop(opened);
        for packed_bytes_max in [2_000, 500] {
            let mut other = config();
            other.files.packed_bytes_max = packed_bytes_max;
            let opened = open_with(folder(dir.path()), other).unwrap();
            for (id, bytes) in ids.iter().zip([&short, &long]) {
                assert!(!opened.blobs.put(&mut bytes.clone()).await.unwrap().is_new);
                assert_eq!(&read_all(&*opened.blobs, *id).await.unwrap(), bytes);
            }
            assert_sound(&opened).await;
            let stats = opened.upkeep.stats().await.unwrap();
            assert_eq!((stats.blobs, stats.bytes), (2, 2_100));
            if packed_bytes_max == 2_000 {
                flip(&file(dir.path(), ids[1]), 5);
                put(&opened, &long).await;
                assert_eq!(
                    &read_all(&*opened.blobs, ids[1]).await.unwrap(),
                    &long,
                    "a damaged file, stored again in a pack"
                );
                assert!(!file(dir.path(), ids[1]).exists());
                assert_sound(&opened).await;
            }
            opened.upkeep.close().await.unwrap();
        }
        let opened = open_folder(dir.path());
        assert_eq!(opened.upkeep.remove(&ids, Timestamp::MAX).await.unwrap(), 2);
        assert_sound(&opened).await;
    });
}
