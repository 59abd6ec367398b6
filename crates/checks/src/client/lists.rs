//! DNS lists of addresses (RFC 5782).

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use restante_net::{
    LogThrottle,
    dns::{Answer, Resolver, reversed},
};
use tokio::time::Instant;
use tracing::warn;

use super::{BlockList, Listing};

/// How long a list that works is assumed to work.
const GOOD_FOR: Duration = Duration::from_secs(3_600);
/// How long a list that does not work is not queried.
const BAD_FOR: Duration = Duration::from_secs(300);
/// The most bytes of a list's text about an address.
const TEXT_BYTES_MAX: usize = 200;

/// A list, and whether it can be trusted.
pub(super) struct CheckedList {
    list: BlockList,
    /// Without a trailing dot.
    zone: String,
    v4: Mutex<Option<Health>>,
    v6: Mutex<Option<Health>>,
    complaints: LogThrottle,
}

/// The result of the last check of a list.
#[derive(Clone, Copy, Debug)]
struct Health {
    until: Instant,
    is_good: bool,
}

/// A list's answer about an address.
enum Listed {
    Yes,
    No,
    Unknown,
}

impl CheckedList {
    pub(super) fn new(list: BlockList) -> Self {
        let zone = list.zone.trim_end_matches('.').to_owned();
        Self { list, zone, v4: Mutex::default(), v6: Mutex::default(), complaints: LogThrottle::default() }
    }

    /// The list's entry about a client; `None` if the list can't be trusted or does not answer.
    pub(super) async fn listing(&self, resolver: &Arc<dyn Resolver>, address: IpAddr) -> Option<Listing> {
        let name = format!("{}.{}", reversed(address), self.zone);
        let (listed, is_good) =
            tokio::join!(self.listed(resolver, &name), self.is_good(resolver, address.is_ipv4()));
        if !is_good || !matches!(listed, Listed::Yes) {
            return None;
        }
        let text = resolver.txt(&name).await.records().into_iter().next();
        let text = text.map(|text| printable(&text)).filter(|text| !text.is_empty());
        Some(Listing { zone: self.zone.clone(), action: self.list.action, text })
    }

    /// Whether the list has an entry for this name. Only answers in 127.0.0.0/8 are entries (RFC 5782 §2.1): others come from
    /// resolvers that lie, and from zones that are for sale. Answers in 127.255.255.0/24 mean that the list refuses this server's
    /// queries.
    async fn listed(&self, resolver: &Arc<dyn Resolver>, name: &str) -> Listed {
        let addresses = match resolver.ipv4_addresses(name).await {
            Answer::Found(addresses) => addresses,
            Answer::NoSuchName | Answer::NoRecords => return Listed::No,
            Answer::Temporary(_) => return Listed::Unknown,
        };
        let answers = addresses.into_iter().filter_map(|address| match address {
            IpAddr::V4(address) if address.is_loopback() => Some(address),
            _ => None,
        });
        let mut listed = Listed::No;
        for answer in answers {
            if is_error(answer) {
                self.complain("it does not answer this server");
                return Listed::Unknown;
            }
            listed = Listed::Yes;
        }
        listed
    }

    /// Whether the list works: it has an entry for 127.0.0.2 and none for 127.0.0.1, or for the IPv6 forms of these addresses
    /// (RFC 5782 §5). An abandoned list has neither, or both if its zone answers everything.
    async fn is_good(&self, resolver: &Arc<dyn Resolver>, is_v4: bool) -> bool {
        let health = if is_v4 { &self.v4 } else { &self.v6 };
        let known = *health.lock();
        if let Some(known) = known
            && Instant::now() < known.until
        {
            return known.is_good;
        }
        let name_of = |last: u8| {
            let test = Ipv4Addr::new(127, 0, 0, last);
            let test = if is_v4 { IpAddr::V4(test) } else { IpAddr::V6(test.to_ipv6_mapped()) };
            format!("{}.{}", reversed(test), self.zone)
        };
        let (has, has_not) = (name_of(2), name_of(1));
        let (has, has_not) = tokio::join!(self.listed(resolver, &has), self.listed(resolver, &has_not));
        let is_good = match (has, has_not) {
            (Listed::Yes, Listed::No) => true,
            // Not known: the next client causes another check.
            (Listed::Unknown, Listed::No | Listed::Unknown) | (Listed::Yes, Listed::Unknown) => return false,
            (Listed::No, _) | (_, Listed::Yes) => false,
        };
        if !is_good {
            self.complain("it lists 127.0.0.1, or does not list 127.0.0.2");
        }
        let lasts = if is_good { GOOD_FOR } else { BAD_FOR };
        *health.lock() = Some(Health { until: Instant::now() + lasts, is_good });
        is_good
    }

    fn complain(&self, what: &'static str) {
        if let Some(times) = self.complaints.count() {
            warn!(zone = self.zone, times, "a block list is not believed: {what}");
        }
    }
}

/// Whether an answer is an error of the list, such as lists return to resolvers that query too much.
fn is_error(answer: Ipv4Addr) -> bool {
    matches!(answer.octets(), [127, 255, 255, _])
}

/// A text as it can be used in a reply: printable ASCII, truncated.
fn printable(text: &str) -> String {
    let text = text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' });
    text.take(TEXT_BYTES_MAX).collect::<String>().trim().to_owned()
}
