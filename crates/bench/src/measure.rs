//! Durations: histograms, medians, and reading and copying of bytes as floors.

use std::{hint::black_box, time::Duration};

use hdrhistogram::Histogram;

/// Longer durations count as this one.
const NANOS_MAX: u64 = 3_600_000_000_000; // an hour
/// Points of a percentile curve.
const CURVE: [f64; 14] = [1.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.9, 100.0];

/// Many durations, with three significant digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(
            Histogram::new_with_bounds(1, NANOS_MAX, 3)
                .expect("the bounds are in order and 3 digits are allowed"),
        )
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(NANOS_MAX);
        self.0.saturating_record(nanos);
    }

    pub(crate) fn record_ms(&mut self, ms: f64) {
        self.0.saturating_record((ms * 1e6) as u64);
    }

    pub(crate) fn add(&mut self, others: &Self) {
        self.0.add(&others.0).expect("both histograms have the same bounds");
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn median_ms(&self) -> f64 {
        self.percentile_ms(50.0)
    }

    pub(crate) fn p95_ms(&self) -> f64 {
        self.percentile_ms(95.0)
    }

    pub(crate) fn p99_ms(&self) -> f64 {
        self.percentile_ms(99.0)
    }

    pub(crate) fn max_ms(&self) -> f64 {
        self.percentile_ms(100.0)
    }

    /// 0 of none.
    pub(crate) fn mean_ms(&self) -> f64 {
        self.0.mean() / 1e6
    }

    /// The duration that `percentile` percent of all, 0 to 100, did not exceed.
    pub(crate) fn percentile_ms(&self, percentile: f64) -> f64 {
        self.0.value_at_percentile(percentile) as f64 / 1e6
    }

    /// Percentiles and their durations in milliseconds, for a plot.
    pub(crate) fn curve(&self) -> Vec<(f64, f64)> {
        CURVE.iter().map(|percentile| (*percentile, self.percentile_ms(*percentile))).collect()
    }
}

/// The median (the lower of two middle numbers); 0 of none.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len().saturating_sub(1) / 2;
    numbers.get(middle).copied().unwrap_or(0.0)
}

/// A duration in milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Rounds a number for a report: to at most six decimals.
pub fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

/// One number divided by another; `None` for a divisor of 0.
pub(crate) fn ratio(number: f64, by: f64) -> Option<f64> {
    (by > 0.0 && number.is_finite()).then(|| rounded(number / by))
}

/// Reads every byte: counts the zeros, with the widest registers of the processor, as copying does.
pub(crate) fn touch(bytes: &[u8]) -> u64 {
    bytecount::count(bytes, 0) as u64
}

/// Reads all bodies, in a way that is not optimised away.
pub fn touch_all<'a>(bodies: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut total = 0_u64;
    for body in bodies {
        total = total.wrapping_add(touch(body));
    }
    black_box(total)
}

/// A buffer that answers are copied into, as by a server that bundles messages.
pub(crate) struct Bundle(Vec<u8>);

/// The size of the Status mailserver's bundles.
const BUNDLE_BYTES: usize = 1 << 20;

impl Bundle {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(BUNDLE_BYTES))
    }

    /// Copies all bodies one after the other; starts again at the front of a full buffer.
    pub(crate) fn copy_all(&mut self, bodies: &[&[u8]]) {
        self.0.clear();
        for body in bodies {
            if self.0.len() + body.len() > BUNDLE_BYTES {
                black_box(&self.0);
                self.0.clear();
            }
            self.0.extend_from_slice(body);
        }
        black_box(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read() {
        for len in [0, 1, 7, 8, 63, 64, 65, 200] {
            let mut bytes = vec![1_u8; len];
            for at in 0..len {
                bytes[at] = 0;
                assert_eq!(touch(&bytes), 1, "byte {at} of {len}");
                bytes[at] = 1;
            }
        }
    }

    #[test]
    fn percentiles_are_those_of_the_durations() {
        let mut latencies = Latencies::default();
        for micros in 1..=1_000 {
            latencies.record(Duration::from_micros(micros));
        }
        assert!((latencies.median_ms() - 0.5).abs() < 0.001);
        assert!((latencies.p99_ms() - 0.99).abs() < 0.001);
        assert!((latencies.max_ms() - 1.0).abs() < 0.001);
    }

    #[test]
    fn medians_need_no_order() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }

    #[test]
    fn a_bundle_accepts_bodies_of_any_size() {
        let long = vec![7; BUNDLE_BYTES + 1];
        let mut bundle = Bundle::new();
        bundle.copy_all(&[b"ab", &long, b"cd"]);
        assert_eq!(bundle.0, b"cd");
    }
}
