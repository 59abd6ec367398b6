//! Rates as text: `150/1s`.

use std::{fmt, str::FromStr, time::Duration};

use super::Rate;

/// Why a text is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRateError {
    /// It is not a number, a slash, a number and a unit.
    #[error("not a rate: {0:?}; expected <requests>/<time>, such as 150/1s, 10/2m, 1000/1h or 5/500ms")]
    Shape(String),
    /// One of its numbers is 0, so that no request would be allowed.
    #[error("{0:?} lets nothing through: leave the rate out to let everything through")]
    Zero(String),
}

impl FromStr for Rate {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        let rate = parse(text).ok_or_else(|| ParseRateError::Shape(text.to_owned()))?;
        if is_unlimited(rate) { Err(ParseRateError::Zero(text.to_owned())) } else { Ok(rate) }
    }
}

/// Spaces and the case of letters don't matter, as in nwaku's settings.
fn parse(text: &str) -> Option<Rate> {
    let (requests, time) = text.split_once('/')?;
    let time = time.trim().to_ascii_lowercase();
    let unit_at = time.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = time.split_at(unit_at);
    let unit_ms: u64 = match unit.trim_start() {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let count = parse_number(count)?;
    let period = Duration::from_millis(u64::from(count) * unit_ms);
    Some(Rate { requests: parse_number(requests.trim())?, period })
}

/// Only digits: no sign.
fn parse_number(text: &str) -> Option<u32> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if is_digits { text.parse().ok() } else { None }
}

fn is_unlimited(rate: Rate) -> bool {
    rate.requests == 0 || rate.period.is_zero()
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.period.as_millis();
        let (count, unit) = match ms {
            _ if ms.is_multiple_of(3_600_000) => (ms / 3_600_000, "h"),
            _ if ms.is_multiple_of(60_000) => (ms / 60_000, "m"),
            _ if ms.is_multiple_of(1_000) => (ms / 1_000, "s"),
            _ => (ms, "ms"),
        };
        write!(f, "{}/{count}{unit}", self.requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(requests: u32, period: Duration) -> Rate {
        Rate { requests, period }
    }

    #[test]
    fn rates_read_back() {
        let cases = [
            ("150/1s", rate(150, Duration::from_secs(1))),
            ("10/2m", rate(10, Duration::from_secs(120))),
            ("1000/1h", rate(1000, Duration::from_secs(3600))),
            ("5/500ms", rate(5, Duration::from_millis(500))),
            ("4294967295/4294967295h", rate(u32::MAX, Duration::from_secs(3600 * u64::from(u32::MAX)))),
        ];
        for (text, rate) in cases {
            assert_eq!(text.parse(), Ok(rate));
            assert_eq!(rate.to_string(), text);
        }
        assert_eq!("1/60s".parse::<Rate>().unwrap().to_string(), "1/1m");
        assert_eq!("1/1500ms".parse::<Rate>().unwrap().to_string(), "1/1500ms");
    }

    #[test]
    fn other_texts_are_refused_with_what_is_expected() {
        let shapes = [
            "",
            "150",
            "150/",
            "/1s",
            "150/s",
            "150/1",
            "150/1d",
            "-1/1s",
            "+1/1s",
            "1.5/1s",
            "1/1.5s",
            "1/+1s",
            "4294967296/1s",
            "1/4294967296s",
            "150 1s",
            "1/1s/1s",
            "١/1s",
        ];
        for text in shapes {
            assert_eq!(text.parse::<Rate>(), Err(ParseRateError::Shape(text.to_owned())), "{text}");
        }
        assert_eq!("0/1s".parse::<Rate>(), Err(ParseRateError::Zero("0/1s".to_owned())));
    }
}
