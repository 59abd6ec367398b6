//! The DNS, as mail needs it: an answer says for certain that something is not there, or that nothing is known now.

mod fixed;
mod system;

use std::{fmt::Write as _, net::IpAddr};

use async_trait::async_trait;

pub use fixed::FixedResolver;
pub use system::{ResolverConfig, ResolverError, SystemResolver};

/// What a look-up found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// These records, at least one.
    Found(Vec<T>),
    /// The name does not exist: a server that has the zone, or asked one, says so (NXDOMAIN with the zone's SOA).
    NoSuchName,
    /// The name exists and has no such records; as certain.
    NoRecords,
    /// Nothing is known now, in one line why: no server answered, or not in a way that can be believed.
    Temporary(String),
}

/// A server that takes mail for a domain (RFC 5321 §5.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MxRecord {
    /// The smallest is tried first.
    pub preference: u16,
    /// Its name in lower case without a dot at its end; empty for the root, which says that the domain takes no mail (RFC 7505).
    pub host: String,
}

/// A server of a service (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SrvRecord {
    /// The smallest is used first.
    pub priority: u16,
    /// How often it is chosen among those of its priority.
    pub weight: u16,
    /// Its port.
    pub port: u16,
    /// Its name in lower case without a dot at its end; empty for the root, which says that there is no such service.
    pub target: String,
}

/// Looks names up. Names are given in ASCII, with or without a dot at their end, and are never completed by search domains. An answer comes in bounded
/// time.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    /// The `MX` records of a domain, in no order.
    async fn mx(&self, name: &str) -> Answer<MxRecord>;

    /// The addresses of a host, of IPv6 and IPv4. Found when one of both look-ups found some.
    async fn addresses(&self, name: &str) -> Answer<IpAddr>;

    /// The `TXT` records of a name, the strings of each joined; bytes that are no UTF-8 are U+FFFD.
    async fn txt(&self, name: &str) -> Answer<String>;

    /// The `SRV` records of a name, in no order.
    async fn srv(&self, name: &str) -> Answer<SrvRecord>;

    /// The addresses of a host of IPv4 alone, by one question.
    async fn ipv4_addresses(&self, name: &str) -> Answer<IpAddr>;

    /// The addresses of a host of IPv6 alone, by one question.
    async fn ipv6_addresses(&self, name: &str) -> Answer<IpAddr>;

    /// The names of an address (RFC 1035 §3.5, RFC 3596 §2.5), in no order, in lower case without a dot at their ends. Nothing says that they are names of hosts,
    /// or that they lead back to the address.
    async fn ptr(&self, address: IpAddr) -> Answer<String>;
}

/// The octets of an address in reverse, as `1.2.0.192`, or the nibbles of one of IPv6: how the DNS names addresses, and how lists of addresses do (RFC 5782 §2.1, §2.4).
pub fn reversed(address: IpAddr) -> String {
    let mut name = String::new();
    match address {
        IpAddr::V4(address) => {
            for octet in address.octets().iter().rev() {
                let _ = write!(name, "{octet}."); // writing to a string does not fail
            }
        }
        IpAddr::V6(address) => {
            for octet in address.octets().iter().rev() {
                let _ = write!(name, "{:x}.{:x}.", octet & 15, octet >> 4);
            }
        }
    }
    name.pop();
    name
}

impl<T> Answer<T> {
    /// The records; none when nothing was found.
    pub fn records(self) -> Vec<T> {
        match self {
            Self::Found(records) => records,
            Self::NoSuchName | Self::NoRecords | Self::Temporary(_) => Vec::new(),
        }
    }

    /// The answer of two look-ups for one name: what either found; nothing is certain when one of them is not.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Found(mut all), Self::Found(more)) => {
                all.extend(more);
                Self::Found(all)
            }
            (Self::Found(found), _) | (_, Self::Found(found)) => Self::Found(found),
            (Self::Temporary(why), _) | (_, Self::Temporary(why)) => Self::Temporary(why),
            (Self::NoSuchName, Self::NoSuchName) => Self::NoSuchName,
            // A name that has records of one type exists, whatever a broken server says to the other.
            _ => Self::NoRecords,
        }
    }
}

/// A name as it is compared: in lower case, without the dot at its end.
fn plain_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
