//! Checksums of any range of a log, from checksums of its beginning.
//!
//! A reader that searches for the next sound record may find a plausible header every few bytes, because senders choose what a
//! body contains. Reading each candidate to its end would take time quadratic in the log. A CRC is linear, so the CRC of bytes
//! `a..b` can be computed from those of the bytes before `a` and before `b`:
//!
//! ```text
//! state(s, a..b) = (s ^ state(0, 0..a)) * x^(8 (b - a)) ^ state(0, 0..b)      modulo the CRC's polynomial
//! ```
//!
//! A record's checksum covers its length field and its content, and starts with the log's seed. Solved for the seed, with the
//! same formula for the four bytes of the checksum field:
//!
//! ```text
//! !seed = length ^ checksum ^ state(0, 0..at + 4) ^ (state(0, 0..end) ^ !checksum) * x^-(8 (end - at - 4))
//! ```
//!
//! So a candidate costs four multiplications, regardless of the length it claims and of how many seeds are possible. States are
//! kept at every [`STEP`] bytes as far as the longest candidate reaches. On x86-64 a multiplication takes two instructions;
//! elsewhere the search is linear as well, and several times slower.

use std::sync::LazyLock;

use crate::record::Record;

/// Bytes between two states that are kept. Those of the longest record take 16 MiB, and as much again until stale ones are
/// removed.
const STEP: usize = 4;
/// States that are no longer needed are removed when there are this many and they are half of all.
const STALE_STATES: usize = 1 << 14;
/// The polynomial of CRC-32C. The highest bit is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;
const X: u32 = 1 << 30;
/// Times x it is `POLYNOMIAL ^ POLYNOMIAL ^ ONE`.
const X_TO_THE_MINUS_1: u32 = (POLYNOMIAL ^ ONE) << 1 | 1;
/// Powers of x^-8 are kept for lengths below this, and for its multiples.
const LENGTHS: usize = 1 << 13;

static POWERS: LazyLock<Powers> = LazyLock::new(|| Powers::new(has_product_instruction()));

/// See the module.
pub(super) struct RangeChecksums {
    powers: &'static Powers,
    /// Where the first state is.
    base: usize,
    /// The states at `base`, `base + STEP`, and so on.
    states: Vec<u32>,
    /// Bytes that were read.
    pub(super) read_bytes: u64,
}

impl RangeChecksums {
    /// Checksums of records that begin at `base` or after it.
    pub(super) fn new(base: usize) -> Self {
        Self { powers: &POWERS, base, states: vec![0], read_bytes: 0 }
    }

    /// Declares that records before `at` are no longer needed.
    #[inline]
    pub(super) fn advance_to(&mut self, at: usize) {
        let steps = at.saturating_sub(self.base) / STEP;
        if steps >= self.states.len() {
            self.states.clear();
            self.states.push(0);
            self.base = at;
        } else if steps >= STALE_STATES.max(self.states.len() / 2) {
            self.states.drain(..steps);
            self.base += steps * STEP;
        }
    }

    /// The seed with which the record at `at` is sound: see [`Record::is_sound`].
    #[inline]
    pub(super) fn seed_of(&mut self, log: &[u8], at: usize, record: &Record<'_>) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if self.powers.are_quick {
            // SAFETY: `are_quick` is set only where the processor has these instructions.
            #[expect(unsafe_code, reason = "the instructions are not part of every x86-64 processor")]
            return unsafe { self.seed_of_quickly(log, at, record) };
        }
        self.seed_by(multiply, log, at, record)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "pclmulqdq,sse4.2")]
    fn seed_of_quickly(&mut self, log: &[u8], at: usize, record: &Record<'_>) -> u32 {
        self.seed_by(|left, right| multiply_quickly(left, right), log, at, record)
    }

    /// With the multiplication that the powers are for.
    #[inline(always)]
    fn seed_by(
        &mut self,
        times: impl Fn(u32, u32) -> u32,
        log: &[u8],
        at: usize,
        record: &Record<'_>,
    ) -> u32 {
        let (length, checksum) = record.frame();
        let end = at + record.len();
        let len = end - at - 4;
        let content = self.state(&times, log, end) ^ !checksum;
        let [low, high] = &self.powers.back;
        let mut begin = times(content, nth(low, len % LENGTHS));
        if len >= LENGTHS {
            begin = times(begin, nth(high, len / LENGTHS));
        }
        !(u32::from_le_bytes(length) ^ checksum ^ begin ^ self.state(&times, log, at + 4))
    }

    /// The state before `at`, starting with 0 where the first state was.
    #[inline(always)]
    fn state(&mut self, times: &impl Fn(u32, u32) -> u32, log: &[u8], at: usize) -> u32 {
        let offset = at.saturating_sub(self.base);
        let (step, rest) = (offset / STEP, offset % STEP);
        if step >= self.states.len() {
            self.extend(log, step);
        }
        let bytes = log.get(at - STEP..at).and_then(|bytes| bytes.first_chunk::<STEP>());
        let word = u64::from(bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))) >> (8 * (STEP - rest));
        times(nth(&self.states, step) ^ word as u32, nth(&self.powers.forth, rest))
    }

    /// Adds states up to this one.
    #[inline(never)]
    fn extend(&mut self, log: &[u8], step: usize) {
        let from = self.base + (self.states.len() - 1) * STEP;
        let to = self.base + step * STEP + 256;
        let mut last = self.states.last().copied().unwrap_or(0);
        let (chunks, _) = log.get(from..to.min(log.len())).unwrap_or_default().as_chunks::<STEP>();
        for chunk in chunks {
            last = self.powers.step.of(last ^ u32::from_le_bytes(*chunk));
            self.states.push(last);
        }
        self.read_bytes += (chunks.len() * STEP) as u64;
    }
}

/// Powers of x that states are multiplied by.
struct Powers {
    /// Whether they are for [`multiply_quickly`].
    are_quick: bool,
    /// x^(8 n) for n from 0 to [`STEP`].
    forth: Vec<u32>,
    /// x^-(8 n) and x^-(8 n `LENGTHS`) for n from 0 to [`LENGTHS`].
    back: [Vec<u32>; 2],
    /// To advance a state by one step.
    step: Product,
}

impl Powers {
    fn new(are_quick: bool) -> Self {
        let one = if are_quick { power(X_TO_THE_MINUS_1, 33) } else { ONE };
        let powers = |base: u32, to: usize| {
            std::iter::successors(Some(one), |last| Some(multiply(*last, base))).take(to + 1).collect()
        };
        let back = power(X_TO_THE_MINUS_1, 8);
        let back = [powers(back, LENGTHS), powers(power(back, LENGTHS), LENGTHS)];
        Self { are_quick, forth: powers(power(X, 8), STEP), back, step: Product::new(power(X, 8 * STEP)) }
    }
}

fn nth(powers: &[u32], n: usize) -> u32 {
    powers.get(n).copied().unwrap_or(0)
}

fn power(base: u32, n: usize) -> u32 {
    (0..n).fold(ONE, |power, _| multiply(power, base))
}

/// The products of a fixed factor: with each value of each of the four bytes of the other.
struct Product([[u32; 256]; 4]);

impl Product {
    fn new(factor: u32) -> Self {
        Self(std::array::from_fn(|byte| {
            let mut products = [0; 256];
            for bit in 0..8 {
                let product = multiply(1 << (8 * byte + bit), factor);
                let (lower, higher) = products.split_at_mut(1 << bit);
                higher.iter_mut().zip(lower).for_each(|(higher, lower)| *higher = *lower ^ product);
            }
            products
        }))
    }

    /// The product with this state.
    fn of(&self, state: u32) -> u32 {
        let of_byte = |(products, byte): (&[u32; 256], u8)| products.get(usize::from(byte)).copied();
        self.0
            .iter()
            .zip(state.to_le_bytes())
            .filter_map(of_byte)
            .fold(0, |product, of_byte| product ^ of_byte)
    }
}

/// The product of two polynomials modulo the CRC's.
fn multiply(left: u32, mut right: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        product ^= right & (left >> bit & 1).wrapping_neg();
        right = right >> 1 ^ POLYNOMIAL & (right & 1).wrapping_neg();
    }
    product
}

/// The product times x^33: the 63 bits of the product are one bit too far for a state, and a CRC multiplies by x^32.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.2")]
fn multiply_quickly(left: u32, right: u32) -> u32 {
    use std::arch::x86_64::{_mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi64_si128, _mm_cvtsi128_si64};
    let [left, right] = [left, right].map(|factor| _mm_cvtsi64_si128(i64::from(factor)));
    let product = _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(left, right));
    _mm_crc32_u64(0, product.cast_unsigned()) as u32
}

#[cfg(target_arch = "x86_64")]
fn has_product_instruction() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_product_instruction() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use rand::{Rng, RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::record::FRAME_BYTES;

    /// For processors without the instructions.
    static SLOW_POWERS: LazyLock<Powers> = LazyLock::new(|| Powers::new(false));

    #[test]
    fn a_range_is_as_sound_as_its_bytes_say() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        for _ in 0..300 {
            let mut log = vec![0; 40_000];
            random.fill_bytes(&mut log[..]);
            let seed = random.random();
            let at = random.random_range(100..20_000);
            let len = random.random_range(4..20_000 - FRAME_BYTES as u32);
            let end = at + FRAME_BYTES + len as usize;
            let content = crc32c::crc32c_append(seed, &len.to_le_bytes());
            let checksum = crc32c::crc32c_append(content, &log[at + FRAME_BYTES..end]);
            log[at..at + 4].copy_from_slice(&len.to_le_bytes());
            for wrong in [0, 1, 1 << 31] {
                log[at + 4..at + 8].copy_from_slice(&(checksum ^ wrong).to_le_bytes());
                let record = Record::read(&log, at).unwrap();
                assert_eq!(record.is_sound(seed), wrong == 0);
                let powers = if random.random() { &*SLOW_POWERS } else { &*POWERS };
                let mut checksums =
                    RangeChecksums { powers, ..RangeChecksums::new(random.random_range(0..at)) };
                for _ in 0..2 {
                    assert_eq!(checksums.seed_of(&log, at, &record) == seed, wrong == 0, "{at} {len}");
                    checksums.advance_to(random.random_range(checksums.base..=at));
                }
            }
        }
    }

    /// A sequence of records in a long log: what is no longer needed is removed meanwhile, and what is skipped is not read.
    #[test]
    fn every_record_of_a_long_log_is_sound() {
        let mut random = ChaCha8Rng::seed_from_u64(8);
        let (mut log, mut offsets) = (vec![0; 5], Vec::new());
        while log.len() < 1_000_000 {
            offsets.push(log.len());
            let len: u32 = random.random_range(4..30_000);
            let mut content = vec![0; len as usize];
            random.fill_bytes(&mut content[..]);
            let checksum = crc32c::crc32c_append(crc32c::crc32c_append(9, &len.to_le_bytes()), &content);
            log.extend_from_slice(&len.to_le_bytes());
            log.extend_from_slice(&checksum.to_le_bytes());
            log.extend_from_slice(&content);
        }
        let mut checksums = RangeChecksums::new(3);
        for at in offsets {
            if random.random() {
                checksums.advance_to(at);
                assert_eq!(checksums.seed_of(&log, at, &Record::read(&log, at).unwrap()), 9, "{at}");
                assert!(checksums.states.len() < STALE_STATES + 60_000 / STEP + 2);
            }
        }
    }

    #[test]
    fn powers_back_undo_those_forth() {
        let [low, high] = &SLOW_POWERS.back;
        for n in [0, 1, 255, LENGTHS] {
            assert_eq!(multiply(nth(low, n), power(X, 8 * n)), ONE, "{n}");
        }
        assert_eq!(
            (low.last(), high.last().copied()),
            (high.get(1), Some(power(nth(low, LENGTHS), LENGTHS)))
        );
    }
}
