//! Promises of `Upkeep`.

use std::sync::atomic::{AtomicU64, Ordering};

use restante_blobs::{BlobId, LIST_BLOBS_MAX, Listed};
use restante_core::{ErrorKind, Identity};

use crate::{
    Subject,
    common::{BEGIN, at, bytes, list, put, read_all},
};

crate::promises! {
    any: [
        a_list_has_every_blob_once_by_its_id,
        a_list_needs_a_limit_that_is_allowed,
        only_what_was_put_before_the_time_is_removed,
        removing_counts_each_blob_once,
        what_was_removed_is_gone_and_can_be_put_anew,
        a_put_at_the_same_time_as_a_removal_is_there,
        a_reader_of_a_removed_blob_gets_it_whole_or_an_error,
        stats_follow_what_is_there,
        a_check_reads_everything_and_changes_nothing,
        a_store_that_is_open_is_healthy,
        the_rest_survives_removals_and_is_found_again,
        an_engine_without_files_has_no_backup,
        the_last_owner_set_counts,
    ],
    durable: [
        removals_survive_reopening,
        the_owner_survives_reopening,
    ],
    files: [
        space_is_reclaimed_when_blobs_are_removed,
        a_backup_has_every_blob_that_was_put_before,
        a_backup_needs_an_empty_folder,
        the_owner_survives_reopening_backups_and_the_loss_of_the_index,
        a_damaged_owner_is_reported_and_can_be_set_again,
        a_backup_while_blobs_come_and_go_can_be_opened,
    ],
}

async fn a_list_has_every_blob_once_by_its_id(subject: Subject) {
    let opened = subject.open().await;
    let mut expected = Vec::new();
    for n in 0..40 {
        subject.tick(i64::from(n));
        let len = if n % 10 == 0 { 300_000 } else { 100 * n as usize };
        let answer = put(&*opened.blobs, &bytes(n, len)).await;
        expected.push(Listed { id: answer.id, bytes: len as u64, put_at: at(i64::from(n)) });
    }
    expected.sort_by_key(|blob| blob.id);
    assert_eq!(list(&*opened.upkeep).await, expected);
    assert_eq!(opened.upkeep.list(None, LIST_BLOBS_MAX).await.unwrap(), expected);
    let after = expected[9].id;
    assert_eq!(opened.upkeep.list(Some(after), 5).await.unwrap(), expected[10..15]);
    assert_eq!(opened.upkeep.list(Some(BlobId([255; 32])), 5).await.unwrap(), []);
}

async fn a_list_needs_a_limit_that_is_allowed(subject: Subject) {
    let opened = subject.open().await;
    for limit in [0, LIST_BLOBS_MAX + 1] {
        assert_eq!(opened.upkeep.list(None, limit).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    opened.upkeep.list(None, 1).await.unwrap();
    opened.upkeep.list(None, LIST_BLOBS_MAX).await.unwrap();
}

async fn only_what_was_put_before_the_time_is_removed(subject: Subject) {
    let opened = subject.open().await;
    let mut ids = Vec::new();
    for (second, len) in [(0, 10), (0, 300_000), (1, 20), (1, 300_001), (2, 30)] {
        subject.tick(second);
        ids.push(put(&*opened.blobs, &bytes(1, len)).await.id);
    }
    subject.tick(3);
    put(&*opened.blobs, &bytes(1, 10)).await; // counts as put now
    assert_eq!(opened.upkeep.remove(&ids, BEGIN).await.unwrap(), 0);
    assert_eq!(opened.upkeep.remove(&ids, at(1)).await.unwrap(), 1, "300,000 bytes, put at 0");
    assert_eq!(opened.upkeep.remove(&ids, at(2)).await.unwrap(), 2);
    let mut left: Vec<u64> = list(&*opened.upkeep).await.iter().map(|blob| blob.bytes).collect();
    left.sort_unstable();
    assert_eq!(left, [10, 30]);
}

async fn removing_counts_each_blob_once(subject: Subject) {
    let opened = subject.open().await;
    let one = put(&*opened.blobs, &bytes(1, 10)).await.id;
    let other = put(&*opened.blobs, &bytes(1, 300_000)).await.id;
    let unknown = BlobId([7; 32]);
    assert_eq!(opened.upkeep.remove(&[one, unknown, one, other, one], at(1)).await.unwrap(), 2);
    assert_eq!(opened.upkeep.remove(&[one, unknown, other], at(1)).await.unwrap(), 0);
    assert_eq!(opened.upkeep.remove(&[], at(1)).await.unwrap(), 0);
}

async fn what_was_removed_is_gone_and_can_be_put_anew(subject: Subject) {
    let opened = subject.open().await;
    for len in [10, 2_000, 300_000] {
        for _ in 0..3 {
            let answer = put(&*opened.blobs, &bytes(1, len)).await;
            assert!(answer.is_new, "{len} bytes");
            assert_eq!(read_all(&*opened.blobs, answer.id).await.unwrap(), bytes(1, len));
            assert_eq!(opened.upkeep.remove(&[answer.id], at(1)).await.unwrap(), 1);
            assert_eq!(opened.blobs.size(answer.id).await.unwrap(), None);
            assert_eq!(read_all(&*opened.blobs, answer.id).await.unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(list(&*opened.upkeep).await, []);
        }
    }
}

async fn a_put_at_the_same_time_as_a_removal_is_there(subject: Subject) {
    let opened = subject.open().await;
    for round in 0..30 {
        for len in [10, 1_500, 300_000] {
            subject.tick(2 * round);
            let id = put(&*opened.blobs, &bytes(1, len)).await.id;
            subject.tick(2 * round + 1);
            let upkeep = opened.upkeep.clone();
            let removing =
                tokio::spawn(async move { upkeep.remove(&[id], at(2 * round + 1)).await.unwrap() });
            let blobs = opened.blobs.clone();
            let putting = tokio::spawn(async move { put(&*blobs, &bytes(1, len)).await });
            let (removed, answer) = (removing.await.unwrap(), putting.await.unwrap());
            assert_eq!(removed == 1, answer.is_new, "kept, or removed and stored anew");
            assert_eq!(read_all(&*opened.blobs, id).await.unwrap(), bytes(1, len));
        }
    }
}

async fn a_reader_of_a_removed_blob_gets_it_whole_or_an_error(subject: Subject) {
    let opened = subject.open().await;
    let (mut whole, mut refused) = (0, 0);
    for round in 0..20 {
        let blobs: Vec<_> = [10, 700, 5_000, 2_500_000].into_iter().map(|len| bytes(round, len)).collect();
        let mut ids = Vec::new();
        for blob in &blobs {
            ids.push(put(&*opened.blobs, blob).await.id);
        }
        let mut readers = tokio::task::JoinSet::new();
        for (id, blob) in ids.iter().copied().zip(blobs) {
            let store = opened.blobs.clone();
            readers.spawn(async move { (read_all(&*store, id).await, blob) });
        }
        assert_eq!(opened.upkeep.remove(&ids, at(1)).await.unwrap(), 4);
        for (found, blob) in readers.join_all().await {
            match found {
                Ok(found) => {
                    assert_eq!(found, blob);
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!(whole + refused, 80);
}

async fn stats_follow_what_is_there(subject: Subject) {
    let opened = subject.open().await;
    let totals = async || {
        let stats = opened.upkeep.stats().await.unwrap();
        assert!(stats.disk_bytes > 0 || !subject.engine.has_files());
        (stats.blobs, stats.bytes)
    };
    assert_eq!(totals().await, (0, 0));
    let mut ids = Vec::new();
    for len in [0, 10, 2_000, 300_000] {
        ids.push(put(&*opened.blobs, &bytes(1, len)).await.id);
    }
    assert_eq!(totals().await, (4, 302_010));
    put(&*opened.blobs, &bytes(1, 2_000)).await;
    assert_eq!(totals().await, (4, 302_010));
    opened.upkeep.remove(&ids[1..3], at(1)).await.unwrap();
    assert_eq!(totals().await, (2, 300_000));
}

async fn a_check_reads_everything_and_changes_nothing(subject: Subject) {
    let opened = subject.open().await;
    for n in 0..20 {
        put(&*opened.blobs, &bytes(n, 200 * n as usize)).await;
    }
    put(&*opened.blobs, &bytes(1, 2_500_000)).await;
    let before = list(&*opened.upkeep).await;
    let (last, all) = (AtomicU64::new(0), AtomicU64::new(0));
    let progress = |done, of| {
        assert!(done >= last.swap(done, Ordering::Relaxed) && done <= of);
        all.store(of, Ordering::Relaxed);
    };
    let report = opened.upkeep.check(&progress).await.unwrap();
    assert_eq!((report.blobs, report.bytes, report.wrong), (21, 38_000 + 2_500_000, 0));
    assert_eq!(report.findings, []);
    assert_eq!((last.into_inner(), all.into_inner()), (report.bytes, report.bytes));
    assert_eq!(list(&*opened.upkeep).await, before);
}

async fn a_store_that_is_open_is_healthy(subject: Subject) {
    let opened = subject.open().await;
    opened.upkeep.health().unwrap();
    put(&*opened.blobs, &bytes(1, 10)).await;
    opened.upkeep.health().unwrap();
}

/// Remaining blobs are moved while others are removed.
async fn the_rest_survives_removals_and_is_found_again(subject: Subject) {
    let opened = subject.open().await;
    let mut ids = Vec::new();
    for n in 0..60 {
        ids.push(put(&*opened.blobs, &bytes(n, 37 * n as usize)).await.id);
    }
    for divisor in [2, 3, 5] {
        let going: Vec<BlobId> = (0..60).filter(|n| n % divisor == 0).map(|n| ids[n]).collect();
        opened.upkeep.remove(&going, at(1)).await.unwrap();
        for (n, id) in ids.iter().enumerate() {
            let is_left = [2, 3, 5].into_iter().take_while(|d| *d <= divisor).all(|d| n % d != 0);
            match read_all(&*opened.blobs, *id).await {
                Ok(found) => assert!(is_left && found == bytes(n as u32, 37 * n), "blob {n}"),
                Err(error) => assert!(!is_left && error.kind() == ErrorKind::NotFound, "blob {n}: {error}"),
            }
        }
        assert!(opened.upkeep.check(&|_, _| ()).await.unwrap().findings.is_empty());
    }
    for blob in list(&*opened.upkeep).await {
        assert_eq!(blob.put_at, BEGIN, "being moved is not being put");
    }
}

async fn removals_survive_reopening(subject: Subject) {
    let opened = subject.open().await;
    let mut ids = Vec::new();
    for n in 0..40 {
        ids.push(put(&*opened.blobs, &bytes(n, 50 * n as usize)).await.id);
    }
    ids.push(put(&*opened.blobs, &bytes(40, 300_000)).await.id);
    let (going, staying) = ids.split_at(30);
    opened.upkeep.remove(going, at(1)).await.unwrap();
    opened.upkeep.remove(&staying[10..], at(1)).await.unwrap();
    let before = list(&*opened.upkeep).await;
    assert_eq!(before.len(), 10);
    let opened = subject.reopen(opened).await;
    assert_eq!(list(&*opened.upkeep).await, before);
    assert_eq!(opened.upkeep.stats().await.unwrap().blobs, 10);
}

async fn space_is_reclaimed_when_blobs_are_removed(subject: Subject) {
    let opened = subject.open().await;
    let of_blobs = async || {
        let stats = opened.upkeep.stats().await.unwrap();
        let figure = |wanted| stats.engine.iter().find(|(name, _)| name == wanted).unwrap().1;
        figure("pack_bytes") + figure("file_bytes")
    };
    let mut ids = Vec::new();
    for n in 0..100 {
        ids.push(put(&*opened.blobs, &bytes(n, 900)).await.id);
    }
    for n in 0..3 {
        ids.push(put(&*opened.blobs, &bytes(n, 400_000)).await.id);
    }
    let full = of_blobs().await;
    assert!(full > 1_290_000, "{full}");
    ids.sort();
    opened.upkeep.remove(&ids[..90], at(1)).await.unwrap();
    let (stats, left) = (opened.upkeep.stats().await.unwrap(), of_blobs().await);
    assert!(left < 2 * stats.bytes + 10_000, "{left} bytes for {}", stats.bytes);
    opened.upkeep.remove(&ids, at(1)).await.unwrap();
    assert!(of_blobs().await < 100, "nothing is left but headers");
}

async fn a_backup_has_every_blob_that_was_put_before(subject: Subject) {
    let opened = subject.open().await;
    let mut ids = Vec::new();
    for n in 0..50 {
        subject.tick(i64::from(n));
        ids.push(
            put(&*opened.blobs, &bytes(n, if n % 9 == 0 { 300_000 + n as usize } else { 40 * n as usize }))
                .await
                .id,
        );
    }
    opened.upkeep.remove(&ids[..20], at(1_000)).await.unwrap();
    let before = list(&*opened.upkeep).await;
    let folder = subject.folder_named("copy");
    std::fs::create_dir(&folder).unwrap();
    opened.upkeep.backup(&folder).await.unwrap();
    put(&*opened.blobs, &bytes(999, 10)).await;
    opened.upkeep.remove(&ids, at(1_000)).await.unwrap();

    let copy = subject.open_at("copy").await;
    assert_eq!(list(&*copy.upkeep).await, before);
    for (n, id) in ids.iter().enumerate().skip(20) {
        let blob = bytes(n as u32, if n % 9 == 0 { 300_000 + n } else { 40 * n });
        assert_eq!(read_all(&*copy.blobs, *id).await.unwrap(), blob);
    }
    let report = copy.upkeep.check(&|_, _| ()).await.unwrap();
    assert_eq!((report.blobs, report.findings), (30, vec![]));
    let stats = copy.upkeep.stats().await.unwrap();
    assert_eq!((stats.blobs, stats.bytes), (30, before.iter().map(|blob| blob.bytes).sum()));
    assert!(put(&*copy.blobs, &bytes(0, 300_000)).await.is_new, "the copy is a store like any other");
    assert_eq!(copy.upkeep.remove(&ids, at(1_000)).await.unwrap(), 31);
}

async fn a_backup_needs_an_empty_folder(subject: Subject) {
    let opened = subject.open().await;
    put(&*opened.blobs, &bytes(1, 10)).await;
    let folder = subject.folder_named("copy");
    assert!(opened.upkeep.backup(&folder).await.is_err(), "it must exist");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("something"), "").unwrap();
    assert_eq!(opened.upkeep.backup(&folder).await.unwrap_err().kind(), ErrorKind::Conflict);
    std::fs::remove_file(folder.join("something")).unwrap();
    opened.upkeep.backup(&folder).await.unwrap();
}

async fn a_backup_while_blobs_come_and_go_can_be_opened(subject: Subject) {
    let opened = subject.open().await;
    let mut ids = Vec::new();
    for n in 0..100 {
        ids.push(
            put(&*opened.blobs, &bytes(n, if n % 10 == 0 { 300_000 } else { 30 * n as usize })).await.id,
        );
    }
    let (going, staying) = ids.split_at(50);
    let blobs = opened.blobs.clone();
    let putting = tokio::spawn(async move {
        for n in 100..200 {
            put(&*blobs, &bytes(n, if n % 20 == 0 { 300_000 } else { 10 * n as usize })).await;
        }
    });
    let (upkeep, going) = (opened.upkeep.clone(), going.to_vec());
    let removing = tokio::spawn(async move {
        for id in going {
            upkeep.remove(&[id], at(1)).await.unwrap();
        }
    });
    for round in 0..3 {
        let name = format!("copy {round}");
        std::fs::create_dir(subject.folder_named(&name)).unwrap();
        opened.upkeep.backup(&subject.folder_named(&name)).await.unwrap();
    }
    putting.await.unwrap();
    removing.await.unwrap();
    for round in 0..3 {
        let copy = subject.open_at(&format!("copy {round}")).await;
        let report = copy.upkeep.check(&|_, _| ()).await.unwrap();
        assert_eq!(report.findings, [], "copy {round}");
        for (n, id) in staying.iter().enumerate() {
            let n = n + 50;
            let blob = bytes(n as u32, if n % 10 == 0 { 300_000 } else { 30 * n });
            assert_eq!(read_all(&*copy.blobs, *id).await.unwrap(), blob, "copy {round}, blob {n}");
        }
        let stats = copy.upkeep.stats().await.unwrap();
        let listed = list(&*copy.upkeep).await;
        assert_eq!(
            (stats.blobs, stats.bytes),
            (listed.len() as u64, listed.iter().map(|blob| blob.bytes).sum())
        );
    }
}

async fn an_engine_without_files_has_no_backup(subject: Subject) {
    let opened = subject.open().await;
    let folder = tempfile::tempdir().unwrap();
    let done = opened.upkeep.backup(folder.path()).await.map_err(|error| error.kind());
    assert_eq!(done, if subject.engine.has_files() { Ok(()) } else { Err(ErrorKind::Invalid) });
}

async fn the_last_owner_set_counts(subject: Subject) {
    let opened = subject.open().await;
    assert_eq!(opened.upkeep.owner().await.unwrap(), None);
    for owner in [Identity([1; 16]), Identity([2; 16]), Identity([2; 16])] {
        opened.upkeep.set_owner(owner).await.unwrap();
        assert_eq!(opened.upkeep.owner().await.unwrap(), Some(owner));
    }
    opened.upkeep.close().await.unwrap();
    assert_eq!(opened.upkeep.owner().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let said = opened.upkeep.set_owner(Identity([3; 16])).await;
    assert_eq!(said.unwrap_err().kind(), ErrorKind::Unavailable);
}

async fn the_owner_survives_reopening(subject: Subject) {
    let opened = subject.open().await;
    let owner = Identity([5; 16]);
    opened.upkeep.set_owner(owner).await.unwrap();
    let opened = subject.reopen(opened).await;
    assert_eq!(opened.upkeep.owner().await.unwrap(), Some(owner));
}

async fn the_owner_survives_reopening_backups_and_the_loss_of_the_index(subject: Subject) {
    let opened = subject.open().await;
    let owner = Identity([5; 16]);
    opened.upkeep.set_owner(owner).await.unwrap();
    put(&*opened.blobs, &bytes(1, 10)).await;
    let backup = subject.folder_named("backup");
    std::fs::create_dir(&backup).unwrap();
    opened.upkeep.backup(&backup).await.unwrap();
    assert_eq!(subject.open_at("backup").await.upkeep.owner().await.unwrap(), Some(owner));
    let opened = subject.reopen(opened).await;
    assert_eq!(opened.upkeep.owner().await.unwrap(), Some(owner));
    opened.upkeep.close().await.unwrap();
    drop(opened);
    std::fs::remove_dir_all(subject.folder_named("blobs").join("index")).unwrap();
    assert_eq!(subject.open().await.upkeep.owner().await.unwrap(), Some(owner));
}

async fn a_damaged_owner_is_reported_and_can_be_set_again(subject: Subject) {
    let opened = subject.open().await;
    put(&*opened.blobs, &bytes(1, 10)).await;
    for damage in [&b""[..], b"somebody\n", b"\xff\xfe", &[b'0'; 40]] {
        std::fs::write(subject.folder_named("blobs").join("OWNER"), damage).unwrap();
        assert_eq!(opened.upkeep.owner().await.unwrap_err().kind(), ErrorKind::Corrupt);
        let backup = subject.folder_named(&format!("backup {}", damage.len()));
        std::fs::create_dir(&backup).unwrap();
        opened.upkeep.backup(&backup).await.unwrap();
    }
    let owner = Identity([6; 16]);
    opened.upkeep.set_owner(owner).await.unwrap();
    assert_eq!(opened.upkeep.owner().await.unwrap(), Some(owner));
}
