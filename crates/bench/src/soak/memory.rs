//! The server's private memory over time.

use std::time::Duration;

use crate::measure::median;

/// Samples of a figure over a run of a certain length.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    /// Seconds since the beginning, and bytes.
    pub(super) points: Vec<(f64, f64)>,
    pub(super) seconds: f64,
}

impl Samples {
    pub(super) fn of(length: Duration) -> Self {
        Self { points: Vec::new(), seconds: length.as_secs_f64() }
    }

    /// The median in megabytes between two shares of the run.
    pub(super) fn median_mb(&self, from: f64, to: f64) -> Option<f64> {
        let is_inside = |second: f64| second >= from * self.seconds && second <= to * self.seconds;
        let inside: Vec<f64> = self
            .points
            .iter()
            .filter(|(second, _)| is_inside(*second))
            .map(|(_, bytes)| bytes / 1e6)
            .collect();
        (!inside.is_empty()).then(|| median(inside))
    }

    /// How much it grew from the middle of the run (4 to 6 tenths) to its end (the last tenth), in megabytes.
    pub(super) fn growth_mb(&self) -> Option<f64> {
        Some(self.median_mb(0.9, 1.0)? - self.median_mb(0.4, 0.6)?)
    }

    /// The slope over the second half in megabytes a minute, by least squares.
    pub(super) fn slope_mb_per_minute(&self) -> Option<f64> {
        let half: Vec<(f64, f64)> =
            self.points.iter().filter(|(second, _)| *second >= self.seconds / 2.0).copied().collect();
        let count = half.len() as f64;
        let mean_x = half.iter().map(|(second, _)| second).sum::<f64>() / count;
        let mean_y = half.iter().map(|(_, bytes)| bytes).sum::<f64>() / count;
        let spread: f64 = half.iter().map(|(second, _)| (second - mean_x).powi(2)).sum();
        let common: f64 = half.iter().map(|(second, bytes)| (second - mean_x) * (bytes - mean_y)).sum();
        (spread > 0.0).then(|| common / spread * 60.0 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(bytes: impl Fn(f64) -> f64) -> Samples {
        let mut samples = Samples::of(Duration::from_secs(100));
        samples.points = (0..=100).map(|second| (f64::from(second), bytes(f64::from(second)))).collect();
        samples
    }

    #[test]
    fn flat_memory_has_no_slope_and_a_leak_has_one() {
        let flat = samples(|second| if second < 20.0 { second * 1e6 } else { 20e6 });
        assert_eq!((flat.growth_mb(), flat.median_mb(0.0, 0.1)), (Some(0.0), Some(5.0)));
        assert!(flat.slope_mb_per_minute().unwrap().abs() < 1e-9);
        let leak = samples(|second| 10e6 + second * 1e6);
        assert!((leak.slope_mb_per_minute().unwrap() - 60.0).abs() < 1e-6);
        assert!((leak.growth_mb().unwrap() - 45.0).abs() < 1e-9);
        assert_eq!(Samples::of(Duration::from_secs(1)).growth_mb(), None);
    }
}
