//! Rates as text: `150/1s` for a service, `store:150/1s` as in nwaku's `--rate-limit`.

use std::{fmt, str::FromStr};

use restante_net::{ParseRateError, Rate};

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

/// One value of nwaku's `--rate-limit`: `<service>:<requests>/<time>`; without a service it applies to all that have no separate
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateEntry {
    /// The service; `None` is all services.
    pub service: Option<RatedService>,
    /// The rate; `None` is unlimited, as nwaku reads `0/1s` and `100/0s`.
    pub rate: Option<Rate>,
}

/// Why a text is not a rate of a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseEntryError {
    /// The text after the service is not a rate.
    #[error(transparent)]
    Rate(#[from] restante_net::ParseRateError),
    /// The service is unknown or can't be limited.
    #[error("no service {0:?} has a rate: expected store, filter, lightpush or px")]
    Service(String),
    /// The rate is for nwaku's former store protocol.
    #[error("the former store protocol (storev2) is not served: name store instead")]
    FormerStore,
}

impl FromStr for RateEntry {
    type Err = ParseEntryError;

    fn from_str(text: &str) -> Result<Self, ParseEntryError> {
        let (service, rate) = match text.split_once(':') {
            Some((service, rate)) => (Some(service.parse()?), rate),
            None => (None, text),
        };
        let rate = match rate.parse() {
            Ok(rate) => Some(rate),
            Err(ParseRateError::Zero(_)) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { service, rate })
    }
}

impl FromStr for RatedService {
    type Err = ParseEntryError;

    fn from_str(text: &str) -> Result<Self, ParseEntryError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "store" | "storev3" => Ok(Self::Store),
            "storev2" => Err(ParseEntryError::FormerStore),
            "filter" => Ok(Self::Filter),
            "lightpush" => Ok(Self::Lightpush),
            "px" => Ok(Self::PeerExchange),
            other => Err(ParseEntryError::Service(other.to_owned())),
        }
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn entries_are_read_as_nwaku_reads_them() {
        let second = Some(Rate { requests: 150, period: Duration::from_secs(1) });
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
    fn other_services_are_refused() {
        assert_eq!(
            "metadata:1/1s".parse::<RateEntry>(),
            Err(ParseEntryError::Service("metadata".to_owned()))
        );
        assert_eq!(":1/1s".parse::<RateEntry>(), Err(ParseEntryError::Service(String::new())));
        assert_eq!("storev2:1/1s".parse::<RateEntry>(), Err(ParseEntryError::FormerStore));
        let error = "store:fast".parse::<RateEntry>().unwrap_err().to_string();
        assert_eq!(
            error,
            "not a rate: \"fast\"; expected <requests>/<time>, such as 150/1s, 10/2m, 1000/1h or 5/500ms"
        );
    }
}
