//! The state that a crashed process leaves.

use std::{fs::OpenOptions, io::Write, path::Path};

use restante_core::{BlobId, Timestamp};

use super::{assert_sound, blob, copy_folder, folder, open_folder, put, read_all, runtime};
use crate::{
    Opened,
    files::{
        index::{Entry, Index, Location, Pack, Row},
        schema::{INDEX, PACK_HEADER_BYTES, file_name, pack_name, record_bytes},
    },
};

/// Opens a copy of the files as they are now.
fn crash(dir: &Path) -> (Opened, tempfile::TempDir) {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(dir, copy.path(), &|_| true);
    (open_folder(copy.path()), copy)
}

async fn count(opened: &Opened) -> u64 {
    opened.upkeep.stats().await.unwrap().blobs
}

/// Changes the index of a closed store.
fn change_index(dir: &Path, rows: Vec<Row>) {
    let index = Index::open(folder(dir), restante_lmdb::Metrics::default()).unwrap();
    index.write(rows).unwrap();
    runtime().block_on(index.close()).unwrap();
}

#[test]
fn what_the_index_does_not_know_yet_is_read_from_the_packs() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let mut ids = Vec::new();
        for n in 0..20 {
            ids.push(put(&opened, &blob(n, 300)).await);
            let (after, _copy) = crash(dir.path());
            assert_eq!(count(&after).await, u64::from(n) + 1);
            for (n, id) in ids.iter().enumerate() {
                assert_eq!(read_all(&*after.blobs, *id).await.unwrap(), blob(n as u32, 300));
            }
            assert_sound(&after).await;
        }
    });
}

#[test]
fn a_torn_end_is_passed_over_wherever_it_is_torn() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        let ids: [BlobId; 2] = [put(&opened, &blob(0, 100)).await, put(&opened, &blob(1, 100)).await];
        let end = PACK_HEADER_BYTES + 2 * record_bytes(100);
        // Within the bytes, at their beginning, within the header and at its beginning; with nothing after it, and with zeros.
        let cuts = [1, 2, 50, 99, 100, 101, 103, 104, 130, 155, 156];
        let with_zeros = cuts.into_iter().filter(|cut| *cut > 3).map(|cut| (cut, 1_000)); // the last three bytes are zeros
        for (cut, zeros) in cuts.into_iter().map(|cut| (cut, 0)).chain(with_zeros) {
            let copy = tempfile::tempdir().unwrap();
            copy_folder(dir.path(), copy.path(), &|_| true);
            let pack = OpenOptions::new().write(true).open(copy.path().join(pack_name(1))).unwrap();
            pack.set_len(end - cut).unwrap();
            pack.set_len(end - cut + zeros).unwrap();
            let after = open_folder(copy.path());
            assert_eq!(count(&after).await, 1, "cut by {cut}");
            assert_eq!(read_all(&*after.blobs, ids[0]).await.unwrap(), blob(0, 100));
            put(&after, &blob(1, 100)).await;
            after.upkeep.close().await.unwrap();
            drop(after);
            let again = open_folder(copy.path());
            assert_eq!(count(&again).await, 2, "cut by {cut}");
            assert_sound(&again).await;
        }
    });
}

#[test]
fn zeros_that_were_written_ahead_are_cut_off() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let pack = |dir: &Path| dir.join(pack_name(1)).metadata().unwrap().len();
        let end = |blobs| PACK_HEADER_BYTES + blobs * record_bytes(100);
        let opened = open_folder(dir.path());
        put(&opened, &blob(0, 100)).await;
        assert_eq!(pack(dir.path()), 4_000, "as long as a pack may be");
        put(&opened, &blob(1, 100)).await;
        assert_eq!(pack(dir.path()), 4_000);
        let (after, copy) = crash(dir.path());
        assert_eq!((count(&after).await, pack(copy.path())), (2, end(2)));
        put(&after, &blob(2, 100)).await;
        assert_sound(&after).await;
        after.upkeep.close().await.unwrap();
        assert_eq!(pack(copy.path()), end(3));
        for n in 2..26 {
            put(&opened, &blob(n, 100)).await; // more than fit
        }
        assert_eq!(pack(dir.path()), end(25), "a pack that takes no more");
        assert_sound(&opened).await;
        drop((after, copy));
    });
}

#[test]
fn a_pack_that_was_being_created_goes() {
    for len in [0, 7, 32] {
        let dir = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let opened = open_folder(dir.path());
            put(&opened, &blob(0, 100)).await;
            opened.upkeep.close().await.unwrap();
        });
        std::fs::write(dir.path().join(pack_name(2)), vec![0; len]).unwrap();
        runtime().block_on(async {
            let opened = open_folder(dir.path());
            assert!(!dir.path().join(pack_name(2)).exists());
            put(&opened, &blob(1, 100)).await;
            assert_eq!(count(&opened).await, 2);
            assert_sound(&opened).await;
        });
    }
}

#[test]
fn what_was_being_received_goes() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        open_folder(dir.path()).upkeep.close().await.unwrap();
        std::fs::write(dir.path().join("incoming/00000001"), "half of a blob").unwrap();
        let opened = open_folder(dir.path());
        assert_eq!(std::fs::read_dir(dir.path().join("incoming")).unwrap().count(), 0);
        put(&opened, &blob(1, 5_000)).await;
        assert_eq!(std::fs::read_dir(dir.path().join("incoming")).unwrap().count(), 0);
    });
}

/// A power cut after a file was renamed and before the blob is indexed, or before the file is removed.
#[test]
fn a_file_that_belongs_to_no_blob_goes() {
    let dir = tempfile::tempdir().unwrap();
    let id = runtime().block_on(async {
        let opened = open_folder(dir.path());
        let id = put(&opened, &blob(1, 5_000)).await;
        opened.upkeep.remove(&[id], Timestamp::MAX).await.unwrap();
        opened.upkeep.close().await.unwrap();
        id
    });
    let file = dir.path().join(file_name(id).0);
    std::fs::write(&file, blob(1, 5_000)).unwrap();
    change_index(dir.path(), vec![Row::Loose(id), Row::Loose(BlobId([3; 32]))]);
    runtime().block_on(async {
        let opened = open_folder(dir.path());
        assert!(!file.exists());
        assert_eq!(opened.blobs.size(id).await.unwrap(), None);
        assert_sound(&opened).await;
        put(&opened, &blob(1, 5_000)).await;
        assert!(file.exists());
        let (after, _copy) = crash(dir.path());
        assert_eq!(read_all(&*after.blobs, id).await.unwrap(), blob(1, 5_000), "it is loose no more");
    });
}

/// A power cut after the blobs of a pack were moved and before the pack is removed, or before that is indexed.
#[test]
fn a_pack_whose_blobs_were_moved_brings_none_back() {
    for is_there in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let saved = tempfile::tempdir().unwrap();
        let mut ids = Vec::new();
        let len = runtime().block_on(async {
            let opened = open_folder(dir.path());
            for n in 0..10 {
                ids.push(put(&opened, &blob(n, 100)).await);
            }
            let len = std::fs::copy(dir.path().join(pack_name(1)), saved.path().join("pack")).unwrap();
            assert_eq!(opened.upkeep.remove(&ids[..8], Timestamp::MAX).await.unwrap(), 8);
            assert!(!dir.path().join(pack_name(1)).exists());
            opened.upkeep.close().await.unwrap();
            len
        });
        if is_there {
            std::fs::copy(saved.path().join("pack"), dir.path().join(pack_name(1))).unwrap();
        }
        change_index(dir.path(), vec![Row::Pack(1, Pack { len, live: 0, live_bytes: 0 })]);
        runtime().block_on(async {
            let opened = open_folder(dir.path());
            assert_eq!(count(&opened).await, 2);
            for n in [8, 9] {
                assert_eq!(read_all(&*opened.blobs, ids[n]).await.unwrap(), blob(n as u32, 100));
            }
            assert_sound(&opened).await;
            let packs = opened.upkeep.stats().await.unwrap().engine[0].1;
            assert_eq!(packs, if is_there { 2 } else { 1 });
            opened.upkeep.remove(&ids[..1], Timestamp::MAX).await.unwrap();
            assert!(!dir.path().join(pack_name(1)).exists(), "it goes with the next removal");
            assert_eq!(opened.upkeep.stats().await.unwrap().engine[0], ("packs".into(), 1));
        });
    }
}

/// A blob that was put again counts as put then, even if the process ends at once.
#[test]
fn the_time_of_a_second_put_survives() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let mut config = super::config();
        let clock = std::sync::Arc::new(restante_core::ManualClock::new(Timestamp(1)));
        config.clock = clock.clone();
        let opened = super::open_with(super::folder(dir.path()), config).unwrap();
        let ids = [put(&opened, &blob(1, 100)).await, put(&opened, &blob(1, 5_000)).await];
        clock.set(Timestamp(2));
        put(&opened, &blob(1, 100)).await;
        put(&opened, &blob(1, 5_000)).await;
        let (after, _copy) = crash(dir.path());
        assert_eq!(after.upkeep.remove(&ids, Timestamp(2)).await.unwrap(), 0);
        assert_eq!(after.upkeep.remove(&ids, Timestamp(3)).await.unwrap(), 2);
    });
}

/// A sweep that began before the clock was set back must find that blobs were put since.
#[test]
fn a_clock_that_is_set_back_makes_no_put_look_older() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let mut config = super::config();
        let clock = std::sync::Arc::new(restante_core::ManualClock::new(Timestamp(5)));
        config.clock = clock.clone();
        let opened = super::open_with(super::folder(dir.path()), config.clone()).unwrap();
        let first = [put(&opened, &blob(1, 100)).await, put(&opened, &blob(1, 5_000)).await];
        clock.set(Timestamp(2));
        let second = [put(&opened, &blob(2, 100)).await, put(&opened, &blob(2, 5_000)).await];
        put(&opened, &blob(1, 100)).await;
        put(&opened, &blob(1, 5_000)).await;
        opened.upkeep.close().await.unwrap();
        let opened = super::open_with(super::folder(dir.path()), config).unwrap();
        put(&opened, &blob(1, 100)).await;
        put(&opened, &blob(1, 5_000)).await;
        let all = [first, second].concat();
        assert_eq!(opened.upkeep.remove(&all, Timestamp(5)).await.unwrap(), 0);
        assert_eq!(opened.upkeep.remove(&all, Timestamp(6)).await.unwrap(), 4);
    });
}

#[test]
fn the_later_time_of_two_records_of_a_blob_counts() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open_folder(dir.path());
    let id = runtime().block_on(put(&opened, &blob(1, 100)));
    runtime().block_on(opened.upkeep.close()).unwrap();
    std::fs::copy(dir.path().join(pack_name(1)), dir.path().join(pack_name(2))).unwrap();
    let old = Entry {
        location: Location::Pack { number: 1, offset: PACK_HEADER_BYTES },
        bytes: 100,
        put_at: Timestamp(1),
    };
    change_index(dir.path(), vec![Row::Blob(id, old)]);
    runtime().block_on(async {
        let opened = open_folder(dir.path());
        assert_eq!(opened.upkeep.remove(&[id], Timestamp(2)).await.unwrap(), 0);
        assert_eq!(count(&opened).await, 1);
        assert_sound(&opened).await;
    });
}

#[test]
fn names_that_are_not_ours_are_left_alone() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_folder(dir.path());
        put(&opened, &blob(1, 100)).await;
        for name in ["packs/notes.txt", "packs/1.pack", "blobs/notes.txt"] {
            let mut file = std::fs::File::create(dir.path().join(name)).unwrap();
            file.write_all(b"mine").unwrap();
        }
        let id = crate::hash::id_of(b"elsewhere");
        std::fs::create_dir_all(dir.path().join("blobs/zz/zz")).unwrap();
        std::fs::write(dir.path().join(format!("blobs/zz/zz/{id}")), "elsewhere").unwrap();
        let (after, copy) = crash(dir.path());
        assert_eq!(count(&after).await, 1);
        assert_sound(&after).await;
        assert!(copy.path().join("packs/1.pack").exists());
        let rebuilt = tempfile::tempdir().unwrap();
        copy_folder(dir.path(), rebuilt.path(), &|name| name != INDEX);
        let rebuilt = open_folder(rebuilt.path());
        assert_eq!(count(&rebuilt).await, 1);
    });
}
