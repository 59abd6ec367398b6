//! The session table's cells and writers, compiled from the same files with loom's atomics instead of the standard library's.

#[path = "../../../crates/sessions/src/memory/cell.rs"]
mod cell;
#[path = "../../../crates/sessions/src/memory/table.rs"]
mod table;

/// Replaces `memory/sync.rs`: cells of two words, and readers that try twice.
mod sync {
    pub(crate) use loom::{
        hint::spin_loop,
        sync::atomic::{AtomicU64, Ordering, fence},
    };

    pub(crate) const WORDS: usize = 2;
    pub(crate) const TRIES: usize = 2;
}

/// Replaces `found.rs`: a record is the length of its user, the user, and anything.
mod found {
    pub(crate) type RecordBytes = smallvec::SmallVec<[u8; 2 * crate::cell::CELL_BYTES]>;

    pub(crate) fn user_of(record: &[u8]) -> Option<&[u8]> {
        let (len, rest) = record.split_first()?;
        rest.get(..usize::from(*len))
    }
}

#[cfg(test)]
mod tests {
    use loom::{sync::Arc, thread};

    use crate::{
        cell::CELL_BYTES,
        found::user_of,
        table::{Cells, Size, WriterState, RetryRead, Writer},
    };

    /// Tries all interleavings with up to three preemptions.
    fn explore(model: impl Fn() + Sync + Send + 'static) {
        explore_with(3, model);
    }

    /// The same with a number of preemptions: larger models finish within a minute only with two.
    fn explore_with(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    /// A record filled with a byte that identifies it.
    fn record(user: &str, fill: u8, bytes: usize) -> Vec<u8> {
        let mut record = vec![user.len() as u8];
        record.extend(user.as_bytes());
        record.resize(bytes, fill);
        record
    }

    /// Reads as the table does: in the bucket first.
    fn read(cells: &Cells, user_hash: u32, user: &str) -> Result<Option<Vec<u8>>, RetryRead> {
        let mut bytes = [0; CELL_BYTES];
        if cells.read_in_bucket(user_hash, &is_of(user), &mut bytes) {
            return Ok(Some(bytes.to_vec()));
        }
        Ok(cells.read(user_hash, &is_of(user))?.map(|record| record.to_vec()))
    }

    fn is_of(user: &str) -> impl Fn(&[u8]) -> bool {
        move |record| user_of(record) == Some(user.as_bytes())
    }

    /// A reader gets one of the records, whole, or has to retry.
    fn is_one_of(read: Result<Option<Vec<u8>>, RetryRead>, records: &[&[u8]]) {
        let Ok(found) = read else { return };
        let found = found.expect("the record is there all the time");
        assert!(records.iter().any(|record| found.starts_with(record)), "{found:?} is none of {records:?}");
    }

    fn table(size: usize, pool: usize) -> (Cells, WriterState) {
        Size::of(size, pool).build()
    }

    /// A writer changes a record twice while it is read.
    #[test]
    fn a_record_is_read_whole() {
        explore(|| {
            let (cells, mut state) = table(16, 0);
            let versions = [1, 2, 3].map(|fill| record("a", fill, CELL_BYTES));
            Writer::new(&cells, &mut state).insert(0, &versions[0]).unwrap();
            let cells = Arc::new(cells);
            let reader = thread::spawn({
                let (cells, versions) = (cells.clone(), versions.clone());
                move || is_one_of(read(&cells, 0, "a"), &versions.each_ref().map(|version| &version[..]))
            });
            let mut writer = Writer::new(&cells, &mut state);
            let (at, _) = writer.find(0, &is_of("a")).unwrap();
            writer.write(at, &versions[1]).unwrap();
            writer.write(at, &versions[2]).unwrap();
            reader.join().unwrap();
        });
    }

    /// While the first record is read, it releases its second cell, and another record takes that.
    #[test]
    fn a_long_record_is_not_mixed_with_the_next() {
        explore(|| {
            let (cells, mut state) = table(16, 1);
            let long = record("a", 1, 2 * CELL_BYTES);
            let short = record("a", 2, CELL_BYTES);
            let other = record("b", 9, 2 * CELL_BYTES);
            Writer::new(&cells, &mut state).insert(0, &long).unwrap();
            let cells = Arc::new(cells);
            let reader = thread::spawn({
                let (cells, long, short) = (cells.clone(), long.clone(), short.clone());
                move || is_one_of(read(&cells, 0, "a"), &[&long, &short])
            });
            let mut writer = Writer::new(&cells, &mut state);
            let (at, _) = writer.find(0, &is_of("a")).unwrap();
            writer.write(at, &short).unwrap();
            writer.insert(1 << 24, &other).unwrap();
            reader.join().unwrap();
        });
    }

    /// The first user hash of a bucket in a table of 24 cells.
    fn bucket(n: u32) -> u32 {
        (n << 26).div_ceil(12)
    }

    /// A record that is moved while it is looked up is found. `before` fills the table, `change` moves the record "m", of the bucket
    /// of `user_hash`.
    fn is_found_while_it_moves(user_hash: u32, before: fn(&mut Writer<'_>), change: fn(&mut Writer<'_>)) {
        explore_with(2, move || {
            let (cells, mut state) = table(24, 0);
            before(&mut Writer::new(&cells, &mut state));
            let cells = Arc::new(cells);
            let reader = thread::spawn({
                let cells = cells.clone();
                move || is_one_of(read(&cells, user_hash, "m"), &[&moved()])
            });
            let mut writer = Writer::new(&cells, &mut state);
            let (from, _) = writer.find(user_hash, &is_of("m")).unwrap();
            change(&mut writer);
            let (to, _) = writer.find(user_hash, &is_of("m")).unwrap();
            assert_ne!(from, to, "this test is about a record that is moved");
            reader.join().unwrap();
        });
    }

    fn moved() -> Vec<u8> {
        record("m", 7, CELL_BYTES)
    }

    /// Inserts numbered records of a bucket.
    fn crowd(writer: &mut Writer<'_>, user_hash: u32, numbers: std::ops::Range<u8>) {
        for n in numbers {
            writer.insert(user_hash, &record(&n.to_string(), n, CELL_BYTES)).unwrap();
        }
    }

    /// Twelve records fill the neighbourhood of the first bucket, so that one of the second is moved.
    #[test]
    fn a_record_moved_out_of_a_full_neighbourhood_is_found() {
        let fill = |writer: &mut Writer<'_>| {
            writer.insert(bucket(1), &moved()).unwrap();
            crowd(writer, bucket(0), 0..11);
        };
        is_found_while_it_moves(bucket(1), fill, |writer| crowd(writer, bucket(0), 11..12));
    }

    /// The third record of the first bucket lies in a cell of the second, which needs it.
    #[test]
    fn a_record_that_is_driven_out_is_found() {
        let fill = |writer: &mut Writer<'_>| {
            crowd(writer, bucket(0), 0..2);
            writer.insert(bucket(0), &moved()).unwrap();
        };
        is_found_while_it_moves(bucket(0), fill, |writer| crowd(writer, bucket(1), 2..4));
    }

    /// That record returns to its bucket when a cell is free.
    #[test]
    fn a_record_that_returns_to_its_bucket_is_found() {
        let fill = |writer: &mut Writer<'_>| {
            crowd(writer, bucket(0), 0..2);
            writer.insert(bucket(0), &moved()).unwrap();
        };
        is_found_while_it_moves(bucket(0), fill, |writer| {
            let (at, _) = writer.find(bucket(0), &is_of("1")).unwrap();
            writer.remove(bucket(0), at);
        });
    }

    /// A reader reads twice while a writer works: whether it found the record, each time.
    fn read_twice(user_hash: u32, before: &[(u32, &str)], change: fn(&mut Writer<'_>), is_wrong: (bool, bool)) {
        let before: Vec<(u32, String)> =
            before.iter().map(|(user_hash, user)| (*user_hash, (*user).to_owned())).collect();
        explore_with(2, move || {
            let (cells, mut state) = table(24, 0);
            for (user_hash, user) in &before {
                Writer::new(&cells, &mut state).insert(*user_hash, &record(user, 1, CELL_BYTES)).unwrap();
            }
            let cells = Arc::new(cells);
            let reader = thread::spawn({
                let cells = cells.clone();
                move || {
                    let twice = [(); 2].map(|()| read(&cells, user_hash, "b"));
                    if let [Ok(first), Ok(second)] = twice {
                        assert_ne!((first.is_some(), second.is_some()), is_wrong, "it comes or goes once");
                    }
                }
            });
            change(&mut Writer::new(&cells, &mut state));
            reader.join().unwrap();
        });
    }

    /// The record "b" replaces another in a cell.
    fn replace(writer: &mut Writer<'_>, at: usize, user_hash: u32) {
        writer.remove(0, at);
        writer.insert(user_hash, &record("b", 3, CELL_BYTES)).unwrap();
    }

    const LOST: (bool, bool) = (true, false);

    /// A record that was found is found again, even by a reader that has read the bits for the former record of its cell.
    #[test]
    fn a_record_that_was_found_stays_found() {
        read_twice(0, &[(0, "f"), (0, "a")], |writer| replace(writer, 1, 0), LOST);
    }

    #[test]
    fn a_record_with_a_tag_of_its_own_stays_found() {
        read_twice(1, &[(0, "f"), (0, "a")], |writer| replace(writer, 1, 1), LOST);
    }

    #[test]
    fn a_record_outside_its_bucket_stays_found() {
        read_twice(0, &[(0, "f"), (0, "g"), (0, "a")], |writer| replace(writer, 2, 0), LOST);
    }

    /// A record that was gone is not found again, also when one with the same tag was removed before it.
    #[test]
    #[ignore = "takes some minutes"]
    fn a_record_that_is_gone_stays_gone() {
        let remove_both = |writer: &mut Writer<'_>| {
            writer.remove(0, 0);
            writer.remove(0, 1);
        };
        read_twice(0, &[(0, "f"), (0, "b")], remove_both, (false, true));
    }

    /// While a record is removed and another takes its cell, a reader finds the first or none, never the second.
    #[test]
    fn a_removed_record_is_whole_or_gone() {
        explore(|| {
            let (cells, mut state) = table(16, 0);
            let (gone, next) = (record("a", 1, CELL_BYTES), record("b", 2, CELL_BYTES));
            Writer::new(&cells, &mut state).insert(0, &gone).unwrap();
            let cells = Arc::new(cells);
            let reader = thread::spawn({
                let (cells, gone) = (cells.clone(), gone.clone());
                move || match read(&cells, 0, "a") {
                    Ok(Some(found)) => assert_eq!(found, gone),
                    Ok(None) | Err(RetryRead) => {}
                }
            });
            let mut writer = Writer::new(&cells, &mut state);
            let (at, _) = writer.find(0, &is_of("a")).unwrap();
            writer.remove(0, at);
            writer.insert(0, &next).unwrap();
            reader.join().unwrap();
        });
    }
}
