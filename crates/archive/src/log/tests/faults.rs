//! The n-th step on the disk fails, for n = 1, 2, 3, ... until none does; and a disk that is full for a while.

use std::{path::Path, sync::Arc};

use restante_core::{ErrorKind, Timestamp};
use restante_disk::testing::{FailingDisk, FailurePlan, InjectedFailure};

use super::{SECOND, config, everything, message, open, runtime};
use crate::{
    Message,
    log::disk::{Disk, Folder},
};

/// Appends sixty batches, backs up once and prunes once; errors are handled as an operator's clients would. Returns what was
/// acknowledged and whether an append was refused, or nothing when the archive could not be opened.
async fn run_workload(disk: Arc<dyn Disk>) -> Option<(Vec<Message>, bool)> {
    let opened = open(disk).ok()?;
    let (mut acked, mut was_refused) = (Vec::new(), false);
    for n in 0..60 {
        let batch = vec![message(2 * n, 40), message(2 * n + 1, 3_000)];
        match opened.archive.append(batch.clone()).await {
            Ok(_) => acked.extend(batch),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Full), "{error}");
                was_refused = true;
            }
        }
        if n == 30 {
            let copy = tempfile::tempdir().unwrap();
            if opened.upkeep.backup(copy.path()).await.is_ok() {
                let copied = everything(&open(Arc::new(Folder::new(copy.path()))).unwrap()).await;
                assert!(
                    acked.iter().all(|message| copied.contains(message)),
                    "a copy that was made is whole"
                );
            }
        }
        if n == 40 {
            // An error is no loss: what was removed before it stays removed.
            let _ = opened.upkeep.prune(&"time:99".parse().unwrap(), Timestamp(100 * SECOND)).await;
            acked.retain(|message| message.timestamp >= Timestamp(SECOND));
        }
    }
    opened.upkeep.close().await.unwrap();
    Some((acked, was_refused))
}

fn every_step_may_fail_once(fault: InjectedFailure) {
    let runtime = runtime();
    let mut seen = std::collections::BTreeSet::new();
    for step in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let faults = FailurePlan::at_step(step, fault);
        let disk = FailingDisk::new(folder.path(), faults.clone());
        let outcome = runtime.block_on(run_workload(Arc::new(disk)));
        let failed = faults.failed().pop_first();
        let (acked, was_refused) = outcome.unwrap_or_default();
        runtime.block_on(async {
            let opened = open(Arc::new(Folder::new(folder.path()))).unwrap();
            let served = everything(&opened).await;
            for message in &acked {
                assert!(
                    served.contains(message),
                    "step {step} ({failed:?}): {message:?} was acknowledged and is lost"
                );
            }
            for message in &served {
                let n = u32::from_be_bytes(message.message_hash.0[4..8].try_into().unwrap());
                let original = super::message(n, message.body.len());
                assert_eq!(*message, original, "step {step} ({failed:?}): what is served is as it was sent");
            }
            let report = opened.upkeep.check(&|_, _| {}).await.unwrap();
            assert_eq!(report.lost, 0, "step {step} ({failed:?}): nothing is lost: {report:?}");
            let again = opened.archive.append(vec![message(999, 5)]).await;
            assert!(
                again.is_ok(),
                "step {step} ({failed:?}): the archive takes messages after it was opened again"
            );
            opened.upkeep.close().await.unwrap();
        });
        let Some(failed) = failed else {
            assert!(!was_refused);
            break;
        };
        seen.insert(failed);
    }
    let steps =
        ["create", "reserve", "write", "sync", "cut", "rename", "remove", "sync folder", "map", "copy out"];
    for step in steps {
        assert!(seen.contains(step), "the workload has no '{step}': {seen:?}");
    }
}

#[test]
fn any_step_may_fail() {
    every_step_may_fail_once(InjectedFailure::Fails);
}

#[test]
fn any_write_may_fail_halfway() {
    every_step_may_fail_once(InjectedFailure::FailsHalfway);
}

#[test]
fn any_step_may_find_the_disk_full() {
    every_step_may_fail_once(InjectedFailure::Full);
}

/// After a failed sync it is unknown what the disk has kept: a second sync may succeed without having written anything.
#[test]
fn after_a_failed_sync_nothing_more_is_taken() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        let disk = FailingDisk::new(folder.path(), faults.clone());
        let opened = open(Arc::new(disk)).unwrap();
        opened.archive.append(vec![message(0, 10)]).await.unwrap();
        faults.fail_at(2, InjectedFailure::Fails); // the next write succeeds, there is space for it; its sync fails
        for n in 1..4 {
            let error = opened.archive.append(vec![message(n, 10)]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("until it is opened again"), "{error}");
        }
        assert!(faults.failed().contains("sync"));
        assert_eq!(everything(&opened).await, [message(0, 10)], "it goes on answering");
        opened.upkeep.close().await.unwrap();
        let opened = open_again(folder.path());
        opened.archive.append(vec![message(1, 10)]).await.unwrap();
        assert!(everything(&opened).await.contains(&message(1, 10)));
    });
}

fn open_again(folder: &Path) -> crate::Opened {
    open(Arc::new(Folder::new(folder))).unwrap()
}

#[test]
fn a_full_disk_refuses_until_retention_makes_room() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        faults.limit(500_000);
        let disk = FailingDisk::new(folder.path(), faults);
        let opened = open(Arc::new(disk)).unwrap();
        let mut acked = Vec::new();
        let refused = loop {
            let next = message(acked.len() as u32, 3_000);
            match opened.archive.append(vec![next.clone()]).await {
                Ok(_) => acked.push(next),
                Err(error) => break (next, error),
            }
        };
        assert_eq!(refused.1.kind(), ErrorKind::Full);
        assert!(acked.len() > 100);
        assert_eq!(everything(&opened).await, acked, "what was acknowledged is served");

        opened.upkeep.prune(&"capacity:40".parse().unwrap(), config().clock.now()).await.unwrap();
        opened.archive.append(vec![refused.0.clone()]).await.unwrap();
        let served = everything(&opened).await;
        assert!(served.len() > 40 && served.contains(&refused.0));
        opened.upkeep.close().await.unwrap();
    });
}

/// A backup shares the log of a segment that has lost its index, and there is no space to copy it.
#[test]
fn an_archive_opens_without_room_for_a_copy_and_leaves_the_backup_as_it_is() {
    runtime().block_on(async {
        let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = open_again(folder.path());
        first.archive.append((0..10).map(|n| message(n, 40)).collect()).await.unwrap();
        first.upkeep.close().await.unwrap();
        let linked = copy.path().join("00000001.log");
        std::fs::hard_link(folder.path().join("00000001.log"), linked).unwrap();
        let backed_up = super::content(copy.path());

        let faults = FailurePlan::none();
        faults.plan(|_, step| (step == "own").then_some(InjectedFailure::Full));
        let opened = open(Arc::new(FailingDisk::new(folder.path(), faults.clone()))).unwrap();
        assert!(faults.failed().contains("own"));
        faults.clear();
        opened.archive.append((10..20).map(|n| message(n, 40)).collect()).await.unwrap();
        let all: Vec<Message> = (0..20).map(|n| message(n, 40)).collect();
        assert_eq!(everything(&opened).await, all);
        opened.upkeep.close().await.unwrap();
        assert_eq!(super::content(copy.path()), backed_up);
        assert_eq!(everything(&open_again(folder.path())).await, all);
    });
}

#[test]
fn a_prune_names_what_it_had_to_leave() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let opened = open_again(folder.path());
        opened.archive.append((0..10).map(|n| message(n, 40)).collect()).await.unwrap();
        let now = config().clock.now();
        for (policy, is_left) in [("capacity:5", true), ("capacity:10", false), ("time:1000", false)] {
            let policy = policy.parse().unwrap();
            assert_eq!(opened.upkeep.prune(&policy, now).await.unwrap().messages, 0);
            let left = opened.upkeep.not_pruned(&policy, now);
            assert_eq!(
                left.is_some_and(|left| left.contains("(10 messages") && left.contains("stays")),
                is_left
            );
        }
        opened.upkeep.close().await.unwrap();
    });
}
