//! The entries of a node record.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    ops::BitOr,
};

use crate::SHARD_MAX;

/// The most shards in the key `rs`; more are in the bit field `rsv`.
pub const RELAY_SHARDS_MAX: usize = 63;

/// The length of a bit field with a bit per shard.
const SHARD_FIELD_BYTES: usize = (SHARD_MAX as usize + 1) / 8;

/// The entries of a Waku node's record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The IPv4 address.
    pub ip: Option<Ipv4Addr>,
    /// The TCP port at the IPv4 address.
    pub tcp: Option<u16>,
    /// The UDP port at the IPv4 address.
    pub udp: Option<u16>,
    /// The IPv6 address.
    pub ip6: Option<Ipv6Addr>,
    /// The TCP port at the IPv6 address.
    pub tcp6: Option<u16>,
    /// Further addresses, each as a binary multiaddr without the peer id.
    pub multiaddrs: Vec<Vec<u8>>,
    /// The services of the node.
    pub capabilities: Option<Capabilities>,
    /// The shards that it relays.
    pub relay_shards: Option<RelayShards>,
}

/// The services of a node: a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities(pub u8);

impl Capabilities {
    /// It relays.
    pub const RELAY: Self = Self(1);
    /// It answers store queries.
    pub const STORE: Self = Self(2);
    /// It pushes messages to filter subscribers.
    pub const FILTER: Self = Self(4);
    /// It publishes for light nodes.
    pub const LIGHTPUSH: Self = Self(8);
    /// It reconciles its store with others.
    pub const SYNC: Self = Self(16);

    /// Whether all of `others` are set.
    pub fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

impl BitOr for Capabilities {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Shards of a cluster, from `51/WAKU2-RELAY-SHARDING`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayShards {
    /// The cluster.
    pub cluster: u16,
    /// The shards; in ascending order when there are more than [`RELAY_SHARDS_MAX`].
    pub shards: Vec<u16>,
}

impl Contents {
    /// The encoded entries in the order of their keys.
    pub(super) fn to_pairs(&self) -> BTreeMap<&'static [u8], Vec<u8>> {
        let mut pairs: BTreeMap<&'static [u8], Vec<u8>> = BTreeMap::new();
        let mut put = |key: &'static str, value: Option<Vec<u8>>| {
            if let Some(value) = value {
                pairs.insert(key.as_bytes(), value);
            }
        };
        put("ip", self.ip.map(|ip| ip.octets().to_vec()));
        put("ip6", self.ip6.map(|ip| ip.octets().to_vec()));
        put("multiaddrs", encode_multiaddrs(&self.multiaddrs));
        put("tcp", self.tcp.map(encode_port));
        put("tcp6", self.tcp6.map(encode_port));
        put("udp", self.udp.map(encode_port));
        put("waku2", self.capabilities.map(|capabilities| vec![capabilities.0]));
        if let Some(shards) = &self.relay_shards {
            let is_few = shards.shards.len() <= RELAY_SHARDS_MAX;
            put(if is_few { "rs" } else { "rsv" }, Some(shards.encode()));
        }
        pairs
    }

    /// Decodes the entries; invalid ones are left out.
    pub(super) fn from_pairs<'a>(get: impl Fn(&[u8]) -> Option<&'a [u8]>) -> Self {
        let port = |key: &[u8]| get(key).and_then(decode_port);
        let shards = get(b"rs").and_then(RelayShards::decode_list);
        Self {
            ip: get(b"ip").and_then(|ip| <[u8; 4]>::try_from(ip).ok()).map(Ipv4Addr::from),
            tcp: port(b"tcp"),
            udp: port(b"udp"),
            ip6: get(b"ip6").and_then(|ip| <[u8; 16]>::try_from(ip).ok()).map(Ipv6Addr::from),
            tcp6: port(b"tcp6"),
            multiaddrs: get(b"multiaddrs").map(decode_multiaddrs).unwrap_or_default(),
            capabilities: get(b"waku2").and_then(decode_capabilities),
            relay_shards: shards.or_else(|| get(b"rsv").and_then(RelayShards::decode_field)),
        }
    }
}

impl RelayShards {
    /// Encodes the value of `rs`, or of `rsv` for more than [`RELAY_SHARDS_MAX`] shards.
    fn encode(&self) -> Vec<u8> {
        let mut out = self.cluster.to_be_bytes().to_vec();
        match u8::try_from(self.shards.len()) {
            Ok(count) if usize::from(count) <= RELAY_SHARDS_MAX => {
                out.push(count);
                out.extend(self.shards.iter().flat_map(|shard| shard.to_be_bytes()));
            }
            _ => out.extend(self.bits()),
        }
        out
    }

    /// Shard 0 is the lowest bit of the first byte, as in nwaku and go-waku.
    fn bits(&self) -> [u8; SHARD_FIELD_BYTES] {
        let mut field = [0; SHARD_FIELD_BYTES];
        for shard in &self.shards {
            if let Some(byte) = field.get_mut(usize::from(shard / 8)) {
                *byte |= 1 << (shard % 8);
            }
        }
        field
    }

    /// Decodes the value of `rs`: the cluster, a count, and the shards.
    fn decode_list(value: &[u8]) -> Option<Self> {
        let (cluster, rest) = value.split_first_chunk()?;
        let (count, rest) = rest.split_first()?;
        let (shards, rest) = rest.as_chunks();
        let shards: Vec<u16> = shards.iter().map(|shard| u16::from_be_bytes(*shard)).collect();
        let is_whole = rest.is_empty() && shards.len() == usize::from(*count);
        let is_known = shards.len() <= RELAY_SHARDS_MAX && shards.iter().all(|shard| *shard <= SHARD_MAX);
        (is_whole && is_known).then_some(Self { cluster: u16::from_be_bytes(*cluster), shards })
    }

    /// Decodes the value of `rsv`: the cluster and a bit per shard.
    fn decode_field(value: &[u8]) -> Option<Self> {
        let (cluster, field) = value.split_first_chunk()?;
        let field: &[u8; SHARD_FIELD_BYTES] = field.try_into().ok()?;
        let mut shards = Vec::new();
        for (byte, first) in field.iter().zip((0..=SHARD_MAX).step_by(8)) {
            shards.extend((0..8).filter(|bit| (byte >> bit) & 1 == 1).map(|bit| first + bit));
        }
        Some(Self { cluster: u16::from_be_bytes(*cluster), shards })
    }
}

/// Encodes each address with a length prefix of two bytes; `None` when there is none.
fn encode_multiaddrs(multiaddrs: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for multiaddr in multiaddrs {
        let Ok(len) = u16::try_from(multiaddr.len()) else { continue };
        out.extend(len.to_be_bytes());
        out.extend_from_slice(multiaddr);
    }
    (!out.is_empty()).then_some(out)
}

/// Decodes addresses up to the first invalid length.
fn decode_multiaddrs(mut value: &[u8]) -> Vec<Vec<u8>> {
    let mut multiaddrs = Vec::new();
    while let Some((len, rest)) = value.split_first_chunk() {
        let Some((multiaddr, rest)) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len))) else {
            break;
        };
        multiaddrs.push(multiaddr.to_vec());
        value = rest;
    }
    multiaddrs
}

/// Encodes a port as RLP does, without leading zeros.
fn encode_port(port: u16) -> Vec<u8> {
    port.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect()
}

fn decode_port(value: &[u8]) -> Option<u16> {
    match *value {
        [] => Some(0),
        [0, ..] => None,
        [low] => Some(low.into()),
        [high, low] => Some(u16::from_be_bytes([high, low])),
        _ => None,
    }
}

fn decode_capabilities(value: &[u8]) -> Option<Capabilities> {
    let [flags] = value else { return None };
    Some(Capabilities(*flags))
}
