//! How a span is read: window by window, or by the keys of the wanted topics.

// The cost of a step, in microseconds, on one node with rows of a few hundred bytes; only the proportions matter.
const SCAN_ROW: f64 = 10.0;
const SCAN_WINDOW: f64 = 300.0;
const SEEK_TOPIC: f64 = 100.0;
const MERGE_ROW: f64 = 40.0;

/// A way to read the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Read the rows of the windows and skip those of other topics.
    Scan,
    /// Merge the keys of the wanted topics, and read their rows.
    Merge,
}

/// The rows that a query has read, and how many of them matched. No counts per topic are stored, so the plan is based on these.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Observed {
    seen: usize,
    matched: usize,
}

impl Observed {
    pub(super) fn add(&mut self, seen: usize, matched: usize) {
        // Rows that were read by their keys all match.
        if seen > 0 {
            self.seen += seen;
            self.matched += matched;
        }
    }

    /// Chooses the cheaper way through a span in which `missing` rows are still to be found. Until rows were seen, all topics of
    /// the epoch are assumed to be equally frequent.
    pub(super) fn access(&self, wanted: usize, topics: usize, windows: usize, missing: usize) -> Access {
        let by_topics = wanted as f64 / topics.max(1) as f64;
        // A hundred rows weigh as much as the estimate from the number of topics.
        let share = (by_topics * 100.0 + self.matched as f64) / (100.0 + self.seen as f64);
        let rows = missing as f64 / share.max(1e-6);
        let scan = SCAN_WINDOW * windows as f64 / 4.0 + rows * SCAN_ROW;
        let merge = wanted as f64 * SEEK_TOPIC + missing as f64 * MERGE_ROW;
        if scan <= merge { Access::Scan } else { Access::Merge }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_topics_of_many_are_merged() {
        assert_eq!(Observed::default().access(3, 10_000, 24, 101), Access::Merge);
        assert_eq!(Observed::default().access(20, 10_000, 24, 101), Access::Merge);
    }

    #[test]
    fn most_topics_are_scanned() {
        assert_eq!(Observed::default().access(900, 1_000, 24, 101), Access::Scan);
        assert_eq!(Observed::default().access(2_000, 10_000, 1, 101), Access::Scan);
    }

    #[test]
    fn a_scan_that_finds_nothing_is_not_continued() {
        let mut observed = Observed::default();
        assert_eq!(observed.access(2_000, 10_000, 1, 101), Access::Scan);
        observed.add(100_000, 0);
        assert_eq!(observed.access(2_000, 10_000, 1, 101), Access::Merge);
    }
}
