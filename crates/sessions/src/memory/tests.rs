//! The cells against a plain map: records that come, go, grow, shrink and move.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use restante_core::ErrorKind;

use super::{
    cell::{CELL_BYTES, CELLS_MAX},
    table::{Cells, RECORD_CELLS_MAX, Size, TableFull, Writer, WriterState},
    *,
};
use crate::found::put_user;

/// A record with `bytes` bytes of sessions, which are not read here.
fn record(user: &str, sessions: usize) -> RecordBytes {
    let mut record = RecordBytes::new();
    put_user(user, &mut record);
    record.extend(std::iter::repeat_n(b'.', sessions));
    record
}

/// The user of a record.
fn number_of(record: &[u8]) -> u8 {
    std::str::from_utf8(user_of(record).unwrap()).unwrap().parse().unwrap()
}

/// User hashes that share few buckets, some of them with the same tag.
fn user_hash(user: u8) -> u32 {
    u32::from(user / 8) << (BUCKET_BITS - 6) | u32::from(user % 3)
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, usize),
    Remove(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<u8>(), 1..4 * CELL_BYTES).prop_map(|(user, sessions)| Step::Put(user, sessions)),
        1 => any::<u8>().prop_map(Step::Remove),
    ]
}

/// A table that grows when it is full, as shards do.
struct Table {
    cells: Cells,
    state: WriterState,
}

impl Table {
    fn put(&mut self, user: u8, record: &RecordBytes) {
        let mut writer = Writer::new(&self.cells, &mut self.state);
        let at = writer.find(user_hash(user), &is_of(&user.to_string())).map(|(at, _)| at);
        let put = match at {
            Some(at) => writer.write(at, record),
            None => writer.insert(user_hash(user), record),
        };
        let Err(missing) = put else { return };
        let mut size = writer.larger(missing, record);
        while let Err(missing) = self.rebuild(size, at, (user, record)) {
            size = size.enlarged(missing);
        }
    }

    fn rebuild(
        &mut self,
        size: Size,
        without: Option<usize>,
        (user, record): (u8, &RecordBytes),
    ) -> Result<(), TableFull> {
        let (cells, mut state) = size.build();
        let mut writer = Writer::new(&cells, &mut state);
        for record in Writer::new(&self.cells, &mut self.state).records_without(without) {
            writer.insert(user_hash(number_of(&record)), &record)?;
        }
        writer.insert(user_hash(user), record)?;
        (self.cells, self.state) = (cells, state);
        Ok(())
    }

    fn remove(&mut self, user: u8) -> bool {
        let mut writer = Writer::new(&self.cells, &mut self.state);
        let found = writer.find(user_hash(user), &is_of(&user.to_string()));
        if let Some((at, _)) = &found {
            writer.remove(user_hash(user), *at);
        }
        found.is_some()
    }

    fn read(&self, user: u8) -> Option<RecordBytes> {
        let user_name = user.to_string();
        let matches = is_of(&user_name);
        let found = self.cells.read(user_hash(user), &matches).unwrap();
        let mut in_bucket = [0; CELL_BYTES];
        if self.cells.read_in_bucket(user_hash(user), &matches, &mut in_bucket) {
            assert_eq!(found.as_deref(), Some(&in_bucket[..]), "what is found at bucket is what is found");
        }
        found
    }
}

/// The padding of the last cell is not part of a record.
fn is_padded(found: &[u8], record: &[u8]) -> bool {
    found.len() < record.len() + CELL_BYTES
        && found.starts_with(record)
        && found[record.len()..].iter().all(|byte| *byte == 0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cells_hold_what_a_map_would(steps in prop::collection::vec(step(), 1..400)) {
        let (cells, state) = Size::of(16, 2).build();
        let mut table = Table { cells, state };
        let mut model: BTreeMap<u8, RecordBytes> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(user, sessions) => {
                    let record = record(&user.to_string(), sessions);
                    table.put(user, &record);
                    model.insert(user, record);
                }
                Step::Remove(user) => {
                    prop_assert_eq!(table.remove(user), model.remove(&user).is_some());
                }
            }
        }
        for user in 0..=u8::MAX {
            match (table.read(user), model.get(&user)) {
                (None, None) => {}
                (Some(found), Some(record)) => prop_assert!(is_padded(&found, record), "{}: {:?}", user, found),
                (found, record) => prop_assert!(false, "{}: {:?} and not {:?}", user, found, record),
            }
        }
        let mut users: BTreeSet<u8> = BTreeSet::new();
        let mut next = Some(0);
        while let Some(from) = next {
            let bucket = table.cells.bucket_of(from);
            for record in table.cells.records_of(bucket).unwrap() {
                prop_assert!(users.insert(number_of(&record)));
            }
            next = table.cells.first_hash_after(bucket);
        }
        prop_assert!(users.iter().eq(model.keys()), "going through all buckets gives each record once");
    }
}

struct NoOwner;

impl Owner for NoOwner {
    fn ended(&self, _: SessionId, _: Ended) {}
    fn received(&self, _: Event) {}
}

/// A thread that has read one table reads another, and then the first again.
#[test]
fn tables_are_distinguished() {
    let config = Config::new(crate::EngineUrl::Memory);
    let tables = [0, 1].map(|_| Memory::new(SINGLE_NODE, &config, Arc::new(NoOwner)));
    let ids = [0, 1].map(|n| {
        let resource = if n == 0 { "first" } else { "second" };
        tables[n].open_now(NewSession { user: "romeo@example.net", resource, info: &[] }).unwrap().0
    });
    for n in [0, 1, 0, 1, 1, 0] {
        let found = tables[n].by_user("romeo@example.net").now().unwrap().unwrap();
        assert_eq!(found.first().map(|session| session.id), Some(ids[n]));
    }
}

#[test]
fn memory_is_given_back_when_users_leave() {
    let memory = Memory::new(SINGLE_NODE, &Config::new(crate::EngineUrl::Memory), Arc::new(NoOwner));
    let buckets = || {
        (0..SHARDS as u32)
            .map(|shard| memory.shard(shard << BUCKET_BITS).with_cells(Cells::len))
            .sum::<usize>()
    };
    let empty = buckets();
    let open = |n| memory.open_now(NewSession { user: &format!("user{n}"), resource: "phone", info: &[] });
    let ids: Vec<_> = (0..20_000).map(|n| open(n).unwrap().0).collect();
    let full = buckets();
    assert!(full > 20_000);
    for id in ids {
        assert!(memory.close_now(id, Ended::Left).unwrap());
    }
    assert!(buckets() < 5 * empty, "{} cells of {full}, and {empty} at the beginning", buckets());
    assert_eq!(memory.count(), Counts { is_complete: true, ..Counts::default() });
}

/// Cell numbers have a fixed number of bits in a head, so that a table is bounded.
#[test]
fn a_full_shard_refuses_and_keeps_what_it_has() {
    let record_hash: RecordHash = Arc::new(|record| user_hash(number_of(record)));
    let shard = Shard::new(0, Arc::new(SharedMap::new()), record_hash);
    let put = |user: u8| {
        let record = record(&user.to_string(), (RECORD_CELLS_MAX - 1) * CELL_BYTES);
        shard.change(user_hash(user), &is_of(&user.to_string()), |_| Ok((Change::Put(record.clone(), 1), ())))
    };
    let users = (0..=u8::MAX).take_while(|user| put(*user).is_ok()).count() as u8;
    assert_eq!(usize::from(users), CELLS_MAX / RECORD_CELLS_MAX, "as many as there are cells for");
    assert_eq!(put(users).map_err(|error| error.kind()), Err(ErrorKind::Full));
    for user in [0, users - 1, users] {
        let found = shard.find_locked(user_hash(user), &is_of(&user.to_string()));
        assert_eq!(found.is_some(), user < users, "{user}");
    }
    assert_eq!((shard.users.load(Ordering::Relaxed), shard.clear()), (u64::from(users), u64::from(users)));
    assert!(put(users).is_ok(), "there is space again");
}
