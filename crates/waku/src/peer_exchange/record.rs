//! Converts between node records and libp2p's types, and creates the record of this node.

use std::net::IpAddr;

use libp2p::{
    Multiaddr, PeerId,
    identity::{self, secp256k1},
    multiaddr::Protocol,
};
use restante_core::Timestamp;
use restante_waku_wire::enr::{Capabilities, Contents, Enr, EnrError, RelayShards};

use crate::{Services, metadata, node::Node, validate::Rules};

/// The most addresses of a record: more don't fit into its 300 bytes.
const ADDRESSES_MAX: usize = 16;

/// The peer id of a record.
pub(super) fn peer_of(record: &Enr) -> Option<PeerId> {
    let key = secp256k1::PublicKey::try_from_bytes(record.public_key()).ok()?;
    Some(identity::PublicKey::from(key).to_peer_id())
}

/// The addresses in a record, without the peer id.
pub(super) fn addresses_of(contents: &Contents) -> Vec<Multiaddr> {
    let tcp = |ip: IpAddr, port: u16| Multiaddr::from(ip).with(Protocol::Tcp(port));
    let ip4 = contents.ip.zip(contents.tcp).map(|(ip, port)| tcp(ip.into(), port));
    let ip6 = contents.ip6.zip(contents.tcp6).map(|(ip, port)| tcp(ip.into(), port));
    let others = contents.multiaddrs.iter().filter_map(|bytes| Multiaddr::try_from(bytes.clone()).ok());
    ip4.into_iter().chain(ip6).chain(others).take(ADDRESSES_MAX).collect()
}

/// The record of this node; `None` when its key can't sign records.
///
/// Its sequence number is the time in milliseconds, so the record of a later start is newer.
pub(super) fn own(node: &Node, rules: &Rules, services: Services, now: Timestamp) -> Option<Enr> {
    let key = node.key().clone().try_into_secp256k1().ok()?;
    let secret = key.secret().to_bytes();
    let seq = u64::try_from(now.nanos() / 1_000_000).unwrap_or_default().max(1);
    let mut contents = contents_at(&node.addresses());
    contents.capabilities = Some(capabilities(node.is_relay(), services));
    contents.relay_shards =
        rules.cluster_id.map(|cluster| RelayShards { cluster, shards: metadata::shards_of(rules) });
    sign(seq, contents, &secret)
}

/// Signs a record, without the last addresses if they don't fit.
fn sign(seq: u64, mut contents: Contents, secret: &[u8; 32]) -> Option<Enr> {
    loop {
        match Enr::sign(seq, &contents, secret) {
            Ok(record) => return Some(record),
            Err(EnrError::TooLong) => contents.multiaddrs.pop()?,
            Err(_) => return None,
        };
    }
}

fn capabilities(is_relay: bool, services: Services) -> Capabilities {
    let all = [
        (is_relay, Capabilities::RELAY),
        (services.store, Capabilities::STORE),
        (services.filter, Capabilities::FILTER),
        (services.lightpush, Capabilities::LIGHTPUSH),
    ];
    let offered = all.into_iter().filter(|(is_offered, _)| *is_offered);
    offered.fold(Capabilities::default(), |capabilities, (_, capability)| capabilities | capability)
}

/// The first plain TCP addresses have their own entries; WebSockets and names are among the multiaddrs. Loopback addresses are
/// left out unless there are no others.
fn contents_at(addresses: &[Multiaddr]) -> Contents {
    let has_public = addresses.iter().any(|address| !is_loopback(address));
    let mut contents = Contents::default();
    for address in addresses {
        let address: Multiaddr = address.iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect();
        if has_public && is_loopback(&address) {
            continue;
        }
        let parts: Vec<Protocol<'_>> = address.iter().collect();
        match parts[..] {
            [Protocol::Ip4(ip), Protocol::Tcp(port)] => {
                let (ip, port) = contents.ip.zip(contents.tcp).unwrap_or((ip, port)); // keep the first one
                (contents.ip, contents.tcp) = (Some(ip), Some(port));
            }
            [Protocol::Ip6(ip), Protocol::Tcp(port)] => {
                let (ip, port) = contents.ip6.zip(contents.tcp6).unwrap_or((ip, port));
                (contents.ip6, contents.tcp6) = (Some(ip), Some(port));
            }
            _ if contents.multiaddrs.len() < ADDRESSES_MAX => contents.multiaddrs.push(address.to_vec()),
            _ => {}
        }
    }
    contents
}

fn is_loopback(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => ip.is_loopback(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// The peer id was computed from this record by go-waku.
    #[test]
    fn the_peer_id_of_a_record_is_that_of_go_waku() {
        let text = "enr:-QESuEC1p_s3xJzAC_XlOuuNrhVUETmfhbm1wxRGis0f7DlqGSw2FM-p2Ugl_r25UHQJ3f1rIRrpzxJXSMaJe4yk1XFSAYJpZIJ2NIJpcISygI2rim11bHRpYWRkcnO4XAArNiZub2RlLTAxLmRvLWFtczMud2FrdS50ZXN0LnN0YXR1c2ltLm5ldAZ2XwAtNiZub2RlLTAxLmRvLWFtczMud2FrdS50ZXN0LnN0YXR1c2ltLm5ldAYfQN4DgnJzkwABCAAAAAEAAgADAAQABQAGAAeJc2VjcDI1NmsxoQJATXRSRSUyTw_QLB6H_U3oziVQgNRgrXpK7wp2AMyNxYN0Y3CCdl-DdWRwgiMohXdha3UyDw";
        let record: Enr = text.parse().unwrap();
        let peer = peer_of(&record).unwrap();
        assert_eq!(peer.to_string(), "16Uiu2HAkykgaECHswi3YKJ5dMLbq2kPVCo89fcyTd38UcQD6ej5W");
        let expected = [
            "/ip4/178.128.141.171/tcp/30303",
            "/dns4/node-01.do-ams3.waku.test.statusim.net/tcp/30303",
            "/dns4/node-01.do-ams3.waku.test.statusim.net/tcp/8000/wss",
        ];
        assert_eq!(addresses_of(&record.contents()), addresses(&expected));
    }

    #[test]
    fn addresses_are_decoded_without_the_peer() {
        let peer = PeerId::random();
        let given = addresses(&[
            "/ip4/127.0.0.1/tcp/1",
            "/ip4/192.0.2.7/tcp/60000",
            "/ip4/192.0.2.8/tcp/60000",
            "/ip4/192.0.2.7/tcp/8000/ws",
            "/ip6/2001:db8::7/tcp/60001",
            "/dns4/waku.example.org/tcp/443/wss",
        ]);
        let with_peer: Vec<Multiaddr> =
            given.iter().map(|address| address.clone().with_p2p(peer).unwrap()).collect();
        let contents = contents_at(&with_peer);
        let expected = addresses(&[
            "/ip4/192.0.2.7/tcp/60000",
            "/ip6/2001:db8::7/tcp/60001",
            "/ip4/192.0.2.7/tcp/8000/ws",
            "/dns4/waku.example.org/tcp/443/wss",
        ]);
        assert_eq!(addresses_of(&contents), expected);
    }

    #[test]
    fn loopback_is_included_when_there_is_nothing_else() {
        let given = addresses(&["/ip4/127.0.0.1/tcp/60000", "/ip4/127.0.0.1/tcp/8000/ws"]);
        assert_eq!(addresses_of(&contents_at(&given)), given);
    }

    #[test]
    fn the_last_addresses_are_left_out_when_they_do_not_fit() {
        let host = "a".repeat(40);
        let many: Vec<Multiaddr> =
            (0..20).map(|n| format!("/dns4/{n}.{host}.org/tcp/443/wss").parse().unwrap()).collect();
        let contents = Contents { ip: Some([192, 0, 2, 7].into()), tcp: Some(1), ..contents_at(&many) };
        let record = sign(1, contents, &[1; 32]).unwrap();
        let left = addresses_of(&record.contents());
        assert!(left.len() > 2, "{left:?}");
        assert_eq!(left[1..], many[..left.len() - 1]);
    }

    #[test]
    fn capabilities_are_those_of_the_services() {
        let store_alone = Services { store: true, filter: false, lightpush: false, peer_exchange: true };
        assert_eq!(capabilities(false, store_alone), Capabilities::STORE);
        let all = Capabilities::RELAY | Capabilities::STORE | Capabilities::FILTER | Capabilities::LIGHTPUSH;
        assert_eq!(capabilities(true, Services::default()), all);
    }
}
