use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::SHARD_MAX;

/// The example of EIP-778, and the secret key that signed it.
const EIP_778: &str = "enr:-IS4QHCYrYZbAKWCBRlAy5zzaDZXJBGkcnh4MHcBFZntXNFrdvJjX04jRzjzCBOonrkTfj499SZuOh8R33Ls8RRcy5wBgmlkgnY0gmlwhH8AAAGJc2VjcDI1NmsxoQPKY0yuDUmstAHYpMa2_oxVtw0RW_QAdpzBQA8yWM0xOIN1ZHCCdl8";
const EIP_778_SECRET: &str = "b71c71a67e1177ad4e901695e1b4b9ee17ae16c6668d313eac2f96dbcda3f291";

/// A node of the public test network, run by nwaku.
const NWAKU: &str = "enr:-QESuEC1p_s3xJzAC_XlOuuNrhVUETmfhbm1wxRGis0f7DlqGSw2FM-p2Ugl_r25UHQJ3f1rIRrpzxJXSMaJe4yk1XFSAYJpZIJ2NIJpcISygI2rim11bHRpYWRkcnO4XAArNiZub2RlLTAxLmRvLWFtczMud2FrdS50ZXN0LnN0YXR1c2ltLm5ldAZ2XwAtNiZub2RlLTAxLmRvLWFtczMud2FrdS50ZXN0LnN0YXR1c2ltLm5ldAYfQN4DgnJzkwABCAAAAAEAAgADAAQABQAGAAeJc2VjcDI1NmsxoQJATXRSRSUyTw_QLB6H_U3oziVQgNRgrXpK7wp2AMyNxYN0Y3CCdl-DdWRwgiMohXdha3UyDw";

/// Made by go-waku.
const GO_WAKU: &str = "enr:-Ji4QAa0VR5P27XvDEZzuFf1lnO6OGzm4hPhVtVYPFqlB-9vZnZtc-lzmEqY4stHFTIazRnSzwhlYne0UMIAmFMZ8o2GAYwawiLNgmlkgnY0gmlwhMCoAWSJc2VjcDI1NmsxoQLtnTLtFmyU8AFqO8Jw4X9zBfB6fWJxsMk9YpyrPeNPkoN0Y3CCw6qDdWRwgsm6hXdha3UyAQ";

fn secret() -> [u8; 32] {
    hex::decode(EIP_778_SECRET).unwrap().try_into().unwrap()
}

/// Signs items that may break the rules.
fn signed(items: &[&[u8]]) -> Vec<u8> {
    let items = items.concat();
    let key = SigningKey::from_slice(&secret()).unwrap();
    let signature: Signature = key.sign_prehash(&digest(&items)).unwrap();
    list(&[string(&signature.to_bytes()), items].concat())
}

fn string(bytes: &[u8]) -> Vec<u8> {
    alloy_rlp::encode(bytes)
}

fn public_key() -> Vec<u8> {
    Enr::sign(1, &Contents::default(), &secret()).unwrap().public_key().to_vec()
}

#[test]
fn the_example_of_eip_778_is_decoded_and_encoded() {
    let record: Enr = EIP_778.parse().unwrap();
    let contents = Contents { ip: Some(Ipv4Addr::LOCALHOST), udp: Some(30_303), ..Contents::default() };
    assert_eq!((record.seq(), record.contents()), (1, contents.clone()));
    let public_key = "03ca634cae0d49acb401d8a4c6b6fe8c55b70d115bf400769cc1400f3258cd3138";
    assert_eq!(hex::encode(record.public_key()), public_key);
    assert_eq!(record.to_string(), EIP_778);
    let made = Enr::sign(1, &contents, &secret()).unwrap();
    assert_eq!(made.to_string(), EIP_778);
    assert_eq!(made, record);
}

#[test]
fn records_of_other_nodes_are_decoded() {
    let record: Enr = NWAKU.parse().unwrap();
    let contents = record.contents();
    assert_eq!((contents.ip, contents.tcp), (Some([178, 128, 141, 171].into()), Some(30_303)));
    let all = Capabilities::RELAY | Capabilities::STORE | Capabilities::FILTER | Capabilities::LIGHTPUSH;
    assert_eq!(contents.capabilities, Some(all));
    assert!(!all.contains(Capabilities::SYNC));
    assert_eq!(contents.relay_shards, Some(RelayShards { cluster: 1, shards: (0..8).collect() }));
    let host = b"\x36\x26node-01.do-ams3.waku.test.statusim.net";
    let addresses = [[&host[..], b"\x06\x76\x5f"].concat(), [&host[..], b"\x06\x1f\x40\xde\x03"].concat()];
    assert_eq!(contents.multiaddrs, addresses);
    assert_eq!(record.to_string(), NWAKU);

    let record: Enr = GO_WAKU.parse().unwrap();
    assert_eq!(record.contents().ip, Some([192, 168, 1, 100].into()));
    assert_eq!(record.contents().capabilities, Some(Capabilities::RELAY));
    assert_eq!(record.seq(), 1_701_255_979_725);
}

/// Changing any bit of a record makes its signature or its format invalid.
#[test]
fn a_changed_record_is_refused() {
    let wire = EIP_778.parse::<Enr>().unwrap().wire().to_vec();
    for bit in 0..wire.len() * 8 {
        let mut changed = wire.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(Enr::decode(&changed).is_err(), "bit {bit}");
    }
    for cut in 0..wire.len() {
        assert_eq!(Enr::decode(&wire[..cut]), Err(EnrError::Malformed), "{cut}");
    }
    assert_eq!(Enr::decode(&[&wire[..], b"\x00"].concat()), Err(EnrError::Malformed));
}

#[test]
fn signed_records_that_break_the_rules_are_refused() {
    let seq = string(b"\x01");
    let id = [string(b"id"), string(b"v4")].concat();
    let key = [string(b"secp256k1"), string(&public_key())].concat();
    let ip = [string(b"ip"), string(b"\x7f\x00\x00\x01")].concat();
    let list = [string(b"eth"), list(&string(b"x"))].concat();
    let fine: [&[&[u8]]; 2] = [&[&seq, &id, &ip, &key], &[&seq, &list, &id, &key]];
    for items in fine {
        assert!(Enr::decode(&signed(items)).is_ok());
    }
    let malformed: [(&[&[u8]], &str); 5] = [
        (&[&seq, &ip, &id, &key], "out of order"),
        (&[&seq, &id, &id, &key], "a key twice"),
        (&[&seq, &id, &key, &string(b"tcp")], "a key without a value"),
        (&[&string(b"\x00\x01"), &id, &key], "a zero before the number"),
        (&[&string(&[1; 9]), &id, &key], "a number of more than 64 bits"),
    ];
    for (items, why) in malformed {
        assert_eq!(Enr::decode(&signed(items)), Err(EnrError::Malformed), "{why}");
    }
    assert_eq!(Enr::decode(&signed(&[&seq, &key])), Err(EnrError::Scheme));
    assert_eq!(Enr::decode(&signed(&[&seq, &id])), Err(EnrError::Signature));
    let other_scheme = [string(b"id"), string(b"v5")].concat();
    assert_eq!(Enr::decode(&signed(&[&seq, &other_scheme, &key])), Err(EnrError::Scheme));
    let no_point = [string(b"secp256k1"), string(&[2; 32])].concat();
    assert_eq!(Enr::decode(&signed(&[&seq, &id, &no_point])), Err(EnrError::Signature));
}

#[test]
fn records_are_300_bytes_at_most() {
    let contents = |len| Contents { multiaddrs: vec![vec![1; len]], ..Contents::default() };
    let longest = (0..300).rev().find_map(|len| Enr::sign(1, &contents(len), &secret()).ok()).unwrap();
    assert!((296..=300).contains(&longest.wire().len()), "{}", longest.wire().len());
    assert_eq!(longest.to_string().parse(), Ok(longest.clone()));
    assert!(longest.to_string().len() <= ENR_TEXT_BYTES_MAX);
    assert_eq!(Enr::sign(1, &contents(300), &secret()), Err(EnrError::TooLong));

    let long = [string(b"id"), string(b"v4"), string(b"x"), string(&[1; 300])].concat();
    assert_eq!(Enr::decode(&signed(&[&string(b"\x01"), &long])), Err(EnrError::TooLong));
    let text = format!("enr:{}", "A".repeat(10_000));
    assert_eq!(text.parse::<Enr>(), Err(EnrError::TooLong));
}

#[test]
fn other_texts_are_refused() {
    for text in ["", "enr", &EIP_778[4..], "ENR:AAAA", "enr:!", &format!("{EIP_778}=")] {
        assert_eq!(text.parse::<Enr>(), Err(EnrError::Text), "{text}");
    }
    assert_eq!("enr:".parse::<Enr>(), Err(EnrError::Malformed));
}

#[test]
fn zero_is_not_a_secret_key() {
    assert_eq!(Enr::sign(1, &Contents::default(), &[0; 32]), Err(EnrError::SecretKey));
    assert_eq!(Enr::sign(1, &Contents::default(), &[0xff; 32]), Err(EnrError::SecretKey));
}

/// The highest shards, and more than the list form holds.
#[test]
fn many_shards_are_encoded_as_a_bit_field() {
    for count in [1, RELAY_SHARDS_MAX, RELAY_SHARDS_MAX + 1, 1024] {
        let shards: Vec<u16> =
            (0..=SHARD_MAX).rev().take(count).collect::<Vec<_>>().into_iter().rev().collect();
        let relay_shards = Some(RelayShards { cluster: 0x1234, shards });
        let contents = Contents { relay_shards, ..Contents::default() };
        let pairs = contents.to_pairs();
        let is_field = pairs.contains_key(&b"rsv"[..]);
        assert_eq!(is_field, count > RELAY_SHARDS_MAX, "{count}");
        assert_ne!(is_field, pairs.contains_key(&b"rs"[..]));
        let record = Enr::sign(1, &contents, &secret()).unwrap();
        assert_eq!(record.contents(), contents, "{count}");
    }
    let contents = Contents {
        relay_shards: Some(RelayShards { cluster: 1, shards: (0..64).chain([1023]).collect() }),
        ..Contents::default()
    };
    let field = &contents.to_pairs()[&b"rsv"[..]];
    assert_eq!(field.len(), 130);
    assert_eq!(
        (field[..10].to_vec(), field[129]),
        (b"\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(), 0x80)
    );
}

#[test]
fn invalid_entries_are_left_out() {
    let seq = string(b"\x01");
    let pairs = [
        ("id", &b"v4"[..]),
        ("ip", b"\x7f\x00\x00"),
        ("multiaddrs", b"\x00\x01a\x00\x05bc"),
        ("rs", b"\x00\x01\x02\x00\x01"),
        ("secp256k1", &public_key()),
        ("tcp", b"\x00\x50"),
        ("tcp6", b"\x01\x00\x00"),
        ("waku2", b"\x01\x02"),
    ];
    let pairs: Vec<u8> =
        pairs.iter().flat_map(|(key, value)| [string(key.as_bytes()), string(value)].concat()).collect();
    let record = Enr::decode(&signed(&[&seq, &pairs])).unwrap();
    assert_eq!(record.contents(), Contents { multiaddrs: vec![b"a".to_vec()], ..Contents::default() });
    for rs in [&b""[..], b"\x00\x01", b"\x00\x01\x01\x04\x00", b"\x00\x01\x01\x00\x00\x00"] {
        assert_eq!(Contents::from_pairs(|key| (key == b"rs").then_some(rs)), Contents::default(), "{rs:?}");
    }
    let empty = Contents::from_pairs(|key| (key == b"rs").then_some(&b"\x00\x01\x00"[..]));
    assert_eq!(empty.relay_shards, Some(RelayShards { cluster: 1, shards: vec![] }));
}

proptest! {
    #[test]
    fn signed_records_are_decoded(
        seq: u64,
        ip: Option<[u8; 4]>,
        ip6: Option<[u8; 16]>,
        ports: [Option<u16>; 3],
        flags: Option<u8>,
        cluster: u16,
        shards in prop::option::of(prop::collection::btree_set(0..=SHARD_MAX, 0..20)),
        multiaddrs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..3),
    ) {
        let contents = Contents {
            ip: ip.map(Ipv4Addr::from),
            tcp: ports[0],
            udp: ports[1],
            ip6: ip6.map(Ipv6Addr::from),
            tcp6: ports[2],
            multiaddrs,
            capabilities: flags.map(Capabilities),
            relay_shards: shards.map(|shards| RelayShards { cluster, shards: shards.into_iter().collect() }),
        };
        let record = Enr::sign(seq, &contents, &secret()).unwrap();
        let read = Enr::decode(record.wire()).unwrap();
        prop_assert_eq!((read.seq(), read.contents()), (seq, contents));
        prop_assert_eq!(read.to_string().parse::<Enr>(), Ok(record));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(wire in prop::collection::vec(any::<u8>(), 0..400)) {
        crate::properties::enr(&wire);
    }
}
