//! Points in time as users type them.

use restante_core::Timestamp;

/// A point in time as it was typed: absolute, or relative to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    At(Timestamp),
    FromNow { seconds: i64 },
}

impl Moment {
    /// The absolute point in time, given the current one.
    pub(crate) fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(timestamp) => timestamp,
            Self::FromNow { seconds } => now.plus_seconds(seconds),
        }
    }
}

/// Reads `2026-01-31T12:00:00Z` (RFC 3339), `2026-01-31` (midnight UTC), nanoseconds since the epoch, `now`, or an
/// offset from now: `-90s`, `-30m`, `-1h`, `-7d`, `-2w`.
pub(crate) fn parse_moment(text: &str) -> Result<Moment, String> {
    let text = text.trim();
    let moment = relative(text).or_else(|| absolute(text));
    moment.ok_or_else(|| {
        format!("'{text}' is no time: use 2026-01-31T12:00:00Z, 2026-01-31, nanoseconds, now, or an offset like -1h or -7d")
    })
}

fn relative(text: &str) -> Option<Moment> {
    if text == "now" {
        return Some(Moment::FromNow { seconds: 0 });
    }
    let is_signed = text.starts_with(['-', '+']);
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit_seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return None,
    };
    let seconds = number.parse::<i64>().ok()?.checked_mul(unit_seconds)?;
    is_signed.then_some(Moment::FromNow { seconds })
}

fn absolute(text: &str) -> Option<Moment> {
    if let Ok(nanos) = text.parse() {
        return Some(Moment::At(Timestamp(nanos)));
    }
    let (date, time) = text.split_once(['T', 't', ' ']).unwrap_or((text, "00:00:00Z"));
    let days = days(date)?;
    let (clock, offset_seconds) = split_zone(time)?;
    let (whole, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let seconds = days * 86_400 + seconds_of_day(whole)? - offset_seconds;
    let nanos = seconds.checked_mul(restante_core::NANOS_PER_SECOND)?.checked_add(nanos_of(fraction)?)?;
    Some(Moment::At(Timestamp(nanos)))
}

/// The days from 1970-01-01 to a date of the Gregorian calendar.
fn days(date: &str) -> Option<i64> {
    let mut parts = date.split('-');
    let (year, month, day) =
        (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let february = if is_leap { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month_index = usize::try_from(month.checked_sub(1)?).ok()?;
    let is_date = (1..=*lengths.get(month_index)?).contains(&day) && parts.next().is_none();
    // The leap days of all years before this one, minus those before 1970.
    let leap_days =
        |year: i64| (year - 1).div_euclid(4) - (year - 1).div_euclid(100) + (year - 1).div_euclid(400);
    let before_year = (year - 1970) * 365 + leap_days(year) - leap_days(1970);
    let before_month: i64 = lengths.iter().take(month_index).sum();
    is_date.then_some(before_year + before_month + day - 1)
}

/// Splits `12:30:00Z` and `12:30:00+02:00` into the time of day and the offset from UTC in seconds.
fn split_zone(time: &str) -> Option<(&str, i64)> {
    if let Some(clock) = time.strip_suffix(['Z', 'z']) {
        return Some((clock, 0));
    }
    let place = time.rfind(['+', '-'])?;
    let (clock, zone) = time.split_at(place);
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    let seconds = hours * 3_600 + minutes * 60;
    let is_offset = hours < 24 && minutes < 60;
    is_offset.then_some((clock, if zone.starts_with('-') { -seconds } else { seconds }))
}

fn seconds_of_day(clock: &str) -> Option<i64> {
    let mut parts = clock.split(':');
    let (hour, minute) = (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let second = parts.next().map_or(Some(0), |second| digits(second, 2))?;
    // RFC 3339 §5.7: the second may be 60 in a leap second, which our clock doesn't have.
    let is_clock = hour < 24 && minute < 60 && second <= 60 && parts.next().is_none();
    is_clock.then_some(hour * 3_600 + minute * 60 + second)
}

/// The nanoseconds of the decimals of a second; decimals after the ninth are cut off.
fn nanos_of(fraction: &str) -> Option<i64> {
    let is_digits = fraction.bytes().all(|byte| byte.is_ascii_digit());
    let padded = format!("{fraction:0<9}");
    if is_digits { padded.get(..9)?.parse().ok() } else { None }
}

/// A number of exactly `count` digits.
fn digits(text: &str, count: usize) -> Option<i64> {
    let is_number = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_reads_back() {
        for seconds in [0, -1, 951_782_400, 1_582_934_400, 1_582_988_399, 4_107_542_400, -2_203_891_201] {
            for nanos in [0, 1, 999_999_999] {
                let timestamp = Timestamp(seconds * 1_000_000_000 + nanos);
                assert_eq!(parse_moment(&timestamp.to_string()), Ok(Moment::At(timestamp)), "{timestamp}");
            }
        }
    }

    #[test]
    fn other_spellings_are_understood() {
        let noon = Moment::At(Timestamp::from_seconds(1_769_860_800));
        for text in [
            "2026-01-31T12:00:00Z",
            "2026-01-31 12:00Z",
            "2026-01-31T14:00:00+02:00",
            "2026-01-31t09:30:00.0-02:30",
        ] {
            assert_eq!(parse_moment(text), Ok(noon), "{text}");
        }
        assert_eq!(parse_moment("2026-01-31"), Ok(Moment::At(Timestamp::from_seconds(1_769_817_600))));
        assert_eq!(parse_moment("1769860800000000000"), Ok(noon));
    }

    #[test]
    fn offsets_count_from_now() {
        let now = Timestamp::from_seconds(1_000_000);
        for (text, seconds) in
            [("-1h", 996_400), ("+90s", 1_000_090), ("-1w", 395_200), ("now", 1_000_000), ("-2d", 827_200)]
        {
            assert_eq!(parse_moment(text).unwrap().resolve(now), Timestamp::from_seconds(seconds), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "yesterday",
            "1h",
            "-1y",
            "2026-02-29",
            "2026-13-01",
            "2026-00-01",
            "2026-01-32",
            "2026-01-31T24:00:00Z",
            "2026-01-31T12:00:00",
            "2026-1-31",
            "2026-01-31T12:00:00+0200",
            "2026-01-31T12:00:00.x Z",
            "é",
            "-99999999999999999w",
        ] {
            assert!(parse_moment(text).is_err(), "{text}");
        }
    }
}
