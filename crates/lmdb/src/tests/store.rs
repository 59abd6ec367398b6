use std::{
    future::Future,
    ops::Bound,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Waker},
    thread,
    time::Duration,
};

use restante_core::{Error, ErrorKind, Gate};

use super::{FIRST, SECOND, get, open, put, try_open, wait};
use crate::{Batch, Direction, Options, Store};

#[test]
fn what_was_answered_is_there_after_opening_again() {
    for log_bytes in [0, 4 << 10, 8 << 20] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), log_bytes);
        for number in 0..200_u8 {
            put(&store, FIRST, &[number], &[number; 100]).unwrap();
        }
        drop(store);
        let store = open(folder.path(), log_bytes);
        for number in 0..200_u8 {
            assert_eq!(get(&store, FIRST, &[number]), Some(vec![number; 100]), "{log_bytes}");
        }
    }
}

#[test]
fn the_size_of_the_commit_log_may_change_from_one_opening_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    for (round, log_bytes) in [8 << 20, 0, 4 << 10, 0, 1 << 20].into_iter().enumerate() {
        let store = open(folder.path(), log_bytes);
        put(&store, FIRST, &[round as u8 + 1], b"here").unwrap();
        for earlier in 0..=round {
            assert_eq!(get(&store, FIRST, &[earlier as u8 + 1]).as_deref(), Some(&b"here"[..]));
        }
    }
}

#[test]
fn a_folder_has_one_store_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 0);
    let second = try_open(folder.path(), 0).err().unwrap();
    assert_eq!(second.kind(), ErrorKind::Conflict);
    assert!(second.to_string().contains(&format!("process {}", std::process::id())), "{second}");
    drop(store);
    assert!(try_open(folder.path(), 0).is_ok());
}

#[test]
fn a_batch_that_is_larger_than_a_file_of_the_commit_log_is_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 4 << 10);
    put(&store, FIRST, b"small", b"1").unwrap();
    put(&store, FIRST, b"large", &[7; 100_000]).unwrap();
    put(&store, FIRST, b"small again", b"2").unwrap();
    drop(store);
    let store = open(folder.path(), 4 << 10);
    assert_eq!(get(&store, FIRST, b"large"), Some(vec![7; 100_000]));
    assert_eq!(get(&store, FIRST, b"small again").as_deref(), Some(&b"2"[..]));
}

#[test]
fn a_view_sees_all_of_a_batch_or_nothing_while_layers_change() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 4 << 10);
    let is_done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (store, is_done) = (store.clone(), is_done.clone());
            std::thread::spawn(move || {
                let mut last = 0;
                let mut reads = 0;
                while !is_done.load(Ordering::Relaxed) {
                    last = read_both(&store, last);
                    reads += 1;
                }
                (last, reads)
            })
        })
        .collect();
    for number in 1..=3_000_u64 {
        let written = store.write_blocking(move |batch| {
            batch.put(FIRST, b"first", &number.to_be_bytes());
            batch.put(SECOND, b"second", &number.to_be_bytes());
            batch.put(SECOND, &number.to_be_bytes(), &[0; 30]);
            Ok(())
        });
        written.unwrap();
    }
    is_done.store(true, Ordering::Relaxed);
    for reader in readers {
        let (last, reads) = reader.join().unwrap();
        assert!(last <= 3_000 && reads > 0);
    }
    assert_eq!(read_both(&store, 2_999), 3_000);
}

/// Reads the two rows that every batch writes; they never differ and never go back.
fn read_both(store: &Store, last: u64) -> u64 {
    let number =
        |value: Option<&[u8]>| value.map_or(0, |value| u64::from_be_bytes((*value).try_into().unwrap()));
    let read = store.read(|view| {
        let first = number(view.get(FIRST, b"first")?);
        let mut rows = 0;
        let mut range = view.range(SECOND, Bound::Unbounded, Bound::Excluded(b"a"), Direction::Ascending)?;
        while range.next()?.is_some() {
            rows += 1;
        }
        let second = number(view.get(SECOND, b"second")?);
        Ok((first, second, rows))
    });
    let (first, second, rows) = read.unwrap();
    assert_eq!((first, first), (second, rows), "a part of a batch");
    assert!(first >= last, "time went back from {last} to {first}");
    first
}

#[test]
fn a_batch_reads_what_others_wrote_before_it_in_the_same_group() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 8 << 10);
    wait(async {
        let mut counting = tokio::task::JoinSet::new();
        for _ in 0..500 {
            let store = store.clone();
            counting.spawn(async move {
                let counted = store.write(|batch| {
                    let before = batch.view().get(FIRST, b"count")?;
                    let count =
                        before.map_or(0, |value| u64::from_be_bytes((*value).try_into().unwrap())) + 1;
                    batch.put(FIRST, b"count", &count.to_be_bytes());
                    Ok(count)
                });
                counted.await.unwrap()
            });
        }
        let mut counts = counting.join_all().await;
        counts.sort_unstable();
        assert_eq!(counts, (1..=500).collect::<Vec<_>>());
    });
}

#[test]
fn closing_leaves_everything_in_lmdb_and_refuses_more() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    put(&store, FIRST, b"key", b"value").unwrap();
    assert!(store.stats().unwrap().log_bytes > 0);
    wait(store.close()).unwrap();
    wait(store.close()).unwrap();
    let stats = store.stats().unwrap();
    assert_eq!((stats.log_bytes, stats.waiting_rows), (0, 0));
    assert_eq!(stats.tables.iter().map(|table| table.rows).collect::<Vec<_>>()[..2], [1, 0]);
    assert_eq!(put(&store, FIRST, b"more", b"").unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(get(&store, FIRST, b"key").as_deref(), Some(&b"value"[..]), "reads continue");
    for file in ["commit-0.log", "commit-1.log"] {
        assert_eq!(std::fs::metadata(folder.path().join(file)).unwrap().len(), 0);
    }
}

#[test]
fn a_backup_is_a_store_with_everything_that_was_acknowledged() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(folder.path(), 64 << 10);
    for number in 0..2_000_u16 {
        put(&store, FIRST, &number.to_be_bytes(), &[1; 50]).unwrap();
    }
    let writing = {
        let store = store.clone();
        std::thread::spawn(move || {
            for number in 2_000..4_000_u16 {
                put(&store, FIRST, &number.to_be_bytes(), &[1; 50]).unwrap();
            }
        })
    };
    wait(store.backup(copy.path())).unwrap();
    writing.join().unwrap();
    assert_eq!(wait(store.backup(copy.path())).unwrap_err().kind(), ErrorKind::Conflict);
    let copied = open(copy.path(), 64 << 10);
    let rows = count(&copied);
    assert!((2_000..=4_000).contains(&rows), "{rows}");
    for number in 0..rows {
        assert!(get(&copied, FIRST, &(number as u16).to_be_bytes()).is_some(), "a gap at {number} of {rows}");
    }
    assert_eq!(copied.check().unwrap(), Vec::<String>::new());
    put(&copied, FIRST, b"more", b"continues").unwrap();
}

fn count(store: &Store) -> usize {
    let rows = store.read(|view| {
        let mut rows = 0;
        let mut range = view.range(FIRST, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
        while range.next()?.is_some() {
            rows += 1;
        }
        Ok(rows)
    });
    rows.unwrap()
}

#[test]
fn keys_in_order_fill_pages_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), &[FIRST], Options::default()).unwrap();
    for thousand in 0..20_u64 {
        let written = store.write_blocking(move |batch| {
            for number in thousand * 1_000..(thousand + 1) * 1_000 {
                batch.put(FIRST, &number.to_be_bytes(), &[1; 84]);
            }
            Ok(())
        });
        written.unwrap();
    }
    wait(store.settle()).unwrap();
    let stats = store.stats().unwrap();
    let table = &stats.tables[0];
    // 8 bytes of key, 84 of value, 10 of LMDB: 40 rows to a page.
    let leaves = 20_000 / 40;
    assert!((leaves..=leaves * 102 / 100).contains(&table.pages), "{} pages", table.pages);
}

#[test]
fn a_damaged_frame_is_an_error_when_it_was_acknowledged_and_cut_when_it_was_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    for number in 0..10_u8 {
        put(&store, FIRST, &[number + 1], &[number; 64]).unwrap();
    }
    drop(store);
    let path = folder.path().join("commit-0.log");
    let whole = std::fs::read(&path).unwrap();
    let frame = whole.len() - whole.iter().rev().take_while(|byte| **byte == 0).count();
    // The last frame, truncated: whether it was acknowledged is unknown.
    let mut torn = whole.clone();
    torn[frame - 3] ^= 1;
    std::fs::write(&path, &torn).unwrap();
    let mut early = whole.clone();
    early[40] ^= 1;
    let copy = tempfile::tempdir().unwrap();
    for file in ["data.mdb", "commit-1.log"] {
        std::fs::copy(folder.path().join(file), copy.path().join(file)).unwrap();
    }
    std::fs::write(copy.path().join("commit-0.log"), &early).unwrap();

    let error = try_open(copy.path(), 1 << 20).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("batch 1 "), "{error}");

    let store = open(folder.path(), 1 << 20);
    assert_eq!(get(&store, FIRST, &[9]), Some(vec![8; 64]));
    assert_eq!(get(&store, FIRST, &[10]), None);
}

#[test]
fn the_last_acknowledged_frame_is_missed_too() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    put(&store, FIRST, b"acknowledged", &[1; 64]).unwrap();
    put(&store, FIRST, b"next", &[2; 64]).unwrap();
    drop(store);
    let path = folder.path().join("commit-0.log");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[60] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = try_open(folder.path(), 1 << 20).err().unwrap();
    assert!(error.to_string().contains("batch 1 "), "{error}");
}

/// What followed a gap was never acknowledged. It must not reappear when the gap is filled later.
#[test]
fn a_frame_of_an_earlier_opening_does_not_follow_one_of_this() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    // One group: the first write waits until the others are queued.
    let (is_queued, queued) = std::sync::mpsc::sync_channel::<()>(1);
    let mut queued = Some(queued);
    let mut writes: Vec<_> = (1..=4_u8)
        .map(|number| {
            let queued = queued.take();
            store.write(move |batch| {
                queued.map(|queued| queued.recv());
                batch.put(FIRST, &[number], &[number; 64]);
                Ok::<_, Error>(())
            })
        })
        .map(Box::pin)
        .collect();
    let mut context = Context::from_waker(Waker::noop());
    assert!(writes.iter_mut().all(|write| write.as_mut().poll(&mut context).is_pending()));
    is_queued.send(()).unwrap();
    for write in writes {
        wait(write).unwrap();
    }
    drop(store);
    let path = folder.path().join("commit-0.log");
    let mut bytes = std::fs::read(&path).unwrap();
    let third = bytes.windows(64).position(|value| value == [3; 64]).unwrap();
    bytes[third] ^= 1;
    std::fs::write(&path, &bytes).unwrap();

    let store = open(folder.path(), 1 << 20);
    let has = |store: &Store| [1, 2, 3, 4, 5].map(|number| get(store, FIRST, &[number]).is_some());
    assert_eq!(has(&store), [true, true, false, false, false]);
    put(&store, FIRST, &[5], &[5; 64]).unwrap();
    drop(store);
    assert_eq!(has(&open(folder.path(), 1 << 20)), [true, true, false, false, true]);
}

#[test]
fn more_writes_than_a_group_takes_are_all_answered() {
    // A request that was taken from the queue when the group was full had been dropped without an answer.
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    wait(async {
        let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
        let holding = tokio::spawn({
            let store = store.clone();
            async move {
                store
                    .write(move |_| {
                        held.recv().unwrap();
                        Ok(())
                    })
                    .await
            }
        });
        tokio::task::yield_now().await;
        let mut writing = tokio::task::JoinSet::new();
        for number in 0..3_000_u16 {
            let store = store.clone();
            writing.spawn(async move {
                let put = move |batch: &mut crate::Batch<'_>| {
                    batch.put(FIRST, &number.to_be_bytes(), b"here");
                    Ok(())
                };
                store.write(put).await
            });
        }
        for _ in 0..3_000 {
            tokio::task::yield_now().await; // the queue fills up
        }
        release.send(()).unwrap();
        holding.await.unwrap().unwrap();
        for written in writing.join_all().await {
            written.unwrap();
        }
    });
    assert_eq!(count(&store), 3_000);
}

#[test]
fn a_key_that_lmdb_would_not_take_is_refused_and_costs_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    for key in [&[][..], &[1; 512]] {
        assert_eq!(put(&store, FIRST, key, b"").unwrap_err().kind(), ErrorKind::Invalid);
    }
    put(&store, FIRST, &[1; 511], b"fits").unwrap();
    wait(store.settle()).unwrap();
    assert_eq!(get(&store, FIRST, &[1; 511]).as_deref(), Some(&b"fits"[..]));
}

#[test]
fn a_commit_log_without_its_environment_is_not_taken_for_a_new_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    put(&store, FIRST, b"key", b"acknowledged").unwrap();
    drop(store);
    let environment = std::fs::read(folder.path().join("data.mdb")).unwrap();
    std::fs::remove_file(folder.path().join("data.mdb")).unwrap();
    assert_eq!(try_open(folder.path(), 1 << 20).err().unwrap().kind(), ErrorKind::Corrupt);
    std::fs::write(folder.path().join("data.mdb"), environment).unwrap();
    assert_eq!(get(&open(folder.path(), 1 << 20), FIRST, b"key").as_deref(), Some(&b"acknowledged"[..]));
}

/// A thread of the store that drops the last handle can't join itself.
#[test]
fn a_store_whose_last_handle_goes_with_a_write_is_left_and_can_be_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    put(&store, FIRST, b"key", b"value").unwrap();
    let (gone, is_gone) = std::sync::mpsc::sync_channel(1);
    let held = store.clone();
    let mut writing = Box::pin(async move {
        let work = move |_: &mut Batch<'_>| {
            is_gone.recv().unwrap();
            drop(held);
            Ok(())
        };
        store.write(work).await
    });
    let mut context = Context::from_waker(Waker::noop());
    assert!(writing.as_mut().poll(&mut context).is_pending());
    drop(writing); // with it the handle that is not part of the write
    gone.send(()).unwrap();
    let opened = (0..1_000).find_map(|_| {
        thread::sleep(Duration::from_millis(10));
        try_open(folder.path(), 1 << 20).ok()
    });
    assert_eq!(get(&opened.unwrap(), FIRST, b"key").as_deref(), Some(&b"value"[..]));
}

/// Writes are refused, nothing that was acknowledged is lost, and a larger map accepts more.
#[test]
fn a_full_map_is_full_until_the_store_is_opened_with_a_larger_one() {
    for log_bytes in [0, 64 << 10] {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { log_bytes, map_bytes: 256 << 10, ..Options::default() };
        let store = Store::open(folder.path(), &[FIRST, SECOND], options).unwrap();
        let mut acknowledged = 0_u16;
        let error = loop {
            match put(&store, FIRST, &acknowledged.to_be_bytes(), &[7; 10_000]) {
                Ok(()) => acknowledged += 1,
                Err(error) => break error,
            }
            assert!(acknowledged < 100, "the map is not full");
        };
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(error.to_string().contains("map"), "{error}");
        assert_eq!(store.health().unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(count(&store), usize::from(acknowledged));
        wait(store.close()).unwrap();
        drop(store);
        let store = open(folder.path(), log_bytes);
        assert_eq!(count(&store), usize::from(acknowledged));
        put(&store, FIRST, b"more", &[7; 10_000]).unwrap();
    }
}

/// The map is address space: the file is no longer than its pages.
#[test]
fn a_map_takes_no_disk() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    let stats = store.stats().unwrap();
    assert!(stats.file_bytes < 256 << 10, "{} bytes", stats.file_bytes);
}

/// The test runs itself again in a process with 4 GiB of address space, in which the map must be smaller.
#[test]
fn a_store_opens_where_address_space_is_limited() {
    const IS_LIMITED: &str = "RESTANTE_TEST_ADDRESS_SPACE_IS_LIMITED";
    if std::env::var_os(IS_LIMITED).is_some() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), 1 << 20);
        put(&store, FIRST, b"key", b"value").unwrap();
        wait(store.settle()).unwrap();
        assert_eq!(get(&store, FIRST, b"key").as_deref(), Some(&b"value"[..]));
        return;
    }
    let limited = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 4194304 && exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "tests::store::a_store_opens_where_address_space_is_limited"])
        .env(IS_LIMITED, "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&limited.stdout);
    assert!(limited.status.success() && output.contains("1 passed"), "{output}");
}

fn write_after(store: &Store, gates: &[Gate], key: u8) -> impl Future<Output = Result<(), Error>> + use<> {
    let (store, gates) = (store.clone(), gates.to_vec());
    let work = move |batch: &mut Batch<'_>| {
        batch.put(FIRST, &[key], b"after");
        Ok(())
    };
    async move { store.write_after(&gates, work).await }
}

#[test]
fn hooks_behind_the_answers_come_when_all_of_a_group_are_answered_and_not_for_what_failed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let write = |number: u8, fails: bool| {
        let (calls, later, store) = (calls.clone(), calls.clone(), store.clone());
        async move {
            let work = move |batch: &mut Batch<'_>| {
                if number == 0 {
                    thread::sleep(Duration::from_millis(50)); // the others queue up after it
                }
                batch.put(FIRST, &[number], b"row");
                batch.on_durable(move || calls.lock().unwrap().push((number, "durable")));
                batch.on_answered(move || later.lock().unwrap().push((number, "answered")));
                if fails { Err(Error::conflict("it shall fail")) } else { Ok(()) }
            };
            store.write(work).await
        }
    };
    let (first, second, failing) =
        wait(async { tokio::join!(write(0, false), write(1, false), write(2, true)) });
    assert!(first.is_ok() && second.is_ok() && failing.is_err());
    drop(store); // its threads have ended afterwards
    let calls = calls.lock().unwrap();
    assert_eq!(*calls, [(0, "durable"), (1, "durable"), (0, "answered"), (1, "answered")]);
}

#[test]
fn a_write_waits_for_all_its_gates_and_is_dropped_when_one_fails() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    let [(open_first, first), (open_second, second), (fail_third, third)] = [(); 3].map(|()| Gate::new());
    let mut both = Box::pin(write_after(&store, &[first.clone(), second], 1));
    let mut failing = Box::pin(write_after(&store, &[first.clone(), third], 2));
    let mut context = Context::from_waker(Waker::noop());
    assert!(
        both.as_mut().poll(&mut context).is_pending() && failing.as_mut().poll(&mut context).is_pending()
    );
    open_first.open();
    put(&store, FIRST, &[9], b"between").unwrap(); // answered after all that is queued
    assert_eq!([1, 2].map(|key| get(&store, FIRST, &[key])), [None, None]);
    fail_third.fail(Error::full("no space"));
    open_second.open();
    wait(both).unwrap();
    assert_eq!(wait(failing).unwrap_err().kind(), ErrorKind::Full);
    wait(write_after(&store, &[first], 3)).unwrap(); // one that is open already
    assert_eq!([1, 2, 3].map(|key| get(&store, FIRST, &[key]).is_some()), [true, false, true]);
}

#[test]
fn a_write_whose_gate_opens_while_the_queue_is_full_is_made_later() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    let mut context = Context::from_waker(Waker::noop());
    let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
    let mut holding = Box::pin(store.write(move |_| {
        held.recv().unwrap();
        Ok(())
    }));
    assert!(holding.as_mut().poll(&mut context).is_pending());
    let (keeper, gate) = Gate::new();
    let mut waiting = Box::pin(write_after(&store, &[gate], 1));
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    // More than the queue accepts, whether or not the writer has taken the first one out of it.
    let mut queued: Vec<_> = (0..2_000).map(|_| Box::pin(store.write(|_| Ok(())))).collect();
    assert!(queued.iter_mut().all(|write| write.as_mut().poll(&mut context).is_pending()));
    keeper.open();
    release.send(()).unwrap();
    wait(async {
        for write in queued {
            write.await.unwrap();
        }
        waiting.await.unwrap();
    });
    assert!(get(&store, FIRST, &[1]).is_some());
}

#[test]
fn a_gate_that_stays_closed_keeps_no_store_open() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    let (keeper, gate) = Gate::new();
    let mut waiting = Box::pin(write_after(&store, &[gate], 1));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    drop(waiting);
    drop(store); // waits for the threads of the store
    keeper.open();
    assert_eq!(get(&open(folder.path(), 1 << 20), FIRST, &[1]), None);
}
