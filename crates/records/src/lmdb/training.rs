//! When and how a dictionary is made: in the background, from bodies that are read back from the store.
//!
//! Body numbers rise with every body that is written, so they show, also after a restart, whether a dictionary is due. The row
//! [`META_EPOCHS`] says how many of the [`EPOCHS`] are done, with or without a new dictionary.

use std::{
    ops::{Bound, Range},
    sync::{Arc, atomic::Ordering},
    thread,
};

use bytes::Bytes;
use restante_lmdb::{Direction, Store, View};
use tracing::{debug, info, warn};

use super::{
    bodies::Shared,
    dictionary::{self, DICTIONARIES_MAX, DICTIONARY_BYTES_MAX, Dictionary, Samples},
    schema::{BODY, BodyNumber, META, body_key, corrupt, decode_number, dictionary_key, encode_number},
};
use crate::Error;

/// The key in the meta table of the number of finished epochs: a packed number.
pub(super) const META_EPOCHS: &[u8] = b"dictionary epochs";
/// A body number that is never reached.
pub(super) const NEVER: u64 = u64::MAX;

/// A dictionary that is trained after this many bodies were written.
struct Epoch {
    bodies: u64,
    dictionary_bytes: usize,
}

/// The epochs. The first comes early, since bodies stored without a dictionary stay twice as large: 512 bodies of some hundred
/// bytes are just enough for 16 KiB. A dictionary four times as long saves 5 % more, and needs some thousand samples. The last
/// one is trained with what a store of some size really contains.
const EPOCHS: [Epoch; 3] = [
    Epoch { bodies: 512, dictionary_bytes: 16 << 10 },
    Epoch { bodies: 8_192, dictionary_bytes: DICTIONARY_BYTES_MAX },
    Epoch { bodies: 131_072, dictionary_bytes: DICTIONARY_BYTES_MAX },
];

/// The most samples: 3,000 were enough for 64 KiB.
const SAMPLES_MAX: u64 = 4_096;
/// How many samples one view reads, so that it takes only about a millisecond.
const VIEW_SAMPLES: u64 = 256;
/// One in this many samples is held out, to judge a new dictionary by bodies that it was not trained with.
const HELD_OUT_EVERY: usize = 8;
/// A new dictionary must save at least one part in this many: it uses disk space and memory as long as the store exists.
const SAVING_MIN: usize = 50;

/// The body number from which on the next dictionary is due.
pub(super) fn due(view: &View<'_>) -> Result<u64, Error> {
    let done = match view.get(META, META_EPOCHS)? {
        Some(value) => decode_number(value).ok_or_else(|| corrupt(META, META_EPOCHS))?,
        None => 0,
    };
    Ok(due_after(done))
}

fn due_after(epochs_done: u64) -> u64 {
    let next = usize::try_from(epochs_done).ok().and_then(|done| EPOCHS.get(done));
    next.map_or(NEVER, |epoch| epoch.bodies)
}

/// Starts a training if one is due, unless one is running.
pub(super) fn start_if_due(shared: &Arc<Shared>, last: BodyNumber) {
    let is_due = last.0 >= shared.due.load(Ordering::Relaxed);
    if !is_due || shared.due.swap(NEVER, Ordering::Relaxed) == NEVER {
        return; // another thread has started it
    }
    shared.is_training.store(true, Ordering::SeqCst);
    let trained = shared.clone();
    let spawned = thread::Builder::new().name("dictionary".into()).spawn(move || {
        run(&trained, last);
        trained.is_training.store(false, Ordering::SeqCst);
    });
    if let Err(error) = spawned {
        warn!(%error, "no thread for the training of a dictionary");
        shared.is_training.store(false, Ordering::SeqCst);
    }
}

/// Takes the store away from a training, which then ends by itself.
pub(super) fn close(shared: &Shared) {
    shared.store.lock().take();
}

/// Trains the dictionary of the last epoch that has been reached.
fn run(shared: &Shared, last: BodyNumber) {
    let begun = EPOCHS.iter().take_while(|epoch| epoch.bodies <= last.0).count();
    let Some(epoch) = begun.checked_sub(1).and_then(|place| EPOCHS.get(place)) else { return };
    match train(shared, epoch, begun as u64, last) {
        Ok(Outcome::Done) => shared.due.store(due_after(begun as u64), Ordering::Relaxed),
        Ok(Outcome::Closed) => debug!("the training of a dictionary was ended by the close"),
        // The training is retried after the store is opened again.
        Err(error) => warn!(%error, "no dictionary was made: bodies are compressed as before"),
    }
}

enum Outcome {
    Done,
    Closed,
}

fn train(shared: &Shared, epoch: &Epoch, epochs_done: u64, last: BodyNumber) -> Result<Outcome, Error> {
    let Some((samples, held_out)) = gather(shared, last)? else { return Ok(Outcome::Closed) };
    let trained = samples.train(epoch.dictionary_bytes);
    let better = trained.and_then(|bytes| make_better(shared, &bytes, &held_out));
    let Some(done) = with_store(shared, |store| keep(store, better.as_ref(), epochs_done)) else {
        return Ok(Outcome::Closed);
    };
    done?;
    if let Some((_, dictionary)) = better {
        info!(
            number = dictionary.number(),
            bytes = dictionary.len(),
            samples = samples.len(),
            "new dictionary of bodies"
        );
        let before = shared.dictionaries.load_full();
        let mut dictionaries = Vec::clone(&before);
        dictionaries.push(Arc::new(dictionary));
        shared.dictionaries.store(Arc::new(dictionaries));
        before.iter().for_each(|dictionary| dictionary.retire());
    }
    Ok(Outcome::Done)
}

/// Runs `work` on the store; `None` when it was closed. Closing waits for it.
fn with_store<T>(shared: &Shared, work: impl FnOnce(&Store) -> T) -> Option<T> {
    let store = shared.store.lock();
    store.as_ref().map(work)
}

/// Bodies from the whole store at equal distances, the second part held out. `None` when the store was closed meanwhile.
fn gather(shared: &Shared, last: BodyNumber) -> Result<Option<(Samples, Samples)>, Error> {
    let step = last.0.div_ceil(SAMPLES_MAX).max(1);
    let (mut samples, mut held_out) = (Samples::default(), Samples::default());
    let mut next = 1;
    while next <= last.0 {
        let end = next.saturating_add(step * VIEW_SAMPLES).min(last.0 + 1);
        let read = |store: &Store| store.read(|view| read_bodies(view, shared, next..end, step));
        let Some(bodies) = with_store(shared, read) else { return Ok(None) };
        for body in bodies? {
            let is_held_out = (samples.len() + held_out.len()) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1;
            if is_held_out {
                held_out.push(&body)
            } else {
                samples.push(&body)
            };
        }
        next = end;
    }
    Ok(Some((samples, held_out)))
}

/// The first body in each `step` numbers. Damaged ones are skipped: the check reports them.
fn read_bodies(
    view: &View<'_>,
    shared: &Shared,
    numbers: Range<u64>,
    step: u64,
) -> Result<Vec<Bytes>, Error> {
    let mut bodies = Vec::new();
    let mut next = numbers.start;
    while next < numbers.end {
        let (from, to) = (body_key(BodyNumber(next)), body_key(BodyNumber(next + step)));
        let mut rows =
            view.range(BODY, Bound::Included(&from), Bound::Excluded(&to), Direction::Ascending)?;
        let body = rows.next()?.and_then(|(_, row)| shared.decode(row).ok());
        bodies.extend(body.map(|body| body.bytes));
        next += step;
    }
    Ok(bodies)
}

/// The dictionary of these bytes with the next number, if it compresses the held-out bodies better than the present one.
fn make_better(shared: &Shared, bytes: &[u8], held_out: &Samples) -> Option<(Vec<u8>, Dictionary)> {
    let dictionaries = shared.dictionaries.load();
    let present = dictionaries.last()?;
    if dictionaries.len() >= DICTIONARIES_MAX {
        return None;
    }
    let new = Dictionary::new(present.number() + 1, bytes)?;
    let (before, after) = (held_out.stored_bytes(present), held_out.stored_bytes(&new));
    let is_better = after + before / SAVING_MIN < before;
    debug!(before, after, is_better, "a dictionary was trained");
    is_better.then(|| (dictionary::encode(bytes), new))
}

/// Writes the new dictionary, if there is one, and the number of finished epochs.
fn keep(store: &Store, dictionary: Option<&(Vec<u8>, Dictionary)>, epochs_done: u64) -> Result<(), Error> {
    let row = dictionary.map(|(row, dictionary)| (dictionary_key(dictionary.number()), row.clone()));
    store.write_blocking(move |batch| {
        if let Some((key, row)) = &row {
            batch.put(META, key, row);
        }
        batch.put(META, META_EPOCHS, &encode_number(epochs_done));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use restante_lmdb::Options;
    use tempfile::{TempDir, tempdir};

    use super::*;
    use crate::{
        Body,
        lmdb::{bodies::Bodies, schema::TABLES},
    };

    fn open(folder: &Path) -> (Store, Bodies) {
        let store = Store::open(folder, &TABLES, Options::default()).unwrap();
        let bodies = Bodies::open(&store, true).unwrap();
        (store, bodies)
    }

    fn fresh() -> (TempDir, Store, Bodies) {
        let folder = tempdir().unwrap();
        let (store, bodies) = open(folder.path());
        (folder, store, bodies)
    }

    /// Numbers that look random.
    fn scatter(n: u64) -> u64 {
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    /// Like the emails of the seed: 184 bytes that differ in an id of 16 bytes and a few numbers.
    fn near_twin(n: u64) -> Vec<u8> {
        let mut mail = vec![0_u8; 184];
        mail[8..24].copy_from_slice(&u128::from(scatter(n)).wrapping_mul(0x1_0001_0001).to_le_bytes());
        mail[40..48].copy_from_slice(&n.to_le_bytes());
        mail[60..72].copy_from_slice(b"Some subject");
        mail[80..87].copy_from_slice(b"summary");
        mail[100..150].copy_from_slice(b"Subject: Some subject\nTo: to@example.org\n\nThe body");
        mail
    }

    fn noise(n: u64) -> Vec<u8> {
        (0..25).flat_map(|word| scatter(n * 1_000 + word).to_le_bytes()).collect()
    }

    fn other_mail(n: u64) -> Vec<u8> {
        format!("[{}, \"a text of quite another form than all those before, number {n}\"]", scatter(n))
            .into_bytes()
    }

    /// Writes bodies with these numbers and notifies the training.
    fn write(
        store: &Store,
        bodies: &Bodies,
        numbers: std::ops::RangeInclusive<u64>,
        body: impl Fn(u64) -> Vec<u8>,
    ) {
        let last = *numbers.end();
        let rows: Vec<_> =
            numbers.map(|n| (body_key(BodyNumber(n)), bodies.encode(&Body::new(body(n))))).collect();
        let written = store.write_blocking(move |batch| {
            rows.iter().for_each(|(key, row)| batch.put(BODY, key, row));
            Ok(())
        });
        written.unwrap();
        bodies.wrote(BodyNumber(last));
    }

    fn wait_for_the_end(bodies: &Bodies) {
        for _ in 0..6_000 {
            if !bodies.shared().is_training.load(Ordering::SeqCst) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the training does not end");
    }

    fn assert_reads_back(store: &Store, bodies: &Bodies, n: u64, body: &[u8]) {
        let read = store.read(|view| {
            let row = view.get(BODY, &body_key(BodyNumber(n)))?.expect("it was written");
            bodies.decode(row)
        });
        assert_eq!(read.unwrap().bytes, body, "{n}");
    }

    fn due_of(store: &Store) -> u64 {
        store.read(due).unwrap()
    }

    #[test]
    fn bodies_that_are_nearly_alike_get_a_dictionary_and_shrink_to_what_differs() {
        let (folder, store, bodies) = fresh();
        write(&store, &bodies, 1..=511, near_twin);
        assert!(!bodies.shared().is_training.load(Ordering::SeqCst), "too early");
        write(&store, &bodies, 512..=512, near_twin);
        wait_for_the_end(&bodies);
        assert_eq!(bodies.dictionaries(), 1);
        write(&store, &bodies, 513..=600, near_twin);
        let row = bodies.encode(&Body::new(near_twin(77_777)));
        assert!(row.len() < 50, "{} bytes of 184", row.len());
        drop((store, bodies));
        let (store, bodies) = open(folder.path());
        assert_eq!((bodies.dictionaries(), due_of(&store)), (1, 8_192), "nothing is trained twice");
        for n in [1, 511, 512, 513, 600] {
            assert_reads_back(&store, &bodies, n, &near_twin(n));
        }
    }

    #[test]
    fn bodies_that_nothing_helps_get_no_dictionary_and_the_epoch_is_done() {
        for body in [noise as fn(u64) -> Vec<u8>, |n| vec![n as u8; (n % 4) as usize], |_| Vec::new()] {
            let (_folder, store, bodies) = fresh();
            write(&store, &bodies, 1..=600, body);
            wait_for_the_end(&bodies);
            assert_eq!((bodies.dictionaries(), due_of(&store)), (0, 8_192));
            write(&store, &bodies, 601..=601, body);
            assert!(!bodies.shared().is_training.load(Ordering::SeqCst), "the next epoch has not come");
            assert_reads_back(&store, &bodies, 600, &body(600));
        }
    }

    #[test]
    fn a_later_dictionary_is_used_when_it_is_better_and_what_was_written_before_stays_readable() {
        let (_folder, store, bodies) = fresh();
        write(&store, &bodies, 1..=600, near_twin);
        wait_for_the_end(&bodies);
        let before = bodies.encode(&Body::new(other_mail(5)));
        write(&store, &bodies, 601..=8_192, other_mail);
        wait_for_the_end(&bodies);
        assert_eq!((bodies.dictionaries(), due_of(&store)), (2, 131_072));
        let after = bodies.encode(&Body::new(other_mail(5)));
        assert!(after.len() < before.len(), "{} then {}", before.len(), after.len());
        write(&store, &bodies, 8_193..=8_200, near_twin);
        for n in [1, 600, 8_200] {
            assert_reads_back(&store, &bodies, n, &near_twin(n));
        }
        assert_reads_back(&store, &bodies, 601, &other_mail(601));
        assert_eq!(bodies.decode(&before).unwrap(), bodies.decode(&after).unwrap());
    }

    #[test]
    fn many_bodies_at_once_lead_to_the_last_epoch_that_has_come() {
        let (_folder, store, bodies) = fresh();
        write(&store, &bodies, 9_000..=9_600, near_twin); // earlier ones do not exist
        wait_for_the_end(&bodies);
        assert_eq!((bodies.dictionaries(), due_of(&store)), (1, 131_072));
    }

    #[test]
    fn a_close_or_a_drop_lets_the_store_go_in_the_middle_of_a_training() {
        let folder = tempdir().unwrap();
        for round in 0..4 {
            let (store, bodies) = open(folder.path()); // fails while the store is still open elsewhere
            write(&store, &bodies, 1..=3_000, noise);
            if round % 2 == 0 {
                bodies.close();
                bodies.close();
            }
        }
        assert!(due_of(&open(folder.path()).0) <= 8_192, "broken off or done, never both");
    }
}
