//! The session table's cells and what writers do with them, compiled from the same files with loom's atomics in the place of
//! the standard library's.

#[path = "../../../crates/sessions/src/memory/cell.rs"]
mod cell;
#[path = "../../../crates/sessions/src/memory/table.rs"]
mod table;

/// In the place of `memory/sync.rs`: cells of two words, and readers who try twice.
mod sync {
    pub(crate) use loom::{
        hint::spin_loop,
        sync::atomic::{AtomicU64, Ordering, fence},
    };

    pub(crate) const WORDS: usize = 2;
    pub(crate) const TRIES: usize = 2;
}

/// In the place of `found.rs`: a record is the length of its user, the user, and anything.
mod found {
    use std::ops::Range;

    pub(crate) type RecordBytes = smallvec::SmallVec<[u8; 2 * crate::cell::CELL_BYTES]>;

    pub(crate) fn user_in(record: &[u8]) -> Option<Range<usize>> {
        let len = usize::from(*record.first()?);
        (record.len() > len).then_some(1..1 + len)
    }
}

#[cfg(test)]
mod tests {
    use loom::{sync::Arc, thread};

    use crate::{
        cell::CELL_BYTES,
        found::RecordBytes,
        table::{Cells, Size, Taken, Torn, Wanted, Writer},
    };

    /// Tries everything that can happen with up to so many changes of thread at a bad moment.
    fn explore(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// A record whose bytes all say which one it is.
    fn record(user: &str, fill: u8, bytes: usize) -> Vec<u8> {
        let mut record = vec![user.len() as u8];
        record.extend(user.as_bytes());
        record.resize(bytes, fill);
        record
    }

    fn read(cells: &Cells, place: u32, user: &str) -> Result<Option<Vec<u8>>, Torn> {
        let mut record = RecordBytes::new();
        let is_found = cells.read(place, Wanted::User(user), &mut record)?;
        Ok(is_found.then(|| record.to_vec()))
    }

    /// What a reader gets is one of the records, whole, or it has to wait for the writers.
    fn is_one_of(read: Result<Option<Vec<u8>>, Torn>, records: &[&[u8]]) {
        let Ok(found) = read else { return };
        let found = found.expect("the record is there all the time");
        assert!(records.iter().any(|record| found.starts_with(record)), "{found:?} is none of {records:?}");
    }

    fn table(size: usize, pool: usize) -> (Cells, Taken) {
        Size::of(size, pool).build()
    }

    /// A writer changes a record twice while it is read.
    #[test]
    fn a_record_is_read_whole() {
        explore(|| {
            let (cells, mut taken) = table(16, 0);
            let versions = [1, 2, 3].map(|fill| record("a", fill, CELL_BYTES));
            Writer::new(&cells, &mut taken).insert(0, &versions[0]).unwrap();
            let cells = Arc::new(cells);
            let reader = thread::spawn({
                let (cells, versions) = (cells.clone(), versions.clone());
                move || is_one_of(read(&cells, 0, "a"), &versions.each_ref().map(|version| &version[..]))
            });
            let mut writer = Writer::new(&cells, &mut taken);
            let (at, _) = writer.find(0, Wanted::User("a")).unwrap();
            writer.write(at, &versions[1]).unwrap();
            writer.write(at, &versions[2]).unwrap();
            reader.join().unwrap();
        });
    }

    /// A long record gives up the cell in which it goes on, and another takes it, while the first is read.
    #[test]
    fn a_long_record_is_not_mixed_with_the_next() {
        explore(|| {
            let (cells, mut taken) = table(16, 1);
            let long = record("a", 1, 2 * CELL_BYTES);
            let short = record("a", 2, CELL_BYTES);
            let other = record("b", 9, 2 * CELL_BYTES);
            Writer::new(&cells, &mut taken).insert(0, &long).unwrap();
            let cells = Arc::new(cells);
            let reader = thread::spawn({
                let (cells, long, short) = (cells.clone(), long.clone(), short.clone());
                move || is_one_of(read(&cells, 0, "a"), &[&long, &short])
            });
            let mut writer = Writer::new(&cells, &mut taken);
            let (at, _) = writer.find(0, Wanted::User("a")).unwrap();
            writer.write(at, &short).unwrap();
            writer.insert(1 << 24, &other).unwrap();
            reader.join().unwrap();
        });
    }

    /// A record is moved out of the way of another while it is looked for: it is found, before or after.
    #[test]
    fn a_record_that_is_moved_is_found() {
        explore(|| {
            // 24 homes: 16 records that share the first home fill its hood, so that the next has to move one of others.
            let (cells, mut taken) = table(24, 0);
            let home = |n: u32| (u64::from(n) << 26).div_ceil(24) as u32;
            let moved = record("m", 7, CELL_BYTES);
            let mut writer = Writer::new(&cells, &mut taken);
            for n in 0..15 {
                writer.insert(home(0), &record(&n.to_string(), n, CELL_BYTES)).unwrap();
                if n == 1 {
                    writer.insert(home(1), &moved).unwrap(); // next door: its own cell is taken
                }
            }
            let cells = Arc::new(cells);
            let reader = thread::spawn({
                let (cells, moved) = (cells.clone(), moved.clone());
                move || is_one_of(read(&cells, home(1), "m"), &[&moved])
            });
            let mut writer = Writer::new(&cells, &mut taken);
            let (before, _) = writer.find(home(1), Wanted::User("m")).unwrap();
            writer.insert(home(0), &record("x", 8, CELL_BYTES)).unwrap();
            let (after, _) = writer.find(home(1), Wanted::User("m")).unwrap();
            assert_ne!(before, after, "this test is about a record that is moved");
            reader.join().unwrap();
        });
    }

    /// A record that was found is found from then on, also by a reader who came to its cell on the word of the one before.
    #[test]
    fn a_record_that_was_found_stays_found() {
        explore(|| {
            let (cells, mut taken) = table(16, 0);
            let (first, gone, new) =
                (record("f", 1, CELL_BYTES), record("a", 2, CELL_BYTES), record("b", 3, CELL_BYTES));
            Writer::new(&cells, &mut taken).insert(0, &first).unwrap();
            Writer::new(&cells, &mut taken).insert(0, &gone).unwrap();
            let cells = Arc::new(cells);
            let reader = thread::spawn({
                let cells = cells.clone();
                move || {
                    let was_found = matches!(read(&cells, 0, "b"), Ok(Some(_)));
                    let is_missed = matches!(read(&cells, 0, "b"), Ok(None));
                    assert!(!(was_found && is_missed), "it was found, and then it was not");
                }
            });
            let mut writer = Writer::new(&cells, &mut taken);
            let (at, _) = writer.find(0, Wanted::User("a")).unwrap();
            writer.remove(0, at);
            writer.insert(0, &new).unwrap();
            reader.join().unwrap();
        });
    }

    /// A record is removed and another takes its cell: a reader finds the first or nothing, and never the second under its name.
    #[test]
    fn a_record_that_goes_is_whole_or_gone() {
        explore(|| {
            let (cells, mut taken) = table(16, 0);
            let (gone, next) = (record("a", 1, CELL_BYTES), record("b", 2, CELL_BYTES));
            Writer::new(&cells, &mut taken).insert(0, &gone).unwrap();
            let cells = Arc::new(cells);
            let reader = thread::spawn({
                let (cells, gone) = (cells.clone(), gone.clone());
                move || match read(&cells, 0, "a") {
                    Ok(Some(found)) => assert_eq!(found, gone),
                    Ok(None) | Err(Torn) => {}
                }
            });
            let mut writer = Writer::new(&cells, &mut taken);
            let (at, _) = writer.find(0, Wanted::User("a")).unwrap();
            writer.remove(0, at);
            writer.insert(0, &next).unwrap();
            reader.join().unwrap();
        });
    }
}
