//! A full disk: a store that was stopped or killed on it opens with no byte free, has everything that was acknowledged, and
//! takes commits again when there is space.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

use std::{collections::BTreeSet, path::Path};

use restante_core::{ErrorKind, Timestamp};
use restante_disk::testing::small_disk::{self, Store};
use restante_records::{
    AccountId, Body, Change, Commit, Config, DUMP_RECORDS_MAX, Dumped, Kind, KindSchema, LmdbConfig, Opened,
    Properties, Schema, open,
};
use tokio::runtime::Runtime;

const ACCOUNT: AccountId = AccountId(1);
/// Bodies whose first eight bytes are the number of the item.
const ITEM: Kind = Kind(1);

struct Records {
    runtime: Runtime,
    opened: Opened,
}

fn number(body: &[u8]) -> u64 {
    u64::from_be_bytes(body[..8].try_into().unwrap())
}

/// Bodies of various lengths that can't be compressed much.
fn body(n: u64) -> Vec<u8> {
    let mut bytes = n.to_be_bytes().to_vec();
    let mut state = n;
    for _ in 0..(n % 7) * 100 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend(state.to_be_bytes());
    }
    bytes
}

impl Store for Records {
    fn open(folder: &Path) -> Result<Self, String> {
        let runtime = Runtime::new().unwrap();
        let url = format!("lmdb:{}", folder.display()).parse().unwrap();
        let schema = Schema::new(vec![KindSchema::new(ITEM, "item")]).unwrap();
        // Small, so that it is applied to LMDB many times; but its contents may be more than the space that is reserved for
        // that.
        let lmdb = LmdbConfig { log_bytes: 1 << 20, ..LmdbConfig::default() };
        let opened = runtime.block_on(open(Config { lmdb, ..Config::new(url, schema) }));
        opened.map(|opened| Self { runtime, opened }).map_err(|error| error.to_string())
    }

    fn put(&self, n: u64) -> Result<(), (ErrorKind, String)> {
        let body = Body { bytes: body(n).into(), blobs: Vec::new() };
        let create = Change::Create { kind: ITEM, body, properties: Properties::default() };
        let committed = self.runtime.block_on(self.opened.records.commit(ACCOUNT, Commit::of(vec![create])));
        committed.map(drop).map_err(|error| (error.kind(), error.to_string()))
    }

    fn all(&self) -> BTreeSet<u64> {
        let (mut all, mut after) = (BTreeSet::new(), None);
        loop {
            let dumped = self.opened.upkeep.dump(after, DUMP_RECORDS_MAX);
            let page = self.runtime.block_on(dumped).unwrap();
            let Some(last) = page.last() else { return all };
            after = Some(last.key);
            for Dumped { record, .. } in page {
                let record = record.unwrap();
                let n = number(&record.body.bytes);
                assert_eq!(record.body.bytes, body(n));
                all.insert(n);
            }
        }
    }

    fn clean_up(&self) -> Result<Vec<u64>, (ErrorKind, String)> {
        let refused = |error: restante_records::Error| (error.kind(), error.to_string());
        let page = self.runtime.block_on(self.opened.upkeep.dump(None, 50)).unwrap();
        let destroy = |dumped: &Dumped| Change::Destroy { kind: ITEM, id: dumped.key.id };
        let changes: Vec<Change> = page.iter().map(destroy).collect();
        if !changes.is_empty() {
            let destroyed = self.opened.records.commit(ACCOUNT, Commit::of(changes));
            self.runtime.block_on(destroyed).map_err(refused)?;
        }
        let cleaned = self.runtime.block_on(self.opened.upkeep.clean(Timestamp::MAX, 10_000));
        cleaned.map_err(refused)?;
        let of = |dumped: &Dumped| number(&dumped.record.as_ref().unwrap().body.bytes);
        Ok(page.iter().map(of).collect())
    }

    fn is_healthy(&self) -> bool {
        self.opened.upkeep.health().is_ok()
    }

    fn close(self) -> Result<(), String> {
        self.runtime.block_on(self.opened.upkeep.close()).map_err(|error| error.to_string())
    }
}

fn main() {
    small_disk::run_if_child::<Records>();
    small_disk::run_test("a_store_that_was_stopped_on_a_full_disk_opens_on_it_and_loses_nothing");
}
