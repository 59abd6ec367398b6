//! Rates as text: `150/1s` for a service, `store:150/1s` as in nwaku's `--rate-limit`.

use std::{fmt, str::FromStr, time::Duration};

use super::Rate;

/// A service whose requests can be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RatedService {
    /// Store queries.
    Store,
    /// Filter subscriptions and pings.
    Filter,
    /// Lightpush requests.
    Lightpush,
    /// Peer exchange.
    PeerExchange,
}

/// One value of nwaku's `--rate-limit`: `<service>:<requests>/<time>`; without a service it is for all that have no value of
/// their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateEntry {
    /// The service; `None` is all services.
    pub service: Option<RatedService>,
    /// The rate; `None` is unlimited, as nwaku reads `0/1s` and `100/0s`.
    pub rate: Option<Rate>,
}

/// Why a text is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRateError {
    /// The text is not a number, a slash, a number and a unit.
    #[error("not a rate: {0:?}; expected <requests>/<time>, such as 150/1s, 10/2m, 1000/1h or 5/500ms")]
    Shape(String),
    /// A number is 0: nothing would be answered.
    #[error("{0:?} lets nothing through: leave the rate out to let everything through")]
    Zero(String),
    /// The service is unknown or can't be limited.
    #[error("no service {0:?} has a rate: expected store, filter, lightpush or px")]
    Service(String),
    /// The rate is for nwaku's former store protocol.
    #[error("the former store protocol (storev2) is not served: name store instead")]
    FormerStore,
}

impl FromStr for Rate {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        let rate = parse(text).ok_or_else(|| ParseRateError::Shape(text.to_owned()))?;
        if is_unlimited(rate) { Err(ParseRateError::Zero(text.to_owned())) } else { Ok(rate) }
    }
}

impl FromStr for RateEntry {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        let (service, rate) = match text.split_once(':') {
            Some((service, rate)) => (Some(service.parse()?), rate),
            None => (None, text),
        };
        let rate = parse(rate).ok_or_else(|| ParseRateError::Shape(rate.to_owned()))?;
        Ok(Self { service, rate: (!is_unlimited(rate)).then_some(rate) })
    }
}

impl FromStr for RatedService {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "store" | "storev3" => Ok(Self::Store),
            "storev2" => Err(ParseRateError::FormerStore),
            "filter" => Ok(Self::Filter),
            "lightpush" => Ok(Self::Lightpush),
            "px" => Ok(Self::PeerExchange),
            other => Err(ParseRateError::Service(other.to_owned())),
        }
    }
}

/// As in nwaku, spaces and the case of letters don't matter.
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

/// Digits alone: no sign.
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

impl fmt::Display for RatedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Store => "store",
            Self::Filter => "filter",
            Self::Lightpush => "lightpush",
            Self::PeerExchange => "px",
        })
    }
}

impl fmt::Display for RateEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(service) = self.service {
            write!(f, "{service}:")?;
        }
        match self.rate {
            Some(rate) => rate.fmt(f),
            None => f.write_str("0/1s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(requests: u32, period: Duration) -> Rate {
        Rate { requests, period }
    }

    #[test]
    fn rates_survive_printing_and_parsing() {
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
    fn entries_are_parsed_as_in_nwaku() {
        let second = Some(rate(150, Duration::from_secs(1)));
        let cases = [
            ("store:150/1s", Some(RatedService::Store), second),
            ("storev3:150/1s", Some(RatedService::Store), second),
            ("filter:150/1s", Some(RatedService::Filter), second),
            ("px:150/1s", Some(RatedService::PeerExchange), second),
            (" LightPush : 150 / 1 S ", Some(RatedService::Lightpush), second),
            ("150/1s", None, second),
            ("0/1s", None, None),
            ("store:100/0s", Some(RatedService::Store), None),
        ];
        for (text, service, rate) in cases {
            let entry: RateEntry = text.parse().unwrap();
            assert_eq!(entry, RateEntry { service, rate }, "{text}");
            assert_eq!(entry.to_string().parse(), Ok(entry), "{text}");
        }
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
        assert_eq!("metadata:1/1s".parse::<RateEntry>(), Err(ParseRateError::Service("metadata".to_owned())));
        assert_eq!(":1/1s".parse::<RateEntry>(), Err(ParseRateError::Service(String::new())));
        assert_eq!("storev2:1/1s".parse::<RateEntry>(), Err(ParseRateError::FormerStore));
        let error = "store:fast".parse::<RateEntry>().unwrap_err().to_string();
        assert_eq!(
            error,
            "not a rate: \"fast\"; expected <requests>/<time>, such as 150/1s, 10/2m, 1000/1h or 5/500ms"
        );
    }
}
