use libp2p::identity::Keypair;
use restante_waku_wire::enr::{Capabilities, Contents};

use super::*;
use crate::node::{NodeConfig, NodeMetrics};

fn node() -> Node {
    let config = NodeConfig::new(Keypair::generate_secp256k1());
    Node::new(config, NodeMetrics::default()).0
}

fn record(n: u8) -> Enr {
    let contents = Contents {
        ip: Some([192, 0, 2, n].into()),
        tcp: Some(60_000),
        capabilities: Some(Capabilities::RELAY),
        ..Contents::default()
    };
    Enr::sign(1, &contents, &[n; 32]).unwrap()
}

fn service(records: impl IntoIterator<Item = u8>) -> PeerExchangeService {
    let records = records.into_iter().map(record).collect();
    let config = PeerExchangeConfig { records, ..PeerExchangeConfig::default() };
    PeerExchangeService::new(PeerExchange::new(node(), config, None, PeerExchangeMetrics::default()))
}

fn read(answer: &Answer) -> PeerExchangeRpc {
    PeerExchangeRpc::decode_length_delimited(&answer.frame.as_ref().unwrap()[..]).unwrap()
}

async fn ask(service: &PeerExchangeService, num_peers: u64) -> PeerExchangeResponse {
    let query = Some(PeerExchangeQuery { num_peers });
    let request = PeerExchangeRpc { query: query.clone(), response: None };
    let answer = service.answer(PeerId::random(), request.encode_to_vec().into()).await;
    assert_eq!(answer.status, 200);
    let rpc = read(&answer);
    assert_eq!(rpc.query, query, "nwaku needs it in the answer");
    rpc.response.unwrap()
}

#[tokio::test]
async fn as_many_records_are_sent_as_requested_but_60_at_most() {
    let service = service(1..=100);
    for (asked, sent) in [(0, 0), (1, 1), (59, 59), (60, 60), (61, 60), (u64::MAX, 60)] {
        let response = ask(&service, asked).await;
        assert_eq!(response.peer_infos.len(), sent, "{asked}");
        assert_eq!((response.status_code, response.status_desc.as_deref()), (Some(200), Some("OK")));
    }
    assert_eq!(service.exchange.metrics.sent.get(), 240);
}

#[tokio::test]
async fn our_own_record_is_sent_when_fewer_are_known() {
    let service = service([1]);
    service.exchange.set_own_record(record(9));
    let sent: Vec<Bytes> = ask(&service, 5).await.peer_infos.into_iter().map(|info| info.enr).collect();
    assert_eq!(sent, [record(1).wire().clone(), record(9).wire().clone()]);
}

#[tokio::test]
async fn an_invalid_request_is_refused_with_a_status() {
    let service = service([1]);
    for request in [&b""[..], b"\x0a", b"\x12\x00"] {
        let answer = service.answer(PeerId::random(), Bytes::from_static(request)).await;
        assert_eq!(answer.status, 400, "{request:?}");
        let rpc = read(&answer);
        assert!(rpc.query.is_some());
        assert_eq!(rpc.response.unwrap().status_code, Some(400));
    }
    let answer = service.answer_too_often(Bytes::new());
    assert_eq!((answer.status, read(&answer).response.unwrap().status_code), (429, Some(429)));
}
