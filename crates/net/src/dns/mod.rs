//! DNS look-ups for mail: an answer is certain (there are records, or there are none) or a temporary failure.

mod fixed;
mod system;

use std::{fmt::Write as _, net::IpAddr};

use async_trait::async_trait;

pub use fixed::FixedResolver;
pub use system::{ResolverConfig, ResolverError, SystemResolver};

/// The result of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// These records, at least one.
    Found(Vec<T>),
    /// The name does not exist: a server that has the zone, or queried one that has it, says so (NXDOMAIN with the zone's SOA).
    NoSuchName,
    /// The name exists but has no such records; this is just as certain.
    NoRecords,
    /// Nothing is known now, with the reason in one line: no server answered, or none in a way that can be trusted.
    Temporary(String),
}

/// A server that accepts mail for a domain (RFC 5321 §5.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MxRecord {
    /// The smallest is tried first.
    pub preference: u16,
    /// Its name in lower case without the final dot; empty for the root, which says that the domain accepts no mail (RFC 7505).
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
    /// Its name in lower case without the final dot; empty for the root, which says that there is no such service.
    pub target: String,
}

/// Looks names up. Names are ASCII, with or without a final dot, and are never completed by search domains. An answer arrives in
/// bounded time.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    /// The `MX` records of a domain, in no particular order.
    async fn mx(&self, name: &str) -> Answer<MxRecord>;

    /// The IPv6 and IPv4 addresses of a host. Found when at least one of the two look-ups found some.
    async fn addresses(&self, name: &str) -> Answer<IpAddr>;

    /// The `TXT` records of a name, with the strings of each joined; bytes that are not UTF-8 become U+FFFD.
    async fn txt(&self, name: &str) -> Answer<String>;

    /// The `SRV` records of a name, in no particular order.
    async fn srv(&self, name: &str) -> Answer<SrvRecord>;

    /// Only the IPv4 addresses of a host, by one query.
    async fn ipv4_addresses(&self, name: &str) -> Answer<IpAddr>;

    /// Only the IPv6 addresses of a host, by one query.
    async fn ipv6_addresses(&self, name: &str) -> Answer<IpAddr>;

    /// The names of an address (RFC 1035 §3.5, RFC 3596 §2.5), in no particular order, in lower case without final dots. They
    /// need not be host names, or resolve to the address.
    async fn ptr(&self, address: IpAddr) -> Answer<String>;
}

/// The octets of an address in reverse, as `1.2.0.192`, or the nibbles of an IPv6 address: the DNS name of an address, also in
/// lists of addresses (RFC 5782 §2.1, §2.4).
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

    /// Combines two look-ups of one name: the records that either found. If there are none, the answer is certain only if both are.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Found(mut all), Self::Found(more)) => {
                all.extend(more);
                Self::Found(all)
            }
            (Self::Found(found), _) | (_, Self::Found(found)) => Self::Found(found),
            (Self::Temporary(why), _) | (_, Self::Temporary(why)) => Self::Temporary(why),
            (Self::NoSuchName, Self::NoSuchName) => Self::NoSuchName,
            // A name that has records of one type exists, even if a broken server says otherwise for the other type.
            _ => Self::NoRecords,
        }
    }
}

/// A name in the form in which names are compared: lower case, without the final dot.
fn plain_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
