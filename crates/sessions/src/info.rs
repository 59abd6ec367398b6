//! What a door or a feature remembers about a session: a small map from typed keys to values.
//!
//! Up to [`LISTED_MAX`] entries are stored in the order of keys and searched one by one, which is fastest for the two to four
//! entries that sessions have; more entries have a table of keys, which is searched by bisection.
//!
//! ```text
//! listed:   count (1 byte, 0 to 15), then for each entry: key (varint), value
//! indexed:  0xff, count (u16), then for each entry: key (u16), end of its value (u16, from the first value's start),
//!           then the values
//! value:    kind (3 bits) and n (5 bits) in one byte, then
//!           kind 0, number:  n bytes (0 to 8) of the zigzag form, lowest first, without leading zeros
//!           kind 1, text:    n bytes, or for n = 31 their number (u16) and then as many bytes of UTF-8
//!           kind 2, address: n = 6 or 18 bytes: IP address, then port (big-endian)
//! ```
//!
//! Numbers are little-endian unless stated otherwise.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use smallvec::SmallVec;

use crate::{Error, varint};

/// The most bytes that the info of one session may take.
pub const INFO_BYTES_MAX: usize = 16 << 10;
/// The most entries of the listed layout.
const LISTED_MAX: usize = 15;
/// The first byte of the indexed layout.
const INDEXED: u8 = 0xff;
/// Bytes of an entry in the table of keys.
const INDEX_ENTRY_BYTES: usize = 4;
/// Texts of this length and more have a length of two bytes.
const TEXT_LONG: usize = 31;

const KIND_NUMBER: u8 = 0;
const KIND_TEXT: u8 = 1;
const KIND_ADDRESS: u8 = 2;

/// The key of an entry. Each key has one kind of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InfoKey(pub u16);

impl InfoKey {
    /// The door that opened the session: a text such as `waku_filter` or `rest_live`.
    pub const DOOR: Self = Self(1);
    /// The remote address: an address.
    pub const ADDRESS: Self = Self(2);
    /// What it reads: a text for display.
    pub const READS: Self = Self(3);
    /// How many topics it subscribes to: a number.
    pub const TOPICS: Self = Self(4);
    /// The version of XEP-0280 by which it requests carbons: a number.
    pub const CARBONS: Self = Self(5);

    const NAMES: [(Self, &'static str); 5] = [
        (Self::DOOR, "door"),
        (Self::ADDRESS, "address"),
        (Self::READS, "reads"),
        (Self::TOPICS, "topics"),
        (Self::CARBONS, "carbons"),
    ];
}

impl fmt::Display for InfoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(key, _)| key == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "key_{}", self.0),
        }
    }
}

/// The value of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InfoValue<'a> {
    /// A number or a flag.
    Number(i64),
    /// A text.
    Text(&'a str),
    /// An IP address and a port. Scope and flow of IPv6 are not stored.
    Address(SocketAddr),
}

impl fmt::Display for InfoValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A change: a key's new value, or `None` to remove it. Of two changes of one key the later counts.
pub type InfoChange<'a> = (InfoKey, Option<InfoValue<'a>>);

/// The bytes of an info while it is encoded.
pub(crate) type InfoBytes = SmallVec<[u8; 64]>;

/// The info of a session, encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Info<'a> {
    bytes: &'a [u8],
}

impl<'a> Info<'a> {
    /// An info without entries.
    pub const EMPTY: Info<'static> = Info { bytes: &[0] };

    /// Wraps any bytes: entries that can't be decoded are skipped.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The value of a key.
    pub fn get(self, key: InfoKey) -> Option<InfoValue<'a>> {
        match self.layout()? {
            Layout::Listed { count, mut entries } => {
                for _ in 0..count {
                    let found = varint::take(&mut entries)?;
                    let mut value = take_value_bytes(&mut entries)?;
                    if found == u32::from(key.0) {
                        return take_value(&mut value);
                    }
                    if found > u32::from(key.0) {
                        return None;
                    }
                }
                None
            }
            Layout::Indexed { keys, values } => {
                let index = keys.binary_search_by_key(&key.0, |entry| key_of(*entry)).ok()?;
                value_at(keys, values, index)
            }
        }
    }

    /// A number, if the key has one.
    pub fn number(self, key: InfoKey) -> Option<i64> {
        match self.get(key)? {
            InfoValue::Number(number) => Some(number),
            _ => None,
        }
    }

    /// A text, if the key has one.
    pub fn text(self, key: InfoKey) -> Option<&'a str> {
        match self.get(key)? {
            InfoValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// How many entries there are.
    pub fn len(self) -> usize {
        match self.layout() {
            Some(Layout::Listed { count, .. }) => count,
            Some(Layout::Indexed { keys, .. }) => keys.len(),
            None => 0,
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// All entries in the order of their keys.
    pub fn iter(self) -> InfoIter<'a> {
        InfoIter { layout: self.layout(), next: 0 }
    }

    /// The bytes that it takes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    fn layout(self) -> Option<Layout<'a>> {
        let (first, rest) = self.bytes.split_first()?;
        if *first != INDEXED {
            return Some(Layout::Listed { count: usize::from(*first), entries: rest });
        }
        let mut rest = rest;
        let count = u16::from_le_bytes(varint::take_array(&mut rest)?);
        let keys = varint::take_slice(&mut rest, usize::from(count) * INDEX_ENTRY_BYTES)?;
        Some(Layout::Indexed { keys: keys.as_chunks().0, values: rest })
    }

    /// Checks bytes from outside.
    pub(crate) fn check(self) -> Result<(), Error> {
        let wrong = || unreadable("the info of a session");
        let mut last = None;
        let mut count = 0;
        for (key, _) in self.iter() {
            if last.is_some_and(|last| last >= key) {
                return Err(wrong());
            }
            last = Some(key);
            count += 1;
        }
        // An entry that can't be decoded ends the iteration early.
        if count != self.len() || self.bytes.len() > INFO_BYTES_MAX {
            return Err(wrong());
        }
        let mut again = InfoBytes::new();
        encode(self.iter(), count, &mut again);
        if again.as_slice() == self.bytes { Ok(()) } else { Err(wrong()) }
    }
}

impl fmt::Debug for Info<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[derive(Clone, Copy)]
enum Layout<'a> {
    Listed { count: usize, entries: &'a [u8] },
    Indexed { keys: &'a [[u8; INDEX_ENTRY_BYTES]], values: &'a [u8] },
}

fn key_of([low, high, ..]: [u8; INDEX_ENTRY_BYTES]) -> u16 {
    u16::from_le_bytes([low, high])
}

fn end_of([.., low, high]: [u8; INDEX_ENTRY_BYTES]) -> usize {
    usize::from(u16::from_le_bytes([low, high]))
}

fn value_at<'a>(keys: &[[u8; INDEX_ENTRY_BYTES]], values: &'a [u8], index: usize) -> Option<InfoValue<'a>> {
    let start = match index.checked_sub(1) {
        Some(before) => end_of(*keys.get(before)?),
        None => 0,
    };
    let end = end_of(*keys.get(index)?);
    take_value(&mut values.get(start..end)?)
}

/// The entries of an info.
#[derive(Clone)]
pub struct InfoIter<'a> {
    layout: Option<Layout<'a>>,
    next: usize,
}

impl fmt::Debug for InfoIter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InfoIter").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<'a> Iterator for InfoIter<'a> {
    type Item = (InfoKey, InfoValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        match self.layout.as_mut()? {
            Layout::Listed { count, entries } => {
                if self.next == *count {
                    return None;
                }
                self.next += 1;
                let key = u16::try_from(varint::take(entries)?).ok()?;
                Some((InfoKey(key), take_value(entries)?))
            }
            Layout::Indexed { keys, values } => {
                let key = key_of(*keys.get(self.next)?);
                let value = value_at(keys, values, self.next)?;
                self.next += 1;
                Some((InfoKey(key), value))
            }
        }
    }
}

/// Takes the bytes of the first value without decoding it.
fn take_value_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let head = *bytes.first()?;
    let n = usize::from(head & 0x1f);
    let len = match (head >> 5, n) {
        (KIND_TEXT, TEXT_LONG) => {
            let [low, high] = *bytes.get(1..)?.first_chunk()?;
            3 + usize::from(u16::from_le_bytes([low, high]))
        }
        _ => 1 + n,
    };
    varint::take_slice(bytes, len)
}

fn take_value<'a>(bytes: &mut &'a [u8]) -> Option<InfoValue<'a>> {
    let mut value = take_value_bytes(bytes)?;
    let head = varint::take_byte(&mut value)?;
    match (head >> 5, head & 0x1f) {
        (KIND_NUMBER, n @ 0..=8) => {
            let mut zigzag = [0; 8];
            zigzag.get_mut(..usize::from(n))?.copy_from_slice(value);
            Some(InfoValue::Number(from_zigzag(u64::from_le_bytes(zigzag))))
        }
        (KIND_TEXT, n) => {
            let text = if usize::from(n) == TEXT_LONG { value.get(2..)? } else { value };
            Some(InfoValue::Text(std::str::from_utf8(text).ok()?))
        }
        (KIND_ADDRESS, 6) => {
            let (ip, port) = value.split_first_chunk::<4>()?;
            Some(InfoValue::Address(SocketAddr::new(IpAddr::from(*ip), port_of(port)?)))
        }
        (KIND_ADDRESS, 18) => {
            let (ip, port) = value.split_first_chunk::<16>()?;
            Some(InfoValue::Address(SocketAddr::new(IpAddr::from(*ip), port_of(port)?)))
        }
        _ => None,
    }
}

fn port_of(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().map(|port| u16::from_be_bytes(*port))
}

fn put_value(value: InfoValue<'_>, out: &mut InfoBytes) {
    match value {
        InfoValue::Number(number) => {
            let zigzag = to_zigzag(number).to_le_bytes();
            let len = zigzag.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            out.push(KIND_NUMBER << 5 | len as u8);
            out.extend_from_slice(zigzag.get(..len).unwrap_or_default());
        }
        InfoValue::Text(text) if text.len() < TEXT_LONG => {
            out.push(KIND_TEXT << 5 | text.len() as u8);
            out.extend_from_slice(text.as_bytes());
        }
        InfoValue::Text(text) => {
            out.push(KIND_TEXT << 5 | TEXT_LONG as u8);
            out.extend_from_slice(&(text.len() as u16).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        InfoValue::Address(address) => {
            let mut put = |ip: &[u8]| {
                out.push(KIND_ADDRESS << 5 | (ip.len() + 2) as u8);
                out.extend_from_slice(ip);
            };
            match address.ip() {
                IpAddr::V4(ip) => put(&ip.octets()),
                IpAddr::V6(ip) => put(&ip.octets()),
            }
            out.extend_from_slice(&address.port().to_be_bytes());
        }
    }
}

/// The least bytes of an encoded value.
fn value_len_min(value: InfoValue<'_>) -> usize {
    match value {
        InfoValue::Number(_) => 1,
        InfoValue::Text(text) => 1 + text.len(),
        InfoValue::Address(_) => 7,
    }
}

fn to_zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn from_zigzag(zigzag: u64) -> i64 {
    (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)
}

fn encode<'a>(
    entries: impl Iterator<Item = (InfoKey, InfoValue<'a>)> + Clone,
    count: usize,
    out: &mut InfoBytes,
) {
    if count <= LISTED_MAX {
        out.push(count as u8);
        for (key, value) in entries {
            varint::put(u32::from(key.0), out);
            put_value(value, out);
        }
        return;
    }
    out.push(INDEXED);
    out.extend_from_slice(&(count as u16).to_le_bytes());
    let mut values = InfoBytes::new();
    for (key, value) in entries {
        put_value(value, &mut values);
        out.extend_from_slice(&key.0.to_le_bytes());
        out.extend_from_slice(&(values.len() as u16).to_le_bytes());
    }
    out.extend_from_slice(&values);
}

pub(crate) fn unreadable(what: &str) -> Error {
    Error::corrupt(format!("{what} can't be read: was it written by another program?"))
}

/// Appends `info` with these changes to `out`: new values replace old ones.
///
/// # Errors
/// `Full` when the result would be longer than [`INFO_BYTES_MAX`]; then `out` is unchanged.
pub(crate) fn merge(info: Info<'_>, changes: &[InfoChange<'_>], out: &mut InfoBytes) -> Result<(), Error> {
    if changes.is_empty() {
        out.extend_from_slice(if info.bytes.is_empty() { &[0] } else { info.bytes });
        return Ok(());
    }
    let full = || Error::full(format!("the info of a session may take {INFO_BYTES_MAX} bytes"));
    let start = out.len();
    if merge_listed(info, changes, out) {
        if out.len() - start > INFO_BYTES_MAX {
            out.truncate(start);
            return Err(full());
        }
        return Ok(());
    }
    let mut changes: SmallVec<[InfoChange<'_>; 8]> = SmallVec::from_slice(changes);
    changes.sort_by_key(|(key, _)| *key); // stable, so that of equal keys the last is the latest
    let mut merged: SmallVec<[(InfoKey, InfoValue<'_>); 16]> = SmallVec::new();
    let mut old = info.iter().peekable();
    let mut changes = changes.into_iter().peekable();
    while let Some((key, value)) = changes.next() {
        if changes.peek().is_some_and(|(next, _)| *next == key) {
            continue;
        }
        while let Some(kept) = old.next_if(|(at, _)| *at < key) {
            merged.push(kept);
        }
        old.next_if(|(at, _)| *at == key);
        merged.extend(value.map(|value| (key, value)));
    }
    merged.extend(old);
    // Values too long for a length of two bytes are refused here, the rest after encoding.
    let bytes_min: usize = merged.iter().map(|(_, value)| value_len_min(*value)).sum();
    if bytes_min > INFO_BYTES_MAX {
        return Err(full());
    }
    encode(merged.iter().copied(), merged.len(), out);
    if out.len() - start > INFO_BYTES_MAX {
        out.truncate(start);
        return Err(full());
    }
    Ok(())
}

/// The fast path for few entries and changes sorted by key: entries that stay are copied without decoding. Returns false when
/// it does not apply.
fn merge_listed(info: Info<'_>, changes: &[InfoChange<'_>], out: &mut InfoBytes) -> bool {
    let Some(Layout::Listed { count, mut entries }) = info.layout() else { return false };
    let is_ordered = changes.is_sorted_by(|(one, _), (next, _)| one < next);
    let bytes_min: usize = changes.iter().filter_map(|(_, value)| value.map(value_len_min)).sum();
    if !is_ordered || count + changes.len() > LISTED_MAX || bytes_min > INFO_BYTES_MAX {
        return false;
    }
    let start = out.len();
    out.push(0); // the count, once it is known
    let mut merged = 0;
    let mut old = take_entry(&mut entries);
    for (key, value) in changes {
        while let Some((_, kept)) = old.filter(|(at, _)| *at < u32::from(key.0)) {
            out.extend_from_slice(kept);
            merged += 1;
            old = take_entry(&mut entries);
        }
        if old.is_some_and(|(at, _)| at == u32::from(key.0)) {
            old = take_entry(&mut entries);
        }
        if let Some(value) = value {
            varint::put(u32::from(key.0), out);
            put_value(*value, out);
            merged += 1;
        }
    }
    while let Some((_, kept)) = old {
        out.extend_from_slice(kept);
        merged += 1;
        old = take_entry(&mut entries);
    }
    if let Some(count) = out.get_mut(start) {
        *count = merged;
    }
    true
}

/// Takes the first of the listed entries: its key, and its bytes including the key.
fn take_entry<'a>(entries: &mut &'a [u8]) -> Option<(u32, &'a [u8])> {
    let whole = *entries;
    let key = varint::take(entries)?;
    take_value_bytes(entries)?;
    Some((key, whole.get(..whole.len() - entries.len())?))
}

/// An info outside a session.
#[derive(Clone, PartialEq, Eq)]
pub struct InfoBuf {
    bytes: InfoBytes,
}

impl InfoBuf {
    /// An info without entries.
    pub fn new() -> Self {
        Self { bytes: SmallVec::from_slice(Info::EMPTY.bytes) }
    }

    /// The encoded info.
    pub fn as_info(&self) -> Info<'_> {
        Info::new(&self.bytes)
    }

    /// Changes it.
    ///
    /// # Errors
    /// `Full` when it would be longer than [`INFO_BYTES_MAX`]; then it is unchanged.
    pub fn merge(&mut self, changes: &[InfoChange<'_>]) -> Result<(), Error> {
        let mut merged = InfoBytes::new();
        merge(self.as_info(), changes, &mut merged)?;
        self.bytes = merged;
        Ok(())
    }
}

impl Default for InfoBuf {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for InfoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_info().fmt(f)
    }
}

#[cfg(test)]
mod tests;
