//! Short bodies as blocks of LZ4, with a dictionary before them.
//!
//! A record of some hundred bytes is read in the time of a few cache misses, so what its body is stored as decides what that
//! costs. zstd makes bodies a sixth shorter than this, by codes of single bits, and takes four times as long to read them.
//! That pays for long bodies, not for short ones.
//!
//! A block is a row of sequences: a token, literals, and a match, which is a length and how far back in what was read until
//! then the same bytes stand. The dictionary counts as read before the body. The format is LZ4's, as its `lz4_Block_format.md`
//! tells it, with one thing less: a match doesn't begin in the dictionary and end in the body. How long the body is follows
//! from the block.

use std::cell::RefCell;

use bytes::Bytes;

/// The longest body that is a block.
pub(super) const BYTES_MAX: usize = 2 << 10;
/// The longest dictionary: a distance has two bytes.
const DICTIONARY_BYTES_MAX: usize = 64 << 10;
const DISTANCE_MAX: usize = 0xffff;
/// The shortest match that the format knows.
const FORMAT_MATCH_MIN: usize = 4;
/// The shortest match that is used: one of four bytes takes three and as long to read as a long one.
const MATCH_MIN: usize = 5;
/// Places that have so many bytes in common are found one after the other, others only at the last place.
const LONG: usize = 8;
/// So many of them are tried, or until one has so many bytes in common.
const TRIES_MAX: usize = 4;
const MATCH_ENOUGH: usize = 32;
/// A block ends with so many literals at least, and its last match begins so many bytes before its end (rules of the format).
const LITERALS_LAST: usize = 5;
const BEHIND_LAST_MATCH: usize = 12;
/// After so many places without a match every other place is left out, and so on: what looks random will go on so.
const MISSES_BITS: u32 = 4;
/// The most hash bits of dictionaries and those of bodies.
const INDEX_BITS_MAX: u32 = 16;
const SEEN_BITS: u32 = 11;
/// Short copies are made of so many bytes, however many are wanted: that takes no branch and no call.
const COPY: usize = 32;

/// Where in a dictionary bytes stand. A place is counted from its beginning; 0 is none.
pub(super) struct Index {
    bits: u32,
    /// By [`MATCH_MIN`] bytes.
    short: Box<[u16]>,
    /// By [`LONG`] bytes.
    long: Box<[u16]>,
    /// For each place the one before it that [`LONG`] bytes lead to.
    before: Box<[u16]>,
}

impl Index {
    /// The index of a dictionary of at most 64 KiB; of a longer one it is that of the beginning.
    pub(super) fn new(dictionary: &[u8]) -> Self {
        let dictionary = dictionary.get(..DICTIONARY_BYTES_MAX).unwrap_or(dictionary);
        let bits = (dictionary.len().max(2)).ilog2().min(INDEX_BITS_MAX);
        let none = |len: usize| vec![0_u16; len].into_boxed_slice();
        let mut index =
            Self { bits, short: none(1 << bits), long: none(1 << bits), before: none(dictionary.len()) };
        for place in 1..dictionary.len() {
            index.add(dictionary, place);
        }
        index
    }

    fn add(&mut self, dictionary: &[u8], place: usize) -> Option<()> {
        let word = first_word(dictionary.get(place..)?)?;
        *self.short.get_mut(hash(word, MATCH_MIN, self.bits))? = place as u16;
        let last = self.long.get_mut(hash(word, LONG, self.bits))?;
        if first_word(dictionary.get(usize::from(*last)..)?)? == word {
            *self.before.get_mut(place)? = *last;
        }
        *last = place as u16;
        Some(())
    }
}

/// The next bytes, the first one lowest.
fn first_word(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// A hash of the first bytes of a word.
fn hash(word: u64, bytes: usize, bits: u32) -> usize {
    let kept = word << (64 - 8 * bytes as u32);
    (kept.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
}

/// How many bytes two places have in common, of which the one begins with `word`.
fn common(word: u64, here: &[u8], there: &[u8]) -> usize {
    let Some(first) = first_word(there) else { return 0 };
    if first != word {
        return ((first ^ word).trailing_zeros() / 8) as usize;
    }
    let behind = |bytes: &'_ [u8]| bytes.get(LONG..).map_or(0, <[u8]>::len);
    let len = behind(here).min(behind(there));
    let (here, there) = (here.get(LONG..LONG + len), there.get(LONG..LONG + len));
    LONG + here.zip(there).map_or(0, |(here, there)| common_of_same_len(here, there))
}

fn common_of_same_len(a: &[u8], b: &[u8]) -> usize {
    let (words_a, rest_a) = a.as_chunks::<8>();
    let (words_b, rest_b) = b.as_chunks::<8>();
    let mut len = 0;
    for (a, b) in words_a.iter().zip(words_b) {
        let differs = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differs != 0 {
            return len + (differs.trailing_zeros() / 8) as usize;
        }
        len += 8;
    }
    len + rest_a.iter().zip(rest_b).take_while(|(a, b)| a == b).count()
}

#[derive(Clone, Copy)]
struct Match {
    len: usize,
    distance: usize,
}

/// Looks for what comes again in a body.
struct Search<'a> {
    dictionary: &'a [u8],
    index: &'a Index,
    body: &'a [u8],
    /// Where in the body bytes stood last, and one more: 0 is nowhere.
    seen: [u16; 1 << SEEN_BITS],
}

impl Search<'_> {
    /// The longest match that is found for the bytes at a place.
    fn longest(&mut self, at: usize) -> Option<Match> {
        let here = self.body.get(at..self.body.len().checked_sub(LITERALS_LAST)?)?;
        let word = first_word(self.body.get(at..)?)?;
        let mut best = Match { len: MATCH_MIN - 1, distance: 0 };
        self.try_long(at, word, here, &mut best);
        let seen = self.seen.get_mut(hash(word, MATCH_MIN, SEEN_BITS))?;
        let last = std::mem::replace(seen, at as u16 + 1);
        if let Some(last) = usize::from(last).checked_sub(1) {
            let there = self.body.get(last..)?;
            best.improve(common(word, here, there).min(here.len()), at - last);
        }
        if best.len < LONG {
            let last = self.index.short.get(hash(word, MATCH_MIN, self.index.bits))?;
            self.try_dictionary(*last, at, word, here, &mut best);
        }
        (best.distance > 0).then_some(best)
    }

    fn try_long(&self, at: usize, word: u64, here: &[u8], best: &mut Match) {
        let mut place = self.index.long.get(hash(word, LONG, self.index.bits)).copied().unwrap_or(0);
        for _ in 0..TRIES_MAX {
            if place == 0 {
                return;
            }
            self.try_dictionary(place, at, word, here, best);
            if best.len < LONG || best.len >= MATCH_ENOUGH {
                return;
            }
            place = self.index.before.get(usize::from(place)).copied().unwrap_or(0);
        }
    }

    fn try_dictionary(&self, place: u16, at: usize, word: u64, here: &[u8], best: &mut Match) {
        let place = usize::from(place);
        let Some(there) = self.dictionary.get(place..) else { return };
        let distance = there.len() + at;
        if place > 0 && distance <= DISTANCE_MAX {
            best.improve(common(word, here, there).min(here.len()), distance);
        }
    }
}

impl Match {
    fn improve(&mut self, len: usize, distance: usize) {
        if len > self.len {
            *self = Self { len, distance };
        }
    }
}

/// Appends a body as a block. `index` is that of the dictionary.
pub(super) fn compress(index: &Index, dictionary: &[u8], body: &[u8], block: &mut Vec<u8>) {
    debug_assert!(body.len() <= BYTES_MAX, "places have two bytes");
    let mut search = Search { dictionary, index, body, seen: [0; 1 << SEEN_BITS] };
    let end = (body.len() + 1).saturating_sub(BEHIND_LAST_MATCH); // no match begins here or later
    let (mut at, mut told, mut misses) = (0, 0, 0_usize);
    while at < end {
        let Some(found) = search.longest(at) else {
            misses += 1;
            at += 1 + (misses >> MISSES_BITS);
            continue;
        };
        put_sequence(block, body.get(told..at).unwrap_or_default(), Some(found));
        at += found.len;
        (told, misses) = (at, 0);
    }
    put_sequence(block, body.get(told..).unwrap_or_default(), None);
}

/// Appends literals and the match behind them; the last sequence has none.
fn put_sequence(block: &mut Vec<u8>, literals: &[u8], found: Option<Match>) {
    let over = found.map_or(0, |found| found.len - FORMAT_MATCH_MIN);
    block.push((literals.len().min(15) << 4 | over.min(15)) as u8);
    put_more(block, literals.len());
    block.extend_from_slice(literals);
    if let Some(found) = found {
        block.extend_from_slice(&(found.distance as u16).to_le_bytes());
        put_more(block, over);
    }
}

/// Appends what a length has over the 15 that a token can tell.
fn put_more(block: &mut Vec<u8>, len: usize) {
    let Some(mut more) = len.checked_sub(15) else { return };
    while more >= 255 {
        block.push(255);
        more -= 255;
    }
    block.push(more as u8);
}

thread_local! {
    /// Where bodies are put together: they need room behind them meanwhile, and none when they are done.
    static SPACE: RefCell<[u8; BYTES_MAX + COPY]> = const { RefCell::new([0; BYTES_MAX + COPY]) };
}

/// The body that a block holds; `None` when it is damaged.
pub(super) fn decompress(dictionary: &[u8], block: &[u8]) -> Option<Bytes> {
    SPACE.with_borrow_mut(|space| {
        let len = read_block(dictionary, block, space)?;
        space.get(..len).map(Bytes::copy_from_slice)
    })
}

/// Answers how long the body is.
fn read_block(dictionary: &[u8], mut block: &[u8], space: &mut [u8; BYTES_MAX + COPY]) -> Option<usize> {
    let mut at = 0;
    loop {
        let token = take_byte(&mut block)?;
        let literals = take_len(&mut block, token >> 4)?;
        let behind = at + literals;
        if behind > BYTES_MAX {
            return None;
        }
        copy(space, at, literals, block)?;
        block = block.get(literals..)?;
        at = behind;
        if block.is_empty() {
            return Some(at);
        }
        let (distance, rest) = block.split_first_chunk()?;
        block = rest;
        let distance = usize::from(u16::from_le_bytes(*distance));
        let matched = take_len(&mut block, token & 15)? + FORMAT_MATCH_MIN;
        let behind = at + matched;
        if behind > BYTES_MAX {
            return None;
        }
        match at.checked_sub(distance) {
            Some(from) => copy_within(space, from, at, matched)?,
            None => {
                let from = dictionary.len().checked_sub(distance - at)?;
                copy(space, at, matched, dictionary.get(from..)?)?;
            }
        }
        at = behind;
    }
}

fn take_byte(block: &mut &[u8]) -> Option<u8> {
    let (byte, rest) = block.split_first()?;
    *block = rest;
    Some(*byte)
}

/// A length of which the token tells the first part.
fn take_len(block: &mut &[u8], told: u8) -> Option<usize> {
    let mut len = usize::from(told);
    if told < 15 {
        return Some(len);
    }
    loop {
        let more = take_byte(block)?;
        len += usize::from(more);
        if more < 255 {
            return Some(len);
        }
    }
}

/// Copies the first bytes of `from`. What is behind them in `space` changes as well.
fn copy(space: &mut [u8], at: usize, len: usize, from: &[u8]) -> Option<()> {
    if len <= COPY
        && let Some(from) = from.first_chunk::<COPY>()
    {
        *space.get_mut(at..)?.first_chunk_mut()? = *from;
        return Some(());
    }
    space.get_mut(at..at + len)?.copy_from_slice(from.get(..len)?);
    Some(())
}

/// Copies what was read already. What is read by it may be a part of it: the same bytes again and again.
fn copy_within(space: &mut [u8], from: usize, at: usize, len: usize) -> Option<()> {
    let distance = at - from;
    if len <= COPY && distance >= COPY {
        let bytes = *space.get(from..)?.first_chunk::<COPY>()?;
        *space.get_mut(at..)?.first_chunk_mut()? = bytes;
        return Some(());
    }
    if distance >= len {
        space.copy_within(from..from + len, at);
        return Some(());
    }
    if distance == 0 {
        return None;
    }
    for place in at..at + len {
        let byte = *space.get(place - distance)?;
        *space.get_mut(place)? = byte;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block_of(dictionary: &[u8], body: &[u8]) -> Vec<u8> {
        let mut block = Vec::new();
        compress(&Index::new(dictionary), dictionary, body, &mut block);
        block
    }

    /// A hundred bytes that have nothing in common.
    fn noise() -> Vec<u8> {
        (0_u32..100).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    /// Few different bytes, so that they come again, and some parts more than once.
    fn repetitive(len_max: usize) -> impl Strategy<Value = Vec<u8>> {
        let part = prop::collection::vec(0_u8..4, 0..40);
        prop::collection::vec((part, 1_usize..30), 0..20).prop_map(move |parts| {
            let repeated = parts.into_iter().flat_map(|(part, times)| part.repeat(times));
            repeated.take(len_max).collect()
        })
    }

    proptest! {
        #[test]
        fn bodies_read_back_with_any_dictionary(
            body in prop_oneof![repetitive(BYTES_MAX), prop::collection::vec(any::<u8>(), 0..BYTES_MAX)],
            dictionary in repetitive(4_000),
            from in any::<prop::sample::Index>(),
        ) {
            for dictionary in [&dictionary[..], &body, &body[from.index(body.len() + 1)..]] {
                let block = block_of(dictionary, &body);
                prop_assert_eq!(decompress(dictionary, &block).unwrap(), &body[..]);
            }
        }

        #[test]
        fn any_bytes_are_a_block_or_not_and_never_panic(
            block in prop::collection::vec(any::<u8>(), 0..200),
            dictionary in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let len = decompress(&dictionary, &block).map_or(0, |body| body.len());
            prop_assert!(len <= BYTES_MAX);
        }
    }

    #[test]
    fn every_length_and_every_distance_reads_back() {
        let noise = noise();
        for distance in 1..=64 {
            for len in (0..80).chain([255, 269, 270, 271, 524, 525, BYTES_MAX - distance]) {
                let body: Vec<u8> = noise[..distance].iter().copied().cycle().take(distance + len).collect();
                let block = block_of(&[], &body);
                assert_eq!(decompress(&[], &block).unwrap(), body, "{distance} {len}");
            }
        }
    }

    #[test]
    fn what_stands_in_a_long_dictionary_is_found_as_far_as_distances_reach() {
        let words: Vec<u8> = (0_u64..8 << 10)
            .flat_map(|n| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
            .collect();
        for (before, place, is_near) in [(0, 1, true), (0, 40_000, true), (100, 101, true), (100, 1, false)] {
            let found = &words[place..place + 100];
            let body = [&noise()[..before], found].concat();
            let block = block_of(&words, &body);
            assert_eq!(decompress(&words, &block).unwrap(), body, "{before} {place}");
            assert_eq!(block.len() < before + 60, is_near, "{before} {place}: {} bytes", block.len());
        }
    }

    /// Blocks as others write them: the example of the format's description, made by hand.
    #[test]
    fn blocks_of_lz4_are_read() {
        let long = [&[0x1f, b'a', 1, 0, 255, 6, 0x50][..], b"bcdef"].concat();
        let expected = [&[b'a'; 281][..], b"bcdef"].concat();
        assert_eq!(decompress(&[], &long).unwrap(), expected);
        let with_dictionary = [&[0x02, 10, 0, 0x10][..], b"!"].concat();
        assert_eq!(decompress(b"0123456789", &with_dictionary).unwrap(), &b"012345!"[..]);
    }

    #[test]
    fn blocks_keep_the_rules_for_their_end() {
        for len in 0..40 {
            let block = block_of(&[], &vec![b'x'; len]);
            let is_literals_alone = block.len() > len;
            assert_eq!(is_literals_alone, len < 1 + BEHIND_LAST_MATCH, "{len}");
            assert!(is_literals_alone || block.ends_with(b"xxxxx"), "{len}");
        }
    }

    #[test]
    fn damaged_blocks_are_refused() {
        let dictionary = b"0123456789";
        let endless = [&[0xff][..], &[255; 30], &[0]].concat();
        let too_long = [&[0x1f, b'a', 1, 0][..], &[255; 8], &[0, 0x10, b'b']].concat();
        let blocks: [(&str, &[u8]); 8] = [
            ("nothing", &[]),
            ("fewer literals than it says", &[0x20, b'a']),
            ("no distance", &[0x10, b'a', 1]),
            ("a distance of nothing", &[0x10, b'a', 0, 0, 0x10, b'b']),
            ("from before the dictionary", &[0x10, b'a', 12, 0, 0x10, b'b']),
            ("beyond the end of the dictionary", &[0x10, b'a', 2, 0, 0x10, b'b']),
            ("a length without an end", &endless),
            ("a body that is too long", &too_long),
        ];
        for (what, block) in blocks {
            assert!(decompress(dictionary, block).is_none(), "{what}");
        }
        assert!(decompress(dictionary, &[0x10, b'a', 11, 0, 0x10, b'b']).is_some());
    }
}
