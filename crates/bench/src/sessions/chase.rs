//! The cost of a cache miss on this machine at this time, to compare look-ups with.

use std::{hint::black_box, time::Instant};

use crate::{
    measure::{median, rounded},
    random::Random,
};

/// Lines of the chain: more than the caches of most processors hold.
const LINES: u32 = 1 << 20;
const LINES_QUICK: u32 = 1 << 10;
/// Steps of one batch, and batches.
const STEPS: u32 = 50_000;
const BATCHES: usize = 9;

/// A cache line with the index of the next.
#[repr(align(64))]
struct Line(u32);

/// A cycle in random order through 64 MB: each line holds the index of the next, so no two misses overlap.
pub(super) struct Chase {
    lines: Vec<Line>,
}

impl Chase {
    pub(super) fn new(is_quick: bool) -> Self {
        Self { lines: cycle(if is_quick { LINES_QUICK } else { LINES }) }
    }

    /// The median time of a step.
    pub(super) fn miss_ns(&self) -> f64 {
        let mut at = 0;
        let mut times = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            let begun = Instant::now();
            for _ in 0..STEPS {
                at = self.lines.get(at as usize).map_or(0, |line| line.0);
            }
            times.push(begun.elapsed().as_nanos() as f64 / f64::from(STEPS));
            black_box(at);
        }
        rounded(median(times))
    }
}

/// One cycle through all lines, each equally likely (Sattolo's method).
fn cycle(count: u32) -> Vec<Line> {
    let mut order: Vec<u32> = (0..count).collect();
    let mut random = Random::new(0, 31);
    for last in (1..order.len()).rev() {
        let chosen = random.below(last as u64) as usize;
        order.swap(last, chosen);
    }
    order.into_iter().map(Line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chase_visits_every_line_before_it_returns() {
        let lines = cycle(1_000);
        let (mut at, mut steps) = (lines[0].0, 1);
        while at != 0 {
            at = lines[at as usize].0;
            steps += 1;
        }
        assert_eq!(steps, 1_000);
        assert_eq!(size_of::<Line>(), 64);
        assert!(Chase::new(true).miss_ns() > 0.0);
    }
}
