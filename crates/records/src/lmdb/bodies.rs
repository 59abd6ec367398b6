//! Bodies as rows: compressed on the thread of the committer, and decompressed on the thread of the reader.
//!
//! A row consists of the packed number of the dictionary ([`PLAIN`] when the body is not compressed), the packed count of the
//! blobs that the body refers to, their ids of 32 bytes each, and the bytes.

use std::{
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use restante_core::BlobId;
use restante_lmdb::{
    Direction, Store, View,
    key::{Pack, after_prefix, take_bytes, take_number},
};

use super::{
    dictionary::{self, DICTIONARIES_MAX, Dictionary, EMPTY},
    schema::{BodyNumber, META, META_DICTIONARY},
    training,
};
use crate::{BODY_BLOBS_MAX, BODY_BYTES_MAX, Body, Error};

/// The dictionary number in a row when the body is not compressed.
const PLAIN: u64 = 0;
/// A blob id in a row.
const BLOB_BYTES: usize = 32;

/// The dictionaries of a store, and their training.
pub(super) struct Bodies {
    shared: Arc<Shared>,
}

/// What the training of a dictionary shares with the readers and writers of bodies.
pub(super) struct Shared {
    /// All dictionaries, ascending by number. Encoders use the last one; the others are needed to read older bodies.
    pub(super) dictionaries: ArcSwap<Vec<Arc<Dictionary>>>,
    is_compressed: bool,
    /// From this body number on, the next dictionary is due.
    pub(super) due: AtomicU64,
    /// Whether a training is running.
    pub(super) is_training: AtomicBool,
    /// The store that a training reads from and writes to; `None` after the close.
    pub(super) store: Mutex<Option<Store>>,
}

impl Bodies {
    /// Reads the dictionaries of a store.
    ///
    /// # Errors
    /// `Corrupt` when one is damaged, those of the store.
    pub(super) fn open(store: &Store, is_compressed: bool) -> Result<Self, Error> {
        let (dictionaries, due) = store.read(|view| Ok((read_dictionaries(view)?, training::due(view)?)))?;
        let due = if is_compressed { due } else { training::NEVER };
        let shared = Shared {
            dictionaries: ArcSwap::from_pointee(dictionaries),
            is_compressed,
            due: AtomicU64::new(due),
            is_training: AtomicBool::new(false),
            store: Mutex::new(Some(store.clone())),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Encodes a body as a row, on any thread.
    pub(super) fn encode(&self, body: &Body) -> Vec<u8> {
        if self.shared.is_compressed {
            let dictionaries = self.shared.dictionaries.load();
            if let Some(dictionary) = dictionaries.last() {
                let mut row = begin_row(dictionary.number(), &body.blobs);
                if dictionary.compress(&body.bytes, &mut row) {
                    return row;
                }
            }
        }
        let mut row = begin_row(PLAIN, &body.blobs);
        row.extend_from_slice(&body.bytes);
        row
    }

    /// Decodes the body in a row.
    ///
    /// # Errors
    /// `Corrupt` when the row is damaged or its dictionary is missing.
    pub(super) fn decode(&self, row: &[u8]) -> Result<Body, Error> {
        self.shared.decode(row)
    }

    /// Notes that bodies up to this one were written. Starts the training of a dictionary when one is due.
    pub(super) fn wrote(&self, last: BodyNumber) {
        training::start_if_due(&self.shared, last);
    }

    /// The number of dictionaries besides the empty one.
    pub(super) fn dictionaries(&self) -> u64 {
        self.shared.dictionaries.load().len().saturating_sub(1) as u64
    }

    /// The numbers of those dictionaries.
    pub(super) fn dictionary_numbers(&self) -> impl Iterator<Item = u64> {
        let dictionaries = Vec::clone(&self.shared.dictionaries.load());
        dictionaries.into_iter().map(|dictionary| dictionary.number()).filter(|number| *number != EMPTY)
    }

    /// The total length of those dictionaries.
    pub(super) fn dictionary_bytes(&self) -> u64 {
        self.shared.dictionaries.load().iter().map(|dictionary| dictionary.len() as u64).sum()
    }

    /// Releases the store. A running training ends by itself; this only waits for its current read or write.
    pub(super) fn close(&self) {
        training::close(&self.shared);
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Bodies {
    fn drop(&mut self) {
        self.close(); // a training must not keep the store open
    }
}

impl Shared {
    pub(super) fn decode(&self, row: &[u8]) -> Result<Body, Error> {
        let row = split(row)?;
        let blobs = row.blobs().collect();
        if row.dictionary == PLAIN {
            return Ok(Body { bytes: Bytes::copy_from_slice(row.bytes), blobs });
        }
        let dictionaries = self.dictionaries.load();
        let dictionary = dictionaries.iter().find(|known| known.number() == row.dictionary);
        let dictionary = dictionary.ok_or_else(|| damaged("its dictionary is not there"))?;
        let bytes = dictionary.decompress(row.bytes).map_err(damaged)?;
        Ok(Body { bytes, blobs })
    }
}

/// The blobs that the body of a row refers to.
///
/// # Errors
/// `Corrupt` when the row is damaged.
pub(super) fn blobs_of(row: &[u8]) -> Result<impl Iterator<Item = BlobId> + '_, Error> {
    Ok(split(row)?.blobs())
}

/// The parts of a row.
struct Row<'r> {
    dictionary: u64,
    blobs: &'r [u8],
    bytes: &'r [u8],
}

impl<'r> Row<'r> {
    fn blobs(&self) -> impl Iterator<Item = BlobId> + use<'r> {
        self.blobs.chunks_exact(BLOB_BYTES).filter_map(blob_id)
    }
}

fn blob_id(bytes: &[u8]) -> Option<BlobId> {
    bytes.try_into().ok().map(BlobId)
}

fn begin_row(dictionary: u64, blobs: &[BlobId]) -> Vec<u8> {
    let mut row = Vec::new();
    row.put_number(dictionary);
    row.put_number(blobs.len() as u64);
    for blob in blobs {
        row.put_bytes(&blob.0);
    }
    row
}

fn split(row: &[u8]) -> Result<Row<'_>, Error> {
    let mut rest = row;
    let head = take_number(&mut rest).zip(take_number(&mut rest));
    let (dictionary, count) = head.ok_or_else(|| damaged("it has no sound header"))?;
    if count > BODY_BLOBS_MAX as u64 {
        return Err(damaged("it refers to more blobs than a body may"));
    }
    let blobs = take_bytes(&mut rest, count as usize * BLOB_BYTES);
    let blobs = blobs.ok_or_else(|| damaged("it ends within the blobs that it refers to"))?;
    if rest.len() > BODY_BYTES_MAX {
        return Err(damaged("it is longer than bodies may be"));
    }
    Ok(Row { dictionary, blobs, bytes: rest })
}

fn damaged(what: &str) -> Error {
    Error::corrupt(format!("the row of a body is damaged: {what}"))
}

fn read_dictionaries(view: &View<'_>) -> Result<Vec<Arc<Dictionary>>, Error> {
    let empty = Dictionary::new(EMPTY, &[]);
    let empty = empty.ok_or_else(|| Error::unavailable("there is no memory for compression"))?;
    let mut dictionaries = vec![Arc::new(empty)];
    let end = after_prefix(META_DICTIONARY);
    let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut rows = view.range(META, Bound::Included(META_DICTIONARY), to, Direction::Ascending)?;
    while let Some((key, row)) = rows.next()? {
        if dictionaries.len() >= DICTIONARIES_MAX {
            let what = format!("there are more than {DICTIONARIES_MAX} dictionaries of compressed bodies");
            return Err(Error::corrupt(what));
        }
        dictionaries.push(Arc::new(dictionary::decode(key, row)?));
    }
    Ok(dictionaries)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use restante_core::ErrorKind;
    use restante_lmdb::Options;
    use tempfile::{TempDir, tempdir};

    use super::*;
    use crate::lmdb::schema::{TABLES, dictionary_key};

    fn open(is_compressed: bool) -> (TempDir, Store, Bodies) {
        let folder = tempdir().unwrap();
        let store = Store::open(folder.path(), &TABLES, Options::default()).unwrap();
        let bodies = Bodies::open(&store, is_compressed).unwrap();
        (folder, store, bodies)
    }

    fn text(words: usize) -> Bytes {
        "a body of words that come again ".repeat(words).into()
    }

    fn blob(n: u8) -> BlobId {
        BlobId([n; 32])
    }

    #[test]
    fn bodies_and_their_blobs_read_back_whether_they_are_compressed_or_not() {
        let (_folder, _store, compressing) = open(true);
        let (_folder, _store, plain) = open(false);
        for blobs in [vec![], vec![blob(1)], (0..=255).map(blob).collect::<Vec<_>>()] {
            for bytes in [Bytes::new(), Bytes::from_static(b"x"), text(9), text(BODY_BYTES_MAX / 32)] {
                let body = Body { bytes, blobs: blobs.clone() };
                for row in [compressing.encode(&body), plain.encode(&body)] {
                    for reader in [&compressing, &plain] {
                        assert_eq!(reader.decode(&row).unwrap(), body);
                    }
                    assert_eq!(blobs_of(&row).unwrap().collect::<Vec<_>>(), blobs);
                }
            }
        }
    }

    #[test]
    fn a_body_is_compressed_only_when_that_is_asked_for() {
        let (_folder, _store, compressing) = open(true);
        let (_folder, _store, plain) = open(false);
        let body = Body::new(text(20));
        assert!(compressing.encode(&body).len() < 100);
        assert_eq!(plain.encode(&body).len(), 2 + body.bytes.len());
        plain.wrote(BodyNumber(1_000_000));
        assert!(!plain.shared().is_training.load(std::sync::atomic::Ordering::SeqCst));
    }

    #[test]
    fn a_row_of_a_dictionary_that_is_not_there_is_corrupt() {
        let (_folder, _store, bodies) = open(true);
        let mut row = bodies.encode(&Body::new(text(20)));
        row[1] = 14;
        let error = bodies.decode(&row).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("dictionary"), "{error}");
    }

    #[test]
    fn a_store_with_a_damaged_dictionary_is_not_opened() {
        let (_folder, store, bodies) = open(true);
        drop(bodies);
        let put = |row: Vec<u8>| {
            store.write_blocking(move |batch| {
                batch.put(META, &dictionary_key(2), &row);
                Ok(())
            })
        };
        put(dictionary::encode(b"bytes that bodies begin with")).unwrap();
        assert_eq!(Bodies::open(&store, true).unwrap().dictionaries(), 1);
        put(b"1234bytes that bodies begin with".to_vec()).unwrap();
        assert_eq!(Bodies::open(&store, true).err().unwrap().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_store_with_too_many_dictionaries_is_not_opened() {
        let (_folder, store, bodies) = open(true);
        drop(bodies);
        let row = dictionary::encode(b"bytes that bodies begin with");
        let put = move |batch: &mut restante_lmdb::Batch<'_>| {
            (2..=20).for_each(|number| batch.put(META, &dictionary_key(number), &row));
            Ok(())
        };
        store.write_blocking(put).unwrap();
        assert_eq!(Bodies::open(&store, true).err().unwrap().kind(), ErrorKind::Corrupt);
    }

    proptest! {
        #[test]
        fn damaged_rows_never_panic_and_never_grow(
            noise in prop::collection::vec(any::<u8>(), 0..80), words in 1_usize..20, at in 0_usize..80, byte: u8,
        ) {
            static OPENED: LazyLock<(TempDir, Store, Bodies)> = LazyLock::new(|| open(true));
            let bodies = &OPENED.2;
            let mut row = bodies.encode(&Body { bytes: text(words), blobs: vec![blob(3)] });
            let at = at % row.len();
            row[at] = byte;
            for row in [&noise[..], &row, &row[..at]] {
                if let Ok(body) = bodies.decode(row) {
                    prop_assert!(body.bytes.len() <= BODY_BYTES_MAX);
                }
                let _ = blobs_of(row).map(Iterator::count);
            }
        }
    }
}
