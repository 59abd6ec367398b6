use restante_core::Timestamp;

use super::SyncConfig;

/// A range is read in slices of this length. A finished slice counts as progress even if the next ones fail.
const SLICE_SECONDS: i64 = 900;
/// The least overlap of a run with the previous one: clocks differ, and messages arrive late.
const OVERLAP_SECONDS: i64 = 60;

/// A time range with exclusive end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
}

impl Window {
    /// The window of a run: the configured range, extended back to the progress of earlier runs, within the resume range, and not
    /// before `floor`.
    pub(super) fn next(
        now: Timestamp,
        synced_until: Option<Timestamp>,
        floor: Timestamp,
        config: &SyncConfig,
    ) -> Self {
        let before =
            |seconds: u64| now.plus_seconds(i64::try_from(seconds).map_or(i64::MIN, |seconds| -seconds));
        let usual = before(config.range_seconds.get());
        let earliest = before(config.resume_range_seconds.get()).min(usual);
        let start = match synced_until {
            None => earliest,
            Some(until) => until.plus_seconds(-OVERLAP_SECONDS).min(usual).max(earliest),
        };
        Self { start: start.max(floor), end: before(config.lag_seconds) }
    }

    /// The window in slices, from old to new; none when it is empty.
    pub(super) fn slices(self) -> impl Iterator<Item = Self> {
        let mut start = self.start;
        std::iter::from_fn(move || {
            if start >= self.end {
                return None;
            }
            let slice = Self { start, end: start.plus_seconds(SLICE_SECONDS).min(self.end) };
            start = slice.end;
            Some(slice)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use restante_core::nonzero;

    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_700_000_000);

    fn ago(seconds: i64) -> Timestamp {
        NOW.plus_seconds(-seconds)
    }

    fn start(synced_until: Option<Timestamp>) -> Timestamp {
        let window = Window::next(NOW, synced_until, Timestamp::MIN, &SyncConfig::default());
        assert_eq!(window.end, ago(20), "younger messages are left to relay");
        window.start
    }

    #[test]
    fn a_run_looks_back_over_its_range_and_over_what_was_missed() {
        assert_eq!(start(Some(ago(300))), ago(3_600), "the usual range");
        assert_eq!(start(Some(ago(3_600))), ago(3_660), "an overlap with the run before");
        assert_eq!(start(Some(ago(7_200))), ago(7_260), "two hours were missed");
        assert_eq!(start(Some(ago(86_400))), ago(21_600), "a day was missed: six hours are queried");
        assert_eq!(start(None), ago(21_600), "there is no progress");
    }

    #[test]
    fn a_run_does_not_fetch_messages_that_retention_would_remove() {
        let window = |floor| Window::next(NOW, None, floor, &SyncConfig::default());
        assert_eq!(window(ago(600)), Window { start: ago(600), end: ago(20) });
        assert_eq!(window(ago(99_999)).start, ago(21_600));
        assert_eq!(window(ago(5)).slices().count(), 0, "nothing is retained that long");
    }

    #[test]
    fn odd_settings_make_no_odd_windows() {
        let none = SyncConfig {
            range_seconds: nonzero!(1),
            resume_range_seconds: nonzero!(1),
            ..SyncConfig::default()
        };
        assert_eq!(Window::next(NOW, None, Timestamp::MIN, &none).slices().count(), 0);
        let all = SyncConfig { range_seconds: NonZero::<u64>::MAX, lag_seconds: 0, ..SyncConfig::default() };
        let window = Window::next(NOW, None, Timestamp::MIN, &all);
        assert!(window.start <= Timestamp(0), "{window:?}");
        assert_eq!(window.end, NOW);
    }

    #[test]
    fn slices_are_the_window_without_gaps() {
        let window = Window { start: ago(2_000), end: ago(20) };
        let slices: Vec<_> = window.slices().collect();
        assert_eq!(slices.len(), 3);
        assert_eq!((slices[0].start, slices[2].end), (window.start, window.end));
        assert!(slices.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(Window { start: NOW, end: NOW }.slices().count(), 0);
    }
}
