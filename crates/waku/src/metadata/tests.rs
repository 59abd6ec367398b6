use libp2p::identity::Keypair;

use super::*;
use crate::node::{NodeConfig, NodeMetrics};

fn node() -> Node {
    let config = NodeConfig::new(Keypair::generate_secp256k1());
    Node::new(config, NodeMetrics::default()).0
}

fn service(rules: &Rules) -> MetadataService {
    MetadataService::new(LocalMetadata::new(node(), rules))
}

async fn ask(service: &MetadataService, asker: &Metadata) -> Metadata {
    let answer = service.answer(PeerId::random(), asker.encode_to_vec().into()).await;
    assert_eq!(answer.status, 200);
    let frame = answer.frame.unwrap();
    assert!(frame.len() <= METADATA_BYTES_MAX, "nwaku reads no more: {}", frame.len());
    Metadata::decode_length_delimited(&frame[..]).unwrap()
}

fn rules(cluster_id: Option<u16>, shards: &[u16]) -> Rules {
    Rules { cluster_id, shards: shards.to_vec(), ..Rules::default() }
}

#[tokio::test]
async fn shards_of_the_settings_are_returned_in_both_fields() {
    let answer = ask(&service(&rules(Some(42), &[0, 5])), &Metadata::new(Some(7), [3])).await;
    assert_eq!(answer, Metadata::new(Some(42), [0, 5]));
    assert_eq!((&answer.shards_unpacked[..], &answer.shards_packed[..]), (&[0, 5][..], &[0, 5][..]));
}

/// js-waku does not ask a node for messages of a shard that the node did not announce.
#[tokio::test]
async fn a_server_of_all_shards_also_announces_those_of_the_asker() {
    let answer = ask(&service(&rules(Some(16), &[])), &Metadata::new(Some(16), [32, 1023])).await;
    assert_eq!(answer, Metadata::new(Some(16), (0..8).chain([32, 1023])));
}

#[tokio::test]
async fn a_server_of_all_clusters_announces_the_cluster_of_the_asker() {
    let service = service(&rules(None, &[]));
    let answer = ask(&service, &Metadata::new(Some(42), [9])).await;
    assert_eq!(answer, Metadata::new(Some(42), (0..8).chain([9])));
    assert_eq!(ask(&service, &Metadata::default()).await, Metadata::new(None, 0..8));
    let impossible =
        Metadata { cluster_id: Some(1 << 20), shards_packed: vec![1024, u32::MAX], ..Metadata::default() };
    assert_eq!(ask(&service, &impossible).await, Metadata::new(None, 0..8));
}

#[tokio::test]
async fn answers_are_bounded_however_many_shards_there_are() {
    let everything = Rules { shards_in_network: 1024, ..rules(Some(u16::MAX), &[]) };
    let answer = ask(&service(&everything), &Metadata::default()).await;
    assert_eq!(answer.shards().len(), SHARDS_MAX);
    let high: Vec<u16> = (300..600).collect();
    let answer = ask(&service(&rules(Some(u16::MAX), &high)), &Metadata::default()).await;
    assert_eq!(answer.shards().len(), SHARDS_MAX);
    let asker = Metadata { shards_packed: (500..900).collect(), ..Metadata::default() };
    let answer = ask(&service(&rules(None, &[])), &asker).await;
    assert_eq!(answer.shards().len(), SHARDS_MAX);
}

#[tokio::test]
async fn an_invalid_request_is_not_answered() {
    let service = service(&rules(Some(1), &[]));
    let answer = service.answer(PeerId::random(), Bytes::from_static(b"\x08")).await;
    assert_eq!(answer, Answer::none(400));
    assert_eq!(service.answer_too_often(Bytes::new()), Answer::none(429));
}

#[test]
fn relayed_shards_are_those_of_the_cluster() {
    let topics =
        ["/waku/2/rs/1/5", "/waku/2/rs/2/6", "/waku/2/other", "/waku/2/rs/1/1000"].map(str::to_owned);
    assert_eq!(relayed_shards(&topics, Some(1)), [5, 1000]);
    assert!(relayed_shards(&topics, None).is_empty());
}
