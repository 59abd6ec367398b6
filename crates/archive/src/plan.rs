//! The choice of the cheaper access path to the rows: a pure function of counts, shared by all engines.

/// What is known before a part of the archive is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Rows of the part that are in the wanted range of time.
    pub range_rows: usize,
    /// Rows of the part, in or out of the range.
    pub part_rows: usize,
    /// Rows of the wanted topics in the part, in or out of the range.
    pub wanted_rows: usize,
    /// Wanted topics that occur in the part.
    pub wanted_topics: usize,
    /// Rows that are still to be found.
    pub limit: usize,
}

/// An access path to the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Walk the rows of the range in order and skip those of other topics.
    Scan,
    /// Merge the wanted topics' postings, each of which is sorted.
    Merge,
}

// The cost of a step, relative to reading one row of a scan. Measured with `restante bench pages`; only the rough proportions
// matter: a wrong choice near the break-even point costs little by definition.
const SCAN_ROW: f64 = 1.0;
const SEEK_TOPIC: f64 = 60.0;
const MERGE_ROW: f64 = 8.0;

/// Chooses the cheaper path.
///
/// With k wanted topics that have n >= k of R rows, a page of L rows costs about `L R / n` by scan and `60 k` by merge. The
/// worst case of the cheaper one is therefore near `k = sqrt(L R / 60)`: under 0.1 ms for R = 1 million and L = 100.
pub fn access(counts: Counts) -> Access {
    let share = counts.wanted_rows as f64 / counts.part_rows.max(1) as f64;
    let wanted_in_range = share * counts.range_rows as f64;
    let found = wanted_in_range.min(counts.limit as f64);
    let scanned = if found < counts.limit as f64 { counts.range_rows as f64 } else { found / share };
    let topics = counts.wanted_topics as f64;
    let scan = scanned * SCAN_ROW;
    let merge = topics * SEEK_TOPIC + found * (MERGE_ROW + 4.0 * topics.max(1.0).log2());
    if scan <= merge { Access::Scan } else { Access::Merge }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Counts =
        Counts { range_rows: 50_000, part_rows: 50_000, wanted_rows: 0, wanted_topics: 0, limit: 100 };

    #[test]
    fn few_rows_of_few_topics_are_merged() {
        assert_eq!(access(Counts { wanted_rows: 34, wanted_topics: 3, ..DAY }), Access::Merge);
        assert_eq!(access(Counts { wanted_rows: 300, wanted_topics: 200, ..DAY }), Access::Merge);
    }

    #[test]
    fn nearly_everything_is_scanned() {
        assert_eq!(access(Counts { wanted_rows: 48_000, wanted_topics: 1_500, ..DAY }), Access::Scan);
        assert_eq!(
            access(Counts { wanted_rows: 12_000, wanted_topics: 256, limit: 10_000, ..DAY }),
            Access::Scan
        );
    }

    #[test]
    fn a_scan_costs_what_a_page_needs_and_not_the_whole_range() {
        let half = Counts { wanted_rows: 25_000, wanted_topics: 500, ..DAY };
        assert_eq!(access(half), Access::Scan, "200 rows are enough");
        assert_eq!(access(Counts { limit: 25_000, ..half }), Access::Scan);
        assert_eq!(access(Counts { wanted_rows: 50, wanted_topics: 5, ..DAY }), Access::Merge);
    }

    #[test]
    fn many_rare_topics_are_scanned_for_a_small_page() {
        assert_eq!(access(Counts { wanted_rows: 2_000, wanted_topics: 1_500, ..DAY }), Access::Scan);
    }
}
