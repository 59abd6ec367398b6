//! Promises of `sweep`.

use std::collections::BTreeSet;

use async_trait::async_trait;
use restante_blobs::{BlobId, Error, Opened, References, Swept, sweep};
use restante_core::{ErrorKind, Identity};

use crate::{
    Subject,
    common::{at, bytes, list, put},
};

crate::promises! {
    any: [
        unreferenced_blobs_are_removed,
        what_was_put_later_stays,
        what_is_referred_to_stays_whatever_the_page,
        when_references_fail_nothing_goes,
        a_sweep_of_nothing_does_nothing,
        what_is_touched_while_a_sweep_is_under_way_stays,
        the_blobs_of_other_records_are_not_swept,
        blobs_without_owner_are_not_swept,
    ],
    durable: [],
    files: [],
}

/// The records of these tests.
const OURS: Identity = Identity([1; 16]);

/// A new store that belongs to the records of these tests.
async fn open(subject: &Subject) -> Opened {
    let opened = subject.open().await;
    opened.upkeep.set_owner(OURS).await.unwrap();
    opened
}

/// References in pages of a few; page `fails` can't be read.
struct Pages {
    pages: Vec<Vec<BlobId>>,
    fails: Option<u64>,
}

impl Pages {
    fn of(ids: &[BlobId]) -> Self {
        Self { pages: ids.chunks(7).map(<[BlobId]>::to_vec).collect(), fails: None }
    }
}

#[async_trait]
impl References for Pages {
    fn identity(&self) -> Identity {
        OURS
    }

    async fn page(&self, after: Option<u64>) -> Result<(Vec<BlobId>, Option<u64>), Error> {
        let number = after.map_or(0, |after| after + 1);
        if self.fails == Some(number) {
            return Err(Error::unavailable("the records are away"));
        }
        let page = self.pages.get(number as usize).cloned().unwrap_or_default();
        Ok((page, (number + 1 < self.pages.len() as u64).then_some(number)))
    }
}

async fn unreferenced_blobs_are_removed(subject: Subject) {
    let opened = open(&subject).await;
    let mut ids = Vec::new();
    for n in 0..300 {
        ids.push(put(&*opened.blobs, &bytes(n, 10 * n as usize)).await.id);
    }
    let (referred, loose) = ids.split_at(100);
    let swept = sweep(&*opened.upkeep, &Pages::of(referred), at(1)).await.unwrap();
    assert_eq!(swept.blobs, 300);
    // Up to one in a hundred is mistaken for a referenced one.
    assert!((190..=200).contains(&swept.removed), "{swept:?}");
    let left: BTreeSet<BlobId> = list(&*opened.upkeep).await.iter().map(|blob| blob.id).collect();
    assert_eq!(left.len() as u64, 300 - swept.removed);
    assert!(referred.iter().all(|id| left.contains(id)));
    let gone = (0..300).filter(|n| !left.contains(&ids[*n]));
    assert_eq!(swept.removed_bytes, gone.map(|n| 10 * n as u64).sum::<u64>());
    // A sweep with another time mistakes others.
    for second in 2..10 {
        sweep(&*opened.upkeep, &Pages::of(referred), at(second)).await.unwrap();
    }
    let left = list(&*opened.upkeep).await;
    assert_eq!(left.len(), 100, "{} of {} are loose", left.len() - 100, loose.len());
}

async fn what_was_put_later_stays(subject: Subject) {
    let opened = open(&subject).await;
    let old = put(&*opened.blobs, &bytes(1, 10)).await.id;
    let again = put(&*opened.blobs, &bytes(2, 300_000)).await.id;
    subject.tick(5);
    let young = put(&*opened.blobs, &bytes(3, 10)).await.id;
    put(&*opened.blobs, &bytes(2, 300_000)).await;
    let swept = sweep(&*opened.upkeep, &Pages::of(&[]), at(5)).await.unwrap();
    assert_eq!(swept, Swept { blobs: 3, removed: 1, removed_bytes: 10 });
    assert_eq!(opened.blobs.size(old).await.unwrap(), None);
    assert!(opened.blobs.size(again).await.unwrap().is_some());
    assert!(opened.blobs.size(young).await.unwrap().is_some());
}

async fn what_is_referred_to_stays_whatever_the_page(subject: Subject) {
    let opened = open(&subject).await;
    let mut ids = Vec::new();
    for n in 0..50 {
        ids.push(put(&*opened.blobs, &bytes(n, 100)).await.id);
    }
    let mut pages = Pages::of(&[&ids[..], &ids[..], &[BlobId([9; 32])]].concat());
    pages.pages.insert(3, vec![]); // a page may be empty before the end
    let swept = sweep(&*opened.upkeep, &pages, at(1)).await.unwrap();
    assert_eq!(swept, Swept { blobs: 50, removed: 0, removed_bytes: 0 });
}

async fn when_references_fail_nothing_goes(subject: Subject) {
    let opened = open(&subject).await;
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(put(&*opened.blobs, &bytes(n, 100)).await.id);
    }
    for fails in 0..3 {
        let pages = Pages { fails: Some(fails), ..Pages::of(&ids[..20]) };
        let error = sweep(&*opened.upkeep, &pages, at(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(list(&*opened.upkeep).await.len(), 30);
    }
}

async fn a_sweep_of_nothing_does_nothing(subject: Subject) {
    let opened = open(&subject).await;
    assert_eq!(sweep(&*opened.upkeep, &Pages::of(&[]), at(1)).await.unwrap(), Swept::default());
}

/// Records without references. While the last page is read, a commit is about to refer to blobs that were put long ago, and touches
/// them: no page contains them.
struct LateReferences {
    opened: Opened,
    ids: Vec<BlobId>,
}

#[async_trait]
impl References for LateReferences {
    fn identity(&self) -> Identity {
        OURS
    }

    async fn page(&self, after: Option<u64>) -> Result<(Vec<BlobId>, Option<u64>), Error> {
        if after.is_none() {
            return Ok((Vec::new(), Some(0)));
        }
        let found = self.opened.blobs.touch(&self.ids).await?;
        assert!(found.into_iter().all(|is_there| is_there));
        Ok((Vec::new(), None))
    }
}

async fn what_is_touched_while_a_sweep_is_under_way_stays(subject: Subject) {
    let opened = open(&subject).await;
    let mut ids = Vec::new();
    for (n, len) in [10, 999, 5_000, 300_000, 11, 998, 5_001, 300_001].into_iter().enumerate() {
        ids.push(put(&*opened.blobs, &bytes(n as u32, len)).await.id);
    }
    subject.tick(10);
    let (taken, left) = ids.split_at(4);
    let references = LateReferences { opened: opened.clone(), ids: taken.to_vec() };
    let swept = sweep(&*opened.upkeep, &references, at(10)).await.unwrap();
    assert_eq!((swept.blobs, swept.removed), (8, 4));
    let there: BTreeSet<BlobId> = list(&*opened.upkeep).await.iter().map(|blob| blob.id).collect();
    assert_eq!(there, taken.iter().copied().collect());
    assert_eq!(opened.blobs.touch(left).await.unwrap(), [false; 4]);
}

async fn the_blobs_of_other_records_are_not_swept(subject: Subject) {
    let opened = open(&subject).await;
    put(&*opened.blobs, &bytes(1, 10)).await;
    let others = Identity([2; 16]);
    opened.upkeep.set_owner(others).await.unwrap();
    let error = sweep(&*opened.upkeep, &Pages::of(&[]), at(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    for identity in [OURS, others] {
        assert!(error.to_string().contains(&identity.to_string()), "{error}");
    }
    assert_eq!(list(&*opened.upkeep).await.len(), 1);
    opened.upkeep.set_owner(OURS).await.unwrap();
    assert_eq!(sweep(&*opened.upkeep, &Pages::of(&[]), at(1)).await.unwrap().removed, 1);
}

async fn blobs_without_owner_are_not_swept(subject: Subject) {
    let opened = subject.open().await;
    put(&*opened.blobs, &bytes(1, 10)).await;
    let error = sweep(&*opened.upkeep, &Pages::of(&[]), at(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(list(&*opened.upkeep).await.len(), 1);
}
