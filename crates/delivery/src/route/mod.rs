//! Which servers take mail for a domain (RFC 5321 §5.1, RFC 7505).

mod own;

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::future::join_all;
use restante_directory::Domain;
use restante_mail::queue::Reply;
use restante_net::dns::{Answer, MxRecord, Resolver};

pub use own::OwnHost;

/// The most servers of one domain that are looked up; the others are less preferred.
const SERVERS_MAX: usize = 16;

/// A server that takes mail for a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its name, or its address as text.
    pub name: String,
    /// Where it is reached.
    pub address: SocketAddr,
}

/// The route to a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Servers that take mail for the domain, at least one, in the order in which they are tried.
    pub servers: Vec<Server>,
    /// Why some servers of the domain are not among them, in words of this server; `None` when these are all.
    pub missing: Option<String>,
}

/// Finds servers by their `MX` records.
pub struct Router {
    resolver: Arc<dyn Resolver>,
    own: OwnHost,
    port: u16,
    /// The most addresses of a domain that are tried in one attempt.
    addresses_max: usize,
    /// The state of the random order of equal servers.
    chance: AtomicU64,
}

/// A server with its addresses.
struct Host {
    preference: u16,
    name: String,
    addresses: Answer<IpAddr>,
}

impl Router {
    /// A router to this port of other servers. `seed` determines the order of equal servers.
    pub fn new(
        resolver: Arc<dyn Resolver>,
        own: OwnHost,
        port: u16,
        addresses_max: usize,
        seed: u64,
    ) -> Self {
        Self { resolver, own, port, addresses_max, chance: AtomicU64::new(seed) }
    }

    /// This server.
    pub fn own(&self) -> &OwnHost {
        &self.own
    }

    /// The servers that take mail for a domain.
    ///
    /// # Errors
    /// A reply for all of its recipients. It is 5yz only if the DNS says with certainty that the domain accepts no mail: any other
    /// problem may be temporary.
    pub async fn route(&self, domain: &str) -> Result<Route, Reply> {
        if let Some(literal) = domain.strip_prefix('[') {
            return self.literal(domain, literal);
        }
        let domain =
            ascii(domain).ok_or_else(|| Reply::own(550, "5.1.2", format!("'{domain}' is no domain")))?;
        let (mut records, is_implicit) = match self.resolver.mx(&domain).await {
            Answer::Found(records) => (records, false),
            // The domain itself is the server (RFC 5321 §5.1).
            Answer::NoRecords => (vec![MxRecord { preference: 0, host: domain.clone() }], true),
            Answer::NoSuchName => return Err(unknown(&domain)),
            Answer::Temporary(why) => return Err(no_answer(&domain, &why)),
        };
        records.retain(|record| !record.host.is_empty());
        if records.is_empty() {
            // RFC 7505 §3: the root is its only server.
            return Err(Reply::own(556, "5.1.10", format!("the domain {domain} takes no mail")));
        }
        let is_cut = records.len() > SERVERS_MAX;
        let hosts = self.hosts(records).await;
        let hosts = self.before_own(&domain, hosts)?;
        let mut servers = self.servers(&hosts);
        if servers.is_empty() {
            return Err(unreachable(&domain, hosts, is_implicit));
        }
        let is_cut = is_cut || servers.len() > self.addresses_max;
        servers.truncate(self.addresses_max);
        let unknown = hosts.iter().find_map(|host| match &host.addresses {
            Answer::Temporary(why) => Some(format!("the server {} can't be looked up now: {why}", host.name)),
            _ => None,
        });
        let cut = || is_cut.then(|| format!("{domain} has more servers than are tried at once"));
        Ok(Route { servers, missing: unknown.or_else(cut) })
    }

    /// An address in brackets in place of a domain (RFC 5321 §4.1.3).
    fn literal(&self, domain: &str, literal: &str) -> Result<Route, Reply> {
        let literal = literal.strip_suffix(']').unwrap_or_default();
        let tag = literal.get(..5).filter(|tag| tag.eq_ignore_ascii_case("IPv6:"));
        let ip = match tag.and_then(|tag| literal.get(tag.len()..)) {
            Some(v6) => v6.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            None => literal.parse().ok().map(IpAddr::V4),
        };
        let Some(ip) = ip.filter(is_host) else {
            return Err(Reply::own(550, "5.1.2", format!("{domain} is no address of a server")));
        };
        let address = SocketAddr::new(ip, self.port);
        if self.own.is_address(address) {
            return Err(looped(domain));
        }
        Ok(Route { servers: vec![Server { name: domain.to_owned(), address }], missing: None })
    }

    /// The servers in the order of their preference, equally preferred ones in random order, with their addresses.
    async fn hosts(&self, mut records: Vec<MxRecord>) -> Vec<Host> {
        self.shuffle(&mut records);
        records.sort_by_key(|record| record.preference);
        // A name that occurs twice counts with its better preference.
        let mut seen = Vec::new();
        records.retain(|record| {
            let is_new = !seen.contains(&record.host);
            if is_new {
                seen.push(record.host.clone());
            }
            is_new
        });
        records.truncate(SERVERS_MAX);
        let lookups = records.iter().map(|record| self.resolver.addresses(&record.host));
        let answers = join_all(lookups).await;
        let hosts = records.into_iter().zip(answers);
        hosts
            .map(|(record, addresses)| Host { preference: record.preference, name: record.host, addresses })
            .collect()
    }

    /// The servers that are preferred to this one. Mail must not go to this server again, nor to one that is not preferred to it,
    /// which would send the mail here (RFC 5321 §5.1).
    fn before_own(&self, domain: &str, mut hosts: Vec<Host>) -> Result<Vec<Host>, Reply> {
        let is_own = |host: &Host| {
            let Answer::Found(addresses) = &host.addresses else { return self.own.is_name(&host.name) };
            let mut addresses = addresses.iter().map(|ip| SocketAddr::new(*ip, self.port));
            self.own.is_name(&host.name) || addresses.any(|address| self.own.is_address(address))
        };
        let own = hosts.iter().filter(|host| is_own(host)).map(|host| host.preference).min();
        if let Some(own) = own {
            hosts.retain(|host| host.preference < own);
            if hosts.is_empty() {
                return Err(looped(domain));
            }
        }
        Ok(hosts)
    }

    fn servers(&self, hosts: &[Host]) -> Vec<Server> {
        let mut servers = Vec::new();
        for host in hosts {
            let Answer::Found(addresses) = &host.addresses else { continue };
            let mut addresses: Vec<IpAddr> = addresses.iter().copied().filter(is_host).collect();
            self.shuffle(&mut addresses);
            for ip in by_turns(addresses) {
                servers.push(Server { name: host.name.clone(), address: SocketAddr::new(ip, self.port) });
            }
        }
        servers
    }

    fn shuffle<T>(&self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let step = self.chance.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            let mixed = (step ^ (step >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let other = (mixed ^ (mixed >> 31)) % (last as u64 + 1);
            items.swap(last, usize::try_from(other).unwrap_or(0));
        }
    }
}

/// A domain in its DNS form: also one that no account of this server could have, such as one with an underscore.
pub(crate) fn ascii(domain: &str) -> Option<String> {
    if let Ok(domain) = domain.parse::<Domain>() {
        return Some(domain.as_str().to_owned());
    }
    let is_name = !domain.is_empty()
        && domain.len() <= 253
        && domain.split('.').all(|label| {
            let is_char = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=63).contains(&label.len()) && label.bytes().all(is_char)
        });
    (is_name && domain.parse::<IpAddr>().is_err()).then(|| domain.to_ascii_lowercase())
}

/// IPv4 and IPv6 addresses alternately, so that a network without one of them does not use up all tries.
fn by_turns(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.into_iter().partition(IpAddr::is_ipv4);
    let (mut v4, mut v6) = (v4.into_iter(), v6.into_iter());
    let mut mixed = Vec::new();
    loop {
        let (one, other) = (v4.next(), v6.next());
        if one.is_none() && other.is_none() {
            return mixed;
        }
        mixed.extend(one);
        mixed.extend(other);
    }
}

/// Whether an address can be that of a single server.
fn is_host(ip: &IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || is_broadcast)
}

fn unknown(domain: &str) -> Reply {
    Reply::own(550, "5.1.2", format!("the domain {domain} does not exist"))
}

fn no_answer(domain: &str, why: &str) -> Reply {
    Reply::own(450, "4.4.3", format!("the servers of {domain} can't be looked up now: {why}"))
}

fn looped(domain: &str) -> Reply {
    Reply::own(
        554,
        "5.4.6",
        format!("mail for {domain} would come back to this server, which does not have the domain"),
    )
}

/// The reply when no server has an address.
fn unreachable(domain: &str, hosts: Vec<Host>, is_implicit: bool) -> Reply {
    for host in &hosts {
        if let Answer::Temporary(why) = &host.addresses {
            return no_answer(domain, why);
        }
    }
    match hosts.into_iter().next().map(|host| host.addresses) {
        Some(Answer::NoSuchName) if is_implicit => unknown(domain),
        Some(Answer::NoRecords) if is_implicit => {
            Reply::own(550, "5.4.4", format!("the domain {domain} has no server for mail"))
        }
        // The domain has mail servers: somebody will probably correct their names.
        _ => Reply::own(450, "4.4.4", format!("the servers for mail of {domain} have no addresses")),
    }
}

#[cfg(test)]
mod tests;
