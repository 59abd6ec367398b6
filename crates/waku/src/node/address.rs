//! Addresses of peers: parses them, groups those of one machine or network, and distinguishes public from private ones.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use libp2p::{Multiaddr, PeerId, multiaddr::Protocol};

use super::peer_of;

/// The longest text that is parsed.
const ADDRESS_BYTES_MAX: usize = 1_024;

/// The address of a peer, with its peer id: `/ip4/10.0.0.1/tcp/60000/p2p/16Uiu2...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    pub(crate) address: Multiaddr,
    pub(crate) peer: PeerId,
}

impl TryFrom<Multiaddr> for PeerAddress {
    type Error = String;

    fn try_from(address: Multiaddr) -> Result<Self, String> {
        let peer = peer_of(&address).ok_or_else(|| no_peer_address(&address.to_string()))?;
        Ok(Self { address, peer })
    }
}

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address =
            if text.len() > ADDRESS_BYTES_MAX { None } else { text.trim().parse::<Multiaddr>().ok() };
        address.ok_or_else(|| no_peer_address(text))?.try_into()
    }
}

fn no_peer_address(text: &str) -> String {
    format!("'{text}' is no peer's address: write it as /ip4/<address>/tcp/<port>/p2p/<peer id>")
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// The usual addresses of one machine or household: one IPv4 address, or an IPv6 network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AddressGroup {
    V4(Ipv4Addr),
    /// The first 64 bits.
    V6(u64),
}

impl AddressGroup {
    /// `None` when the address does not begin with an IP address.
    pub(crate) fn of(address: &Multiaddr) -> Option<Self> {
        Some(match ip_of(address)?.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip),
            IpAddr::V6(ip) => Self::V6((u128::from(ip) >> 64) as u64),
        })
    }
}

fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

/// Whether an address is a public IP address. Names are not: they could resolve to any address.
pub(crate) fn is_public(address: &Multiaddr) -> bool {
    let is_name = |part| {
        matches!(part, Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) | Protocol::Dnsaddr(_))
    };
    if address.iter().any(is_name) {
        return false;
    }
    ip_of(address).is_some_and(restante_net::is_public)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_internet_are_public() {
        let public = [
            "/ip4/8.8.8.8",
            "/ip4/100.128.0.1",
            "/ip4/172.32.0.1",
            "/ip6/2a01:4f8::1",
            "/ip6/::ffff:8.8.8.8",
        ];
        let public =
            public.into_iter().chain(["/ip6/64:ff9b::808:808", "/ip6/2002:808:808::1", "/ip6/2600::1"]);
        for ip in public {
            assert!(is_public(&format!("{ip}/tcp/60000").parse().unwrap()), "{ip}");
        }
        let others = [
            "/ip4/0.0.0.0",
            "/ip4/0.1.2.3",
            "/ip4/10.0.0.1",
            "/ip4/100.64.0.1",
            "/ip4/127.0.0.1",
            "/ip4/127.9.9.9",
            "/ip4/169.254.169.254",
            "/ip4/172.16.0.1",
            "/ip4/172.31.255.255",
            "/ip4/192.0.2.1",
            "/ip4/192.168.1.1",
            "/ip4/198.18.0.1",
            "/ip4/224.0.0.1",
            "/ip4/255.255.255.255",
            "/ip6/::",
            "/ip6/::1",
            "/ip6/::127.0.0.1",
            "/ip6/::ffff:127.0.0.1",
            "/ip6/::ffff:10.0.0.1",
            "/ip6/64:ff9b::7f00:1",
            "/ip6/64:ff9b:1::1",
            "/ip6/2001::1",
            "/ip6/2001:db8::1",
            "/ip6/2002:7f00:1::1",
            "/ip6/fc00::1",
            "/ip6/fd12::1",
            "/ip6/fe80::1",
            "/ip6/ff02::1",
            "/dns/localhost",
            "/dns4/node.example.org",
            "/dns6/node.example.org",
            "/dnsaddr/example.org",
        ];
        for ip in others {
            assert!(!is_public(&format!("{ip}/tcp/60000").parse().unwrap()), "{ip}");
        }
        assert!(!is_public(&"/ip4/8.8.8.8/tcp/1/dns4/localhost".parse().unwrap()));
        assert!(!is_public(&Multiaddr::empty()));
    }

    #[test]
    fn addresses_of_one_network_are_one_group() {
        let group = |address: &str| AddressGroup::of(&address.parse().unwrap());
        assert_eq!(group("/ip4/192.0.2.1/tcp/1"), group("/ip6/::ffff:192.0.2.1/tcp/2/ws"));
        assert_ne!(group("/ip4/192.0.2.1/tcp/1"), group("/ip4/192.0.2.2/tcp/1"));
        assert_eq!(group("/ip6/2001:db8:1:2:3::4/tcp/1"), group("/ip6/2001:db8:1:2::9/tcp/1"));
        assert_ne!(group("/ip6/2001:db8:1:2::9/tcp/1"), group("/ip6/2001:db8:1:3::9/tcp/1"));
        assert_eq!(group("/dns4/example.org/tcp/1"), None);
    }
}
