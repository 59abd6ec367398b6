//! Random numbers by SplitMix64, so that a data set depends on its seed alone and not on a library's version.

/// A stream of random numbers. Streams of one seed are independent.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

/// SplitMix64's step: the odd number next to 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

impl Random {
    /// The stream of this number.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed.wrapping_add(STEP)) ^ mix(mix(stream).wrapping_add(STEP)))
    }

    /// The next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`; its bias is below `bound` / 2^64.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.bits()) * u128::from(bound);
        (wide >> 64) as u64
    }

    /// A number from 0 up to, but not, 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number of the standard normal distribution, by the method of Box and Muller.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let angle = std::f64::consts::TAU * self.unit();
        radius * angle.cos()
    }

    /// Random bytes, which no compressor can shorten.
    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        let (words, tail) = out.as_chunks_mut::<8>();
        for word in words {
            *word = self.bits().to_le_bytes();
        }
        for (byte, random) in tail.iter_mut().zip(self.bits().to_le_bytes()) {
            *byte = random;
        }
    }

    /// Puts the items into random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let chosen = self.below(last as u64 + 1) as usize;
            items.swap(last, chosen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ() {
        let (mut one, mut same, mut other) = (Random::new(1, 2), Random::new(1, 2), Random::new(2, 1));
        let first = one.bits();
        assert_eq!(first, same.bits());
        assert_ne!(first, other.bits());
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_deviation_one() {
        let mut random = Random::new(0, 0);
        let numbers: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = numbers.iter().sum::<f64>() / 20_000.0;
        let variance = numbers.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03, "{mean}");
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn shuffling_keeps_the_items() {
        let mut items: Vec<u32> = (0..1_000).collect();
        Random::new(5, 0).shuffle(&mut items);
        assert_ne!(items, (0..1_000).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..1_000).collect::<Vec<_>>());
    }
}
