//! The cells against a plain map: records that come, go, grow, shrink and move.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use restante_core::ErrorKind;

use super::{
    cell::{CELL_BYTES, CELLS_MAX},
    table::{Cells, NoRoom, RECORD_CELLS_MAX, Size, Taken, Writer},
    *,
};
use crate::found::put_user;

/// A record of so many bytes of sessions, which are not read here.
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

/// Places that crowd into few homes, and of which several have the same tag.
fn place(user: u8) -> u32 {
    u32::from(user / 8) << (HOME_BITS - 6) | u32::from(user % 3)
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

/// A table that is made larger when there is no room, as shards do.
struct Table {
    cells: Cells,
    taken: Taken,
}

impl Table {
    fn put(&mut self, user: u8, record: &RecordBytes) {
        let mut writer = Writer::new(&self.cells, &mut self.taken);
        let at = writer.find(place(user), &is_of(&user.to_string())).map(|(at, _)| at);
        let put = match at {
            Some(at) => writer.write(at, record),
            None => writer.insert(place(user), record),
        };
        let Err(missing) = put else { return };
        let mut size = writer.larger(missing, record);
        while let Err(missing) = self.rebuild(size, at, (user, record)) {
            size = size.roomier(missing);
        }
    }

    fn rebuild(
        &mut self,
        size: Size,
        without: Option<usize>,
        (user, record): (u8, &RecordBytes),
    ) -> Result<(), NoRoom> {
        let (cells, mut taken) = size.build();
        let mut writer = Writer::new(&cells, &mut taken);
        for record in Writer::new(&self.cells, &mut self.taken).records_without(without) {
            writer.insert(place(number_of(&record)), &record)?;
        }
        writer.insert(place(user), record)?;
        (self.cells, self.taken) = (cells, taken);
        Ok(())
    }

    fn remove(&mut self, user: u8) -> bool {
        let mut writer = Writer::new(&self.cells, &mut self.taken);
        let found = writer.find(place(user), &is_of(&user.to_string()));
        if let Some((at, _)) = &found {
            writer.remove(place(user), *at);
        }
        found.is_some()
    }

    fn read(&self, user: u8) -> Option<RecordBytes> {
        let user_name = user.to_string();
        let is_wanted = is_of(&user_name);
        let found = self.cells.read(place(user), &is_wanted).unwrap();
        let mut at_home = [0; CELL_BYTES];
        if self.cells.read_at_home(place(user), &is_wanted, &mut at_home) {
            assert_eq!(found.as_deref(), Some(&at_home[..]), "what is found at home is what is found");
        }
        found
    }
}

/// What fills up the last cell is no part of a record.
fn is_padded(found: &[u8], record: &[u8]) -> bool {
    found.len() < record.len() + CELL_BYTES
        && found.starts_with(record)
        && found[record.len()..].iter().all(|byte| *byte == 0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cells_hold_what_a_map_would(steps in prop::collection::vec(step(), 1..400)) {
        let (cells, taken) = Size::of(16, 2).build();
        let mut table = Table { cells, taken };
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
            let home = table.cells.home_of(from);
            for record in table.cells.records_of(home).unwrap() {
                prop_assert!(users.insert(number_of(&record)));
            }
            next = table.cells.place_behind(home);
        }
        prop_assert!(users.iter().eq(model.keys()), "going through all homes gives each record once");
    }
}

struct Nobody;

impl Owner for Nobody {
    fn ended(&self, _: SessionId, _: Ended) {}
    fn heard(&self, _: Event) {}
}

/// A thread that has read one table reads another, and the first again.
#[test]
fn tables_are_told_apart() {
    let config = Config::new(crate::EngineUrl::Memory);
    let tables = [0, 1].map(|_| Memory::new(ALONE, &config, Arc::new(Nobody)));
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
    let memory = Memory::new(ALONE, &Config::new(crate::EngineUrl::Memory), Arc::new(Nobody));
    let homes = || {
        (0..SHARDS as u32).map(|shard| memory.shard(shard << HOME_BITS).with_cells(Cells::len)).sum::<usize>()
    };
    let empty = homes();
    let open = |n| memory.open_now(NewSession { user: &format!("user{n}"), resource: "phone", info: &[] });
    let ids: Vec<_> = (0..20_000).map(|n| open(n).unwrap().0).collect();
    let full = homes();
    assert!(full > 20_000);
    for id in ids {
        assert!(memory.close_now(id, Ended::Left).unwrap());
    }
    assert!(homes() < 5 * empty, "{} cells of {full}, and {empty} at the beginning", homes());
    assert_eq!(memory.count(), Counts { is_complete: true, ..Counts::default() });
}

/// Cells are counted in a head's bits, so that there is an end to them.
#[test]
fn a_full_shard_refuses_and_keeps_what_it_has() {
    let place_of: PlaceOf = Arc::new(|record| place(number_of(record)));
    let shard = Shard::new(0, Arc::new(SharedMap::new()), place_of);
    let put = |user: u8| {
        let record = record(&user.to_string(), (RECORD_CELLS_MAX - 1) * CELL_BYTES);
        shard.change(place(user), &is_of(&user.to_string()), |_| Ok((Change::Put(record.clone(), 1), ())))
    };
    let users = (0..=u8::MAX).take_while(|user| put(*user).is_ok()).count() as u8;
    assert_eq!(usize::from(users), CELLS_MAX / RECORD_CELLS_MAX, "as many as there are cells for");
    assert_eq!(put(users).map_err(|error| error.kind()), Err(ErrorKind::Full));
    for user in [0, users - 1, users] {
        let found = shard.find_locked(place(user), &is_of(&user.to_string()));
        assert_eq!(found.is_some(), user < users, "{user}");
    }
    assert_eq!((shard.users.load(Ordering::Relaxed), shard.clear()), (u64::from(users), u64::from(users)));
    assert!(put(users).is_ok(), "there is room again");
}
