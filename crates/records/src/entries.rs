//! The packing of values, the entries that a record has in an index, and the content of a cursor: the same for all engines.

use bytes::Bytes;
use restante_lmdb::key::{KEY_BYTES_MAX, KeyBuf, Pack, take_byte, take_number, take_text};
use smallvec::SmallVec;

use crate::{
    Cursor, Error, INDEX_ENTRIES_MAX, INDEX_VALUES_BYTES_MAX, Index, IndexSchema, Kind, Properties, Property,
    RecordId, TEXT_BYTES_MAX, Value,
};

/// The byte before a text. A number has its length there, from 0 to 8, so numbers sort before texts.
const TEXT: u8 = 9;
/// The first byte of a value that has no number yet. No such value is ever stored; if one were, reading it would fail.
const UNRESOLVED: u8 = 10;
/// The longest packed number.
const NUMBER_BYTES_MAX: usize = 9;
/// The longest cursor: kind, index, values, id.
const CURSOR_BYTES_MAX: usize = 2 + INDEX_VALUES_BYTES_MAX + NUMBER_BYTES_MAX;
/// The approximate size of a property and its value: determines how many are reserved at once.
const PAIR_BYTES: usize = 4;
const PAIRS_EXPECTED: usize = 16;
/// What engines put around the values in the key of an entry: account, kind, index, generation, id.
const AROUND_VALUES_BYTES_MAX: usize = 5 + 1 + 1 + NUMBER_BYTES_MAX + NUMBER_BYTES_MAX;
const _: () = assert!(
    INDEX_VALUES_BYTES_MAX + AROUND_VALUES_BYTES_MAX <= KEY_BYTES_MAX,
    "the key of an entry fits LMDB"
);

/// The values of one entry of an index, one for each part.
pub(crate) type Entry = SmallVec<[Value; 2]>;

/// Appends a value: a packed number, or the byte [`TEXT`] and a text. Packed values sort as the values do, regardless of what
/// follows.
pub(crate) fn pack_value(out: &mut impl Pack, value: &Value) {
    match value {
        Value::Number(number) => out.put_number(*number),
        Value::Text(text) => {
            out.put_bytes(&[TEXT]);
            out.put_text(text);
        }
        Value::Created(_) | Value::Revision => {
            debug_assert!(false, "a commit has its ids and its revision before anything is packed");
            out.put_bytes(&[UNRESOLVED]);
        }
    }
}

/// Appends the values of an entry, or its leading ones.
pub(crate) fn pack_values<'a>(out: &mut impl Pack, values: impl IntoIterator<Item = &'a Value>) {
    for value in values {
        pack_value(out, value);
    }
}

/// Takes a value that [`pack_value`] appended from the front; `None` when the bytes are something else, or a text is too long.
pub(crate) fn take_value(bytes: &mut &[u8]) -> Option<Value> {
    if bytes.first() != Some(&TEXT) {
        return take_number(bytes).map(Value::Number);
    }
    take_byte(bytes)?;
    let text = take_text(bytes)?;
    (text.len() <= TEXT_BYTES_MAX).then(|| Value::Text(Bytes::from(text)))
}

/// The number of bytes that [`pack_value`] appends; for a value that has no number yet, the most that a number needs.
fn packed_bytes(value: &Value) -> usize {
    match value {
        Value::Number(number) => 1 + (64 - number.leading_zeros() as usize).div_ceil(8),
        Value::Text(text) => 1 + text.len() + text.iter().filter(|byte| **byte == 0).count() + 2,
        Value::Created(_) | Value::Revision => NUMBER_BYTES_MAX,
    }
}

/// Appends properties: for each value, in ascending order, the property's number and the value.
pub(crate) fn pack_properties(out: &mut impl Pack, properties: &Properties) {
    for (property, value) in properties.iter() {
        out.put_bytes(&[property.0]);
        pack_value(out, value);
    }
}

/// Takes what [`pack_properties`] appended, up to the end of the bytes; `None` when they are something else.
pub(crate) fn take_properties(bytes: &mut &[u8]) -> Option<Properties> {
    let mut pairs: Vec<(Property, Value)> =
        Vec::with_capacity((bytes.len() / PAIR_BYTES).min(PAIRS_EXPECTED));
    while !bytes.is_empty() {
        let property = Property(take_byte(bytes)?);
        let pair = (property, take_value(bytes)?);
        if pairs.last().is_some_and(|last| *last >= pair) {
            return None; // not ascending, or a duplicate
        }
        pairs.push(pair);
    }
    Some(Properties::of_ascending(pairs))
}

/// How many entries a record with these properties has in an index.
fn entry_count(index: &IndexSchema, properties: &Properties) -> usize {
    let mut count = 1_usize;
    for part in &index.parts {
        count = count.saturating_mul(properties.values(*part).count());
    }
    count
}

/// Refuses properties that make too many entries in an index, or an entry whose values are too long for a key.
pub(crate) fn check_entries(index: &IndexSchema, properties: &Properties) -> Result<(), Error> {
    let count = entry_count(index, properties);
    if count > INDEX_ENTRIES_MAX {
        return Err(Error::invalid(format!(
            "a record would have {count} entries in the index {}: at most {INDEX_ENTRIES_MAX} are possible",
            index.name
        )));
    }
    let longest_of = |part: &Property| properties.values(*part).map(packed_bytes).max().unwrap_or(0);
    let longest: usize = index.parts.iter().map(longest_of).sum();
    if count > 0 && longest > INDEX_VALUES_BYTES_MAX {
        return Err(too_long(index, longest));
    }
    Ok(())
}

/// Refuses values that together are longer than those of any entry can be.
pub(crate) fn check_values<'a>(
    index: &IndexSchema,
    values: impl IntoIterator<Item = &'a Value>,
) -> Result<(), Error> {
    let bytes: usize = values.into_iter().map(packed_bytes).sum();
    if bytes > INDEX_VALUES_BYTES_MAX { Err(too_long(index, bytes)) } else { Ok(()) }
}

fn too_long(index: &IndexSchema, bytes: usize) -> Error {
    Error::invalid(format!(
        "values of {bytes} bytes are too long for the index {}: at most {INDEX_VALUES_BYTES_MAX} are possible",
        index.name
    ))
}

/// The entries of a record in an index: each combination of the values of its parts, ascending; none when a part has no value.
///
/// # Errors
/// `Invalid` when [`check_entries`] fails: the properties may have been stored before this index existed.
pub(crate) fn entries(index: &IndexSchema, properties: &Properties) -> Result<Vec<Entry>, Error> {
    check_entries(index, properties)?;
    let mut entries = vec![Entry::new()];
    for part in &index.parts {
        let mut longer = Vec::with_capacity(entries.len());
        for entry in &entries {
            for value in properties.values(*part) {
                let mut entry = entry.clone();
                entry.push(value.clone());
                longer.push(entry);
            }
        }
        entries = longer;
    }
    Ok(entries)
}

/// A position in an index: an entry, whether it still exists or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryKey {
    /// The values of all parts.
    pub(crate) values: Entry,
    /// The record.
    pub(crate) id: RecordId,
}

/// The cursor of a position: kind, index, the packed values, the packed id.
pub(crate) fn cursor(kind: Kind, index: &IndexSchema, values: &[Value], id: RecordId) -> Cursor {
    let mut bytes = KeyBuf::new();
    bytes.put_bytes(&[kind.0, index.index.0]);
    pack_values(&mut bytes, values);
    bytes.put_number(id.0);
    Cursor(Bytes::copy_from_slice(&bytes))
}

/// The position of a cursor.
///
/// # Errors
/// `Invalid` when the cursor is for another kind or index, or is malformed.
pub(crate) fn place_of(cursor: &Cursor, kind: Kind, index: &IndexSchema) -> Result<EntryKey, Error> {
    let place = take_place(&cursor.0, kind, index);
    place.ok_or_else(|| Error::invalid(format!("the cursor is not of the index {}", index.name)))
}

fn take_place(mut bytes: &[u8], kind: Kind, index: &IndexSchema) -> Option<EntryKey> {
    let bytes = &mut bytes;
    let is_of_index =
        bytes.len() <= CURSOR_BYTES_MAX && take_byte(bytes)? == kind.0 && take_byte(bytes)? == index.index.0;
    if !is_of_index {
        return None;
    }
    let mut values = Entry::new();
    for _ in &index.parts {
        values.push(take_value(bytes)?);
    }
    check_values(index, &values).ok()?;
    let id = RecordId(take_number(bytes)?);
    bytes.is_empty().then_some(EntryKey { values, id })
}

/// Any bytes as packed properties and as cursors: see [`crate::fuzz_packed`].
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Some(properties) = take_properties(&mut &*bytes) {
        let mut again = Vec::new();
        pack_properties(&mut again, &properties);
        assert_eq!(again, bytes, "sound properties are written again as they were");
    }
    let (Some(kind), Some(index)) = (bytes.first(), bytes.get(1)) else { return };
    let cursor_of_bytes = Cursor(Bytes::copy_from_slice(bytes));
    for parts in [&[Property(1)][..], &[Property(1), Property(2)], &[Property(1), Property(2), Property(3)]] {
        let index = IndexSchema::ordered(Index(*index), "fuzzed", parts);
        let Ok(place) = place_of(&cursor_of_bytes, Kind(*kind), &index) else { continue };
        let again = cursor(Kind(*kind), &index, &place.values, place.id);
        assert_eq!(again, cursor_of_bytes, "a sound cursor is written again as it was");
    }
}

#[cfg(test)]
mod tests;
