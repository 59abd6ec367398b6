//! What an archive holds, by day.

use restante_archive::PartStats;
use restante_core::{NANOS_PER_SECOND, Timestamp};
use serde::Serialize;

/// The most days that are shown: as many as fit side by side on a page.
pub(crate) const DAYS_MAX: usize = 60;

const DAY_NANOS: i64 = 86_400 * NANOS_PER_SECOND;

/// The last days of an archive.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Days {
    /// The first of them, in days since 1970-01-01 in UTC.
    first: i64,
    /// Messages of each, in order.
    messages: Vec<u64>,
    /// Bytes on disk of each.
    disk_bytes: Vec<u64>,
    /// Messages outside of these days.
    messages_outside: u64,
    disk_bytes_outside: u64,
    /// Whether a part of the archive spans several days and was spread over them evenly: consecutive messages in SQLite, or a
    /// segment that has late ones.
    is_estimate: bool,
}

impl Days {
    /// The days up to the newest message or, if messages are from the future, up to now; `None` for an archive without messages.
    pub(crate) fn of(parts: &[PartStats], now: Timestamp) -> Option<Self> {
        let newest = parts.iter().map(|part| part.newest).max()?;
        let oldest = parts.iter().map(|part| part.oldest).min()?;
        let last = day_of(newest).min(day_of(now));
        let first = day_of(oldest).max(last.saturating_sub(DAYS_MAX as i64 - 1)).min(last);
        let days = usize::try_from(last - first + 1).unwrap_or(1);
        let mut all = Self { first, messages: vec![0; days], disk_bytes: vec![0; days], ..Self::default() };
        for part in parts {
            all.add(part);
        }
        Some(all)
    }

    fn add(&mut self, part: &PartStats) {
        let (begin, end) = (day_of(part.oldest), day_of(part.newest));
        self.is_estimate |= begin != end;
        let span = i128::from(part.newest.nanos()) - i128::from(part.oldest.nanos());
        let mut left = (part.messages, part.disk_bytes);
        for (index, (messages, disk_bytes)) in self.messages.iter_mut().zip(&mut self.disk_bytes).enumerate()
        {
            let day = self.first.saturating_add(index as i64);
            if day < begin || day > end {
                continue;
            }
            let share = |whole: u64| if begin == end { whole } else { share_of(whole, part, day, span) };
            let (here, bytes_here) = (share(part.messages).min(left.0), share(part.disk_bytes).min(left.1));
            *messages = messages.saturating_add(here);
            *disk_bytes = disk_bytes.saturating_add(bytes_here);
            left = (left.0 - here, left.1 - bytes_here);
        }
        self.messages_outside = self.messages_outside.saturating_add(left.0);
        self.disk_bytes_outside = self.disk_bytes_outside.saturating_add(left.1);
    }
}

/// The share of a part that falls into a day, assuming that its messages are evenly distributed.
fn share_of(whole: u64, part: &PartStats, day: i64, span: i128) -> u64 {
    let day_begins = i128::from(day) * i128::from(DAY_NANOS);
    let begin = day_begins.max(part.oldest.nanos().into());
    let end = (day_begins + i128::from(DAY_NANOS)).min(part.newest.nanos().into());
    let share = (end - begin).max(0) as f64 / span.max(1) as f64;
    (whole as f64 * share).round() as u64
}

fn day_of(timestamp: Timestamp) -> i64 {
    timestamp.nanos().div_euclid(DAY_NANOS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(oldest_hours: i64, newest_hours: i64, messages: u64) -> PartStats {
        let at = |hours: i64| Timestamp::from_seconds(hours * 3600);
        PartStats {
            name: "part".into(),
            oldest: at(oldest_hours),
            newest: at(newest_hours),
            messages,
            disk_bytes: messages.saturating_mul(10),
            is_open: false,
        }
    }

    const DAY: i64 = 24;

    #[test]
    fn parts_of_a_day_are_added_up() {
        let parts = [part(1, 2, 5), part(3, 4, 6), part(DAY + 1, DAY + 23, 7), part(3 * DAY, 3 * DAY, 8)];
        let days = Days::of(&parts, Timestamp::from_seconds(1_000_000)).unwrap();
        assert_eq!((days.first, &*days.messages), (0, &[11, 7, 0, 8][..]));
        assert_eq!(days.disk_bytes, [110, 70, 0, 80]);
        assert_eq!((days.messages_outside, days.is_estimate), (0, false));
        assert_eq!(Days::of(&[], Timestamp(0)), None);
    }

    #[test]
    fn a_part_of_several_days_is_spread_over_them() {
        let days = Days::of(&[part(12, 2 * DAY, 30)], Timestamp::from_seconds(1_000_000)).unwrap();
        assert_eq!((&*days.messages, days.is_estimate), (&[10, 20, 0][..], true));
        assert_eq!(days.messages_outside, 0);
    }

    #[test]
    fn old_and_future_messages_are_outside() {
        let now = Timestamp::from_seconds(100 * 86_400);
        let parts = [part(0, 1, 3), part(100 * DAY, 100 * DAY + 1, 4), part(5_000 * DAY, 5_000 * DAY, 5)];
        let days = Days::of(&parts, now).unwrap();
        assert_eq!((days.first, days.messages.len()), (41, DAYS_MAX));
        assert_eq!((days.messages[59], days.messages_outside), (4, 8));
        let days = Days::of(&[part(5_000 * DAY, 5_001 * DAY, 5)], now).unwrap();
        assert_eq!((days.first, &*days.messages, days.messages_outside), (100, &[0][..], 5));
    }

    #[test]
    fn the_ends_of_time_are_no_trouble() {
        let whole = PartStats { oldest: Timestamp::MIN, newest: Timestamp::MAX, ..part(0, 0, u64::MAX) };
        let days = Days::of(&[whole], Timestamp::MAX).unwrap();
        assert_eq!(days.messages.len(), DAYS_MAX);
        assert!(days.messages_outside > 0 && days.is_estimate);
    }
}
