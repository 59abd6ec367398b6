use std::fmt;

use super::scan::{Scanner, Token};

/// The most tokens of a date that are parsed: a day's name, its comma, four words, `hh:mm:ss`, a zone, and some more.
const TOKENS_MAX: usize = 16;
const SECONDS_PER_DAY: i64 = 86_400;
/// The valid years: from RFC 5322's first one to the last one with four digits.
const YEARS: std::ops::RangeInclusive<i64> = 1900..=9999;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"]; // of 1970-01-01 and the days after it

/// A point in time with the zone in which it was written.
///
/// Displayed as JMAP's `Date`: RFC 3339 in the zone, such as `2014-10-30T14:12:00+08:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub seconds: i64,
    /// Minutes that the zone is ahead of UTC.
    pub offset_minutes: i16,
}

/// A date's parts in its zone.
#[derive(Clone, Copy)]
struct Civil {
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
    second_of_day: i64,
}

/// The Date form; `None` if the value is not a date and time of RFC 5322, section 3.3 or 4.3. Without a zone it is UTC.
pub fn as_date(value: &[u8]) -> Option<Date> {
    let mut scanner = Scanner::new(value);
    let tokens: Vec<Token<'_>> = std::iter::from_fn(|| scanner.next_word()).take(TOKENS_MAX).collect();
    let mut rest = tokens.as_slice();
    let is_name_of_day = |word: &[u8]| word.first().is_some_and(u8::is_ascii_alphabetic);
    if let [Token::Atom(word), after @ ..] = rest
        && is_name_of_day(word)
    {
        rest = match after {
            [Token::Special(b','), after @ ..] => after,
            after => after,
        };
    }
    let [Token::Atom(day), Token::Atom(month), Token::Atom(year), rest @ ..] = rest else { return None };
    let [Token::Atom(hour), Token::Special(b':'), Token::Atom(minute), rest @ ..] = rest else { return None };
    let (second, zone) = match rest {
        [Token::Special(b':'), Token::Atom(second), zone @ ..] => (*second, zone),
        zone => (b"0".as_slice(), zone),
    };
    let (hour, minute, second) = (number(hour)?, number(minute)?, number(second)?);
    let is_time = hour < 24 && minute < 60 && second <= 60; // 60 is a leap second
    let civil = Civil {
        year: year_of(year)?,
        month: month_of(month)?,
        day: number(day)?,
        second_of_day: hour * 3_600 + minute * 60 + second,
    };
    if !is_time {
        return None;
    }
    Date::from_civil(civil, zone_of(zone)?)
}

impl Date {
    /// A `Date` or `UTCDate` of JMAP: RFC 3339 with `T` and a zone, upper case, without a fraction of zero. Fractions are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.split_once('T')?;
        let (time, offset_minutes) = match time.strip_suffix('Z') {
            Some(time) => (time, 0),
            None => {
                let (time, zone) = time.split_at_checked(time.len().checked_sub(6)?)?;
                (time, offset_of(zone.as_bytes()).filter(|_| zone.contains(':'))?)
            }
        };
        let (time, fraction) =
            time.split_once('.').map_or((time, None), |(time, fraction)| (time, Some(fraction)));
        let is_fraction =
            |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.contains(|c| c != '0');
        if !fraction.is_none_or(is_fraction) {
            return None;
        }
        let [year, month, day] = fields(date, '-', [4, 2, 2])?;
        let [hour, minute, second] = fields(time, ':', [2, 2, 2])?;
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let second_of_day = hour * 3_600 + minute * 60 + second;
        Self::from_civil(Civil { year, month, day, second_of_day }, offset_minutes)
    }

    /// The date in the format of RFC 5322: `Thu, 30 Oct 2014 14:12:00 +0800`.
    pub fn to_rfc_5322(self) -> String {
        let civil = self.civil();
        let days = days_before_year(civil.year) + day_of_year(civil) - days_before_year(1970);
        let name = |names: &[&'static str], at: i64| {
            usize::try_from(at).ok().and_then(|at| names.get(at).copied()).unwrap_or_default()
        };
        let (weekday, month) = (name(&WEEKDAYS, days.rem_euclid(7)), name(&MONTHS, civil.month - 1));
        let (hour, minute, second) = civil.time();
        let (sign, offset) = (self.sign(), self.offset_minutes.unsigned_abs());
        format!(
            "{weekday}, {} {month} {:04} {hour:02}:{minute:02}:{second:02} {sign}{:02}{:02}",
            civil.day,
            civil.year,
            offset / 60,
            offset % 60
        )
    }

    fn from_civil(civil: Civil, offset_minutes: i16) -> Option<Self> {
        let is_date = YEARS.contains(&civil.year)
            && (1..=12).contains(&civil.month)
            && (1..=days_in_month(civil.year, civil.month)).contains(&civil.day);
        if !is_date {
            return None;
        }
        let days = days_before_year(civil.year) - days_before_year(1970) + day_of_year(civil);
        let seconds = days * SECONDS_PER_DAY + civil.second_of_day - i64::from(offset_minutes) * 60;
        Some(Self { seconds, offset_minutes })
    }

    /// The parts in the zone, limited to the years that four digits can represent.
    fn civil(self) -> Civil {
        let first = -days_before_year(1970) * SECONDS_PER_DAY;
        let last = (days_before_year(10_000) - days_before_year(1970)) * SECONDS_PER_DAY - 1;
        let local = self.seconds.saturating_add(i64::from(self.offset_minutes) * 60).clamp(first, last);
        let days = local.div_euclid(SECONDS_PER_DAY) + days_before_year(1970);
        // Too small by a few years at most, as no year has more than 366 days.
        let mut year = days / 366;
        while days_before_year(year + 1) <= days {
            year += 1;
        }
        let (mut month, mut day) = (1, days - days_before_year(year) + 1);
        while day > days_in_month(year, month) {
            day -= days_in_month(year, month);
            month += 1;
        }
        Civil { year, month, day, second_of_day: local.rem_euclid(SECONDS_PER_DAY) }
    }

    fn sign(self) -> char {
        if self.offset_minutes < 0 { '-' } else { '+' }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let civil = self.civil();
        let (hour, minute, second) = civil.time();
        write!(f, "{:04}-{:02}-{:02}T", civil.year, civil.month, civil.day)?;
        write!(f, "{hour:02}:{minute:02}:{second:02}")?;
        if self.offset_minutes == 0 {
            return f.write_str("Z");
        }
        let offset = self.offset_minutes.unsigned_abs();
        write!(f, "{}{:02}:{:02}", self.sign(), offset / 60, offset % 60)
    }
}

impl Civil {
    fn time(self) -> (i64, i64, i64) {
        (self.second_of_day / 3_600, self.second_of_day / 60 % 60, self.second_of_day % 60)
    }
}

/// Days from 0000-01-01 to the first day of a year, from 0 on, in the Gregorian calendar.
fn days_before_year(year: i64) -> i64 {
    let leap_days = (year + 3) / 4 - (year + 99) / 100 + (year + 399) / 400;
    year * 365 + leap_days
}

/// The number of days in the year before a date.
fn day_of_year(civil: Civil) -> i64 {
    let before_month: i64 = (1..civil.month).map(|month| days_in_month(civil.year, month)).sum();
    before_month + civil.day - 1
}

fn days_in_month(year: i64, month: i64) -> i64 {
    let is_leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap_year => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A number of at most nine digits.
fn number(digits: &[u8]) -> Option<i64> {
    let is_number = (1..=9).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    if is_number { std::str::from_utf8(digits).ok()?.parse().ok() } else { None }
}

/// A year; RFC 5322, section 4.3 defines the meaning of two and three digits.
fn year_of(digits: &[u8]) -> Option<i64> {
    let year = number(digits)?;
    Some(match digits.len() {
        2 if year < 50 => year + 2000,
        2 | 3 => year + 1900,
        _ => year,
    })
}

/// The number of a month, from 1, by the first three letters of its name.
fn month_of(name: &[u8]) -> Option<i64> {
    let start = name.get(..3)?;
    let at = MONTHS.iter().position(|month| month.as_bytes().eq_ignore_ascii_case(start))?;
    i64::try_from(at + 1).ok()
}

/// Minutes that a zone is ahead of UTC. Names that RFC 5322 doesn't define mean that the zone is unknown, hence UTC.
fn zone_of(tokens: &[Token<'_>]) -> Option<i16> {
    let Some(Token::Atom(zone)) = tokens.first() else { return Some(0) };
    if let Some(digits) = zone.iter().position(|byte| matches!(byte, b'+' | b'-')) {
        // Some programs write +hh:mm, some GMT+hhmm.
        let offset = zone.get(digits..)?;
        return match tokens {
            [_, Token::Special(b':'), Token::Atom(minutes), ..] => offset_of(&[offset, minutes].concat()),
            _ => offset_of(offset),
        };
    }
    let hours = match zone.to_ascii_uppercase().as_slice() {
        b"EDT" => -4,
        b"EST" | b"CDT" => -5,
        b"CST" | b"MDT" => -6,
        b"MST" | b"PDT" => -7,
        b"PST" => -8,
        _ => 0,
    };
    Some(hours * 60)
}

/// Minutes of `+hhmm`, `-hhmm`, or with a colon; less than a day.
fn offset_of(zone: &[u8]) -> Option<i16> {
    let (sign, digits) = match zone {
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match digits {
        [a, b, c, d] | [a, b, b':', c, d] => (number(&[*a, *b])?, number(&[*c, *d])?),
        _ => return None,
    };
    let is_less_than_a_day = hours < 24 && minutes < 60;
    if is_less_than_a_day { i16::try_from(sign * (hours * 60 + minutes)).ok() } else { None }
}

/// Numbers of fixed widths between separators.
fn fields<const N: usize>(text: &str, separator: char, widths: [usize; N]) -> Option<[i64; N]> {
    let mut numbers = [0; N];
    let mut pieces = text.split(separator);
    for (field, width) in numbers.iter_mut().zip(widths) {
        *field = number(pieces.next().filter(|piece| piece.len() == width)?.as_bytes())?;
    }
    pieces.next().is_none().then_some(numbers)
}
