//! A dictionary contains what bodies have in common, so that only the differences are stored with each body.
//!
//! A compressed body is a frame of zstd (RFC 8878) without a magic number, dictionary number or checksum. The frame contains the
//! length of the body, so that reading it allocates only once.

use std::{cell::RefCell, sync::LazyLock, thread::available_parallelism};

use bytes::Bytes;
use parking_lot::Mutex;
use zstd::zstd_safe::{CCtx, CParameter, DCtx, DDict, DParameter, FrameFormat, ParamSwitch, compress_bound};

use super::schema::{META, META_DICTIONARY, corrupt, decode_number};
use crate::{BODY_BYTES_MAX, Error};

/// The number of the empty dictionary, which every store has from its first body on.
pub(super) const EMPTY: u64 = 1;
/// The longest dictionary. Above about 64 KiB it would grow by more than it saves, and each encoder keeps tables for it.
pub(super) const DICTIONARY_BYTES_MAX: usize = 64 << 10;
/// The most dictionaries of a store: a few more than are ever made, so that a damaged store uses bounded memory.
pub(super) const DICTIONARIES_MAX: usize = 16;
/// The most idle encoders of a dictionary, each about half a megabyte: no more can run at the same time.
static ENCODERS_MAX: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, usize::from));
/// With a dictionary the higher levels save 2 % and take six times as long.
const LEVEL: i32 = 3;
/// Literals are not entropy-coded in bodies of at most this length. That makes them a tenth longer, but reading a record of some
/// hundred bytes takes a fifth less time.
const RAW_LITERALS_BYTES_MAX: usize = 2 << 10;
/// How much of a body is sampled, from its beginning: that is where bodies have much in common. All samples together are thus 8
/// MiB, about a hundred times the size of a dictionary, which is what zstd's manual recommends.
const SAMPLE_BYTES_MAX: usize = 2 << 10;
/// A row begins with the CRC-32C of the dictionary: a damaged dictionary would silently change every body.
const CHECKSUM_BYTES: usize = 4;

/// A dictionary, prepared for compression and decompression.
pub(super) struct Dictionary {
    number: u64,
    bytes: Box<[u8]>,
    decoder: DDict<'static>,
    /// Idle encoders. Each has preprocessed the dictionary, which takes longer than compressing a body.
    encoders: Mutex<Vec<CCtx<'static>>>,
}

impl Dictionary {
    /// The dictionary of these bytes; `None` when they are not a dictionary.
    pub(super) fn new(number: u64, bytes: &[u8]) -> Option<Self> {
        let decoder = DDict::try_create(bytes)?;
        Some(Self { number, bytes: bytes.into(), decoder, encoders: Mutex::default() })
    }

    /// Its number among those of the store.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Its length.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends `bytes` to `row` as a frame. If that would not be shorter, appends nothing and returns false.
    pub(super) fn compress(&self, bytes: &[u8], row: &mut Vec<u8>) -> bool {
        let begin = row.len();
        row.resize(begin + compress_bound(bytes.len()), 0);
        let written = self.compress_into(bytes, row.get_mut(begin..).unwrap_or_default());
        let shorter = written.filter(|len| *len < bytes.len());
        row.truncate(begin + shorter.unwrap_or(0));
        shorter.is_some()
    }

    fn compress_into(&self, bytes: &[u8], space: &mut [u8]) -> Option<usize> {
        let pooled = self.encoders.lock().pop();
        let mut encoder = match pooled {
            Some(encoder) => encoder,
            None => make_encoder(&self.bytes)?,
        };
        let is_short = bytes.len() <= RAW_LITERALS_BYTES_MAX;
        let literals = if is_short { ParamSwitch::Disable } else { ParamSwitch::Auto };
        encoder.set_parameter(CParameter::LiteralCompressionMode(literals)).ok()?;
        let written = encoder.compress2(space, bytes).ok()?;
        let mut encoders = self.encoders.lock();
        if encoders.len() < *ENCODERS_MAX {
            encoders.push(encoder);
        }
        Some(written)
    }

    /// Drops the encoders, since bodies are compressed with another dictionary from now on.
    pub(super) fn retire(&self) {
        self.encoders.lock().clear();
    }

    /// The body in a frame.
    ///
    /// # Errors
    /// What is wrong with the frame.
    pub(super) fn decompress(&self, frame: &[u8]) -> Result<Bytes, &'static str> {
        let len = content_bytes(frame).ok_or("its compressed body has no sound header")?;
        if len > BODY_BYTES_MAX as u64 {
            return Err("its compressed body says that it is longer than bodies may be");
        }
        let mut bytes = Vec::with_capacity(len as usize);
        let done = DECODER.with_borrow_mut(|decoder| {
            let decoder = decoder.as_mut()?;
            decoder.decompress_using_ddict(&mut bytes, frame, &self.decoder).ok()
        });
        if done.is_none() || bytes.len() as u64 != len {
            return Err("its compressed body is damaged");
        }
        Ok(bytes.into())
    }
}

thread_local! {
    /// The decoder of a thread: creating one takes longer than decompressing a body.
    static DECODER: RefCell<Option<DCtx<'static>>> = RefCell::new(make_decoder());
}

fn make_encoder(dictionary: &[u8]) -> Option<CCtx<'static>> {
    let mut encoder = CCtx::try_create()?;
    let parameters = [
        CParameter::CompressionLevel(LEVEL),
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ContentSizeFlag(true),
        CParameter::ChecksumFlag(false),
        CParameter::DictIdFlag(false),
    ];
    for parameter in parameters {
        encoder.set_parameter(parameter).ok()?;
    }
    encoder.load_dictionary(dictionary).ok()?;
    Some(encoder)
}

fn make_decoder() -> Option<DCtx<'static>> {
    let mut decoder = DCtx::try_create()?;
    decoder.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
    Some(decoder)
}

/// The length of a frame's content from its header (RFC 8878 §3.1.1.1); `None` when the header doesn't have it.
fn content_bytes(frame: &[u8]) -> Option<u64> {
    let (descriptor, rest) = frame.split_first()?;
    let is_single_segment = descriptor & 0x20 != 0;
    let window_bytes = if is_single_segment { 0 } else { 1 };
    let dictionary_bytes = match descriptor & 3 {
        3 => 4,
        len => usize::from(len),
    };
    let (len, added) = match descriptor >> 6 {
        0 if is_single_segment => (1, 0),
        0 => return None,
        1 => (2, 256),
        2 => (4, 0),
        _ => (8, 0),
    };
    let begin = window_bytes + dictionary_bytes;
    let field = rest.get(begin..begin + len)?;
    let number = field.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    number.checked_add(added)
}

/// Bodies to train a dictionary with.
#[derive(Default)]
pub(super) struct Samples {
    bytes: Vec<u8>,
    lens: Vec<usize>,
}

impl Samples {
    /// Adds the beginning of a body.
    pub(super) fn push(&mut self, body: &[u8]) {
        let sample = body.get(..SAMPLE_BYTES_MAX).unwrap_or(body);
        self.bytes.extend_from_slice(sample);
        self.lens.push(sample.len());
    }

    /// The number of samples.
    pub(super) fn len(&self) -> usize {
        self.lens.len()
    }

    /// The total number of bytes when each sample is compressed with a dictionary.
    pub(super) fn stored_bytes(&self, dictionary: &Dictionary) -> usize {
        let mut rest = &self.bytes[..];
        let mut row = Vec::new();
        let mut total = 0;
        for len in &self.lens {
            let Some((sample, behind)) = rest.split_at_checked(*len) else { break };
            rest = behind;
            row.clear();
            total += if dictionary.compress(sample, &mut row) { row.len() } else { sample.len() };
        }
        total
    }

    /// Trains a dictionary of at most this length; `None` when the samples are too few or have nothing in common.
    pub(super) fn train(&self, bytes_max: usize) -> Option<Vec<u8>> {
        zstd::dict::from_continuous(&self.bytes, &self.lens, bytes_max).ok().filter(|bytes| !bytes.is_empty())
    }
}

/// The row of a dictionary.
pub(super) fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut row = crc32c::crc32c(bytes).to_be_bytes().to_vec();
    row.extend_from_slice(bytes);
    row
}

/// Decodes a dictionary from a row of the meta table.
///
/// # Errors
/// `Corrupt` when it is damaged.
pub(super) fn decode(key: &[u8], row: &[u8]) -> Result<Dictionary, Error> {
    read(key, row).ok_or_else(|| corrupt(META, key))
}

fn read(key: &[u8], row: &[u8]) -> Option<Dictionary> {
    let number = decode_number(key.strip_prefix(META_DICTIONARY)?)?;
    let (checksum, bytes) = row.split_at_checked(CHECKSUM_BYTES)?;
    let is_whole = bytes.len() <= DICTIONARY_BYTES_MAX && checksum == crc32c::crc32c(bytes).to_be_bytes();
    if number <= EMPTY || !is_whole {
        return None;
    }
    Dictionary::new(number, bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lmdb::schema::dictionary_key;

    fn mail(n: u64) -> Vec<u8> {
        format!(
            "{{\"from\":\"user{}@example.org\",\"subject\":\"meeting {n} is moved\",\"received\":{},\"preview\":\"Dear all\"}}",
            n % 17,
            1_700_000_000 + n * 31,
        )
        .into_bytes()
    }

    fn trained() -> &'static Dictionary {
        static TRAINED: LazyLock<Dictionary> = LazyLock::new(|| Dictionary::new(2, &train()).unwrap());
        &TRAINED
    }

    fn train() -> Vec<u8> {
        let mut samples = Samples::default();
        (0..1_000).for_each(|n| samples.push(&mail(n)));
        samples.train(4 << 10).unwrap()
    }

    #[test]
    fn a_body_reads_back_with_its_dictionary_and_is_shorter_with_a_trained_one() {
        let (empty, trained) = (Dictionary::new(EMPTY, b"").unwrap(), trained());
        let body = mail(7_654_321);
        let mut lens = Vec::new();
        for dictionary in [&empty, trained] {
            let mut row = b"head".to_vec();
            if dictionary.compress(&body, &mut row) {
                assert_eq!(dictionary.decompress(&row[4..]).unwrap(), body);
            }
            lens.push(row.len());
        }
        assert!(lens[1] * 2 < body.len(), "{lens:?} of {}", body.len());
    }

    #[test]
    fn what_does_not_get_shorter_is_left_alone() {
        let noise: Vec<u8> = (0_u32..400).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for body in [&b""[..], b"a", &noise] {
            let mut row = vec![9];
            assert!(!trained().compress(body, &mut row));
            assert_eq!(row, [9]);
        }
    }

    #[test]
    fn bodies_of_every_length_read_back() {
        let dictionary = trained();
        let lens = [30, 255, 256, 257, 2_048, 2_049, 65_535, 65_791, 65_792, 131_073, BODY_BYTES_MAX];
        for len in lens {
            let body = mail(3).into_iter().cycle().take(len).collect::<Vec<u8>>();
            let mut packed = Vec::new();
            assert!(dictionary.compress(&body, &mut packed), "{len}");
            assert_eq!(content_bytes(&packed), Some(len as u64));
            assert_eq!(dictionary.decompress(&packed).unwrap(), body, "{len}");
        }
    }

    #[test]
    fn a_frame_that_promises_too_much_is_refused_before_anything_is_allocated() {
        let descriptor = 0b1110_0000; // eight bytes of length, a single segment
        let mut frame = vec![descriptor];
        frame.extend_from_slice(&u64::MAX.to_le_bytes());
        let error = trained().decompress(&frame).unwrap_err();
        assert!(error.contains("longer"), "{error}");
    }

    proptest! {
        #[test]
        fn damaged_bodies_never_panic(
            n: u64,
            is_long: bool,
            at: prop::sample::Index,
            byte: u8,
            noise in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let dictionary = trained();
            let mails = if is_long { 40 } else { 1 };
            let body = mail(n % 1_000_000).repeat(mails);
            let mut packed = Vec::new();
            prop_assert!(dictionary.compress(&body, &mut packed));
            let at = at.index(packed.len());
            packed[at] = byte;
            for damaged in [&packed[..], &packed[..at], &noise] {
                let len = dictionary.decompress(damaged).map_or(0, |body| body.len());
                prop_assert!(len <= BODY_BYTES_MAX);
            }
        }
    }

    #[test]
    fn too_few_samples_make_no_dictionary() {
        let mut samples = Samples::default();
        assert!(samples.train(4 << 10).is_none());
        samples.push(b"alone");
        assert!(samples.train(4 << 10).is_none());
    }

    #[test]
    fn a_dictionary_is_read_from_its_row_and_a_damaged_one_is_not() {
        let row = encode(&train());
        assert_eq!(decode(&dictionary_key(2), &row).unwrap().number(), 2);
        for at in [0, 3, 4, row.len() - 1] {
            let mut damaged = row.clone();
            damaged[at] ^= 1;
            assert!(decode(&dictionary_key(2), &damaged).is_err(), "{at}");
        }
        assert!(decode(&dictionary_key(2), b"abc").is_err());
        assert!(decode(&dictionary_key(EMPTY), &row).is_err(), "the empty dictionary has no row");
        assert!(decode(b"dictionary/", &row).is_err());
    }
}
