use std::fmt;

/// Nanoseconds in one second.
pub const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// A point in time: signed nanoseconds since 1970-01-01T00:00:00Z, as in `14/WAKU2-MESSAGE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The earliest timestamp.
    pub const MIN: Self = Self(i64::MIN);
    /// The latest timestamp.
    pub const MAX: Self = Self(i64::MAX);

    /// The timestamp of a whole second; saturates at the ends of the range.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND))
    }

    /// Nanoseconds since the epoch.
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// Whole seconds since the epoch, rounded towards the past.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(NANOS_PER_SECOND)
    }

    /// This point plus `seconds` (which may be negative); saturates at the ends of the range.
    pub const fn plus_seconds(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(NANOS_PER_SECOND)))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with nanoseconds, for display: `2019-04-01T00:00:00.000000000Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds();
        let (year, month, day) = civil_date(seconds.div_euclid(86_400));
        let of_day = seconds.rem_euclid(86_400);
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        let nanos = self.0.rem_euclid(NANOS_PER_SECOND);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
    }
}

/// The proleptic Gregorian date of a day counted from 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last of its year and every month's offset is a fixed
/// linear function of its number.
fn civil_date(days: i64) -> (i64, i64, i64) {
    const DAYS_PER_ERA: i64 = 146_097; // 400 years
    let from_march_0000 = days + 719_468;
    let era = from_march_0000.div_euclid(DAYS_PER_ERA);
    let day_of_era = from_march_0000.rem_euclid(DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_shown_in_utc() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(Timestamp::from_seconds(1_554_076_800).to_string(), "2019-04-01T00:00:00.000000000Z");
        assert_eq!(Timestamp::from_seconds(1_582_934_400).to_string(), "2020-02-29T00:00:00.000000000Z");
        assert_eq!(Timestamp(-1).to_string(), "1969-12-31T23:59:59.999999999Z");
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::MAX.plus_seconds(1), Timestamp::MAX);
        assert_eq!(Timestamp::from_seconds(i64::MIN), Timestamp::MIN);
    }
}
