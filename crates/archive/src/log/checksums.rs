//! Checksums of any range of a log, from checksums of its beginning.
//!
//! A reader that looks for the next sound record may find a plausible header at every few bytes, because anybody may choose
//! what a body holds. Reading each candidate to its end would take time quadratic in the log. A CRC is linear, so that the
//! one of bytes `a..b` follows from those of the bytes before `a` and before `b`:
//!
//! ```text
//! state(s, a..b) = (s ^ state(0, 0..a)) * x^(8 (b - a)) ^ state(0, 0..b)      modulo the CRC's polynomial
//! ```
//!
//! States are kept at every [`STEP`] bytes as far as the longest candidate reaches, so that a candidate costs no more than
//! the bytes since the one before it and a step, however long it claims to be.

use std::{collections::VecDeque, sync::LazyLock};

use crate::record::{FRAME_BYTES, Record};

/// Bytes between two states that are kept. Those of the longest record take 4 MiB.
const STEP: usize = 16;
/// So many states that are no longer needed are removed at once.
const STALE_STATES: usize = 1 << 12;
/// The polynomial of CRC-32C. The highest bit stands for x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;
const X_TO_THE_8: u32 = 1 << 23;
/// Powers of x^8 are kept for lengths below this, and for its multiples.
const POWERS: usize = 1 << 12;

/// x^(8 n) for n from 0 to `POWERS`.
static LOW_POWERS: LazyLock<Vec<u32>> = LazyLock::new(|| powers(X_TO_THE_8));
/// x^(8 n `POWERS`) for n from 0 to `POWERS`: as far as the longest record needs.
static HIGH_POWERS: LazyLock<Vec<u32>> = LazyLock::new(|| powers(LOW_POWERS.last().copied().unwrap_or(ONE)));

/// `base` to the power of n for n from 0 to `POWERS`.
fn powers(base: u32) -> Vec<u32> {
    let next = |power: &u32| Some(multiply(*power, base));
    std::iter::successors(Some(ONE), next).take(POWERS + 1).collect()
}

/// See the module.
pub(super) struct RangeChecksums {
    /// Where the first state lies.
    base: usize,
    /// The states at `base`, `base + STEP`, and so on.
    states: VecDeque<u32>,
    /// Where the last record's content began, and the state there.
    last_begin: (usize, u32),
    /// Bytes that were read.
    pub(super) read_bytes: u64,
}

impl RangeChecksums {
    /// Checksums of records that begin at `base` or behind it.
    pub(super) fn new(base: usize) -> Self {
        Self { base, states: VecDeque::from([0]), last_begin: (base, 0), read_bytes: 0 }
    }

    /// Says that records before `at` are not asked about any more.
    pub(super) fn advance_to(&mut self, at: usize) {
        let steps = at.saturating_sub(self.base) / STEP;
        if steps >= self.states.len() {
            self.states.clear();
            self.states.push_back(0);
            (self.base, self.last_begin) = (at, (at, 0));
        } else if steps >= STALE_STATES {
            self.states.drain(..steps);
            self.base += steps * STEP;
        }
    }

    /// Whether the record at `at` has the right checksum: what [`Record::is_sound`] says, for a few bytes only.
    pub(super) fn is_sound(&mut self, log: &[u8], at: usize, record: &Record<'_>, seed: u32) -> bool {
        let (length, checksum) = record.frame();
        let (begin, end) = (at + FRAME_BYTES, at + record.len());
        let state = update(!seed, &length) ^ self.begin_state(log, begin);
        let state = multiply(state, power(end - begin)) ^ self.state(log, end);
        !state == checksum
    }

    /// [`Self::state`] for positions that ascend by little, as a rule.
    fn begin_state(&mut self, log: &[u8], at: usize) -> u32 {
        let (last, state) = self.last_begin;
        let state = match log.get(last..at) {
            Some(since) if since.len() <= STEP => {
                self.read_bytes += since.len() as u64;
                update(state, since)
            }
            _ => self.state(log, at),
        };
        self.last_begin = (at, state);
        state
    }

    /// The state before `at`, begun with 0 where the first state was.
    fn state(&mut self, log: &[u8], at: usize) -> u32 {
        let step = at.saturating_sub(self.base) / STEP;
        while self.states.len() <= step {
            let from = self.base + (self.states.len() - 1) * STEP;
            let last = self.states.back().copied().unwrap_or(0);
            self.states.push_back(update(last, log.get(from..from + STEP).unwrap_or_default()));
            self.read_bytes += STEP as u64;
        }
        let rest = log.get(self.base + step * STEP..at).unwrap_or_default();
        self.read_bytes += rest.len() as u64;
        update(self.states.get(step).copied().unwrap_or(0), rest)
    }
}

/// x^(8 `len`), for lengths up to `POWERS` squared and a little more: those of records.
fn power(len: usize) -> u32 {
    let kept = |powers: &[u32], n: usize| powers.get(n).copied().unwrap_or(ONE);
    let low = kept(&LOW_POWERS, len % POWERS);
    if len < POWERS { low } else { multiply(kept(&HIGH_POWERS, len / POWERS), low) }
}

/// A CRC's state after more bytes. The library inverts it before and after.
fn update(state: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!state, bytes)
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

#[cfg(test)]
mod tests {
    use rand::{Rng, RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

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
                let mut checksums = RangeChecksums::new(random.random_range(0..at));
                for _ in 0..2 {
                    assert_eq!(checksums.is_sound(&log, at, &record, seed), wrong == 0, "{at} {len}");
                    checksums.advance_to(random.random_range(checksums.base..=at));
                }
            }
        }
    }

    /// One after the other over a long log: what is no longer needed is removed meanwhile, and what is skipped is not read.
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
                assert!(checksums.is_sound(&log, at, &Record::read(&log, at).unwrap(), 9), "{at}");
                assert!(checksums.states.len() < STALE_STATES + 60_000 / STEP + 2);
            }
        }
    }

    #[test]
    fn powers_add_up() {
        for (left, right) in [(0, 0), (1, 4_095), (4_096, 4_096), (16 << 20, 52), (70_000, 3)] {
            assert_eq!(multiply(power(left), power(right)), power(left + right));
        }
    }
}
