//! A full disk: a store that was stopped or killed on it opens with no byte free, has every blob that was acknowledged, and
//! accepts blobs again when there is space.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

use std::{collections::BTreeSet, path::Path, sync::Arc};

use bytes::Bytes;
use restante_blobs::{BlobId, Config, FilesConfig, LIST_BLOBS_MAX, Opened, open};
use restante_core::{ErrorKind, ManualClock, Timestamp, nonzero};
use restante_disk::testing::small_disk::{self, Store};
use tokio::runtime::Runtime;

struct Blobs {
    runtime: Runtime,
    opened: Opened,
}

/// Short blobs, and sometimes one with a file of its own, beginning with the number of the item.
fn blob(n: u64) -> Bytes {
    let len = if n % 11 == 10 { 40_000 } else { 100 + (n % 13) as usize * 500 };
    n.to_be_bytes().iter().copied().cycle().take(len).collect::<Vec<u8>>().into()
}

impl Blobs {
    fn ids(&self) -> Vec<BlobId> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = self.runtime.block_on(self.opened.upkeep.list(after, LIST_BLOBS_MAX)).unwrap();
            let Some(last) = page.last() else { return all };
            after = Some(last.id);
            all.extend(page.iter().map(|listed| listed.id));
        }
    }

    /// The number at the beginning of a readable blob.
    fn read(&self, id: BlobId) -> u64 {
        let bytes = self.runtime.block_on(async {
            let mut source = self.opened.blobs.read(id, 0..u64::MAX).await.unwrap();
            let mut all = Vec::new();
            while let Some(chunk) = source.next().await.unwrap() {
                all.extend_from_slice(&chunk);
            }
            all
        });
        let n = u64::from_be_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(bytes, blob(n));
        n
    }
}

impl Store for Blobs {
    fn open(folder: &Path) -> Result<Self, String> {
        let runtime = Runtime::new().unwrap();
        let url = format!("files:{}", folder.display()).parse().unwrap();
        let files = FilesConfig { packed_bytes_max: 10_000, pack_bytes: nonzero!(200_000) };
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_000)));
        let opened = runtime.block_on(open(Config { files, clock, ..Config::new(url) }));
        opened.map(|opened| Self { runtime, opened }).map_err(|error| error.to_string())
    }

    fn put(&self, n: u64) -> Result<(), (ErrorKind, String)> {
        let put = self.runtime.block_on(self.opened.blobs.put(&mut blob(n)));
        put.map(drop).map_err(|error| (error.kind(), error.to_string()))
    }

    fn all(&self) -> BTreeSet<u64> {
        self.ids().into_iter().map(|id| self.read(id)).collect()
    }

    fn clean_up(&self) -> Result<Vec<u64>, (ErrorKind, String)> {
        let ids: Vec<BlobId> = self.ids().into_iter().step_by(3).collect();
        let numbers = ids.iter().map(|id| self.read(*id)).collect();
        let removed = self.runtime.block_on(self.opened.upkeep.remove(&ids, Timestamp::MAX));
        removed.map(|_| numbers).map_err(|error| (error.kind(), error.to_string()))
    }

    fn is_healthy(&self) -> bool {
        self.opened.upkeep.health().is_ok()
    }

    fn close(self) -> Result<(), String> {
        self.runtime.block_on(self.opened.upkeep.close()).map_err(|error| error.to_string())
    }
}

fn main() {
    small_disk::run_if_child::<Blobs>();
    small_disk::run_test("a_store_that_was_stopped_on_a_full_disk_opens_on_it_and_loses_nothing");
}
